"""One training run as it is now: progress, the last numbers, loss curves, every head, milestones; and its events."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.runs.film import HEAD_THRESHOLD
from tinytf.runs.history import MEANS_LABEL, History, Sample, Series
from tinytf.runs.runs import FollowedRun, RunReport
from tinytf.runs.verdict import verdict_of
from tinytf.text.printable import printable
from tinytf_cli.numbers import duration, in_bytes, loss_in_words, number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Beside,
    Block,
    Cell,
    Column,
    Curve,
    Curves,
    Heading,
    Histogram,
    Line,
    Meter,
    Running,
    Span,
    Table,
)
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import row_limit, spread
from tinytf_cli.views.watched import watched

KINDS = {"entropy": "residual", "previous": "k", "duplicate": "v", "induction": "attention"}
"""The scores of a head in the order shown, each with the role that colours it."""
STOPPED = "stopped at step {:,}; tinytf train --resume RUN continues"

_FEW_HEADS, _LAYERS = 16, 12
_METERS_NEED = 72
_FULL = 1000
_CHART, _CHART_BESIDE = 72, 36
"""The least width of the loss, and of a chart beside it."""
_TAIL_NEEDS = 20
_LARGEST_LOSS = 20.0
_QUIET = 30.0


def resuming(run: Path) -> str:
    """The command line that continues a run, as it is typed."""
    return f"tinytf train --resume {printable(shlex.quote(str(run)), spaces=False)}"


@dataclass(frozen=True)
class Layout:
    """``chart`` rows for the curves; with ``meters``, a line per head if they are few, else a line per layer.

    ``watched`` are the rows of the small charts. The last ``milestones`` are shown, and ``samples`` from the first to
    the latest, in full if ``whole``; ``tight`` omits gaps and what follows from the rest.
    """

    chart: int = 12
    meters: bool = True
    milestones: int = 3
    tight: bool = False
    samples: int = 4
    watched: int = 0
    whole: bool = False


LAYOUTS = (
    Layout(watched=6, whole=True),
    Layout(8, watched=5, whole=True),
    Layout(8, watched=4),
    Layout(whole=True),
    Layout(),
    Layout(8),
    Layout(12, False),
    Layout(8, False),
    Layout(8, False, 1, samples=2),
    Layout(7, False, 1, True, 2),
    Layout(7, False, 1, True, 1),
    Layout(5, False, 1, True, 1),
    Layout(4, False, 1, True, 1),
    Layout(5, False, 1, True, 0),
)
"""From the largest to the smallest."""


_HEALTH = {
    "gradient_norm": ("gradient", "%.2g"),
    "update_ratio": ("update", "%.0e"),
    "rms": ("RMS", "%.3g"),
    "dead": ("dead", "%.2f"),
}
"""The measures shown for each layer: title and format."""


@dataclass(frozen=True)
class RunDisplay(Display):
    """``seconds_left`` to the last step, None to estimate them from the run's speed; ``quiet`` seconds since its last
    line, None for a stopped run.

    ``doing`` says what the run does when it does not train; ``log`` counts steps in powers of ten.
    """

    seconds_left: float | None = None
    quiet: float | None = 0.0
    layout: Layout = field(default_factory=Layout)
    doing: str = ""
    log: bool = False


@draws(RunReport, RunDisplay)
def run(report: RunReport, terminal: Terminal, display: RunDisplay) -> Iterator[Block]:
    """Progress, numbers, curves, heads and the last milestones of a run that is not damaged."""
    history, layout = report.history, display.layout
    assert history is not None
    yield Line([Span(printable(report.name, spaces=False), "strong"), Span(f" · {_state(history, display)}", "dim")])
    if history.planned is None:
        yield Line(f"step {history.last:,}", indent=2)
    else:
        share = min(1.0, history.last / history.planned)
        name = f"step {history.last:,} of {history.planned:,}"
        yield Bars([Bar(name, share, f"{100 * share:.0f} %", "v")], track=True)
    yield from _number_lines(_numbers(history, display), terminal)
    if history.skipped:
        yield Line(Span(f"{history.skipped:,} lines of metrics.jsonl cannot be read", "bad"), indent=2)
    if not layout.tight:
        yield Line("")
    yield from _charts(history, terminal, display)
    yield from watched(history, layout.watched)
    yield from verdict_line(history, indent=2)
    if history.spikes:
        yield spike_line(history)
    if history.heads:
        yield from _heads(*history.heads[-1], terminal, layout)
    if not layout.tight:
        yield from _copying_recipe(history)
    if history.health and not layout.tight:
        yield from _layers(*history.health[-1])
    if history.experts and not layout.tight:
        step, shares = history.experts[-1][0], history.experts[-1][1]["shares"]
        ranges = " ".join(f"{least:.2f}–{most:.2f}" for least, most in zip(shares.min(1), shares.max(1), strict=True))
        yield Line([Span(f"experts, step {step:,}  ", "dim"), Span("choices "), ranges], indent=2)
    if history.samples and layout.samples:
        if not layout.tight:
            yield Line("")
        at = spread(len(history.samples), layout.samples) if layout.samples > 1 else [-1]
        shown = [history.samples[index] for index in at]
        yield from (sample_line(sample, f"sample, step {sample.step:,}", single=not layout.whole) for sample in shown)
    if history.milestones:
        last = layout.milestones
        if not layout.tight:
            yield Heading("milestones", "" if len(history.milestones) <= last else f"the last {last}")
        yield from milestone_lines(history, last)


def _state(history: History, display: RunDisplay) -> str:
    if display.doing or history.finished:
        return display.doing or "finished"
    if display.quiet is None:
        stopped = STOPPED.format(history.last)
        return stopped.partition(";")[0] if "watched" in history.recipe else stopped
    return f"no new line for {duration(display.quiet)}" if display.quiet >= _QUIET else "not finished"


def _numbers(history: History, display: RunDisplay) -> list[tuple[str, str]]:
    """Names and values of all known numbers."""
    logged, held_out, best = history.step.size > 0, history.held_out, history.best
    seconds_left = history.seconds_left if display.seconds_left is None else display.seconds_left
    best = None if best is None or best[0] == held_out[-1][0] else best
    numbers = {
        "loss": loss_in_words(float(history.loss[-1]) if logged else None),
        "held-out": loss_in_words(held_out[-1][1]) if held_out else "",
        "best held-out": f"{loss_in_words(best[1])} at {best[0]:,}" if best else "",
        **_held_out_numbers(history),
        **{f"{name} counts": loss_in_words(loss) for name, loss in history.baselines.items()},
        "exact": f"{100 * history.exact[-1][1]:.1f} %" if history.exact else "",
        "training text": loss_in_words(history.seen[-1][1]) if history.seen else "",
        "gap": _gap_in_words(history),
        "copying": f"{history.copying[-1][1]:.2f} nats" if history.copying else "",
        "lr": number(float(history.lr[-1]), "%.2e") if logged else "",
        "gradient norm": number(float(history.grad_norm[-1]), "%.3f") if logged else "",
        "clipped": f"{100 * history.clip_rate:.0f} %" if history.clip_rate is not None else "",
        "epochs": f"{history.epochs:.2f}" if history.epochs is not None else "",
        "tokens/s": f"{history.tokens_per_second:,.0f}" if history.tokens_per_second is not None else "",
        "MFU": f"{100 * history.mfu:.0f} %" if history.mfu is not None else "",
        "memory": in_bytes(history.memory_bytes) if history.memory_bytes is not None else "",
        "elapsed": duration(history.elapsed) if history.elapsed else "",
        "left": duration(seconds_left) if seconds_left is not None and not history.finished else "",
    }
    return [(title, shown) for title, shown in numbers.items() if shown]


def _gap_in_words(history: History) -> str:
    """The last gap between held-out and training text, and the first: a gap that grows is memorising."""
    if not history.gaps:
        return ""
    (first, first_gap), (last, gap) = history.gaps[0], history.gaps[-1]
    return f"{gap:.3f}" + (f", {first_gap:.3f} at {first:,}" if last > first else "")


def _number_lines(numbers: Sequence[tuple[str, str]], terminal: Terminal) -> Iterator[Line]:
    """The numbers, as many on a line as fit, each beside its name."""
    if terminal.plain:
        yield Line(", ".join(f"{title} {shown}" for title, shown in numbers) + ".")
        return
    words: list[Span] = []
    used = 2
    for title, shown in numbers:
        size = len(title) + len(shown) + 1
        if words and used + 3 + size > terminal.width:
            yield Line(words, indent=2)
            words, used = [], 2
        words += [Span(f"{'   ' if words else ''}{title} ", "dim"), Span(shown, "strong")]
        used += size + (3 if used > 2 else 0)
    yield Line(words, indent=2)


def _held_out_numbers(history: History) -> dict[str, str]:
    """The last held-out loss in bits per byte and as a perplexity."""
    if not history.held_out:
        return {}
    loss = history.held_out[-1][1]
    bits = history.bits_per_byte(loss)
    return {
        "bits/byte": "" if bits is None else f"{bits:.3f}",
        "perplexity": number(math.exp(loss), "%.1f") if loss < _LARGEST_LOSS else "",
    }


def verdict_line(history: History, indent: int = 0) -> Iterator[Line]:
    """What is wrong with a run; no line for a healthy one."""
    if (verdict := verdict_of(history)) is not None:
        yield Line([Span(verdict.text, "bad")], indent=indent)


def _charts(history: History, terminal: Terminal, display: RunDisplay) -> Iterator[Block]:
    """The loss; beside it, if there is room, its tail, gradient norm, throughput and learning rate."""
    height = display.layout.chart
    loss = Curves(_curves(history), "step", "loss", height, log_x=display.log)
    beside = list(_charts_beside(history, height))[: max(0, (terminal.width - _CHART) // (_CHART_BESIDE + 2))]
    if terminal.plain or not beside:
        yield loss
    else:
        yield Beside([[loss], *([chart] for chart in beside)], _CHART_BESIDE)


def _charts_beside(history: History, height: int) -> Iterator[Curves]:
    if history.step.size >= 2 * _TAIL_NEEDS:
        first = int(history.step[-max(_TAIL_NEEDS, history.step.size // 5)])
        yield Curves(_curves(history, first), "step", "loss, the last fifth", height)
    finite = np.isfinite(history.grad_norm)
    clip = float(history.recipe.get("clip", math.nan))
    ends = history.step[[0, -1]] if history.step.size else history.step
    yield Curves(
        [Curve(f"clipped at {clip:g}", ends, np.full(len(ends), clip), "dim"),
         Curve("gradient norm", history.step[finite], history.grad_norm[finite], "v")],
        "step", "gradient norm", height,
    )  # fmt: skip
    timed = np.isfinite(history.speed.tokens_per_second)
    speed = Curve("tokens/s", history.speed.step[timed], history.speed.tokens_per_second[timed], "k")
    yield Curves([speed], "step", "tokens/s", height)
    yield Curves([Curve("learning rate", history.step, history.lr, "ffn")], "step", "learning rate", height)


def _curves(history: History, first: int = 0) -> list[Curve]:
    """The losses from a step on: held-out, the mean around each step, and behind them the loss of each step.

    Beside the chart of all steps, a short name is enough for the means.
    """
    step, loss = history.averaged
    raw = history.loss[np.isfinite(history.loss)]
    late = step >= first
    curves = [
        Curve("loss, means" if first else f"loss, {MEANS_LABEL}", step[late], loss[late], "q"),
        Curve("each step", step[late], raw[late], "dim", band=True),
    ]
    measured = {"held-out loss": (history.held_out, "k"), "training text": (history.seen, "ffn")}
    points = [_points(name, [point for point in series if point[0] >= first], role)
              for name, (series, role) in measured.items()]  # fmt: skip
    return [curve for curve in points if curve.x.size] + curves


def _points(name: str, series: Sequence[tuple[int, float]], role: str) -> Curve:
    steps, values = zip(*series, strict=True) if series else ((), ())
    return Curve(name, np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64), role, points=True)


def _heads(step: int, heads: Mapping[str, Series], terminal: Terminal, layout: Layout) -> Iterator[Block]:
    layers, n_heads = shape = next(iter(heads.values())).shape
    kinds = [kind for kind in dict.fromkeys((*KINDS, *heads)) if kind in heads and heads[kind].shape == shape]
    is_small = layers * n_heads <= _FEW_HEADS and layout.meters and terminal.width >= _METERS_NEED
    per_head = is_small or terminal.plain
    measured = [layer for layer in range(layers) if any(np.isfinite(heads[kind][layer]).any() for kind in kinds)]
    if not measured:  # no layer has attention weights
        return
    limit = None if per_head else row_limit(terminal, None, _LAYERS)
    keep = [layer for layer in _strongest(heads, kinds, layers, limit) if layer in measured]
    fold_words = f"; {len(keep)} of {len(measured)} layers, those with the largest scores"
    folded = "" if len(keep) == len(measured) else fold_words
    yield Heading("heads", f"at step {step:,}; a full bar is 1{folded}")

    def cells(kind: str) -> list[Cell]:
        scores, role = np.nan_to_num(heads[kind], nan=0.0, posinf=1.0, neginf=0.0), KINDS.get(kind, "embed")
        if per_head:
            return [Meter(score, number(score, "%.2f"), role) for score in scores[keep].ravel().tolist()]
        counts = np.rint(_FULL * scores[keep].clip(0, 1)).astype(int).tolist()
        return [Histogram(tuple(row), _FULL, role) for row in counts]

    names = [f"L{layer}" for layer in keep]
    names = [f"{name}H{head}" for name in names for head in range(n_heads)] if per_head else names
    drops = [*range(len(kinds), 1, -1), 0]
    scored = [
        Column(printable(kind, spaces=False), cells(kind), drop=drop) for drop, kind in zip(drops, kinds, strict=True)
    ]
    yield Table([Column("", [Span(name, "dim") for name in names]), *scored])
    if not (per_head or layout.tight):
        named = [kind for kind in kinds if kind != "entropy"]
        if words := [f"{printable(kind, spaces=False)} {_largest(heads[kind])}" for kind in named]:
            yield Line(Span(f"largest: {', '.join(words)}", "dim"), indent=2)


def could_learn_to_copy(history: History) -> bool:
    """Whether no induction head has appeared, and the recipe has no repeated tokens to grow one."""
    scores = history.heads[-1][1].get("induction") if history.heads else None
    repeats = history.recipe.get("repeats") or history.recipe.get("repeats_first")
    return scores is not None and not repeats and not (scores >= HEAD_THRESHOLD).any()


def _copying_recipe(history: History) -> Iterator[Line]:
    """What grows induction heads, where none has appeared and the recipe has no repeated tokens."""
    if could_learn_to_copy(history):
        words = "no induction head so far: tinytf train TEXT --recipe induction is made to grow some"
        yield Line(Span(words, "dim"), indent=2)


def _layers(step: int, health: Mapping[str, Series]) -> Iterator[Block]:
    """Gradient, update, activations and dead units of each layer, in one line."""
    words: list[Span] = []
    for name, (title, form) in _HEALTH.items():
        if (values := health.get(name)) is not None:
            shown = " ".join(number(float(value), form) for value in values)
            words += [Span(f"{'   ' if words else ''}{title} ", "dim"), Span(shown)]
    if words:
        yield Line([Span(f"layers, step {step:,}  ", "dim"), *words], indent=2)


def _strongest(heads: Mapping[str, Series], kinds: Sequence[str], layers: int, limit: int | None) -> Sequence[int]:
    """The layers with the largest scores of a head, in their order."""
    scores = [np.nan_to_num(heads[kind]).max(axis=-1) for kind in kinds if kind != "entropy"]
    best = np.max([np.zeros(layers), *scores], axis=0)
    return sorted(np.argsort(-best, kind="stable")[:limit].tolist())


def _largest(scores: np.ndarray) -> str:
    flat = np.nan_to_num(scores, nan=-1.0)
    layer, head = np.unravel_index(int(flat.argmax()), flat.shape)
    return f"L{layer}H{head} {number(float(scores[layer, head]), '%.2f')}"


def sample_line(sample: Sample, lead: str, *, single: bool = True) -> Line:
    """The prompt, a bar and the model's continuation; in one line if ``single``."""
    prompt, text = printable(sample.prompt, spaces=False), printable(sample.text, spaces=False)
    words = [Span(f"{lead}  ", "dim"), Span(prompt, "dim"), Span("│", "dim"), Span(text)]
    return Line(words, indent=2, said=f"{lead}: {prompt}; the model says: {text}.", single=single)


def spike_line(history: History, lead: str = "") -> Line:
    """How often the loss jumped, and the last time."""
    last, earlier = history.spikes[-1], len(history.spikes) - 1
    words = f"{lead}the loss jumped to {last.loss:.3f} at step {last.step:,}, from about {last.usual:.3f}"
    return Line(Span(words + (f"; {earlier:,} times before" if earlier else ""), "bad"), indent=2)


def milestone_lines(history: History, last: int) -> Iterator[Line]:
    """The last milestones of a run, the newest at the bottom."""
    width = max((len(f"{step:,}") for step, _ in history.milestones[-last:]), default=0)
    for step, text in history.milestones[-last:]:
        words = [Span(f"step {step:>{width},}", "dim"), Span(f"  {printable(text, spaces=False)}")]
        yield Line(words, indent=2)


@draws(FollowedRun)
def followed_run(report: FollowedRun, terminal: Terminal, display: Display) -> Iterator[Running]:
    """A line for each event, as soon as it comes."""
    return (Running(event_in_words(event) + "\n") for event in report.events())


def event_in_words(event: Mapping[str, Any]) -> str:
    """An event of a followed run as one line."""
    lead = f"step {event['step']:,} of {event['steps']:,}"
    kind = event["type"]
    if kind == "stopped":
        return STOPPED.format(event["step"])
    if kind == "milestone":
        return f"{lead}  milestone: {printable(str(event['text']), spaces=False)}"
    if kind == "sample":
        prompt, text = (printable(event[name], spaces=False) for name in ("prompt", "text"))
        return f"{lead}  sample: {prompt}│{text}"
    words = f"{lead}  {'held-out loss' if kind == 'held_out' else 'loss'} {loss_in_words(event['loss'])}"
    for name, title, form in (("lr", "lr", "%.2e"), ("grad_norm", "gradient norm", "%.3f")):
        if event.get(name) is not None:
            words += f"  {title} {number(event[name], form)}"
    if kind == "run":
        ending = "  finished" if event["state"] == "finished" else ""
        return f"{printable(event['name'], spaces=False)}: {words}{ending}"
    if event.get("tokens_per_second") is not None:
        words += f"  {event['tokens_per_second']:,.0f} tokens/s"
    if event.get("seconds_left"):
        words += f"  {duration(event['seconds_left'])} left"
    return words
