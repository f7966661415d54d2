"""Tokens of a text: pieces, ids, offsets and bytes."""

from collections.abc import Iterator
from typing import Any

from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.banner import text_data, tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Pieces, Span, Table


class TokensView:
    """One encoded text in every form."""

    def __init__(self, name: str, tokenizer: Tokenizer, note: str, encoding: Encoding) -> None:
        self.name, self.tokenizer, self.note, self.encoding = name, tokenizer, note, encoding

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The text in alternating colours, then one line a token."""
        encoding = self.encoding
        yield Line(
            [
                Span(printable(self.name, spaces=False), "strong"),
                Span(" · "),
                *tokenizer_words(self.tokenizer, self.note, encoding),
            ]
        )
        characters, size = len(encoding.text), len(encoding.text.encode("utf-8"))
        count = len(encoding.tokens)
        yield Heading(f"{count} token{'s' if count != 1 else ''}", f"{characters} characters, {size} bytes")
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

    def data(self) -> dict[str, Any]:
        """The tokens as one JSON object."""
        tokenizer = {"kind": self.tokenizer.kind, "vocab_size": self.tokenizer.vocab_size, "note": self.note}
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "tokens",
            "model": self.name,
            "tokenizer": tokenizer,
            **text_data(self.encoding),
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        tokens = data.pop("tokens")
        yield {"type": data.pop("kind"), **data}
        for token in tokens:
            yield {"type": "token", **token}
