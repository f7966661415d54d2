"""The state of a head that reads from left to right: what it holds after a token, and which tokens wrote that.

S_t is the sum of what each token s up to t wrote, k_s ⊗ x_s, times what is left of it at t. Shapes: T tokens, S of them
up to a token, K rows and D columns of a state. Everything is float64.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.model.cache import KVCache, StateCache
from tinytf.parts.row import Step
from tinytf.report import About, Report
from tinytf.sentences import percent
from tinytf.steps.operations.written import Written
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed
from tinytf.trace.address import span
from tinytf.trace.faults import require_finite
from tinytf.trace.site import Site
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class State(Report):
    """The ``state`` (K, D) of a ``head`` of a ``layer`` after the token at ``position``.

    ``shares`` (S,) say how much of it each token wrote: the projection of what is left of that on the state, so that
    they sum to 1. ``sizes`` (T,) are the lengths (Frobenius) of the state after each token, and ``kept`` (T,) those of
    what each token left of the state before it, as a share; 0 for the first. ``cached`` is the state in the cache of
    generation after the same tokens.
    """

    KIND = "state"
    EVENTS: ClassVar = {"tokens": "token", "check": "check"}

    layer: int
    head: int
    position: int
    state: Tensor
    shares: Tensor
    sizes: Tensor
    kept: Tensor
    cached: Tensor
    allowed: float

    @property
    def name(self) -> str:
        return f"L{self.layer}H{self.head}"

    def in_a_sentence(self) -> str:
        """Which token wrote most of the state, and how much of what was there the last token kept."""
        tokens = [token.shown for token in self.encoding.tokens]
        after, most = tokens[self.position], int(self.shares.argmax())
        if not self.sizes[self.position]:
            return f"After {after}, the state of {self.name} is empty."
        if not self.position:
            return f"After {after}, the state of {self.name} holds what this token wrote."
        wrote = f"comes most from {tokens[most]} ({percent(float(self.shares[most]))})"
        kept = percent(float(self.kept[self.position]))
        return f"After {after}, the state of {self.name} {wrote}; of what was there before, {after} kept {kept}."

    @property
    def deviation(self) -> float:
        """The largest difference to the cached state, relative to the largest number of either."""
        difference = float((self.state - self.cached).abs().max())
        return difference / float(torch.maximum(self.state.abs(), self.cached.abs()).max()) if difference else 0.0

    @property
    def holds(self) -> bool:
        return self.deviation <= self.allowed

    def fields(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name).tolist() for name in ("shares", "sizes", "kept", "state")}
        check = {"holds": self.holds, "largest_difference": self.deviation, "allowed": self.allowed}
        return {**self.members("layer", "head", "position"), **numbers, "check": check}

    def arrays(self) -> list[Array]:
        """The state."""
        return [Array(f"{self.name}.state", ["row", "column"], lambda: self.state)]

    def stored(self) -> list[Array]:
        """The state, and the shares, sizes and what is kept, by token."""
        by_token = (Array.of(name, ["token"], getattr(self, name)) for name in ("shares", "sizes", "kept"))
        return [*self.arrays(), *by_token]


def state(
    model: TextModel, text: Text, *, layer: int | None = None, head: int = 0, position: str | None = None
) -> State:
    """What the state of a head holds after the token at ``position``, by text or number; by default the last.

    Without a ``layer``, of the first that has one; a ``head`` of -1 is its last. Raises UsageError for a model without
    states, AddressError for a layer without one and for a head or position that does not exist, and TinytfError for
    numbers that are not finite.
    """
    trace = model.trace(text)
    with_state = layers_with_state(trace)
    if not with_state:
        raise UsageError(
            "no layer of this model has a state that its tokens write to", "tinytf trace shows what each layer reads"
        )
    chosen = with_state[0] if layer is None else layer
    if chosen not in with_state:
        raise AddressError(f"layer {chosen} keeps no state", f"layers with a state: {span(with_state)}")
    n_heads = trace.config.at(chosen).n_heads
    if not -n_heads <= head < n_heads:
        raise AddressError(f"layer {chosen} has no head {head}", f"heads are 0 to {n_heads - 1}")
    head %= n_heads
    count = len(trace.tokens)
    at = count - 1 if position is None else trace.index(position, "token", count)
    written = _written(trace, chosen, head)
    states = torch.stack([written.state(token) for token in range(count)])
    whole, sizes = states[at], states.flatten(1).norm(dim=1)
    require_finite(trace, whole)
    old = torch.stack([states[token] - written.new(token) for token in range(count)]).flatten(1).norm(dim=1)
    kept = torch.cat([old.new_zeros(1), (old[1:] / sizes[:-1]).nan_to_num(0.0)])
    shares = written.along(whole, at) / (sizes[at] ** 2 or 1.0)
    cached = _cached(trace, chosen, at)
    own, limit = cached[head].cpu().double(), allowed(RUN, next(trace.model.parameters()).dtype)
    return State(chosen, head, at, whole, shares, sizes, kept, own, limit, about=About(model, trace.encoding))


def layers_with_state(trace: Trace) -> list[int]:
    """The layers that keep a state."""
    return [layer for step, layer in trace.steps.rows if layer is not None and _has_state(step)]


def _has_state(step: Step) -> bool:
    return step.operation is not None and step.operation.has_state


def _written(trace: Trace, layer: int, head: int) -> Written:
    """What the tokens write into the state of a head."""
    site = next(Site(trace, step, at) for step, at in trace.steps.rows if at == layer and _has_state(step))
    of_mixer = (step for step, at in trace.steps.rows if at == layer and step.core and step.mixer == site.step.mixer)
    return site.operation.written(site, [Site(trace, step, layer) for step in of_mixer], head)


def _cached(trace: Trace, layer: int, position: int) -> Tensor:
    """The states of a layer in a cache that has read the tokens up to a position: (H, K, D)."""
    model, ids = trace.model, trace.encoding.ids[: position + 1]
    weight = next(model.parameters())
    cache = KVCache(model.config, len(ids), device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        model.hidden(torch.tensor([ids], device=weight.device), cache=cache)
    kept = cache.layers[layer]
    assert isinstance(kept, StateCache)
    return kept.read[0]
