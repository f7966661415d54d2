"""The explorer in a real pseudo-terminal, edited again and again: each screen is whole and drawn anew."""

import sys
from pathlib import Path
from random import Random

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of POSIX", allow_module_level=True)

from hostile.watchdog import acting_in

from tests.explore.test_terminal import assert_given_back, explore

_WORDS = ("the", "cat", "sat", "on", "a", "mat", "Once", "upon", "dog's", "red,", "big", "猫", "e\u0301", "👍🏽", "x")
_AROUND = ("", "", "", "\x1b[B", "\x1b[C", "\x1b[6~", "n", "w", "g", "L", "a", "b", "z", "s", "\t", " ", "D", "d", "\r")
_CLEAR = "\x15"  # Ctrl-U: what is left of the cursor


def faults_of(screen: str) -> str:
    """What may not be on a screen; empty where it is as it should be."""
    if "Traceback" in screen or "Error" in screen:
        return "an error"
    if acting := acting_in(screen):
        return f"a character that acts: {acting}"
    if any(sequence in screen for sequence in ("[38;", "[48;", "[0m", "[?", "[2J")):
        return "what is left of an escape sequence"
    return "" if screen.strip() else "nothing"


def _text_of(screen: str) -> str:
    """The text whose tokens stand in the first line; empty while it is edited."""
    tokens = screen.split("\n")[0].split("  ")[0]
    return tokens.translate({ord("·"): " ", **dict.fromkeys(map(ord, "│[]"))}) if "│" in tokens else ""


def test_after_each_edit_the_screen_is_drawn_anew(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    rng = Random(0)
    seen, _ = explore(tmp_path, size=(110, 34))
    for number in range(pytestconfig.getoption("hostile") // 20):
        text = " ".join([f"{number}.", *rng.choices(_WORDS, k=rng.randrange(1, 5))])  # its end may be cut off
        seen.type(f"t{_CLEAR}{text}x\x7f\r")  # in one burst, as over a slow line
        shown = seen.until(
            lambda shown, number=number: _text_of(shown).startswith(f"{number}."), f"edit {number}, {text!r}"
        )
        assert not (fault := faults_of(shown)), f"edit {number}, {text!r}: {fault}\n{shown}"
        if key := rng.choice(_AROUND):
            seen.type(key)
    seen.type("q")
    assert "Traceback" not in assert_given_back(seen, 0)


@pytest.mark.parametrize(
    "screen", ["", "  \n ", "x\x1b[31m", "\u202e", "[38;5;1m x", "Traceback (most recent call last)"]
)
def test_a_screen_that_is_not_whole_is_found(screen: str) -> None:
    assert faults_of(screen)
