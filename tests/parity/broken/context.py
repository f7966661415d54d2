"""Ports whose mask, positions, cache or labels are wrong, by kind: written beside what is tested here."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from broken.bench import Broken, Port
from broken.caches import cached, rounded_to_int8, state
from broken.patches import replaced, scores, seen, steps, sunk

_CONV = steps(0, "concat", "attn")


def _sight(sees: Callable[[Tensor, Tensor], Tensor], number: float = -torch.inf) -> Broken:
    """Attention in which a query sees those keys alone; the others get a number added."""

    def hidden(mask: Tensor) -> Tensor:
        query, key = torch.arange(mask.shape[-2])[:, None], torch.arange(mask.shape[-1])
        return torch.zeros(mask.shape[-2:]).masked_fill(~sees(query, key), number)

    return scores(mask=hidden)


def _apart(sees: Callable[[Tensor, Tensor], Tensor]) -> Broken:
    """As ``_sight``, in a model without a mask."""

    def hidden(found: Tensor) -> Tensor:
        places = torch.arange(found.shape[-1])
        return found.masked_fill(~sees(places[:, None], places), -torch.inf)

    return scores(apart=hidden)


def _turned(q_places: Callable[[Tensor], Tensor], k_places: Callable[[Tensor], Tensor]) -> Broken:
    """Queries and keys at other positions, by the cosines and sines of these."""

    def make(plain: Any) -> Any:
        def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> Any:
            half = cos.shape[-1] // 2
            turn = torch.polar(cos[0, 1, :half].double(), torch.zeros(half).double())
            angle = torch.atan2(sin[0, 1, :half].double(), turn.real)
            at = torch.arange(cos.shape[1]).double()

            def waves(places: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
                angles = torch.cat((places(at)[:, None] * angle,) * 2, -1)[None]
                return angles.cos().float(), angles.sin().float()

            first, _ = plain(q, k, *waves(q_places), *more, **named)
            _, second = plain(q, k, *waves(k_places), *more, **named)
            return first, second

        return apply

    return replaced("apply_rotary_pos_emb", make)


def _same(at: Tensor) -> Tensor:
    return at


def _loss(of: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """A loss from the logits (T, V) and ids (T) of a port."""

    def dumped(port: dict[str, Any]) -> dict[str, Any]:
        logits, ids = torch.from_numpy(port["logits"])[0], torch.from_numpy(port["input_ids"])[0]
        return {**port, "loss": of(logits, ids).numpy()}

    return dumped


_ENTROPY = torch.nn.functional.cross_entropy


def _waves(change: Callable[[Tensor], Tensor], base: float = 500.0) -> Any:
    """Cosines and sines that a port writes down beside the steps, from other positions or another base."""

    def dumped(port: dict[str, Any]) -> dict[str, Any]:
        width = 12
        turn = base ** -(torch.arange(0, width, 2).float() / width)
        angle = torch.cat((change(torch.arange(port["input_ids"].shape[1]).float())[:, None] * turn,) * 2, -1)
        kept = {name: one for name, one in port.items() if "rotary_emb" not in name}
        return {**kept, "cos": angle.cos()[None].numpy(), "sin": angle.sin()[None].numpy()}

    return dumped


def _with(**tensors: Callable[[int], np.ndarray[Any, Any]]) -> Any:
    """Other tensors, from the count of tokens."""
    return lambda port: {**port, **{name: make(port["input_ids"].shape[1]) for name, make in tensors.items()}}


def _alone(change: Any) -> Any:
    """What ``change`` writes, of a port that writes no step but the embeddings: nothing else tells what it read."""

    def dumped(port: dict[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in change(port).items() if not re.search("layers|norm|head|logits", name)}

    return dumped


MASKS: tuple[tuple[str, str, Broken, str], ...] = (
    *((model, f"a window of {width} tokens", _sight(lambda q, k, w=width: (k <= q) & (q - k < w)),
       f"a window of {width} tokens") for model, width in (("llama", 7), ("granite", 3), ("qwen3", 16))),
    ("olmo2", "chunks of 5", _sight(lambda q, k: (k <= q) & (q // 5 == k // 5)), "chunks of 5"),
    ("llama", "documents from token 8 on", _sight(lambda q, k: (k <= q) & ((q >= 8) == (k >= 8))),
     "tokens from 8 on do not see those before"),
    ("qwen3", "a prefix of 6 tokens", _sight(lambda q, k: (k <= q) | ((q < 6) & (k < 6))), "the first 6 tokens see"),
    ("neox", "the first token hidden", _sight(lambda q, k: (k <= q) & ((k != 0) | (q == 0))), "token 0 is hidden"),
    ("llama", "token 4 hidden", _sight(lambda q, k: (k <= q) & ((k != 4) | (q == 4))), "token 4 is hidden"),
    ("llama", "a window of 6 beside 4 sinks", _sight(lambda q, k: (k <= q) & ((q - k < 6) | (k < 4))),
     "a window of .* tokens beside the first 4"),
    *(("phi", f"the mask is {number:g}", _sight(lambda q, k: k <= q, number), f"adds {number:g} to hidden")
      for number in (-2.0, -7.5)),
    ("bert", "the future alone", _apart(lambda q, k: k >= q), "earlier tokens are hidden|upside down"),
    ("bert", "a window of 5", _apart(lambda q, k: (q - k).abs() < 5), "a window of 5 tokens"),
    ("bert", "the last two hidden", _apart(lambda q, k: k < 17), "the last 2 tokens are hidden"),
    ("gptoss", "sinks twice as large", scores(share=sunk(2.0)), "sinks are 2 times|sink.logit is twice as large"),
    ("granite", "an extra score of 1.5",
     scores(share=lambda s, m: torch.cat((s, s[..., :1] * 0 + 1.5), -1).softmax(-1)), r"an extra score of 1\.5"),
)  # fmt: skip
POSITIONS: tuple[tuple[str, str, Broken, str], ...] = (
    ("llama", "keys 3 on", _turned(_same, lambda at: at + 3), "positions start at 3, not at 0, for keys alone"),
    ("qwen3", "queries 1 back", _turned(lambda at: at - 1, _same), "start at −1, not at 0, for queries|1, .* for keys"),
    ("llama", "queries not rotated", _turned(lambda at: at * 0, _same), "left out, for queries alone"),
    ("olmo2", "from token 9 again", _turned(*[lambda at: at - 9 * (at >= 9)] * 2), "restart at 0 at token 9"),
    ("qwen3", "queries twice", _turned(lambda at: 2 * at, _same), "twice, for queries alone"),
    ("granite", "positions stop at 11", _turned(*[lambda at: at.clamp(max=11)] * 2),
     "every position from 12 on is 11"),
)  # fmt: skip
CACHES: tuple[tuple[str, str, Broken, str, str], ...] = (
    ("llama", "values in float8", cached(lambda k, v: (k, v.to(torch.float8_e4m3fn).float())), seen(0),
     r"values are kept in float8 \(e4m3\)"),
    ("granite", "keys and values in bfloat16", cached(lambda k, v: (k.bfloat16().float(), v.bfloat16().float())),
     seen(0), "keys and values are kept in bfloat16"),
    ("qwen3", "earlier values in int8", cached(lambda k, v: (k, torch.cat((rounded_to_int8(v[..., :-1, :]),
                                                                        v[..., -1:, :]), -2))),
     seen(0), "values of earlier tokens are kept in int8"),
    ("olmo2", "keys one early", cached(lambda k, v: (k.roll(-1, -2), v)), seen(0), "keys are those of the token after"),
    ("neox", "values of other heads", cached(lambda k, v: (k, v.roll(1, 1))), seen(0), "values .* of other heads"),
    ("llama", "keys and values of another head", cached(lambda k, v: (k.flip(1), v.flip(1))), seen(0),
     "keys and values .* of other heads: 1 0"),
    ("llama", "values in the opposite order", cached(lambda k, v: (k, v.flip(2))), seen(0),
     "in the opposite order of tokens"),
    ("phi", "all values lost", cached(lambda k, v: (k, torch.cat((v[..., :-1, :] * 0, v[..., -1:, :]), -2))), seen(0),
     "values of earlier tokens are 0"),
    ("lfm2", "the window in the opposite order", state(lambda held: held.flip(-1)), _CONV, "in the opposite order"),
    ("lfm2", "the window rolled back", state(lambda held: held.roll(-1, -1)), _CONV, "rolled by −1"),
)  # fmt: skip
BESIDE: tuple[tuple[str, str, Any, str, str], ...] = (
    ("llama", "a loss that is not shifted", _loss(_ENTROPY), "loss", "labels are not shifted"),
    ("gpt2", "a loss that is summed", _loss(lambda logits, ids: _ENTROPY(logits[:-1], ids[1:], reduction="sum")),
     "loss", "summed over 18 tokens"),
    ("qwen3", "a loss in bits", _loss(lambda logits, ids: _ENTROPY(logits[:-1], ids[1:]) / np.log(2)), "loss",
     "in bits"),
    ("olmo2", "a perplexity", _loss(lambda logits, ids: _ENTROPY(logits[:-1], ids[1:]).exp()), "loss", "perplexity"),
    ("llama", "waves of another base", _alone(_waves(_same, 700.0)), "cos", "base of 700 instead of 500"),
    ("llama", "waves from position 1", _alone(_waves(lambda at: at + 1)), "cos", "positions from 1 on"),
    ("llama", "positions from 2", _alone(_with(position_ids=lambda count: np.arange(count)[None] * 2)), "position_ids",
     "others from token 1 on: 2 there"),
    ("llama", "a mask of -10",
     _alone(_with(causal_mask=lambda count: np.triu(np.full((1, 1, count, count), -10.0), 1))), "causal_mask",
     "adds -10"),
    ("granite", "logits two tokens early",
     lambda port: {name: np.roll(one, -2, 1) if name == "logits" else one for name, one in port.items()
                   if name != "lm_head"},
     "logits", "the token 2 after it"),
)  # fmt: skip
BROKEN = {
    **{f"{name}: mask, {words}": Port(name, broken, seen(0), cause) for name, words, broken, cause in MASKS},
    **{f"{name}: positions, {words}": Port(name, broken, seen(0), cause) for name, words, broken, cause in POSITIONS},
    **{
        f"{name}: cached, {words}": Port(name, broken, first, cause, generated=True)
        for name, words, broken, first, cause in CACHES
    },
    **{
        f"{name}: beside, {words}": Port(name, lambda model, patch: None, first, cause, dumped=change)
        for name, words, change, first, cause in BESIDE
    },
}
SOUND = {
    f"{name}: beside, as it is": Port(name, lambda model, patch: None, "", dumped=change)
    for name, change in (
        ("llama", _waves(_same)),
        ("olmo2", _waves(lambda at: at + 4)),
        ("gpt2", _loss(lambda logits, ids: _ENTROPY(logits[:-1], ids[1:]))),
        ("qwen3", _with(position_ids=lambda count: np.arange(5, count + 5)[None],
                        causal_mask=lambda count: np.triu(np.full((1, 1, count, count), -1e38), 1))),
        ("bert", _with(labels=lambda count: np.full((1, count), -100))),
    )
}  # fmt: skip
