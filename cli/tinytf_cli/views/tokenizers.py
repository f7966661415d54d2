"""Where two tokenizers first split a text differently, both splits side by side."""

from collections.abc import Iterator, Sequence

from tinytf.compare.tokenizers import Split, Splits
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Token
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import titled

_ROLES = ("q", "k")
_AROUND, _MOST = 3, 12
"""Tokens shown on either side of the difference, and at most of the difference itself."""


@draws(Splits)
def splits(report: Splits, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The two tokenizers, how often they differ, and the first difference."""
    for letter, name, tokenizer, role in zip("AB", report.names, report.tokenizers, _ROLES, strict=True):
        name_span = Span(f"{printable(name, spaces=False)} · ", "strong")
        yield Line([Span(f"{letter} ", role), name_span, *tokenizer_words(tokenizer, "")])
    corpus = f"{plural(report.texts, 'text')}, {plural(report.characters, 'character')}"
    a, b = report.tokens
    if report.added[0] != report.added[1]:
        yield titled("added", f" around each text: {report.added[0]} by A, {report.added[1]} by B", "bad")
    if report.first is None:
        yield titled("the same", f": {plural(a, 'token')} in {corpus}", "good")
        return
    resplit = f": {report.resplit:,} of {plural(report.texts, 'text')} split differently"
    renumbered = f", {report.renumbered:,} with other ids for the same pieces" if report.renumbered else ""
    counted = f"{plural(report.characters, 'character')} are {a:,} tokens in A, {b:,} in B"
    yield titled("different", f"{resplit}{renumbered}; {counted}", "bad")
    text_number = f"text {report.first.number:,}, " if report.texts > 1 else ""
    title = "first difference" if report.resplit else "first other id"
    yield Heading(title, f"{text_number}from character {report.first.place:,}")
    yield _table(report.first)


def _table(split: Split) -> Table:
    """The tokens around the difference. Tokens that end at the same character share a row."""
    rows = list(_rows(*(_shown(split, side) for side in (0, 1))))
    columns = []
    for side, (letter, role) in enumerate(zip("AB", _ROLES, strict=True)):
        first, stop = split.first, split.stops[side]
        cells = [row[side] for row in rows]
        roles = [role if cell is not None and first <= cell[0] < stop else "dim" for cell in cells]
        pieces = [Span(cell[1].shown if cell else "", own_role) for cell, own_role in zip(cells, roles, strict=True)]
        columns += [
            Column(letter, pieces, shrink=8),
            Column("id", [str(cell[1].id) if cell else "" for cell in cells], "right"),
            Column("offsets", [f"{cell[1].start}:{cell[1].end}" if cell else "" for cell in cells], "right"),
        ]
    return Table(columns)


def _shown(split: Split, side: int) -> list[tuple[int, Token]]:
    start, stop = max(0, split.first - _AROUND), min(split.stops[side], split.first + _MOST) + _AROUND
    return list(enumerate(split.encodings[side].tokens))[start:stop]


def _rows(
    a: Sequence[tuple[int, Token]], b: Sequence[tuple[int, Token]]
) -> Iterator[tuple[tuple[int, Token] | None, tuple[int, Token] | None]]:
    i = j = 0
    while i < len(a) or j < len(b):
        left, right = (tokens[at] if at < len(tokens) else None for tokens, at in ((a, i), (b, j)))
        if left and right and left[1].end != right[1].end:
            left, right = (left, None) if left[1].end < right[1].end else (None, right)
        yield left, right
        i, j = i + (left is not None), j + (right is not None)
