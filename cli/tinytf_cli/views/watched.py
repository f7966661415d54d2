"""What a run watches beside its loss, as small charts: copying, the entropy of attention, the updates of matrices."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from tinytf.text.printable import printable
from tinytf.training.film.film import LEARNED
from tinytf.training.folder.history import History
from tinytf_cli.views.blocks import Beside, Block, Curve, Curves, Line, Span

_LEAST = 36
"""The least width of a chart."""
_BLOCK = re.compile(r"^blocks\.")
_USUAL_UPDATE, _LEAST_UPDATE = -3.0, 1e-9
"""An update of a thousandth of the weights is a rule of thumb (Karpathy 2022, makemore 3); the least that is drawn."""


def watched(history: History, height: int) -> Iterator[Block]:
    """Small charts of what copying gains, of the entropy of attention, and of the updates of matrices."""
    charts = []
    if history.copying:
        steps, gains = np.array(history.copying).T
        learned = Curve(f"{LEARNED:g}: learned", steps, np.full(len(steps), LEARNED), "dim")
        charts.append(Curves([Curve("copying", steps, gains, "attention"), learned], "step", "copying in nats", height))
    entropies = [(step, heads["entropy"]) for step, heads in history.heads if "entropy" in heads]
    entropies = [(step, scores) for step, scores in entropies if np.isfinite(scores).any()]
    if entropies:
        steps = np.array([step for step, _ in entropies])
        curves = [
            Curve(name, steps, np.array([reduce(scores) for _, scores in entropies]), role)
            for name, reduce, role in (("mean", np.nanmean, "residual"), ("lowest head", np.nanmin, "k"))
        ]
        charts.append(Curves(curves, "step", "entropy of attention", height))
    if history.updates:
        steps = np.array([step for step, _ in history.updates])
        ratios = [np.log10(np.maximum(list(by_matrix.values()), _LEAST_UPDATE)) for _, by_matrix in history.updates]
        curves = [
            Curve(name, steps, np.array([reduce(row) for row in ratios]), role)
            for name, reduce, role in (("largest", np.max, "v"), ("median", np.median, "q"), ("least", np.min, "k"))
        ]
        usual = Curve("−3: rule of thumb", steps, np.full(len(steps), _USUAL_UPDATE), "dim")
        charts.append(Curves([*curves, usual], "step", "update ÷ weights of matrices, power of ten", height))
    if charts and height:
        yield Beside([[chart] for chart in charts], _LEAST, even=True)
        if history.updates:
            yield _matrices(*history.updates[-1])


def _matrices(step: int, updates: Mapping[str, float]) -> Line:
    """The matrices that change most and least for their size."""
    least, most = min(updates, key=updates.__getitem__), max(updates, key=updates.__getitem__)
    words = [f"{title} {_BLOCK.sub('L', name).removesuffix('.weight')} {updates[name]:.1e}"
             for title, name in (("largest", most), ("least", least))]  # fmt: skip
    return Line(
        [Span(f"update ÷ weights, step {step:,}  ", "dim"), Span(printable("   ".join(words), spaces=False))], indent=2
    )
