"""Faults smaller than rounding in bfloat16, which only the lean of its errors shows; for any model of transformers."""

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from broken.bench import Broken, Patch


def _after(pattern: str, change: Callable[[Tensor, Any], Tensor]) -> Broken:
    """Changes what the modules return whose path matches ``pattern``."""

    def broken(model: Any, patch: Patch) -> None:
        for name, module in model.named_modules():
            if re.search(pattern, name):
                module.register_forward_hook(lambda module, args, out: change(out, model.config))

    return broken


def _times(pattern: str, factor: float) -> Broken:
    return _after(pattern, lambda out, config: out * factor)


def _more(pattern: str, share: float) -> Broken:
    return _after(pattern, lambda out, config: out + share * out.float().square().mean().sqrt().to(out.dtype))


def _head_times(pattern: str, head: int, factor: float) -> Broken:
    def change(out: Tensor, config: Any) -> Tensor:
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        scaled = out.clone()
        scaled[..., head * width : (head + 1) * width] *= factor
        return scaled

    return _after(pattern, change)


def _vector(out: Tensor, config: Any) -> Tensor:
    """A bias of a hundredth, of changing signs."""
    size, signs = out.float().square().mean().sqrt(), (-1.0) ** (out.new_ones(out.shape[-1]).cumsum(0) // 3)
    return out + (0.015 * size * signs).to(out.dtype)


def eps(value: float) -> Broken:
    def broken(model: Any, patch: Patch) -> None:
        for module in model.modules():
            for name in ("variance_epsilon", "eps"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, value)

    return broken


_FAR = r"|\S+ is \S+ × as far off"
_LAYER = r"layers\.1\."
_FAULTS: list[tuple[str, Broken, str, str]] = [
    ("queries times 1.01", _times(f"{_LAYER}self_attn.q_proj", 1.01), "L1.q", r"L1\.q is 1\.0(09|10)\d times"),
    ("values times 0.995", _times(f"{_LAYER}self_attn.v_proj", 0.995), "L1.v", r"L1\.v is 0\.99[45]\d times"),
    ("a norm times 1.005", _times(f"{_LAYER}input_layernorm", 1.005), "L1.norm1", r"L1\.norm1 is 1\.00[456]\d times"),
    ("attention times 1.01", _times(f"{_LAYER}self_attn.o_proj", 1.01), "L1.attn",
     r"L1\.attn is 1\.0(09|1[01])\d times"),
    ("up by a hundredth", _more(f"{_LAYER}mlp.up_proj", 0.01), "L1.ffn.hidden",
     r"L1\.\S+ is too large everywhere, by 0\.0(09|1)"),
    ("down by minus a hundredth", _more(f"{_LAYER}mlp.down_proj", -0.01), "L1.ffn",
     r"L1\.ffn is too small everywhere, by" + _FAR),
    ("a bias too many", _after(f"{_LAYER}self_attn.k_proj", _vector), "L1.k",
     r"L1\.k is off by one vector at every token" + _FAR),
    ("logits times 1.003", _times("^lm_head", 1.003), "logits", r"logits is 1\.00[1-4]\d times"),
    ("one head times 1.02", _head_times(f"{_LAYER}self_attn.q_proj", 1, 1.02), "L1.q",
     r"head 1 of L1\.q is 1\.0(19|2[01])\d times"),
]  # fmt: skip
FAULTS = {name: (broken, step, f"(?:{words})") for name, broken, step, words in _FAULTS}
"""A fault, the step at which it is, and what is said of it."""
