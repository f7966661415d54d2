"""Encoders with rotary positions and gated feed-forwards: ModernBERT, NomicBERT and EuroBERT."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.bert import BERT
from tinytf.checkpoints.huggingface.buffers import ROTARY_FREQUENCIES
from tinytf.checkpoints.huggingface.heads import ClassHead
from tinytf.checkpoints.huggingface.llama import LLAMA
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, Family, by_layer, merge_fields
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, fused
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_BASES = {_GLOBAL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}


def _read_layers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The window and RoPE base of each layer: every third layer is global, unless layer_types says otherwise."""
    count, interval = draft["n_layers"], fields.whole("global_attn_every_n_layers", 3, least=1)
    default = [_LOCAL if layer % interval else _GLOBAL for layer in range(count)]
    kinds = fields.array("layer_types", str, default, count=count)
    half_window = fields.whole("local_attention", 128, least=2) // 2
    if not _beside(draft):  # a decoder's file says both
        half_window = fields.whole("sliding_window", half_window, least=1)
    rope = fields.object("rope_parameters")
    windows = {_GLOBAL: 0, _LOCAL: half_window + _beside(draft)}
    bases = {kind: _base(fields, rope, kind) for kind in windows}
    layer_kinds = [fields.meaning("layer_types", kind, {kind: kind for kind in windows}) for kind in kinds]
    return merge_fields(
        by_layer("window", [windows[kind] for kind in layer_kinds]),
        by_layer("rope_theta", [bases[kind] for kind in layer_kinds]),
        by_layer("input_norm", [layer > 0 for layer in range(count)]),
    )


def _beside(draft: Draft) -> int:
    """1 where a window counts the tokens beside one, as in the encoder; a decoder counts the token too."""
    return 0 if draft.get("causal", True) else 1


def _base(fields: Fields, rope: Fields | None, kind: str) -> float:
    name, default = _BASES[kind]
    shared_base = fields.number(name, default)
    kind_settings = None if rope is None else rope.object(kind)
    if kind_settings is None:
        return shared_base
    kind_settings.require("rope_type", ("default",))
    return kind_settings.number("rope_theta", shared_base)


def _write_layers(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    kinds = [_LOCAL if layer.window else _GLOBAL for layer in layers]
    bases = {kind: layer.rope_theta for kind, layer in zip(kinds, layers, strict=True)}
    windows = [layer.window for layer in layers if layer.window]
    return {
        **({"sliding_window": windows[0]} if windows and config.causal else {}),
        "layer_types": kinds,
        "local_attention": 2 * (windows[0] - (not config.causal)) if windows else 128,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
    }


def _read_head(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    bias = fields.flag("decoder_bias", True)
    masked = "head.dense.weight" in tensors and "classifier.weight" not in tensors
    return {"head": "mlm", "head_bias": bias} if masked else {"head": "none", "tied_head": True}


_TRANSFORM = {"head.dense": Stored("head.dense"), "head.norm": Stored("head.norm")}
_CLASSIFIER = {**_TRANSFORM, "head.decoder": Stored("classifier")}

MODERNBERT = Family(
    name="ModernBERT",
    model_type="modernbert",
    prefix="model.",
    classes={"none": "ModernBertModel", "mlm": "ModernBertForMaskedLM"},
    only={"rope_scaling": ()},
    fixed={"causal": False, "embed_norm": True, "positions": "rotary", "gated": True},
    settings=(
        *SIZES,
        Key("hidden_activation", "activation", "gelu", ACTIVATIONS),
        Key("max_position_embeddings", "context"),
        Key("norm_eps", default=1e-5),
        Key("norm_bias", default=False),
        Key("attention_bias", "qkv_bias o_bias", False),
        Key("mlp_bias", "ffn_bias", False),
        Key("classifier_bias", "head_dense_bias", False),
        Key("classifier_activation", "head_activation", "gelu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        Group(_read_layers, _write_layers),
        Group(_read_head, lambda config: {"decoder_bias": config.head_bias}),
    ),
    harmless=(
        *("classifier_pooling", "deterministic_flash_attn", "embedding_dropout", "initializer_cutoff_factor"),
        *("layer_norm_eps", "mlp_dropout", "position_embedding_type", "reference_compile", "repad_logits_with_grad"),
        *("sparse_pred_ignore_index", "sparse_prediction"),
    ),
    stored={
        "embed.tokens": Stored("embeddings.tok_embeddings"),
        "embed.norm": Stored("embeddings.norm"),
        "blocks.{n}.norm1": Stored("layers.{n}.attn_norm"),
        **fused("layers.{n}.attn.Wqkv"),
        "blocks.{n}.attention.o": Stored("layers.{n}.attn.Wo"),
        "blocks.{n}.norm2": Stored("layers.{n}.mlp_norm"),
        "blocks.{n}.ffn.gate": Stored("layers.{n}.mlp.Wi", parts=("d_ff", "d_ff")),
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.Wi", part=1, parts=("d_ff", "d_ff")),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.Wo"),
        "final_norm": Stored("final_norm"),
        **_TRANSFORM,
        "head.decoder": Stored("decoder"),
    },
    skipped=(Skip(r"(head|classifier)\..*", "a task head", noted=True),),
    copies={"decoder.weight": "embeddings.tok_embeddings.weight"},
    outside=("head.", "decoder.", "classifier."),
    heads={
        "sequence": ClassHead(_CLASSIFIER, reads_by=("classifier_pooling", "cls", {"cls": "first", "mean": "mean"})),
        "token": ClassHead(_CLASSIFIER),
        "question": ClassHead(_CLASSIFIER),
    },
)
"""Warner et al. 2024: pre-norm; most layers have a window to both sides and their own RoPE base."""


def _read_decoder_head(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    if "lm_head.dense.weight" not in tensors:
        return {"head": "none", "tied_head": True}
    return {"head": "lm", "head_dense": True, "head_norm": True, "head_bias": fields.flag("decoder_bias", True)}


MODERNBERT_DECODER = replace(
    MODERNBERT,
    name="ModernBERT decoder",
    model_type="modernbert-decoder",
    classes={"none": "ModernBertDecoderModel", "lm": "ModernBertDecoderForCausalLM"},
    fixed={"embed_norm": True, "positions": "rotary", "gated": True},
    settings=(
        *MODERNBERT.settings[:-1],
        Group(_read_decoder_head, lambda config: {"decoder_bias": config.head_bias}),
    ),
    written=dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), 0),
    stored={
        **MODERNBERT.stored,
        **{f"blocks.{{n}}.attention.{name}": Stored(f"layers.{{n}}.attn.{name}_proj") for name in "qkv"},
        "head.dense": Stored("lm_head.dense"),
        "head.norm": Stored("lm_head.norm"),
    },
    outside=("lm_head.", "decoder.", "head.", "classifier."),
    heads={},
)
"""Weller et al. 2025 (Ettin): ModernBERT that looks back alone, with the transform of its head."""

NOMIC_BERT = replace(
    BERT,
    name="NomicBERT",
    model_type="nomic_bert",
    skipped=(*BERT.skipped, ROTARY_FREQUENCIES),
    prefix="nomic_bert.",
    classes={"none": "NomicBertModel", "mlm": "NomicBertForMaskedLM"},
    only={
        "activation_function": ("swiglu",),  # whose hidden_act is silu
        "rotary_emb_fraction": (1.0,),
        "rotary_scaling_factor": (),
        "scale_attn_weights": (True,),
        **dict.fromkeys(
            (
                "causal",
                "mlp_fc1_bias",
                "mlp_fc2_bias",
                "parallel_block",
                "prenorm",
                "qkv_proj_bias",
                "rotary_emb_interleaved",
                "scale_attn_by_inverse_layer_idx",
                "use_rms_norm",
            ),
            (False,),
        ),
    },
    older_keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "rope_theta": "rotary_emb_base",
    },
    written={**BERT.written, "pad_token_id": 0},  # null, of a vocabulary without padding, is refused
    fixed={
        **BERT.fixed,
        **dict.fromkeys(("qkv_bias", "o_bias", "ffn_bias"), False),
        "positions": "rotary",
        "gated": True,
    },
    settings=(
        Key("head_dim", "d_head", 0),
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        *(setting for setting in BERT.settings if getattr(setting, "name", "") != "hidden_act"),
        rope(1_000.0),
    ),
    harmless=(
        "dense_seq_output",
        "fused_bias_fc",
        "fused_dropout_add_ln",
        "max_trained_positions",
        "pad_vocab_size_multiple",
        "parallel_block_tied_norm",
        "rotary_emb_scale_base",
        "use_flash_attn",
        "use_xentropy",
    ),
    stored={
        **{name: layout for name, layout in BERT.stored.items() if not name.startswith(("blocks.", "embed.positions"))},
        "embed.norm": Stored("emb_ln"),
        **{
            name: replace(layout, instead=Stored(f"encoder.layers.{{n}}.self_attn.{name[-1]}_proj"))
            for name, layout in fused("encoder.layers.{n}.attn.Wqkv").items()
        },
        "blocks.{n}.attention.o": Stored("encoder.layers.{n}.attn.out_proj"),
        "blocks.{n}.norm1": Stored("encoder.layers.{n}.norm1"),
        "blocks.{n}.ffn.up": Stored("encoder.layers.{n}.mlp.fc11"),
        "blocks.{n}.ffn.gate": Stored("encoder.layers.{n}.mlp.fc12"),
        "blocks.{n}.ffn.down": Stored("encoder.layers.{n}.mlp.fc2"),
        "blocks.{n}.norm2": Stored("encoder.layers.{n}.norm2"),
        "head.norm": Stored("cls.predictions.transform.layer_norm"),
    },
    spellings=(  # names of a model in memory
        (r"^embeddings\.LayerNorm\.", "emb_ln."),
        (r"^layers\.", "encoder.layers."),
        (r"\.self_attn\.o_proj\.", ".attn.out_proj."),
        (r"\.post_attention_layernorm\.", ".norm1."),
        (r"\.mlp\.up_proj\.", ".mlp.fc11."),
        (r"\.mlp\.gate_proj\.", ".mlp.fc12."),
        (r"\.mlp\.down_proj\.", ".mlp.fc2."),
        (r"\.post_mlp_layernorm\.", ".norm2."),
    ),
)
"""Nussbaum et al. 2024: post-norm, as BERT."""


def _read_lm_head(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Llama's head, without a transform, trained on masks; it has a bias if the feed-forward has one."""
    present = draft["tied_head"] or "lm_head.weight" in tensors
    return {"head": "lm" if present else "none", "head_bias": draft["ffn_bias"] and present}


EUROBERT = replace(
    LLAMA,
    name="EuroBERT",
    model_type="eurobert",
    classes={"none": "EuroBertModel", "lm": "EuroBertForMaskedLM"},
    fixed={**LLAMA.fixed, "causal": False},
    settings=(*LLAMA.settings, Group(_read_lm_head)),
    harmless=("classifier_pooling",),
    skipped=(*LLAMA.skipped, Skip(r"dense\..*", "a task head", noted=True)),
    outside=("lm_head", "dense.", "classifier."),
    heads={
        "sequence": ClassHead(
            {"head.dense": Stored("dense"), "head.decoder": Stored("classifier")},
            "gelu",
            reads_by=("classifier_pooling", "late", {"bos": "first", "mean": "mean"}),
        ),
        "token": ClassHead({"head.decoder": Stored("classifier")}),
    },
)
"""Boizard et al. 2025: a bidirectional Llama."""
