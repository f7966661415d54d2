"""How far two numbers that should be equal may differ: a table for each comparison, by precision, with its reason.

Each is relative to the largest value compared, or to 1 if that is larger.
"""

from collections.abc import Mapping

import torch

ByPrecision = Mapping[torch.dtype, float]

STEP: ByPrecision = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""A step computed again from the steps before it: the same numbers, summed in another order."""

GRADIENT: ByPrecision = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""A gradient by formula and by autograd: sums over all tokens, some of which cancel out."""

PARTS: ByPrecision = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""The parts of a logit and the logit: the rounding of each layer is in the logit and not in the parts."""

DECODED: ByPrecision = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Logits of the fast decoder and of the model's modules: about 1e-6 in float32 is rounding, about 1e-3 a missing soft
cap; with 8 or 11 bits the two round at different places of every layer."""

RUN: ByPrecision = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 3e-2}
"""A step of two runs that should be equal: at most three times what rounding came to in the 30 layers of SmolLM2."""

STUDENT: ByPrecision = {torch.float32: 2e-5}
"""A step in the first layer of somebody else's code, with the same weights: other orders of sums, below 1e-6; GELU by
tanh in place of erf is beyond it. After n layers it is √(1 + n) times that: 1.4e-5 was the most in SmolLM2's 30."""

INT8: ByPrecision = {torch.float32: 0.15}
"""Logits of int8 weights and of the weights as they are: some 0.01 to 0.04 for trained and random models; scales
that are wrong by a factor of 2 are beyond it."""


def allowed(table: ByPrecision, dtype: torch.dtype) -> float:
    """The limit in a precision; float32's for a precision without one."""
    return table.get(dtype, table[torch.float32])
