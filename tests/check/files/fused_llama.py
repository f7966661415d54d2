"""A Llama as people serve it: joint matrices, cached tables of cosines, keys shared in groups, fused attention."""

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def rotary_tables(length, dim, theta):
    frequencies = theta ** (-torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, head_dim):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.wqkv = nn.Linear(dim, (n_heads + 2 * n_kv_heads) * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        sizes = [self.n_heads, self.n_kv_heads, self.n_kv_heads]
        q, k, v = self.wqkv(x).view(B, T, -1, self.head_dim).transpose(1, 2).split(sizes, dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))


class Layer(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, head_dim, hidden_dim, norm_eps):
        super().__init__()
        self.attention_norm = RMSNorm(dim, norm_eps)
        self.attention = Attention(dim, n_heads, n_kv_heads, head_dim)
        self.ffn_norm = RMSNorm(dim, norm_eps)
        self.gate_up = nn.Linear(dim, 2 * hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(
        self, vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, norm_eps, rope_theta, max_seq_len
    ):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        sizes = (dim, n_heads, n_kv_heads, head_dim, hidden_dim, norm_eps)
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(n_layers))
        self.norm = RMSNorm(dim, norm_eps)
        self.head = nn.Linear(dim, vocab_size, bias=False)
        cos, sin = rotary_tables(max_seq_len, head_dim, rope_theta)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, tokens):
        T = tokens.shape[1]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:T], self.sin[:T])
        return self.head(self.norm(x))
