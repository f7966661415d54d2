"""Tokens of a text: pieces, ids, offsets and bytes."""

from collections.abc import Iterator

from tinytf.analysis.tokens import Tokenized
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Pieces, Span, Table


class TokensView:
    """One encoded text, drawn."""

    def __init__(self, found: Tokenized) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The text in alternating colours, then one line per token."""
        found, encoding = self.found, self.found.text
        name = Span(printable(found.name, spaces=False), "strong")
        yield Line([name, Span(" · "), *tokenizer_words(found.tokenizer, found.note, encoding)])
        characters, size = len(encoding.text), len(encoding.text.encode("utf-8"))
        count = len(encoding.tokens)
        yield Heading(plural(count, "token"), f"{characters} characters, {size} bytes")
        yield Pieces([t.shown for t in encoding.tokens], [t.special for t in encoding.tokens])
        yield Line("")
        roles = [("special" if t.special else ("even", "odd")[i % 2]) for i, t in enumerate(encoding.tokens)]
        covered = [printable(encoding.text[t.start : t.end]) for t in encoding.tokens]
        yield Table(
            [
                Column("#", [str(i) for i in range(count)], "right", said="token"),
                Column("piece", [Span(t.shown, r) for t, r in zip(encoding.tokens, roles, strict=True)], said=""),
                Column("id", [str(t.id) for t in encoding.tokens], "right"),
                Column("offsets", [f"{t.start}:{t.end}" for t in encoding.tokens], "right"),
                Column("text", covered, shrink=8),
                Column("bytes", [t.data.hex(" ") for t in encoding.tokens], shrink=8),
                Column("", ["special" if t.special else "" for t in encoding.tokens], drop=1),
            ]
        )
