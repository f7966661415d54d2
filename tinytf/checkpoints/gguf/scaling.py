"""The scaling of RoPE in a GGUF file: from keys, or from a table of factors."""

import math
from collections.abc import Sequence
from typing import Any

from tinytf.checkpoints.gguf.weights import read_tensor
from tinytf.checkpoints.table import Draft, Tensors
from tinytf.config import Rope
from tinytf.fields import Fields
from tinytf.steps.operations.rotate import rotary_frequencies

FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
_TYPES = ("none", "linear", "yarn", "longrope")
_LOW, _HIGH = 1.0, 4.0  # in every Llama 3.1 to 3.3
_CONTEXTS = tuple(2**power for power in range(4, 21))
_TOLERANCE = 1e-4


def scaling_from_keys(keys: Fields, log_multiplier: bool = False) -> dict[str, Any]:
    """The scaling that the keys of an architecture give. Raises CheckpointError for one that is not implemented.

    As in llama.cpp, a factor without a type is linear, and type none overrides a factor. With ``log_multiplier`` the
    caller reads the key of that name.
    """
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in _TYPES:
        raise keys.fault(f"rope.scaling.type {kind!r} is not implemented", f"implemented: {', '.join(_TYPES)}")
    factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 0.0)
    if not log_multiplier:
        keys.require("rope.scaling.yarn_log_multiplier", (0.0,))
    if kind == "yarn" and factor > 1:
        return _yarn(keys, factor)
    keys.require("rope.scaling.attn_factor", (1.0,))
    if kind != "linear" or factor in (0.0, 1.0):
        return {}
    return {"rope_scaling": "linear", "rope_factor": factor}


def _yarn(keys: Fields, factor: float) -> dict[str, Any]:
    """YaRN (Peng et al. 2023); llama.cpp multiplies the attention factor of the key by 0.1 · ln factor + 1."""
    for name in ("ext_factor", "attn_factor"):
        keys.require(f"rope.scaling.yarn_{name}", (1.0,))
    return {
        "rope_scaling": "yarn",
        "rope_factor": factor,
        "rope_original_context": keys.whole("rope.scaling.original_context_length"),
        "rope_low_frequency": keys.number("rope.scaling.yarn_beta_slow", 1.0),
        "rope_high_frequency": keys.number("rope.scaling.yarn_beta_fast", 32.0),
        "rope_attention_factor": keys.number("rope.scaling.attn_factor", 1.0) * (0.1 * math.log(factor) + 1),
    }


def read_longrope(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The factors of LongRoPE (Ding et al. 2024), one for each frequency; else the scaling in the keys."""
    if LONG_FACTORS not in tensors:
        return scaling_from_keys(keys)
    n_frequencies = (draft.get("rope_width") or draft["d_head"]) // 2
    factors = {}
    for name, field in ((SHORT_FACTORS, "rope_short_factors"), (LONG_FACTORS, "rope_long_factors")):
        if name not in tensors or tensors[name].shape != (n_frequencies,):
            raise keys.fault(f"{name} has to have {n_frequencies} numbers")
        factors[field] = tuple(read_tensor(tensors[name]).tolist())
    return {
        "rope_scaling": "longrope",
        "rope_original_context": keys.whole("rope.scaling.original_context_length"),
        "rope_attention_factor": keys.number("rope.scaling.attn_factor", 1.0),
        **factors,
    }


def scaling_from_factors(factors: Sequence[float], d_head: int, theta: float) -> dict[str, Any] | None:
    """The Llama 3 scaling with these factors, empty if they are all 1; None if no such scaling exists.

    A file stores the factors that divide the RoPE frequencies, but not the settings that they were computed from.
    """
    if all(factor == 1.0 for factor in factors):
        return {}
    largest = max(factors)
    if not (math.isfinite(largest) and largest > 1):
        return None
    for context in _CONTEXTS:
        rope = Rope(d_head, theta, "llama3", largest, _LOW, _HIGH, context)
        expected = rotary_frequencies(rope._replace(scaling="none")) / rotary_frequencies(rope)
        if all(math.isclose(a, b, rel_tol=_TOLERANCE) for a, b in zip(factors, expected.tolist(), strict=True)):
            return {
                "rope_scaling": "llama3",
                "rope_factor": largest,
                "rope_low_frequency": _LOW,
                "rope_high_frequency": _HIGH,
                "rope_original_context": context,
            }
    return None


def read_scaling(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The scaling of RoPE, from keys or from factors. Raises CheckpointError for one that is not implemented."""
    from_keys = scaling_from_keys(keys)
    stored = tensors.get(FACTORS)
    if stored is None:
        return from_keys
    d_head, theta = draft["d_head"], draft["rope_theta"]
    if stored.shape != (d_head // 2,):
        raise keys.fault(f"{FACTORS} has shape {stored.shape}, and needs {(d_head // 2,)}")
    from_factors = scaling_from_factors(read_tensor(stored).tolist(), d_head, theta) if theta > 0 else None
    if from_factors is None or (from_factors and from_keys):
        raise keys.fault(
            f"the rotary factors in {FACTORS} are not those of a Llama 3 scaling",
            "other tables of factors are not implemented",
        )
    return from_factors or from_keys
