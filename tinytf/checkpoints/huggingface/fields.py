"""A config.json with its types checked, every key that is asked for remembered."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError
from tinytf.nearest import did_you_mean

_REQUIRED: Any = object()

# Keys that say nothing about the numbers of a forward pass in evaluation.
_HARMLESS = frozenset(
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


class Fields:
    """Typed access to a configuration; CheckpointError names file, key and value of what does not fit."""

    def __init__(self, data: Mapping[str, Any], path: Path) -> None:
        self.data, self.path = data, path
        self.asked: set[str] = set()

    def _get(self, name: str, default: Any, kinds: tuple[type, ...], words: str) -> Any:
        self.asked.add(name)
        value = self.data.get(name)
        if value is None:
            if default is _REQUIRED:
                raise CheckpointError(f"{self.path} lacks {name}")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise CheckpointError(f"{self.path}: {name} is {value!r}, and has to be {words}")
        return value

    def whole(self, name: str, default: Any = _REQUIRED) -> int:
        """A whole number; ``default`` where the key is missing or null."""
        return int(self._get(name, default, (int,), "a whole number"))

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        """A finite number."""
        value = self._get(name, default, (int, float), "a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"{self.path}: {name} is {value!r}, and has to be a finite number")
        return float(value) if abs(value) < 1e300 else math.inf

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        return bool(self._get(name, default, (bool,), "true or false"))

    def word(self, name: str, table: Mapping[str, str], default: str) -> str:
        """What a word means in ``table``; a word that is not in it is refused by name."""
        word = str(self._get(name, default, (str,), "a word"))
        if word not in table:
            raise CheckpointError(f"{self.path}: {name} {word!r} is not implemented", did_you_mean(word, table))
        return table[word]

    def object(self, name: str) -> "Fields | None":
        """A nested object, or None where the key is missing or null."""
        value = self._get(name, None, (dict,), "an object")
        return None if value is None else Fields(value, self.path)

    def listed(self, name: str) -> list[Any]:
        """A list, empty where the key is missing or null."""
        return list(self._get(name, [], (list,), "a list"))

    def require(self, name: str, only: Collection[Any], default: Any) -> None:
        """Refuse any value but those in ``only``: the others change the numbers, and are not implemented."""
        self.asked.add(name)
        value = self.data.get(name, default)
        if value is not None and value not in only:
            raise CheckpointError(f"{self.path}: {name} {value!r} is not implemented")

    def unused(self) -> list[str]:
        """Keys that nobody asked for and that are not known to be harmless."""
        return [name for name in self.data if name not in self.asked and name not in _HARMLESS]
