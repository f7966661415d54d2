"""A GPT of torch's own layers, made by a function: what happens inside a layer cannot be seen."""

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, vocab, d_model, nhead, num_layers, dim_feedforward, max_len):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d_model)
        self.positions = nn.Parameter(torch.zeros(1, max_len, d_model))
        layer = nn.TransformerEncoderLayer(
            d_model, nhead, dim_feedforward, 0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.out = nn.Linear(d_model, vocab, bias=False)

    def forward(self, src):
        length = src.shape[1]
        x = self.embedding(src) + self.positions[:, :length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.out(self.encoder(x, mask=mask, is_causal=True))


def build(vocab_size, n_layers, n_heads, d_model, d_ff, max_len):
    return Decoder(vocab_size, d_model, n_heads, n_layers, d_ff, max_len)
