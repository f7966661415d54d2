"""Every command that a page of docs/ names is taken, and those of study.md and figures.md run, with the status told."""

import re
import shlex
from pathlib import Path

import click
import pytest
from test_docs import EXAMPLES, PAGES, TOUR, code_blocks

from tinytf_cli.asking import answering, command_meant, is_how
from tinytf_cli.command import Command
from tinytf_cli.main import cli, run
from tinytf_cli.words import help_command

ROOT = Path(__file__).parent.parent
RUN = dict.fromkeys([*TOUR, *(line for line, _ in EXAMPLES)])
"""What tests/test_docs.py runs."""


def named(page: str) -> list[str]:
    """The commands that stand in the sentences and tables of a page."""
    return re.findall(r"`(tinytf [^`]+)`", re.sub(r"^```.*?^```", "", PAGES[page], flags=re.MULTILINE | re.DOTALL))


def is_run(line: str) -> bool:
    """Whether tests/test_docs.py runs a command."""
    return any(line == example.split("  ")[0] for example in RUN)


STUDIED = ("study.md", "figures.md")
STUDY = [line for line in dict.fromkeys(line for page in STUDIED for line in named(page)) if not is_run(line)]
WRONG_TEXTS = {line for line in STUDY if line.startswith("tinytf verify ")}
"""The study page says that these end with status 1."""
OTHERS = [
    *(line for page in PAGES for block in code_blocks("sh", page) for line in block.splitlines() if line not in RUN),
    *(line for page in PAGES if page not in STUDIED for line in named(page) if not is_run(line)),
]


@pytest.mark.share(12)
@pytest.mark.parametrize("line", STUDY)
def test_every_command_of_the_study_page_runs(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(line)[1:]) == (1 if line in WRONG_TEXTS else 0)
    shown = capsys.readouterr()
    assert shown.out
    assert "tinytf: error" not in shown.err


@pytest.mark.parametrize("line", [line for line in dict.fromkeys(OTHERS) if line.startswith("tinytf ")])
def test_every_command_of_the_docs_is_one_that_is_taken(line: str) -> None:
    """Those that need a hub, a run or somebody's file, or that name a command and none of what it takes."""
    name, *words = shlex.split(line, comments=True)[1:]
    if name.startswith("--"):
        assert name in cli.make_context("tinytf", [], resilient_parsing=True).get_help()
        return
    command = help_command if name == "help" else cli.get_command(click.Context(cli), name)
    if command is None:  # a word, a question, a text or a file, to which tinytf says the command
        assert command_meant(name) or answering(name) or " " in name or name.endswith(".gguf") or is_how(line[7:]), name
        return
    form, rest = command.in_form(words) if isinstance(command, Command) else (command, words)
    if rest:
        form.make_context(name, rest)
