"""Lessons about attention, from the projections to the heads side by side."""

import math
from collections.abc import Callable

import numpy as np

from tinytf.config import ModelConfig
from tinytf.lessons.asking import bracketed, figure, figures
from tinytf.lessons.data import Figures, Lesson
from tinytf.lessons.live import Live
from tinytf.lessons.titles import TITLES
from tinytf.model.attention import FusedCore

_TEXTS = 32
"""Texts in the batch that shapes are asked for."""


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def qkv(live: Live, number: int) -> Lesson:
    config, here = live.config, live.here
    heads, groups, width, length = config.n_heads, config.n_kv_heads, config.d_head, live.length

    what = "the shape of Q, of K and of V" if groups == heads else "the shape of Q, and of K and V"
    right = f"{_TEXTS} × {heads} × {length} × {width}"
    wrong = [
        f"{_TEXTS} × {heads} × {length} × {config.d_model}",
        f"{_TEXTS} × {heads} × {length} × {length}",
        f"{heads} × {length} × {width}",
    ]
    if groups != heads:
        right = f"Q {_TEXTS}×{heads}×{length}×{width}, K and V {_TEXTS}×{groups}×{length}×{width}"
        wrong = [
            f"Q, K and V {_TEXTS}×{heads}×{length}×{width}",
            f"Q {_TEXTS}×{groups}×{length}×{width}, K and V {_TEXTS}×{heads}×{length}×{width}",
            f"Q {_TEXTS}×{heads}×{length}×{width}, K and V {_TEXTS}×{heads}×{length}×{max(1, width // 2)}",
        ]
    shared = f" Here {config.heads_per_kv} query heads share one key and value head." if groups != heads else ""
    question = live.asked("qkv").words(
        f"{_TEXTS} texts of {_tokens(length)} each go through this model: d_model {config.d_model}, {heads} heads of "
        f"{width}. What is {what}, heads before tokens?",
        right,
        wrong,
        f"A vector of {width} for each token, in each head, of each text.{shared} "
        f"W_Q makes {heads} × {width} = {heads * width:,} numbers of a token at once.",
        (_TEXTS, heads, length, width),
    )
    read = live.trace.steps.by_name["q"].formula.partition("·")[0]
    return Lesson(
        number, "qkv", TITLES["qkv"],
        "Every token is seen in three ways: what it looks for (query), what others find it by (key), and what it hands "
        f"over when it is found (value). Three learned matrices make them.{shared}",
        f"Q, K, V = {read}·W_Q, {read}·W_K, {read}·W_V" + (", each + b" if config.qkv_bias else ""),
        f"q = W_Q({read}).unflatten(-1, ({heads}, {width})).transpose(1, 2)  # k and v alike",
        f"L0H0.q[{here},0]",
        question,
        role="q",
        shown=tuple(f"L0H0.{name}[{here}]" for name in ("q", "k", "v")),
    )  # fmt: skip


def scores(live: Live, number: int) -> Lesson:
    row = live.row
    key = max((k for k in live.seen(row)), key=lambda k: abs(live.at("L0H0.scores")[row, k]))
    score = float(live.at("L0H0.scores")[row, key])
    query_name, key_name = (live.trace.steps.by_name["scores"].inputs[i] for i in (0, 1))
    products = live.at(f"L0H0.{query_name}[{row}]") * live.at(f"L0H0.{key_name}[{key}]")
    question = live.asked("scores").number(
        f"Query {row}, {live.token(row)}, has score {figure(score)} with key {key}, {live.token(key)}. "
        "What would it be if every number of that query were twice as large?",
        2 * score,
        [4 * score, score, score + 2, score * math.sqrt(2)],
        f"Each of the {live.config.d_head} products doubles, so their sum does: {figure(2 * score)}. "
        f"The largest product here is {figure(float(products[np.abs(products).argmax()]))}.",
    )
    turned = " Both have been turned by their places before." if live.config.positions == "rotary" else ""
    return Lesson(
        number, "scores", TITLES["scores"],
        "The dot product says how far two vectors point the same way. So a query is multiplied with every key: a large "
        f"sum means that this token is what was looked for.{turned}",
        "scores = q·kᵀ",
        "scores = q @ k.transpose(-2, -1)  # (B, H, T, T)",
        f"L0H0.scores[{row},{key}]",
        question,
        role="attention", focus=row,
        shown=("L0H0.scores",),
    )  # fmt: skip


def scaling(live: Live, number: int) -> Lesson:
    row, width, config = live.row, live.config.d_head, live.config.at(0)
    keys, divisor, root = live.strongest(3), config.score_divisor, config.score_divisor_words
    before = live.at("L0H0.scores")[row, keys]
    right = before / divisor
    question = live.asked("scaling").vector(
        f"q·kᵀ of query {row}, {live.token(row)}, is {figures(list(before))} for "
        f"{_keys(live, keys)}, and {_what_divides(config)}. What are the values after scaling?",
        list(right),
        [list(before / width), list(before * divisor), list(before), list(before / math.log2(max(4, width)))],
        f"{'' if config.attention_divisor else f'{root} = '}{figure(divisor)}, and every score is divided by it: "
        f"{figures(list(right))}.",
    )
    return Lesson(
        number, "scaling", TITLES["scaling"],
        f"A sum of {width} products grows with √{width}, and softmax of large numbers is all or nothing, where hardly "
        "any gradient is left. Dividing takes that growth away; which key is best stays as it is.",
        f"scaled = {live.trace.steps.at('scaled', 0).formula}",
        f"scaled = scores / {f'{divisor:g}' if config.attention_divisor else 'math.sqrt(d_head)'}",
        f"L0H0.scaled[{row},{keys[-1]}]",
        question,
        role="attention", focus=row,
        shown=("L0H0.scores",),
        revealed=("L0H0.scaled",),
    )  # fmt: skip


def _what_divides(config: ModelConfig) -> str:
    if config.attention_divisor:
        return f"this model divides by {figure(config.attention_divisor)}"
    return f"d_head is {config.d_head}"


def _keys(live: Live, keys: list[int]) -> str:
    named = [f"{key} {live.token(key)}" for key in keys]
    return f"key {named[0]}" if len(named) == 1 else f"keys {', '.join(named[:-1])} and {named[-1]}"


def mask(live: Live, number: int) -> Lesson:
    place, count, config = min(2, live.length - 1), live.length, live.config.at(0)
    seen, steps = live.seen(place), live.trace.steps
    taken = steps.at("masked" if config.causal else "weights", 0).inputs[0]
    after = range(place, count)

    def called(places: range) -> str:
        if not places:
            return "to no position"
        return f"only to position {places[0]}" if len(places) == 1 else f"to positions {places[0]} to {places[-1]}"

    others = [range(place + 1), range(count), after, range(place), range(place, place + 1), range(0), range(place + 2)]
    if config.causal:
        text = f"Of {_tokens(count)}, counted from 0: what does position {place} attend to with the causal mask?"
        hidden = sum(count - len(live.seen(query)) for query in range(count))
        reveal = f"To itself and what came before: {hidden:,} of {count**2:,} scores are −∞ in every head."
        why = (
            "A decoder is trained to foresee every next token at once, so no token may look at a later one. Those "
            "scores become −∞, which softmax makes exactly 0."
        )
        if config.window:
            why += f" Here a token sees only the last {config.window:,}."
        formula = steps.at("masked", 0).formula
        hides = "torch.ones(T, T).triu(1).bool()"
        if config.window:
            hides = f"~torch.ones(T, T).tril().triu(1 - {config.window}).bool()"
        torch_line = f"masked = {taken}.masked_fill({hides}, -math.inf)"
        revealed = ("L0H0.masked",)
    else:
        text = f"Of {_tokens(count)}, counted from 0: what does position {place} attend to in this encoder?"
        reveal = f"To all of them: none of the {count**2:,} scores is hidden, and the text has no padding."
        hides = (
            "training hides words of the text instead, as [MASK], and asks for them"
            if live.has_head
            else ("what it makes of a text is read whole, not token by token")
        )
        why = (
            "An encoder may look both ways, so nothing is masked here; "
            f"{hides}. Only the padding of a batch would be hidden from it."
        )
        formula = "masked = scaled: nothing is hidden"
        torch_line = "masked = scaled.masked_fill(~real[:, None, None], -math.inf)  # padding alone"
        revealed = ("L0H0.weights",)
    question = live.asked("mask").words(text, called(seen), map(called, others), reveal, tuple(seen))
    cell = f"L0H0.{'masked' if config.causal else 'scaled'}[{place},{seen[-1]}]"
    if config.causal and count > 1:
        cell = f"L0H0.masked[0,{count - 1}]"
    return Lesson(
        number, "mask", TITLES["mask"], why, formula, torch_line, cell, question,
        role="attention", focus=place, shown=(f"L0H0.{taken}",), revealed=revealed,
    )  # fmt: skip


def softmax(live: Live, number: int) -> Lesson:
    row, seen = live.row, list(live.seen(live.row))
    taken = live.trace.steps.at("weights", 0).inputs[0]
    scaled, keys = live.at(f"L0H0.{taken}")[row], live.strongest(3)
    chosen = scaled[keys]
    largest = float(chosen.max())
    powers = np.exp(chosen - largest)
    rest = float(np.exp(scaled[[k for k in seen if k not in keys]] - largest).sum())
    right = powers / (powers.sum() + rest)
    whole, missing = len(keys) == len(seen), len(seen) - len(keys)
    others = "" if whole else f" The e^(score − {bracketed(largest)}) of the other {missing} sum to {figure(rest)}."
    shares = np.abs(chosen) / max(np.abs(chosen).sum(), 1e-9)
    question = live.asked("softmax").vector(
        f"The scaled scores of query {row}, {live.token(row)}, are {figures(list(chosen))} for "
        f"{_keys(live, keys)}{', all that it sees' if whole else ''}.{others} What are their weights?",
        list(right),
        [list(shares), [1 / len(seen)] * len(keys), list(right[::-1]), list(np.exp(-np.logaddexp(0, -chosen)))],
        f"e^(score − {bracketed(largest)}) is {figures(list(powers))}, in all {figure(float(powers.sum() + rest))}; "
        f"divided by that, {figures(list(right))}. Taking the largest off changes no share.",
    )
    return Lesson(
        number, "softmax", TITLES["softmax"],
        "Scores of any size become shares that sum to 1 in every row. The exponential keeps all of them above 0 and "
        "favours the large ones: one more point is e = 2.718 times the weight.",
        "weights = e^score / Σ e^score, along each row",
        f"weights = {taken}.softmax(dim=-1)",
        f"L0H0.weights[{row},{keys[-1]}]",
        question,
        role="attention", focus=row,
        shown=(f"L0H0.{taken}",),
        revealed=("L0H0.weights",),
    )  # fmt: skip


def values(live: Live, number: int) -> Lesson:
    row, keys = live.row, live.strongest(3)
    weights, column = live.at("L0H0.weights")[row], live.at("L0H0.v")[:, 0]
    total = float(live.at(f"L0H0.head_out[{row},0]"))
    listed = float((weights[keys] * column[keys]).sum())
    missing = len(live.seen(row)) - len(keys)
    others = f" The other {missing} bring {figure(total - listed)}." if missing else ""
    question = live.asked("values").number(
        f"Query {row}, {live.token(row)}, gives {_keys(live, keys)} the weights {figures(list(weights[keys]))}, "
        f"and dimension 0 of their values is {figures(list(column[keys]))}.{others} What is dimension 0 of the head "
        "there?",
        total,
        [
            float(column[keys].sum()),
            float(column[keys].mean()),
            float(column[keys][weights[keys].argmax()]),
            -total,
            total / len(keys),
        ],
        " + ".join(f"{w:.3f} × {_signed(v)}" for w, v in zip(weights[keys], column[keys], strict=True))
        + (f" + {_signed(total - listed)}" if missing else "")
        + f" = {figure(total)}: a mean, weighted by attention.",
    )
    return Lesson(
        number, "values", TITLES["values"],
        "The weights say how much, the values say what. Each token takes the mean of all the values that it sees, "
        "weighted by its attention: this is the only place where one token learns of another.",
        "head_out = weights·v",
        "head_out = weights @ v  # (B, H, T, d_head)",
        f"L0H0.head_out[{row},0]",
        question,
        role="v", focus=row,
        shown=("L0H0.v",),
        revealed=("L0H0.head_out",),
    )  # fmt: skip


def _signed(value: float) -> str:
    return f"({value:.3f})" if value < 0 else f"{value:.3f}"


def heads(live: Live, number: int) -> Lesson:
    config, row = live.config, live.here
    count, width = config.n_heads, config.d_head
    whole = count * width
    weights = live.at("L0.weights")[:, row]  # (H, K)
    rows = tuple(
        (f"L0H{head}", f"{int(w.argmax())} {live.token(int(w.argmax()))}", float(w.max()))
        for head, w in enumerate(weights)
    )
    said = f"d_model {config.d_model}" if whole == config.d_model else f"{whole} query numbers a token"
    question = live.asked("heads").number(
        f"With {said} and {count} heads, what is d_k, the width of one head?",
        width,
        [whole, count, whole * count, whole - count, math.isqrt(whole), 2 * width],
        f"{whole} / {count} = {width}. The heads share the width, so {count} of them cost no more than one that is "
        f"{whole} wide.",
    )
    shared = (
        f" Keys and values have only {config.n_kv_heads} heads here, each serving {config.heads_per_kv} query heads."
        if config.heads_per_kv > 1
        else ""
    )
    core = live.model.transformer.blocks[0].attention.core  # type: ignore[union-attr]
    if isinstance(core, FusedCore) and not config.window and not config.attention_divisor:
        formula = f"head h = softmax(q_h·k_hᵀ / √{width})·v_h"
        options = (", is_causal=True" if config.causal else "") + (", enable_gqa=True" if shared else "")
        torch_line = f"head_out = F.scaled_dot_product_attention(q, k, v{options})"
    else:  # what torch's fused attention does not do by itself was said step by step
        formula = f"head h = weights_h·v_h with weights = softmax({live.trace.steps.at('weights', 0).inputs[0]})"
        torch_line = "head_out = weights @ " + ("v.repeat_interleave(H // G, 1)" if shared else "v")
    return Lesson(
        number, "heads", TITLES["heads"],
        "One softmax can settle on one thing. Several heads, each with matrices of its own, look for different things "
        f"at the same time: the word before, the subject, the start.{shared}",
        f"{formula}, for h = 0 … {count - 1}",
        torch_line,
        f"L0H{count - 1}.weights[{row},{int(weights[-1].argmax())}]",
        question,
        role="attention",
        figures=Figures(("head", f"{live.token(row)} looks most at", "weight"), rows, share=2),
    )  # fmt: skip


def concat(live: Live, number: int) -> Lesson:
    config, here = live.config, live.here
    asked = live.asked("concat")
    count, width = config.n_heads, config.d_head
    head, dimension = asked.random.randrange(count), asked.random.randrange(width)
    place = head * width + dimension
    value = float(live.at(f"L0.concat[{here},{place}]"))

    def named(h: int, d: int) -> str:
        return f"head {h}, dimension {d}"

    question = asked.words(
        f"{count} heads of {width} lie side by side, counted from 0. Column {place} of concat holds {figure(value)} "
        f"for token {here}, {live.token(here)}. Which head made it, and in which dimension?",
        named(head, dimension),
        [named(dimension % count, place % count), named(place % count, place // count), named(head + 1, dimension),
         named(head, place), named(head, dimension + 1)],
        f"{place} = {head} × {width} + {dimension}. W_O then mixes all {count * width} columns into {config.d_model}.",
        (head, dimension),
    )  # fmt: skip
    return Lesson(
        number, "concat", TITLES["concat"],
        "What the heads found is laid side by side, and one more matrix mixes it into a vector as wide as the residual "
        "stream. Only here do the heads meet.",
        live.trace.steps.by_name["concat"].formula + ",  attn = " + live.trace.steps.by_name["attn"].formula,
        "attn = W_O(head_out.transpose(1, 2).flatten(2))  # (B, T, d_model)",
        f"L0.attn[{here},0]",
        question,
        role="v", focus=here,
        shown=("L0.concat",),
        revealed=("L0.attn",),
    )  # fmt: skip


LESSONS: dict[str, Callable[[Live, int], Lesson]] = {
    "qkv": qkv,
    "scores": scores,
    "scaling": scaling,
    "mask": mask,
    "softmax": softmax,
    "values": values,
    "heads": heads,
    "concat": concat,
}
