"""Rotary settings in every spelling: rope_theta and rope_scaling, or rope_parameters, also by kind of layer."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinytf.checkpoints.huggingface.windows import FULL, SLIDING, Kinds, kind_of
from tinytf.checkpoints.table import Draft, Group, Key, Tensors
from tinytf.config import DIFFERING, ModelConfig
from tinytf.fields import Fields

SCALINGS: Mapping[str, str] = {
    "default": "none",
    **{word: word for word in ("linear", "dynamic", "llama3", "yarn", "longrope")},
}
_LLAMA3 = (
    Key("low_freq_factor", "rope_low_frequency"),
    Key("high_freq_factor", "rope_high_frequency"),
)
_YARN = (
    Key("beta_slow", "rope_low_frequency", 1.0),
    Key("beta_fast", "rope_high_frequency", 32.0),
)
_LONGROPE = {"short_factor": "rope_short_factors", "long_factor": "rope_long_factors"}
_ORIGINAL = "original_max_position_embeddings"
_WHOLE_WIDTH = (1, 1.0)  # the fraction of a head that RoPE rotates


def rope(
    theta: float = 10_000.0,
    *,
    share: float | None = None,
    odd: bool = True,
    sections: bool = False,
    scalings: Mapping[str, str] = SCALINGS,
    original: int = 0,
    local: "Callable[[Fields], float] | None" = None,
    kinds: Kinds | None = None,
) -> Group:
    """The rotary settings of a family whose default base is ``theta``.

    ``share`` is the default fraction of a head that RoPE rotates; None for a family that always rotates all of it.
    ``odd``: also an odd number of dimensions. ``sections`` allows dimensions that follow positions in an image; in a
    text they all follow the text. ``original`` is the default original context of a family that stores it beside the
    rotary settings. With ``kinds`` each kind of layer may have its own settings; ``local`` is then the base of layers
    with a window, where the file has only one.
    """

    def read_settings(fields: Fields, rotary: Fields, common: Fields, draft: Draft, base: float) -> dict[str, Any]:
        """Our fields from one object of rotary settings."""
        if not sections:
            rotary.require("mrope_section", ())
        word = rotary.word("rope_type" if "rope_type" in rotary.data else "type", scalings, "default")
        values: dict[str, Any] = {"rope_theta": rotary.number("rope_theta", base), "rope_scaling": word}
        if word == "proportional":
            pairs = int(rotary.number("partial_rotary_factor", 1.0) * draft["d_head"] // 2)
            return {**values, "rope_turned": pairs, "rope_factor": rotary.number("factor", 1.0)}
        if share is None:
            rotary.require("partial_rotary_factor", _WHOLE_WIDTH)
        else:
            default_share = fields.number("partial_rotary_factor", share)
            part = rotary.number("partial_rotary_factor", default_share)
            values |= rotary_pairs(rotary, draft, part, values["rope_theta"], odd=odd and word != "yarn")
        if word in ("none", "reversed"):
            return values
        if word in ("linear", "dynamic", "llama3"):
            values["rope_factor"] = rotary.number("factor")
        if word == "dynamic" and values["rope_theta"] != rotary.number("rope_theta", base):
            raise rotary.fault("a dynamic base of an odd number of rotated dimensions is not implemented")
        if word == "dynamic":  # the file's context is the original one, and texts may be longer
            original_context = draft["context"]
            context = int(original_context * max(1.0, values["rope_factor"]))
            return {**values, "rope_original_context": original_context, "context": context}
        if word != "linear":
            context = draft.get("context", 0)  # some families have none
            original_context = fields.whole(_ORIGINAL, original) or rotary.whole(_ORIGINAL, 0) or context
            values["rope_original_context"] = original_context
        for key in {"llama3": _LLAMA3, "yarn": _YARN}.get(word, ()):
            values |= key.read(rotary, values, {})
        if word in ("yarn", "longrope"):
            factor = rotary.number("factor", context / original_context if original_context else 0.0)
            attention_factor = rotary.number("attention_factor", 0.0)
            values["rope_attention_factor"] = attention_factor or _attention_factor(rotary, word, factor, values)
        if word == "yarn":  # transformers reads truncate outside the kinds of layers
            values |= {"rope_factor": factor, "rope_truncate": common.flag("truncate", True)}
        if word == "longrope":
            values |= {ours: tuple(map(float, rotary.array(name, float))) for name, ours in _LONGROPE.items()}
        return values

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        base = fields.number("rope_theta", theta)
        parameters, empty = fields.object("rope_parameters"), Fields({}, fields.source)
        scaling = fields.object("rope_scaling")
        scaling = scaling if scaling is not None and scaling.data else None
        if share is None:
            fields.require("partial_rotary_factor", _WHOLE_WIDTH)
        if kinds is None:
            rotary = scaling or parameters or empty  # as in transformers, the older name wins
            return read_settings(fields, rotary, rotary, draft, base)
        if parameters is not None and parameters.data and not {FULL, SLIDING} & set(parameters.data):
            raise fields.fault(
                "rope_parameters that are not by kind of layer are not implemented for this architecture"
            )
        if scaling is not None and parameters is not None and parameters.data:
            raise fields.fault("rope_scaling beside rope_parameters is not implemented for this architecture")
        common = parameters or empty
        by_kind = {
            FULL: common.object(FULL) or scaling or empty,
            SLIDING: common.object(SLIDING) or empty,
        }
        bases = {FULL: base, SLIDING: base if local is None else local(fields)}
        layers = kinds(fields, draft)
        settings = {
            kind: read_settings(fields, by_kind[kind], common, _of_layer(draft, layers.index(kind)), bases[kind])
            for kind in dict.fromkeys(layers)
        }
        return _by_kind(fields, settings, layers)

    def write_settings(config: ModelConfig) -> dict[str, Any]:
        word = next(word for word, ours in scalings.items() if ours == config.rope_scaling)
        keys: dict[str, Any] = {"rope_type": word, "rope_theta": config.rope_theta}
        if share is not None:
            keys["partial_rotary_factor"] = written_share(config)
        if word in ("linear", "dynamic", "llama3", "yarn", "proportional"):
            keys["factor"] = config.rope_factor
        if word == "proportional":
            keys["partial_rotary_factor"] = _share_of(2 * config.rope_turned, config.d_head)
        if word in ("dynamic", "llama3", "yarn", "longrope"):
            keys[_ORIGINAL] = config.rope_original_context
        for key in {"llama3": _LLAMA3, "yarn": _YARN}.get(word, ()):
            keys |= key.write(config)
        if word in ("yarn", "longrope"):
            keys["attention_factor"] = config.rope_attention_factor
        if word == "yarn":
            keys["truncate"] = config.rope_truncate
        if word == "longrope":
            keys |= {name: list(getattr(config, ours)) for name, ours in _LONGROPE.items()}
        return keys

    def write(config: ModelConfig) -> dict[str, Any]:
        first = config.at((config.rotary_layers or (0,))[0])
        used = {first.rope_scaling, *(config.at(layer).rope_scaling for layer in config.rotary_layers)}
        if not used <= set(scalings.values()) or (share is None and first.rope_width and not first.kv_rank):
            return {}  # this family cannot express it
        outside = {_ORIGINAL: first.rope_original_context} if original and first.rope_original_context else {}
        if "dynamic" in used:
            outside["max_position_embeddings"] = first.rope_original_context
        if kinds is None:
            return {"rope_parameters": write_settings(first), "rope_theta": first.rope_theta, **outside}
        by_kind = {kind_of(config.at(layer)): write_settings(config.at(layer)) for layer in config.rotary_layers[::-1]}
        return {
            "rope_parameters": {kind: by_kind.get(kind, write_settings(first)) for kind in (FULL, SLIDING)},
            **outside,
        }

    return Group(read, write)


def _attention_factor(rotary: Fields, word: str, factor: float, values: Draft) -> float:
    """The multiplier of rotated queries and keys, from the scaling factor (Peng et al. 2023, Ding et al. 2024)."""
    if factor <= 1:
        return 1.0
    if word == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(values["rope_original_context"]))
    mscale, mscale_all_dim = rotary.number("mscale", 0.0), rotary.number("mscale_all_dim", 0.0)
    if mscale and mscale_all_dim:
        return (0.1 * mscale * math.log(factor) + 1) / (0.1 * mscale_all_dim * math.log(factor) + 1)
    return 0.1 * math.log(factor) + 1


def rotary_pairs(fields: Fields, draft: Draft, share: float, theta: float, *, odd: bool = True) -> dict[str, Any]:
    """The base and the width of RoPE for a ``share`` of a head; the width is 0 for all of it.

    Where the share is an odd number w of dimensions, transformers turns one more, by the wavelengths θ^(−2i/w) of the
    odd width: a base of θ^((w + 1)/w) gives them at the width w + 1. Families that are not ``odd`` fail on it.
    """
    width = draft.get("d_head") or draft["d_model"] // draft["n_heads"]
    rotated = int(width * share)
    if odd and rotated % 2 and rotated < width:
        rotated, theta = rotated + 1, theta ** ((rotated + 1) / rotated)
    if not 0 < rotated <= width or rotated % 2:
        raise fields.fault(
            f"a rotary share of {share:g} rotates {rotated:,} of {width:,} dimensions, which is not a number of pairs",
            "transformers fails on it too" if rotated % 2 else "",
        )
    return {"rope_theta": theta, "rope_width": 0 if rotated == width else rotated}


def written_share(config: ModelConfig) -> float:
    """The fraction of a head that RoPE rotates, such that transformers, which truncates, gets the same width."""
    return _share_of(config.rope.width, config.d_head) if config.d_head else 1.0


def _share_of(part: int, width: int) -> float:
    return part / width if int(width * (part / width)) == part else (part + 0.5) / width


def _of_layer(draft: Draft, layer: int) -> dict[str, Any]:
    """The draft of one layer."""
    return {**draft, **{name: values[layer] for name, values in draft.get("by_layer", ())}}


def _by_kind(fields: Fields, settings: Mapping[str, dict[str, Any]], layers: Sequence[str]) -> dict[str, Any]:
    """Our fields from the settings of each kind of layer, by layer where they differ."""
    same: dict[str, Any] = {}
    differing: list[tuple[str, tuple[Any, ...]]] = []
    for name in dict.fromkeys(name for kind_settings in settings.values() for name in kind_settings):
        values = [kind_settings[name] for kind_settings in settings.values() if name in kind_settings]
        if len(set(values)) == 1:
            same[name] = values[0]
        elif name in DIFFERING:
            differing.append((name, tuple(settings[kind].get(name, values[0]) for kind in layers)))
        else:
            raise fields.fault(f"rotary settings whose {name} differs by layer are not implemented")
    return {**same, "by_layer": tuple(differing)}


ROPE = rope()
