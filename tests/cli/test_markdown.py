"""Markdown has the rows of the CSV, or the columns that a record declares; such a report is drawn without a view."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from driving import SENTENCE, Tinytf

from tinytf.report import Data, Report
from tinytf.tables import ColumnStyle
from tinytf_cli.encodings import markdown_lines
from tinytf_cli.output import Output
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.draw import blocks_of
from tinytf_cli.views.records import draw_rows


def cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.rstrip("\n"))[1:-1]] for line in lines]


@dataclass(frozen=True)
class Weighed(Data):
    """A row of the report below."""

    COLUMNS: ClassVar = {
        "name": ColumnStyle("what", role="strong"),
        "share": ColumnStyle("share", bar="output"),
        "grams": ColumnStyle("g", "%.1f", drop=1),
    }

    name: str
    share: float
    grams: float | None


@dataclass(frozen=True)
class Weights(Report):
    """A report of the tests' own, which has no view."""

    KIND = "weights_of_things"
    EVENTS: ClassVar = {"things": "thing"}
    ROWS = "things"

    things: tuple[Weighed, ...]

    def fields(self) -> dict[str, object]:
        return self.members("things")


REPORT = Weights((Weighed("a | b", 0.25, 12.34), Weighed("<c>\x1b[31m", 0.75, None)))


def test_a_report_whose_records_declare_columns_needs_no_view(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Terminal(width=60)).draw(REPORT)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["what", "share", "g"]
    assert first.split()[:4] == ["a", "|", "b", "0.250"]
    assert first.endswith("12.3")
    assert second.split()[1] == "0.750"
    assert "\x1b" not in second
    narrow: Iterator[object] = iter(blocks_of(REPORT, Terminal(width=20)))
    assert [column.drop for column in next(narrow).columns] == [0, 0, 1]  # type: ignore[attr-defined]
    assert draw_rows.__doc__


def test_markdown_has_the_declared_columns_and_nothing_that_ends_a_cell() -> None:
    titles, rule, *rows = cells(list(markdown_lines(REPORT)))
    assert titles == ["what", "share", "g"]
    assert set(rule) == {"---"}
    assert [row[1:] for row in rows] == [["0.25", "12.3"], ["0.75", ""]]
    assert rows[0][0] == r"a \| b"
    assert rows[1][0].startswith("&lt;c>")
    assert "\x1b" not in rows[1][0]


def test_markdown_has_the_rows_of_the_csv(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    command = ("score", SENTENCE, "-m", decoder)
    as_markdown = cells(tinytf(*command, "--format", "markdown").lines)
    as_csv = list(csv.reader(io.StringIO(tinytf(*command, "--format", "csv").out)))
    assert as_markdown[0] == as_csv[0]
    assert len(as_markdown) == len(as_csv) + 1
    for row, exact in zip(as_markdown[2:], as_csv[1:], strict=True):
        assert [float(cell) for cell in row[3:]] == pytest.approx([float(cell) for cell in exact[3:]], rel=5e-4)
    path = tmp_path / "score.md"
    assert tinytf(*command, "-o", path).status == 0
    assert cells(path.read_text("utf-8").splitlines()) == as_markdown


def test_what_has_no_table_is_no_markdown_and_leaves_no_file(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    ran = tinytf("tokens", "The cat", "-m", decoder, "--versus", decoder, "-o", tmp_path / "out.md")
    assert ran.status == 2
    assert ran.err.splitlines()[0] == "tinytf: error: there is no table to write here"
    assert list(tmp_path.glob("*out.md*")) == []
