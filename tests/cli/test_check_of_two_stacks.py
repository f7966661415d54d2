"""``tinytf check`` beside a model of two stacks: a decoder that is handed the states of its encoder, and an encoder."""

from pathlib import Path

import pytest
from driving import Tinytf

import tinytf
from tinytf.check.checked import Checked, check

SOURCE, TARGET = "the third of May 1994", "1994-05-03"
CODE = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

def waves(n, c):
    p = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, c, 2) / c)
    return torch.stack((p.sin(), p.cos()), -1).flatten(1)

class Attention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h = n_heads
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
    def forward(self, x, y, mask=None):
        def split(z): return z.unflatten(-1, (self.h, -1)).transpose(1, 2)
        q, k, v = split(self.q(x)), split(self.k(y)), split(self.v(y))
        s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None: s = s.masked_fill(mask == 0, float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))

class Layer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.self_attn, self.cross_attn = Attention(d_model, n_heads), Attention(d_model, n_heads)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
    def forward(self, x, memory, mask, memory_mask):
        n = self.norm1(x)
        x = x + self.self_attn(n, n, mask)
        x = x + self.cross_attn(self.norm2(x), memory, memory_mask)
        return x + self.linear2(F.relu(self.linear1(self.norm3(x))))

class Decoder(nn.Module):
    def __init__(self, vocab_size, d_model, n_layers, n_heads, d_ff):
        super().__init__()
        self.scale = math.sqrt(d_model)
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(Layer(d_model, n_heads, d_ff) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)
    def forward(self, ids, memory, tgt_mask, memory_mask):
        x = self.embed(ids) * self.scale + waves(ids.shape[1], self.embed.embedding_dim)
        for layer in self.layers: x = layer(x, memory, tgt_mask, memory_mask)
        return self.norm(x) @ self.embed.weight.T

class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.self_attn = Attention(d_model, n_heads)
        self.norm1, self.norm2 = (nn.LayerNorm(d_model) for _ in range(2))
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
    def forward(self, x):
        n = self.norm1(x)
        x = x + self.self_attn(n, n)
        return x + self.linear2(F.relu(self.linear1(self.norm2(x))))

class Encoder(nn.Module):
    def __init__(self, vocab_size, d_model, n_layers, n_heads, d_ff):
        super().__init__()
        self.scale = math.sqrt(d_model)
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(EncoderLayer(d_model, n_heads, d_ff) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)
    def forward(self, ids):
        x = self.embed(ids) * self.scale + waves(ids.shape[1], self.embed.embedding_dim)
        for layer in self.layers: x = layer(x)
        return self.norm(x)
"""
CROSS = "self.cross_attn(self.norm2(x), memory, memory_mask)"


def checked(folder: Path, name: str, wrong: str = CROSS) -> Checked:
    (folder / "student.py").write_text(CODE.replace(CROSS, wrong), "utf-8")
    model = tinytf.load("tiny-translator", device="cpu")
    if name == "Encoder":
        return check(model.encoder, f"{folder / 'student.py'}:{name}", text=SOURCE)
    return check(model.reading(SOURCE), f"{folder / 'student.py'}:{name}", text=TARGET)


def test_a_decoder_gets_the_states_of_the_encoder_and_every_step_is_found(tmp_path: Path) -> None:
    found = checked(tmp_path, "Decoder")
    assert found.holds, found.sentence
    assert found.given[0] == "memory: the states of the encoder"
    assert found.given[2] == "memory_mask: 1 for every token of the source"
    held = {row.theirs: row.ours for row in found.names}
    assert held["layers.{n}.norm2.weight"] == "L{n}.cross.norm.gain"
    assert held["layers.{n}.norm3.weight"] == "L{n}.norm2.gain"
    assert held["layers.{n}.cross_attn.k.weight"] == "L{n}.W_XK"
    assert "source" not in {step.step for step in found.steps}  # what is given is not computed


def test_an_encoder_is_compared_up_to_its_last_states(tmp_path: Path) -> None:
    found = checked(tmp_path, "Encoder")
    assert found.holds, found.sentence
    assert found.steps[-1].step == "final.norm"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "step", "mistake"),
    [
        ("self.cross_attn(x, memory, memory_mask)", "L0.cross.norm", "the norm is left out"),
        ("self.cross_attn(self.norm2(x), self.norm2(x), mask)", "L0.cross.k", ""),
        (
            "self.cross_attn(self.norm2(x), memory, torch.ones(x.shape[1], memory.shape[1]).tril())",
            "L0.cross.weights",
            "the mask is causal: later tokens are hidden",
        ),
    ],
    ids=["no norm", "its own keys", "a causal mask"],
)
def test_a_mistake_across_is_named_where_it_stands(tmp_path: Path, wrong: str, step: str, mistake: str) -> None:
    found = checked(tmp_path, "Decoder", wrong)
    assert found.first_wrong is not None
    assert found.first_wrong.step == step
    assert [one.mistake for one in found.mistakes] == ([mistake] if mistake else [])


def test_the_command_takes_a_source_and_a_target_or_the_encoder(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "student.py").write_text(CODE, "utf-8")
    like = ("--like", "tiny-translator", "--text", SOURCE)
    ran = tinytf("check", "student.py:Decoder", *like)
    assert ran.status == 0, ran.err
    assert ran.err == f"tinytf: target, generated: {TARGET}\n"
    assert "on the text 1994-05-03" in ran.out
    encoder = tinytf("check", "student.py:Encoder", *like, "--stack", "encoder")
    assert encoder.status == 0, encoder.err
    both = tinytf("check", "student.py:Encoder", *like, "--stack", "encoder", "--target-text", TARGET)
    assert both.status == 2
    assert "--target-text is what the decoder is given" in both.err
