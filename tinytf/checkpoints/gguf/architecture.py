"""The architectures that tinytf opens from GGUF files; keys that a table does not know are refused."""

from dataclasses import replace

from tinytf.checkpoints.gguf.experts import (
    DBRX,
    GPT_OSS,
    GRANITE_MOE,
    HUNYUAN_MOE,
    MIXTRAL,
    OLMOE,
    PHIMOE,
    QWEN2_MOE,
    QWEN3_MOE,
)
from tinytf.checkpoints.gguf.gemma3n import GEMMA3N
from tinytf.checkpoints.gguf.gemma4 import GEMMA4
from tinytf.checkpoints.gguf.hybrids import (
    FALCON_H1,
    GRANITE_HYBRID,
    JAMBA,
    KIMI_LINEAR,
    LFM2,
    LFM2_MOE,
    MAMBA,
    MAMBA2,
    NEMOTRON_H,
    NEMOTRON_H_MOE,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_NEXT,
)
from tinytf.checkpoints.gguf.layernorms import (
    BERT,
    BLOOM,
    COHERE2,
    COMMAND_R,
    FALCON,
    FALCON_NEW,
    GPT2,
    MODERN_BERT,
    MPT,
    NEMOTRON,
    NEOX,
    NOMIC_BERT,
    OLMO,
    PHI2,
    STABLELM,
    STARCODER,
    STARCODER2,
)
from tinytf.checkpoints.gguf.llamas import (
    APERTUS,
    ARCEE,
    ERNIE4_5,
    EXAONE4,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GRANITE,
    HUNYUAN,
    OLMO2,
    PHI3,
    QWEN2,
    QWEN3,
    SEED_OSS,
    SMOLLM3,
)
from tinytf.checkpoints.gguf.routed import (
    AFMOE,
    DEEPSEEK2,
    DOTS1,
    ERNIE4_5_MOE,
    EXAONE_MOE,
    GLM4_MOE,
    MINICPM3,
    MINIMAX_M2,
)
from tinytf.checkpoints.gguf.t5 import T5, T5_ENCODER
from tinytf.checkpoints.table import FamilyTable, Tensors, fused

ARCHITECTURES = {
    table.name: table
    for table in (
        MIXTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, GEMMA3N, GEMMA4, OLMO2, PHI3, SMOLLM3,
        GRANITE, ARCEE, APERTUS, SEED_OSS, EXAONE4, ERNIE4_5, HUNYUAN,
        QWEN2_MOE, QWEN3_MOE, OLMOE, PHIMOE, GRANITE_MOE, GPT_OSS, DEEPSEEK2, GLM4_MOE, DOTS1, MINIMAX_M2,
        ERNIE4_5_MOE, HUNYUAN_MOE, AFMOE, DBRX, EXAONE_MOE, MINICPM3,
        LFM2, LFM2_MOE, MAMBA, MAMBA2, GRANITE_HYBRID, QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, JAMBA, KIMI_LINEAR,
        NEMOTRON_H, NEMOTRON_H_MOE, FALCON_H1,
        GPT2, STARCODER, STARCODER2, NEOX, FALCON, PHI2, BLOOM, MPT, OLMO, COMMAND_R, COHERE2,
        STABLELM, NEMOTRON, BERT, NOMIC_BERT, MODERN_BERT, T5, T5_ENCODER,
    )
}  # fmt: skip


def table_of(name: str, tensors: Tensors) -> FamilyTable:
    """The table of an architecture for a file with these tensors, whose queries, keys and values may be one matrix."""
    table = ARCHITECTURES[name]
    if table is FALCON and "blk.0.attn_norm_2.weight" in tensors:
        table = FALCON_NEW
    has_place = any(layout.module == "blk.{n}.attn_qkv" for layout in table.stored.values())
    if "blk.0.attn_qkv.weight" not in tensors or has_place:
        return table
    joint = {
        module: replace(layout, paired=table.stored[module].paired)
        for module, layout in fused("blk.{n}.attn_qkv").items()
    }
    return replace(table, stored={**table.stored, **joint})
