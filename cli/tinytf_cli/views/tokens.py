"""Tokens of a text: pieces, ids, offsets and bytes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.cells import cell_len

from tinytf.look.tokens import Tokenized
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import notes, tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Pieces, Span, Table
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import note

_SPEAKERS = {"system": "k", "user": "q", "assistant": "v", "tool": "ffn"}
_AROUND, _LEAST, _PART = 10, 10, 1000
"""Lines of a screen besides the rows of tokens, the fewest rows on a screen, and the rows laid out at a time."""
_LISTED = 60
"""The entries of a vocabulary on a screen."""


def token_roles(encoding: Encoding) -> list[str]:
    """The colour role of each token: special, or even and odd in turn; in a conversation, by speaker."""
    speakers = encoding.roles
    if speakers is None:
        return ["special" if t.special else ("even", "odd")[i % 2] for i, t in enumerate(encoding.tokens)]
    return ["dim" if speaker is None else _SPEAKERS.get(speaker, "embed") for speaker in speakers]


def pieces(encoding: Encoding) -> Pieces:
    """The tokens side by side."""
    return Pieces([token.shown for token in encoding.tokens], token_roles(encoding))


@dataclass(frozen=True)
class TokensDisplay(Display):
    """``limit`` is the most tokens shown: 0 for all, None for as many as fit the screen."""

    limit: int | None = None


@draws(Tokenized, TokensDisplay)
def tokens(report: Tokenized, terminal: Terminal, display: TokensDisplay) -> Iterator[Block]:
    """The text in alternating colours, then one line per token."""
    encoding, limit = report.text, display.limit
    name = Span(printable(report.name, spaces=False), "strong")
    yield Line([name, Span(" · "), *tokenizer_words(report.tokenizer, report.note, encoding)], lead=True)
    yield from notes(report.tokenizer)
    characters, size = len(encoding.text), len(encoding.text.encode("utf-8"))
    count = len(encoding.tokens)
    yield Heading(plural(count, "token"), f"{plural(characters, 'character')}, {plural(size, 'byte')}")
    if limit is None:
        limit = max(_LEAST, terminal.height - _AROUND) if terminal.cuts else 0
    first = replace(encoding, tokens=encoding.tokens[:limit]) if limit and count > limit + 1 else encoding
    yield pieces(first)
    if report.window:
        yield from _windows(report, limit // 2 if display.limit is None else limit)
        return
    yield Line("")
    yield from _tables(first, report.tokenizer.vocab_size)
    if first is not encoding:
        yield note(f"{plural(count - limit, 'more token')}", "--limit 0 shows all")


def _windows(report: Tokenized, limit: int) -> Iterator[Block]:
    """The id of each different token, then the windows, in which every token of x has its target below it in y."""
    shown, windows = report.tokenizer.shown, report.windows
    ids = sorted(set(report.text.ids))
    yield Heading("vocabulary", f"the {plural(len(ids), 'different token')} of this text, each with its id")
    more = [Span(f"and {len(ids) - _LISTED} more", "dim")] if limit and len(ids) > _LISTED else []
    listed = ids[:_LISTED] if more else ids
    yield Line(
        [*(piece for i in listed for piece in (Span(shown(i), "strong"), Span(f" {i}   ", "dim"))), *more], indent=2
    )
    yield Heading(
        "windows", f"{report.window} of {plural(len(report.text.ids), 'token')}; the next begins a token later"
    )
    digits = len(str(ids[-1]))
    rows = [row for x, y in windows[: limit or None] for row in (("x", x), ("y", y))]
    columns = [
        [Span(shown(row[i]), "even" if name == "x" else "odd") for name, row in rows] for i in range(report.window)
    ]
    yield Table(
        [
            Column("#", [str(r // 2) if r % 2 == 0 else "" for r in range(len(rows))], "right", said="window"),
            Column("", [name for name, _ in rows], said=""),
            *(Column("", cells, said="") for cells in columns),
            Column("ids", [Span(" ".join(f"{i:{digits}}" for i in row), "dim") for _, row in rows], shrink=8),
        ]
    )
    if limit and len(windows) > limit:
        yield note(f"{plural(len(windows) - limit, 'more window')}", "--limit 0 shows all")


def _tables(encoding: Encoding, vocabulary: int) -> Iterator[Block]:
    """One table in parts, so that the first rows of a long text appear before the last are made."""
    tokens, speakers, roles = encoding.tokens, encoding.roles, token_roles(encoding)
    number, piece, entry, offsets, data = _widths(encoding, vocabulary)
    for start in range(0, max(1, len(tokens)), _PART):
        part = range(start, min(start + _PART, len(tokens)))
        marks = ["special" if tokens[i].special else "" for i in part]
        if speakers is not None:
            marks = [speakers[i] or mark or "template" for i, mark in zip(part, marks, strict=True)]
        offset_cells = [f"{tokens[i].start}:{tokens[i].end}" for i in part]
        covered = [printable(encoding.text[tokens[i].start : tokens[i].end]) for i in part]
        notes = [Span(printable(m), roles[i] if speakers else "") for i, m in zip(part, marks, strict=True)]
        yield Table(
            [
                Column("#", [str(i) for i in part], "right", said="token", least=number),
                Column("piece", [Span(tokens[i].shown, roles[i]) for i in part], said="", least=piece),
                Column("id", [str(tokens[i].id) for i in part], "right", least=entry),
                Column("offsets", offset_cells, "right", least=offsets),
                Column("text", covered, shrink=8, least=piece),
                Column("bytes", [tokens[i].data.hex(" ") for i in part], shrink=8, least=data),
                Column("", notes, drop=1),
            ],
            header=start == 0,
        )


def _widths(encoding: Encoding, vocabulary: int) -> tuple[int, ...]:
    """The column widths of a table in parts, computed up front so that no part waits for the widest cell."""
    tokens = encoding.tokens
    if len(tokens) <= _PART:
        return (0,) * 5
    number, entry, last = (len(str(largest)) for largest in (len(tokens) - 1, vocabulary - 1, tokens[-1].end))
    piece = max(map(cell_len, {token.shown for token in tokens}))
    data = max(3 * len(token.data) - 1 for token in tokens)
    widest = {"#": number, "piece": piece, "id": entry, "offsets": 2 * last + 1, "bytes": data}
    return tuple(max(len(title), width) for title, width in widest.items())
