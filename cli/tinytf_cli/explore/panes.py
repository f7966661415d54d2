"""What each pane of the explorer shows: blocks of the present trace and place."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from rich.cells import cell_len
from torch import Tensor

from tinytf.analysis.heads import measure_heads
from tinytf.analysis.prediction import Prediction, predictions
from tinytf.loading import Model
from tinytf.trace.trace import Trace
from tinytf_cli.explore.place import Place, matrix, names, window
from tinytf_cli.numbers import SHARE, number_format, widest
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Figure,
    Heading,
    Heat,
    Histogram,
    Line,
    Meter,
    Piece,
    Span,
    Table,
    Words,
)
from tinytf_cli.views.pipeline import row_at
from tinytf_cli.views.steps import as_array, largest, visible_array

_LABEL, _NUMBER = 14, 8
"""Columns of the name of a row, and of a number."""
_TOP = 12


@dataclass(frozen=True)
class Scene:
    """One run on the screen: the model, its trace, and the run before, if there was one."""

    model: Model
    trace: Trace
    before: Trace | None = None

    @cached_property
    def predicted(self) -> tuple[Prediction, ...]:
        return predictions(self.trace, self.model, _TOP)

    @cached_property
    def _histograms(self) -> dict[int, tuple[int, ...]]:
        return {}

    def histogram(self, row: int) -> tuple[int, ...]:
        """The histogram of a step; empty where it has no numbers."""
        if row not in self._histograms:
            found = row_at(self.trace, row).statistics
            self._histograms[row] = found.histogram if found else ()
        return self._histograms[row]

    @cached_property
    def _changes(self) -> dict[int, float]:
        return {}

    def change(self, row: int) -> float:
        """How far a step is from the run before, in units of its largest number; NaN where they do not compare."""
        if row not in self._changes:
            step, layer = self.trace.steps.rows[row]
            now, before = (_whole(trace, step.name, layer) for trace in (self.trace, self.before))
            same = now is not None and before is not None and now.shape == before.shape
            self._changes[row] = math.nan
            if same and now is not None and before is not None:
                apart = (now - before).abs().nan_to_num(0.0)  # −∞ is masked in both
                finite = before[before.isfinite()].abs()
                self._changes[row] = float(apart.max()) / (float(finite.max()) or 1.0) if finite.numel() else 0.0
        return self._changes[row]

    @cached_property
    def _measured(self) -> dict[tuple[str, int], list[float]]:
        return {}

    def measured(self, by: str, layer: int) -> list[float]:
        """A measure of every head of a layer."""
        if (by, layer) not in self._measured:
            self._measured[by, layer] = measure_heads(self.trace, by, [layer])[0].tolist()
        return self._measured[by, layer]


def _whole(trace: Trace | None, name: str, layer: int | None) -> Tensor | None:
    """All numbers of a step; None where the model has no such step, or it has no numbers."""
    if trace is None or not trace.steps.has(name, layer) or not trace.steps.at(name, layer).is_tensor:
        return None
    step = trace.steps.at(name, layer)
    return (trace.at_logit_rows(step) if step.is_vocabulary else trace.step(name, layer)).float()


@dataclass(frozen=True)
class Map:
    """A step around the chosen cell: what stands above it, the cells in sight, which they are, and what follows."""

    above: Block
    heat: Heat
    rows: slice
    columns: slice
    below: tuple[Block, ...]


def step_map(scene: Scene, place: Place, *, small: bool, against: bool, width: int, height: int) -> Map | None:
    """The cells around the chosen one, with their numbers or, ``small``, in colour alone; None without numbers.

    ``against`` shows by how much they are larger than in the run before, where that has the same step.
    """
    trace = scene.trace
    step, layer = place.at(trace)
    found = matrix(trace, place)
    if found is None:
        return None
    before = matrix(scene.before, place) if against and scene.before is not None else None
    compared = before is not None and before.shape == found.shape
    unit = step.is_distribution and not compared
    if compared and before is not None:
        found = (found - before).nan_to_num(0.0)
    values, seen = as_array(found), visible_array(trace, step, layer) if step.is_map else None
    row, column = place.inside(*values.shape)
    down, across = names(trace, place, values.shape[1])
    label = min(_LABEL, max(map(cell_len, down), default=0))
    form = SHARE if unit else number_format(values)
    longest = max(map(cell_len, across), default=1) if step.is_map else _NUMBER
    room = (width - label - 4) // (2 if small else max(widest(values, form), min(_NUMBER, longest)) + 1)
    rows, columns = window(len(values), row, max(1, height - 5)), window(values.shape[1], column, max(1, room))
    if step.is_vocabulary:
        across[columns] = [scene.model.shown(number) for number in range(columns.start, columns.stop)]
    heat = Heat(
        values[rows, columns],
        down[rows],
        across[columns],
        "unit" if unit else "signed",
        None if seen is None else seen[rows, columns],
        1.0 if unit else largest(values, seen),
        small=small,
        chosen=(row - rows.start, column - columns.start),
    )
    said: list[Piece] = [f"  {place.cell_address(trace)} = ", Figure(float(values[row, column]), "%.7g", "strong")]
    if heat.values.shape != values.shape:
        ends = [
            f"{part.start} to {part.stop - 1} of {size:,}"
            for part, size in zip((rows, columns), values.shape, strict=True)
        ]
        said.append(Span(f"   rows {ends[0]}, columns {ends[1]}", "dim"))
    below: list[Block] = [Line(said, single=True)]
    left = height - len(heat.values) - 8
    if unit and step.is_map and left > 0:
        keys = [k for k in np.argsort(-values[row], kind="stable").tolist() if seen is None or seen[row, k]]
        bars = [Bar(f"{k} {across[k]}", float(values[row, k]), "", "attention") for k in keys[:left]]
        below += [Heading(f"{row} {down[row]}", "looks at"), Bars(bars)]
    return Map(
        _titled(scene, place, "this run − the run before" if compared else ""), heat, rows, columns, tuple(below)
    )


def word_blocks(scene: Scene, place: Place) -> Iterator[Block]:
    """A step without numbers: the tokens, their ids, or what is predicted."""
    step, _ = place.at(scene.trace)
    yield _titled(scene, place)
    if step.name == "next":
        yield from next_blocks(scene, _TOP)
        return
    ids = step.name == "ids"
    yield Line("  " + " ".join(str(one.id) if ids else one.shown for one in scene.trace.tokens))


def _titled(scene: Scene, place: Place, instead: str = "") -> Block:
    step, _ = place.at(scene.trace)
    said = instead or step.title + (f" = {step.formula}" if step.formula else "")
    return Line([Span(str(place.address(scene.trace)), step.role), Span(f"   {said}", "dim")], single=True)


def outline(scene: Scene, place: Place, stops: frozenset[int], against: bool) -> tuple[list[int], Table]:
    """The steps of the present part, the other layers folded; and of each line the row that it stands for.

    Each has its histogram, or ``against`` the run before, how far it moved.
    """
    rows = scene.trace.steps.rows
    here = rows[min(place.row, len(rows) - 1)][1]
    lines: list[int] = []
    names: list[Cell] = []
    marks: list[Cell] = []
    bars: list[Cell] = []
    for row, (step, layer) in enumerate(rows):
        if layer is not None and layer != rows[row - 1][1]:
            lines.append(row)
            marks.append("")
            names.append(Span(f"{'▾' if layer == here else '▸'} L{layer}", "strong" if layer == here else ""))
            bars.append("")
        if layer in (None, here):
            lines.append(row)
            marks.append(Span(("▶" if row == place.row else " ") + ("●" if row in stops else ""), "strong"))
            names.append(Span(("  " if layer is not None else "") + step.name, step.role))
            bars.append(_moved_by(scene.change(row)) if against else _bars(scene.histogram(row)))
    return lines, Table([Column("", marks), Column("", names, shrink=8), Column("", bars)], header=False)


def _bars(histogram: tuple[int, ...]) -> Cell:
    return Histogram(histogram) if histogram else ""


def _moved_by(change: float) -> Cell:
    return (
        ""
        if math.isnan(change)
        else Meter(min(1.0, change), Figure(change, "%.2f" if change >= 0.005 or not change else "%.0e"), "bad")
    )


def head_order(scene: Scene, place: Place, by: str) -> list[tuple[int, float]]:
    """The heads of the present layer, the largest measure first; none outside the layers."""
    _, layer = place.at(scene.trace)
    if layer is None:
        return []
    return sorted(enumerate(scene.measured(by, layer)), key=lambda one: -one[1])


def head_blocks(scene: Scene, place: Place, by: str, most: int) -> Iterator[Block]:
    """A bar for each head of the layer."""
    order = head_order(scene, place, by)
    yield Line([Span("heads", "attention"), Span(f"   by {by}; s sorts by another measure", "dim")], single=True)
    if not order:
        yield Line(Span("  outside the layers", "dim"))
        return
    full = max((value for _, value in order), default=0.0) or 1.0
    shown = order[:most]
    _, layer = place.at(scene.trace)
    moved = _moved_heads(scene, by, layer)
    deltas = [Column("Δ", [_delta(moved[head]) for head, _ in shown], "right")] if moved else []
    yield Table(
        [
            Column("", [Span("▶" if head == place.part else "", "strong") for head, _ in shown]),
            Column("", [f"H{head}" for head, _ in shown]),
            Column("", [Meter(max(0.0, value / full), Figure(value, "%.3f"), "attention") for _, value in shown]),
            *deltas,
        ],
        header=bool(moved),
    )


def _moved_heads(scene: Scene, by: str, layer: int | None) -> list[float]:
    """By how much the measure of each head of a layer is larger than in the run before; empty without one like it."""
    before = scene.before
    if before is None or layer is None or layer >= before.config.n_layers:
        return []
    if before.config.n_heads != scene.trace.config.n_heads:
        return []
    earlier = measure_heads(before, by, [layer])[0].tolist()
    return [now - then for now, then in zip(scene.measured(by, layer), earlier, strict=True)]


def next_blocks(scene: Scene, most: int) -> Iterator[Block]:
    """What the model predicts, and how far each probability moved since the run before."""
    if not scene.predicted:
        yield Line("no prediction: the text has no [MASK], or the model no head")
    for one in scene.predicted[: max(1, most // 6)]:
        after = f"   after {one.shown}" if one.what == "next" else ""
        yield Line([Span(one.title, "output"), Span(after, "dim")], single=True)
        shown = one.top[:most]
        columns = [
            Column("", [Span(likely.shown, "output") for likely in shown], shrink=6),
            Column(
                "",
                [
                    Figure(likely.logit, "%.3f")
                    if likely.probability is None
                    else Meter(likely.probability, Figure(likely.probability, "%.3f"), "output")
                    for likely in shown
                ],
            ),
        ]
        moved = _moved(scene, one)
        if moved:
            columns.append(Column("Δ", [_delta(change) for change in moved[: len(shown)]], "right"))
        yield Table(columns, header=bool(moved))


def _delta(change: float) -> Cell:
    return Span("–", "dim") if abs(change) < 5e-4 else Figure(change, "%+.3f", "k" if change > 0 else "q")


def _moved(scene: Scene, one: Prediction) -> list[float]:
    """By how much each probability is larger than in the run before; empty where there is none to compare."""
    if scene.before is None:
        return []
    trace = scene.before
    shares, same = trace.steps.probabilities, trace.config.vocab_size == scene.model.config.vocab_size
    position = len(trace.tokens) - 1 if one.what == "next" else one.position
    if shares is None or shares.operation is None or not same or not one.of_tokens or position >= len(trace.tokens):
        return []
    known = shares.operation.forward(trace.logits_at(position))
    return [(likely.probability or 0.0) - float(known[likely.id]) for likely in one.top]


def text_line(scene: Scene, place: Place, note: Words) -> Line:
    """The tokens, those of the chosen row and column marked, and what is to be said at the end."""
    trace = scene.trace
    rows, columns = _chosen(trace, place)
    words: list[Piece] = []
    for number, token in enumerate(trace.tokens):
        if number:
            words.append(Span("│", "dim"))
        role = "q" if number == rows else "k" if number == columns else ""
        words.append(Span(f"[{token.shown}]" if number == rows else token.shown, role))
    words.append("   ")
    words += [note] if isinstance(note, str | Span) else note
    return Line(words, single=True)


def _chosen(trace: Trace, place: Place) -> tuple[int, int]:
    """The positions of the tokens that the chosen cell belongs to; −1 for none."""
    found = matrix(trace, place)
    if found is None:
        return -1, -1
    step, _ = place.at(trace)
    row, column = place.inside(found.shape[0], found.shape[1])
    if step.is_vocabulary:
        row = trace.recording.logit_rows[row]
    return (row if len(step.axes[-2:]) == 2 else -1), (column if step.axes[-1] == "key" else -1)
