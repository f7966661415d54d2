"""A GPT whose attention is a loop over queries, each with the keys up to itself: nothing is masked."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.q_proj, self.k_proj = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd)
        self.v_proj, self.o_proj = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        split = lambda y: y.unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        rows = []
        for t in range(x.shape[1]):
            scores = (q[:, :, t : t + 1] * k[:, :, : t + 1]).sum(-1) / q.shape[-1] ** 0.5
            rows.append((scores.softmax(-1)[..., None] * v[:, :, : t + 1]).sum(-2))
        return self.o_proj(torch.stack(rows, dim=1).flatten(2))


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = Attention(n_embd, n_head)
        self.fc1, self.fc2 = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, vocab_size, max_len, n_embd, n_head, n_layer):
        super().__init__()
        self.embed, self.position = nn.Embedding(vocab_size, n_embd), nn.Embedding(max_len, n_embd)
        self.blocks = nn.Sequential(*(Block(n_embd, n_head) for _ in range(n_layer)))
        self.norm = nn.LayerNorm(n_embd)

    def forward(self, ids):
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        return F.linear(self.norm(self.blocks(x)), self.embed.weight)
