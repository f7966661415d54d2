"""The lesson that leaves out scaling, mask and positions, one at a time, and shows what that changes."""

from dataclasses import dataclass

import torch

from tinytf.learn.lesson import Figure, Lesson, LiveTable, figure
from tinytf.learn.live import Live
from tinytf.model.without import left_out, removable
from tinytf.steps.operations.softmax import probabilities
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

_IN_WORDS = {"scaling": "the scaling", "mask": "the mask", "positions": "the positions"}


@dataclass(frozen=True)
class _Run:
    """One run of the text; ``likeliest`` is the token that it predicts.

    ``score`` is the probability of the originally predicted token or, in a model without a head, the cosine of the last
    vector with the original one.
    """

    name: str
    score: float
    likeliest: str
    trace: Trace


def without(live: Live) -> Lesson:
    parts, row = removable(live.config), live.row
    original = _run(live, "as it is", live.trace)
    runs = [original]
    for part in parts:
        model = left_out(live.model.transformer, [part])
        runs.append(_run(live, f"without {part}", record(model, live.encoding, live.model.tokenizer.mask_id)))
    worst = min(runs, key=lambda run: run.score)
    *rest, last = (_IN_WORDS[part] for part in parts)
    choices = f"{', '.join(rest)} or {last}, one at a time" if rest else last
    if live.has_head:
        measure, state = (
            f"p({original.likeliest})",
            f"{original.likeliest} has probability {figure(original.score)} at token {live.predicted_at}",
        )
        prompt = f"Which of these costs {original.likeliest} the most probability?"
    else:
        measure, state = "cosine", f"the last vector of token {live.here} has cosine 1 with itself"
        prompt = "Which of these turns it furthest from where it was?"
    names = {run.name: run.name for run in runs[1:]} | {original.name: "none of them"}
    right = names[worst.name]
    others = [run for run in [*runs[1:], original] if run is not worst]
    lowest = f"{figure(worst.score)} {worst.name}"
    question = live.ask("without").words(
        f"As it is, {state}. Now leave out {choices}, in every layer. {prompt}",
        right,
        [(names[run.name], f"{measure} is {figure(run.score)} {run.name}, and {lowest}.") for run in others],
        f"{right[0].upper()}{right[1:]}: {figure(worst.score)}. The weights are the same; they relied on what is gone.",
        (worst.score,),
    )
    titles = (
        "run",
        measure,
        *(["likeliest"] if live.has_head else []),
        f"L{live.layer}H{live.head}, largest weight of {live.token(row)}",
    )
    rows: list[tuple[Figure, ...]] = []
    for run in runs:
        largest = float(run.trace[f"L{live.layer}H{live.head}.weights[{row}]"].max())
        rows.append((run.name, run.score, *([run.likeliest] if live.has_head else []), largest))
    return live.lesson(
        "without",
        question,
        LiveTable(titles, tuple(rows[:1]), share=1 if live.has_head else None),
        LiveTable(titles, tuple(rows), share=1 if live.has_head else None),
        revealed_maps=[
            live.map(run.name.replace("without", "no"), figure(run.score), run.trace, live.head) for run in runs
        ],
        parts=", ".join(parts),
        key=live.strongest_keys(1)[0],
    )


def _run(live: Live, name: str, trace: Trace) -> _Run:
    if not live.has_head:
        original, vector = (t.last_hidden[live.here].double() for t in (live.trace, trace))
        return _Run(name, float(torch.cosine_similarity(original, vector, dim=0)), "", trace)
    probs = probabilities(trace.logits_at(live.predicted_at).double())
    return _Run(name, float(probs[live.likeliest[0]]), live.piece(int(probs.argmax())), trace)
