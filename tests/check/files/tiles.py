"""A GPT whose attention goes over tiles of keys with a running maximum and sum, as fast kernels do."""

import torch
from torch import nn
from torch.nn import functional as F

TILE = 3


def flash(q, k, v):
    B, H, T, D = q.shape
    best = torch.full((B, H, T, 1), -1e30)
    total, out = torch.zeros(B, H, T, 1), torch.zeros(B, H, T, D)
    rows = torch.arange(T)
    for start in range(0, T, TILE):
        keys, values = k[:, :, start : start + TILE], v[:, :, start : start + TILE]
        scores = q @ keys.transpose(-2, -1) / D**0.5
        later = rows[start : start + TILE][None, :] > rows[:, None]
        scores = scores.masked_fill(later, -1e30)
        higher = torch.maximum(best, scores.amax(-1, keepdim=True))
        shares = torch.exp(scores - higher)
        shrink = torch.exp(best - higher)
        total = total * shrink + shares.sum(-1, keepdim=True)
        out = out * shrink + shares @ values
        best = higher
    return out / total


class Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        return self.c_proj(flash(q, k, v).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = Attention(n_embd, n_head)
        self.c_fc, self.c_proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_embd, n_head, n_layer):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block(n_embd, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))
