"""A Gemma: scaled embeddings, gains of 1 + w, capped scores and logits, norms of queries and keys, a window."""

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.scale, self.eps)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, head_dim, theta, window, cap):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim, self.theta = n_heads, n_kv_heads, head_dim, theta
        self.window, self.cap = window, cap
        self.wqkv = nn.Linear(dim, (n_heads + 2 * n_kv_heads) * head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)
        self.q_norm, self.k_norm = Norm(head_dim), Norm(head_dim)

    def rope(self, x):
        half = self.head_dim // 2
        timescale = self.theta ** (torch.arange(half) / half)
        angle = torch.arange(x.shape[1])[:, None, None] / timescale
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def forward(self, x):
        B, T, _ = x.shape
        n, m, d = self.n_heads, self.n_kv_heads, self.head_dim
        q, k, v = self.wqkv(x).split([n * d, m * d, m * d], dim=-1)
        q, k, v = q.view(B, T, n, d), k.view(B, T, m, d), v.view(B, T, m, d)
        q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rope(q), self.rope(k)
        q = q.view(B, T, m, n // m, d) * d**-0.5
        logits = torch.einsum("BTKGD,BSKD->BKGTS", q, k)
        logits = torch.tanh(logits / self.cap) * self.cap
        pos = torch.arange(T)
        seen = (pos[None, :] <= pos[:, None]) & (pos[None, :] > pos[:, None] - self.window)
        logits = torch.where(seen, logits, -2.3819763e38)
        probs = F.softmax(logits, dim=-1)
        out = torch.einsum("BKGTS,BSKD->BTKGD", probs, v)
        return self.wo(out.reshape(B, T, n * d))


class Block(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, head_dim, hidden_dim, theta, window, cap):
        super().__init__()
        self.attn_norm = Norm(dim)
        self.attn = Attention(dim, n_heads, n_kv_heads, head_dim, theta, window, cap)
        self.mlp_norm = Norm(dim)
        self.gate_up = nn.Linear(dim, 2 * hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        act = F.gelu(gate, approximate="tanh") * up
        return x + self.down(act)


class Gemma(nn.Module):
    def __init__(
        self, vocab_size, dim, n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, theta, window=4, cap=0.5, last=0.3
    ):
        super().__init__()
        self.last = last
        self.embedder = nn.Embedding(vocab_size, dim)
        block = (dim, n_heads, n_kv_heads, head_dim, hidden_dim, theta, window, cap)
        self.layers = nn.ModuleList([Block(*block) for _ in range(n_layers)])
        self.final_norm = Norm(dim)

    def forward(self, tokens):
        x = self.embedder(tokens) * self.embedder.embedding_dim**0.5
        for layer in self.layers:
            x = layer(x)
        x = self.final_norm(x)
        logits = F.linear(x, self.embedder.weight)
        return self.last * torch.tanh(logits / self.last)
