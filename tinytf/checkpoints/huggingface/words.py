"""Words and settings that several families share."""

from typing import Any

from tinytf.checkpoints.table import Found, Group, Tensors
from tinytf.fields import Fields

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Activations by their names in transformers, the first of each the one that is written."""


def _read_lm_head(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    return {"head": "lm" if found["tied_head"] or "lm_head.weight" in tensors else "none"}


LM_HEAD = Group(_read_lm_head)
"""A next-token head, where it is tied to the embeddings or stored."""

HARMLESS = frozenset(
    {
        "_attn_implementation", "_name_or_path", "_num_labels", "architectures", "attention_dropout",
        "attention_probs_dropout_prob", "attn_implementation", "attn_pdrop", "auto_map", "bos_token_id",
        "chunk_size_feed_forward", "classifier_dropout", "cls_token_id", "directionality", "dropout", "dtype",
        "embd_pdrop", "eos_token_id", "finetuning_task", "gradient_checkpointing", "hidden_dropout",
        "hidden_dropout_prob", "id2label", "initializer_range", "is_encoder_decoder", "is_llama_config",
        "label2id", "mask_token_id", "max_window_layers", "model_type", "n_ctx", "num_labels",
        "output_attentions", "output_hidden_states", "pad_token_id", "pooler_fc_size",
        "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
        "pretraining_tp", "problem_type", "qa_dropout", "reorder_and_upcast_attn", "resid_pdrop",
        "return_dict", "sep_token_id", "seq_classif_dropout", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params", "tie_weights_",
        "tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_version", "unk_token_id",
        "unsloth_fixed", "unsloth_version", "use_cache",
    }
)  # fmt: skip
"""Keys of config.json that say nothing about the numbers of a forward pass in evaluation."""
