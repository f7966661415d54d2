"""The view of a mixture of experts: where each token goes in each layer, and the load of the experts."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.api import Model
from tinytf.look.experts import Experts, Load
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Grid, Heading, Heat, Line, Span, Table
from tinytf_cli.views.parts import folded, most_rows, note, numbered, size_column, verdict
from tinytf_cli.views.steps import as_array

_TOKENS, _LAYERS, _BUSIEST = 10, 8, 4
"""The most tokens and layers, unless more are asked for, and how many experts of a layer a line names."""


class ExpertsView:
    """Where the tokens of one text go, drawn; of one layer with every weight."""

    def __init__(self, model: Model, found: Experts, rows: int | None = None, whole: bool = False) -> None:
        self.model, self.found, self.rows, self.whole = model, found, rows, whole
        self.names = [token.shown for token in found.encoding.tokens]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """Tokens and their experts, then the load."""
        found, config = self.found, self.model.config
        yield from banner(self.model, found.encoding)
        several = len(found.layers) > 1
        where = f"in {plural(len(found.layers), 'layer')}" if several else f"in layer {found.layers[0]}"
        said = f"{found.per_token} of {config.experts} a token {where}"
        said += ", by falling weight" if several else ", with their weights"
        yield Heading("experts", said, "ffn")
        yield from self._routes() if several else self._weights()
        for loads, of in ((found.load, "this text"), (found.corpus, printable(found.corpus_name, spaces=False))):
            if loads:
                yield Heading(
                    f"load over {of}",
                    f"{loads[0].tokens:,} tokens, each to {found.per_token} of {config.experts} experts",
                    "ffn",
                )
                yield from self._load(loads)
        yield note("effective: e^entropy, as many equally busy experts; entropy in nats")
        yield Line("")
        yield verdict(
            found.check.holds, f"each of {found.check.tokens:,} tokens is sent to {found.check.count} experts"
        )

    def _routes(self) -> Iterator[Block]:
        """A row a token, a column a layer: the experts, coloured by the weight of the first."""
        found = self.found
        best = [routes.topk(found.per_token) for routes in found.routes]
        words = [
            [",".join(map(str, one.indices[place, :_BUSIEST].tolist())) for one in best]
            for place in range(len(self.names))
        ]
        shares = np.stack([as_array(one.values[:, 0]) for one in best], axis=1)
        layers = [f"L{layer}" for layer in found.layers]
        grid = Grid(words, np.clip(shares, 0, 1), self.names, layers, many="layers", asked=self.whole)
        yield from folded(grid, self.names, most_rows(self.rows, _TOKENS), "tokens")
        yield note("the colour, or the number, is the weight of the first")

    def _weights(self) -> Iterator[Block]:
        """Every weight of one layer."""
        values = as_array(self.found.routes[0])
        columns = numbered("E", values.shape[1])
        heat = Heat(values, self.names, columns, "unit", None, max(1.0, float(values.max())), digits=2)
        yield from folded(heat, self.names, most_rows(self.rows, _TOKENS), "tokens")

    def _load(self, loads: Sequence[Load]) -> Iterator[Block]:
        count = len(loads[0].counts)
        table = Table(
            [
                Column("", [Span(f"L{one.layer}", "strong") for one in loads], said="layer"),
                Column("busiest", [self._busiest(one) for one in loads], shrink=12),
                size_column("effective", [one.effective for one in loads], "ffn", "%.2f", float(count)),
                Column("of", [str(count) for _ in loads], "right", said="experts"),
                Column("unused", [str(one.unused) for one in loads], "right"),
                Column("entropy", [Figure(one.entropy, "%.3f") for one in loads], "right", drop=1),
            ]
        )
        yield from folded(table, [f"L{one.layer}" for one in loads], most_rows(self.rows, _LAYERS), "layers")

    @staticmethod
    def _busiest(load: Load) -> str:
        order = sorted(range(len(load.counts)), key=lambda number: -load.counts[number])[:_BUSIEST]
        return "  ".join(f"E{number} {100 * load.shares[number]:.0f} %" for number in order if load.counts[number])
