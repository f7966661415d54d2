"""A GPT with every parameter by hand and a dict of sizes: matrices as in the papers, x @ W, heads on an axis."""

import math

import torch
from torch import nn

CONFIG = {"vocab_size": 50257, "context_length": 1024, "emb_dim": 768, "n_heads": 12, "n_layers": 12, "drop_rate": 0.1}


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * (x - mean) / torch.sqrt(variance + 1e-5) + self.shift


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        size = width // heads
        self.W_Q = nn.Parameter(torch.randn(heads, width, size))
        self.W_K = nn.Parameter(torch.randn(heads, width, size))
        self.W_V = nn.Parameter(torch.randn(heads, width, size))
        self.W_O = nn.Parameter(torch.randn(heads, size, width))
        self.b_Q = nn.Parameter(torch.zeros(heads, size))
        self.b_K = nn.Parameter(torch.zeros(heads, size))
        self.b_V = nn.Parameter(torch.zeros(heads, size))
        self.b_O = nn.Parameter(torch.zeros(width))

    def forward(self, x, mask):
        q = torch.einsum("btc,hcd->bthd", x, self.W_Q) + self.b_Q
        k = torch.einsum("btc,hcd->bthd", x, self.W_K) + self.b_K
        v = torch.einsum("btc,hcd->bthd", x, self.W_V) + self.b_V
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(mask == 0, -1e9).softmax(dim=-1)
        z = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        return torch.einsum("bqhd,hdc->bqc", z, self.W_O) + self.b_O


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.W_in = nn.Parameter(torch.randn(width, 4 * width))
        self.b_in = nn.Parameter(torch.zeros(4 * width))
        self.W_out = nn.Parameter(torch.randn(4 * width, width))
        self.b_out = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return gelu(x @ self.W_in + self.b_in) @ self.W_out + self.b_out


class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.att = Attention(cfg["emb_dim"], cfg["n_heads"])
        self.ff = MLP(cfg["emb_dim"])
        self.norm1 = LayerNorm(cfg["emb_dim"])
        self.norm2 = LayerNorm(cfg["emb_dim"])

    def forward(self, x, mask):
        x = x + self.att(self.norm1(x), mask)
        return x + self.ff(self.norm2(x))


class GPTModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Parameter(torch.randn(cfg["vocab_size"], cfg["emb_dim"]))
        self.pos_emb = nn.Parameter(torch.randn(cfg["context_length"], cfg["emb_dim"]))
        self.trf_blocks = nn.ModuleList([TransformerBlock(cfg) for _ in range(cfg["n_layers"])])
        self.final_norm = LayerNorm(cfg["emb_dim"])

    def forward(self, ids, mask):
        x = self.tok_emb[ids] + self.pos_emb[: ids.shape[1]]
        for block in self.trf_blocks:
            x = block(x, mask)
        return self.final_norm(x) @ self.tok_emb.T
