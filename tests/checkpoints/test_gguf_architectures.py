"""Every architecture that is opened from GGUF files: its numbers are those of transformers' model."""

import math

import gguf
import pytest
import torch
from architectures import facing, furthest
from gguf_conversion import CONVERSIONS, C, H, V, converted

from tinytf.checkpoints.gguf import read_gguf
from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.errors import CheckpointError

IDS = torch.arange(2 * 20).reshape(2, 20) * 7 % (V - 3)


@torch.no_grad()
@pytest.mark.parametrize("name", CONVERSIONS)
def test_the_numbers_are_those_of_transformers(tmp_path, name):
    theirs, parts = converted(CONVERSIONS[name])
    opened = read_gguf(parts.write(tmp_path / "a.gguf"))
    ours = facing(opened.load().transformer)
    said = theirs(IDS)
    expected, found = (said.logits, ours(IDS)) if "logits" in said else (said.last_hidden_state, ours.hidden(IDS))
    assert float(expected.std()) > 0.25, "too small for a difference to show"
    assert furthest(found, expected) < 2e-5  # 1.07e-5 on a processor with AVX2 alone
    assert opened.config.context == parts.keys[f"{parts.keys['general.architecture']}.context_length"]


def test_every_architecture_is_tested():
    tested = {gguf.MODEL_ARCH_NAMES[conversion.architecture] for conversion in CONVERSIONS.values()}
    assert tested | {"llama", "qwen2"} == set(ARCHITECTURES), "llama and qwen2 are held to transformers in test_gguf.py"


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_divide_their_scores_by_another_number(tmp_path, name, layers):
    """In transformers query_pre_attn_scalar, 144 and 168, is d_model / heads; no key of a GGUF file has it."""
    parts = converted(CONVERSIONS[name])[1]
    assert read_gguf(parts.write(tmp_path / "a.gguf")).config.score_divisor == math.sqrt(10)
    parts.keys[f"{name}.block_count"] = layers
    first = {key: value for key, value in parts.tensors.items() if key.startswith("blk.0.")}
    for layer in range(layers):
        parts.tensors |= {key.replace("blk.0.", f"blk.{layer}."): value for key, value in first.items()}
    assert read_gguf(parts.write(tmp_path / "b.gguf")).config.score_divisor == math.sqrt(C / H)


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("xielu.alpha_p", None, "lacks xielu.alpha_p"),
        ("xielu.alpha_n", [0.5, 0.6], "xielu.alpha_n has shape (2,), the configuration needs (3,)"),
        ("xielu.alpha_n", ["a", "b", "c"], "xielu.alpha_n is an array of 3, and has to be an array of numbers"),
        ("xielu.beta", [0.5, 0.5, 0.6], "xielu.beta differs"),
        ("xielu.eps", [-1e-6, -1e-6, -1.01e-6], "xielu.eps differs"),
        ("xielu.gamma", [1.0], "holds 'xielu.gamma', which a apertus model has no place for"),
    ],
)
def test_the_slopes_of_an_activation_are_checked_as_tensors_are(tmp_path, key, values, message):
    parts = converted(CONVERSIONS["apertus"])[1]
    parts.keys[key] = values
    parts.keys = {name: value for name, value in parts.keys.items() if value is not None}
    with pytest.raises(CheckpointError) as fault:
        read_gguf(parts.write(tmp_path / "a.gguf")).load()
    assert message in str(fault.value)


def test_the_slopes_of_an_activation_cannot_be_stored_twice(tmp_path):
    parts = converted(CONVERSIONS["apertus"])[1]
    parts.tensors["xielu.eps"] = parts.tensors["output_norm.weight"]
    with pytest.raises(CheckpointError, match=r"holds 'xielu\.eps' as metadata and as a tensor"):
        read_gguf(parts.write(tmp_path / "a.gguf"))
