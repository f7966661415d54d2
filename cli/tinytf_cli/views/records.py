"""Records as a table with the columns that their class declares; the view of many reports."""

from collections.abc import Iterator, Sequence
from typing import Any

from tinytf.report import Report
from tinytf.tables import ColumnStyle
from tinytf.text.printable import printable
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import share_column


def record_table(records: Sequence[Any]) -> Table:
    """A table of records, with the columns that their class declares."""
    styles = type(records[0]).COLUMNS if records else {}
    return Table(
        [record_column(style, [getattr(record, name) for record in records]) for name, style in styles.items()]
    )


def record_column(style: ColumnStyle, values: Sequence[Any]) -> Column:
    """The column of one member, with a row per value."""
    if style.bar:
        return share_column(style.title, values, style.bar, said=style.spoken)
    is_number = all(isinstance(value, int | float) for value in values if value is not None)
    return Column(
        style.title,
        [_cell(style, value) for value in values],
        style.align or ("right" if is_number else "left"),
        shrink=style.shrink,
        drop=style.drop,
        said=style.spoken,
    )


def _cell(style: ColumnStyle, value: Any) -> Cell:
    role = style.role(value) if callable(style.role) else style.role
    if isinstance(value, float) and isinstance(style.form, str):
        return Figure(value, style.form, role)
    return Span(printable(style.text(value), spaces=False), role)


@draws(Report)
def draw_rows(report: Report, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Draw a report without its own view: the model, if there is one, and the table."""
    if report.about is not None:
        from tinytf_cli.views.banner import banner

        yield from banner(model_of(report), report.about.text)
    yield record_table(getattr(report, report.ROWS))
