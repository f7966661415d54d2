"""What a page of the served explorer reads: the model that was named at the start, and nothing beside it."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import covering
import pytest
from every_command import GIVEN
from test_every_output import made, read_by

FENCED = Path(__file__).parents[1] / "explore" / "fenced_lines.py"
NEVER_IN_A_SESSION = ("config --completion", "explore", "mcp", "repl")
MORE = (
    "source lines.txt",
    "model decoder",
    "model tiny --tokenizer data/tokenizer.json",
    "model m --adapter adapter",
    "without L0H0 --reference book.txt",
    "diff --versus dump.safetensors",
    "diff --versus other.npz",
    "score --lines lines.txt",
    "tokens --lines lines.txt",
    "replay run --versus run",
    "watch run --once",
    "models .",
    "card run",
    "info cached",
    "info decoder",
    "info hub",
    "trace The -m run",
    "generate The --add joy.safetensors",
    "lens The --translators other.npz",
    "trace The -m m",
)
THROUGH = ("model decoder --through transformers", "model m --through transformers", "model m")

__all__ = ["made"]


def in_a_page(world: Path, lines: list[str]) -> list[dict[str, Any]]:
    """What lines of a page with the model ``m`` said, and which files below ``world`` they opened."""
    ran = subprocess.run(
        [sys.executable, FENCED, world, "m"], input="\n".join(lines), stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="only inotify sees what native libraries open")
@pytest.mark.slow
def test_no_line_of_a_page_opens_a_file_that_was_not_named(made: Path) -> None:
    permitted = set(read_by(("m",), made)) | {*(made / "m").iterdir()}
    given = [words for lines in GIVEN.values() for words in lines if words[0] not in NEVER_IN_A_SESSION]
    naming = [
        words
        for words in given
        if covering.everything or (words[0] != "certify" and not permitted.issuperset(read_by(words, made)))
    ]
    lines = [*map(shlex.join, naming), *(THROUGH if covering.everything else ()), *MORE]
    answers = in_a_page(made, lines)
    assert [answer["line"] for answer in answers] == lines
    foreign = {
        answer["line"]: names
        for answer in answers
        if (names := [name for name in answer["opened"] if Path(name) not in permitted])
    }
    assert foreign == {}
    faults = [answer for answer in answers if "fault" in answer["said"]]
    assert faults == []
    refused = {answer["line"] for answer in answers if "was not named when this was started" in answer["said"]}
    assert len(refused) > 20
    assert answers[-1]["said"] == ""  # what was named is read again
