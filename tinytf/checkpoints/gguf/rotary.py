"""How a file's rotary angles are stretched, in our configuration's words.

A file says it by keys (``rope.scaling.*``), or, for Llama 3, by a tensor of factors that divide the frequencies,
without the numbers that they were made from. Those are found again, and only where they give every factor back.
"""

import math
from collections.abc import Sequence
from typing import Any

from tinytf.fields import Fields

FACTORS = "rope_freqs.weight"
_TYPES = ("none", "linear")
_LOW, _HIGH = 1.0, 4.0  # of every Llama 3.1 to 3.3
_CONTEXTS = tuple(2**power for power in range(4, 21))
_TOLERANCE = 1e-4


def scaling_from_keys(keys: Fields) -> dict[str, Any]:
    """The scaling that the keys of an architecture name; CheckpointError for one that is not implemented.

    As llama.cpp reads them: a factor without a type is linear, and a type of none makes a factor void.
    """
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in _TYPES:
        raise keys.fault(f"rope.scaling.type {kind!r} is not implemented", f"implemented: {', '.join(_TYPES)}")
    factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 0.0)
    keys.require("rope.scaling.attn_factor", (1.0,))
    if kind == "none" or factor in (0.0, 1.0):
        return {}
    return {"rope_scaling": "linear", "rope_factor": factor}


def llama3_factors(d_head: int, theta: float, factor: float, original_context: int) -> list[float]:
    """What Llama 3's scaling divides each of the d_head / 2 frequencies by (Grattafiori et al. 2024)."""
    found = []
    for pair in range(d_head // 2):
        turns = original_context * theta ** (-2 * pair / d_head) / (2 * math.pi)
        keep = min(1.0, max(0.0, (turns - _LOW) / (_HIGH - _LOW)))
        found.append(1 / ((1 - keep) / factor + keep))
    return found


def scaling_from_factors(factors: Sequence[float], d_head: int, theta: float) -> dict[str, Any] | None:
    """The Llama 3 scaling that has these factors, nothing for factors of 1; None where there is no such scaling."""
    if all(factor == 1.0 for factor in factors):
        return {}
    largest = max(factors)
    if not (math.isfinite(largest) and largest > 1):
        return None
    for context in _CONTEXTS:
        expected = llama3_factors(d_head, theta, largest, context)
        if all(math.isclose(a, b, rel_tol=_TOLERANCE) for a, b in zip(factors, expected, strict=True)):
            return {
                "rope_scaling": "llama3",
                "rope_factor": largest,
                "rope_low_frequency": _LOW,
                "rope_high_frequency": _HIGH,
                "rope_original_context": context,
            }
    return None
