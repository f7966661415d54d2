"""Programs that fill a real pseudo-terminal lay themselves out anew when it is resized, before any key is pressed."""

import re
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of POSIX", allow_module_level=True)

from training_runs import FILMED, changed, run_once

from tests.repl.test_terminal import Seen, _begin
from tinytf_cli.terminal import SMALLEST

run = run_once(changed(FILMED, keep=1))
SIZES = [(80, 24), (120, 40), (200, 60), (60, 15), (30, 8), (200, 9), (39, 30), (60, 15), (120, 40), (80, 24)]
KEYS = {"explore": r" ↑↓ step", "learn": r"(up down scroll   )?space show the answer", "runs": r"←→ step"}
"""What the last line of each program begins with."""
ENDS = {"explore": r"step \d+/\d+", "learn": r"\d+ of \d+", "runs": r"step \d+ of \d+.*"}
"""What the first line of each program ends with."""


def laid_out(shown: str, program: str, size: tuple[int, int]) -> bool:
    """Whether the first line reaches the right edge where it should, and the keys stand in the last row."""
    first, *_, last = shown.split("\n")
    if any(have < least for have, least in zip(size, SMALLEST, strict=True)):
        return shown.split() == f"too small: {size[0]} × {size[1]} needs {SMALLEST[0]} × {SMALLEST[1]}".split()
    if program == "explore":
        reaches = shown.split("\n")[1].rstrip()
        return bool(re.match(KEYS[program], last)) and len(first.rstrip()) == size[0] - 1 and len(reaches) == size[0]
    at_the_edge = program != "learn" or len(first.rstrip()) == size[0]
    return bool(re.match(KEYS[program], last) and re.search(rf"{ENDS[program]}$", first.rstrip()) and at_the_edge)


def corners(shown: str) -> list[tuple[int, int]]:
    """Where the panes of a screen begin; what they show may still be being computed."""
    return [(y, x) for y, line in enumerate(shown.split("\n")) for x, sign in enumerate(line) if sign in "┌┬├"]


@pytest.mark.share(6)
@pytest.mark.parametrize("program", KEYS)
def test_a_resized_terminal_has_the_layout_of_its_size_without_a_key(program: str, run: Path, tmp_path: Path) -> None:
    words = {"explore": ["explore", "The cat sat"], "learn": ["learn", "1"], "runs": ["runs", "--film", str(run)]}
    seen: Seen = _begin(*SIZES[0], tmp_path, f"import sys; sys.argv[1:] = {words[program]!r}")
    try:
        first = seen.until(lambda shown: laid_out(shown, program, SIZES[0]), program)
        for size in SIZES:
            seen.screen.resize(size[1], size[0])
            seen.child.setwinsize(size[1], size[0])
            last = seen.until(lambda shown, size=size: laid_out(shown, program, size), f"{program} at {size}")
        assert corners(last) == corners(first)
    finally:
        seen.child.close(force=True)
