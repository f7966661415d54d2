"""GGUF architectures with layers that are not attention: LFM2, Mamba, Granite 4, Qwen3-Next and Qwen3.5."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.experts import COUNTS, EXPERTS, GRANITE_MOE, QWEN2_MOE, STACKED, WIDTHS
from tinytf.checkpoints.gguf.keys import RMS_NORM, ROTARY, SIZES, VALUE_WIDTH, by_layer, except_keys
from tinytf.checkpoints.gguf.llamas import GRANITE, QK_NORMS, QWEN2, QWEN3, SCALING, STORED
from tinytf.checkpoints.gguf.routed import DEEPSEEK2, LATENT, MINICPM3, MIXED, RENORMED, read_router
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.fields import Fields

_KV = "attention.head_count_kv"
_OF_ATTENTION = ("attention.head_count", "attention.key_length", "feed_forward_length")
_SIZES = tuple(key for key in SIZES if not (isinstance(key, Key) and key.name == _KV))


def _short_convolutions(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Short convolutions where there are no keys and values."""
    counts = keys.array(_KV, int, count=draft["n_layers"])
    if not any(counts):
        raise keys.fault(f"{_KV} leaves no layer with attention")
    kinds = tuple("attention" if count else "short_convolution" for count in counts)
    return {"conv_width": keys.whole("shortconv.l_cache", least=1), "n_kv_heads": max(counts), **by_layer(mixer=kinds)}


LFM2 = replace(
    QWEN2,
    name="lfm2",
    settings=(*_SIZES, RMS_NORM, *ROTARY, SCALING, Group(_short_convolutions)),
    fixed={**QWEN2.fixed, "qk_norm": True},
    stored={
        **STORED,
        **QK_NORMS,
        **{
            f"blocks.{{n}}.conv.{name}": Stored("blk.{n}.shortconv.in_proj", part=part, parts=("d_model",) * 3)
            for part, name in enumerate(("gate_in", "gate", "v"))
        },
        "blocks.{n}.conv.v_conv": Stored("blk.{n}.shortconv.conv"),
        "blocks.{n}.conv.o": Stored("blk.{n}.shortconv.out_proj"),
        "final_norm": Stored("token_embd_norm", instead=Stored("output_norm")),
    },
)
LFM2_MOE = replace(
    LFM2,
    name="lfm2moe",
    settings=(*LFM2.settings, Group(read_router), Group(lambda *_: {"routes_renormed": True, "routes_epsilon": 1e-6})),
    stored={**LFM2.stored, **MIXED},
    only=except_keys(*COUNTS),
    harmless=(*LFM2.harmless, "leading_dense_block_count"),
)


def _inner(keys: Fields) -> dict[str, Any]:
    """The heads of a state whose rows are keys: of Mamba-2, or of a gated delta rule."""
    heads, inner = keys.whole("ssm.time_step_rank", least=1), keys.whole("ssm.inner_size", least=1)
    if inner % heads:
        raise keys.fault(f"ssm.inner_size {inner:,} is not divisible by {heads:,} heads")
    return {
        "n_heads": heads,
        "n_kv_heads": keys.whole("ssm.group_count", least=1),
        "d_head": keys.whole("ssm.state_size", least=1),
        "d_value": inner // heads,
    }


def _convolution(keys: Fields, tensors: Tensors) -> dict[str, Any]:
    has_bias = any(name.endswith(".ssm_conv1d.bias") for name in tensors)
    return {"conv_width": keys.whole("ssm.conv_kernel", least=1), "conv_bias": has_bias}


def _mamba2(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {**_inner(keys), **_convolution(keys, tensors)}


def _channels(keys: Fields) -> dict[str, Any]:
    """The heads of Mamba: groups of up to 64 channels, which change no number."""
    inner = keys.whole("ssm.inner_size", least=1)
    width = math.gcd(inner, 64)
    return {
        "n_heads": inner // width,
        "n_kv_heads": 1,
        "d_head": keys.whole("ssm.state_size", least=1),
        "d_value": width,
    }


def _mamba(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """No key has the ε of Falcon-Mamba's inner norms, 1e-6."""
    normed = {"inner_norm": "plain", "inner_norm_eps": 1e-6} if keys.flag("ssm.dt_b_c_rms", False) else {}
    sizes = {name: size for name, size in _channels(keys).items() if name != "n_kv_heads"}
    rank = keys.whole("ssm.time_step_rank", least=1)
    return {**sizes, **normed, "dt_rank": rank, **_convolution(keys, tensors)}


_INNER, _STATE, _STEPS = "n_heads·d_value", "n_kv_heads·d_head", ("dt_rank", "d_head", "d_head")
_IN, _CONV, _X = "blk.{n}.ssm_in", "blk.{n}.ssm_conv1d", "blk.{n}.ssm_x"
_STATE_SPACE = {
    **{
        f"blocks.{{n}}.mamba.{name}": Stored(_IN, part=part, parts=(_INNER, _INNER, _STATE, _STATE, "n_heads"))
        for part, name in enumerate(("gate", "v", "k", "q", "dt_in"))
    },
    **{
        f"blocks.{{n}}.mamba.{name}_conv": Stored(_CONV, part=part, parts=(_INNER, _STATE, _STATE))
        for part, name in enumerate("vkq")
    },
    "blocks.{n}.mamba.dt": Stored("blk.{n}.ssm_dt"),
    "blocks.{n}.mamba.decay": Stored("blk.{n}.ssm_a", bare=True, by_row="n_heads", rate=True),
    "blocks.{n}.mamba.read": Stored("blk.{n}.ssm_d", bare=True, by_row="n_heads"),
    "blocks.{n}.mamba.norm": Stored("blk.{n}.ssm_norm", by_row="n_kv_heads"),
    "blocks.{n}.mamba.o": Stored("blk.{n}.ssm_out"),
}
_ALONE = tuple(
    key for key in _SIZES if key is not VALUE_WIDTH and not (isinstance(key, Key) and key.name in _OF_ATTENTION)
)
MAMBA2 = replace(
    QWEN2,
    name="mamba2",
    settings=(*_ALONE, RMS_NORM, Group(_mamba2)),
    fixed={"norm": "rmsnorm", "positions": "none", "activation": "silu", "mixer": "mamba2", "d_ff": 0},
    stored={**STORED, **_STATE_SPACE},
    only={**QWEN2.only, "attention.head_count": (0,), "feed_forward_length": (0,)},
)
MAMBA = replace(
    MAMBA2,
    name="mamba",
    settings=(*_ALONE, RMS_NORM, Group(_mamba)),
    fixed={**MAMBA2.fixed, "mixer": "mamba"},
    stored={
        **STORED,
        "blocks.{n}.mamba.v": Stored(_IN, part=0, parts=(_INNER, _INNER)),
        "blocks.{n}.mamba.gate": Stored(_IN, part=1, parts=(_INNER, _INNER)),
        "blocks.{n}.mamba.v_conv": Stored(_CONV),
        "blocks.{n}.mamba.dt_low": Stored(_X, part=0, parts=_STEPS),
        "blocks.{n}.mamba.k": Stored(_X, part=1, parts=_STEPS),
        "blocks.{n}.mamba.q": Stored(_X, part=2, parts=_STEPS),
        "blocks.{n}.mamba.dt_in": Stored("blk.{n}.ssm_dt"),
        "blocks.{n}.mamba.dt": Stored("blk.{n}.ssm_dt"),
        "blocks.{n}.mamba.scan": Stored("blk.{n}.ssm_a", bare=True, bias="blk.{n}.ssm_d", rate=True),
        "blocks.{n}.mamba.o": Stored("blk.{n}.ssm_out"),
    },
)
"""Mamba and Falcon-Mamba."""


def _mixers(
    draft: Draft, kinds: Sequence[str], own: dict[str, Any], kv_heads: Sequence[int], **more: tuple[Any, ...]
) -> dict[str, Any]:
    """The mixer of each layer and its heads: those of attention, its ``own``, or none; and ``more`` by layer."""
    attention = {"n_heads": draft["n_heads"], "d_head": draft["d_head"], "d_value": draft["d_head"]}
    of_kind = {"attention": attention, "none": dict.fromkeys(own, 0)}
    layers = [{"n_kv_heads": count, **of_kind.get(kind, own)} for kind, count in zip(kinds, kv_heads, strict=True)]
    return by_layer(mixer=tuple(kinds), **more, **{name: tuple(layer[name] for layer in layers) for name in own})


def _granite(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """State spaces where there are no keys and values; a text has positions if their scaling was trained."""
    counts = keys.array(_KV, int, count=draft["n_layers"])
    kinds = ["attention" if count else "mamba2" for count in counts]
    positions = "rotary" if keys.flag("rope.scaling.finetuned", False) else "none"
    return {"positions": positions, **_convolution(keys, tensors), **_mixers(draft, kinds, _inner(keys), counts)}


GRANITE_HYBRID = replace(
    GRANITE,
    name="granitehybrid",
    settings=(
        *_SIZES,
        *GRANITE.settings[len(SIZES) :],
        Group(_granite),
        *GRANITE_MOE.settings[len(GRANITE.settings) :],
    ),
    stored={**GRANITE_MOE.stored, **_STATE_SPACE},
    only=except_keys(*COUNTS),
    harmless=("rope.scaling.original_context_length",),
)


def _falcon_h1(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Mamba-2 and attention side by side, two layers here; weights are stored times the multipliers of the model."""
    layers = draft["n_layers"]
    kinds, widths = ["mamba2", "attention"] * layers, (0, draft["d_ff"]) * layers
    heads = _mixers(
        draft, kinds, _inner(keys), [draft["n_kv_heads"]] * len(kinds), d_ff=widths, norm_below=(False, True) * layers
    )
    return {
        "n_layers": len(kinds),
        "state_norm": any(name.endswith(".ssm_norm.weight") for name in tensors),
        **_convolution(keys, tensors),
        **heads,
    }


FALCON_H1 = replace(
    QWEN2,
    name="falcon-h1",
    settings=(*SIZES, RMS_NORM, *ROTARY, SCALING, Group(_falcon_h1)),
    stored={**STORED, **_STATE_SPACE, "blocks.{n}.norm2": Stored("blk.{n}.ffn_norm", bare=True)},
    harmless=(*QWEN2.harmless, "attention.layer_norm_epsilon"),
    split=2,
)


def _delta(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Gated delta rules in all but the last of every few layers; attention has other heads."""
    layers, interval = range(draft["n_layers"]), keys.whole("full_attention_interval", 4, least=1)
    kinds = ["gated_delta" if (layer + 1) % interval else "attention" for layer in layers]
    heads = _mixers(draft, kinds, _inner(keys), [draft["n_kv_heads"]] * len(layers))
    return {"conv_width": keys.whole("ssm.conv_kernel", least=1), **heads}


def _sections(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Positions of images and films in three parts of each head; of a text all three are the same."""
    keys.asked.add(f"{keys.prefix}rope.dimension_sections")
    return {}


_SECTIONS = Group(_sections)
_QKV = ("n_kv_heads·d_head", "n_kv_heads·d_head", "n_heads·d_value")
_DELTA_RULE = {
    **QK_NORMS,
    **{
        f"blocks.{{n}}.attention.{name}": Stored("blk.{n}.attn_q", part=part, parts=("d_head",) * 2, by_head="n_heads")
        for part, name in enumerate(("q", "gate"))
    },
    **{
        f"blocks.{{n}}.delta.{name}": Stored("blk.{n}.attn_qkv", part=part, parts=_QKV)
        for part, name in enumerate("qkv")
    },
    **{f"blocks.{{n}}.delta.{name}_conv": Stored(_CONV, part=part, parts=_QKV) for part, name in enumerate("qkv")},
    "blocks.{n}.delta.gate": Stored("blk.{n}.attn_gate"),
    "blocks.{n}.delta.dt": Stored("blk.{n}.ssm_dt"),
    "blocks.{n}.delta.decay": Stored("blk.{n}.ssm_a", bare=True, rate=True),
    "blocks.{n}.delta.norm": Stored("blk.{n}.ssm_norm"),
    "blocks.{n}.delta.o": Stored("blk.{n}.ssm_out"),
    "blocks.{n}.norm2": Stored("blk.{n}.post_attention_norm"),
}
_BA: dict[str, Any] = {"parts": ("n_heads", "n_heads"), "by_head": "n_kv_heads"}
QWEN3_NEXT = replace(
    QWEN2_MOE,
    name="qwen3next",
    settings=(*SIZES, RMS_NORM, *ROTARY, SCALING, EXPERTS, *WIDTHS, Group(_delta)),
    fixed={**QWEN2_MOE.fixed, "routes_renormed": True, "qk_norm": True, "attention_gate": True},
    stored={
        **QWEN2_MOE.stored,
        **_DELTA_RULE,
        "blocks.{n}.delta.beta_in": Stored("blk.{n}.ssm_ba", part=0, **_BA),
        "blocks.{n}.delta.decay_in": Stored("blk.{n}.ssm_ba", part=1, **_BA),
    },
)
_TILED = ("v", "v_conv", "gate", "dt", "decay", "o")
QWEN3_5 = replace(
    QWEN3,
    name="qwen35",
    settings=(*SIZES, RMS_NORM, *ROTARY, SCALING, _SECTIONS, Group(_delta)),
    fixed={**QWEN3.fixed, "attention_gate": True},
    stored={
        **STORED,
        **_DELTA_RULE,
        **{
            f"blocks.{{n}}.delta.{name}": replace(
                _DELTA_RULE[f"blocks.{{n}}.delta.{name}"], tiled=True, axis=int(name == "o")
            )
            for name in _TILED
        },
        "blocks.{n}.delta.beta_in": Stored("blk.{n}.ssm_beta", tiled=True),
        "blocks.{n}.delta.decay_in": Stored("blk.{n}.ssm_alpha", tiled=True),
    },
)
QWEN3_5_MOE = replace(
    QWEN3_5,
    name="qwen35moe",
    settings=(
        *(key for key in QWEN3_5.settings if not (isinstance(key, Key) and key.name == "feed_forward_length")),
        Key("expert_feed_forward_length", "d_expert d_ff"),
        EXPERTS,
        WIDTHS[1],
    ),
    fixed=QWEN3_NEXT.fixed,
    stored={**QWEN3_5.stored, **{name: layout for name, layout in QWEN2_MOE.stored.items() if ".ffn." in name}},
    only=except_keys(*COUNTS),
    harmless=(*QWEN3_5.harmless, "feed_forward_length"),  # no layer is dense
)


def _nemotron(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """A layer has keys and values, a feed-forward, or a state space; steps have a least size, for which is no key."""
    counts, widths = (keys.array(name, int, count=draft["n_layers"]) for name in (_KV, "feed_forward_length"))
    kinds = ["attention" if n else "none" if width else "mamba2" for n, width in zip(counts, widths, strict=True)]
    heads = _mixers(draft, kinds, _inner(keys), counts, d_ff=tuple(widths))
    return {"dt_floor": 1e-3, **_convolution(keys, tensors), **heads}


def _shared_width(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"d_shared": keys.whole("expert_shared_feed_forward_length", draft["d_shared"])}


NEMOTRON_H = replace(
    QWEN2,
    name="nemotron_h",
    settings=(
        *(key for key in _SIZES if getattr(key, "name", "") != "feed_forward_length"),
        RMS_NORM,
        Group(_nemotron),
    ),
    fixed={"norm": "rmsnorm", "positions": "none", "activation": "relu2"},
    stored={**STORED, **_STATE_SPACE, "blocks.{n}.norm2": Stored("blk.{n}.attn_norm")},
    harmless=(*QWEN2.harmless, "attention.layer_norm_epsilon", "rope.dimension_count"),
)
NEMOTRON_H_MOE = replace(
    NEMOTRON_H,
    name="nemotron_h_moe",
    settings=(*NEMOTRON_H.settings, Group(read_router), Group(_shared_width)),
    stored={**NEMOTRON_H.stored, **MIXED},
    only=except_keys(*COUNTS),
)


def _jamba(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Mamba with normed queries, keys and steps where there are no keys and values."""
    counts, rank = keys.array(_KV, int, count=draft["n_layers"]), keys.whole("ssm.time_step_rank", least=1)
    heads = _mixers(draft, ["attention" if count else "mamba" for count in counts], _channels(keys), counts)
    return {"dt_rank": rank, "d_expert": draft["d_ff"], **_convolution(keys, tensors), **heads}


JAMBA = replace(
    QWEN2,
    name="jamba",
    settings=(*_SIZES, RMS_NORM, Group(_jamba), EXPERTS),
    fixed={
        "norm": "rmsnorm",
        "positions": "none",
        "activation": "silu",
        "gated": True,
        "inner_norm": "learned",
        "routes_renormed": False,
    },
    stored={
        **STORED,
        **STACKED,
        **{name: layout for name, layout in MAMBA.stored.items() if ".mamba." in name},
        **{
            f"blocks.{{n}}.mamba.{ours}_norm": Stored(f"blk.{{n}}.ssm_{name}_norm")
            for ours, name in {"q": "c", "k": "b", "dt": "dt"}.items()
        },
    },
    only=except_keys(*COUNTS),
)


def _kimi(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Kimi delta attention where there are no keys and values, with as many heads as latent attention."""
    counts, heads = keys.array(_KV, int, count=draft["n_layers"]), draft["n_heads"]
    width = keys.whole("kda.head_dim", least=1)
    sizes = {True: (draft["d_head"], draft["d_value"]), False: (width, width)}
    own_width, values = zip(*(sizes[count > 0] for count in counts), strict=True)
    kinds = tuple("attention" if count else "kimi_delta" for count in counts)
    return {
        "n_kv_heads": heads,
        "conv_width": keys.whole("ssm.conv_kernel", least=1),
        **by_layer(mixer=kinds, d_head=own_width, d_value=values),
    }


_OF_KIMI = {
    **{name: f"attn_{name}" for name in "qkv"},
    "decay_low": "ssm_f_a", "decay_in": "ssm_f_b", "beta_in": "ssm_beta", "gate_low": "ssm_g_a", "gate": "ssm_g_b",
    "dt": "ssm_dt", "norm": "ssm_norm", "o": "attn_output",
}  # fmt: skip
KIMI_LINEAR = replace(
    MINICPM3,
    name="kimi-linear",
    settings=(*LATENT, RMS_NORM, Group(read_router), RENORMED, Group(_kimi)),
    fixed={**QWEN2.fixed, "positions": "none"},
    stored={
        **MINICPM3.stored,
        **MIXED,
        "blocks.{n}.attention.q": Stored("blk.{n}.attn_q", rotary_last="n_heads"),
        **{f"blocks.{{n}}.delta.{ours}": Stored(f"blk.{{n}}.{name}") for ours, name in _OF_KIMI.items()},
        **{
            f"blocks.{{n}}.delta.{name}_conv": Stored(f"blk.{{n}}.ssm_conv1d_{name}", convolution=True)
            for name in "qkv"
        },
        "blocks.{n}.delta.decay": Stored("blk.{n}.ssm_a", bare=True, rate=True, by_row="n_heads"),
    },
    only=except_keys(*COUNTS),
    harmless=(*DEEPSEEK2.harmless, "rope.freq_base"),
)
