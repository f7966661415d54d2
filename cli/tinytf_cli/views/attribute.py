"""One logit in parts: the sum of each kind, the parts as bars on either side of 0, a map of the heads."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len

from tinytf.look.attribute import Attribution, Part, total
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Figure, Heading, Line, Piece, Span
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import full_scale, head_map, note, side, verdict
from tinytf_cli.views.steps import as_array


@dataclass(frozen=True)
class AttributionDisplay(Display):
    """``top`` is how many parts have a bar of their own: by default 15, or 6 of each list of a model of two stacks.

    ``all`` draws every part, and numbers in a large map.
    """

    top: int | None = None
    all: bool = False

    def bars(self, report: Attribution) -> int | None:
        """How many parts of a list have a bar; None for all."""
        return None if self.all else self.top or (6 if report.source_tokens else 15)


@draws(Attribution, AttributionDisplay)
def attribution(report: Attribution, terminal: Terminal, display: AttributionDisplay) -> Iterator[Block]:
    """The logit and its kinds of parts, the largest parts, the heads, and whether the parts sum to the logit."""
    model, token = model_of(report), report.encoding.tokens[report.position].shown
    most, advice = display.bars(report), "--all shows them" * terminal.advises
    yield from banner(model, report.encoding)
    yield Line("")
    yield _answer(report, f"{report.subject} at {report.position} {token}")
    yield note(f"taken as it is: {report.frozen}")
    if report.metric.name == "logit":
        yield note("only differences between logits matter", "--versus TOKEN compares two")
    yield Heading("parts", "what each adds, the largest first", "output")
    yield _parts(report.parts, report.sum, most, advice, token)
    yield Heading("heads", "what each adds", "attention")
    heads = as_array(report.heads())
    limit = float(np.nanmax(abs(heads))) or 1.0
    narrow = terminal.width < 8 * heads.shape[1] + 8 and 0.1 <= limit < 100  # fewer digits, so that all heads fit
    yield from head_map(heads, "signed", limit, 2 if narrow else None, whole=display.all)
    yield from _source(report, most, advice)
    if report.encoder_parts:
        yield Heading("encoder", "what each of its parts adds through cross-attention", "cross")
        yield note("taken as it is: the weights of cross-attention, and the scale of every norm in the encoder")
        yield _parts(report.encoder_parts, total(report.encoder_parts), most, advice)
    yield Line("")
    yield _check(report)


def _answer(report: Attribution, subject: str) -> Line:
    """The logit, and the sum of each kind of part."""
    words: list[Piece] = [Span(subject, "output"), " is ", Figure(report.value, "%.4f", "strong")]
    if not report.is_linear:
        unit = report.metric.in_unit
        words += [f"{unit}; to first order, its gradient times the logits is ", Figure(report.logit, "%.4f")]
    for index, (kind, value) in enumerate(report.by_kind().items()):
        count = plural(sum(part.kind == kind for part in report.parts), kind)
        words += [f"{', ' if index else ': '}{count} ", Figure(value, "%+.4f", side(value))]
    return Line(words)


def _parts(every: Sequence[Part], of_all: float, top: int | None, advice: str, token: str = "") -> Bars:
    """The largest parts with a bar each, then the sum of the others, then the total."""
    parts = sorted(every, key=lambda part: -abs(part.value))
    largest, rest = parts[:top], parts[top:] if top else []
    rows = [
        (part.name, token if token and part.name == "embed.tokens" else part.kind, part.value, part.value)
        for part in largest
    ]
    if rest:
        rows.append((f"{len(rest):,} more", advice, total(rest), 0.0))
    rows.append(("sum", "", of_all, 0.0))
    width = max(len(name) for name, *_ in rows)
    bars = [
        Bar(f"{name.ljust(width)}  {beside}".rstrip(), length, Figure(value, "%+.4f"))
        for name, beside, value, length in rows
    ]
    return Bars(bars, full_scale(part.value for part in parts), signed=True)


def _source(report: Attribution, top: int | None, advice: str) -> Iterator[Block]:
    """What the tokens of the source add through cross-attention, in order, those that add little as one."""
    values = report.of_source()
    if not values:
        return
    yield Heading("source", "what each of its tokens adds through cross-attention", "cross")
    largest = sorted(sorted(range(len(values)), key=lambda number: -abs(values[number]))[:top])
    named = [(f"{number} {report.source_tokens[number].shown}", "", values[number]) for number in largest]
    if omitted := [value for number, value in enumerate(values) if number not in largest]:
        named.append((f"{len(omitted):,} more", advice, math.fsum(omitted)))
    width = max(cell_len(name) for name, *_ in named)
    bars = [
        Bar(f"{name}{' ' * (width - cell_len(name))}  {beside}".rstrip(), value, Figure(value, "%+.4f"))
        for name, beside, value in named
    ]
    yield Bars(bars, full_scale(values), signed=True)


def _check(report: Attribution) -> Line:
    subject = "the logit" if report.of == "logit" else report.of
    if not report.is_linear:
        subject = "the gradient times the logits"
    elif report.versus is not None:
        subject = f"the two {report.of.removesuffix('s')}s' difference"
    words: list[Piece] = [f"{len(report.parts):,} parts sum to ", Figure(report.sum, "%.5f")]
    words += [f", {'' if report.holds else 'and '}{subject} is ", Figure(report.logit, "%.5f"), ", off by "]
    words += [Figure(report.difference, "%.1e"), f" (allowed {report.allowed:.0e})"]
    if report.encoder_parts:
        words += [f"; {len(report.encoder_parts):,} of the encoder to what the source adds, off by "]
        words += [Figure(report.encoder_difference, "%.1e"), f" (allowed {report.encoder_allowed:.0e})"]
    return verdict(report.holds, words)
