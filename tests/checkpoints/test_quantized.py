"""Quantised folders: each layout written number by number, and opened to the numbers that its formula gives."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import enliven, furthest
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.load import Checkpoint
from tinytf.checkpoints.quantized import QuantizedWeights, settings_of
from tinytf.errors import CheckpointError

Tensors = dict[str, Tensor]
Written = tuple[Tensors, Tensor]
"""The tensors of a module by their endings, and the matrix (out, in) that they mean."""

DICE = np.random.default_rng(3)


def words(numbers: np.ndarray, bits: int, axis: int) -> Tensor:
    """Whole numbers side by side in 32-bit words along an axis, the first lowest, padded by zeros."""
    lines = np.moveaxis(numbers, axis, -1)
    count = math.ceil(lines.shape[-1] * bits / 32)
    packed = np.zeros((*lines.shape[:-1], count), np.uint32)
    for place in np.ndindex(*lines.shape[:-1]):
        joined = sum(int(number) << bits * index for index, number in enumerate(lines[place]))
        packed[place] = np.frombuffer(joined.to_bytes(4 * count, "little"), "<u4")
    return torch.from_numpy(np.moveaxis(packed, -1, axis).copy().view(np.int32))


def gptq(matrix: Tensor, bits: int, size: int, *, ordered: bool = False, version: int = 1) -> Written:
    rows, columns = matrix.shape
    group = np.arange(columns) // size
    group = DICE.permutation(group) if ordered else group
    numbers, zeros = DICE.integers(0, 2**bits, (columns, rows)), DICE.integers(0, 2**bits, (max(group) + 1, rows))
    scales = (DICE.uniform(0.5, 1.5, zeros.shape) / 2**bits).astype(np.float16)
    means = np.array(
        [[float(scales[group[i], o]) * (int(numbers[i, o]) - int(zeros[group[i], o])) for i in range(columns)]
         for o in range(rows)]
    )  # fmt: skip
    tensors = {
        "qweight": words(numbers, bits, 0),
        "qzeros": words((zeros - (version == 1)) % 2**bits, bits, 1),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(group.astype(np.int32)),
    }
    return tensors, torch.from_numpy(means)


def awq(matrix: Tensor, size: int) -> Written:
    tensors, means = gptq(matrix, 4, size, version=2)
    for name in ("qweight", "qzeros"):  # columns side by side in words, of which the second is the third, and so on
        numbers = unpacked_by_hand(tensors[name], 0 if name == "qweight" else 1)
        shuffled = numbers.reshape(len(numbers), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(numbers.shape)
        tensors[name] = words(shuffled, 4, 1)
    del tensors["g_idx"]
    return tensors, means


def unpacked_by_hand(packed: Tensor, axis: int) -> np.ndarray:
    lines = np.moveaxis(packed.numpy().view(np.uint32), axis, -1)
    numbers = [[int(word) >> (4 * n) & 15 for word in line for n in range(8)] for line in lines]
    return np.moveaxis(np.array(numbers), -1, axis)


def packed(matrix: Tensor, bits: int, size: int, *, symmetric: bool) -> Written:
    (rows, columns), half = matrix.shape, 2 ** (bits - 1)
    numbers = DICE.integers(-half, half, (rows, columns))
    zeros = DICE.integers(-half, half, (rows, columns // size)) * (not symmetric)
    scale = DICE.uniform(0.5, 1.5, zeros.shape).astype(np.float32) / 2**bits
    means = np.array(
        [[scale[o, i // size] * (numbers[o, i] - zeros[o, i // size]) for i in range(columns)] for o in range(rows)]
    )
    tensors = {
        "weight_packed": words(numbers + half, bits, 1),
        "weight_scale": torch.from_numpy(scale),
        "weight_shape": torch.tensor([rows, columns]),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros + half, bits, 0)
    return tensors, torch.from_numpy(means)


def in_blocks(matrix: Tensor, block: int) -> Written:
    stored = (torch.from_numpy(DICE.normal(size=tuple(matrix.shape)))).to(torch.float8_e4m3fn)
    scale = torch.from_numpy(DICE.uniform(0.5, 1.5, [math.ceil(size / block) for size in matrix.shape])).float()
    means = torch.zeros(matrix.shape, dtype=torch.float64)
    for o, i in np.ndindex(*matrix.shape):
        means[o, i] = float(stored[o, i]) * float(scale[o // block, i // block])
    return {"weight": stored, "weight_scale_inv": scale}, means


def by_row(matrix: Tensor, dtype: torch.dtype) -> Written:
    stored = torch.from_numpy(DICE.uniform(-100, 100, tuple(matrix.shape))).to(dtype)
    scale = torch.from_numpy(DICE.uniform(0.005, 0.01, (len(matrix), 1))).float()
    return {"weight": stored, "weight_scale": scale}, stored.double() * scale.double()


def mlx(matrix: Tensor, bits: int, size: int) -> Written:
    rows, columns = matrix.shape
    numbers = DICE.integers(0, 2**bits, (rows, columns))
    scales, biases = (torch.from_numpy(DICE.uniform(-0.1, 0.1, (rows, columns // size))).half() for _ in range(2))
    group = torch.arange(columns) // size
    means = scales.double()[:, group] * torch.from_numpy(numbers) + biases.double()[:, group]
    return {"weight": words(numbers, bits, 1).view(torch.uint32), "scales": scales, "biases": biases}, means


FLOATS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def four_bit_floats(matrix: Tensor, size: int, *, of_all: str | None) -> Written:
    """In groups with a scale in FP8 beside one of all, or, without that, with a power of two."""
    rows, columns = matrix.shape
    codes, exponents = DICE.integers(0, 16, (rows, columns)), DICE.integers(121, 128, (rows, columns // size))
    eighths = torch.from_numpy(DICE.uniform(100, 400, exponents.shape)).to(torch.float8_e4m3fn)
    scale = eighths.double() / 1024 if of_all else torch.from_numpy(2.0 ** (exponents - 127.0))
    means = [[FLOATS[codes[o, i]] * float(scale[o, i // size]) for i in range(columns)] for o in range(rows)]
    packed = torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))
    tensors = {"weight_packed": packed, "weight_scale": eighths}
    if of_all == "weight_global_scale":
        tensors |= {of_all: torch.tensor([1024.0]), "input_global_scale": torch.tensor([3.0])}
    elif of_all:
        tensors = {
            "weight": packed,
            "weight_scale": eighths,
            of_all: torch.tensor(1 / 1024),
            "input_scale": torch.tensor(3.0),
        }
    else:
        tensors["weight_scale"] = torch.from_numpy(exponents.astype(np.uint8))
    return tensors, torch.tensor(means, dtype=torch.float64)


def eight_bit_floats(matrix: Tensor, size: int) -> Written:
    tensors, _ = four_bit_floats(matrix, size, of_all=None)
    scale = 2.0 ** (tensors["weight_scale"].double() - 127)
    numbers = torch.from_numpy(DICE.normal(size=tuple(matrix.shape))).to(torch.float8_e4m3fn)
    group = torch.arange(matrix.shape[1]) // size
    return {"weight": numbers, "weight_scale": tensors["weight_scale"]}, numbers.double() * scale[:, group]


def in_several_ways(matrix: Tensor) -> Written:
    """compressed-tensors with several groups: matrices of 64 inputs, of 64 outputs, and the others."""
    if matrix.shape[1] == 64:
        return by_row(matrix, torch.float8_e4m3fn)
    return packed(matrix, 3 if matrix.shape[0] == 64 else 4, 8, symmetric=False)


def nf4(matrix: Tensor, *, nested: bool) -> Written:
    count, block = matrix.numel(), 16
    codes = DICE.integers(0, 16, count)
    table = torch.linspace(-1, 1, 16) ** 3
    largest = torch.from_numpy(DICE.uniform(0.5, 1.5, math.ceil(count / block))).float()
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "shape": [*matrix.shape]}
    tensors = {
        "weight": torch.from_numpy((codes[0::2] << 4 | codes[1::2]).astype(np.uint8))[:, None],
        "weight.quant_map": table,
    }
    if nested:
        outer, places = torch.tensor([0.25, 0.5, 0.75, 1.0]).repeat(len(largest))[: math.ceil(len(largest) / 8)], 8
        stored = torch.from_numpy(DICE.integers(0, 256, len(largest)).astype(np.uint8))
        outer_table = torch.linspace(-1, 1, 256)
        largest = torch.stack([outer_table[int(code)] * outer[n // places] + 1.25 for n, code in enumerate(stored)])
        tensors |= {"weight.absmax": stored, "weight.nested_absmax": outer, "weight.nested_quant_map": outer_table}
        state |= {"nested_blocksize": places, "nested_offset": 1.25}
    else:
        tensors["weight.absmax"] = largest
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor([*json.dumps(state).encode()], dtype=torch.uint8)
    means = torch.tensor([float(table[code]) * float(largest[n // block]) for n, code in enumerate(codes)])
    return tensors, means.view(matrix.shape)


def eight_bits(matrix: Tensor) -> Written:
    stored = torch.from_numpy(DICE.integers(-127, 128, tuple(matrix.shape)).astype(np.int8))
    largest = torch.from_numpy(DICE.uniform(0.5, 1.5, len(matrix))).float()
    return {"weight": stored, "SCB": largest}, stored.double() * largest.double()[:, None] / 127


def in_blocks_of_compressed_tensors(matrix: Tensor, block: int) -> Written:
    tensors, means = in_blocks(matrix, block)
    return {"weight": tensors["weight"], "weight_scale": tensors["weight_scale_inv"]}, means


def of_groups(*groups: tuple[int, int | None], **keys: Any) -> dict[str, Any]:
    stored = {
        f"group_{n}": {"weights": {"num_bits": bits, "group_size": size}} for n, (bits, size) in enumerate(groups)
    }
    return {"quant_method": "compressed-tensors", "config_groups": stored, **keys}


KINDS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Written]]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 8}, lambda m: gptq(m, 4, 8)),
    "gptq, 8 bits in one group": (
        {"quant_method": "gptq", "bits": 8, "group_size": -1}, lambda m: gptq(m, 8, m.shape[1]),
    ),
    "gptq, inputs in another order": (
        {"quant_method": "gptq", "bits": 2, "group_size": 8, "desc_act": True}, lambda m: gptq(m, 2, 8, ordered=True),
    ),
    "gptq, 3 bits": ({"quant_method": "gptq", "bits": 3, "group_size": 8}, lambda m: gptq(m, 3, 8)),
    "gptq, 8 bits for one": (
        {"quant_method": "gptq", "bits": 4, "group_size": 8, "dynamic": {"+:.*down_proj": {"bits": 8}}},
        lambda m: gptq(m, 8 if m.shape[1] == 64 else 4, 8),
    ),
    "gptq v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq_v2"},
        lambda m: gptq(m, 4, 8, version=2),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"}, lambda m: awq(m, 8)),
    "compressed-tensors": (
        of_groups((4, 8)), lambda m: packed(m, 4, 8, symmetric=True),
    ),
    "compressed-tensors with zero points": (
        of_groups((8, 8)), lambda m: packed(m, 8, 8, symmetric=False),
    ),
    "compressed-tensors, int8": (
        of_groups((8, None)), lambda m: by_row(m, torch.int8),
    ),
    "compressed-tensors, fp8": (
        of_groups((8, None)), lambda m: by_row(m, torch.float8_e4m3fn),
    ),
    "compressed-tensors, 5 bits": (of_groups((5, 8)), lambda m: packed(m, 5, 8, symmetric=False)),
    "compressed-tensors in several groups": (
        of_groups((4, 8), (3, 8), (8, None), format="mixed-precision"), in_several_ways,
    ),
    "compressed-tensors, nvfp4": (
        of_groups((4, 16), format="nvfp4-pack-quantized"),
        lambda m: four_bit_floats(m, 16, of_all="weight_global_scale"),
    ),
    "compressed-tensors, mxfp4": (
        of_groups((4, 32), format="mxfp4-pack-quantized"), lambda m: four_bit_floats(m, 32, of_all=None),
    ),
    "compressed-tensors, mxfp8": (
        of_groups((8, 32), format="mxfp8-quantized"), lambda m: eight_bit_floats(m, 32),
    ),
    "modelopt, nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        lambda m: four_bit_floats(m, 16, of_all="weight_scale_2"),
    ),
    "modelopt, fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, lambda m: by_row(m, torch.float8_e4m3fn)),
    "mlx, 3 bits": ({"bits": 3, "group_size": 32}, lambda m: mlx(m, 3, 32)),
    "mlx, 8 bits for one": (
        {"bits": 4, "group_size": 8, "model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32}},
        lambda m: mlx(m, 8, 32) if m.shape[1] == 64 else mlx(m, 4, 8),
    ),
    "mlx, 6 bits": ({"bits": 6, "group_size": 32}, lambda m: mlx(m, 6, 32)),
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [6, 6]}, lambda m: in_blocks(m, 6)),
    "fp8 in blocks with ragged edges": (
        {"quant_method": "fp8", "weight_block_size": [20, 20]}, lambda m: in_blocks(m, 20),
    ),
    "compressed-tensors, fp8 in blocks with ragged edges": (
        {"quant_method": "compressed-tensors",
         "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "block", "block_structure": [20, 20]}}}},
        lambda m: in_blocks_of_compressed_tensors(m, 20),
    ),
    "mlx": ({"bits": 4, "group_size": 8}, lambda m: mlx(m, 4, 8)),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, lambda m: nf4(m, nested=False)),
    "nf4, nested": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, lambda m: nf4(m, nested=True)),
    "bitsandbytes in 8 bits": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, eight_bits),
}  # fmt: skip


@cache
def llama() -> tuple[dict[str, Any], Tensors]:
    """The config.json and the tensors of a Llama, of sizes that groups and words divide."""
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    enliven(model, 3)
    return config.to_dict(), {name: tensor.clone() for name, tensor in model.state_dict().items()}


def written(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, default=str), "utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


def quantise(kind: str, config: dict[str, Any], plain: Tensors) -> tuple[dict[str, Any], Tensors, Tensors]:
    """A config.json and stored tensors with the layers' matrices quantised, and the plain tensors that those mean."""
    settings, write = KINDS[kind]
    config = {**config, "quantization" if kind.startswith("mlx") else "quantization_config": settings}
    stored: Tensors = {}
    meant = dict(plain)
    for name, tensor in plain.items():
        if ".layers." not in name or tensor.dim() != 2:
            stored[name] = tensor
            continue
        tensors, means = write(tensor)
        meant[name] = means.float()
        stored |= {name.removesuffix("weight") + ending: part.contiguous() for ending, part in tensors.items()}
    return config, stored, meant


def quantised(folder: Path, kind: str) -> Tensors:
    """Write a Llama whose layers' matrices are quantised; the plain tensors that it means."""
    config, stored, meant = quantise(kind, *llama())
    written(folder, config, stored)
    return meant


def logits(checkpoint: Checkpoint, **how: Any) -> Tensor:
    with torch.inference_mode():
        model: Any = checkpoint.load(**how).transformer
        return model(torch.arange(12).reshape(2, 6) * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_gives_what_its_plain_matrices_give(tmp_path, kind):
    plain = quantised(tmp_path, kind)
    checkpoint = read_directory(tmp_path)
    expected = logits(read_directory(written(tmp_path / "plain", llama()[0], plain)))
    assert furthest(logits(checkpoint), expected) < 1e-5
    assert furthest(logits(checkpoint, keep=True), expected) < 1e-5, "and where they stay in their file"
    assert ["matrices stored as" in note for note in checkpoint.load().notes] == [True], "and no key is unknown"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("mlx")])
def test_plain_matrices_beside_the_config_of_quantised_ones_are_said_to_be_plain(tmp_path, kind):
    config, plain = llama()
    written(tmp_path, {**config, "quantization_config": KINDS[kind][0]}, plain)
    model = read_directory(tmp_path).load()
    method = KINDS[kind][0]["quant_method"]
    assert [f"quantised by {method}, says config.json" in note for note in model.notes] == [True]


def test_settings_in_the_text_part_of_a_whole_model_are_read(tmp_path):
    plain = quantised(tmp_path, "compressed-tensors")
    text = json.loads((tmp_path / "config.json").read_text("utf-8"))
    whole = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole), "utf-8")
    expected = logits(read_directory(written(tmp_path / "plain", llama()[0], plain)))
    assert furthest(logits(read_directory(tmp_path)), expected) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_config_a_quantised_tensor_is_named(tmp_path, kind):
    quantised(tmp_path, kind)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    del config["quantization" if kind.startswith("mlx") else "quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(CheckpointError, match=r"no quantization_config, but '.*' is a quantised tensor"):
        read_directory(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_do_not_fit_each_other_are_named(tmp_path, kind):
    quantised(tmp_path, kind)
    tensors = load_file(tmp_path / "model.safetensors")
    beside = ("scales", "weight_scale", "weight_scale_inv", "weight.absmax", "SCB")
    name = next(name for name in tensors if name.endswith(beside))
    tensors[name] = tensors[name].repeat(3, *[5] * (tensors[name].dim() - 1))[1:].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=name.rpartition(".layers.")[2].split(".weight")[0].rpartition(".")[0]):
        read_directory(tmp_path).load()


@pytest.mark.parametrize(
    ("method", "said"), [("torchao", "by 'torchao'"), (None, "weights \\(quant"), ([1], "weights")]
)
def test_any_other_method_is_refused_by_name(tmp_path, method, said):
    quantised(tmp_path, "gptq")
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    config["quantization_config"] = {"quant_method": method}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(CheckpointError, match=said):
        read_directory(tmp_path)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("gptq, 3 bits", {"checkpoint_format": "gptq_p"}, "3 bits in the format 'gptq_p' of GPTQ are not implemented"),
        ("gptq", {"checkpoint_format": "marlin"}, "4 bits in the format 'marlin' of GPTQ are not implemented"),
        ("awq", {"group_size": 16}, "groups of 16 inputs are not"),
        ("mlx", {"model.layers.0": {"mode": "nvfp4"}}, "weights by 'nvfp4' .mode. are not implemented"),
        ("awq", {"version": "gemv"}, "AWQ in the version 'gemv' is not implemented"),
        ("compressed-tensors", of_groups((5, 8)), "64 numbers in 8 words are not of 5 bits side by side"),
        (
            "compressed-tensors, mxfp4",
            {"format": "mxfp6-pack-quantized"},
            "weights by 'mxfp6-pack-quantized' .format. are",
        ),
        ("compressed-tensors", {"config_groups": {"W4A16": ["Linear"]}}, "does not say what compressed-tensors writes"),
        ("compressed-tensors", {"config_groups": 3}, "does not say what compressed-tensors writes"),
        ("modelopt, fp8", {"quantized_layers": [3]}, "does not say what modelopt writes there"),
        ("compressed-tensors", {"sparsity_config": {"format": "marlin-24"}}, "weights by 'marlin-24' .format. are not"),
        ("modelopt, nvfp4", {"quant_algo": "NVFP4_SVD"}, "weights by 'NVFP4_SVD' .quant_algo. are not implemented"),
        (
            "modelopt, nvfp4",
            {"quantized_layers": {"a": {"quant_algo": "INT4_AWQ"}}},
            "weights by 'INT4_AWQ' .quant_algo.",
        ),
    ],
)
def test_what_is_stored_in_another_way_is_refused_by_name(tmp_path, kind, settings, said):
    quantised(tmp_path, kind)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    config["quantization" if kind.startswith("mlx") else "quantization_config"] |= settings
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(CheckpointError, match=said):
        read_directory(tmp_path).load()


def test_the_file_that_modelopt_wrote_beside_an_older_config_is_read(tmp_path):
    plain = quantised(tmp_path, "modelopt, nvfp4")
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    settings = {"producer": {"name": "modelopt"}, "quantization": config.pop("quantization_config")}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings), "utf-8")
    expected = logits(read_directory(written(tmp_path / "plain", llama()[0], plain)))
    assert furthest(logits(read_directory(tmp_path)), expected) < 1e-5


def test_blocks_of_unknown_size_are_refused_rather_than_guessed(tmp_path):
    """32 rows with 2 scales can be blocks of 16 or of 20."""
    quantised(tmp_path, "fp8 in blocks with ragged edges")
    text = (tmp_path / "config.json").read_text("utf-8").replace('"weight_block_size"', '"block_size"')
    (tmp_path / "config.json").write_text(text, "utf-8")
    with pytest.raises(CheckpointError, match=r"blocks whose size config\.json does not give"):
        read_directory(tmp_path).load()


@pytest.mark.parametrize("name", ["weight_scale_inv", "scale", "qscale_weight"])
@pytest.mark.parametrize("kind", ["blocks of FP8", "one scale", "MXFP4 by exponents in bytes", "MXFP4 by exponents"])
def test_matrices_among_those_of_fp8_are_what_transformers_reads(name: str, kind: str) -> None:
    generator = torch.Generator().manual_seed(5)
    exponents = torch.randint(120, 130, (64, 3), generator=generator, dtype=torch.uint8)
    stored = {
        "blocks of FP8": (torch.randn(64, 96, generator=generator).to(torch.float8_e4m3fn), torch.rand(2, 2)),
        "one scale": (torch.randn(64, 96, generator=generator).to(torch.float8_e4m3fn), torch.rand(1, 1)),
        "MXFP4 by exponents in bytes": (torch.randint(-128, 128, (64, 48), dtype=torch.int8), exponents),
        "MXFP4 by exponents": (
            torch.randint(-128, 128, (64, 48), dtype=torch.int8),
            exponents.view(torch.float8_e8m0fnu),
        ),
    }[kind]
    tensors = dict(zip(("a.weight", f"a.{name}"), stored, strict=True))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    files: Any = SimpleNamespace(shapes=shapes, stored=tensors.__getitem__)
    said = settings_of({"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 48]}})
    assert said is not None
    opened = QuantizedWeights(files, *said)
    expected = Fp8Dequantize(None)._dequantize_one(*stored, torch.float32)
    assert opened.shapes == {"a.weight": (64, 96)}
    assert torch.equal(opened.stored("a.weight"), expected)
