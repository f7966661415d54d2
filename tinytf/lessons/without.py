"""A lesson that takes scaling, mask and positions away, one at a time, and looks at what is left."""

from dataclasses import dataclass

import torch

from tinytf.lessons.lesson import Figure, Lesson, LiveTable, figure
from tinytf.lessons.live import Live
from tinytf.model.without import left_out, removable
from tinytf.steps.operations.softmax import probabilities
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

_IN_WORDS = {"scaling": "the scaling", "mask": "the mask", "positions": "the positions"}


@dataclass(frozen=True)
class _Run:
    """One run of the text: how much of the prediction is left, what is predicted, and the trace."""

    name: str
    kept: float
    now: str
    trace: Trace


def without(live: Live) -> Lesson:
    parts, row = removable(live.config), live.row
    whole = _run(live, "as it is", live.trace)
    runs = [whole]
    for part in parts:
        model = left_out(live.model.transformer, [part])
        runs.append(_run(live, f"without {part}", record(model, live.encoding, live.model.tokenizer.mask_id)))
    worst = min(runs, key=lambda run: run.kept)
    *others, last = (_IN_WORDS[part] for part in parts)
    said = f"{', '.join(others)} or {last}" if others else last
    if live.has_head:
        measure, what = f"p({whole.now})", f"{whole.now} has probability {figure(whole.kept)} at token {live.open}"
        asked = f"Without which does {whole.now} lose most?"
    else:
        measure, what = "cosine", f"the last vector of token {live.here} has cosine 1 with itself"
        asked = "Without which does it turn furthest from what it was?"
    names = {run.name: run.name for run in runs[1:]} | {whole.name: "none of them"}
    right = names.pop(worst.name)
    question = live.ask("without").words(
        f"As it is, {what}. Leave out {said}, in every layer. {asked}",
        right,
        names.values(),
        f"{right[0].upper()}{right[1:]}: {figure(worst.kept)}. The weights are the same; they relied on what is gone.",
        (worst.kept,),
    )
    titles = (
        "run",
        measure,
        *(["likeliest"] if live.has_head else []),
        f"L{live.layer}H0, largest weight of {live.token(row)}",
    )
    rows: list[tuple[Figure, ...]] = []
    for run in runs:
        largest = float(run.trace[f"L{live.layer}H0.weights[{row}]"].max())
        rows.append((run.name, run.kept, *([run.now] if live.has_head else []), largest))
    return live.lesson(
        "without",
        question,
        LiveTable(titles, tuple(rows[:1]), share=1 if live.has_head else None),
        LiveTable(titles, tuple(rows), share=1 if live.has_head else None),
        revealed_maps=[live.map(run.name.replace("without", "no"), figure(run.kept), run.trace, 0) for run in runs],
        parts=", ".join(parts),
        key=live.strongest(1)[0],
    )


def _run(live: Live, name: str, trace: Trace) -> _Run:
    if not live.has_head:
        was, now = (one.last_hidden[live.here].double() for one in (live.trace, trace))
        return _Run(name, float(torch.cosine_similarity(was, now, dim=0)), "", trace)
    shares = probabilities(trace.logits_at(live.open).double())
    return _Run(name, float(shares[live.likeliest[0]]), live.piece(int(shares.argmax())), trace)
