"""The table of a family of transformers, and what several families share: words, sizes, a head, harmless keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinytf.checkpoints.huggingface.heads import ClassHead, stored_head, written_head
from tinytf.checkpoints.table import FamilyTable, Found, Group, Key, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


@dataclass(frozen=True, kw_only=True)
class Family(FamilyTable):
    """One family of transformers.

    ``classes`` are those of transformers, by our word for the head; the first is the default. ``needs`` are fields of
    ours that cannot be 0, ``written`` keys that are always written with the same value. ``heads`` are those of classes,
    by our word.
    """

    model_type: str
    classes: Mapping[str, str]
    needs: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    heads: Mapping[str, ClassHead] = field(default_factory=dict)

    def find(self, fields: Fields, tensors: Tensors) -> dict[str, Any]:
        """The settings of a file and of the head of classes that it stores, whose dense layer is then no pooler."""
        found = super().find(fields, tensors)
        head = stored_head(self.heads, fields, tensors)
        if not head:
            return found
        kept = {how.module for how in self.heads[head].stored.values()}
        taken = {"pooler": False} if "pooler" in self.stored and self.stored["pooler"].module in kept else {}
        return found | taken | self.heads[head].read(head, fields, found)

    def with_head(self, config: ModelConfig) -> "Family":
        """The table where a model has the head of this configuration."""
        head = self._head_of(config)
        return self if head is None else replace(self, stored={**self.stored, **head.stored})

    def _head_of(self, config: ModelConfig) -> ClassHead | None:
        """The head of classes that a configuration has, by its kind and its dense layer."""
        for name, head in self.heads.items():
            if (head.head or name) == config.head.kind and ("head.dense" in head.stored) == config.head_dense:
                return head
        return None

    def write(self, config: ModelConfig) -> dict[str, Any] | None:
        """A config.json for a configuration of ours, None where the family cannot hold it."""
        head = self._head_of(config)
        if not all(getattr(config, name) for name in self.needs) or (config.labels and head is None):
            return None
        default = next(iter(self.classes.values()))
        said: dict[str, Any] = {"architectures": [self.classes.get(config.head.kind, default)]}
        if head is not None:
            said |= written_head(config, default, head)
        for setting in self.settings:
            said |= setting.write(config)
        return {**said, **self.written}


SIZES = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_hidden_layers", "n_layers"),
    Key("num_attention_heads", "n_heads"),
    Key("intermediate_size", "d_ff"),
)
"""The keys that most families share."""

ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Activations by their names in transformers; of several names for one, the first is written."""


def lm_head(tensor: str = "lm_head.weight", *, biased: bool = False) -> Group:
    """A next-token head, where it is tied to the embeddings or stored; in some families ``biased``."""

    def read(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
        there = found["tied_head"] or tensor in tensors
        return {"head": "lm" if there else "none", "head_bias": biased and there}

    return Group(read)


def by_layer(field: str, values: Sequence[Any]) -> dict[str, Any]:
    """A field of ours with a value for each layer: one for all of them where they are the same."""
    return {field: values[0]} if len(set(values)) == 1 else {"by_layer": ((field, tuple(values)),)}


HARMLESS = frozenset(
    {
        "_attn_implementation", "_commit_hash", "_model_name_or_path", "_name_or_path", "_num_labels", "architectures",
        "attention_dropout", "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample",
        "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
        "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
        "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature",
        "top_k", "top_p", "typical_p", "xla_device", "torchscript", "tf_legacy_loss",
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
