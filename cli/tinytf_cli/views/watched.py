"""What a run watches beside its loss, as small charts: copying, attention's entropy, updates, noise of the gradient."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tinytf.runs.film import LEARNED
from tinytf.runs.history import History, Series, Steps
from tinytf.text.printable import printable
from tinytf_cli.views.blocks import Beside, Block, Curve, Curves, Line, Span

_LEAST = 36
"""The least width of a chart."""
_BLOCK = re.compile(r"^blocks\.")
_USUAL_UPDATE, _LEAST_UPDATE = 1e-3, 1e-9
"""An update of a thousandth of the weights is a rule of thumb (Karpathy 2022, makemore 3); the least that is drawn."""


def watched(history: History, height: int) -> Iterator[Block]:
    """A small chart of each measure that the run has, each with what it is compared with."""
    charts = [chart for draw in (_copying, _entropy, _updates, _noise) for chart in draw(history, height)]
    if charts and height:
        yield Beside([[chart] for chart in charts], _LEAST, even=True)
        if history.updates:
            yield _matrices(*history.updates[-1])
        yield from _gain(history)


def _copying(history: History, height: int) -> Iterator[Curves]:
    if history.copying:
        steps, gains = np.array(history.copying).T
        curves = [Curve("copying", steps, gains, "attention"), _mark(f"{LEARNED:g}: learned", steps, LEARNED)]
        yield Curves(curves, "step", "copying in nats", height)


def _entropy(history: History, height: int) -> Iterator[Curves]:
    """Low entropy goes with unstable training (Zhai et al. 2023), who give no limit: the mark is the start's."""
    entropies = [(step, heads["entropy"]) for step, heads in history.heads if "entropy" in heads]
    entropies = [(step, scores) for step, scores in entropies if np.isfinite(scores).any()]
    if entropies:
        steps = np.array([step for step, _ in entropies])
        curves = _reduced(
            steps,
            [scores for _, scores in entropies],
            ("mean", np.nanmean, "residual"),
            ("lowest head", np.nanmin, "k"),
        )
        yield Curves([*curves, _mark("1: uniform", steps, 1.0)], "step", "entropy of attention", height)


def _updates(history: History, height: int) -> Iterator[Curves]:
    if history.updates:
        steps = np.array([step for step, _ in history.updates])
        ratios = [np.maximum(list(by_matrix.values()), _LEAST_UPDATE) for _, by_matrix in history.updates]
        curves = _reduced(steps, ratios, ("largest", np.max, "v"), ("median", np.median, "q"), ("least", np.min, "k"))
        usual = _mark(f"{_USUAL_UPDATE:g}: rule of thumb", steps, _USUAL_UPDATE)
        yield Curves([*curves, usual], "step", "update ÷ weights of matrices", height, log_y=True)


def _noise(history: History, height: int) -> Iterator[Curves]:
    if history.noise:
        steps, scales = np.array(history.noise_scale).T
        batch = int(history.recipe["batch"])
        curves = [Curve("noise", steps, scales, "ffn"), _mark(f"batch {batch:,}", steps, batch)]
        yield Curves(curves, "step", "gradient noise in examples", height, log_y=True)


def _reduced(
    steps: Steps, values: Sequence[Series], *curves: tuple[str, Callable[[Series], float], str]
) -> list[Curve]:
    """A curve for each name, reduction of the values of a step, and role."""
    return [Curve(name, steps, np.array([reduce(row) for row in values]), role) for name, reduce, role in curves]


def _mark(label: str, steps: Steps | Series, value: float) -> Curve:
    """A level to compare with."""
    return Curve(label, steps, np.full(len(steps), value), "dim")


def _matrices(step: int, updates: Mapping[str, float]) -> Line:
    """The matrices that change most and least for their size."""
    least, most = min(updates, key=updates.__getitem__), max(updates, key=updates.__getitem__)
    words = [f"{title} {_BLOCK.sub('L', name).removesuffix('.weight')} {updates[name]:.1e}"
             for title, name in (("largest", most), ("least", least))]  # fmt: skip
    return Line(
        [Span(f"update ÷ weights, step {step:,}  ", "dim"), Span(printable("   ".join(words), spaces=False))], indent=2
    )


def _gain(history: History) -> Iterator[Line]:
    """What the batch gains a step, for its noise."""
    if history.noise:
        step, scale = history.noise_scale[-1]
        batch = int(history.recipe["batch"])
        words = "too large to measure with these batches"
        if (gain := history.batch_gain) is not None:
            gained = f"a step gains {100 * gain:.0f} % of a noiseless one"
            words = f"about {float(f'{scale:.2g}'):,.10g} examples, batch {batch:,}: {gained}"
        yield Line([Span(f"gradient noise, step {step:,}  ", "dim"), Span(words)], indent=2)
