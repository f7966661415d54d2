"""Where two tokenizers first split a text differently, both splits side by side."""

from collections.abc import Iterator, Sequence

from tinytf.compare.splits import Split, Splits
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Token
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.parts import titled

_ROLES = ("q", "k")
_AROUND, _MOST = 3, 12
"""Tokens shown before and after the difference, and at most of the difference itself."""


class SplitsView:
    """The comparison, drawn."""

    def __init__(self, found: Splits) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The two tokenizers, how often they differ, and the first place where they do."""
        found = self.found
        for letter, name, tokenizer, role in zip("AB", found.names, found.tokenizers, _ROLES, strict=True):
            shown = Span(f"{printable(name, spaces=False)} · ", "strong")
            yield Line([Span(f"{letter} ", role), shown, *tokenizer_words(tokenizer, "")])
        read = f"{plural(found.texts, 'text')}, {plural(found.characters, 'character')}"
        a, b = found.tokens
        if found.added[0] != found.added[1]:
            yield titled("added", f" around each text: {found.added[0]} by A, {found.added[1]} by B", "bad")
        if found.first is None:
            yield titled("the same", f": {plural(a, 'token')} in {read}", "good")
            return
        said = f": {found.resplit:,} of {plural(found.texts, 'text')} split differently"
        more = f", {found.renumbered:,} with other ids for the same pieces" if found.renumbered else ""
        counted = f"{plural(found.characters, 'character')} are {a:,} tokens in A, {b:,} in B"
        yield titled("different", f"{said}{more}; {counted}", "bad")
        where = f"text {found.first.number:,}, " if found.texts > 1 else ""
        what = "first difference" if found.resplit else "first other id"
        yield Heading(what, f"{where}from character {found.first.place:,}")
        yield _table(found.first)


def _table(split: Split) -> Table:
    """The tokens around the difference; those that end at one character share a row."""
    rows = list(_rows(*(_shown(split, side) for side in (0, 1))))
    columns = []
    for side, (letter, role) in enumerate(zip("AB", _ROLES, strict=True)):
        parts = split.first, split.stops[side]
        own = [row[side] for row in rows]
        roles = [role if one is not None and parts[0] <= one[0] < parts[1] else "dim" for one in own]
        columns += [
            Column(letter, [Span(one[1].shown if one else "", r) for one, r in zip(own, roles, strict=True)], shrink=8),
            Column("id", [str(one[1].id) if one else "" for one in own], "right"),
            Column("offsets", [f"{one[1].start}:{one[1].end}" if one else "" for one in own], "right"),
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
        left, right = (part[at] if at < len(part) else None for part, at in ((a, i), (b, j)))
        if left and right and left[1].end != right[1].end:
            left, right = (left, None) if left[1].end < right[1].end else (None, right)
        yield left, right
        i, j = i + (left is not None), j + (right is not None)
