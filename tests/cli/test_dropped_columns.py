"""What a screen leaves out would not fit: columns of tables, keys beside the drawing of a block, size of small maps."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from driving import SENTENCE
from rich.cells import cell_len
from test_reports import REPORTS

from tinytf.loading import Model
from tinytf_cli.paint.painter import paint
from tinytf_cli.paint.tables import _Layout
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Beside, Block, Column, Heat, Table, Thumbnails
from tinytf_cli.views.draw import blocks_of

WIDTHS = (80, 100, 120, 200)


def inside(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Beside):
            yield from (child for part in block.parts for child in inside(part))
        else:
            yield block


def missing(table: Table, terminal: Terminal) -> list[Column]:
    """The dropped columns that would have fitted with those that are shown, each at its narrowest."""
    layout = _Layout(table, terminal)
    layout.fit()
    shown = [fitted.column for fitted in layout.columns]
    spare = []
    for drop in {column.drop for column in table.columns if column not in shown}:
        kept = [column for column in table.columns if column in shown or column.drop == drop]
        narrow = [replace(column, cells=column.narrow or column.cells) for column in kept]
        widths = [
            _Layout(replace(table, columns=[column]), replace(terminal, cuts=False, width=1)) for column in narrow
        ]
        for one in widths:
            one.fit()
        least = sum(one.least - 2 for one in widths) + 2 + (len(kept) - 1)
        spare += [column for column in kept if column.drop == drop and least <= terminal.width]
    return spare


@pytest.mark.share(6)
@pytest.mark.parametrize("words", REPORTS, ids=lambda words: f"{words[0]}-{len(words)}")
def test_a_table_drops_a_column_only_if_it_does_not_fit(opened: Model, words: tuple[str, ...]) -> None:
    report = REPORTS[words](opened)
    for width in WIDTHS:
        terminal = Terminal(width, cuts=True)
        tables = [block for block in inside(blocks_of(report, terminal)) if isinstance(block, Table)]
        assert [[column.title for column in missing(table, terminal)] for table in tables] == [[]] * len(tables)


def test_a_column_that_fits_comes_back_after_a_wider_one_went() -> None:
    columns = [Column("a", ["x" * 20]), Column("b", ["y" * 5], drop=2), Column("c", ["z" * 30], drop=1)]
    (head, _) = paint([Table(columns)], Terminal(40, cuts=True))
    assert head.split() == ["a", "b"]


@pytest.mark.parametrize("text", ["a", SENTENCE, "The cat sat on the mat and the dog ran away."], ids=len)
def test_the_map_beside_a_block_drops_a_key_only_if_it_does_not_fit(opened: Model, text: str) -> None:
    report = opened.traced(text)
    for width in WIDTHS:
        terminal = Terminal(width, cuts=True)
        for block in blocks_of(report, terminal):
            if not isinstance(block, Beside):
                continue
            (heat,) = (child for child in block.parts[1] if isinstance(child, Heat))
            left_out = len(report.trace.tokens) - len(heat.column_labels)
            high, columns = heat.values.shape[0], (*heat.column_labels, *heat.column_labels[:1] * left_out)
            whole = Heat(np.zeros((high, len(columns)), np.float32), heat.row_labels, columns, heat.scale, digits=2)
            needed = max(cell_len(line) for line in paint([whole], Terminal(1000)))
            drawing = max(cell_len(line) for line in paint(block.parts[0], Terminal(1, cuts=False)))
            assert not left_out or needed + 2 + drawing > width


@pytest.mark.parametrize(("height", "cells"), [(24, 4), (60, 16)])
def test_small_maps_grow_where_the_screen_holds_all_of_them(height: int, cells: int) -> None:
    maps = Thumbnails([np.eye(4, dtype=np.float32)[None].repeat(2, 0)] * 2, [None] * 2)
    heads, *_ = paint([maps], Terminal(80, cuts=True, height=height))
    assert heads.index("H1") - heads.index("H0") == cells + 1
