"""Every setting of every part at another value is a mistake that ``diff`` names, in models of every kind."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "parity"))

from architectures import KINDS
from wrong_settings import verdicts

_EVERY = 25
"""Of the wrong programs of a kind, the gate tries one in so many; the script tries all."""


@pytest.mark.share(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_setting_at_another_value_is_named(kind: str) -> None:
    found = [(words, verdict) for words, verdict, _ in verdicts(kind, _EVERY)]
    assert found
    assert [words for words, verdict in found if verdict == "wrong"] == []
