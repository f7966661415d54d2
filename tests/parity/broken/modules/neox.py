"""A GPT-NeoX: q, k and v head by head in one matrix, a part of each head rotated, attention beside the feed-forward."""

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, width, base):
    rotated, passed = x[..., :width], x[..., width:]
    freqs = base ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(x.shape[-2])[:, None] * freqs
    left, right = rotated.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin, passed], dim=-1)


class Attention(nn.Module):
    def __init__(self, d_model, n_heads, rotary, base):
        super().__init__()
        self.n_heads, self.width, self.rotary, self.base = n_heads, d_model // n_heads, rotary, base
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, c = x.shape
        mixed = self.query_key_value(x).view(b, t, self.n_heads, 3 * self.width).permute(0, 2, 1, 3)
        q, k, v = mixed.chunk(3, dim=-1)
        q, k = rotate(q, self.rotary, self.base), rotate(k, self.rotary, self.base)
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        scores = torch.matmul(q, k.mT) / self.width**0.5
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        attended = torch.matmul(F.softmax(scores, -1), v)
        return self.dense(attended.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, rotary, base):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(d_model)
        self.post_attention_layernorm = nn.LayerNorm(d_model)
        self.attention = Attention(d_model, n_heads, rotary, base)
        self.dense_h_to_4h = nn.Linear(d_model, d_ff)
        self.dense_4h_to_h = nn.Linear(d_ff, d_model)

    def mlp(self, x):
        hidden = F.gelu(self.dense_h_to_4h(x))
        return self.dense_4h_to_h(hidden)

    def forward(self, x):
        attended = self.attention(self.input_layernorm(x))
        fed = self.mlp(self.post_attention_layernorm(x))
        return x + attended + fed


class NeoX(nn.Module):
    def __init__(self, vocab_size, d_model, n_layers, n_heads, d_ff, rope_base, rotary=6):
        super().__init__()
        self.embed_in = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList([Layer(d_model, n_heads, d_ff, rotary, rope_base) for _ in range(n_layers)])
        self.final_layer_norm = nn.LayerNorm(d_model)
        self.embed_out = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, ids):
        hidden = self.embed_in(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.final_layer_norm(hidden)
        return self.embed_out(hidden)
