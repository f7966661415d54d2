"""A prompt and its continuation, safe to write: in pieces as they arrive, or as the lines of a view."""

import unicodedata
from collections.abc import Iterator

from tinytf.generate.score import QuantizationCost
from tinytf.generate.underway import Underway
from tinytf.report import Report
from tinytf.text.printable import printable
from tinytf_cli.views.blocks import Block, Line, Span


def safe_piece(context: str, text: str) -> str:
    """``text`` with control characters escaped, not newlines. ``context`` may end in the base of a combining mark."""
    start = len(context) - 1
    while start > 0 and unicodedata.combining(context[start]):
        start -= 1
    base = context[max(0, start) :]
    base = base if base.isprintable() else ""
    lines = (base + text).split("\n")
    return "\n".join(printable(line, spaces=False) for line in lines)[len(printable(base, spaces=False)) :]


def continuation(prompt: str, new: str) -> Iterator[Block]:
    """The prompt, dimmed, then the new text."""
    *full_lines, last = safe_piece("", prompt).split("\n")
    first, *other_lines = safe_piece(prompt, new).split("\n")
    yield from (Line(Span(line, "dim"), verbatim=True) for line in full_lines)
    yield Line([Span(last, "dim"), Span(first, "output")], verbatim=True)
    yield from (Line(Span(line, "output"), verbatim=True) for line in other_lines)


def sentence_after(report: Report) -> Iterator[Block]:
    """The sentence of what was shown as it came; of what was there before, it is the first line."""
    if isinstance(report, Underway) and report.now.sentence:
        yield Line(Span(report.now.sentence, "strong"), hanging=0)


def cost_in_words(cost: QuantizationCost) -> str:
    """``+0.0025 bits per token on 22 tokens (2.1234 becomes 2.1259; most for one token: 0.0273)``."""
    bits = cost.in_bits
    return (
        f"{bits.cost:+.4f} bits per token on {cost.tokens:,} tokens "
        f"({bits.loss:.4f} becomes {bits.int8_loss:.4f}; most for one token: {bits.worst:.4f})"
    )
