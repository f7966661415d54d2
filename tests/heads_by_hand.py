"""A decoder whose heads are built by hand from one-hot embeddings, so that what each of them does is known."""

from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer

VOCABULARY, CONTEXT = 40, 16
_SHARP = 400.0  # the least that the score of what is sought is above any other

# The residual stream: which token it is, where it stands, and a place for the token before.
_TOKEN = slice(0, VOCABULARY)
_PLACE = slice(VOCABULARY, VOCABULARY + CONTEXT)
_BEFORE = slice(VOCABULARY + CONTEXT, 2 * VOCABULARY + CONTEXT)
_D_MODEL = 2 * VOCABULARY + CONTEXT
_D_HEAD = VOCABULARY + CONTEXT

CONFIG = ModelConfig.of(
    vocab_size=VOCABULARY, d_model=_D_MODEL, n_layers=2, n_heads=4, d_head=_D_HEAD, d_ff=8, context=CONTEXT
)
PREVIOUS, DUPLICATE, SELF, FIRST = ((0, head) for head in range(4))
INDUCTION, EVEN, EVEN_TOO, THREE_BACK = ((1, head) for head in range(4))


class _Head:
    """The matrices of one head, as views that can be written to: queries and keys read, values and outputs write."""

    def __init__(self, model: Transformer, layer: int, head: int) -> None:
        attention: Any = model.blocks[layer].attention
        rows = slice(head * _D_HEAD, (head + 1) * _D_HEAD)
        self.q, self.k, self.v = (getattr(attention, name).weight[rows] for name in "qkv")  # (D, C)
        self.q_bias = attention.q.bias[rows]
        self.o = attention.o.weight[:, rows]  # (C, D)

    def match(self, queries: Tensor, keys: Tensor, size: float = _SHARP, at: int = 0) -> None:
        """Dimensions from ``at`` on: a query's row of ``queries`` is compared with a key's row of ``keys``."""
        rows = slice(at, at + len(queries))
        self.q[rows] = size * _D_HEAD**0.5 * queries
        self.k[rows] = keys


def _reading(part: slice, shift: int = 0) -> Tensor:
    """(dimensions, C): dimension i is on where ``part`` has its 1 at i − shift."""
    size = part.stop - part.start
    rows = torch.zeros(size, _D_MODEL)
    for i in range(size):
        if 0 <= i - shift < size:
            rows[i, part.start + i - shift] = 1
    return rows


@torch.no_grad()
def heads_by_hand() -> Transformer:
    """L0: a previous-token, a duplicate-token, an own-token and a first-token head. L1: an induction head, which reads
    what the first wrote, two that look everywhere alike, and one that looks three back."""
    model = Transformer.initialised(CONFIG, 0).eval()
    for parameter in model.parameters():
        parameter.zero_()
    for norm in (model.final_norm, *(norm for block in model.blocks for norm in (block.norm1, block.norm2))):
        norm.weight.fill_(1.0)
    model.embed.tokens.weight[:, _TOKEN] = torch.eye(VOCABULARY)
    model.embed.positions.weight[:, _PLACE] = torch.eye(CONTEXT)
    token, place, before = (_reading(part) for part in (_TOKEN, _PLACE, _BEFORE))

    # A LayerNorm makes of the ones of every token the same a and of the zeros the same b: a match is a·a above the
    # rest, and what b adds to a score is the same for every key.
    head = _Head(model, *PREVIOUS)
    head.match(place, _reading(_PLACE, shift=1))
    head.v[:VOCABULARY] = token
    head.o[_BEFORE, :VOCABULARY] = torch.eye(VOCABULARY)
    head = _Head(model, *DUPLICATE)
    head.match(token, token)
    head.match(place, place, -2 * _SHARP, at=VOCABULARY)  # the same token, but not the same place
    _Head(model, *SELF).match(place, place)
    head = _Head(model, *FIRST)
    head.q_bias[0] = _SHARP * _D_HEAD**0.5
    head.k[0] = place[0]
    head = _Head(model, *INDUCTION)
    head.match(token, before)
    head.q_bias[VOCABULARY] = -2 * _SHARP * _D_HEAD**0.5  # nothing is before the first, which found itself
    head.k[VOCABULARY] = place[0]
    _Head(model, *THREE_BACK).match(place, _reading(_PLACE, shift=3))
    return model
