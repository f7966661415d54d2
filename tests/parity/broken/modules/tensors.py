"""A GPT of bare parameters and einsum, as people write who come from JAX: W_Q is (H, C, D), W_O (H, D, C)."""

import torch
from torch import nn


def layer_norm(x, w, b, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (var + eps).sqrt() * w + b


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


class Block(nn.Module):
    def __init__(self, d_model, n_heads, d_head, d_mlp):
        super().__init__()
        param = lambda *shape: nn.Parameter(torch.randn(*shape) * 0.02)  # noqa: E731
        self.W_Q, self.W_K, self.W_V = (param(n_heads, d_model, d_head) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (param(n_heads, d_head) for _ in range(3))
        self.W_O, self.b_O = param(n_heads, d_head, d_model), param(d_model)
        self.ln1_w, self.ln1_b, self.ln2_w, self.ln2_b = (param(d_model) for _ in range(4))
        self.W_in, self.b_in = param(d_model, d_mlp), param(d_mlp)
        self.W_out, self.b_out = param(d_mlp, d_model), param(d_model)

    def attention(self, x):
        q = torch.einsum("btc,hcd->bthd", x, self.W_Q) + self.b_Q
        k = torch.einsum("btc,hcd->bthd", x, self.W_K) + self.b_K
        v = torch.einsum("btc,hcd->bthd", x, self.W_V) + self.b_V
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        hidden = torch.triu(torch.ones(x.shape[1], x.shape[1]), diagonal=1).bool()
        scores = scores.masked_fill(hidden, -1e9)
        pattern = scores.softmax(-1)
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        return torch.einsum("bqhd,hdc->bqc", z, self.W_O) + self.b_O

    def mlp(self, x):
        pre = x @ self.W_in + self.b_in
        post = gelu(pre)
        return post @ self.W_out + self.b_out

    def forward(self, x):
        mid = x + self.attention(layer_norm(x, self.ln1_w, self.ln1_b))
        return mid + self.mlp(layer_norm(mid, self.ln2_w, self.ln2_b))


class Model(nn.Module):
    def __init__(self, d_vocab, d_model, n_layers, n_heads, d_head, d_mlp, n_ctx):
        super().__init__()
        self.W_E = nn.Parameter(torch.randn(d_vocab, d_model) * 0.02)
        self.W_pos = nn.Parameter(torch.randn(n_ctx, d_model) * 0.02)
        self.blocks = nn.ModuleList([Block(d_model, n_heads, d_head, d_mlp) for _ in range(n_layers)])
        self.ln_final_w, self.ln_final_b = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))
        self.W_U = nn.Parameter(torch.randn(d_model, d_vocab) * 0.02)

    def forward(self, tokens):
        x = self.W_E[tokens] + self.W_pos[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = layer_norm(x, self.ln_final_w, self.ln_final_b)
        return x @ self.W_U
