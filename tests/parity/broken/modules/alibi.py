"""A GPT whose scores fall with the distance: heads by view and transpose, a bias for every head as a buffer."""

import math

import torch
from torch import nn


def get_slopes(n):
    start = 2 ** (-(2 ** -(math.log2(n) - 3)))
    return torch.tensor([start * start**i for i in range(n)])


class Attention(nn.Module):
    def __init__(self, d_model, n_heads, max_len):
        super().__init__()
        self.h = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        distance = torch.arange(max_len)[None, :] - torch.arange(max_len)[:, None]
        bias = get_slopes(n_heads)[:, None, None] * distance
        self.register_buffer("alibi", bias.masked_fill(distance > 0, float("-inf")))

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.h, c // self.h)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(c // self.h)
        scores = scores + self.alibi[:, :t, :t]
        probs = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(probs, v)
        return self.out(mixed.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, d_model, n_heads, max_len):
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attn = Attention(d_model, n_heads, max_len)
        self.norm2 = nn.LayerNorm(d_model)
        self.fc1 = nn.Linear(d_model, 4 * d_model)
        self.fc2 = nn.Linear(4 * d_model, d_model)
        self.act = nn.GELU("tanh")

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        h = self.fc1(self.norm2(x))
        h = self.act(h)
        return x + self.fc2(h)


class Decoder(nn.Module):
    def __init__(self, vocab_size, d_model, n_heads, n_layers, max_len):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model)
        self.emb_norm = nn.LayerNorm(d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads, max_len) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens):
        x = self.emb_norm(self.emb(tokens))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.emb.weight.T
