"""Ports whose fault is in the cache, in what is beside the activations, or between two models."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import cache_utils

from broken.bench import Broken, Port
from broken.patches import layers_exchanged, seen, several, steps, swapped, tensors
from broken.weights import to_pairs

_CONV = steps(0, *["conv", "concat", "attn", "q_conv", "k_conv", "v_conv", "written", "read", "head_out", "head_norm"])


def cached(change: Any) -> Broken:
    """What a cache gives for its layers in later passes, through a function of its keys or values."""
    plain = cache_utils.DynamicLayer.update

    def update(layer: Any, keys: Tensor, values: Tensor, *more: Any, **settings: Any) -> Any:
        both = plain(layer, keys, values, *more, **settings)
        return tuple(change(*both)) if keys.shape[-2] == 1 else both

    return lambda model, patch: patch(cache_utils.DynamicLayer, "update", update)


def state(change: Any) -> Broken:
    """The state of a convolution that a cache holds, through a function, in later passes."""

    def broken(model: Any, patch: Any) -> None:
        kind = cache_utils.LinearAttentionLayer
        plain = kind.update_conv_state

        def update(layer: Any, states: Tensor, *more: Any, **settings: Any) -> Any:
            found = plain(layer, states, *more, **settings)
            for held in layer.conv_states.values() if isinstance(layer.conv_states, dict) else [layer.conv_states]:
                held.copy_(change(held))
            return found

        patch(kind, "update_conv_state", update)

    return broken


def rounded_to_int8(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
    return (x / scale).round() * scale


def first_lost(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return keys * (torch.arange(keys.shape[-2]) > 0)[:, None], values


def _with_labels(shifted: bool) -> Any:
    """Labels and the loss: of the next token; or of the one after that, where labels are shifted twice."""

    def dumped(port: dict[str, Any]) -> dict[str, Any]:
        ids, logits = port["input_ids"], torch.from_numpy(port["logits"])
        labels = np.concatenate((ids[:, 1:], np.full((1, 1), -100)), 1) if shifted else ids
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], torch.from_numpy(labels[0, 1:]), ignore_index=-100)
        return {**port, "labels": labels, "loss": loss.numpy()}

    return dumped


_NEXT = "(?i)token before|lost|forgot|dropped|unseen|key"
_L = "model.layers."
PASSES: tuple[tuple[str, str, Broken, str, str], ...] = (
    ("llama", "first key lost", cached(first_lost), seen(0), "(?i)first|token 0|lost|key"),
    ("qwen3", "first value lost", cached(lambda k, v: first_lost(v, k)[::-1]), seen(0), "(?i)first|token 0|lost|value"),
    ("granite", "keys in int8", cached(lambda k, v: (rounded_to_int8(k), v)), seen(0), "(?i)int8|8 bits"),
    ("olmo2", "keys and values in int8", cached(lambda k, v: (rounded_to_int8(k), rounded_to_int8(v))), seen(0),
     "(?i)int8|8 bits"),
    ("neox", "values one late", cached(lambda k, v: (k, v.roll(1, -2))), seen(0), "(?i)shift|token before|value"),
    ("llama", "keys of another head", cached(lambda k, v: (k.flip(1), v)), seen(0), "(?i)head|order"),
    ("lfm2", "state shifted", state(lambda held: held.roll(1, -1)), _CONV, "(?i)state|shift|token"),
    ("lfm2", "state lost", state(lambda held: held * 0), _CONV, "(?i)state|forgot|lost|0"),
)  # fmt: skip


def _logits(change: Any) -> Any:
    """Other numbers as the logits, where the head's own output is not written down."""
    return lambda port: {
        name: one if name != "logits" else change(one) for name, one in port.items() if name != "lm_head"
    }


BESIDE: tuple[tuple[str, str, Any, str, str], ...] = (
    ("llama", "labels shifted twice", _with_labels(True), "loss labels", "(?i)shift|twice|label"),
    ("gpt2", "labels shifted twice", _with_labels(True), "loss labels", "(?i)shift|twice|label"),
    ("qwen3", "log-probabilities at temperature 0.9",
     _logits(lambda logits: logits / 0.9), "logits", r"(?i)temperature|1\.11|0\.9"),
    ("llama", "logits one token late", _logits(lambda logits: np.roll(logits, 1, 1)), "logits",
     "(?i)shift|late|before"),
)  # fmt: skip
BETWEEN: tuple[tuple[str, str, Broken, str, str], ...] = (
    ("llama", "rows of q and k in pairs", several(tensors(r"q_proj\.weight", to_pairs(4)), tensors(r"k_proj\.weight",
     to_pairs(2))),
     steps(0, "q"), "pairs|order"),
    ("qwen3", "rows of q in pairs", tensors(r"q_proj\.weight", to_pairs(4)), steps(0, "q"), "pairs|order"),
    ("llama", "gate and up exchanged", swapped(f"{_L}2.mlp.gate_proj.weight", f"{_L}2.mlp.up_proj.weight"),
     steps(2, "ffn.hidden", "ffn.gate"), "(?i)L2.ffn.gate|gate|exchanged"),
    ("llama", "layers exchanged", layers_exchanged(1, 2), steps(1, "norm1"), "layers 1 and 2|L2"),
    ("granite", "attention of two layers exchanged", layers_exchanged(1, 2, "self_attn"), steps(1, "q"),
     "W_Q|attention"),
    ("gpt2", "c_attn.bias is missing", tensors(r"c_attn\.bias", torch.zeros_like), steps(0, "q"), "(?i)bias|b_Q"),
    ("llama", "o transposed", tensors(r"layers\.1\.self_attn\.o_proj\.weight", lambda w: w.T.contiguous()), steps(1,
     "attn"), "transposed"),
    ("llama", "down by 0.5", tensors(r"layers\.1\.mlp\.down_proj\.weight", lambda w: w * 0.5), steps(1, "ffn"),
     r"0\.5|twice|2 times"),
    ("neox", "joint rows in thirds", tensors(r"query_key_value\.(weight|bias)", lambda w: w.unflatten(0, (4, 3,
     -1)).transpose(0, 1).reshape(w.shape)),
     steps(0, "q"), "(?i)order|cut|head"),
)  # fmt: skip
BROKEN = {
    **{
        f"{name}: generation, {words}": Port(name, broken, first, cause, generated=True)
        for name, words, broken, first, cause in PASSES
    },
    **{
        f"{name}: {words}": Port(name, lambda model, patch: None, first, cause, dumped=change)
        for name, words, change, first, cause in BESIDE
    },
    **{
        f"{name}: two models, {words}": Port(name, broken, first, cause, versus=True)
        for name, words, broken, first, cause in BETWEEN
    },
}
