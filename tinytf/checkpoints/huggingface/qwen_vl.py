"""The text parts of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen2 and Qwen3, with positions in a text as in them."""

from dataclasses import replace

from tinytf.checkpoints.huggingface.llama import BIASES, HEAD_AND_ACTIVATION, QWEN2, QWEN3, SWITCHED_WINDOWS, UNTURNED
from tinytf.checkpoints.huggingface.rope import SCALINGS, rope
from tinytf.checkpoints.table import Key

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
    settings=(
        *UNTURNED,
        rope(500_000.0, sections=True, scalings=_MROPE),
        Key("head_dim", "d_head", 128),
        *HEAD_AND_ACTIVATION,
        BIASES,
    ),
)
