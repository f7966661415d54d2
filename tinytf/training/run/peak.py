"""What the machine could do: the model's own work for a token, and the fastest matrix product measured here."""

import time

import torch

from tinytf.config import ModelConfig
from tinytf.steps.linear import linear
from tinytf.steps.work import work_per_token

_WIDTH = {"cpu": 1024}
_WIDEST = 8192
_SECONDS, _FEWEST = 0.2, 3


def training_flops(config: ModelConfig, length: int) -> int:
    """Floating point operations that one token costs, forward and backward, in windows of ``length`` tokens.

    Three times those of the forward pass: 6 for each weight, and attention to all of the window (Chowdhery et al. 2022,
    "PaLM", appendix B). What is computed again, or frozen, makes no difference.
    """
    return 3 * work_per_token(config, length).total


@torch.no_grad()
def matrix_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Floating point operations per second of the fastest of some square products; leaves the random state alone."""
    width = _WIDTH.get(device.type, _WIDEST)
    one = torch.rand(width, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    least, began, done = float("inf"), time.perf_counter(), 0
    while done < _FEWEST or time.perf_counter() - began < _SECONDS:
        start = time.perf_counter()
        linear(one, one, None)  # by the kernel that the model's own products have
        if device.type != "cpu":
            torch.accelerator.synchronize()
        least = min(least, time.perf_counter() - start)
        done += 1
    return 2 * width**3 / least


def peak_dtype(dtype: str) -> torch.dtype:
    """What the products of a recipe are computed in."""
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32
