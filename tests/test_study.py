"""docs/study.md names commands that the command line takes, and addresses that their models have."""

import re
import shlex
from pathlib import Path

import click
import pytest

from tinytf.loading import load
from tinytf.presets import PRESETS
from tinytf.steps.table import table_of
from tinytf.trace.parameters import parse_any
from tinytf_cli.main import cli

PAGE = (Path(__file__).parent.parent / "docs" / "study.md").read_text("utf-8")
LINES = [shlex.split(line) for line in dict.fromkeys(re.findall(r"`tinytf ([^`]+)`", PAGE))]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_every_command_of_the_page_is_one_that_is_taken(line: list[str]) -> None:
    name, *words = line
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    values = command.make_context(name, words).params
    model = values.get("model", "tiny")
    config = PRESETS[model.removeprefix("preset:")] if model in _PRESETS else load(model).config
    for address in values.get("addresses", ()):
        parse_any(address, table_of(config))


_PRESETS = {f"preset:{name}" for name in PRESETS}
