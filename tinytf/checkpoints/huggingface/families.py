"""The families that tinytf opens, and which of them a config.json is of."""

from pathlib import Path
from typing import Any

from tinytf.checkpoints.huggingface.bert import BERT, DISTILBERT, ROBERTA
from tinytf.checkpoints.huggingface.gemma import GEMMA2
from tinytf.checkpoints.huggingface.gpt2 import GPT2
from tinytf.checkpoints.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from tinytf.checkpoints.huggingface.neox import NEOX
from tinytf.checkpoints.huggingface.table import Family
from tinytf.errors import CheckpointError
from tinytf.nearest import did_you_mean

FAMILIES = {f.model_type: f for f in (GPT2, BERT, ROBERTA, DISTILBERT, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, NEOX)}


def family_of(data: dict[str, Any], path: Path) -> Family:
    """The family of a config.json; CheckpointError with what was found and what is known."""
    found = data.get("model_type")
    if not isinstance(found, str):
        raise CheckpointError(f"{path} has no model_type, so it is not a model of transformers or of tinytf")
    if found not in FAMILIES:
        raise CheckpointError(
            f"{path}: the architecture {found!r} is not one that tinytf opens", did_you_mean(found, FAMILIES)
        )
    return FAMILIES[found]
