"""Attention rollout: the share of each input token in a position after several layers, by attention alone.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers": the product of the layers' weights, each averaged
with the residual connection. Shapes: H heads, T tokens (Q and K where query and key differ). Everything is float64,
because small numbers of a product of many maps matter too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.memory import require_free
from tinytf.nearest import did_you_mean
from tinytf.report import About, Report
from tinytf.sentences import percent
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.address import span
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Text, Trace

COMBINED: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda weights: weights.mean(dim=0),
    "max": lambda weights: weights.amax(dim=0),
    "min": lambda weights: weights.amin(dim=0),
}
"""Functions that combine the heads of a layer into one map, (H, Q, K) -> (Q, K)."""

ALLOWED = 1e-9
"""How far from 1 the sum of a row of a rollout may be."""


@dataclass(frozen=True)
class Rollout(Report):
    """``shares[query, key]`` is the share of input token ``key`` in position ``query`` after ``layer``: rows sum to 1.

    ``heads`` says how the heads of a layer were combined. ``maps`` are the multiplied layers, each ½·A + ½·I. ``query``
    is the position to read.
    """

    KIND = "rollout"
    EVENTS: ClassVar = {"tokens": "token", "rollouts": "position", "check": "check"}

    heads: str
    layer: int
    shares: Tensor
    maps: tuple[Tensor, ...]
    query: int

    def in_a_sentence(self) -> str:
        """Of which token the position read has the largest share."""
        tokens, share = self.encoding.tokens, self.shares[self.query].max(dim=0)
        most = tokens[int(share.indices)].shown
        reader, held = tokens[self.query].shown, percent(float(share.values))
        return f"Through all layers up to L{self.layer}, attention brings {reader} most from {most} ({held})."

    def fields(self) -> dict[str, Any]:
        return {
            **self.members("heads", "layer", "query"),
            "rollout": self.shares[self.query].tolist(),
            "rollouts": self.shares.tolist(),
            "check": {"holds": self.holds, "largest_difference": self.deviation, "allowed": ALLOWED},
        }

    def itemised(self) -> dict[str, Any]:
        data = self.to_dict()
        rows = [{"query": query, "values": values} for query, values in enumerate(data["rollouts"])]
        return {**data, "rollouts": rows}

    def stored(self) -> list[Array]:
        """The rollout (T, T), and the maps of the layers, whose product it is."""
        return self.arrays() + [Array.of(f"L{n}.map", ["query", "key"], weights) for n, weights in enumerate(self.maps)]

    def arrays(self) -> list[Array]:
        """The rollout."""
        return [Array("rollout", ["query", "key"], lambda: self.shares)]

    @property
    def deviation(self) -> float:
        """The largest distance of a row's sum from 1."""
        return float((self.shares.sum(dim=-1) - 1).abs().max())

    @property
    def holds(self) -> bool:
        return self.deviation <= ALLOWED and bool((self.shares >= 0).all())


def rollout(
    model: TextModel,
    text: Text,
    *,
    heads: str = "mean",
    layer: int | None = None,
    query: str | None = None,
    force: bool = False,
) -> Rollout:
    """The share of each token of a text, or of its trace, that attention brings to every position, up to ``layer``.

    ``heads`` is one of COMBINED; ``query`` is the position to read, by text or number, by default ``default_query``.
    Raises UsageError for another ``heads``, AddressError for a layer that does not exist or was not recorded,
    TinytfError for weights that are not finite, and MemoryShortage if the maps do not fit into the free memory, unless
    ``force`` is true.
    """
    trace = model.trace(text, force=force)
    size = len(trace.tokens)
    read_query = default_query(trace, model.tokenizer.mask_id) if query is None else trace.index(query, "query", size)
    if heads not in COMBINED:
        raise UsageError(f"heads cannot be combined by {heads!r}", did_you_mean(heads, COMBINED))
    last = trace.config.n_layers - 1
    stop = last if layer is None else layer
    if not 0 <= stop <= last:
        raise AddressError(f"there is no layer {stop}", f"layers are 0 to {last}")
    if without_attention := sorted(set(range(stop + 1)) - set(trace.steps.attention_layers)):
        raise UsageError(
            f"layers {span(without_attention)} have no attention weights, so what flows through them is not known",
            "tinytf trace shows what each layer reads",
        )
    if blocks := [layer for layer in range(stop + 1) if trace.config.at(layer).block_size]:
        raise UsageError(
            f"layers {span(blocks)} also look at blocks of tokens, whose weights do not say what flows from each token",
            "tinytf trace shows the weights of both",
        )
    if not force:
        # All maps are kept. One layer's heads take four float32 tensors, of scores and weights, and float64 weights.
        layers = stop + 1
        require_free(
            f"the maps of {size:,} tokens in {layers} layers take",
            size**2 * (8 * (layers + 3) + trace.config.n_heads * (4 * 4 + 8)),
            torch.device("cpu"),
            "take a shorter text, or stop at a --layer; --force continues",
        )
    maps = tuple(_maps(trace, heads, stop))
    shares = torch.eye(size, dtype=torch.float64)
    for mixed in maps:
        shares = mixed @ shares
    about = About(model, trace.encoding)
    return Rollout(heads, stop, shares, maps, read_query, about=about)


def _maps(trace: Trace, heads: str, stop: int) -> Iterator[Tensor]:
    """Yield ½·A + ½·I (Q, K) of each layer: half of a layer's output comes through the residual connection.

    Each row is divided by its sum, since the largest or smallest weights of several heads do not sum to 1, nor do
    weights beside a sink.
    """
    for layer in range(stop + 1):
        name = trace.steps.weights
        weights = trace.step(name, layer).cpu().double()  # (H, Q, K)
        require_finite(trace, weights)
        combined = COMBINED[heads](weights)
        mixed = (combined + torch.eye(len(combined), dtype=torch.float64)) / 2
        yield mixed / mixed.sum(dim=-1, keepdim=True)


def default_query(trace: Trace, mask_id: int | None) -> int:
    """The default position to read: a decoder's last token, an encoder's first mask.

    Without a mask it is the last token that is not special, or the last token if all are special.
    """
    last = len(trace.tokens) - 1
    if trace.config.causal:
        return last
    masks = (position for position, token in enumerate(trace.tokens) if token.id == mask_id)
    ordinary = (position for position in range(last, -1, -1) if not trace.tokens[position].special)
    return next(masks, next(ordinary, last))
