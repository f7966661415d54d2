"""Lessons about attention, from the projections to the heads side by side."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinytf.lessons.lesson import Lesson, LiveTable, Question, bracketed, figure, figures
from tinytf.lessons.live import Live
from tinytf.look.heads import measure_heads

_TEXTS = 32
"""Texts in the batch of the question about shapes."""


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _keys(live: Live, keys: Sequence[int]) -> str:
    *others, last = (f"{key} {live.token(key)}" for key in keys)
    return f"keys {', '.join(others)} and {last}" if others else f"key {last}"


def qkv(live: Live) -> Lesson:
    config, length = live.config, live.length
    heads, groups, width = config.n_heads, config.n_kv_heads, config.d_head
    shared = f" Here {config.heads_per_kv} query heads share one key and value head." if groups != heads else ""

    def shape(*sizes: int) -> str:
        return ("×" if shared else " × ").join(map(str, sizes))

    def said(q: str, kv: str) -> str:
        return f"Q {q}, K and V {kv}" if shared else q

    what = "the shape of Q, and of K and V" if shared else "the shape of Q, of K and of V"
    if config.value_width != width:
        what = "the shape of Q and of K"
    query, key = shape(_TEXTS, heads, length, width), shape(_TEXTS, groups, length, width)
    wrong = [said(query, query), said(key, query), said(query, shape(_TEXTS, heads, length, max(1, width // 2)))]
    for sizes in ((_TEXTS, heads, length, config.d_model), (_TEXTS, heads, length, length), (heads, length, width)):
        wrong.append(said(shape(*sizes), shape(*sizes)))
    question = live.ask("qkv").words(
        f"{_TEXTS} texts of {_tokens(length)} each go through this model: d_model {config.d_model}, {heads} heads of "
        f"{width}. What is {what}, heads before tokens?",
        said(query, key),
        wrong,
        f"A vector of {width} for each token, in each head, of each text.{shared} "
        f"W_Q computes {heads} × {width} = {heads * width:,} numbers of a token at once.",
        (_TEXTS, heads, length, width),
    )
    read = live.steps["q"].formula.partition("·")[0]
    turned = [f"L0H0.{name}[{live.here}]" for name in ("q_rot", "k_rot") if name in live.steps]
    return live.lesson(
        "qkv", question, also=turned, read=read, shared=shared, biases=", each + b" if config.qkv_bias else ""
    )


def scores(live: Live) -> Lesson:
    row, found = live.row, live.at("L0H0.scores")[live.row]
    key = max(live.seen(row), key=lambda k: abs(found[k]))
    score = float(found[key])
    query_name, key_name = live.steps["scores"].inputs[:2]
    products = live.at(f"L0H0.{query_name}[{row}]") * live.at(f"L0H0.{key_name}[{key}]")
    question = live.ask("scores").number(
        f"Query {row}, {live.token(row)}, has score {figure(score)} with key {key}, {live.token(key)}. "
        "What would it be if every number of that query were twice as large?",
        2 * score,
        [4 * score, score, score + 2, score * math.sqrt(2)],
        f"Each of the {live.config.d_head} products doubles, so their sum does: {figure(2 * score)}. "
        f"The largest product here is {figure(float(products[np.abs(products).argmax()]))}.",
    )
    rotated = live.config.positions == "rotary"
    turned = " RoPE has already rotated both by their positions." if rotated else ""
    return live.lesson("scores", question, key=key, turned=turned)


def scaling(live: Live) -> Lesson:
    row, width, config = live.row, live.config.d_head, live.config.at(live.layer)
    keys, divisor, own = live.strongest(3), config.score_divisor, config.attention_divisor
    taken = live.steps["scaled"].inputs[0]
    before = live.at(f"L0H0.{taken}")[row, keys]
    said = "q·kᵀ" if taken == "scores" else taken
    divides = f"this model divides by {figure(own)}" if own else f"d_head is {width}"
    root = "" if own else f"{config.score_divisor_words} = "
    question = live.ask("scaling").vector(
        f"{said} of query {row}, {live.token(row)}, is {figures(before)} for {_keys(live, keys)}, and {divides}. "
        "What are the values after scaling?",
        before / divisor,
        [before / width, before * divisor, before, before / math.log2(max(4, width))],
        f"{root}{figure(divisor)}, and every score is divided by it: {figures(before / divisor)}.",
    )
    return live.lesson(
        "scaling", question, key=keys[-1], taken=taken, divisor=f"{own:g}" if own else "math.sqrt(d_head)"
    )


def _attended(places: range) -> str:
    if not places:
        return "to no position"
    return f"only to position {places[0]}" if len(places) == 1 else f"to positions {places[0]} to {places[-1]}"


def mask(live: Live) -> Lesson:
    place, count, config = min(2, live.length - 1), live.length, live.config.at(live.layer)
    seen, asked = live.seen(place), f"Of {_tokens(live.length)}, counted from 0: what does position {place} attend to"
    others = [
        range(place + 1), range(count), range(place, count), range(place), range(place, place + 1), range(0),
        range(place + 2),
    ]  # fmt: skip
    words: dict[str, Any]
    if config.causal:
        hidden = sum(count - len(live.seen(query)) for query in range(count))
        text = f"{asked} with the causal mask?"
        reveal = f"To itself and what came before: {hidden:,} of {count**2:,} scores are −∞ in every head."
        hides, window = "torch.ones(T, T).triu(1).bool()", ""
        if config.window:
            hides = f"~torch.ones(T, T).tril().triu(1 - {config.window}).bool()"
            window = f" Here a token sees only the last {config.window:,}."
        words = {"taken": live.steps["masked"].inputs[0], "hides": hides, "window": window}
    else:
        text = f"{asked} in this encoder?"
        reveal = f"To all of them: none of the {count**2:,} scores is hidden, and the text has no padding."
        if config.window:
            hidden = sum(count - len(live.seen(query)) for query in range(count))
            reveal = (
                f"To what is less than {config.window:,} away: {hidden:,} of {count**2:,} scores are −∞ in every head."
            )
        trained = "training hides words as [MASK] instead, and asks for them"
        instead = trained if live.has_head else "its output is read as a whole, not token by token"
        words = {
            "taken": live.steps["masked" if config.window else "weights"].inputs[0],
            "instead": instead,
            "window": config.window,
        }
    question = live.ask("mask").words(text, _attended(seen), map(_attended, others), reveal, seen)
    return live.lesson(
        "mask",
        question,
        variant="" if config.causal else "window" if config.window else "encoder",
        place=place,
        last=count - 1,
        **words,
    )


def softmax(live: Live) -> Lesson:
    row, seen, keys = live.row, live.seen(live.row), live.strongest(3)
    taken = live.steps["weights"].inputs[0]
    scaled = live.at(f"L0H0.{taken}")[row]
    chosen = scaled[keys]
    largest = float(chosen.max())
    powers = np.exp(chosen - largest)
    rest = float(np.exp(scaled[[k for k in seen if k not in keys]] - largest).sum())
    sunk = float(live.at(f"L0H0.sink[{row},0]")) if "sink" in live.steps else 0.0
    sink = (float(powers.sum()) + rest) * sunk / (1 - sunk)
    right = powers / (powers.sum() + rest + sink)
    missing, power = len(seen) - len(keys), f"e^(score − {bracketed(largest)})"
    others = f" The {power} of the other {missing} sum to {figure(rest)}." if missing else ""
    others += f" That of the sink is {figure(sink)}." if sunk else ""
    question = live.ask("softmax").vector(
        f"The scaled scores of query {row}, {live.token(row)}, are {figures(chosen)} for "
        f"{_keys(live, keys)}{'' if missing else ', all that it sees'}.{others} What are their weights?",
        right,
        [
            np.abs(chosen) / max(np.abs(chosen).sum(), 1e-9),
            [1 / len(seen)] * len(keys),
            right[::-1],
            np.exp(-np.logaddexp(0, -chosen)),
        ],
        f"{power} is {figures(powers)}, in all {figure(float(powers.sum() + rest + sink))}; divided by that, "
        f"{figures(right)}. Subtracting the largest score changes no weight.",
    )
    return live.lesson("softmax", question, taken=taken, key=keys[-1])


def values(live: Live) -> Lesson:
    row, keys = live.row, live.strongest(3)
    by, of = live.steps["head_out"].inputs
    weights, column = live.at(f"L0H0.{by}")[row, keys], live.at(f"L0H0.{of}")[keys, 0]
    total = float(live.at(f"L0H0.head_out[{row},0]"))
    rest = total - float((weights * column).sum())
    missing = len(live.seen(row)) - len(keys)
    others = f" The other {missing} add {figure(rest)}." if missing else ""
    terms = [f"{weight:.3f} × {_signed(value)}" for weight, value in zip(weights, column, strict=True)]
    terms += [_signed(rest)] if missing else []
    made = "mean" if by == "weights" and "sink" not in live.steps else "sum"
    question = live.ask("values").number(
        f"Query {row}, {live.token(row)}, gives {_keys(live, keys)} the weights {figures(weights)}, "
        f"and dimension 0 of their values is {figures(column)}.{others} What is dimension 0 of the head there?",
        total,
        [float(column.sum()), float(column.mean()), float(column[weights.argmax()]), -total, total / len(keys)],
        f"{' + '.join(terms)} = {figure(total)}: a {made}, weighted by attention.",
    )
    return live.lesson("values", question)


def _signed(value: float) -> str:
    return f"({value:.3f})" if value < 0 else f"{value:.3f}"


_LOOKS = ("previous", "first", "self")
"""Measures of a head that are shares of its weight."""
_MOST_HEADS = 4


def heads(live: Live) -> Lesson:
    config = live.config
    count, groups = config.n_heads, config.n_kv_heads
    found = {by: measure_heads(live.trace, by, [live.layer])[0].nan_to_num().tolist() for by in (*_LOOKS, "entropy")}
    most = [max(_LOOKS, key=lambda by: found[by][head]) for head in range(count)]  # where each looks most
    drawn = sorted(sorted(range(count), key=lambda head: -found[most[head]][head])[:_MOST_HEADS])

    def looks(head: int) -> str:
        share = found[most[head]][head]
        return f"{most[head]} {share:.2f}" if share >= 0.5 else f"many, {found['entropy'][head]:.2f} nats"

    shared = ""
    if groups != count:
        shared = f" Keys and values have only {groups} heads here, each serving {config.heads_per_kv} query heads."
    if count > len(drawn):
        shared += f" Of {count} heads those {len(drawn)} are drawn that look most at one place."
    core = [step.operation for step in live.trace.steps.in_layer(live.layer) if step.core]
    fused = all(one.fused for one in core) and not (config.window or config.chunk or config.attention_divisor)
    return live.lesson(
        "heads",
        _which_head(live, drawn, found["previous"]),
        variant="" if fused else "stepwise",
        maps=[live.map(f"head {head}", f"block {live.layer}", live.trace, head) for head in drawn],
        revealed_maps=[live.map(f"head {head}", looks(head), live.trace, head) for head in drawn],
        shared=shared,
        options=(", is_causal=True" if config.causal else "") + (", enable_gqa=True" if groups != count else ""),
        repeated=".repeat_interleave(H // G, 1)" if groups != count else "",
        last=count - 1,
        drawn=drawn[0],
        key=max(live.seen(live.here), key=lambda key: live.at(f"L0H{drawn[0]}.weights[{live.here},{key}]")),
    )


def _which_head(live: Live, drawn: Sequence[int], previous: Sequence[float]) -> Question:
    """Which head looks at the token before; where there is nothing to choose, how wide a head is."""
    best = max(drawn, key=lambda head: previous[head])
    if len(drawn) == 1 or live.length == 1:
        width, count = live.config.d_head, live.config.n_heads
        whole = width * count
        return live.ask("heads").number(
            f"A query is {whole} numbers in {count} head{'s' if count > 1 else ''}. How many of them has one head?",
            width,
            [2 * whole, whole + count, width + 1, whole * count],
            f"{whole} / {count} = {width}.",
        )
    return live.ask("heads").words(
        "Each map has queries down and keys across. Which of these heads looks most at the token before?",
        f"head {best}",
        [f"head {head}" for head in drawn if head != best],
        f"Head {best}: {figure(previous[best])} of its weight lies on the token before, left of the diagonal.",
        (best,),
    )


def concat(live: Live) -> Lesson:
    config, here, ask = live.config, live.here, live.ask("concat")
    count, width = config.n_heads, config.value_width
    head, dimension = ask.random.randrange(count), ask.random.randrange(width)
    place = head * width + dimension
    columns = sorted({0, width - 1, place, width % (count * width), count * width - 1})
    values = live.at(f"L0.concat[{here}]")
    wrong = [
        (count, place % count), (width, (head + 1) % count), (count * width, 0), (count, place // count),
        (config.d_model + count, head), (2 * width, head // 2), (2 * width, head + 1),
    ]  # fmt: skip
    question = ask.words(
        f"{count * width} columns hold {count} head{'s' if count > 1 else ''} side by side, counted from 0. So what is "
        f"d_k, the width of one head, and which head does column {place} come from, with its {figure(values[place])}?",
        f"d_k {width}, head {head}",
        [f"d_k {w}, head {h}" for w, h in wrong],
        f"{count * width} / {count} = {width}, and {place} = {head} × {width} + {dimension}. W_O then mixes all "
        f"{count * width} columns into {config.d_model}.",
        (width, head),
    )
    rows = [(f"d{column}", float(values[column])) for column in columns]
    told = [(*row, f"{column // width}, d{column % width}") for row, column in zip(rows, columns, strict=True)]
    return live.lesson(
        "concat",
        question,
        LiveTable(("column", f"concat of {live.token(here)}"), tuple(rows)),
        LiveTable(("column", f"concat of {live.token(here)}", "head"), tuple(told)),
    )
