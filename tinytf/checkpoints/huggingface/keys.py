"""Keys of config.json beside those that a table reads: which change nothing and why, and other names of those read."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.table import Family
from tinytf.config import ModelConfig
from tinytf.fields import Field, Fields, shown

_IDS = "bos|eos|pad|cls|sep|mask|unk|forced_bos|forced_eos|decoder_start"
HARMLESS: Mapping[str, str] = {
    "dropout is off in evaluation": r"(\w+_)?(dropout|pdrop|layerdrop)(_prob|_rate)?",
    "weights are read, not drawn": r"(\w+_)?initializer_(range|factor|cutoff_factor)",
    "ids of tokens, which the tokenizer has": rf"({_IDS})_token_id|pad_id",
    "labels are read with the head that has them": "id2label|label2id|_?num_labels|finetuning_task|problem_type",
    "generation chooses tokens by its own options": (
        "bad_words_ids|(begin_)?suppress_tokens|(diversity|length|repetition|exponential_decay_length)_penalty|do_sample"
        "|early_stopping|(encoder_)?no_repeat_ngram_size|(max|min)_length|num_beam(s|_groups)|num_return_sequences|prefix"
        "|remove_invalid_values|temperature|top_[kp]|typical_p|use_cache"
    ),
    "what a call returns besides the logits": (
        "output_(scores|attentions|hidden_states|past)|return_dict(_in_generate)?"
    ),
    "how it is computed, to the same numbers": (
        "_?attn_implementation|chunk_size_feed_forward|gradient_checkpointing|pretraining_tp|reorder_and_upcast_attn"
        "|torchscript|use_falcon_mambapy|xla_device"
    ),
    "types of the stored weights, which the files say": "(torch_)?dtype|_is_quantized",
    "how the stored weights are quantised, which is read as they are opened": "quantization(_config)?",
    "where the file comes from": (
        "_commit_hash|_?model_name_or_path|_name_or_path|architectures|auto_map|directionality|is_llama_config|model_type"
        "|tokenizer_class|transformers_version|transformers.js_config|unsloth_(fixed|version)"
    ),
    "training of another task": "tf_legacy_loss|task_specific_params|tie_weights_|is_encoder_decoder",
    "a head for which there are no weights": (
        r"pooler_(fc_size|num_attention_heads|num_fc_layers|size_per_head|type)|summary_\w+"
    ),
    "layers that predict tokens further ahead, which are not opened": r"num_(mtp|nextn_predict)_layers|mtp_\w+",
    "it excuses widths that heads do not divide": "embedding_size",
    "layer_types, which it would make, stands beside it": "_?sliding_window_pattern|max_window_layers",
    "it repeats the context": "n_ctx",
}
"""Keys that do not change a forward pass in evaluation, as regular expressions by the reason.

A table that reads such a key all the same, such as the width of ELECTRA's embeddings, reads it first.
"""
_HARMLESS = re.compile("|".join(HARMLESS.values()))

_SYNONYMS = (
    ("hidden_size", "n_embd", "d_model", "dim", "emb_dim"),
    ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads"),
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    ("vocab_size", "n_token", "n_words", "org_vocab_size"),
    ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k"),
    ("num_key_value_heads", "num_attention_groups"),
    ("share_expert_dim", "share_expert_dims"),
    ("norm_topk_prob", "moe_renormalize"),
    ("n_group", "num_expert_group"),
    ("n_shared_experts", "num_shared_experts"),
    ("head_dim", "attention_head_dim", "kv_channels"),
    ("attention_bias", "qkv_bias"),
    ("mlp_bias", "bias"),
    ("sliding_window", "attention_window_size", "sliding_window_size"),
    ("conv_kernel_size", "sconv_kernel_size"),
    ("logits_mup_width_multiplier", "embedding_multiplier"),
    ("layer_types", "layers_block_type"),
)
"""Names that transformers takes for one another in some families, by the attribute_map of their configurations."""


_LEFT_OUT: tuple[tuple[str, Any, str], ...] = (
    (
        "num_key_value_heads",
        2,
        (
            "ernie4_5 glm glm4 glm4v_text glm_image_text internlm3 openai_privacy_filter qwen3_5_moe_text qwen3_next "
            "qwen4_exp_text starcoder2"
        ),
    ),
    ("num_key_value_heads", 4, "minimax_m3_vl_text"),
    ("num_key_value_heads", 5, "bitnet"),
    (
        "num_key_value_heads",
        8,
        (
            "cosmos3_edge_text cwm glm4_moe glm4v_moe_text glm_ocr_text gpt_oss hy_v3 jamba laguna "
            "llama4_text minimax minimax_m2 ministral ministral3 mistral mixtral phimoe qwen2_5_vl_text qwen2_vl_text "
            "seed_oss solar_open"
        ),
    ),
    ("num_key_value_heads", 16, "gemma qwen2_moe qwen3_vl_moe_text youtu"),
    ("num_key_value_heads", 20, "glm4_moe_lite helium"),
    ("num_key_value_heads", 32, "dots1 exaone4 exaone_moe kimi_linear mistral4 qwen2 qwen3 qwen3_vl_text stablelm"),
    ("num_key_value_heads", 40, "minicpm3"),
    ("num_key_value_heads", 64, "glm5_next_text glm_moe_dsa mistral_large4_text"),
    ("num_key_value_heads", 128, "deepseek_v3 deepseek_v32"),
    ("head_dim", 128, "cohere2_moe"),
    ("head_dim", 64, "longcat_flash"),
    ("rms_norm_eps", 1e-5, "eurobert minimax mixtral olmoe"),
    ("layer_norm_eps", 1e-5, "jina_embeddings_v3"),
    ("type_vocab_size", 1, "jina_embeddings_v3 xlm-roberta-xl"),
    ("sliding_window", 4096, "mistral"),
    ("sliding_window", 1024, "gemma4_unified_text"),
    ("num_kv_shared_layers", 15, "gemma3n_text"),
    ("first_k_dense_replace", 3, "deepseek_v3"),
    ("tie_word_embeddings", True, "qwen3_vl_moe_text"),
    ("attention_multiplier", 0.015625, "granite_docling_text"),
    ("embedding_multiplier", 12.0, "granite_docling_text"),
    ("residual_multiplier", 0.263, "granite_docling_text"),
    ("logits_scaling", 4.0, "granite_docling_text"),
    ("embedding_size", 768, "squeezebert"),
    (
        "rope_parameters",
        {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 2048.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "attention_factor": 1.0,
        },
        "mistral_large4_text",
    ),
    (
        "rope_parameters",
        {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25},
        },
        "gemma4_text gemma4_unified_text",
    ),
    (
        "rope_parameters",
        {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        },
        "lfm3",
    ),
)
"""What transformers takes for a key that config.json leaves out, where the table takes null for something else."""


def with_keys_left_out(data: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """A configuration with its keys under their names of now, and with those that it leaves out."""
    data = family.with_names_now(data)
    left_out = {key: value for key, value, kinds in _LEFT_OUT if family.model_type in kinds.split()}
    return {**{key: value for key, value in left_out.items() if not data.keys() & {*_names_of(key)}}, **data}


class NamedFields(Fields):
    """The keys of a config.json, each under the name that the table asks for or another that transformers takes."""

    def get(self, field: Field) -> Any:
        """The value of a field, or its default."""
        given = [name for name in _names_of(field.name) if self.data.get(name) is not None]
        if given and field.name not in given:
            self.asked.add(field.name)
            field = replace(field, name=given[0])
        return super().get(field)


def part_of(fields: Fields, name: str, family: Family) -> NamedFields:
    """The keys of a nested object, which describes a stack of ``family``."""
    part = NamedFields(with_keys_left_out(fields.get(Field(name, dict)), family), f"{fields.source}: {name}")
    fields.parts[name] = part, family
    return part


def _names_of(name: str) -> tuple[str, ...]:
    """The names that transformers takes for this one, with it."""
    return next((names for names in _SYNONYMS if name in names), (name,))


def unknown_keys(fields: Fields, family: Family, config: ModelConfig) -> Iterator[str]:
    """Yield the keys that the table of ``family`` did not read, and that are not known to change nothing.

    Raises CheckpointError for another name of a key that it did read, with another value; both may be read, as
    MiMo-V2's two sizes of a window.
    """
    unknown = [name for name in fields.unknown(family.harmless) if not _HARMLESS.fullmatch(name)]
    for name in unknown:
        repeats = _repeated(name, fields, config)
        if fields.data[name] not in (None, *repeats.values()) and repeats:
            other, value = next(iter(repeats.items()))
            message = f"{name} {shown(fields.data[name])} is another name of {other}, which is {shown(value)}"
            raise fields.fault(message, "leave out one of the two")
        if not repeats:
            yield name
    for name, (part, of_part) in fields.parts.items():
        stack = config.encoder if name == "encoder" else config
        yield from (f"{name}.{key}" for key in unknown_keys(part, of_part, stack or config))


def _repeated(name: str, fields: Fields, config: ModelConfig) -> dict[str, Any]:
    """The values that a key may repeat, by their names: of the keys that were read, or the width of a head."""
    read = {other: fields.data.get(other) for other in _names_of(name) if other in fields.asked and other != name}
    if name == "head_dim" and not read and name not in fields.asked:
        return {"hidden_size / num_attention_heads": config.d_head}
    return {other: value for other, value in read.items() if value is not None}
