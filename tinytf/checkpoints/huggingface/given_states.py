"""Decoders whose encoder reads sound or images, and is not opened: their cross-attention is given its states.

Whisper (Radford et al. 2022), TrOCR (Li et al. 2021), Donut and others of the BART kind.
"""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import fairseq_waves
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family
from tinytf.checkpoints.huggingface.two_stacks import BART, EMBED_SCALE, MBART
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields
from tinytf.model.transformer import ENCODER


def _read_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"d_source": fields.whole("cross_attention_hidden_size", draft["d_model"], least=1), "head": "lm"}


_READS = Group(_read_width, lambda config: {"cross_attention_hidden_size": config.d_source})
_SIZES = (
    Key("vocab_size"),
    Key("d_model"),
    Key("decoder_layers", "n_layers"),
    Key("decoder_attention_heads", "n_heads"),
    Key("decoder_ffn_dim", "d_ff"),
    Key("activation_function", "activation", "gelu", ACTIVATIONS),
    Key("decoder_start_token_id", "start_id", 2),
    Key("tie_word_embeddings", "tied_head", True),
    EMBED_SCALE,
)


def _alone(family: Family, kind: str, head: str = "lm_head", **changes: Any) -> Family:
    """The decoder of a family, which is given what it reads."""
    fixed = {name: value for name, value in family.fixed.items() if name != "shares_embeddings"}
    stored = {name: how for name, how in family.stored.items() if not name.startswith(ENCODER)}
    of_tokens, of_head = (
        replace(stored[f"{name}"], module=module, bias="", among_ones=(0, 0))
        for name, module in (("embed.tokens", "decoder.embed_tokens"), ("head.decoder", head))
    )
    changed: dict[str, Any] = {
        "classes": {"lm": kind},
        "only": {},
        "fixed": fixed,
        "settings": (*_SIZES, Key("max_position_embeddings", "context", 1024), _READS),
        "written": {**family.written, "is_decoder": True, "add_cross_attention": True},
        "harmless": (
            *family.harmless,
            "add_cross_attention",
            "is_encoder_decoder",
            "num_hidden_layers",
            "encoder_layers",
            "encoder_attention_heads",
            "encoder_ffn_dim",
            "forced_eos_token_id",
        ),
        "stored": {**stored, "embed.tokens": of_tokens, "head.decoder": of_head},
        "copies": {f"{head}.weight": "decoder.embed_tokens.weight"},
        "outside": (head,),
        "heads": {},
    }
    return replace(family, **{**changed, **changes})


BART_DECODER = _alone(BART, "BartForCausalLM")
MBART_DECODER = _alone(MBART, "MBartForCausalLM")


def _read_positions(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    if fields.flag("use_learned_position_embeddings", True):
        return {"position_offset": 2}
    return {"positions": "sinusoidal_halves", "position_offset": fields.whole("pad_token_id", 1) + 1}


def _write_positions(config: ModelConfig) -> dict[str, Any]:
    learned = config.positions == "learned"
    return {"use_learned_position_embeddings": learned} | (
        {} if learned else {"pad_token_id": config.position_offset - 1}
    )


TROCR = _alone(
    BART,
    "TrOCRForCausalLM",
    "output_projection",
    name="TrOCR",
    model_type="trocr",
    fixed={"norm_order": "post"},
    settings=(
        *_SIZES,
        Key("max_position_embeddings", "context", 512),
        Key("layernorm_embedding", "embed_norm", True),
        Group(_read_positions, _write_positions),
        _READS,
    ),
    skipped=(
        *BART.skipped,
        Skip(r"decoder\.embed_positions\._float_tensor", "a buffer without numbers"),
        Skip(r"decoder\.embed_positions\.weights", "sines and cosines, a buffer", computed=fairseq_waves),
    ),
)
_SOUND = Skip(r"encoder\..*", "the encoder, which reads sound: give its states with --source", noted=True)
WHISPER = _alone(
    BART,
    "WhisperForConditionalGeneration",
    "proj_out",
    name="Whisper",
    model_type="whisper",
    fixed={"k_bias": False},
    settings=(
        *_SIZES[:-1],
        Key("max_target_positions", "context", 448),
        Group(lambda fields, draft, tensors: {"d_source": draft["d_model"], "head": "lm"}),
    ),
    written=BART.written,
    harmless=(
        *BART.harmless,
        "num_mel_bins", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "num_hidden_layers",
        "max_source_positions", "use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment",
        "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length",
        "mask_feature_min_masks", "median_filter_width", "forced_decoder_ids", "scale_embedding",
    ),
    skipped=(*BART.skipped, _SOUND),
)  # fmt: skip
"""Whisper, whose decoder never scales its embeddings."""
