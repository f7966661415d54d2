"""Which family a directory of transformers is of, and what it says without its weights."""

from pathlib import Path

from tinytf.checkpoints.huggingface.bert import BERT, DISTILBERT, ROBERTA
from tinytf.checkpoints.huggingface.gemma import GEMMA2
from tinytf.checkpoints.huggingface.gpt2 import GPT2
from tinytf.checkpoints.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from tinytf.checkpoints.huggingface.neox import NEOX
from tinytf.checkpoints.huggingface.table import HARMLESS
from tinytf.checkpoints.load import Checkpoint
from tinytf.checkpoints.weights import Weights
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, faults_of
from tinytf.files import read_json
from tinytf.nearest import did_you_mean

FAMILIES = {f.model_type: f for f in (GPT2, BERT, ROBERTA, DISTILBERT, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, NEOX)}


def read_directory(directory: Path) -> Checkpoint:
    """Family and configuration from config.json and the headers of the weight files.

    Raises CheckpointError, with the file and the key, for what is missing, damaged or not implemented.
    """
    path = directory / "config.json"
    data = read_json(path)
    kind = data.get("model_type")
    if not isinstance(kind, str):
        raise CheckpointError(f"{path} has no model_type, so it is not a model of transformers or of tinytf")
    if kind not in FAMILIES:
        raise CheckpointError(
            f"{path}: the architecture {kind!r} is not one that tinytf opens", did_you_mean(kind, FAMILIES)
        )
    if data.get("quantization_config"):
        raise CheckpointError(f"{path}: quantised weights (quantization_config) are not implemented in this format")
    family, weights, fields = FAMILIES[kind], Weights(directory), Fields(data, path)
    tensors = {family.plain(name): name for name in weights.shapes}
    tensors |= {copied: tensors[copy] for copy, copied in family.copies.items() if copy in tensors}
    with faults_of(path):
        config = family.read(fields, tensors)
    unused = tuple(fields.unknown({*HARMLESS, *family.harmless}))
    notes = (f"config.json has keys that tinytf does not know: {', '.join(unused)}",) if unused else ()
    return Checkpoint(directory, family.with_head(config.head), config, weights, notes)
