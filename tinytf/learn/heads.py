"""Lessons about the heads: what each looks at, and how they are joined."""

from collections.abc import Sequence
from dataclasses import replace

from tinytf.learn.lesson import Lesson, LiveTable, Question, figure
from tinytf.learn.live import Live
from tinytf.look.heads.kinds import LABELS
from tinytf.look.heads.measures import measure_heads

_TARGETS = ("previous", "first", "self")
"""Measures of a head that are shares of its weight."""
_MOST_HEADS = 4


def heads(live: Live) -> Lesson:
    config = live.config.at(live.layer)
    count, groups = config.n_heads, config.n_kv_heads
    measures = {
        measure: measure_heads(live.trace, measure, [live.layer])[0].nan_to_num().tolist()
        for measure in (*_TARGETS, "entropy")
    }
    favourites = [
        max(_TARGETS, key=lambda measure: measures[measure][head]) for head in range(count)
    ]  # the measure in which each head is strongest
    drawn = sorted(sorted(range(count), key=lambda head: -measures[favourites[head]][head])[:_MOST_HEADS])

    def looks(head: int) -> str:
        share = measures[favourites[head]][head]
        return f"{favourites[head]} {share:.2f}" if share >= 0.5 else f"many, {measures['entropy'][head]:.2f} nats"

    shared = ""
    if groups != count:
        shared = f" Keys and values have only {groups} heads here, each serving {config.heads_per_kv} query heads."
    if count > len(drawn):
        shared += f" Of {count} heads, the {len(drawn)} that look most at one place are drawn."
    core = [step.operation for step in live.trace.steps.in_layer(live.layer) if step.core]
    fused = all(operation.fused for operation in core) and not (
        config.window or config.chunk or config.attention_divisor
    )
    question, induction_map = _which_head(live, drawn, measures["previous"]), []
    if (found := _induction(live)) is not None:
        share, layer, head = found
        induction_map = [live.map(f"L{layer}H{head}", f"induction {share:.2f}", live.trace, head, layer)]
        sentence = (
            f"From the last {live.token(live.here)}, L{layer}H{head} gives {figure(share)} to what followed it before, "
            "as an induction head does to repeat it."
        )
        question = replace(question, reveal=f"{question.reveal} {sentence}")
    return live.lesson(
        "heads",
        question,
        variant="" if fused else "stepwise",
        maps=[live.map(f"head {head}", f"block {live.layer}", live.trace, head) for head in drawn],
        revealed_maps=[live.map(f"head {head}", looks(head), live.trace, head) for head in drawn] + induction_map,
        shared=shared,
        options=(", is_causal=True" if config.causal else "") + (", enable_gqa=True" if groups != count else ""),
        repeated=".repeat_interleave(H // G, 1)" if groups != count else "",
        last=count - 1,
        drawn=drawn[0],
        key=max(live.visible_keys(live.here), key=lambda key: live.at(f"L0H{drawn[0]}.weights[{live.here},{key}]")),
    )


def _induction(live: Live) -> tuple[float, int, int] | None:
    """The largest share that a head (layer, head) gives, at the last token, to what followed its earlier copies.

    None where no head gives the majority of its weight, from which on it counts as an induction head.
    """
    ids, here, trace = live.encoding.ids, live.here, live.trace
    followers = [position + 1 for position in range(here - 1) if ids[position] == ids[here]]
    if not followers or not live.config.causal:
        return None
    shares = [
        (float(share), layer, head)
        for layer in trace.steps.attention_layers
        for head, share in enumerate(trace.step(trace.steps.weights, layer)[:, here, followers].sum(-1))
    ]
    best = max(shares)
    return best if best[0] >= next(label.least for label in LABELS if label.name == "induction") else None


def _which_head(live: Live, drawn: Sequence[int], previous: Sequence[float]) -> Question:
    """Ask which head looks most at the token before; with nothing to choose from, how wide a head is."""
    best = max(drawn, key=lambda head: previous[head])
    if len(drawn) == 1 or live.length == 1:
        width, count = live.config.d_head, live.config.n_heads
        total = width * count
        return live.ask("heads").number(
            f"A query is {total} numbers in {count} head{'s' if count > 1 else ''}. How many of them belong to one "
            "head?",
            width,
            [
                (2 * total, f"That is more than all {total}."),
                (total + count, f"That is more than all {total}."),
                (width + 1, f"With that many in each head, there would be {(width + 1) * count}."),
                (total * count, "That multiplies by the heads, and the query is divided among them."),
            ],
            f"{total} / {count} = {width}.",
        )
    return live.ask("heads").words(
        "Each map has queries down and keys across. Which of these heads looks most at the token before?",
        f"head {best}",
        [
            (f"head {head}", f"Only {figure(previous[head])} of its weight lies there.")
            for head in drawn
            if head != best
        ],
        f"Head {best}: {figure(previous[best])} of its weight lies on the token before, left of the diagonal.",
        (best,),
    )


def concat(live: Live) -> Lesson:
    config, here, ask = live.config, live.here, live.ask("concat")
    count, width = config.n_heads, config.value_width
    head, dimension = ask.random.randrange(count), ask.random.randrange(width)
    column = head * width + dimension
    columns = sorted({0, width - 1, column, width % (count * width), count * width - 1})
    values = live.at(f"L0.concat[{here}]")
    wrong = [
        (count, column % count), (width, (head + 1) % count), (count * width, 0), (count, column // count),
        (config.d_model + count, head), (2 * width, head // 2), (2 * width, head + 1),
    ]  # fmt: skip

    def why_not(d_k: int, h: int) -> str:
        if d_k != width:
            return f"{count} head{'s' if count > 1 else ''} of {d_k} would have {count * d_k} columns."
        return f"Head {h} has columns {h * width} to {(h + 1) * width - 1}."

    question = ask.words(
        f"{count * width} columns hold {count} head{'s' if count > 1 else ''} side by side, counted from 0. So what is "
        f"d_k, the width of one head, and which head does column {column}, here {figure(values[column])}, come from?",
        f"d_k {width}, head {head}",
        [(f"d_k {w}, head {h}", why_not(w, h)) for w, h in wrong],
        f"{count * width} / {count} = {width}, and {column} = {head} × {width} + {dimension}. W_O then mixes all "
        f"{count * width} columns into {config.d_model}.",
        (width, head),
    )
    rows = [(f"d{n}", float(values[n])) for n in columns]
    revealed = [(*row, f"{n // width}, d{n % width}") for row, n in zip(rows, columns, strict=True)]
    return live.lesson(
        "concat",
        question,
        LiveTable(("column", f"concat of {live.token(here)}"), tuple(rows)),
        LiveTable(("column", f"concat of {live.token(here)}", "head"), tuple(revealed)),
    )
