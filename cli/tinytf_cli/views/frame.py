"""One frame of a film, or of two side by side, as large as the screen allows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tinytf.runs.film import FEWEST_TOKENS, Film, Frame, Probe
from tinytf.runs.film import LEARNED as LEARNED_FROM
from tinytf.text.printable import printable
from tinytf_cli.numbers import loss_in_words, number, plural, probability
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    Beside,
    Block,
    Column,
    Curve,
    Curves,
    Line,
    Miniature,
    Miniatures,
    Scale,
    Span,
    Table,
)
from tinytf_cli.views.parts import coloured_text
from tinytf_cli.views.run import KINDS, sample_line

_WORST = 8.0
"""The loss at the end of the colour scale, in nats; fixed, so that frames and runs are comparable."""
_FEW_HEADS, _FEW_WORDS = 16, 3
_CHARTS_BESIDE, _FILMS_BESIDE = 36, 78
LEARNED = {"punctuation": "k", "spelling": "v", "words": "q", "names": "output", "copying": "attention"}
"""The kinds of tokens, each with the role that colours its curve."""


def learned_words(film: Film, *, short: bool = False) -> list[Span]:
    """``punctuation by step 16, words by step 64; short of 1.0 nats: copying 0.03``: earliest first, then nearest.

    ``short`` leaves out what is not learned yet.
    """
    learned_kinds = sorted(
        (learned for learned in film.learned if learned.by is not None), key=lambda learned: learned.by or 0
    )
    words: list[Span] = []
    for index, learned in enumerate(learned_kinds):
        words += [Span(", " if index else ""), Span(learned.kind, "strong"), Span(f" by step {learned.by:,}")]
    words = words or [Span("nothing yet")]
    judged = [learned for learned in film.learned if learned.tokens >= FEWEST_TOKENS]
    nearest = sorted((learned for learned in judged if learned.by is None), key=lambda learned: -learned.gain)
    short_of = ", ".join(f"{learned.kind} {learned.gain:.2f}" for learned in nearest)
    return [*words, Span(f"; short of {LEARNED_FROM:.1f} nats: {short_of}", "dim")] if short_of and not short else words


@dataclass(frozen=True)
class Layout:
    """Lines for the ``maps``, rows of the ``chart``, most tokens of the ``text``, and whether to list ``layers``.

    Without them, each line of words is one line.
    """

    maps: int = 14
    chart: int = 8
    text: int = 128
    layers: bool = True


LAYOUTS = (
    Layout(84, 16), Layout(56, 16), Layout(42, 16), Layout(42, 12), Layout(28, 16), Layout(28, 12), Layout(21, 10),
    Layout(), Layout(chart=6), Layout(7), Layout(7, 6), Layout(7, 6, 64), Layout(7, 5, 64, False),
    Layout(6, 4, 32, False), Layout(5, 4, 16, False), Layout(5, 4, 12, False), Layout(5, 3, 12, False),
    Layout(5, 2, 12, False), Layout(5, 0, 12, False),
)  # fmt: skip
"""From the largest to the smallest."""


@dataclass(frozen=True)
class Sight:
    """The selection: the ``step``, the ``probe``, a ``token`` of it, and a ``head`` by its number in the model.

    Without a head, the one with the largest score in the last frame.
    """

    step: int
    probe: int = 0
    token: int = 0
    head: int | None = None


class FrameView:
    """One film, or two in step, at one moment."""

    def __init__(self, films: Sequence[Film], sight: Sight, layout: Layout = LAYOUTS[0]) -> None:
        self.films, self.sight, self.layout = films, sight, layout

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The text by its loss, what comes next, every head's map, curves under one cursor, and the layers."""
        parts = [list(self._film(film, terminal)) for film in self.films]
        if len(parts) == 1:
            yield from parts[0]
        else:
            yield Beside(parts, _FILMS_BESIDE, even=True)
        if self.layout.chart:
            charts = list(self._charts())
            layers = [self._layers(film.at(self.sight.step)) for film in self.films if self.layout.layers]
            parts_below = [[chart] for chart in charts] + (
                [[Line(""), *table] for table in layers if table] if charts else []
            )
            yield Beside(parts_below, _CHARTS_BESIDE, even=True)

    def _film(self, film: Film, terminal: Terminal) -> Iterator[Block]:
        frame = film.at(self.sight.step)
        probe = film.probes[min(self.sight.probe, len(film.probes) - 1)]
        number, when = film.frames.index(frame) + 1, "step" if frame.step <= self.sight.step else "begins at step"
        yield Line(
            [
                Span(printable(film.name, spaces=False), "strong"),
                Span(
                    f" · {when} {frame.step:,} of {film.history.steps:,} · frame {number} of {len(film.frames)} · ",
                    "dim",
                ),
                Span(f"{probe.name} {frame.mean(probe.name):.3f}", "strong"),
                Span(f" ({plural(probe.predicted, 'token')})" if self.layout.layers else "", "dim"),
                *self._held_out(film, frame),
            ],
            single=not self.layout.layers,
        )
        if len(self.films) == 1:
            yield Line(
                [Span("learned ", "dim"), *learned_words(film, short=not self.layout.layers)],
                single=not self.layout.layers,
            )
        token = min(self.sight.token, len(probe.tokens) - 1)
        yield self._text(probe, frame, token)
        yield self._next(probe, frame, token)
        if (sample := film.samples.get(frame.step)) is not None:
            yield sample_line(sample, "writes", single=not self.layout.layers)
        yield Scale("unit", _WORST, "nats or more: the loss of each token")
        yield self._maps(film, probe, frame)

    @staticmethod
    def _held_out(film: Film, frame: Frame) -> list[Span]:
        """The held-out loss, as on the board, if it was measured at this step."""
        loss = dict(film.history.held_out).get(frame.step)
        return [] if loss is None else [Span(f" · held-out {loss_in_words(loss)}", "dim")]

    def _text(self, probe: Probe, frame: Frame, token: int) -> Line:
        """The first token, which nothing predicts, then each predicted token in the colour of its loss."""
        names, roles = [probe.tokens[0]], ["dim"]
        for target, after, loss in zip(probe.expected, [*probe.tokens[1:], None], frame.loss[probe.name], strict=True):
            name = target if target is not None else after
            if name is not None:
                names.append(name)
                share = 1.0 if math.isnan(loss) else min(float(loss), _WORST) / _WORST
                roles.append("dim" if target is None else f"unit:{round(255 * share)}")
        names[token] = f"[{names[token]}]"
        return coloured_text(names, roles, self.layout.text)

    def _next(self, probe: Probe, frame: Frame, token: int) -> Line:
        """The most probable tokens after the chosen one."""
        words: list[Span] = [Span(f"after {probe.tokens[token]} ", "strong")]
        likely = [*zip(frame.words[probe.name][token], frame.top[probe.name][token].tolist(), strict=True)]
        for word, p in likely if self.layout.layers else likely[:_FEW_WORDS]:
            right = word == probe.expected[token]
            words += [Span(f"  {word} ", "good" if right else ""), Span(probability(p), "strong" if right else "dim")]
        loss, target = float(frame.loss[probe.name][token]), probe.expected[token]
        if target is not None:
            in_text = f"the text has {target}:" if self.layout.layers else f"text: {target}"
            words.append(Span(f"   {in_text} {loss:.2f} nats", "dim"))
        return Line(words, indent=2, single=not self.layout.layers)

    def _heads(self, film: Film) -> list[int]:
        """The heads by number; if they are many, the strongest of the last frame first."""
        layers, heads = film.frames[-1].maps[film.probes[0].name].shape[:2]
        if layers * heads <= _FEW_HEADS:
            return list(range(layers * heads))
        best = np.max([np.nan_to_num(scores).ravel() for kind, scores in film.frames[-1].heads.items()
                       if kind != "entropy"], axis=0)  # fmt: skip
        return [int(head) for head in np.argsort(-best, kind="stable")]

    def _maps(self, film: Film, probe: Probe, frame: Frame) -> Miniatures:
        maps = frame.maps[probe.name]
        layers, heads, length, _ = maps.shape
        causal = film.history.config is None or film.history.config.causal
        visible = np.tril(np.ones((length, length), dtype=bool)) if causal else None
        drawn = []
        for head_index in self._heads(film):
            layer, head = divmod(head_index, heads)
            scores = {kind: float(values[layer, head]) for kind, values in frame.heads.items()}
            name, score = max(
                ((kind, value) for kind, value in scores.items() if kind != "entropy"),
                key=lambda item: -1.0 if math.isnan(item[1]) else item[1],
                default=("", math.nan),
            )
            mark = "▸" if head_index == self.chosen(film) else ""
            word = f"{name[:4]} {number(score, '%.2f')}"
            drawn.append(Miniature(f"{mark}L{layer}H{head}", word, maps[layer, head], visible, probe.tokens[:length]))
        order = "in order" if layers * heads <= _FEW_HEADS else "the strongest at the end first"
        title = f"attention of {probe.name}, the first {length} tokens"
        return Miniatures(
            drawn, self.layout.maps, title, layers * heads, order, "a larger window shows more", grow=True
        )

    def chosen(self, film: Film) -> int:
        """The number of the head whose curves are drawn."""
        if self.sight.head is not None:
            return self.sight.head
        scores = [np.nan_to_num(scores) for kind, scores in film.frames[-1].heads.items() if kind != "entropy"]
        return int(np.max(scores, axis=0).argmax()) if scores else 0

    def _charts(self) -> Iterator[Curves]:
        """Scores of a head and losses of each kind of token; for two films, their induction and the probe's loss."""
        cursor = float(self.sight.step)
        if len(self.films) == 1:
            (film,) = self.films
            steps, chosen = np.array([frame.step for frame in film.frames]), self.chosen(film)
            kinds = [kind for kind in KINDS if kind in film.frames[-1].heads]
            heads = film.frames[-1].heads[kinds[0]].shape[1] if kinds else 1
            layer, head = divmod(chosen, heads)
            scores = [
                Curve(kind, steps, np.array([frame.heads[kind][layer, head] for frame in film.frames]), KINDS[kind])
                for kind in kinds
            ]
            yield Curves(scores, "step", f"L{layer}H{head}", self.layout.chart, log_x=True, cursor=cursor)
            losses = [
                Curve(
                    learned.kind,
                    steps,
                    np.array([film.loss_of(learned.kind, f) for f in film.frames]),
                    LEARNED[learned.kind],
                )
                for learned in film.learned
            ]
            yield Curves(losses, "step", "loss in nats", self.layout.chart, log_x=True, cursor=cursor)
            return
        for title, measure in (("induction, the strongest head", self._induction), ("loss of the probe", self._loss)):
            curves = [
                Curve(printable(film.name, spaces=False), np.array([frame.step for frame in film.frames]),
                      np.array([measure(film, frame) for frame in film.frames]), role)
                for film, role in zip(self.films, ("q", "k"), strict=True)
            ]  # fmt: skip
            yield Curves(curves, "step", title, self.layout.chart, log_x=True, cursor=cursor)

    def _loss(self, film: Film, frame: Frame) -> float:
        return frame.mean(film.probes[min(self.sight.probe, len(film.probes) - 1)].name)

    @staticmethod
    def _induction(film: Film, frame: Frame) -> float:
        strongest = film.strongest("induction", frame)
        return math.nan if strongest is None else strongest[1]

    @staticmethod
    def _layers(frame: Frame) -> list[Block]:
        """Gradient and update of each layer, its output and its dead units."""
        layers = len(frame.rms)
        names = [f"L{layer}" for layer in range(layers)] + ["rest"] * (len(frame.gradient_norm) > layers)

        def column(title: str, values: np.ndarray, form: str) -> Column:
            cells = [number(float(value), form) for value in values] + [""] * (len(names) - len(values))
            return Column(title, cells, "right")

        columns = [Column("layer", names)]
        if frame.gradient_norm.size:
            columns += [column("gradient", frame.gradient_norm, "%.2f"), column("update", frame.update_ratio, "%.1e")]
        columns.append(column("RMS", frame.rms, "%.2f"))
        if frame.dead.size:
            columns.append(column("dead", 100 * frame.dead, "%.0f %%"))
        return [Table(columns)]
