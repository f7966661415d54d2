"""For any input the outcome is a result, or one line and a hint: of every class, so many tries."""

from importlib import import_module
from itertools import islice

import pytest

from hostile import CLASSES, SHARE
from hostile.surface import SOUND
from hostile.watchdog import tried, watched
from tinytf_cli.main import EVERY

PARTS = 2
"""So that the workers share a class."""


def test_every_command_has_sound_words() -> None:
    assert set(EVERY) == set(SOUND)


@pytest.mark.share(4)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", CLASSES)
def test_whatever_comes_in_is_a_result_or_one_line_and_a_hint(
    pytestconfig: pytest.Config, name: str, part: int
) -> None:
    count = pytestconfig.getoption("hostile") // SHARE.get(name, 1)
    with watched():
        for case in islice(import_module(f"hostile.{name}").cases(count, 0), part, None, PARTS):
            found = tried(case)
            assert not found.fault, f"{case.about}\n{case.words!a}\n{found.fault}"
