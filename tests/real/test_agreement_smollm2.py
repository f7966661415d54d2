"""The second study of the docs: every figure of the page is what its commands print."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "parity"))

from agreement_study import wrong_figures


@pytest.mark.real
@pytest.mark.exhaustive
def test_every_figure_of_the_page_holds() -> None:
    assert wrong_figures() == []
