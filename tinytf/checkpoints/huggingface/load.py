"""The family and configuration of a transformers directory, before its weights are read."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

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
from tinytf.checkpoints.huggingface.ctrl import CTRL
from tinytf.checkpoints.huggingface.deberta import DEBERTA, DEBERTA_V2
from tinytf.checkpoints.huggingface.deepseek import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GLM4_MOE_LITE,
    GLM_MOE_DSA,
    KIMI_K2,
    MINICPM3,
    MISTRAL4,
    YOUTU,
)
from tinytf.checkpoints.huggingface.deepseek_v4 import DEEPSEEK_V4
from tinytf.checkpoints.huggingface.diffllama import DIFFLLAMA
from tinytf.checkpoints.huggingface.embedding_gemma2 import EMBEDDING_GEMMA2
from tinytf.checkpoints.huggingface.encoder_decoder import ENCODER_DECODERS
from tinytf.checkpoints.huggingface.encoder_decoder import WRITTEN as WRITTEN_PAIRS
from tinytf.checkpoints.huggingface.encoders import (
    BERT_GENERATION,
    DATA2VEC,
    ERNIE,
    ESM,
    IBERT,
    LUKE,
    MEGATRON_BERT,
    REMBERT,
    ROBERTA_PRENORM,
    ROFORMER,
    SPLINTER,
    VISUAL_BERT,
    XLM_ROBERTA_XL,
)
from tinytf.checkpoints.huggingface.experts import GRANITE_MOE, MIXTRAL, OLMOE, PHIMOE, QWEN2_MOE, QWEN3_MOE
from tinytf.checkpoints.huggingface.falcon_h1 import FALCON_H1
from tinytf.checkpoints.huggingface.gemma import GEMMA, GEMMA2, GEMMA3, VAULTGEMMA
from tinytf.checkpoints.huggingface.gemma3n import GEMMA3N
from tinytf.checkpoints.huggingface.gemma4 import GEMMA4, GEMMA4_UNIFIED
from tinytf.checkpoints.huggingface.given_states import WHISPER
from tinytf.checkpoints.huggingface.glm import ERNIE4_5, GLM, GLM4, HELIUM
from tinytf.checkpoints.huggingface.glm5_next import GLM5_NEXT
from tinytf.checkpoints.huggingface.gpt2 import GPT2, GPT_BIGCODE, GPT_NEO, OPENAI_GPT
from tinytf.checkpoints.huggingface.gpt_oss import GPT_OSS, PRIVACY_FILTER
from tinytf.checkpoints.huggingface.gptj import CODEGEN, GPTJ
from tinytf.checkpoints.huggingface.gte import GTE, JINA_V3
from tinytf.checkpoints.huggingface.hy_v4 import HY_V4
from tinytf.checkpoints.huggingface.inkling import INKLING
from tinytf.checkpoints.huggingface.jamba import JAMBA
from tinytf.checkpoints.huggingface.jetmoe import JETMOE
from tinytf.checkpoints.huggingface.keys import NamedFields, unknown_keys, with_keys_left_out
from tinytf.checkpoints.huggingface.kimi_linear import KIMI_LINEAR
from tinytf.checkpoints.huggingface.layernorm import (
    COHERE,
    COHERE2,
    COHERE2_MOE,
    NEMOTRON,
    OLMO,
    PERSIMMON,
    PHI,
    STABLELM,
)
from tinytf.checkpoints.huggingface.lfm2 import LFM2, LFM2_MOE, LFM3
from tinytf.checkpoints.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from tinytf.checkpoints.huggingface.llama4 import HUNYUAN, LLAMA4
from tinytf.checkpoints.huggingface.longcat_flash import LONGCAT_FLASH
from tinytf.checkpoints.huggingface.mamba import BAMBA, GRANITE_HYBRID
from tinytf.checkpoints.huggingface.mamba2 import FALCON_MAMBA, MAMBA, MAMBA2
from tinytf.checkpoints.huggingface.mimo import MIMO_V2_FLASH
from tinytf.checkpoints.huggingface.minimax import MINIMAX
from tinytf.checkpoints.huggingface.minimax_m3 import MINIMAX_M3
from tinytf.checkpoints.huggingface.mistral_large4 import MISTRAL_LARGE4
from tinytf.checkpoints.huggingface.modernbert import EUROBERT, MODERNBERT, MODERNBERT_DECODER, NOMIC_BERT
from tinytf.checkpoints.huggingface.nanochat import NANOCHAT
from tinytf.checkpoints.huggingface.nemotron_h import NEMOTRON_H
from tinytf.checkpoints.huggingface.neox import NEOX, NEOX_JAPANESE
from tinytf.checkpoints.huggingface.olmo_hybrid import OLMO_HYBRID
from tinytf.checkpoints.huggingface.opt import BIOGPT, OPT, XGLM
from tinytf.checkpoints.huggingface.phi3 import PHI3, STARCODER2
from tinytf.checkpoints.huggingface.qwen4_exp import QWEN4_EXP
from tinytf.checkpoints.huggingface.qwen_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from tinytf.checkpoints.huggingface.recurrent_gemma import RECURRENT_GEMMA
from tinytf.checkpoints.huggingface.sentence import read_sentence_modules
from tinytf.checkpoints.huggingface.sigmoid_experts import (
    AFMOE,
    DOTS1,
    EXAONE_MOE,
    GLM4_MOE,
    HY_V3,
    LAGUNA,
    MINIMAX_M2,
    SOLAR_OPEN,
)
from tinytf.checkpoints.huggingface.sinks import GRANITE_MOE_SWA, GRANITE_SWA
from tinytf.checkpoints.huggingface.softmax_experts import (
    ARIA,
    DBRX,
    ERNIE4_5_MOE,
    FLEX_OLMO,
    GRANITE_MOE_SHARED,
    HUNYUAN_MOE,
    MELLUM,
)
from tinytf.checkpoints.huggingface.squeezebert import SQUEEZEBERT
from tinytf.checkpoints.huggingface.step3p7 import STEP3P5
from tinytf.checkpoints.huggingface.t5 import T5_FAMILIES
from tinytf.checkpoints.huggingface.t5gemma import T5GEMMA
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.huggingface.text_parts import (
    COSMOS3,
    GLM4V,
    GLM4V_MOE,
    GLM_IMAGE,
    GLM_OCR,
    GRANITE_DOCLING,
    HUNYUAN_VL,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_VL,
    QWEN3_VL_MOE,
)
from tinytf.checkpoints.huggingface.two_stacks import FROM_FAIRSEQ
from tinytf.checkpoints.huggingface.whole_model import keys_of_text, notes_on, text_part
from tinytf.checkpoints.huggingface.xlm import FLAUBERT, XLM
from tinytf.checkpoints.huggingface.xlnet import XLNET
from tinytf.checkpoints.huggingface.zamba import ZAMBA, ZAMBA2
from tinytf.checkpoints.load import Checkpoint, WeightFiles
from tinytf.checkpoints.mxfp4 import Mxfp4Weights
from tinytf.checkpoints.quantized import QuantizedWeights, require_plain, settings_of
from tinytf.checkpoints.unsupported import classifies_two_stacks, explain_unsupported
from tinytf.checkpoints.weights import Weights
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, faults_of, quoted
from tinytf.files import read_json

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        GPT2, GPT_BIGCODE, GPT_NEO, OPENAI_GPT,
        BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ELECTRA, ALBERT, MPNET, DISTILBERT,
        XLM, FLAUBERT, IBERT, BERT_GENERATION,
        ERNIE, DATA2VEC, ROBERTA_PRENORM, XLM_ROBERTA_XL, MEGATRON_BERT, ROFORMER, REMBERT,
        SPLINTER, VISUAL_BERT, LUKE, SQUEEZEBERT,
        DEBERTA, DEBERTA_V2,
        MODERNBERT, MODERNBERT_DECODER, NOMIC_BERT, JINA_V3, GTE, EUROBERT,
        LLAMA, MISTRAL, QWEN2, QWEN3, QWEN2_VL, QWEN2_5_VL, QWEN3_VL,
        GEMMA, GEMMA2, GEMMA3, GEMMA3N, GEMMA4, GEMMA4_UNIFIED, VAULTGEMMA,
        EMBEDDING_GEMMA2,
        *COUSINS, DIFFLLAMA,
        NEOX, NEOX_JAPANESE,
        MIXTRAL, PHIMOE, JETMOE, QWEN2_MOE, QWEN3_MOE, QWEN3_VL_MOE, OLMOE, GRANITE_MOE,
        GPTJ, CODEGEN,
        OLMO, COHERE, NEMOTRON, PHI, PERSIMMON, STABLELM,
        PHI3, STARCODER2,
        GLM, GLM4, GLM4V, GLM_OCR, GLM_IMAGE, HELIUM, ERNIE4_5,
        COHERE2, COHERE2_MOE,
        BLOOM, MPT, FALCON,
        OPT, BIOGPT, XGLM, CTRL,
        DEEPSEEK_V2, DEEPSEEK_V3, DEEPSEEK_V32, DEEPSEEK_V4, GLM_MOE_DSA, GLM5_NEXT, HY_V4, KIMI_K2,
        GLM4_MOE_LITE, YOUTU, MINICPM3, MISTRAL4, MISTRAL_LARGE4,
        GPT_OSS, PRIVACY_FILTER, GRANITE_SWA, GRANITE_MOE_SWA,
        GLM4_MOE, GLM4V_MOE, HY_V3, SOLAR_OPEN, DOTS1, EXAONE_MOE, AFMOE, LAGUNA, MINIMAX_M2,
        MIMO_V2_FLASH, STEP3P5, MINIMAX_M3,
        ERNIE4_5_MOE, HUNYUAN_MOE, FLEX_OLMO, GRANITE_MOE_SHARED, ARIA, MELLUM, DBRX,
        LLAMA4, HUNYUAN, HUNYUAN_VL, GRANITE_DOCLING, COSMOS3,
        NANOCHAT, ESM, QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT, QWEN4_EXP, INKLING, LFM2, LFM2_MOE, LFM3,
        BAMBA, GRANITE_HYBRID, MAMBA2, MAMBA, FALCON_MAMBA, JAMBA, NEMOTRON_H, MINIMAX, OLMO_HYBRID, FALCON_H1,
        RECURRENT_GEMMA, KIMI_LINEAR, LONGCAT_FLASH, XLNET, ZAMBA, ZAMBA2, *T5_FAMILIES, T5GEMMA, *FROM_FAIRSEQ,
        *ENCODER_DECODERS, WHISPER,
    )
}  # fmt: skip

TABLES = (
    *FAMILIES.values(),
    *(family.alone for family in FAMILIES.values() if family.alone is not None),
    *(variant for family in FAMILIES.values() for variant in family.variants.values()),
    *WRITTEN_PAIRS,
)
"""All tables of transformers: also those of variants, of encoders alone, and of two families."""


class UnknownArchitecture(CheckpointError):
    """A model of transformers whose architecture has no table here."""


def read_directory(directory: Path) -> Checkpoint:
    """The checkpoint of a directory, from config.json and the headers of the weight files.

    Raises CheckpointError, naming file and key, for anything missing, damaged or not implemented.
    """
    path = directory / "config.json"
    data = read_json(path)
    weights = lambda: _open_weights(directory, data)  # noqa: E731
    checkpoint = read_sentence_modules(checkpoint_of(data, weights, directory, path), directory)
    lacking = _head_that_is_lacking(checkpoint, data)
    return replace(checkpoint, notes=(*checkpoint.notes, lacking)) if lacking else checkpoint


def _head_that_is_lacking(checkpoint: Checkpoint, data: Mapping[str, Any]) -> str:
    """A note if config.json names a class with a head that the files lack, and nothing takes a vector instead."""
    assert isinstance(checkpoint.table, Family)
    if checkpoint.config.pooling != "none" or checkpoint.config.labels:
        return ""
    for name in Fields(data, checkpoint.source).array("architectures", str, ()):
        head = checkpoint.table.head_of_class(name)
        if head not in ("none", checkpoint.config.head.kind):
            return f"opened without its head: config.json says {quoted(name)}, and the files have no weights for one"
    return ""


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
    told, (family, data), weights = notes_on(data), found, open_weights()
    family = family.of_file(weights.shapes)
    tensors = {family.plain(name): name for name in weights.shapes}
    if family.unties and data.get("tie_word_embeddings", True):
        tensors = {plain: name for plain, name in tensors.items() if not _is_copy(plain, tensors, family, weights)}
    tensors |= {original: tensors[copy] for copy, original in family.copies.items() if copy in tensors}
    constants = {
        name: weights.stored(tensors[name]).float().flatten().tolist() for name in family.constants if name in tensors
    }
    fields = NamedFields({**with_keys_left_out(data, family), **constants}, path)
    with faults_of(path):
        config = family.read(fields, tensors)
    family = family.with_factors(fields)
    unknown = tuple(unknown_keys(fields, family, config))
    message = f"{path.name if isinstance(path, Path) else path} has keys that tinytf does not know"
    notes = [*told, *([f"{message}: {', '.join(unknown)}"] if unknown else [])]
    if isinstance(weights, QuantizedWeights):
        notes += filter(None, [weights.words])
    return Checkpoint(source, family.with_head(config), config, weights, tuple(notes))


def _is_copy(plain: str, tensors: Mapping[str, str], family: Family, weights: WeightFiles) -> bool:
    """Whether a tensor repeats the one that it may be a copy of."""
    original = tensors.get(family.copies.get(plain, ""))
    return original is not None and torch.equal(weights.stored(tensors[plain]), weights.stored(original))


def _family_of(data: Mapping[str, Any]) -> tuple[Family, Mapping[str, Any]] | None:
    """The table for a configuration of transformers, and the part of it that the table reads; None without a table."""
    text, kind = data.get("text_config"), str(data.get("model_type"))  # of any JSON type, lists too
    if classifies_two_stacks(data) and not (kind in FAMILIES and _has_head_of(FAMILIES[kind], data)):
        return None
    if kind in FAMILIES:
        return FAMILIES[kind].of_config(data), data
    if isinstance(text, dict) and (inner := str(text.get("model_type"))) in FAMILIES:
        return text_part(FAMILIES[inner], kind), keys_of_text(data, text)
    if (older := f"{kind}_text") in FAMILIES:  # its keys of the text part lie outside
        return text_part(FAMILIES[older], kind), data
    return None


def _has_head_of(family: Family, data: Mapping[str, Any]) -> bool:
    """Whether a family has the head of a class that a configuration names, or its encoder has."""
    tables = filter(None, (family, family.alone))
    return any(table.head_of_class(str(name)) != "none" for table in tables for name in data["architectures"])


def has_table(directory: Path) -> bool:
    """Whether tinytf has a table for the model of a directory of transformers."""
    return _family_of(read_json(directory / "config.json")) is not None


def _open_weights(directory: Path, config: Mapping[str, Any]) -> WeightFiles:
    """The weights of a directory, dequantised as its config.json says, or the file beside it that ModelOpt writes."""
    files, beside = Weights(directory), directory / "hf_quant_config.json"
    with faults_of(directory / "config.json"):
        quantized = settings_of(config)
        if quantized is None and beside.is_file():
            stored = Fields(read_json(beside), beside).object("quantization")
            settings = {} if stored is None else stored.data
            quantized = settings_of({"quantization_config": {**settings, "quant_method": "modelopt"}})
        if quantized is None:
            require_plain(files)
            return files
        return Mxfp4Weights(files) if quantized[0] == "mxfp4" else QuantizedWeights(files, *quantized)
