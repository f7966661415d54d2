"""Heads by their weights: the table of all, the circuits of one, and maps of composition."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinytf.look.weights.composition import ABOVE, WAYS, Composition
from tinytf.look.weights.copying import Weights
from tinytf.look.weights.factors import Spectrum
from tinytf.look.weights.head import TOP, HeadWeights, Scored, TokenRow
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Line, Piece, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import (
    LONG_STACK,
    figures,
    folded,
    head_map,
    map_digits,
    note,
    share_column,
    signed_bars,
    size_column,
)
from tinytf_cli.views.steps import as_array

_HEADS, _HEADS_BESIDE_A_MAP, _MATRICES = 14, 8, 6
"""The most rows of a table of heads, beside a map of more layers, and of matrices."""
_SIDE = 3  # tokens of a cell


@dataclass(frozen=True)
class WeightsDisplay(Display):
    """``all`` shows every head, matrix and number of a map."""

    all: bool = False


@draws(Weights, WeightsDisplay)
def weights(report: Weights, terminal: Terminal, display: WeightsDisplay) -> Iterator[Block]:
    """The map of copying scores, the table of heads, and the spectra of feed-forwards."""
    yield from banner(model_of(report))
    scores = report.scores
    yield Heading("what heads copy", "Σλ / Σ|λ| of E·W_V·W_O·(W_U − mean): 1 copies, −1 suppresses", "attention")
    yield from head_map(as_array(scores), "signed", 1.0, 2, display.all)
    rows = report.ordered
    most = None if display.all else _HEADS if len(scores) <= LONG_STACK else _HEADS_BESIDE_A_MAP
    shown = rows[:most]
    title = "every head" if len(shown) == len(rows) else f"the first {len(shown)} of {len(rows):,} heads"
    yield Heading(title, "the clearest first" + "; --all shows every head" * (len(shown) < len(rows)), "attention")
    yield Table(
        [
            Column("head", [Span(row.head, "strong") for row in shown], said=""),
            signed_bars("copying", [row.copying for row in shown], "%+.2f", 1.0),
            share_column("own logit rises", [row.own for row in shown], "attention"),
            size_column("‖W_V·W_O‖", [row.ov_norm for row in shown], "v", said="norm of what it moves"),
            Column("rank", [Figure(row.ov_rank, "%.1f") for row in shown], "right", said="effective rank"),
            Column("‖W_Q·W_Kᵀ‖", figures([row.qk_norm for row in shown]), "right", drop=2, said="norm of its scores"),
            Column("rank", [Figure(row.qk_rank, "%.1f") for row in shown], "right", drop=1, said="effective rank"),
        ]
    )
    if report.feed_forwards:
        yield from _feed_forwards(report, display.all)
    yield Line("")
    yield note(f"own logit rises: of {report.sampled:,} tokens, seed {report.seed}; ranks are effective ranks")
    yield from _left_out(report.left_out)


def _feed_forwards(report: Weights, every: bool) -> Iterator[Block]:
    rows = report.feed_forwards
    yield Heading("feed-forwards", "the spectrum of each matrix, as stored", "ffn")
    table = Table(
        [
            Column("matrix", [Span(row.matrix, "ffn") for row in rows]),
            Column("norm", figures([row.norm for row in rows]), "right"),
            Column("effective rank", [Figure(row.rank, "%.1f") for row in rows], "right"),
            Column("of", [str(row.full) for row in rows], "right"),
            share_column("largest direction", [row.first for row in rows], "ffn"),
        ]
    )
    yield from folded(table, [row.matrix for row in rows], None if every else _MATRICES, "matrices")


def _left_out(words: Sequence[str]) -> Iterator[Block]:
    if words:
        yield note(f"left out: {'; '.join(words)}")


@draws(HeadWeights, WeightsDisplay)
def head_weights(report: HeadWeights, terminal: Terminal, display: WeightsDisplay) -> Iterator[Block]:
    """What the head moves, what it looks for, and its singular directions."""
    yield from banner(model_of(report))
    key, first = report.key, report.own_first
    interval = "" if first.low is None else f" ({100 * first.low:.0f} to {100 * (first.high or 0):.0f} %)"
    copied = f"{100 * first.value:.0f} %{interval} of {report.ranked:,} tokens"
    yield Heading(f"{key} moves: W_V·W_O", f"{_spectrum(report.ov)}", "v")
    score: list[Piece] = ["copying score ", Figure(report.copying, "%+.3f"), " of ±1; "]
    yield note([*score, f"own logit among the first {TOP} for {copied}"])
    yield from _rows(report, report.sources, "attending to", "promotes", "suppresses", "v")
    yield Heading(f"{key} looks for: W_Q·W_Kᵀ", _spectrum(report.qk), "attention")
    yield from _rows(report, report.queries, "a query at", "prefers", "avoids", "attention")
    if report.directions:
        yield Heading("singular directions of W_V·W_O", "where the stream reads this, the head writes that", "v")
        yield _directions(report)
    yield Line("")
    yield from _left_out(report.left_out)


def _directions(report: HeadWeights) -> Table:
    rows, names = report.directions, (("reads", 0), ("writes", 0), ("reads less", 2), ("writes less", 1))
    tokens = (_tokens(report, [getattr(row, name.replace(" ", "_")) for row in rows]) for name, _ in names)
    return Table(
        [
            Column("σ", figures([row.value for row in rows]), "right", said="singular value"),
            Column("energy", [Figure(100 * row.share, "%.1f %%") for row in rows], "right", drop=3),
            *(Column(name, cells, shrink=14, drop=drop) for (name, drop), cells in zip(names, tokens, strict=True)),
        ]
    )


def _spectrum(spectrum: Spectrum) -> str:
    return f"norm {spectrum.norm:.4g}, effective rank {spectrum.rank:.1f} of {len(spectrum.singular_values)}"


def _tokens(report: HeadWeights, ends: Sequence[Scored]) -> list[Cell]:
    return ["  ".join(str(report.word(token)) for token, _ in end[:_SIDE]) for end in ends]


def _rows(
    report: HeadWeights, rows: Sequence[TokenRow], title: str, most: str, least: str, role: str
) -> Iterator[Block]:
    if not rows:
        yield note("every row of it is 0")
        return
    values = [row.most[0][1] for row in rows]
    yield Table(
        [
            Column(title, [Span(str(report.word(row.token)), role) for row in rows], shrink=8),
            Column("size", figures([row.size for row in rows]), "right", drop=2),
            Column(most, _tokens(report, [row.most for row in rows]), shrink=20),
            Column("first", figures(values, sign=True), "right", drop=3, said="the first by"),
            Column(least, _tokens(report, [row.least for row in rows]), shrink=14, drop=1),
        ]
    )


@draws(Composition, WeightsDisplay)
def composition(report: Composition, terminal: Terminal, display: WeightsDisplay) -> Iterator[Block]:
    """The strongest pairs, then a map of all heads for queries, keys and values."""
    yield from banner(model_of(report))
    rows, side = report.composed, "earlier" if report.into else "later"
    shown = rows if display.all else rows[:6]
    title = f"what {report.head} reads of earlier heads" if report.into else f"what later heads read of {report.head}"
    yield Heading(title, f"‖W₁·W₂‖ / (‖W₁‖·‖W₂‖); {len(shown)} of {len(rows):,} pairs", "attention")
    verb = "by its" if report.into else "by the"
    yield Table(
        [
            Column(f"{side} head", [Span(row.head, "strong") for row in shown], said=""),
            Column(verb, [Span(WAYS[row.way], row.way) for row in shown], said=verb),
            Column("score", [Figure(row.score, "%.3f") for row in shown], "right"),
            signed_bars("above random", [row.above for row in shown], "%+.3f"),
            Column("", ["" if report.beyond(row) else Span("within chance", "dim") for row in shown], said=""),
        ]
    )
    limit = max(abs(row.above) for row in rows)
    is_long = len(report.scores["q"]) > LONG_STACK and not display.all
    for way in [rows[0].way] if is_long else WAYS:
        yield Heading(f"{way.upper()}-composition", f"above random, of {side} heads", way)
        values = as_array(report.scores[way] - report.baseline)
        yield from head_map(values, "signed", limit, map_digits(limit), display.all)
    if is_long:
        others = [way.upper() for way in WAYS if way != rows[0].way]
        yield note(f"the way of the strongest pair; --all shows {' and '.join(others)}-composition too")
    yield Line("")
    chance = [f"random heads of these shapes: {report.baseline:.4f} ± {report.deviation:.4f}, seed {report.seed}; "]
    yield note([*chance, f"above chance: more than {ABOVE:g} of these deviations above"])
    yield from _left_out(report.left_out)
