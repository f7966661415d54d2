"""The panes of lists: the text, the steps, the heads of a layer, the prediction; each beside the run before."""

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from torch import Tensor

from tinytf.look.heads import measure_heads
from tinytf.look.prediction import Likely, Prediction
from tinytf.trace.trace import Trace
from tinytf_cli.explore.place import Place, matrix
from tinytf_cli.explore.scene import Look, Scene
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Histogram, Line, Meter, Piece, Span, Table


def outline(look: Look) -> tuple[list[int], Table]:
    """The steps of the present part, the other layers folded; and of each line the row that it stands for.

    Each has its histogram, or, against the run before, how far it moved.
    """
    scene, place = look.scene, look.place
    rows = scene.trace.steps.rows
    here = rows[min(place.row, len(rows) - 1)][1]
    marked: dict[int, str] = {}
    for letter, mark in look.marks.items():
        marked[mark.row] = marked.get(mark.row, "") + letter
    lines: list[int] = []
    names: list[Cell] = []
    marks: list[Cell] = []
    bars: list[Cell] = []
    for row, (step, layer) in enumerate(rows):
        if layer is not None and layer != rows[row - 1][1]:
            within = [at for at in range(row, len(rows)) if rows[at][1] == layer] if layer != here else []
            lines.append(row)
            names.append(Span(f"{'▾' if layer == here else '▸'} L{layer}", "strong" if layer == here else ""))
            marks.append(_flags(look, within, marked))
            bars.append("")
        if layer in (None, here):
            lines.append(row)
            names.append(Span(("  " if layer is not None else "") + step.name, step.role))
            marks.append(_flags(look, [row], marked))
            bars.append(_moved_by(scene.change(row)) if look.against else _bars(scene.histogram(row)))
    return lines, Table([Column("", marks), Column("", names, shrink=8), Column("", bars)], header=False)


def _flags(look: Look, rows: Sequence[int], marked: Mapping[int, str]) -> Cell:
    """Whether some rows are the present one, whether the session stops there, and the letters of their marks."""
    here, stop = look.place.row in rows, not look.stops.isdisjoint(rows)
    letters = "".join(marked.get(row, "") for row in rows)
    return [Span("▶" if here else " ", "strong"), Span("●" if stop else "", "bad"), Span(letters[:2], "k")]


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


def head_blocks(look: Look, most: int) -> Iterator[Block]:
    """A bar for each head of the layer."""
    scene, place, by = look.scene, look.place, look.by
    order = head_order(scene, place, by)
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
    """What the model predicts, and how far each probability moved since the run before.

    Below stands what was the most probable then, where it is no longer among the others.
    """
    if not scene.predicted:
        yield Line("  no prediction: the text has no [MASK], or the model no head")
    predicted = scene.predicted[: max(1, most // 3)]
    most = most // max(1, len(predicted)) - (len(predicted) > 1)
    for one in predicted:
        if len(predicted) > 1:
            yield Line(Span(one.title, "output"), single=True)
        before, shown = _shares_before(scene, one), [*one.top[:most]]
        if before is not None and (first := int(before.argmax())) not in [likely.id for likely in shown]:
            now = _shares(scene.trace, one.position)
            share = 0.0 if now is None else float(now[first])
            shown[most - 1 :] = [Likely(scene.model.shown(first), first, share, math.nan)]
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
        if before is not None:
            moved = [_delta((likely.probability or 0.0) - float(before[likely.id])) for likely in shown]
            columns.append(Column("Δ", moved, "right"))
        yield Table(columns, header=before is not None)


def _delta(change: float) -> Cell:
    return Span("–", "dim") if abs(change) < 5e-4 else Figure(change, "%+.3f", "k" if change > 0 else "q")


def _shares(trace: Trace, position: int) -> Tensor | None:
    """The probability of every token at a position, (V,); None for a model without."""
    shares = trace.steps.probabilities
    return None if shares is None or shares.operation is None else shares.operation.forward(trace.logits_at(position))


def _shares_before(scene: Scene, one: Prediction) -> Tensor | None:
    """The probabilities in the run before; None where there are none to compare."""
    trace = scene.before
    if trace is None or not one.of_tokens or trace.config.vocab_size != scene.model.config.vocab_size:
        return None
    position = len(trace.tokens) - 1 if one.what == "next" else one.position
    return _shares(trace, position) if position < len(trace.tokens) else None


def text_line(look: Look, width: int, kept: int, note: Sequence[Piece]) -> Line:
    """The tokens around the chosen one, it and that of the column marked; a note in what is kept at the end."""
    tokens = look.scene.trace.tokens
    row, column = chosen_tokens(look)
    spans, _ = token_spans(look, width - kept)
    words: list[Piece] = [Span("…", "dim")] if spans.start else []
    for number in range(spans.start, spans.stop):
        if number > spans.start:
            words.append(Span("│", "dim"))
        shown = tokens[number].shown
        words.append(Span(f"[{shown}]", "q") if number == row else Span(shown, "k" if number == column else ""))
    if spans.stop < len(tokens):
        words.append(Span("…", "dim"))
    taken = sum(cell_len(one.text) for one in (*words, *note) if isinstance(one, Span))
    return Line([*words, " " * max(2, width - taken), *note], single=True)


def token_spans(look: Look, width: int) -> tuple[range, list[int]]:
    """The tokens around the chosen one that fit a line, and the column at which each of them ends."""
    row, _ = chosen_tokens(look)
    widths = [cell_len(token.shown) + 1 + 2 * (at == row) for at, token in enumerate(look.scene.trace.tokens)]
    first, last, room = max(row, 0), max(row, 0) + 1, width - 2 - widths[max(row, 0)]
    while room > 0 and (first > 0 or last < len(widths)):
        back = first > 0 and (last == len(widths) or row - first <= last - row)
        room -= widths[first - 1] if back else widths[last]
        if room > 0:
            first, last = (first - 1, last) if back else (first, last + 1)
    ends = [int(first > 0) + sum(widths[first : at + 1]) for at in range(first, last)]
    return range(first, last), ends


def chosen_tokens(look: Look) -> tuple[int, int]:
    """The positions of the tokens that the chosen cell belongs to; −1 for none."""
    trace, place = look.scene.trace, look.place
    found = matrix(trace, place)
    if found is None:
        return -1, -1
    step, _ = place.at(trace)
    row, column = place.inside(found.shape[0], found.shape[1])
    if step.is_vocabulary:
        row = trace.recording.logit_rows[row]
    return (row if len(step.axes[-2:]) == 2 else -1), (column if step.axes[-1] == "key" else -1)
