"""Rotary settings in any of their spellings: rope_theta and rope_scaling, or rope_parameters, by kind of layer too."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinytf.checkpoints.huggingface.windows import FULL, SLIDING, Kinds, kind_of
from tinytf.checkpoints.table import Found, Group, Key, Tensors
from tinytf.config import DIFFERING, ModelConfig
from tinytf.fields import Fields

_SCALINGS = {"default": "none", **{word: word for word in ("linear", "llama3", "yarn", "longrope")}}
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
_WHOLE_WIDTH = (1, 1.0)  # the share of a head that RoPE turns


def rope(
    theta: float = 10_000.0,
    *,
    share: float | None = None,
    sections: bool = False,
    scalings: Mapping[str, str] = _SCALINGS,
    original: int = 0,
    local: "Callable[[Fields], float] | None" = None,
    kinds: Kinds | None = None,
) -> Group:
    """The rotary settings of a family whose default base is ``theta``.

    ``share`` is the default share of a head that is turned, None where the family turns all of it whatever the file
    says. With ``sections`` some dimensions may be turned by the place in an image: in a text all are by that in the
    text. ``original`` is the default of an original context that has a key of its own. With ``kinds`` of layers each
    may have settings of its own; ``local`` is then the base of layers with a window where the file has one for all.
    """

    def settings(fields: Fields, one: Fields, whole: Fields, found: Found, base: float) -> dict[str, Any]:
        """Our fields of one object of settings."""
        if not sections:
            one.require("mrope_section", ())
        word = one.word("rope_type" if "rope_type" in one.data else "type", scalings, "default")
        said: dict[str, Any] = {"rope_theta": one.number("rope_theta", base), "rope_scaling": word}
        if share is None:
            one.require("partial_rotary_factor", _WHOLE_WIDTH)
        else:
            said["rope_width"] = _width(one, found, one.number("partial_rotary_factor", _share(fields, share)))
        if word in ("none", "reversed"):
            return said
        if word in ("linear", "llama3"):
            said["rope_factor"] = one.number("factor")
        if word != "linear":
            fixed = fields.whole(_ORIGINAL, original) or one.whole(_ORIGINAL, 0) or found["context"]
            said["rope_original_context"] = fixed
        for key in {"llama3": _LLAMA3, "yarn": _YARN}.get(word, ()):
            said |= key.read(one, said, {})
        if word in ("yarn", "longrope"):
            factor = one.number("factor", found["context"] / said["rope_original_context"])
            given = one.number("attention_factor", 0.0)
            said["rope_attention_factor"] = given or _attention_factor(one, word, factor, said)
        if word == "yarn":  # transformers reads truncate beside the kinds of layers, not in them
            said |= {"rope_factor": factor, "rope_truncate": whole.flag("truncate", True)}
        if word == "longrope":
            said |= {ours: tuple(map(float, one.array(name, float))) for name, ours in _LONGROPE.items()}
        return said

    def read(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
        base = fields.number("rope_theta", theta)
        parameters, none = fields.object("rope_parameters"), Fields({}, fields.source)
        if share is None:
            fields.require("partial_rotary_factor", _WHOLE_WIDTH)
        if kinds is None:
            one = parameters or fields.object("rope_scaling") or none
            return settings(fields, one, one, found, base)
        if parameters is not None and parameters.data and not {FULL, SLIDING} & set(parameters.data):
            raise fields.fault("rope_parameters of one kind for all layers are not implemented for this architecture")
        whole = parameters or none
        every = {
            FULL: whole.object(FULL) or fields.object("rope_scaling") or none,
            SLIDING: whole.object(SLIDING) or none,
        }
        bases = {FULL: base, SLIDING: base if local is None else local(fields)}
        said = {kind: settings(fields, one, whole, found, bases[kind]) for kind, one in every.items()}
        layers = kinds(fields, found)
        return _by_kind(fields, {kind: said[kind] for kind in dict.fromkeys(layers)}, layers)

    def write_one(config: ModelConfig) -> dict[str, Any]:
        word = next(word for word, ours in scalings.items() if ours == config.rope_scaling)
        one: dict[str, Any] = {"rope_type": word, "rope_theta": config.rope_theta}
        if share is not None:
            one["partial_rotary_factor"] = written_share(config)
        if word in ("linear", "llama3", "yarn"):
            one["factor"] = config.rope_factor
        if word in ("llama3", "yarn", "longrope"):
            one[_ORIGINAL] = config.rope_original_context
        for key in {"llama3": _LLAMA3, "yarn": _YARN}.get(word, ()):
            one |= key.write(config)
        if word in ("yarn", "longrope"):
            one["attention_factor"] = config.rope_attention_factor
        if word == "yarn":
            one["truncate"] = config.rope_truncate
        if word == "longrope":
            one |= {name: list(getattr(config, ours)) for name, ours in _LONGROPE.items()}
        return one

    def write(config: ModelConfig) -> dict[str, Any]:
        first = config.at((config.rotary_layers or (0,))[0])
        if first.rope_scaling not in scalings.values() or (share is None and first.rope_width):
            return {}  # this family cannot say it
        outside = {_ORIGINAL: first.rope_original_context} if original and first.rope_original_context else {}
        if kinds is None:
            return {"rope_parameters": write_one(first), "rope_theta": first.rope_theta, **outside}
        layers = [config.at(layer) for layer in range(config.n_layers)]
        every = {kind_of(one): write_one(one) for one in reversed(layers)}
        return {"rope_parameters": {kind: every.get(kind, write_one(first)) for kind in (FULL, SLIDING)}}

    return Group(read, write)


def _attention_factor(one: Fields, word: str, factor: float, said: Found) -> float:
    """What the turned queries and keys are multiplied by: of the factor (Peng et al. 2023, Ding et al. 2024)."""
    if factor <= 1:
        return 1.0
    if word == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(said["rope_original_context"]))
    own, all_dimensions = one.number("mscale", 0.0), one.number("mscale_all_dim", 0.0)
    if own and all_dimensions:
        return (0.1 * own * math.log(factor) + 1) / (0.1 * all_dimensions * math.log(factor) + 1)
    return 0.1 * math.log(factor) + 1


def _share(fields: Fields, default: float) -> float:
    return fields.number("partial_rotary_factor", default)


def _width(fields: Fields, found: Found, share: float) -> int:
    """How many dimensions of a head are turned, 0 for all of them."""
    width = found.get("d_head") or found["d_model"] // found["n_heads"]
    turned = int(width * share)
    if not 0 < turned <= width or turned % 2:
        raise fields.fault(f"a rotary share of {share:g} turns {turned:,} of {width:,} dimensions, which are no pairs")
    return 0 if turned == width else turned


def written_share(config: ModelConfig) -> float:
    """The share of a head that is turned; transformers truncates the width that it gives."""
    share = config.rope.width / config.d_head
    return share if int(config.d_head * share) == config.rope.width else (config.rope.width + 0.5) / config.d_head


def _by_kind(fields: Fields, said: Mapping[str, dict[str, Any]], layers: Sequence[str]) -> dict[str, Any]:
    """The settings of each kind of layer as fields of ours, by layer where they differ."""
    same: dict[str, Any] = {}
    differing: list[tuple[str, tuple[Any, ...]]] = []
    for name in dict.fromkeys(name for one in said.values() for name in one):
        given = [one[name] for one in said.values() if name in one]
        if len(set(given)) == 1:
            same[name] = given[0]
        elif name in DIFFERING:
            differing.append((name, tuple(said[kind].get(name, given[0]) for kind in layers)))
        else:
            raise fields.fault(f"rotary settings whose {name} differs by layer are not implemented")
    return {**same, "by_layer": tuple(differing)}


ROPE = rope()
