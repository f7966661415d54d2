"""Whether a model knows the order of its tokens: run them in another order, with positions and without."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.model.transformer import Transformer, evaluating
from tinytf.model.without import left_out, removable
from tinytf.report import Data
from tinytf.steps.operations.softmax import probabilities
from tinytf.text.tokenizer import Encoding
from tinytf.tolerance import RUN, allowed


@dataclass(frozen=True)
class Ordered(Data):
    """A run of both orders through the model without ``lacks``.

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
    """``runs`` of both orders; ``permutation[i]`` is the position in the text of token i of the other order."""

    permutation: tuple[int, ...]
    runs: tuple[Ordered, ...]


def reordered(ids: Sequence[int], special: Sequence[bool], *, keep_last: bool) -> tuple[int, ...]:
    """Reverse the tokens; special tokens stay in place, and with ``keep_last`` the last token too.

    A text of two tokens is always reversed.
    """
    movable = [position for position in range(len(ids)) if not special[position]]
    moved = movable[:-1] if keep_last and len(movable) > 2 else movable
    order = list(range(len(ids)))
    for position, source in zip(moved, reversed(moved), strict=True):
        order[position] = source
    return tuple(order)


@torch.no_grad()
def order(model: Transformer, encoding: Encoding, mask_id: int | None = None) -> Order | None:
    """Run both orders through the model, through it without positions, and for a decoder also without its mask.

    Without positions attention is permutation-equivariant (Vaswani et al. 2017, section 3.5). A causal mask is not, so
    a decoder without positions still knows something of the order (Haviv et al. 2022). None if the other order is the
    same text, and for a model without positions.
    """
    ids, removables = encoding.ids, removable(model.config)
    permutation = reordered(ids, [token.special for token in encoding.tokens], keep_last=model.config.causal)
    if "positions" not in removables or [ids[position] for position in permutation] == list(ids):
        return None
    variants: list[tuple[str, ...]] = [(), ("positions",)]
    if "mask" in removables:
        variants.append(("positions", "mask"))
    predicts_at = (
        len(ids) - 1
        if model.config.causal
        else next((i for i, token_id in enumerate(ids) if token_id == mask_id), None)
    )
    if not model.config.predicts_tokens:
        predicts_at = None
    runs = tuple(
        _run_both(left_out(model, parts) if parts else model, parts, torch.tensor([ids]), permutation, predicts_at)
        for parts in variants
    )
    return Order(permutation, runs)


def _run_both(
    model: Transformer, parts: tuple[str, ...], ids: Tensor, permutation: tuple[int, ...], predicts_at: int | None
) -> Ordered:
    device, positions = next(model.parameters()).device, list(permutation)
    with evaluating(model):
        first, second = (model.hidden(run_ids.to(device))[0] for run_ids in (ids, ids[:, positions]))  # (T, C)
    difference = float((first[positions].double() - second.double()).abs().max())
    best: list[tuple[int, float] | None] = [None, None]
    if predicts_at is not None:
        rows = first[predicts_at], second[positions.index(predicts_at)]
        tops = [probabilities(model.unembed(row)).max(dim=-1) for row in rows]
        best = [(int(run_ids.indices), float(run_ids.values)) for run_ids in tops]
    relative = difference / max(1.0, float(first.abs().max()))
    return Ordered(parts, difference, relative, allowed(RUN, first.dtype), *best)
