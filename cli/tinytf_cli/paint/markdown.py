"""Blocks as a page of Markdown: tables, headings and paragraphs; verbatim lines and drawings in a fence."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from tinytf_cli.encodings import markdown_rows, markdown_text
from tinytf_cli.paint.painter import paint
from tinytf_cli.paint.plain import cell_text
from tinytf_cli.paint.text import spans
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Heading, Line, Table

_FENCE = "```\n"


def page(blocks: Iterable[Block], terminal: Terminal) -> Iterator[str]:
    """Yield the lines of a page, each with its line end."""
    for is_fenced, group in groupby(blocks, key=_is_fenced):
        if is_fenced:
            yield _FENCE
            yield from (line + "\n" for line in paint(group, terminal))
            yield _FENCE
            continue
        for block in group:
            yield from _written(block, terminal)


def _is_fenced(block: Block) -> bool:
    return block.verbatim if isinstance(block, Line) else not isinstance(block, Heading | Table)


def _written(block: Block, terminal: Terminal) -> Iterator[str]:
    if isinstance(block, Table):
        titles = [column.title for column in block.columns]
        rows = zip(*([cell_text(cell, terminal) for cell in column.cells] for column in block.columns), strict=True)
        yield from markdown_rows(titles, rows)
        yield "\n"
    elif isinstance(block, Heading):
        yield f"## {markdown_text(block.title)}\n\n"
        yield f"{markdown_text(block.note)}\n\n" if block.note else ""
    elif isinstance(block, Line):
        text = "".join(span.text for span in spans(block.words, terminal))
        yield f"{markdown_text(text)}\n\n" if text.strip() else ""
