"""Attention rollout: how much of each input token is in a position after several layers, by attention alone.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers". Shapes: H heads, T tokens (Q and K where query and
key differ). Everything is float64: a product of many maps is asked for its small numbers too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.analysis.attention_flow import AttentionFlow, Progress, attention_flow
from tinytf.errors import AddressError, MemoryShortage, TinytfError, UsageError
from tinytf.memory import UNASKED, free_bytes, in_gib
from tinytf.nearest import did_you_mean
from tinytf.trace.trace import Trace

COMBINED: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda weights: weights.mean(dim=0),
    "max": lambda weights: weights.amax(dim=0),
    "min": lambda weights: weights.amin(dim=0),
}
"""How the heads of a layer become one map, (H, Q, K) -> (Q, K)."""

ALLOWED = 1e-9
"""How far from 1 a row of a rollout may sum."""


@dataclass(frozen=True)
class Rollout:
    """``shares[query, key]`` is the share of input token ``key`` in position ``query`` behind ``layer``: rows sum to 1.

    ``heads`` says how those of a layer were combined. ``maps`` are the layers that were multiplied, each ½·A + ½·I.
    ``flow`` is the attention flow through the same maps, where it was asked for.
    """

    heads: str
    layer: int
    shares: Tensor
    maps: tuple[Tensor, ...]
    flow: AttentionFlow | None = None

    @property
    def deviation(self) -> float:
        """How far the sum of a row is from 1, at most."""
        return float((self.shares.sum(dim=-1) - 1).abs().max())

    @property
    def holds(self) -> bool:
        return self.deviation <= ALLOWED and bool((self.shares >= 0).all())


def rollout(
    trace: Trace,
    *,
    heads: str = "mean",
    layer: int | None = None,
    flow: Sequence[int] = (),
    force: bool = False,
    progress: Progress = lambda done, of: None,
) -> Rollout:
    """Multiply the maps of the layers of a trace, the first to ``layer`` (the last one without it).

    ``heads`` is one of COMBINED; ``flow`` are positions to search the attention flow to, of which ``progress`` hears.
    Raises UsageError for another word, AddressError for a layer that is not there or was not recorded, and TinytfError
    where weights are no numbers: nothing is put in the place of what is missing. MemoryShortage where the maps would
    not fit into the free memory, unless ``force`` is true. Also as ``attention_flow``.
    """
    if heads not in COMBINED:
        raise UsageError(f"heads cannot be combined by {heads!r}", did_you_mean(heads, COMBINED))
    last = trace.config.n_layers - 1
    stop = last if layer is None else layer
    if not 0 <= stop <= last:
        raise AddressError(f"there is no layer {stop}", f"layers are 0 to {last}")
    if not force:
        _require_room(len(trace.tokens), stop + 1, trace.config.n_heads)
    maps = tuple(_maps(trace, heads, stop))
    shares = torch.eye(len(trace.tokens), dtype=torch.float64)
    for mixed in maps:
        shares = mixed @ shares
    return Rollout(heads, stop, shares, maps, attention_flow(maps, flow, progress) if flow else None)


def _require_room(tokens: int, layers: int, heads: int) -> None:
    """The maps are kept; of one layer's heads there are scores and weights, four times, and the weights in float64."""
    needed = tokens**2 * (8 * (layers + 3) + heads * (4 * 4 + 8))
    free = free_bytes(torch.device("cpu"))
    if needed > UNASKED and needed > free:
        raise MemoryShortage(
            f"the maps of {tokens:,} tokens in {layers} layers take {in_gib(needed)}, and {in_gib(free)} are free",
            "take a shorter text, or stop at a --layer; --force goes on",
        )


def _maps(trace: Trace, heads: str, stop: int) -> Iterator[Tensor]:
    """Of each layer ½·A + ½·I (Q, K): half of what leaves a layer came in through the residual connection.

    The largest, or smallest, weights of several heads do not sum to 1: each row is divided by its sum.
    """
    for layer in range(stop + 1):
        weights = trace.step("weights", layer).cpu().double()  # (H, Q, K)
        if not weights.isfinite().all():
            raise TinytfError(
                f"L{layer}.weights are not all numbers", "tinytf trace --fail-on nan finds the first step"
            )
        combined = COMBINED[heads](weights)
        mixed = (combined + torch.eye(len(combined), dtype=torch.float64)) / 2
        yield mixed / mixed.sum(dim=-1, keepdim=True)


def default_query(trace: Trace, mask_id: int | None) -> int:
    """The position that a text is read for: the last token of a decoder; of an encoder the first mask.

    Without a mask it is the last token that is not special, or the last one where all are.
    """
    last = len(trace.tokens) - 1
    if trace.config.causal:
        return last
    masks = (place for place, token in enumerate(trace.tokens) if token.id == mask_id)
    plain = (place for place in range(last, -1, -1) if not trace.tokens[place].special)
    return next(masks, next(plain, last))
