"""The text parts of models that see: Qwen, GLM, HunYuan, Granite and Cosmos, with positions in a text as in them."""

from dataclasses import replace

from tinytf.checkpoints.huggingface.cousins import ARCEE, GRANITE
from tinytf.checkpoints.huggingface.experts import QWEN3_MOE, SOME_LAYERS
from tinytf.checkpoints.huggingface.glm import GLM4
from tinytf.checkpoints.huggingface.llama import (
    BIASES,
    HEAD_AND_ACTIVATION,
    LLAMA,
    QWEN2,
    QWEN3,
    SWITCHED_WINDOWS,
    UNTURNED,
)
from tinytf.checkpoints.huggingface.llama4 import HUNYUAN
from tinytf.checkpoints.huggingface.rope import SCALINGS, rope
from tinytf.checkpoints.huggingface.routing import FURTHER_LAYERS, FURTHER_MODULES, routed, sigmoid_router
from tinytf.checkpoints.huggingface.sigmoid_experts import GLM4_MOE
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Group, Key, Skip, Stored

_MROPE = {**SCALINGS, "mrope": "none"}
"""Three positions, in time and in a picture, are one in a text."""

QWEN2_VL = replace(
    QWEN2,
    name="Qwen2-VL",
    model_type="qwen2_vl_text",
    classes={"none": "Qwen2VLTextModel"},
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        rope(1_000_000.0, sections=True, scalings=_MROPE),
        *HEAD_AND_ACTIVATION,
        SWITCHED_WINDOWS,
    ),
)
QWEN2_5_VL = replace(QWEN2_VL, name="Qwen2.5-VL", model_type="qwen2_5_vl_text", classes={"none": "Qwen2_5_VLTextModel"})
QWEN3_VL = replace(
    QWEN3,
    name="Qwen3-VL",
    model_type="qwen3_vl_text",
    classes={"none": "Qwen3VLTextModel"},
    only={**QWEN3.only, "layer_types": ()},  # windows of the cache alone
    settings=(
        *UNTURNED,
        rope(500_000.0, sections=True, scalings=_MROPE),
        Key("head_dim", "d_head", 128),
        *HEAD_AND_ACTIVATION,
        BIASES,
    ),
)
QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    name="Qwen3-VL-MoE",
    model_type="qwen3_vl_moe_text",
    classes={"none": "Qwen3VLMoeTextModel"},
    only=QWEN3_VL.only,
    settings=(
        *QWEN3_VL.settings,
        Key("head_dim", "d_head", 0),
        SOME_LAYERS,
        Key("num_experts_per_tok", "experts_per_token"),
        Key("moe_intermediate_size", "d_expert"),
    ),
    harmless=(*QWEN3_MOE.harmless, "norm_topk_prob"),
)

_EPS = Key("rms_norm_eps", "norm_eps", 1e-5)
_TIED = (Key("tie_word_embeddings", "tied_head", True), lm_head())


def _turned(share: float = 1.0) -> tuple[Key | Group, ...]:
    """The settings of GLM's text parts, of whose heads RoPE turns a ``share``."""
    return (
        *UNTURNED,
        _EPS,
        Key("head_dim", "d_head", 0),
        rope(share=share, sections=True, scalings=_MROPE),
        *HEAD_AND_ACTIVATION,
    )


GLM_OCR = replace(
    GLM4,
    name="GLM-OCR",
    model_type="glm_ocr_text",
    classes={"none": "GlmOcrTextModel"},
    settings=_turned(),
    skipped=(*LLAMA.skipped, FURTHER_LAYERS),
)
GLM4V = replace(
    GLM_OCR,
    name="GLM-4.1V",
    skipped=LLAMA.skipped,
    model_type="glm4v_text",
    classes={"none": "Glm4vTextModel"},
    fixed={**GLM4.fixed, "qkv_bias": True},
)
GLM_IMAGE = replace(
    GLM_OCR,
    name="GLM-Image",
    skipped=LLAMA.skipped,
    model_type="glm_image_text",
    classes={"none": "GlmImageTextModel"},
    settings=(*_turned(), Key("attention_bias", "qkv_bias", True)),
    harmless=("vision_vocab_size",),
    stored={**GLM4.stored, **{name: LLAMA.stored[name] for name in LLAMA.stored if ".attention." in name}},
)
GLM4V_MOE = replace(
    GLM4_MOE,
    name="GLM-4.5V",
    model_type="glm4v_moe_text",
    classes={"none": "Glm4vMoeTextModel"},
    settings=(
        *_turned(0.5),
        Key("attention_bias", "qkv_bias", True),
        routed(first=1),
        sigmoid_router(),
    ),
)

HUNYUAN_VL = replace(
    HUNYUAN,
    name="HunYuan-VL",
    model_type="hunyuan_vl_text",
    classes={"none": "HunYuanVLTextModel"},
    settings=(*HUNYUAN.settings, *_TIED),
)
GRANITE_DOCLING = replace(
    GRANITE,
    name="Granite-Docling",
    model_type="granite_docling_text",
    classes={"none": "GraniteDoclingTextModel"},
    settings=(*GRANITE.settings, _EPS, *_TIED),
    skipped=(*LLAMA.skipped, FURTHER_MODULES),
)
_GENERATOR = (
    r"((time_embedder|proj_(in|out)|action_(proj|modality)_\w+|norm_moe_gen)(\..*)?"
    r"|layers\.\d+\.(\w+_moe_gen|self_attn\.(add_[qkv]_proj|to_add_out|norm_added_[qk]|k_norm_und_for_gen))\..*)"
)
COSMOS3 = replace(
    ARCEE,
    name="Cosmos3-Edge",
    model_type="cosmos3_edge_text",
    classes={"none": "Cosmos3EdgeTextModel"},
    harmless=("layer_norm_eps",),  # of images
    settings=(
        *UNTURNED,
        _EPS,
        Key("head_dim", "d_head", 128),
        rope(100_000_000.0, sections=True, scalings=_MROPE),
        *HEAD_AND_ACTIVATION[1:],
        Key("hidden_act", "activation", "relu2", ACTIVATIONS),
        BIASES,
        Key("mlp_bias", "ffn_bias", False),
    ),
    stored={
        **ARCEE.stored,
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.fc1"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.fc2"),
    },
    spellings=(
        (r"\.mlp\.up_proj\.", ".mlp.fc1."),
        (r"\.mlp\.down_proj\.", ".mlp.fc2."),
        *ARCEE.spellings,
    ),
    skipped=(
        *ARCEE.skipped,
        Skip(rf"(language_model\.)?{_GENERATOR}", "the generator of images", noted=True),
    ),
)
