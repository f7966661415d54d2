"""Tokens of a text: pieces, ids, offsets and bytes."""

from collections.abc import Iterator

from tinytf.analysis.tokens import Tokenized
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Pieces, Span, Table

_SPEAKERS = {"system": "k", "user": "q", "assistant": "v", "tool": "ffn"}


def token_roles(encoding: Encoding) -> list[str]:
    """The colour of each token: special ones, the others in turn; in a conversation by who says it."""
    said = encoding.roles
    if said is None:
        return ["special" if t.special else ("even", "odd")[i % 2] for i, t in enumerate(encoding.tokens)]
    return ["dim" if who is None else _SPEAKERS.get(who, "embed") for who in said]


def pieces(encoding: Encoding) -> Pieces:
    """The tokens side by side."""
    return Pieces([token.shown for token in encoding.tokens], token_roles(encoding))


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
        yield pieces(encoding)
        yield Line("")
        roles = token_roles(encoding)
        marks = ["special" if t.special else "" for t in encoding.tokens]
        if encoding.roles is not None:
            marks = [
                printable(who) if who else mark or "template" for who, mark in zip(encoding.roles, marks, strict=True)
            ]
        covered = [printable(encoding.text[t.start : t.end]) for t in encoding.tokens]
        yield Table(
            [
                Column("#", [str(i) for i in range(count)], "right", said="token"),
                Column("piece", [Span(t.shown, r) for t, r in zip(encoding.tokens, roles, strict=True)], said=""),
                Column("id", [str(t.id) for t in encoding.tokens], "right"),
                Column("offsets", [f"{t.start}:{t.end}" for t in encoding.tokens], "right"),
                Column("text", covered, shrink=8),
                Column("bytes", [t.data.hex(" ") for t in encoding.tokens], shrink=8),
                Column(
                    "",
                    [Span(printable(m), r if encoding.said else "") for m, r in zip(marks, roles, strict=True)],
                    drop=1,
                ),
            ]
        )
