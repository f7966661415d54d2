"""A Llama whose rotary positions are complex numbers, so that pairs of a head lie side by side."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps))


def precompute(dim, length, theta):
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, head_dim):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim
        self.wq = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wv = nn.Linear(dim, n_heads * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)

    def forward(self, x, turns, mask):
        B, T, _ = x.shape
        q = apply_rotary(self.wq(x).view(B, T, self.n_heads, self.head_dim), turns).transpose(1, 2)
        k = apply_rotary(self.wk(x).view(B, T, self.n_heads, self.head_dim), turns).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim) + mask
        out = F.softmax(scores.float(), dim=-1) @ v
        return self.wo(out.transpose(1, 2).contiguous().view(B, T, -1))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim, n_heads, head_dim, hidden_dim, norm_eps):
        super().__init__()
        self.attention = Attention(dim, n_heads, head_dim)
        self.feed_forward = FeedForward(dim, hidden_dim)
        self.attention_norm = Norm(dim, norm_eps)
        self.ffn_norm = Norm(dim, norm_eps)

    def forward(self, x, turns, mask):
        h = x + self.attention(self.attention_norm(x), turns, mask)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, vocab_size, dim, n_layers, n_heads, head_dim, hidden_dim, norm_eps, rope_theta, max_seq_len):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        sizes = (dim, n_heads, head_dim, hidden_dim, norm_eps)
        self.layers = nn.ModuleList(Block(*sizes) for _ in range(n_layers))
        self.norm = Norm(dim, norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.turns = precompute(head_dim, max_seq_len, rope_theta)

    def forward(self, tokens):
        T = tokens.shape[1]
        h = self.tok_embeddings(tokens)
        mask = torch.full((T, T), float("-inf")).triu(diagonal=1)
        for layer in self.layers:
            h = layer(h, self.turns[:T], mask)
        return self.output(self.norm(h))
