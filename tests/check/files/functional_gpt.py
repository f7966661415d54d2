"""A GPT in functions over flat names of parameters, one head at a time, with a mask that is a buffer."""

import torch
from torch import nn
from torch.nn import functional as F


def norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def attention(x, w_qkv, b_qkv, w_out, b_out, heads, visible):
    q, k, v = F.linear(x, w_qkv, b_qkv).chunk(3, dim=-1)
    size = x.shape[-1] // heads
    outputs = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = torch.matmul(q[..., part], k[..., part].mT) / size**0.5
        scores = torch.where(visible, scores, torch.finfo(scores.dtype).min)
        outputs.append(torch.matmul(scores.softmax(-1), v[..., part]))
    return F.linear(torch.cat(outputs, dim=-1), w_out, b_out)


def mlp(x, w_in, b_in, w_out, b_out):
    return F.linear(F.gelu(F.linear(x, w_in, b_in), approximate="tanh"), w_out, b_out)


class Parameters(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1_weight, self.ln1_bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.qkv_weight, self.qkv_bias = (
            nn.Parameter(torch.randn(3 * width, width)),
            nn.Parameter(torch.zeros(3 * width)),
        )
        self.out_weight, self.out_bias = nn.Parameter(torch.randn(width, width)), nn.Parameter(torch.zeros(width))
        self.ln2_weight, self.ln2_bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.fc_weight, self.fc_bias = nn.Parameter(torch.randn(4 * width, width)), nn.Parameter(torch.zeros(4 * width))
        self.proj_weight, self.proj_bias = nn.Parameter(torch.randn(width, 4 * width)), nn.Parameter(torch.zeros(width))


class GPT(nn.Module):
    def __init__(self, vocab_size, context, width, heads, layers):
        super().__init__()
        self.wte = nn.Parameter(torch.randn(vocab_size, width))
        self.wpe = nn.Parameter(torch.randn(context, width))
        self.layers = nn.ModuleList(Parameters(width) for _ in range(layers))
        self.lnf_weight, self.lnf_bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.heads = heads
        self.register_buffer("visible", torch.ones(context, context, dtype=torch.bool).tril())

    def forward(self, ids):
        T = ids.shape[1]
        x = F.embedding(ids, self.wte) + self.wpe[:T]
        visible = self.visible[:T, :T]
        for p in self.layers:
            n = norm(x, p.ln1_weight, p.ln1_bias)
            x = x + attention(n, p.qkv_weight, p.qkv_bias, p.out_weight, p.out_bias, self.heads, visible)
            x = x + mlp(norm(x, p.ln2_weight, p.ln2_bias), p.fc_weight, p.fc_bias, p.proj_weight, p.proj_bias)
        return F.linear(norm(x, self.lnf_weight, self.lnf_bias), self.wte)
