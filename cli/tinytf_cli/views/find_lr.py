"""The learning-rate range test, drawn."""

from collections.abc import Iterator

import numpy as np

from tinytf.training.find_lr import AROUND, RangeTest
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Curve, Curves, Line, Span
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import next_lines, note


@draws(RangeTest)
def range_test(report: RangeTest, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The suggested rate and where it comes from, then the loss by rate."""
    rates, smoothed, lowest, own = report.rates, report.smoothed, report.lowest, report.recipe.lr
    suggested = report.suggested
    if suggested is None:
        yield Line(
            [
                Span("no rate to suggest ", "bad"),
                "the loss never falls clearly more than it varies; a larger --batch varies less",
            ]
        )
    else:
        words = f" where the loss falls fastest; the recipe has {own:.1e}"
        yield Line([Span("suggested lr ", "output"), Span(f"{suggested:.1e}", "strong"), words])
    end = "the loss is lowest at the largest rate" if lowest == len(rates) - 1 else "it rises with larger rates"
    end = end if report.complete else f"it diverges from {rates[-1]:.1e} on"
    yield Line(
        [Span("lowest loss ", "output"), f"{smoothed[lowest]:+.3f} nats since the start, at {rates[lowest]:.1e}; {end}"]
    )
    exponent = np.log10(rates)
    curves = [
        Curve(f"means of up to {2 * AROUND + 1} steps", exponent, smoothed, "q"),
        Curve("each step", exponent, report.changes, "dim", points=True),
    ]
    cursor = None if suggested is None else float(np.log10(suggested))
    yield Curves(curves, "power of ten of the learning rate", "change of the loss", cursor=cursor)
    yield note(
        f"{len(rates)} steps in memory, with exponentially growing rates and no warm-up (Smith 2015), each loss less "
        "what the same batch cost before; nothing is written. A run with a warm-up may bear more"
    )
    if suggested is not None:
        yield Line("")
        yield from next_lines(terminal, (f"--lr {suggested:.1e}", "trains with this rate, in place of --find-lr"))
