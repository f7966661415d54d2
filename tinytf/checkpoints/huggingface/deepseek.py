"""Latent attention: DeepSeek-V2 and V3 (DeepSeek-AI 2024), Kimi K2, GLM-4.7-Flash, Youtu-LLM, MiniCPM3 …"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.cousins import growing
from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import HEAD_AND_ACTIVATION, LLAMA, SHARED, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.routing import (
    FURTHER_LAYERS,
    MIXED,
    groups_of,
    routed,
    sigmoid_router,
    written_groups,
)
from tinytf.checkpoints.huggingface.table import by_layer, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, stacked_experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def widths(rotated: int = 64, unrotated: int = 128, values: int = 128, rank: int = 1536) -> Group:
    """The widths of a head's rotary dimensions, its other dimensions and its values, and the ``rank`` of queries.

    These are the defaults; ``values`` 0 is d_model / n_heads. A rank of null means that queries are not compressed.
    """

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        heads = draft["n_heads"]
        if draft["n_kv_heads"] != heads:
            raise fields.fault(f"num_key_value_heads {draft['n_kv_heads']} is not num_attention_heads {heads}")
        turned, own = fields.whole("qk_rope_head_dim", rotated), fields.whole("qk_nope_head_dim", unrotated)
        width, d_value = turned + own, fields.whole("v_head_dim", values or draft["d_model"] // heads)
        return {
            "rope_width": turned,
            "d_head": width,
            "d_value": 0 if d_value == width else d_value,
            "q_rank": fields.whole("q_lora_rank", 0 if "q_lora_rank" in fields.data else rank),
            "attention_divisor": _divisor(fields, width),
        }

    return Group(read, write_widths)


def _divisor(fields: Fields, width: int) -> float:
    """The divisor of scores if RoPE is scaled with mscale_all_dim; else 0, for the root of a head's width."""
    rotary = fields.object("rope_parameters") or fields.object("rope_scaling")
    if rotary is None or rotary.data.get("rope_type", rotary.data.get("type", "default")) == "default":
        return 0.0
    mscale, factor = rotary.number("mscale_all_dim", 0.0), rotary.number("factor", 1.0)
    if not mscale or factor <= 1:
        return 0.0
    return math.sqrt(width) / (0.1 * mscale * math.log(factor) + 1) ** 2


def written_divisor(config: ModelConfig, unscaled: float) -> dict[str, Any]:
    """The inverse of ``_divisor``, for ``unscaled`` scores that are divided by that number.

    LongRoPE has no factor, so any does.
    """
    turned = config.at((config.rotary_layers or (0,))[0])
    factor = 2.0 if turned.rope_scaling == "longrope" else turned.rope_factor
    if factor <= 1:
        return {}
    growth = math.sqrt(math.sqrt(config.d_head) / unscaled)
    return {"rope_parameters": {"factor": factor, "mscale_all_dim": (growth - 1) / (0.1 * math.log(factor))}}


def write_widths(config: ModelConfig) -> dict[str, Any]:
    return {
        **written_divisor(config, config.score_divisor),
        "qk_rope_head_dim": config.rope_width,
        "qk_nope_head_dim": config.d_own,
        "v_head_dim": config.value_width,
        "q_lora_rank": config.q_rank or None,
    }


def _read_method(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts chosen by the router's softmax among all of them, or in the groups with the largest."""
    grouped = fields.word("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy")
    groups = groups_of(fields, 1, 1, best=1) if grouped else {}
    return {"routes_renormed": False, **(groups if draft.get("experts") else {})}


def _write_method(config: ModelConfig) -> dict[str, Any]:
    return {"topk_method": "group_limited_greedy" if config.expert_groups else "greedy", **written_groups(config)}


_KV_A, _KV_B = "layers.{n}.self_attn.kv_a_proj_with_mqa", "layers.{n}.self_attn.kv_b_proj"
_RANKS, _WIDTHS = ("kv_rank", "rope_width"), ("d_own", "value_width")


LATENT = {
    "blocks.{n}.attention.q_a": Stored("layers.{n}.self_attn.q_a_proj"),
    "blocks.{n}.attention.q_a_norm": Stored("layers.{n}.self_attn.q_a_layernorm"),
    "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_b_proj", paired="n_heads", rotary_last="n_heads"),
    "blocks.{n}.attention.kv_a": Stored(_KV_A, parts=_RANKS),
    "blocks.{n}.attention.k_shared": Stored(_KV_A, part=1, parts=_RANKS, paired="1"),
    "blocks.{n}.attention.kv_a_norm": Stored("layers.{n}.self_attn.kv_a_layernorm"),
    "blocks.{n}.attention.k": Stored(_KV_B, parts=_WIDTHS, by_head="n_heads"),
    "blocks.{n}.attention.v": Stored(_KV_B, part=1, parts=_WIDTHS, by_head="n_heads"),
}
"""The matrices and norms of latent attention."""

_UNCOMPRESSED = ((r"self_attn\.q_proj\.", "self_attn.q_b_proj."),)
_HARMLESS = (
    "aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq", "head_dim", "qk_head_dim", "n_routed_experts",
    "num_nextn_predict_layers", "scoring_func",
)  # fmt: skip


def _settings(rank: int, *sizes: int) -> tuple[Key | Group, ...]:
    """The settings of a decoder with latent attention; ``rank`` is the default of keys and values."""
    return (*SHARED, Key("kv_lora_rank", "kv_rank", rank), widths(*sizes), *HEAD_AND_ACTIVATION)


DEEPSEEK_V2 = replace(
    LLAMA,
    name="DeepSeek-V2",
    model_type="deepseek_v2",
    classes={"none": "DeepseekV2Model", "lm": "DeepseekV2ForCausalLM"},
    only={"attention_bias": (False,)},
    harmless=(*_HARMLESS, *TRAINING, "norm_topk_prob", "n_group", "topk_group"),
    settings=(
        *_settings(512),
        Key("mlp_bias", "ffn_bias", False),
        routed(),
        Group(_read_method, _write_method),
    ),
    needs=("kv_rank",),
    stored={**LLAMA.stored, **LATENT, **MIXED},
    spellings=_UNCOMPRESSED,
    written_as=lambda config: {} if config.q_rank else {"q_b_proj": "q_proj"},
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    name="DeepSeek-V3",
    model_type="deepseek_v3",
    classes={"none": "DeepseekV3Model", "lm": "DeepseekV3ForCausalLM"},
    only={"attention_bias": (False,), "rope_interleave": (True,)},
    harmless=(*_HARMLESS, *TRAINING, "topk_method"),
    settings=(*_settings(512), routed(), sigmoid_router(8, 4)),
    skipped=(*LLAMA.skipped, FURTHER_LAYERS),
)
KIMI_K2 = replace(DEEPSEEK_V3, name="Kimi K2", model_type="kimi_k2")
"""Kimi K2 (Moonshot AI 2025): a DeepSeek-V3 with more experts and fewer heads."""


def _require_rotary_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Refuse another ``head_dim``, which transformers takes for the rotary width here."""
    fields.require("head_dim", (draft["rope_width"],))
    return {}


GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    name="GLM-4.7-Flash",
    model_type="glm4_moe_lite",
    classes={"none": "Glm4MoeLiteModel", "lm": "Glm4MoeLiteForCausalLM"},
    settings=(
        *_settings(512, 64, 192, 256, 768),
        Key("rms_norm_eps", "norm_eps", 1e-5),
        routed(first=1, kinds=True),
        sigmoid_router(),
        Group(_require_rotary_width),
    ),
)
"""GLM-4.7-Flash (Zhipu 2026): latent attention and the experts of GLM-4.5."""

YOUTU = replace(
    DEEPSEEK_V3,
    name="Youtu-LLM",
    model_type="youtu",
    classes={"none": "YoutuModel", "lm": "YoutuForCausalLM"},
    settings=(*_settings(512), Key("tie_word_embeddings", "tied_head", True), lm_head()),
    harmless=(*_HARMLESS, "embedding_initializer_range"),
    stored={**LLAMA.stored, **LATENT},
    skipped=LLAMA.skipped,
)
"""Youtu-LLM (Tencent 2025): latent attention and no experts."""


def _read_depth(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Multipliers of residual branches and logits; null leaves both as they are."""
    root, width = math.sqrt(draft["n_layers"]), draft["d_model"]
    depth = fields.number("scale_depth", root if "scale_depth" in fields.data else 1.4)
    base = fields.whole("dim_model_base", width if "dim_model_base" in fields.data else 256)
    return {"residual_scale": depth / root, "logit_scale": base / width}


def _write_depth(config: ModelConfig) -> dict[str, Any]:
    return {
        "scale_depth": config.residual_scale * math.sqrt(config.n_layers),
        "dim_model_base": round(config.logit_scale * config.d_model),
    }


MINICPM3 = replace(
    DEEPSEEK_V2,
    name="MiniCPM3",
    model_type="minicpm3",
    classes={"none": "MiniCPM3Model", "lm": "MiniCPM3ForCausalLM"},
    settings=(
        *_settings(256, 32, 64, 0, 768),
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Key("mlp_bias", "ffn_bias", False),
        Key("scale_emb", "embed_scale", 12.0),
        Group(_read_depth, _write_depth),
    ),
    harmless=("head_dim", "qk_head_dim"),
    stored={
        **LLAMA.stored,
        **LATENT,
        "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_b_proj", rotary_last="n_heads"),
        "blocks.{n}.attention.k_shared": Stored(_KV_A, part=1, parts=_RANKS),
        "head.decoder": Stored("lm_head", gives="logits"),  # hidden states are multiplied, here the logits
    },
)
"""MiniCPM3 (OpenBMB 2024): latent attention whose RoPE rotates halves, and multipliers throughout."""


def _require_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Refuse another ``head_dim``, of which transformers takes the rotary share."""
    fields.require("head_dim", (draft["d_head"],))
    return {}


MISTRAL4 = replace(
    DEEPSEEK_V3,
    name="Mistral 4",
    model_type="mistral4",
    classes={"none": "Mistral4Model", "lm": "Mistral4ForCausalLM"},
    only={**DEEPSEEK_V3.only, "n_group": (1,)},
    harmless=(*DEEPSEEK_V3.harmless, "topk_group"),
    needs=("kv_rank", "query_scale", "experts"),
    stored={**DEEPSEEK_V3.stored, **stacked_experts("layers.{n}.mlp.experts")},
    skipped=LLAMA.skipped,
    settings=(
        *UNTURNED,
        Key("kv_lora_rank", "kv_rank", 256),
        widths(64, 64, 128, 1024),
        growing(rope(share=1.0, scalings={"yarn": "yarn"})),
        *HEAD_AND_ACTIVATION,
        routed(),
        Key("norm_topk_prob", "routes_renormed", True),
        Group(_require_width),
    ),
)
"""Mistral Small 4 (Mistral 2026): experts chosen by a softmax, and queries that grow with their position."""


def indexer(paired: str = "") -> dict[str, Stored]:
    """The modules of an indexer, in which RoPE turns halves, or adjacent pairs of each of ``paired`` heads."""
    module, one = "layers.{n}.self_attn.indexer", "1" if paired else ""
    return {
        "blocks.{n}.attention.index_q": Stored(f"{module}.wq_b", paired=paired),
        "blocks.{n}.attention.index_k": Stored(f"{module}.wk", paired=one),
        "blocks.{n}.attention.index_k_norm": Stored(f"{module}.k_norm", paired=one),
        "blocks.{n}.attention.index_weights": Stored(f"{module}.weights_proj"),
    }


def _require_choice(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    if not draft["index_keys"]:
        raise fields.fault("index_topk 0 chooses no key")
    return {}


def indexed(heads: int) -> tuple[Key | Group, ...]:
    """The keys of an indexer, which has so many ``heads`` by default."""
    return (
        Key("index_topk", "index_keys", 2048),
        Key("index_n_heads", "index_heads", heads),
        Key("index_head_dim", "index_width", 128),
        Group(_require_choice),
    )


DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    name="DeepSeek-V3.2",
    model_type="deepseek_v32",
    classes={"none": "DeepseekV32Model", "lm": "DeepseekV32ForCausalLM"},
    only={"attention_bias": (False,)},
    harmless=(*DEEPSEEK_V3.harmless, "layer_types", "rope_interleave", "mlp_bias"),
    settings=(*_settings(512), routed(first=3, kinds=True), sigmoid_router(8, 4), *indexed(64)),
    needs=("kv_rank", "q_rank", "index_keys"),
    stored={**DEEPSEEK_V3.stored, **indexer()},
)
"""DeepSeek-V3.2 (DeepSeek-AI 2025): an indexer chooses the keys that a query may look at."""


def read_shared(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The layers that take the choice of an earlier one: listed, in a pattern of F and S, or all but one in so many."""
    layers, name = draft["n_layers"], "index_topk_pattern"
    every, offset = max(1, fields.whole("index_topk_freq", 1)), fields.whole("index_skip_topk_offset", 2)
    schedule = ["shared" if max(layer - offset + 1, 0) % every else "full" for layer in range(layers)]
    is_text = isinstance(fields.data.get(name), str)
    pattern = list(fields.text(name)) if is_text else fields.array(name, str, None)
    return read_sharing(fields, draft, pattern or schedule)


def read_sharing(fields: Fields, draft: Draft, usual: Sequence[str]) -> dict[str, Any]:
    """The layers that take the choice of an earlier one, by the words of indexer_types or, without it, ``usual``.

    Only layers with attention choose, whatever the words of the others are.
    """
    layers, words = draft["n_layers"], fields.array("indexer_types", str, None) or usual
    if len(words) != layers:
        raise fields.fault(f"{len(words):,} layers have an indexer of their own or share one, of {layers:,}")
    meanings = {"full": False, "shared": True, "F": False, "S": True}
    mixers = dict(draft.get("by_layer", ())).get("mixer", (draft.get("mixer", "attention"),) * layers)
    attends = [mixer == "attention" for mixer in mixers]
    shared = [fields.meaning("indexer_types", word, meanings) for word in words]
    if [own for own, has in zip(shared, attends, strict=True) if has][:1] == [True]:
        raise fields.fault("the first layer shares the choice of an indexer, and there is none before it")
    return by_layer("shares_index", [own and has for own, has in zip(shared, attends, strict=True)])


def write_sharing(config: ModelConfig) -> dict[str, Any]:
    layers = map(config.at, range(config.n_layers))
    return {"indexer_types": ["shared" if layer.shares_index else "full" for layer in layers]}


GLM_MOE_DSA = replace(
    DEEPSEEK_V32,
    name="GLM-5",
    model_type="glm_moe_dsa",
    classes={"none": "GlmMoeDsaModel", "lm": "GlmMoeDsaForCausalLM"},
    settings=(
        *_settings(512, 64, 192, 256, 2048),
        Key("rms_norm_eps", "norm_eps", 1e-5),
        routed(first=3, kinds=True),
        sigmoid_router(),
        *indexed(32),
        Group(read_shared, write_sharing),
    ),
    stored={**DEEPSEEK_V3.stored, **indexer("index_heads")},
)
"""GLM-5 (Zhipu 2026): layers may take the choice of an earlier one, and indexers rotate adjacent pairs."""
