"""DeepSeek-V4 (DeepSeek-AI 2026): hyper-connections, windows beside compressed blocks, and experts chosen by id."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.deepseek import DEEPSEEK_V3, indexed
from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.hyper import STREAMS, connections
from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope, written_share
from tinytf.checkpoints.huggingface.routing import FURTHER_MODULES
from tinytf.checkpoints.huggingface.table import by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import FULL, SLIDING
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_OF_RATIO: Mapping[Any, Any] = {0: SLIDING, 4: _SPARSE, 128: _HEAVY}
_RATES = {_SPARSE: ("compress_rate_csa", 4), _HEAVY: ("compress_rate_hca", 128)}


def _kinds(fields: Fields, layers: int) -> list[str]:
    """The kind of attention of each layer: listed, by the ratios of the first code, or two heavy ones, then turns."""
    words: Sequence[str] | None = fields.array("layer_types", str, None)
    if words is None and (ratios := fields.array("compress_ratios", int, None)) is not None:
        words = [str(fields.meaning("compress_ratios", ratio, _OF_RATIO)) for ratio in ratios]
    if words is None:
        words = [_SPARSE if layer > 1 and layer % 2 else _HEAVY for layer in range(layers)]
    if len(words) < layers:
        raise fields.fault(f"layer_types has {len(words):,} entries for {layers:,} layers")
    return [fields.meaning("layer_types", word, {kind: kind for kind in _OF_RATIO.values()}) for word in words[:layers]]


def _read_blocks(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The blocks that each kind of layer compresses, of which an indexer chooses in sparse ones."""
    kinds, rates = _kinds(fields, draft["n_layers"]), fields.object("compress_rates") or Fields({}, fields.source)
    sizes = {
        kind: fields.whole(older, rates.whole(kind, usual, least=1), least=1) for kind, (older, usual) in _RATES.items()
    }
    return merge_fields(
        by_layer("block_size", [sizes.get(kind, 0) for kind in kinds]),
        by_layer("block_overlap", [kind == _SPARSE for kind in kinds]),
        by_layer("index_keys", [draft["index_keys"] * (kind == _SPARSE) for kind in kinds]),
        _read_rope(fields, draft, kinds),
    )


def _read_rope(fields: Fields, draft: Draft, kinds: Sequence[str]) -> dict[str, Any]:
    """The rotations of layers with a window alone, and of those with blocks, which alone may be scaled."""
    share = fields.number("qk_rope_head_dim", 64 / 512 * draft["d_head"]) / draft["d_head"]
    share = fields.number("partial_rotary_factor", share)
    bases = fields.number("rope_theta", 10_000.0), fields.number("compress_rope_theta", 160_000.0)
    given = (fields.object("rope_scaling") or fields.object("rope_parameters") or Fields({}, "")).data
    main, compressed = given.get("main"), given.get("compress")
    if not (isinstance(main, dict) and isinstance(compressed, dict)):
        scaling = {name: value for name, value in given.items() if name not in ("main", "compress")}
        scaled = scaling.get("rope_type", scaling.get("type")) == "yarn"
        main = {"rope_theta": bases[0]}
        compressed = {**({"attention_factor": 1.0} if scaled else {}), **scaling}
        compressed["rope_theta"] = bases[1]
        main["partial_rotary_factor"] = compressed["partial_rotary_factor"] = share
    both = Fields({"rope_parameters": {SLIDING: main, FULL: compressed}}, fields.source)
    layers = [SLIDING if kind == SLIDING else FULL for kind in kinds]
    return rope(share=1.0, odd=False, kinds=lambda *_: layers).read(both, draft, {})


def _write_blocks(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    kinds = [SLIDING if not layer.block_size else _SPARSE if layer.block_overlap else _HEAVY for layer in layers]
    sizes = {kind: layer.block_size for kind, layer in zip(kinds, layers, strict=True)}
    rotary = rope(share=1.0, odd=False, kinds=lambda *_: []).write
    written = {kind: rotary(layer)["rope_parameters"][FULL] for kind, layer in zip(kinds, layers, strict=True)}
    compressed = written.get(_SPARSE, written.get(_HEAVY, written[kinds[0]]))
    if any(layer.index_keys and not layer.block_overlap for layer in layers) or (
        {_SPARSE, _HEAVY} <= written.keys() and written[_SPARSE] != written[_HEAVY]
    ):
        return {"rope_parameters": None}
    return {
        "layer_types": kinds,
        "compress_rates": {kind: sizes.get(kind, default) for kind, (_, default) in _RATES.items()},
        "index_topk": max(layer.index_keys for layer in layers) or 1,
        "rope_parameters": {"main": written.get(SLIDING, compressed), "compress": compressed},
        "partial_rotary_factor": written_share(layers[0]),
    }


def _read_experts(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts in all layers; in the first ones a table names those of a token by its id."""
    layers, width = draft["n_layers"], draft["d_ff"]
    hashed = ["hash_moe"] * min(layers, fields.whole("num_hash_layers", 3, least=0))
    words = fields.array("mlp_layer_types", str, None) or [*hashed, *["moe"] * (layers - len(hashed))]
    if len(words) < layers:
        raise fields.fault(f"mlp_layer_types has {len(words):,} entries for {layers:,} layers")
    named = [fields.meaning("mlp_layer_types", word, {"hash_moe": True, "moe": False}) for word in words[:layers]]
    if (limit := fields.number("swiglu_limit", 10.0)) <= 0:
        raise fields.fault(f"swiglu_limit {limit:g} is not above 0")
    return {
        "experts": fields.whole("n_routed_experts", 256),
        "experts_per_token": fields.whole("num_experts_per_tok", 6),
        "d_expert": width,
        "d_shared": width,
        "router": fields.word("scoring_func", {"sqrtsoftplus": "sqrtsoftplus", "sigmoid": "sigmoid"}, "sqrtsoftplus"),
        "choice_bias": True,
        "routed_scale": fields.number("routed_scaling_factor", 1.5),
        "glu_limit": limit,
        "glu_added": 0.0,
        **by_layer("chosen_by_id", named),
    }


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    named = [config.at(layer).chosen_by_id for layer in range(config.n_layers)]
    return {
        "n_routed_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "scoring_func": config.router,
        "routed_scaling_factor": config.routed_scale,
        "swiglu_limit": config.glu_limit,
        "mlp_layer_types": ["hash_moe" if by_id else "moe" for by_id in named],
    }


_ATTENTION = "layers.{n}.attn"
_ONE: dict[str, Any] = {"paired": "1", "rotary_last": "1"}


def _blocks(ours: str, theirs: str) -> dict[str, Stored]:
    """The modules that compress blocks, whose rotated dimensions come last; of blocks that overlap, in both halves."""
    series: dict[str, Any] = {"paired": "block_series", "rotary_last": "block_series"}
    return {
        f"{ours}_content": Stored(f"{theirs}.wkv", **series),
        f"{ours}_gate": Stored(f"{theirs}.wgate", **series),
        f"{ours}_sum": Stored(f"{theirs}.ape", bias=f"{theirs}.ape", turned_columns=True, **series),
        f"{ours}_norm": Stored(f"{theirs}.norm", **_ONE),
    }


DEEPSEEK_V4 = replace(
    DEEPSEEK_V3,
    name="DeepSeek-V4",
    model_type="deepseek_v4",
    classes={"none": "DeepseekV4Model", "lm": "DeepseekV4ForCausalLM"},
    only={
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "num_key_value_heads": (1,),
        "n_shared_experts": (1,),
        "intermediate_size": (),
    },
    harmless=(
        *TRAINING,
        "num_nextn_predict_layers",
        "norm_topk_prob",
        "router_jitter_noise",
        "expert_dtype",
        "compress_ratios",
    ),
    fixed={
        **FIXED,
        "n_kv_heads": 1,
        "qk_norm": True,
        "q_norm_gain": False,
        "values_turned": True,
        "attention_sinks": True,
    },
    settings=(
        *(key for key in UNTURNED if key.name not in ("intermediate_size", "num_key_value_heads")),
        Key("moe_intermediate_size", "d_ff", 2048),
        Key("head_dim", "d_head", 512),
        Key("q_lora_rank", "q_rank", 1024),
        Group(lambda fields, draft, tensors: {"latent_eps": draft["norm_eps"]}),
        Key("sliding_window", "window", 128),
        Key("o_groups", "o_groups", 8),
        Group(
            lambda fields, draft, tensors: {"o_rank": draft["o_groups"] * fields.whole("o_lora_rank", 1024)},
            lambda config: {"o_lora_rank": config.o_rank // config.o_groups},
        ),
        *indexed(64),
        Key("index_topk", "index_keys", 512),
        Group(_read_blocks, _write_blocks),
        Group(_read_experts, _write_experts),
        *STREAMS,
        Key("hc_sinkhorn_iters", "sinkhorn_rounds", 20),
        HEAD_AND_ACTIVATION[0],
        HEAD_AND_ACTIVATION[1],
        lm_head("head.weight"),
    ),
    needs=("q_rank", "o_rank", "window", "experts", "hyper", "sinkhorn_rounds"),
    stored={
        "embed.tokens": Stored("embed_tokens"),
        "blocks.{n}.norm1": Stored("layers.{n}.attn_norm"),
        "blocks.{n}.attention.q_a": Stored(f"{_ATTENTION}.wq_a"),
        "blocks.{n}.attention.q_a_norm": Stored(f"{_ATTENTION}.q_norm"),
        "blocks.{n}.attention.q": Stored(f"{_ATTENTION}.wq_b", paired="n_heads", rotary_last="n_heads"),
        "blocks.{n}.attention.k": Stored(f"{_ATTENTION}.wkv", **_ONE),
        "blocks.{n}.attention.k_norm": Stored(f"{_ATTENTION}.norm", **_ONE),
        "blocks.{n}.attention.sink": Stored(f"{_ATTENTION}.attn_sink", bare=True),
        "blocks.{n}.attention.o_a": Stored(
            f"{_ATTENTION}.wo_a", paired="heads_in_group", rotary_last="heads_in_group", turned_columns=True
        ),
        "blocks.{n}.attention.o": Stored(f"{_ATTENTION}.wo_b"),
        **_blocks("blocks.{n}.attention.block", f"{_ATTENTION}.compressor"),
        **_blocks("blocks.{n}.attention.index", f"{_ATTENTION}.indexer.compressor"),
        "blocks.{n}.attention.index_q": Stored(
            f"{_ATTENTION}.indexer.wq_b", paired="index_heads", rotary_last="index_heads"
        ),
        "blocks.{n}.attention.index_weights": Stored(f"{_ATTENTION}.indexer.weights_proj"),
        "blocks.{n}.norm2": Stored("layers.{n}.ffn_norm"),
        "blocks.{n}.ffn.router": Stored("layers.{n}.ffn.gate"),
        "blocks.{n}.ffn.preference": Stored("layers.{n}.ffn.gate.bias", bare=True),
        "blocks.{n}.ffn.chosen": Stored("layers.{n}.ffn.gate.tid2eid", bare=True, ids=True),
        **experts("layers.{n}.ffn.experts", ("w1", "w3", "w2")),
        "blocks.{n}.ffn.shared.gate": Stored("layers.{n}.ffn.shared_experts.w1"),
        "blocks.{n}.ffn.shared.down": Stored("layers.{n}.ffn.shared_experts.w2"),
        "blocks.{n}.ffn.shared.up": Stored("layers.{n}.ffn.shared_experts.w3"),
        **connections("layers.{n}.hc_attn_", "layers.{n}.hc_ffn_", "hc_head.hc_"),
        "head.decoder": Stored("head"),
    },
    spellings=(
        (r"^embed\.", "embed_tokens."),
        (r"^lm_head\b", "head"),
        (r"^hc_head_", "hc_head.hc_"),
        (r"\bself_attn\b", "attn"),
        (r"\bmlp\b", "ffn"),
        (r"\binput_layernorm\b", "attn_norm"),
        (r"\bpost_attention_layernorm\b", "ffn_norm"),
        (r"\battn_hc\.", "hc_attn_"),
        (r"\bffn_hc\.", "hc_ffn_"),
        (r"\bsinks$", "attn_sink"),
        (r"\bcompressor\.indexer\.scorer\.", "indexer."),
        (r"\bcompressor\.indexer\.q_b_proj\b", "indexer.wq_b"),
        (r"\bcompressor\.indexer\b", "indexer.compressor"),
        (r"\bcompressor\.gate_proj\b", "compressor.wgate"),
        (r"\bposition_bias$", "ape"),
        (r"\bkv_norm\b", "norm"),
        (r"\bkv_proj\b", "wkv"),
        (r"\bq_a_norm\b", "q_norm"),
        (r"\b([qo])_([ab])_proj\b", r"w\1_\2"),
        (r"\bgate\.e_score_correction_bias$", "gate.bias"),
        (r"\bshared_experts\.gate_proj\b", "shared_experts.w1"),
        (r"\bshared_experts\.down_proj\b", "shared_experts.w2"),
        (r"\bshared_experts\.up_proj\b", "shared_experts.w3"),
    ),
    copies={"head.weight": "embed_tokens.weight"},
    outside=("head.", "score."),
    skipped=(*LLAMA.skipped, FURTHER_MODULES),
)
