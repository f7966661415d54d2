"""The list panes: the text, the steps, the heads of a layer and the prediction, compared with the run before."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len
from torch import Tensor

from tinytf.look.heads.measures import measure_heads
from tinytf.look.prediction import Likely, Prediction
from tinytf.trace.trace import Trace
from tinytf_cli.explore.cursor import Cursor, chosen_tokens, first_row
from tinytf_cli.explore.scene import Look, Scene
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Histogram, Line, Meter, Piece, Span, Table


def outline(look: Look) -> tuple[list[int], Table]:
    """The row of each line, and the table of steps: those of the present layer, with the other layers folded.

    Each step has its histogram, and each layer the token that the lens reads after it, at the chosen token, with its
    probability; or, when comparing, their change since the run before.
    """
    scene, cursor = look.scene, look.cursor
    readings = [layer.read for layer in look.overview.layers] if look.overview else []
    rows = scene.trace.steps.rows
    here = rows[min(cursor.row, len(rows) - 1)][1]
    letters: dict[int, str] = {}
    for letter, marked_cursor in look.marks.items():
        letters[marked_cursor.row] = letters.get(marked_cursor.row, "") + letter
    lines: list[int] = []
    names: list[Cell] = []
    marks: list[Cell] = []
    bars: list[Cell] = []
    for row, (step, layer) in enumerate(rows):
        if layer is not None and layer != rows[row - 1][1]:
            of_layer = [n for n in range(row, len(rows)) if rows[n][1] == layer]
            layer_rows = of_layer if layer != here else []
            lines.append(row)
            title = Span(f"{'▾' if layer == here else '▸'} L{layer} ", "strong" if layer == here else "")
            read = readings[layer] if readings else None
            names.append([title, Span(read.token, "output")] if read else title)
            marks.append(_flags(look, layer_rows, letters))
            if look.comparing:
                bars.append(_change_meter(scene.change(of_layer[-1])))
            else:
                bars.append(Meter(read.probability, Figure(read.probability, "%.3f"), "output") if read else "")
        if layer in (None, here):
            lines.append(row)
            names.append(Span(("  " if layer is not None else "") + step.name, step.role))
            marks.append(_flags(look, [row], letters))
            bars.append(_change_meter(scene.change(row)) if look.comparing else _histogram_cell(scene.histogram(row)))
    narrow = [replace(bar, shown="") if isinstance(bar, Meter) else bar for bar in bars]
    return lines, Table([Column("", marks), Column("", names, shrink=8), Column("", bars, narrow=narrow)], header=False)


def _flags(look: Look, rows: Sequence[int], marks: Mapping[int, str]) -> Cell:
    """The flags of some rows: the present row, stops of the session, and letters of marks."""
    is_present, stops = look.cursor.row in rows, not look.stops.isdisjoint(rows)
    letters = "".join(marks.get(row, "") for row in rows)
    return [Span("▶" if is_present else " ", "strong"), Span("●" if stops else "", "bad"), Span(letters[:2], "k")]


def _histogram_cell(histogram: tuple[int, ...]) -> Cell:
    return Histogram(histogram) if histogram else ""


def _change_meter(change: float) -> Cell:
    return (
        ""
        if math.isnan(change)
        else Meter(min(1.0, change), Figure(change, "%.2f" if change >= 0.005 or not change else "%.0e"), "bad")
    )


def head_order(scene: Scene, cursor: Cursor, measure: str) -> list[tuple[int, float]]:
    """The heads of the present layer with their measure, largest first; empty outside the layers."""
    _, layer = cursor.at(scene.trace)
    if layer is None:
        return []
    return sorted(enumerate(scene.head_measures(measure, layer)), key=lambda pair: -pair[1])


def head_list(look: Look, limit: int) -> tuple[list[Cursor | None], list[Block]]:
    """The cursor of each line, and a bar for each head of the layer; below, the heads that add most to the prediction.

    The latter are those of all layers, by the amount that they add to the logit of its best token.
    """
    scene, cursor, measure = look.scene, look.cursor, look.measure
    order = head_order(scene, cursor, measure)
    shown = order[: limit - 1]
    changes = _head_changes(scene, measure, cursor.at(scene.trace)[1]) if order else []
    cursors: list[Cursor | None] = [replace(cursor, part=head) for head, _ in shown]
    blocks: list[Block] = [] if order else [Line(Span("  outside the layers", "dim"))]
    if order:
        largest = max(value for _, value in order) or 1.0
        change_column = [Column("Δ", [_change_figure(changes[head]) for head, _ in shown], "right")] if changes else []
        columns = [
            Column("", [Span("▶" if head == cursor.part else "", "strong") for head, _ in shown]),
            Column("", [f"H{head}" for head, _ in shown]),
            Column("", [Meter(max(0.0, value / largest), Figure(value, "%.3f"), "attention") for _, value in shown]),
            *change_column,
        ]
        blocks.append(Table(columns, header=bool(changes)))
    cursors[:0] = [None] * (not order or bool(changes))
    glance, room = look.overview, limit - len(cursors) - 2
    if glance is None or glance.predicted is None or room < 1:
        return cursors, blocks
    best = glance.ranked[:room]
    largest = max(abs(amount) for _, _, amount in glance.ranked) or 1.0
    meters = [Meter(max(0.0, amount / largest), Figure(amount, "%+.2f"), "output") for _, _, amount in best]
    blocks += [
        Line(""),
        Line([Span("  each adds to ", "dim"), Span(glance.predicted, "output")], single=True),
        Table([Column("", [f"L{layer}H{head}" for layer, head, _ in best]), Column("", meters)], header=False),
    ]
    rows = [first_row(scene.trace, layer) for layer, _, _ in best]
    cursors += [
        None,
        None,
        *(replace(cursor, row=row, part=head) for row, (_, head, _) in zip(rows, best, strict=True)),
    ]
    return cursors, blocks


def _head_changes(scene: Scene, measure: str, layer: int | None) -> list[float]:
    """The change of a measure for each head of a layer since the run before; empty if that has no such heads."""
    previous = scene.previous
    if previous is None or layer is None or layer >= previous.config.n_layers:
        return []
    if previous.config.n_heads != scene.trace.config.n_heads:
        return []
    earlier = measure_heads(previous, measure, [layer])[0].tolist()
    return [now - then for now, then in zip(scene.head_measures(measure, layer), earlier, strict=True)]


def next_blocks(scene: Scene, predictions: Sequence[Prediction], limit: int) -> Iterator[Block]:
    """Some predictions of the model, with the change of each probability since the run before.

    The last row is the most probable token of that run, if it is no longer among the rest.
    """
    if not predictions:
        yield Line("  no prediction: the text has no [MASK], or the model no head")
    predicted = predictions[: max(1, limit // 3)]
    limit = limit // max(1, len(predicted)) - (len(predicted) > 1)
    for prediction in predicted:
        if len(predicted) > 1:
            yield Line(Span(prediction.title, "output"), single=True)
        previous, listed = _previous_probabilities(scene, prediction), [*prediction.top[:limit]]
        if previous is not None and (top_id := int(previous.argmax())) not in [likely.id for likely in listed]:
            current = _probabilities(scene.trace, prediction.position)
            probability = 0.0 if current is None else float(current[top_id])
            listed[limit - 1 :] = [Likely(scene.model.shown(top_id), top_id, probability, math.nan)]
        columns = [
            Column("", [Span(likely.shown, "output") for likely in listed], shrink=6),
            Column(
                "",
                [
                    Figure(likely.logit, "%.3f")
                    if likely.probability is None
                    else Meter(likely.probability, Figure(likely.probability, "%.3f"), "output")
                    for likely in listed
                ],
            ),
        ]
        if previous is not None:
            changes = [_change_figure((likely.probability or 0.0) - float(previous[likely.id])) for likely in listed]
            columns.append(Column("Δ", changes, "right"))
        yield Table(columns, header=previous is not None)


def _change_figure(change: float) -> Cell:
    return Span("–", "dim") if abs(change) < 5e-4 else Figure(change, "%+.3f", "k" if change > 0 else "q")


def _probabilities(trace: Trace, position: int) -> Tensor | None:
    """The probability of every token at a position, (V,); None if the model gives none."""
    step = trace.steps.probabilities
    return None if step is None or step.operation is None else step.operation.forward(trace.logits_at(position))


def _previous_probabilities(scene: Scene, prediction: Prediction) -> Tensor | None:
    """The probabilities of a prediction in the run before; None if not comparable."""
    trace = scene.previous
    if trace is None or not prediction.of_tokens or trace.config.vocab_size != scene.model.config.vocab_size:
        return None
    was_last = prediction.what == "next" and prediction.position == len(scene.trace.tokens) - 1
    position = len(trace.tokens) - 1 if was_last else prediction.position
    return _probabilities(trace, position) if position < len(trace.tokens) else None


def text_line(look: Look, width: int, reserved: int, note: Sequence[Piece]) -> Line:
    """The tokens around the chosen one, marking it and the token of the column; ``note`` fills the end."""
    tokens = look.scene.trace.tokens
    row, column = chosen_tokens(look.scene.trace, look.cursor)
    spans, _ = token_spans(look, width - reserved)
    words: list[Piece] = [Span("…", "dim")] if spans.start else []
    for position in range(spans.start, spans.stop):
        if position > spans.start:
            words.append(Span("│", "dim"))
        shown = tokens[position].shown
        words.append(Span(f"[{shown}]", "q") if position == row else Span(shown, "k" if position == column else ""))
    if spans.stop < len(tokens):
        words.append(Span("…", "dim"))
    used = sum(cell_len(span.text) for span in (*words, *note) if isinstance(span, Span))
    return Line([*words, " " * max(2, width - used), *note], single=True)


def token_spans(look: Look, width: int) -> tuple[range, list[int]]:
    """The positions of the tokens that fit a line, around the chosen one, and the column where each ends."""
    row, _ = chosen_tokens(look.scene.trace, look.cursor)
    widths = [cell_len(token.shown) + 1 + 2 * (n == row) for n, token in enumerate(look.scene.trace.tokens)]
    first, last, room = max(row, 0), max(row, 0) + 1, width - 2 - widths[max(row, 0)]
    while room > 0 and (first > 0 or last < len(widths)):
        leftwards = first > 0 and (last == len(widths) or row - first <= last - row)
        room -= widths[first - 1] if leftwards else widths[last]
        if room > 0:
            first, last = (first - 1, last) if leftwards else (first, last + 1)
    ends = [int(first > 0) + sum(widths[first : n + 1]) for n in range(first, last)]
    return range(first, last), ends
