"""The panes of the explorer use their room: no cell is shortened beside blank columns."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from covering import sample
from rich.cells import cell_len

from tests.explore.test_explore import Driver, explore
from tinytf_cli.explore.pane import Pane
from tinytf_cli.numbers import number
from tinytf_cli.paint.painter import paint_segments
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Bars, Beside, Block, Cell, Figure, Histogram, Meter, Signed, Span, Table

_PANES = ("enter", "L", "a", "g", "b", "question_mark", "w", "d", "D")
"""Keys that open a pane, or change what all of them show."""


def _text(cell: Cell) -> str:
    """The text of a cell of words; empty for numbers and bars, whose drawing is not words."""
    if isinstance(cell, Figure | Histogram | Meter | Signed):
        return ""
    pieces = [cell] if isinstance(cell, str | Span) else list(cell)
    return "".join(piece if isinstance(piece, str) else getattr(piece, "text", "") for piece in pieces).strip()


def shortened_beside_blanks(blocks: Iterable[Block], terminal: Terminal) -> list[str]:
    """The words of tables and bars that are not whole although their block has blank columns or long bars."""
    lacking = []
    for block in blocks:
        if isinstance(block, Beside):
            continue
        if isinstance(block, Table | Bars):
            lines = ["".join(segment.text for segment in line) for line in paint_segments([block], terminal)]
            blank = terminal.width - max(map(cell_len, (line.rstrip() for line in lines)), default=0)
        if isinstance(block, Table):
            for column in block.columns:
                words = [_text(cell) for cell in column.cells]
                narrow = words if column.narrow is None else [_text(cell) for cell in column.narrow]
                title = cell_len(column.title) if block.header else 0
                needed = max(map(cell_len, words)) - max(title, *map(cell_len, narrow)) if narrow != words else 1
                if column.drop and block.header and column.title not in lines[0]:
                    needed = max(title, *map(cell_len, narrow)) + 2
                lacking += [word for word in words if blank >= needed and not any(word in line for line in lines)]
        elif isinstance(block, Bars):
            longest = max((sum(sign in "█▌▐▏▎▍▋▊▉" for sign in line) for line in lines), default=0)
            labels = [" ".join(bar.label.split()) for bar in block.bars]
            whole = [" ".join(line.split()) for line in lines]
            lacking += [label for label in labels if longest > 8 and not any(label in line for line in whole)]
    return lacking


@sample("size", [(120, 40), (80, 24), (200, 60)])
@pytest.mark.slow
def test_no_cell_is_shortened_beside_blank_columns(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    lacking: set[tuple[str, str]] = set()
    show = Pane.show

    def checked(pane: Pane, blocks: Iterable[Block], *given: object, **named: object) -> None:
        blocks = list(blocks)
        lacking.update((str(pane.id), word) for word in shortened_beside_blanks(blocks, pane.terminal))
        show(pane, blocks, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Pane, "show", checked)

    async def act(driver: Driver) -> None:
        for row, (step, layer) in enumerate(driver.app.trace.steps.rows):
            if layer == 1 or step.name in ("tokens", "logits", "next"):
                driver.app.go(replace(driver.app.look.cursor, row=row))
                await driver.pilot.pause()
        driver.app.go(driver.app.look.cursor.to(driver.app.trace, driver.app.trace.address("L1H0.weights[3,0]")))
        await driver.press(*_PANES)

    explore(act, size=size)
    assert not lacking, "\n".join(map(str, sorted(lacking)))


@sample("size", [(80, 24), (120, 40), (200, 60)])
def test_the_bars_beside_a_step_are_explained_with_its_range(size: tuple[int, int]) -> None:
    async def act(driver: Driver) -> None:
        for name in ("L1.q", "L2.ffn.act", "embed.out"):
            driver.app.go(driver.app.look.cursor.to(driver.app.trace, driver.app.trace.address(name)))
            await driver.pilot.pause()
            values = driver.app.trace[name]
            ends = f"{number(float(values.min()), '%.3g')} … {number(float(values.max()), '%.3g')}"
            (line,) = [line for line in driver.shown("main").splitlines() if ends in line and "eighth" in line]
            assert f"{values.numel():,}" in line, name

    explore(act, size=size)
