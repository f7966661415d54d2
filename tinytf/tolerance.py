"""How far two numbers that should be one may differ: a table for each comparison, by precision, with its reason.

Each is relative to the largest value that was compared, or to 1 where that is less.
"""

from collections.abc import Mapping

import torch

ByPrecision = Mapping[torch.dtype, float]

STEP: ByPrecision = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""A step computed again from the steps before it: the same numbers, summed in another order."""

GRADIENT: ByPrecision = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""A gradient by formula and by autograd: sums over all tokens, some of which cancel out."""

PARTS: ByPrecision = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""The parts of a logit and the logit: what each layer rounded on the way is in the one and not in the others."""

DECODED: ByPrecision = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Logits of the fast decoder and of the model's modules: some 1e-6 in float32 is rounding, some 1e-3 is a soft cap
left out; with 8 or 11 bits each rounds at other places of every layer."""

INT8: ByPrecision = {torch.float32: 0.15}
"""Logits of int8 weights and of the weights as they are: some 0.01 to 0.04 for trained and random models; scales
that are wrong by a factor of 2 are beyond it."""


def allowed(table: ByPrecision, dtype: torch.dtype) -> float:
    """The limit in a precision; that of float32 in one that no table names."""
    return table.get(dtype, table[torch.float32])
