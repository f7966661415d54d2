"""The model's own work per token, and the peak speed of the machine: its fastest matrix product, measured."""

import time
from collections.abc import Callable

import torch

from tinytf.config import ModelConfig
from tinytf.steps.linear import linear
from tinytf.steps.work import work_per_token
from tinytf.training.recipe import Recipe

_WIDTH = {"cpu": 1024}
_DEFAULT_WIDTH = 8192
_SECONDS, _MIN_ROUNDS = 0.2, 3
_SLOWER = 1.5
"""From this ratio on a dtype is called slower; below it, two measurements may differ by chance."""


def training_flops(config: ModelConfig, length: int) -> int:
    """Floating point operations that one token costs, forward and backward, in windows of ``length`` tokens.

    Of two stacks, a token of the target and one of the source. Three times the forward pass: 6 per weight, plus
    attention to the whole window (Chowdhery et al. 2022, "PaLM", appendix B). Recomputed or frozen parts do not
    change it.
    """
    work = work_per_token(config, length)
    return 3 * (work.total + work.encoder + work.source)


@torch.no_grad()
def matrix_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Floating point operations per second of the fastest of several square products; keeps the random state."""
    width = _WIDTH.get(device.type, _DEFAULT_WIDTH)
    matrix = torch.rand(width, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    fastest, begin, rounds = float("inf"), time.perf_counter(), 0
    while rounds < _MIN_ROUNDS or time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        linear(matrix, matrix, None)  # the kernel of the model's own products
        if device.type != "cpu":
            torch.accelerator.synchronize()
        fastest = min(fastest, time.perf_counter() - start)
        rounds += 1
    return 2 * width**3 / fastest


def slower_dtype(dtype: str, device: torch.device, peak: float) -> str:
    """A note if products in bfloat16, of which ``peak`` were measured, are slower here than in float32; else empty.

    Processors without bfloat16 products (avx512_bf16, amx_bf16 of x86) convert every number.
    """
    if dtype != "bfloat16" or (ratio := matrix_peak(device) / peak) < _SLOWER:
        return ""
    return f"products in bfloat16 are {ratio:.1f} times slower here than in float32; --dtype float32 trains faster"


def peak_of(
    config: ModelConfig, recipe: Recipe, device: torch.device, count: int, on_note: Callable[[str], None]
) -> dict[str, float]:
    """The work per token, and the peak of ``count`` processes together, in operations per second."""
    peak = matrix_peak(device, torch.bfloat16 if recipe.dtype == "bfloat16" else torch.float32)
    if note := slower_dtype(recipe.dtype, device, peak):
        on_note(note)
    return {"flops_per_token": training_flops(config, recipe.block), "peak_flops": round(count * peak)}
