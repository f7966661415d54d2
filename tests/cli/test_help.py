"""The help pages: groups that tell the story, whole lines, and every way to ask for them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from driving import Tinytf

from tinytf_cli import help_page
from tinytf_cli.command import Command, Option
from tinytf_cli.help_page import FOLDED, UNGROUPED
from tinytf_cli.main import EVERY, GROUPS, cli
from tinytf_cli.readers import READERS


def _page(name: str) -> str:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command.get_help(click.Context(command, info_name=name, terminal_width=80))


def test_every_command_is_a_whole_line_in_its_group(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = tinytf("--help").lines
    assert max(map(len, lines)) <= 80
    for title, names in GROUPS.items():
        first = lines.index(f"{title}:") + 1
        shown = lines[first : first + len(names)]
        assert [line.split()[0] for line in shown] == list(names)
        assert all(line.endswith(".") and not line.endswith("...") for line in shown)


@pytest.mark.parametrize("name", EVERY)
def test_a_help_page_fits_80_columns_and_says_what_each_option_does(name: str) -> None:
    page = _page(name)
    assert max(map(len, page.splitlines())) <= 80
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    assert [one.name for one in options if not one.help] == []
    own = {one.group for one in options if not one.shared}
    many = len([one for one in options if not one.shared]) + 1 > UNGROUPED  # --help itself is an option
    assert len(page.splitlines()) <= 100
    assert isinstance(command, Command)
    if command.first:
        assert all(f"\n  {group.lower()} " in page for group in own - {"Other"})
    else:
        assert all((f"\n{group}:" in page) == (many or group == "Options") for group in own)


@pytest.mark.parametrize("name", EVERY)
def test_a_command_with_very_many_options_explains_a_few_and_the_others_by_group(name: str, tinytf: Tinytf) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, Command)
    options = [one for one in command.params if isinstance(one, Option) and not one.hidden and not one.shared]
    assert (len(options) > FOLDED) == bool(command.first)
    if command.first:
        assert len(command.first) <= 10
        everything = tinytf(name, "--help-all").lines
        for option in options:
            lines = [line for line in everything if f"{option.opts[0]} " in f"{line} "]
            group = tinytf("help", name, option.group.lower()).lines
            assert lines
            assert any(f"{option.opts[-1]} " in f"{line} " for line in group)
            assert group == tinytf("help", name, option.opts[0]).lines


def test_an_unknown_group_of_options_names_the_nearest(tinytf: Tinytf) -> None:
    ran = tinytf("help", "train", "optimizer")
    assert (ran.status, ran.err) == (
        2, "tinytf: error: train has no group of options 'optimizer'\nhint: did you mean optimiser?\n",
    )  # fmt: skip


@pytest.mark.slow
def test_options_that_commands_share_are_explained_once(tinytf: Tinytf) -> None:
    page = tinytf("help", "options").out
    for name in EVERY:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        shared = [one for one in command.params if isinstance(one, Option) and one.shared]
        assert shared
        assert all(f"{one.opts[-1]} " in page and one.opts[-1] in _page(name) for one in shared)
        assert not any(one.help in " ".join(_page(name).split()) for one in shared if one.help)


def test_help_is_a_word_too(tinytf: Tinytf) -> None:
    assert tinytf("help", "grad").out == tinytf("grad", "--help").out
    assert tinytf("help").out == tinytf("--help").out
    ran = tinytf("help", "gard")
    assert (ran.status, ran.err) == (2, "tinytf: error: there is no command or word 'gard'\nhint: did you mean grad?\n")


def test_the_version_has_a_short_name(tinytf: Tinytf) -> None:
    assert tinytf("-V").out == tinytf("--version").out


def test_python_runs_the_package(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tinytf", "-V"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "tinytf, version 0.1.0\n")


@pytest.mark.parametrize("line", [("--help",), ("train", "--help"), ("help", "train", "data"), ("help", "softmax")])
def test_help_goes_through_the_pager_on_a_screen_and_straight_into_a_pipe(
    line: tuple[str, ...], tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = tinytf(*line).out
    paged: list[str] = []
    monkeypatch.setattr(help_page, "is_screen", lambda stream: True)
    monkeypatch.setattr(help_page, "page", paged.append)
    shown = tinytf(*line).out
    assert "".join(paged) + shown == piped
    assert bool(paged) == (line != ("help", "softmax"))  # the view of a report has its own pager


def test_every_command_is_that_of_some_reader() -> None:
    names = {name for lines in READERS.values() for name in lines}
    assert names == {name for names in GROUPS.values() for name in names}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_sees_a_line_of_each_command_and_what_it_does(reader: str, tinytf: Tinytf) -> None:
    shown = tinytf("help", reader).lines
    for name in READERS[reader]:
        (place,) = [number for number, line in enumerate(shown) if line.split()[:2] == ["tinytf", name]]
        assert shown[place + 1].strip() in {names[name] for names in GROUPS.values() if name in names}
    assert tinytf("help", {"researcher": "research", "porter": "port"}.get(reader, reader)).lines == shown


_FILES = {
    "book.txt": "The cat sat on the mat. The dog saw the cat.\n\n" * 400,
    "labels.jsonl": "".join(
        json.dumps({"text": f"{word} {animal}", "label": animal}) + "\n"
        for animal in ("cat", "dog") for word in ("The", "A", "One", "My")
    ),
    "moods.jsonl": "".join(
        json.dumps({"positive": f"The {word} was glad", "negative": f"The {word} was sad"}) + "\n"
        for word in ("cat", "dog", "king")
    ),
    "recipe.toml": 'tokenizer = "char"\nsteps = 2\nbatch = 2\nblock = 8\nwarmup = 0\neval_every = 2\n'
    "[model]\nd_model = 8\nn_layers = 1\nn_heads = 1\nd_ff = 8\ncontext = 64\n",
    "my_gpt.py": (Path(__file__).parents[1] / "check" / "files" / "einsum_gpt.py").read_text("utf-8") + "GPT = Net\n",
}  # fmt: skip
"""The reader's own files that the lines name."""


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_every_line_for_a_reader_runs(
    reader: str, tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINYTF_PROGRESS", "never")
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    for name, words in READERS[reader].items():
        ran = tinytf(name, *shlex.split(words), stdin=b"")
        if name == "explore":  # which needs a screen, and says so
            assert ran.status == 2, ran.err
        else:
            assert ran.status == 0, (name, words, ran.err)
