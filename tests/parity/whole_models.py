"""Models of transformers that take images or sound beside text, built tiny, each opened and compared on a text.

``python tests/parity/whole_models.py [NAME ...]`` prints a line for each: right, refused, wrong, crashed or not built.
"""

import inspect
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import torch
import transformers
from architectures import enliven, furthest
from registry import C, Outcome, V, config_of, line_of
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import TinytfError

TOLERANCE = 1e-5
LARGEST = 10_000_000
"""Numbers of a model that is still built."""
_TOWER: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "depth", "num_layers", "encoder_layers", "num_local_layers"), 1),
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "hidden_dim", "encoder_hidden_size", "width"), C),
    **dict.fromkeys(("intermediate_size", "mlp_dim", "encoder_ffn_dim", "feedforward_dim"), 16),
    **dict.fromkeys(("num_attention_heads", "num_heads", "encoder_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("out_hidden_size", "audio_hidden_size", "text_hidden_size", "projection_dim", "output_dim"), C),
    **dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 16),
    "image_size": 16,
    "patch_size": 8,
    "head_dim": 8,
    "vocab_size": V,
    "max_position_embeddings": 32,
    "deepstack_visual_indexes": [0],
    "max_source_positions": 8,
    "num_mel_bins": 8,
    "codebook_size": 8,
}
"""What the keys of every other part get."""
_HEAD = {"logits_scaling": 3.0, "logit_scale": 0.4, "final_logit_softcapping": 0.7}
"""What the text part says of a head, which counts only where the whole model's head reads it."""
_SECTIONS = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [1, 1, 1]},
    "head_dim": 6,
}
_TEXT: dict[str, dict[str, Any]] = {"paddleocr_vl": _SECTIONS, "qwen2_5_omni_thinker": _SECTIONS}
"""Settings of the text part of single models, where those of its architecture do not fit."""
SEVERAL_STACKS = {
    "florence2", "pix2struct", "pp_formulanet", "t5gemma2", "udop", "vision-encoder-decoder", "pi0",
    "qwen2_5_omni", "qwen3_omni_moe", "mistral4",
}  # fmt: skip
"""An encoder and a decoder, actions, a talker; and one that has no other part."""


_CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "image_size": 16, "patch_size": 8,
}  # fmt: skip
_WHOLE: dict[str, dict[str, Any]] = {
    "fast_vlm": {"vision_config": _CLIP},
    "inkling_mm_model": {
        "vision_config": {"model_type": "inkling_vision", "num_hidden_layers": 2, "patch_size": 4, "hidden_size": 16}
    },
}
"""Settings of single models: a tower that needs no further package, and maps that have no default."""


def registered() -> Iterator[tuple[str, str]]:
    """Each model_type that transformers lists as reading texts with something else, and its class."""
    names = {**auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    for kind, name in sorted(names.items()):
        if kind not in SEVERAL_STACKS:
            yield kind, name if isinstance(name, str) else name[0]


def head_of(name: str) -> str:
    """The source of a class's forward pass, where its head is."""
    return inspect.getsource(getattr(transformers, name).forward)


def _shrink(config: Any) -> dict[str, Any]:
    """The settings of a part, with small numbers, and so those of its own parts."""
    keys: dict[str, Any] = {name: value for name, value in config.to_dict().items() if name != "per_layer_config"}
    parts = {name: _shrink(getattr(config, name)) for name in config.sub_configs if getattr(config, name, None)}
    layers = keys.get("num_hidden_layers")
    single = {name: value[:1] for name, value in keys.items() if isinstance(value, list) and len(value) == layers}
    sizes = {name: value for name, value in _TOWER.items() if isinstance(keys.get(name), type(value))}
    return {**keys, **single, **sizes, **parts}


def tiny(kind: str, inner: str = "", **settings: Any) -> PreTrainedConfig:
    """The configuration of a whole model, tiny in every part; its text part is of the model_type ``inner`` if given."""
    config = CONFIG_MAPPING[kind]()
    parts: dict[str, Any] = {}
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if name == "text_config" and part is not None:
            of = inner or part.model_type
            text = config_of(of, **_TEXT.get(kind, {})) if of in CONFIG_MAPPING else part
            keys = text.to_dict()
            head = {name: value for name, value in _HEAD.items() if name in keys}
            parts[name] = {**keys, **head, "model_type": of}
        elif isinstance(part, PreTrainedConfig):
            parts[name] = _shrink(part)
    return CONFIG_MAPPING[kind](**{**parts, **_WHOLE.get(kind, {}), **settings})


def build(kind: str, name: str, **settings: Any) -> nn.Module:
    """A whole model with random weights."""
    torch.manual_seed(0)
    make = getattr(transformers, name)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in make(tiny(kind, **settings)).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters, since a part cannot be made small by these keys")
    model = make(tiny(kind, **settings))
    with torch.no_grad():
        enliven(model, 7)
    return model.eval()


@torch.no_grad()
def outcome(kind: str, name: str, **settings: Any) -> Outcome:
    """What tinytf makes of a whole model that transformers saved."""
    ids = torch.randint(3, V, (2, 13), generator=torch.Generator().manual_seed(9))
    with tempfile.TemporaryDirectory() as folder:
        try:
            theirs = build(kind, name, **settings)
            theirs.set_attn_implementation("eager")
            expected = theirs(input_ids=ids).logits
            theirs.save_pretrained(folder)
        except Exception as error:
            return Outcome("not built", line_of(error))
        try:
            found = read_directory(Path(folder)).load().transformer(ids)
        except TinytfError as error:
            return Outcome("refused", line_of(error).replace(f"{folder}/", "").replace(folder, "it"))
        except Exception as error:
            return Outcome("crashed", line_of(error))
    if found.shape != expected.shape:
        return Outcome("wrong", f"{tuple(found.shape)} for {tuple(expected.shape)}")
    difference = furthest(found, expected)
    return Outcome("right" if difference <= TOLERANCE else "wrong", f"{difference:.1e}")


if __name__ == "__main__":
    for kind, name in registered():
        if not sys.argv[1:] or kind in sys.argv[1:]:
            sys.stdout.write(" ".join((kind, *vars(outcome(kind, name)).values())) + "\n")
            sys.stdout.flush()
