"""The family and configuration of a transformers directory, before its weights are read."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinytf.checkpoints.huggingface.alibi import BLOOM, FALCON, MPT
from tinytf.checkpoints.huggingface.bert import (
    ALBERT,
    BERT,
    CAMEMBERT,
    DISTILBERT,
    ELECTRA,
    MPNET,
    ROBERTA,
    XLM_ROBERTA,
)
from tinytf.checkpoints.huggingface.cousins import COUSINS
from tinytf.checkpoints.huggingface.deberta import DEBERTA_V2
from tinytf.checkpoints.huggingface.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from tinytf.checkpoints.huggingface.encoders import (
    DATA2VEC,
    ERNIE,
    ESM,
    MEGATRON_BERT,
    ROBERTA_PRENORM,
    ROFORMER,
    XLM_ROBERTA_XL,
)
from tinytf.checkpoints.huggingface.experts import GRANITE_MOE, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from tinytf.checkpoints.huggingface.gemma import GEMMA, GEMMA2, GEMMA3, VAULTGEMMA
from tinytf.checkpoints.huggingface.glm import ERNIE4_5, GLM, GLM4, HELIUM
from tinytf.checkpoints.huggingface.gpt2 import GPT2, GPT_BIGCODE, GPT_NEO, OPENAI_GPT
from tinytf.checkpoints.huggingface.gpt_oss import GPT_OSS
from tinytf.checkpoints.huggingface.gptj import CODEGEN, GPTJ
from tinytf.checkpoints.huggingface.layernorm import COHERE, COHERE2, NEMOTRON, OLMO, PHI, STABLELM
from tinytf.checkpoints.huggingface.lfm2 import LFM2
from tinytf.checkpoints.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from tinytf.checkpoints.huggingface.llama4 import HUNYUAN, LLAMA4
from tinytf.checkpoints.huggingface.modernbert import EUROBERT, MODERNBERT, NOMIC_BERT
from tinytf.checkpoints.huggingface.nanochat import NANOCHAT
from tinytf.checkpoints.huggingface.neox import NEOX
from tinytf.checkpoints.huggingface.opt import BIOGPT, OPT, XGLM
from tinytf.checkpoints.huggingface.phi3 import JAIS2, PHI3, STARCODER2
from tinytf.checkpoints.huggingface.qwen_next import QWEN3_5, QWEN3_NEXT
from tinytf.checkpoints.huggingface.table import HARMLESS, Family
from tinytf.checkpoints.load import Checkpoint, WeightFiles
from tinytf.checkpoints.mxfp4 import Mxfp4Weights
from tinytf.checkpoints.table import Skip
from tinytf.checkpoints.unsupported import explain_unsupported
from tinytf.checkpoints.weights import Weights
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, faults_of, quoted
from tinytf.files import read_json

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        GPT2, GPT_BIGCODE, GPT_NEO, OPENAI_GPT,
        BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ELECTRA, ALBERT, MPNET, DISTILBERT,
        ERNIE, DATA2VEC, ROBERTA_PRENORM, XLM_ROBERTA_XL, MEGATRON_BERT, ROFORMER, DEBERTA_V2,
        MODERNBERT, NOMIC_BERT, EUROBERT,
        LLAMA, MISTRAL, QWEN2, QWEN3,
        GEMMA, GEMMA2, GEMMA3, VAULTGEMMA,
        *COUSINS,
        NEOX,
        MIXTRAL, QWEN2_MOE, QWEN3_MOE, OLMOE, GRANITE_MOE,
        GPTJ, CODEGEN,
        OLMO, COHERE, NEMOTRON, PHI, STABLELM,
        PHI3, STARCODER2, JAIS2,
        GLM, GLM4, HELIUM, ERNIE4_5,
        COHERE2,
        BLOOM, MPT, FALCON,
        OPT, BIOGPT, XGLM,
        DEEPSEEK_V2, DEEPSEEK_V3, GPT_OSS,
        LLAMA4, HUNYUAN, NANOCHAT, ESM, QWEN3_5, QWEN3_NEXT, LFM2,
    )
}  # fmt: skip


class UnknownArchitecture(CheckpointError):
    """A model of transformers whose architecture has no table here."""


def read_directory(directory: Path) -> Checkpoint:
    """The checkpoint of a directory, from config.json and the headers of the weight files.

    Raises CheckpointError, naming file and key, for anything missing, damaged or not implemented.
    """
    path = directory / "config.json"
    data = read_json(path)
    return checkpoint_of(data, lambda: _open_weights(directory, data.get("quantization_config")), directory, path)


def checkpoint_of(
    data: Mapping[str, Any], open_weights: Callable[[], WeightFiles], source: Path | str, path: Path | str
) -> Checkpoint:
    """A checkpoint from ``data``, the configuration of transformers at ``path``, and the weights at ``source``."""
    model_type = data.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{path} has no model_type, so it is neither a model of transformers nor of tinytf")
    found = _family_of(data)
    if found is None:
        raise UnknownArchitecture(
            f"{path}: the architecture {model_type!r} is not one that tinytf opens: "
            f"{explain_unsupported(model_type, data)}",
            f"{len(FAMILIES)} are known, such as gpt2, llama, qwen3 and bert; docs/families.md lists them all",
        )
    (family, data), weights = found, open_weights()
    fields = Fields(data, path)
    tensors = {family.plain(name): name for name in weights.shapes}
    tensors |= {original: tensors[copy] for copy, original in family.copies.items() if copy in tensors}
    with faults_of(path):
        config = family.read(fields, tensors)
    unknown_keys = tuple(fields.unknown({*HARMLESS, *family.harmless}))
    message = f"{path.name if isinstance(path, Path) else path} has keys that tinytf does not know"
    notes = (f"{message}: {', '.join(unknown_keys)}",) if unknown_keys else ()
    return Checkpoint(source, family.with_head(config), config, weights, notes)


def _family_of(data: Mapping[str, Any]) -> tuple[Family, Mapping[str, Any]] | None:
    """The table for a configuration of transformers, and the part of it that the table reads; None without a table."""
    text = data.get("text_config")
    if data.get("model_type") in FAMILIES:
        return FAMILIES[data["model_type"]], data
    if isinstance(text, dict) and text.get("model_type") in FAMILIES:
        return _text_part(FAMILIES[text["model_type"]]), {**{k: data[k] for k in _OUTSIDE if k in data}, **text}
    return None


def has_table(directory: Path) -> bool:
    """Whether tinytf has a table for the model of a directory of transformers."""
    return _family_of(read_json(directory / "config.json")) is not None


_OUTSIDE = ("tie_word_embeddings", "quantization_config")
"""Keys outside text_config that apply to the whole multimodal model."""


def _text_part(family: Family) -> Family:
    """The table of a family as the text part of a multimodal model."""
    return replace(
        family,
        prefix=f"language_model.{family.prefix}",
        spellings=((r"^(model\.)?language_model\.", ""), *family.spellings),
        skipped=(
            *family.skipped,
            Skip(r"(model\.)?(vision|visual|multi_modal|audio|embed_).*", "the parts for images or sound", noted=True),
        ),
    )


def _open_weights(directory: Path, quantization: object) -> WeightFiles:
    """The weights of a directory; ``quantization`` is the quantization_config of its config.json."""
    if not quantization:
        return Weights(directory)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method != "mxfp4":
        method_suffix = f" by {quoted(method)}" if isinstance(method, str) else ""
        message = f"quantised weights{method_suffix} (quantization_config) are not implemented in this format"
        raise CheckpointError(f"{directory / 'config.json'}: {message}", "only mxfp4 is implemented")
    return Mxfp4Weights(Weights(directory))
