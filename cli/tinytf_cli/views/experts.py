"""A mixture of experts: the experts of each token in each layer, and the load of the experts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tinytf.look.experts import Experts, Load
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Grid, Heading, Heat, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import folded, most_rows, note, numbered, size_column, verdict
from tinytf_cli.views.steps import as_array

_TOKENS, _LAYERS, _BUSIEST = 10, 8, 4
"""Tokens and layers shown by default, and the most experts named in a cell."""


@dataclass(frozen=True)
class ExpertsDisplay(Display):
    """``rows`` is the most tokens or layers in a table (0: all); ``all`` also draws every layer of a wide grid."""

    rows: int | None = None
    all: bool = False


@draws(Experts, ExpertsDisplay)
def experts(report: Experts, terminal: Terminal, display: ExpertsDisplay) -> Iterator[Block]:
    """The experts of each token in each layer, or all weights of a single layer; then the load of the experts."""
    model, several = model_of(report), len(report.layers) > 1
    yield from banner(model, report.encoding)
    layers_in_words = f"in {plural(len(report.layers), 'layer')}" if several else f"in layer {report.layers[0]}"
    words = f"{report.per_token} of {model.config.experts} a token {layers_in_words}"
    words += ", by falling weight" if several else ", with their weights"
    yield Heading("experts", words, "ffn")
    names = [token.shown for token in report.encoding.tokens]
    grid = _routes(report, names, display.all) if several else _weights(report, names)
    yield from folded(grid, names, most_rows(display.rows, _TOKENS), "tokens")
    if several:
        yield note("the colour, or the number, is the weight of the first")
    for loads, text_name in ((report.load, "this text"), (report.corpus, printable(report.corpus_name, spaces=False))):
        if loads:
            words = f"{loads[0].tokens:,} tokens, each to {report.per_token} of {model.config.experts} experts"
            yield Heading(f"load over {text_name}", words, "ffn")
            layers = [f"L{load.layer}" for load in loads]
            yield from folded(_load(loads, layers), layers, most_rows(display.rows, _LAYERS), "layers")
    yield note("effective: e^entropy, as many equally busy experts; entropy in nats")
    yield Line("")
    check = report.check
    yield verdict(check.holds, f"each of {check.tokens:,} tokens is sent to {check.count} experts")


def _routes(report: Experts, names: Sequence[str], show_all: bool) -> Grid:
    """The experts of each token (down) in each layer (across), coloured by the weight of the first."""
    best = [routes.topk(report.per_token) for routes in report.routes]
    words = [
        [",".join(map(str, layer.indices[position, :_BUSIEST].tolist())) for layer in best]
        for position in range(len(names))
    ]
    shares = np.stack([as_array(layer.values[:, 0]) for layer in best], axis=1)
    layers = [f"L{layer}" for layer in report.layers]
    return Grid(words, np.clip(shares, 0, 1), names, layers, many="layers", asked=show_all)


def _weights(report: Experts, names: Sequence[str]) -> Heat:
    """Every weight of one layer."""
    values = as_array(report.routes[0])
    columns = numbered("E", values.shape[1])
    return Heat(values, names, columns, "unit", None, max(1.0, float(values.max())), digits=2)


def _load(loads: Sequence[Load], layers: Sequence[str]) -> Table:
    """How evenly the tokens spread over the experts of each layer."""
    count = len(loads[0].counts)
    return Table(
        [
            Column("", [Span(layer, "strong") for layer in layers], said="layer"),
            Column("busiest", [_busiest(load) for load in loads], shrink=12),
            size_column("effective", [load.effective for load in loads], "ffn", "%.2f", float(count)),
            Column("of", [str(count) for _ in loads], "right", said="experts"),
            Column("unused", [str(load.unused) for load in loads], "right"),
            Column("entropy", [Figure(load.entropy, "%.3f") for load in loads], "right", drop=1),
        ]
    )


def _busiest(load: Load) -> str:
    order = sorted(range(len(load.counts)), key=lambda number: -load.counts[number])[:_BUSIEST]
    return "  ".join(f"E{number} {100 * load.shares[number]:.0f} %" for number in order if load.counts[number])
