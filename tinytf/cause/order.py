"""Whether a model knows the order of its tokens: the same tokens in another order, with positions and without."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.hooks import evaluated
from tinytf.model.transformer import Transformer
from tinytf.model.without import left_out, removable
from tinytf.report import Data
from tinytf.steps.operations.softmax import probabilities
from tinytf.text.tokenizer import Encoding
from tinytf.tolerance import RUN, allowed


@dataclass(frozen=True)
class Ordered(Data):
    """Both orders through the model without ``lacks``.

    ``difference`` is the largest between a token's outputs in the two orders, ``relative`` in units of the largest
    output. ``first`` and ``second`` are the most probable token (id, probability) at the position that predicts.
    """

    ALSO: ClassVar = ("lost",)

    lacks: tuple[str, ...]
    difference: float
    relative: float
    limit: float
    first: tuple[int, float] | None
    second: tuple[int, float] | None

    @property
    def lost(self) -> bool:
        """Whether the outputs are the same in both orders, so that the model cannot tell them apart."""
        return self.relative <= self.limit


@dataclass(frozen=True)
class Order(Data):
    """``permutation[i]`` is the place that token i of the other order has in the text; ``runs`` are of both orders."""

    permutation: tuple[int, ...]
    runs: tuple[Ordered, ...]


def reordered(ids: Sequence[int], special: Sequence[bool], *, keep_last: bool) -> tuple[int, ...]:
    """The tokens backwards; special ones keep their places, and with ``keep_last`` the last token does.

    A text of two tokens is turned round whole.
    """
    free = [place for place in range(len(ids)) if not special[place]]
    moved = free[:-1] if keep_last and len(free) > 2 else free
    order = list(range(len(ids)))
    for place, source in zip(moved, reversed(moved), strict=True):
        order[place] = source
    return tuple(order)


@torch.no_grad()
def order(model: Transformer, encoding: Encoding, mask_id: int | None = None) -> Order | None:
    """Both orders through the model, and through it without positions; of a decoder also without its mask.

    Without positions attention is permutation-equivariant (Vaswani et al. 2017, section 3.5); a causal mask is not, so
    that a decoder without positions still knows something of the order (Haviv et al. 2022). None where the other
    order is the same text, and for a model that has no positions.
    """
    ids, has = encoding.ids, removable(model.config)
    permutation = reordered(ids, [token.special for token in encoding.tokens], keep_last=model.config.causal)
    if "positions" not in has or [ids[place] for place in permutation] == list(ids):
        return None
    lacking: list[tuple[str, ...]] = [(), ("positions",)]
    if "mask" in has:
        lacking.append(("positions", "mask"))
    asked = len(ids) - 1 if model.config.causal else next((i for i, one in enumerate(ids) if one == mask_id), None)
    if not model.config.predicts_tokens:
        asked = None
    runs = tuple(
        _both(left_out(model, parts) if parts else model, parts, torch.tensor([ids]), permutation, asked)
        for parts in lacking
    )
    return Order(permutation, runs)


def _both(
    model: Transformer, parts: tuple[str, ...], ids: Tensor, permutation: tuple[int, ...], asked: int | None
) -> Ordered:
    device, places = next(model.parameters()).device, list(permutation)
    with evaluated(model):
        first, second = (model.hidden(one.to(device))[0] for one in (ids, ids[:, places]))  # (T, C)
    difference = float((first[places].double() - second.double()).abs().max())
    best: list[tuple[int, float] | None] = [None, None]
    if asked is not None:
        rows = first[asked], second[places.index(asked)]
        found = [probabilities(model.unembed(row)).max(dim=-1) for row in rows]
        best = [(int(one.indices), float(one.values)) for one in found]
    relative = difference / max(1.0, float(first.abs().max()))
    return Ordered(parts, difference, relative, allowed(RUN, first.dtype), *best)
