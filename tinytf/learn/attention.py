"""Lessons about the attention of one head, from the projections to the weighted values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinytf.learn.lesson import Lesson, bracketed, figure, figures
from tinytf.learn.live import Live

_TEXTS = 32
"""Texts in the batch of the question about shapes."""


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _keys(live: Live, keys: Sequence[int]) -> str:
    *rest, last = (f"{key} {live.token(key)}" for key in keys)
    return f"keys {', '.join(rest)} and {last}" if rest else f"key {last}"


def qkv(live: Live) -> Lesson:
    config, length = live.config, live.length
    heads, groups, width = config.n_heads, config.n_kv_heads, config.d_head
    shared = f" Here {config.heads_per_kv} query heads share one key and value head." if groups != heads else ""

    def shape(*sizes: int) -> str:
        return ("×" if shared else " × ").join(map(str, sizes))

    def shapes(q: str, kv: str) -> str:
        return f"Q {q}, K and V {kv}" if shared else q

    asked_shape = "the shape of Q, and of K and V" if shared else "the shape of Q, of K and of V"
    if config.value_width != width:
        asked_shape = "the shape of Q and of K"
    query, key = shape(_TEXTS, heads, length, width), shape(_TEXTS, groups, length, width)
    wrong = [
        (shapes(query, query), f"Keys and values have {groups} heads, not {heads}."),
        (shapes(key, query), "That swaps the heads of the queries with those of keys and values."),
        (shapes(query, shape(_TEXTS, heads, length, max(1, width // 2))), f"Each head has {width} numbers."),
    ]
    for sizes, reason in (
        ((_TEXTS, heads, length, config.d_model), f"That is the width of a token, and a head has {width} numbers."),
        ((_TEXTS, heads, length, length), "That is the shape of the scores, every query with every key."),
        ((heads, length, width), f"That is one text, and there are {_TEXTS}."),
    ):
        wrong.append((shapes(shape(*sizes), shape(*sizes)), reason))
    question = live.ask("qkv").words(
        f"{_TEXTS} texts of {_tokens(length)} each go through this model: d_model {config.d_model}, {heads} heads of "
        f"{width}. What is {asked_shape}, heads before tokens?",
        shapes(query, key),
        wrong,
        f"A vector of {width} numbers for each token, in each head, of each text.{shared} "
        f"W_Q computes {heads} × {width} = {heads * width:,} numbers per token at once.",
        (_TEXTS, heads, length, width),
    )
    norm = live.steps["q"].formula.partition("·")[0]
    rotated = [f"L0H0.{name}[{live.here}]" for name in ("q_rot", "k_rot") if name in live.steps]
    return live.lesson(
        "qkv", question, also=rotated, read=norm, shared=shared, biases=", each + b" if config.qkv_bias else ""
    )


def scores(live: Live) -> Lesson:
    row, row_scores = live.row, live.at("L0H0.scores")[live.row]
    key = max(live.visible_keys(row), key=lambda k: abs(row_scores[k]))
    score = float(row_scores[key])
    query_name, key_name = live.steps["scores"].inputs[:2]
    products = live.at(f"L0H0.{query_name}[{row}]") * live.at(f"L0H0.{key_name}[{key}]")
    question = live.ask("scores").number(
        f"Query {row}, {live.token(row)}, has score {figure(score)} with key {key}, {live.token(key)}. "
        "What would it be if every number of that query were twice as large?",
        2 * score,
        [
            (4 * score, "That doubles the key too."),
            (score, "The query is a factor of every product, so the score changes with it."),
            (score + 2, "That adds 2, and each product is multiplied by 2."),
            (score * math.sqrt(2), "That multiplies by √2, and each product is multiplied by 2."),
        ],
        f"Each of the {live.config.d_head} products doubles, so their sum does: {figure(2 * score)}. "
        f"The largest product here is {figure(float(products[np.abs(products).argmax()]))}.",
    )
    rotated = live.config.positions == "rotary"
    rotation = " RoPE has already rotated both by their positions." if rotated else ""
    return live.lesson("scores", question, key=key, rotation=rotation)


def scaling(live: Live) -> Lesson:
    row, width, config = live.row, live.config.d_head, live.config.at(live.layer)
    keys, divisor, model_divisor = live.strongest_keys(3), config.score_divisor, config.attention_divisor
    source = live.steps["scaled"].inputs[0]
    unscaled, log_width = live.at(f"L0H0.{source}")[row, keys], math.log2(max(4, width))
    label = live.steps["scores"].formula if source == "scores" else source
    divides = f"this model divides by {figure(model_divisor)}" if model_divisor else f"d_head is {width}"
    root = "" if model_divisor else f"{config.score_divisor_words} = "
    question = live.ask("scaling").vector(
        f"{label} of query {row}, {live.token(row)}, is {figures(unscaled)} for {_keys(live, keys)}, and {divides}. "
        "What are the values after scaling?",
        unscaled / divisor,
        [
            (unscaled / width, f"That divides by {width}, not by {figure(divisor)}."),
            (unscaled * divisor, f"That multiplies by {figure(divisor)}, and scaling divides."),
            (unscaled, "Those are the values before scaling."),
            (unscaled / log_width, f"That divides by {figure(log_width)}, not by {figure(divisor)}."),
        ],
        f"{root}{figure(divisor)}, and every score is divided by it: {figures(unscaled / divisor)}.",
    )
    return live.lesson(
        "scaling",
        question,
        key=keys[-1],
        source=source,
        divisor=f"{model_divisor:g}" if model_divisor else "math.sqrt(d_head)",
    )


def _attended(positions: range) -> str:
    if not positions:
        return "to no position"
    return (
        f"only to position {positions[0]}" if len(positions) == 1 else f"to positions {positions[0]} to {positions[-1]}"
    )


def _why_not(positions: range, seen: range, query: int, live: Live) -> str:
    """Why a query does not attend to these positions: one that it does not see, or one that is missing."""
    unseen = [position for position in positions if position not in seen]
    if not unseen:
        return f"It sees position {next(position for position in seen if position not in positions)} too."
    if unseen[-1] >= live.length:
        return f"There is no position {unseen[-1]}."
    return f"Position {unseen[-1]} {'comes later' if live.config.causal and unseen[-1] > query else 'is too far away'}."


def mask(live: Live) -> Lesson:
    query, count, config = min(2, live.length - 1), live.length, live.config.at(live.layer)
    seen, opening = (
        live.visible_keys(query),
        f"Of {_tokens(live.length)}, counted from 0: what does position {query} attend to",
    )
    wrong = [
        range(query + 1), range(count), range(query, count), range(query), range(query, query + 1), range(0),
        range(query + 2),
    ]  # fmt: skip
    words: dict[str, Any]
    if config.causal:
        hidden = sum(count - len(live.visible_keys(row)) for row in range(count))
        text = f"{opening} with the causal mask?"
        reveal = f"To itself and to tokens before it: {hidden:,} of {count**2:,} scores are −∞ in every head."
        hidden_mask, window = "torch.ones(T, T).triu(1).bool()", ""
        if config.window:
            hidden_mask = f"~torch.ones(T, T).tril().triu(1 - {config.window}).bool()"
            window = f" Here a token sees only the last {config.window:,}."
        words = {"source": live.steps["masked"].inputs[0], "hides": hidden_mask, "window": window}
    else:
        text = f"{opening} in this encoder?"
        reveal = f"To all of them: none of the {count**2:,} scores is hidden, and the text has no padding."
        if config.window:
            hidden = sum(count - len(live.visible_keys(row)) for row in range(count))
            reveal = (
                f"To tokens less than {config.window:,} away: {hidden:,} of {count**2:,} scores are −∞ in every head."
            )
        masked_training = "training hides words as [MASK] instead, and asks for them"
        training_note = masked_training if live.has_head else "its output is read as a whole, not token by token"
        words = {
            "source": live.steps["masked" if config.window else "weights"].inputs[0],
            "instead": training_note,
            "window": config.window,
        }
    choices = [
        (_attended(positions), _why_not(positions, seen, query, live)) for positions in wrong if positions != seen
    ]
    question = live.ask("mask").words(text, _attended(seen), choices, reveal, seen)
    return live.lesson(
        "mask",
        question,
        variant="" if config.causal else "window" if config.window else "encoder",
        position=query,
        last=count - 1,
        **words,
    )


def softmax(live: Live) -> Lesson:
    row, visible, keys = live.row, live.visible_keys(live.row), live.strongest_keys(3)
    source = live.steps["weights"].inputs[0]
    scaled = live.at(f"L0H0.{source}")[row]
    chosen = scaled[keys]
    largest = float(chosen.max())
    powers = np.exp(chosen - largest)
    rest_sum = float(np.exp(scaled[[k for k in visible if k not in keys]] - largest).sum())
    sink_weight = float(live.at(f"L0H0.sink[{row},0]")) if "sink" in live.steps else 0.0
    sink_power = (float(powers.sum()) + rest_sum) * sink_weight / (1 - sink_weight)
    weights = powers / (powers.sum() + rest_sum + sink_power)
    n_rest, power = len(visible) - len(keys), f"e^(score − {bracketed(largest)})"
    remainder = f" The {power} of the other {n_rest} sum to {figure(rest_sum)}." if n_rest else ""
    remainder += f" For the sink it is {figure(sink_power)}." if sink_weight else ""
    question = live.ask("softmax").vector(
        f"The scaled scores of query {row}, {live.token(row)}, are {figures(chosen)} for "
        f"{_keys(live, keys)}{'' if n_rest else ', all that it sees'}.{remainder} What are their weights?",
        weights,
        [
            (
                np.abs(chosen) / max(np.abs(chosen).sum(), 1e-9),
                "That shares by the size of the scores, without e^score.",
            ),
            ([1 / len(visible)] * len(keys), "That gives every key the same, whatever its score."),
            (weights[::-1], "That gives the weights to the keys in reverse order."),
            (np.exp(-np.logaddexp(0, -chosen)), "That is the sigmoid of each score, without the other scores."),
        ],
        f"{power} is {figures(powers)}, and all of them sum to {figure(float(powers.sum() + rest_sum + sink_power))}; "
        f"divided by that, {figures(weights)}. Subtracting the largest score changes no weight.",
    )
    return live.lesson("softmax", question, source=source, key=keys[-1])


def values(live: Live) -> Lesson:
    row, keys = live.row, live.strongest_keys(3)
    weights_step, values_step = live.steps["head_out"].inputs
    weights, column = live.at(f"L0H0.{weights_step}")[row, keys], live.at(f"L0H0.{values_step}")[keys, 0]
    total = float(live.at(f"L0H0.head_out[{row},0]"))
    rest = total - float((weights * column).sum())
    n_rest = len(live.visible_keys(row)) - len(keys)
    remainder = f" The other {n_rest} add {figure(rest)}." if n_rest else ""
    terms = [f"{weight:.3f} × {_signed(value)}" for weight, value in zip(weights, column, strict=True)]
    terms += [_signed(rest)] if n_rest else []
    mean_or_sum = "mean" if weights_step == "weights" and "sink" not in live.steps else "sum"
    question = live.ask("values").number(
        f"Query {row}, {live.token(row)}, gives {_keys(live, keys)} the weights {figures(weights)}, "
        f"and dimension 0 of their values is {figures(column)}.{remainder} What is dimension 0 of the head's output "
        "there?",
        total,
        [
            (float(column.sum()), "That adds the values without weights."),
            (float(column.mean()), "That is the mean of the values without weights."),
            (float(column[weights.argmax()]), "That is the value of one key alone."),
            (-total, "That has the wrong sign."),
            (total / len(keys), f"That divides the weighted sum by {len(keys)}."),
        ],
        f"{' + '.join(terms)} = {figure(total)}: a {mean_or_sum}, weighted by attention.",
    )
    return live.lesson("values", question)


def _signed(value: float) -> str:
    return f"({value:.3f})" if value < 0 else f"{value:.3f}"
