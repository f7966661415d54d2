"""One attention score in pairs of parts: the largest pairs as bars, and the sums of each side."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinytf.features.attribute_score import AttributeScore, ScorePart
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Figure, Heading, Line, Span
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import full_scale, note, verdict


@dataclass(frozen=True)
class AttributeScoreDisplay(Display):
    """``top`` is how many pairs, and half as many parts of each side, have a bar; ``all`` draws every one."""

    top: int = 10
    all: bool = False


@draws(AttributeScore, AttributeScoreDisplay)
def attribute_score(report: AttributeScore, terminal: Terminal, display: AttributeScoreDisplay) -> Iterator[Block]:
    """The score, the pairs that make most of it, the parts of query and key, and whether all sum to the score."""
    yield from banner(model_of(report), report.encoding)
    yield Line("")
    query, key = (report.encoding.tokens[at].shown for at in (report.query, report.key))
    words = f" is query {report.query} {query} · key {report.key} {key} = "
    yield Line([Span(report.address, "attention"), words, Figure(report.score, "%.4f", "strong")])
    if report.masked:
        yield note("masked: the query does not see this key, and its weight is 0 whatever the score")
    yield note(f"taken as it is: {report.held}; the score is before scaling")
    if report.features:
        yield note(f"features of {report.features}")
    advice = "--all shows them" * terminal.advises
    yield Heading("pairs", "what a part of the query and a part of the key add together", "attention")
    pairs = [(f"{pair.query} × {pair.key}", pair.value) for pair in report.pairs]
    yield _bars(pairs, None if display.all else display.top, advice)
    for name, said, parts, role in (("query", query, report.queries, "q"), ("key", key, report.keys, "k")):
        yield Heading(name, f"the parts of {said}, each with all parts of the other", role)
        yield _bars(_largest(parts), None if display.all else (display.top + 1) // 2, advice)
    yield Line("")
    count = f"{plural(len(report.queries), 'part')} of the query × {len(report.keys):,} of the key sum to "
    total, check = math.fsum(report.values.flatten().tolist()), report.check
    yield verdict(check.holds, [count, Figure(total, "%.5f"), ", the score is ", Figure(report.score, "%.5f"),
                                ", off by ", Figure(check.difference, "%.1e"),
                                f" (allowed {check.allowed:.0e})"])  # fmt: skip


def _largest(parts: Sequence[ScorePart]) -> list[tuple[str, float]]:
    return [(part.name, part.value) for part in sorted(parts, key=lambda part: -abs(part.value))]


def _bars(rows: Sequence[tuple[str, float]], top: int | None, advice: str) -> Bars:
    """The first rows with a bar each, and the sum of the others."""
    shown = [(name, value, value) for name, value in rows[:top]]
    if rest := rows[len(shown) :]:
        shown.append((f"{len(rest):,} more  {advice}".rstrip(), math.fsum(value for _, value in rest), 0.0))
    bars = [Bar(name, length, Figure(value, "%+.4f")) for name, value, length in shown]
    return Bars(bars, full_scale(value for _, value in rows), signed=True)
