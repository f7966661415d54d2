"""The view of a model without parts of attention, beside the whole model: its prediction, and what changed."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from tinytf.cause.order import Order
from tinytf.cause.sharpness import Sharpness, peaks
from tinytf.cause.without import LeftOut
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Beside, Block, Column, Figure, Heading, Heat, Line, Piece, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.overview import short_banner, text_block
from tinytf_cli.views.parts import (
    bar_column,
    folded,
    note,
    numbered,
    share_column,
    shortened,
    size_column,
    titled,
    verdict,
)
from tinytf_cli.views.predictions import check_blocks
from tinytf_cli.views.steps import as_array, visible_array

_WHOLE, _WITHOUT = "q", "k"  # blue and orange
_LAYERS = 6
_QUERIES = 6
_WORDS = 24
_SMALL = 36
"""The width of a map of small cells, in columns."""


@draws(LeftOut)
def without(report: LeftOut, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The predictions first, then what changed on the way, and whether both runs add up."""
    model, whole = model_of(report), report.traces[0]
    names = [token.shown for token in report.encoding.tokens]
    yield from short_banner(model, whole, terminal.width)
    yield text_block(whole, terminal.width)
    yield Line("")
    yield from _answer(report)
    yield from _predictions(report)
    yield from _maps(report, names, terminal)
    yield from _layers(report)
    if report.sharpness is not None:
        yield from _sharpness(report.sharpness, names)
    if report.order is not None:
        yield from _order(report, report.order, names)
    yield from _checks(report)


def _title(report: LeftOut) -> str:
    """The title of the run without some parts."""
    return "without " + " and ".join(report.parts)


def _answer(report: LeftOut) -> Iterator[Block]:
    """The change of the prediction, in a sentence."""
    predictions, shown = report.difference.predictions, model_of(report).shown
    words: list[Piece]
    if predictions:
        prediction = predictions[0]
        (_, before), (_, after) = (
            max(zip(shares, prediction.ids, strict=True)) for shares in (prediction.first, prediction.second)
        )
        outcome = "is still" if before == after else f"becomes {shown(after)} where it was"
        words = [f": the prediction {outcome} {shown(before)}, KL ", Figure(prediction.kl, "%.3g"), " nats"]
    else:
        off = Figure(report.layers[-1].stream, "%.2g")
        words = [": the last layer's stream is off by ", off, " of its largest number"]
    yield titled(_title(report), words)
    yield note(f"left out of every layer: {', '.join(report.gone)}; the weights are the same")


def _predictions(report: LeftOut) -> Iterator[Block]:
    """The most probable tokens in both runs, a table for each predicted position."""
    model = model_of(report)
    for prediction in report.difference.predictions:
        where = "next" if model.config.causal else f"fill of [MASK] at {prediction.position}"
        yield Heading(where, "", "output")
        yield Table(
            [
                Column("token", [model.shown(i) for i in prediction.ids], shrink=10, said=""),
                share_column("whole", prediction.first, _WHOLE, like=prediction.second),
                share_column(_title(report), prediction.second, _WITHOUT, like=prediction.first),
            ]
        )


def _maps(report: LeftOut, names: Sequence[str], terminal: Terminal) -> Iterator[Block]:
    """The weights of the head that moved most, in both runs side by side."""
    weights = report.difference.attention
    assert weights is not None
    distances = weights.apart[weights.layer]
    assert distances is not None
    moved, most = distances[weights.head], max(layer.moved for layer in report.layers)
    superlative = "of all heads the one that moves most: " if moved == most else ""
    yield Heading(
        f"L{weights.layer}H{weights.head}.weights", f"{superlative}{moved:.2f} of its weight moved", "attention"
    )
    queries, keys = ([shortened(name, most) for name in names] if terminal.cuts else names for most in (7, 4))
    maps: list[list[Block]] = []
    runs = (("whole", _WHOLE, weights.first), (_title(report), _WITHOUT, weights.second))
    for (title, role, values), trace in zip(runs, report.traces, strict=True):
        seen = visible_array(trace, trace.steps.by_name[trace.steps.weights], weights.layer)
        heat = Heat(as_array(values), queries, keys, "unit", seen, digits=2)
        maps.append([Line(Span(title, role), indent=2), heat])
    yield Beside(maps, least=_map_width(queries, keys, terminal.width), even=True)


def _layers(report: LeftOut) -> Iterator[Block]:
    """What changed in each layer."""
    layers = report.layers
    heads = [f"H{layer.head} {layer.moved:.2f}" for layer in layers]
    columns = [
        Column("", [f"L{layer.layer}" for layer in layers]),
        bar_column("head", [layer.moved for layer in layers], heads, "attention", said="head that moves most"),
        size_column("stream", [layer.stream for layer in layers], "residual", "%.3f"),
        Column("cosine", [Figure(layer.cosine, "%.3f") for layer in layers], "right"),
    ]
    if ahead := [layer.ahead for layer in layers if layer.ahead is not None]:
        columns.append(size_column("on later tokens", ahead, _WITHOUT, "%.2f", 1.0))
    yield Heading("layers", "the head that moves most; how far the stream is off after it")
    yield from folded(Table(columns), numbered("L", len(layers)), _LAYERS, "layers", "--json")


def _sharpness(sharpness: Sharpness, names: Sequence[str]) -> Iterator[Block]:
    """The softmax of the head's live scores, divided and undivided."""
    columns = [Column("query", names[-_QUERIES:], shrink=8)]
    for title, weights, role in (
        (f"/ {sharpness.expression}", sharpness.scaled, _WHOLE),
        ("undivided", sharpness.unscaled, _WITHOUT),
    ):
        rows = peaks(weights)[-_QUERIES:]
        texts = [f"{row.share:.3f} {names[row.key]}" for row in rows]
        wide = max(map(cell_len, texts))
        padded = [set_cell_size(text, wide) for text in texts]
        columns += [
            bar_column(f"largest {title}", [row.share for row in rows], padded, role),
            Column("entropy", [Figure(row.entropy, "%.3f") for row in rows], "right", drop=2),
            Column("w(1−w)", [Figure(row.slope, "%.4f") for row in rows], "right", drop=1),
        ]
    scores = f"the same live scores, divided by {sharpness.expression} = {sharpness.divisor:.4g} and not"
    yield Heading(f"softmax of L{sharpness.layer}H{sharpness.head}", scores, "attention")
    yield Table(columns)
    yield note("entropy in nats; w(1−w) multiplies the gradient of the largest weight")


def _order(report: LeftOut, order: Order, names: Sequence[str]) -> Iterator[Block]:
    """The text in another order: if the outputs are the same, the order is lost."""
    shown = model_of(report).shown

    def words(best: tuple[int, float] | None) -> str:
        return "" if best is None else f"{shown(best[0])} {best[1]:.3f}"

    permutation, runs = order.permutation, order.runs
    reordered = " ".join(names[position] for position in permutation[:_WORDS]) + " …" * (len(permutation) > _WORDS)
    yield Heading("order", "the same tokens in another order: are their outputs the same?")
    yield note(reordered)
    table = [
        Column("without", [" and ".join(run.lacks) or "nothing" for run in runs]),
        Column("outputs differ by", [Figure(run.difference, "%.3g") for run in runs], "right"),
        Column("order", [Span("lost", "bad") if run.lost else Span("known", "good") for run in runs]),
    ]
    if runs[0].first is not None:
        table += [
            Column("predicts", [words(run.first) for run in runs], drop=1),
            Column("in the other order", [words(run.second) for run in runs], drop=1),
        ]
    yield Table(table)
    if len(runs) > 2:
        yield note("a causal mask is an order too: the first token sees one token, the last one all of them")


def _checks(report: LeftOut) -> Iterator[Block]:
    """The checks of both traces in one line; if one fails, that one alone."""
    failed = next((check for check in report.checks if not check.holds), None)
    if failed is not None:
        yield from check_blocks(failed)
        return
    words: list[Piece] = ["both runs add up, largest differences "]
    for index, check in enumerate(report.checks):
        words += [" and " if index else "", Figure(check.telling.difference, "%.1e"), f" at {check.telling.step}"]
    yield Line("")
    yield verdict(True, words)


def _map_width(queries: Sequence[str], keys: Sequence[str], width: int) -> int:
    """The width of a map with its numbers, or with small cells if the numbers do not fit ``width``."""
    label, key = (max(map(len, names)) for names in (queries, keys))
    numbers = min(14, label) + 3 + (min(8, max(4, key)) + 1) * len(keys)
    return numbers if numbers <= width else _SMALL
