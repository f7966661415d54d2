"""Why a wrong choice is wrong: each reason against the numbers that it speaks of."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from small_models import OTHER, TEXT

from tinytf.learn.course import lesson
from tinytf.learn.live import Live
from tinytf.loading import Model


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


@pytest.mark.parametrize(
    "kind",
    [
        "tiny",
        "tiny-encoder",
        "mistral, a window and stretched waves",
        "modernbert, windows to both sides",
        "llama 4, chunks, and experts that take weighed tokens",
        "gpt-oss, sinks and windows by layer",
    ],
)
def test_the_reason_at_the_mask_names_what_makes_the_choice_wrong(opened: Callable[[str], Model], kind: str) -> None:
    live = Live(opened(kind), TEXT)
    asked = lesson("mask", live).question
    for choice, reason in zip(asked.choices, asked.reasons, strict=True):
        if reason:
            first, *rest = map(int, re.findall(r"\d+", choice)) or [0, -1]
            positions = range(first, rest[-1] + 1 if rest else first + 1)
            (named,) = map(int, re.findall(r"\d+", reason))
            assert (named in positions) != (named in asked.value), reason
            assert ("sees" in reason) == (named in asked.value)
            assert ("There is no" in reason) == (named >= live.length)


@pytest.mark.parametrize("text", [TEXT, OTHER, "The cat", "The"])
def test_a_reason_says_what_was_computed_instead(opened: Callable[[str], Model], text: str) -> None:
    """Each wrong number again, from the words of its reason alone and the recorded numbers."""
    live = Live(opened("llama, grouped"), text)
    trace, row, here, config = live.trace, live.row, live.here, live.config
    keys = live.strongest_keys(3)
    scores, weights, column = (trace[f"L0H0.{step}"].double().numpy() for step in ("scores", "weights", "v"))
    score, unscaled, width = lesson("scores", live).question.value[0] / 2, scores[row, keys], config.d_head
    scaled, heavy = unscaled / math.sqrt(width), column[keys, 0]
    x, attn = (trace[f"L0.{step}"].double().numpy()[here] for step in ("in", "attn"))
    most = int(np.abs(attn[:4]).argmax())
    ms = math.sqrt((x**2).mean() + config.norm_eps)
    own = float(x[np.abs(x[:4]).argmax()])
    p, vocab = math.exp(-live.target[2]), config.vocab_size
    logits = np.sort(live.logits)[::-1]
    at = {temperature: softmax(live.logits / temperature).max() for temperature in (1, 2)}
    count, ffn = live.length, config.d_model * config.d_ff
    frequency = config.rope_theta ** (-2 / width)
    instead: dict[str, dict[str, object]] = {
        "tokens": {"characters, and": len(text), "whole vocabulary": live.model.tokenizer.vocab_size},
        "positions": {
            "single position": frequency, "adds the position": here + frequency, "from 1": (here + 1) * frequency,
        },
        "scores": {"doubles the key": 4 * score, "factor of every": score, "adds 2": score + 2, "√2": score * 2**0.5},
        "scaling": {f"by {width}, not": unscaled / width, "multiplies": unscaled * width**0.5, "before": unscaled},
        "softmax": {
            "every key the same": [1 / (row + 1)] * len(keys), "sigmoid": 1 / (1 + np.exp(-scaled)),
            "reverse": weights[row, keys][::-1],
        },
        "values": {"adds the values": heavy.sum(), "mean of the values": heavy.mean()},
        "residual": {"with what": x[most] + attn[most], "without x": attn[most], "would be 0": 0},
        "norm": {"subtracts": own - ms, "twice": own / ms**2, "multiplies": own * ms, "square": (own / ms) ** 2},
        "feed-forward": {"one matrix": ffn, "2 matrices": 2 * ffn},
        "stack": {"as it is": live.model.n_parameters, "doubles": 2 * live.model.n_parameters},
        "logits": {"is the difference": logits[0] - logits[1], "power of 2": 2 ** (logits[0] - logits[1])},
        "sampling": {"at temperature 2": at[2], "at temperature 1.": at[1], "multiplies": at[1] / 2},
        "loss": {"1 − p": 1 - p, "bits": -math.log2(p), "itself": p, "1 / p": 1 / p, "log₁₀": -math.log10(p)},
    }  # fmt: skip
    found = 0
    for name, wrong in instead.items():
        asked = lesson(name, live).question
        for choice, reason in zip(asked.choices, asked.reasons, strict=True):
            for words, value in wrong.items():
                if words in reason and "all other" not in reason:
                    listed = np.atleast_1d(np.asarray(value, dtype=float))
                    numbers = choice.strip("[]").replace(",", "" if len(listed) == 1 else " ").split()
                    shown = [float(number) for number in numbers]
                    assert shown == pytest.approx(listed, rel=2e-3, abs=2e-3), (name, reason)
                    found += 1
    assert found >= (15 if count > 1 else 5)
    assert vocab > 1
