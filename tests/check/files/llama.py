"""A small Llama from scratch: RMSNorm, rotary positions, a gated feed-forward, and a cache of keys and values."""

import math

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        rms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * rms * self.weight


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rope(x, positions, theta):
    d = x.shape[-1]
    inv_freq = 1.0 / theta ** (torch.arange(0, d, 2).float() / d)
    angles = positions.float()[:, None] * inv_freq[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return x * angles.cos() + rotate_half(x) * angles.sin()


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, head_dim, qkv_bias, rope_theta):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.theta = rope_theta
        self.wq = nn.Linear(dim, n_heads * head_dim, bias=qkv_bias)
        self.wk = nn.Linear(dim, n_kv_heads * head_dim, bias=qkv_bias)
        self.wv = nn.Linear(dim, n_kv_heads * head_dim, bias=qkv_bias)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)

    def forward(self, x, cache=None):
        B, T, _ = x.shape
        past = 0 if cache is None else cache[0].shape[2]
        positions = torch.arange(past, past + T)
        q = self.wq(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        q = apply_rope(q, positions, self.theta)
        k = apply_rope(k, positions, self.theta)
        if cache is not None:
            k = torch.cat((cache[0], k), dim=2)
            v = torch.cat((cache[1], v), dim=2)
        present = (k, v)
        k = k.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)
        v = v.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(self.head_dim)
        mask = torch.full((T, past + T), float("-inf")).triu(past + 1)
        weights = torch.softmax(scores + mask, dim=-1)
        out = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        out = out.permute(0, 2, 1, 3).reshape(B, T, -1)
        return self.wo(out), present


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, head_dim, hidden_dim, qkv_bias, norm_eps, rope_theta):
        super().__init__()
        self.attention = Attention(dim, n_heads, n_kv_heads, head_dim, qkv_bias, rope_theta)
        self.feed_forward = FeedForward(dim, hidden_dim)
        self.attention_norm = RMSNorm(dim, norm_eps)
        self.ffn_norm = RMSNorm(dim, norm_eps)

    def forward(self, x, cache=None):
        attended, present = self.attention(self.attention_norm(x), cache)
        h = x + attended
        return h + self.feed_forward(self.ffn_norm(h)), present


class Llama(nn.Module):
    def __init__(
        self,
        vocab_size,
        dim,
        n_layers,
        n_heads,
        n_kv_heads,
        head_dim,
        hidden_dim,
        qkv_bias=False,
        norm_eps=1e-5,
        rope_theta=10000.0,
        tie_weights=False,
        scale_embeddings=False,
    ):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        sizes = (dim, n_heads, n_kv_heads, head_dim, hidden_dim, qkv_bias, norm_eps, rope_theta)
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(n_layers))
        self.norm = RMSNorm(dim, norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.scale = math.sqrt(dim) if scale_embeddings else 1.0
        if tie_weights:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens, past_key_values=None, use_cache=False):
        h = self.tok_embeddings(tokens) * self.scale
        presents = []
        for number, layer in enumerate(self.layers):
            h, present = layer(h, None if past_key_values is None else past_key_values[number])
            presents.append(present)
        logits = self.output(self.norm(h))
        return (logits, presents) if use_cache else logits
