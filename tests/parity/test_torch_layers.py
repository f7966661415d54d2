"""Blocks against torch.nn.TransformerEncoderLayer and MultiheadAttention; positions against their formulas."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from architectures import SIZES, enliven, furthest, padding
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tinytf.checkpoints.huggingface.rope import ROPE
from tinytf.config import ModelConfig, Rope
from tinytf.fields import Fields
from tinytf.model.transformer import Block, Embeddings
from tinytf.steps.operations.positions import sinusoidal_table
from tinytf.steps.operations.rotate import rotary_frequencies, rotary_table, rotate

B, T, C = 3, 11, SIZES["d_model"]
CPU = torch.device("cpu")
SHORT, LONG = [1.0 + i / 100 for i in range(32)], [1.5 + i / 3 for i in range(32)]


def some_input(seed: int = 2) -> Tensor:
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(seed))


def a_rope(width: int, theta: float) -> Rope:
    return ModelConfig.of(**{**SIZES, "d_head": width}, positions="rotary", rope_theta=theta).rope


def causal_mask() -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).triu(1)  # torch's own sense: True may not be looked at


def ours(config: ModelConfig) -> nn.Module:
    block = Block(config, 0)
    enliven(block, 3)
    return block.eval()


@torch.no_grad()
def give_attention(source: nn.Module, target: nn.MultiheadAttention) -> None:
    target.in_proj_weight.copy_(torch.cat([source.q.weight, source.k.weight, source.v.weight]))
    target.in_proj_bias.copy_(torch.cat([source.q.bias, source.k.bias, source.v.bias]))
    target.out_proj.load_state_dict(source.o.state_dict())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize("side", ["none", "right"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_block_is_torchs_encoder_layer(order, side, causal, activation):
    config = ModelConfig.of(**SIZES, norm_order=order, causal=causal, activation=activation)
    block = ours(config)
    layer = nn.TransformerEncoderLayer(
        C, config.n_heads, config.d_ff, 0.0, activation, config.norm_eps, batch_first=True, norm_first=order == "pre"
    )
    give_attention(block.attention, layer.self_attn)
    layer.linear1.load_state_dict(block.ffn.up.state_dict())
    layer.linear2.load_state_dict(block.ffn.down.state_dict())
    layer.norm1.load_state_dict(block.norm1.state_dict())
    layer.norm2.load_state_dict(block.norm2.state_dict())
    real = padding(side, B, T)
    x = some_input()
    expected = layer(  # in training mode, without dropout: torch's own slow and plain path
        x,
        src_mask=causal_mask() if causal else None,
        src_key_padding_mask=None if real is None else ~real,
    )
    assert furthest(block(x, 0, real), expected) < 1e-6


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize("side", ["none", "right"])
def test_attention_and_its_weights_are_torchs(side, causal):
    config = ModelConfig.of(**SIZES, causal=causal)
    block = ours(config)
    reference = nn.MultiheadAttention(C, config.n_heads, batch_first=True)
    give_attention(block.attention, reference)
    real = padding(side, B, T)
    x = some_input()
    read = block.norm1(x)
    expected, weights = reference(
        read,
        read,
        read,
        key_padding_mask=None if real is None else ~real,
        attn_mask=causal_mask() if causal else None,
        average_attn_weights=False,
    )
    seen: dict[str, Tensor] = {}
    for name, module in (("attn", block.attention.o), ("weights", block.weights)):
        module.register_forward_hook(lambda module, args, made, name=name: seen.update({name: made}))
        block(x, 0, real)
        assert furthest(seen["attn"], expected) < 1e-6
    assert furthest(seen["weights"], weights) < 1e-6


def test_the_sinusoidal_table_is_the_papers_formula():
    """Vaswani et al. 2017, section 3.5, one number at a time in Python's own float64."""
    length, width = 70, 24
    table = sinusoidal_table(length, width, CPU, torch.float64)
    for position in range(length):
        for pair in range(width // 2):
            angle = position / 10_000 ** (2 * pair / width)
            assert float(table[position, 2 * pair]) == pytest.approx(math.sin(angle), abs=1e-12)
            assert float(table[position, 2 * pair + 1]) == pytest.approx(math.cos(angle), abs=1e-12)


def test_a_table_in_float32_is_the_rounded_formula():
    position, pair = np.arange(512)[:, None], np.arange(0, 64, 2)
    angle = position / 10_000 ** (pair / 64)
    table = sinusoidal_table(512, 64, CPU, torch.float32).numpy()
    assert np.abs(table[:, 0::2] - np.sin(angle)).max() < 1e-7
    assert np.abs(table[:, 1::2] - np.cos(angle)).max() < 1e-7


@pytest.mark.parametrize("theta", [10_000.0, 500.0])
@pytest.mark.parametrize("width", [6, 10, 64])
def test_rotation_is_multiplication_by_a_complex_number(width, theta):
    """Su et al. 2021: the pair (x[j], x[j + D/2]) as x[j] + i·x[j + D/2], times exp(i·position·θ^(−2j/D))."""
    x = torch.randn(2, 4, 33, width, generator=torch.Generator().manual_seed(1))
    half = x.double().numpy()[..., : width // 2] + 1j * x.double().numpy()[..., width // 2 :]
    angle = np.arange(33)[:, None] * theta ** (-2 * np.arange(width // 2) / width)
    turned = half * np.exp(1j * angle)
    expected = torch.from_numpy(np.concatenate([turned.real, turned.imag], axis=-1))
    cosine, sine = rotary_table(33, a_rope(width, theta), CPU, torch.float32)
    assert furthest(rotate(x, cosine, sine).double(), expected) < 1e-5


@pytest.mark.parametrize(("width", "theta"), [(64, 10_000.0), (80, 500_000.0), (128, 1_000_000.0)])
def test_rotary_angles_are_those_of_transformers_to_the_last_bit(width, theta):
    """In float32: in more digits a model would see other angles than it was trained with, far out by a thousandth."""
    config = transformers.LlamaConfig(head_dim=width, rope_parameters={"rope_type": "default", "rope_theta": theta})
    reference = LlamaRotaryEmbedding(config)
    rope = a_rope(width, theta)
    assert torch.equal(rotary_frequencies(rope), reference.inv_freq)
    theirs = reference(torch.zeros(1, dtype=torch.float32), torch.arange(8192)[None])
    for found, expected in zip(rotary_table(8192, rope, CPU, torch.float32), theirs, strict=True):
        assert torch.equal(found, expected[0])


SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False, "beta_fast": 20},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512, "mscale": 1.0, "mscale_all_dim": 0.7},
    {"rope_type": "longrope", "original_max_position_embeddings": 4096, "short_factor": SHORT, "long_factor": LONG},
    {"rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": SHORT, "long_factor": LONG},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda one: f"{one['rope_type']} {len(one)}")
def test_stretched_angles_are_those_of_transformers(scaling):
    settings = {"rope_theta": 5000.0, **scaling}
    config = transformers.LlamaConfig(head_dim=64, max_position_embeddings=8192, rope_parameters=dict(settings))
    reference = LlamaRotaryEmbedding(config)
    read = ROPE.read(Fields({"rope_parameters": settings}, "config.json"), {"d_head": 64, "context": 8192}, {})
    rope = ModelConfig.of(**{**SIZES, "d_head": 64, **read}, positions="rotary").rope
    theirs = reference(torch.zeros(1, dtype=torch.float32), torch.arange(300)[None])
    for found, expected in zip(rotary_table(300, rope, CPU, torch.float32), theirs, strict=True):
        assert furthest(found, expected[0]) < 1e-4


def test_a_rotated_score_depends_on_the_distance_alone():
    cosine, sine = rotary_table(20, a_rope(8, 10_000.0), CPU, torch.float32)
    q, k = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(0)).expand(2, 20, 8)
    scores = rotate(q, cosine, sine) @ rotate(k, cosine, sine).T
    for distance in range(-19, 20):
        diagonal = scores.diagonal(distance)
        assert float(diagonal.max() - diagonal.min()) < 1e-5


def test_scaled_embeddings_are_multiplied_before_positions_are_added():
    config = ModelConfig.of(**SIZES, positions="sinusoidal", embed_scale=3.0)
    embeddings = Embeddings(config)
    enliven(embeddings, 1)
    ids = torch.tensor([[3, 1, 4]])
    expected = embeddings.tokens.weight[ids] * 3.0 + sinusoidal_table(3, C, CPU, torch.float32)
    assert furthest(embeddings(ids), expected) < 1e-6
