"""Kernels that replace several rows of a program while none of these is hooked.

Shapes: B batch, T tokens, H query heads, G key-value heads, D head width, E experts, F units, C d_model, N tokens sent.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.steps.operations.channel_delta import DecayedFits, channel_delta_rule
from tinytf.steps.operations.choose import Choose
from tinytf.steps.operations.choose_by_id import ChooseById
from tinytf.steps.operations.delta import Write, delta_rule
from tinytf.steps.operations.expert_linear import used_experts
from tinytf.steps.operations.fade_at_rate import FadeAtRate
from tinytf.steps.operations.mask import Sight, chosen_in, real_keys, real_tokens
from tinytf.steps.operations.mix import Mix
from tinytf.steps.operations.operation import Operation, Pass, wide
from tinytf.steps.operations.scale import Scale
from tinytf.steps.operations.scores import Scores
from tinytf.steps.operations.unroll import Unroll, state_space
from tinytf.steps.operations.weigh import SumExperts
from tinytf.steps.program import Fused, Instruction


class FusedAttention:
    """Queries, keys and values to head outputs by torch's scaled_dot_product_attention, without storing (Q, K) maps."""

    def __init__(self, sight: Sight | None, divisor: float) -> None:
        """``sight`` is None for keys of another stack, of which every query sees all."""
        self.sight, self.scale = sight, 1 / divisor

    def __call__(self, now: Pass, q: Tensor, k: Tensor, *rest: Tensor) -> Tensor:
        """q (B, H, Q, D), k and v (B, G, K, D) -> (B, H, Q, D); before v, the keys that an indexer chose."""
        *chosen, v = rest
        if q.is_cpu and q.dtype is torch.bfloat16 and q.requires_grad:
            # torch's backward pass of it is five times as slow in bfloat16 as in float32.
            with torch.autocast("cpu", enabled=False):
                return self(now, q.float(), k.float(), *chosen, v.float()).to(q.dtype)
        if self.sight is None:
            allowed = None if now.source_mask is None else real_keys(now.source_mask)
            grouped = q.shape[1] != k.shape[1]
            return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=self.scale, enable_gqa=grouped)
        grouped, length, past = q.shape[1] != k.shape[1], q.shape[2], k.shape[2] - q.shape[2]
        if now.padding_mask is None and not self.sight.cuts(k.shape[2]) and (not past or length == 1):
            causal = self.sight.causal and not past  # a single query after cached tokens sees all of them
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=self.scale, enable_gqa=grouped)
        heads = q.shape[1] if self.sight.block else 0
        allowed = chosen_in(self.sight.allowed(length, now.padding_mask, q.device, past), *chosen, heads=heads)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=self.scale, enable_gqa=grouped)


class FusedExperts:
    """From a router to the sum over experts: each expert computes only the tokens that are sent to it.

    Only the routes have an axis of experts.
    """

    def __init__(self, rows: Sequence[Instruction]) -> None:
        self.routing_rows = [row for row in rows[:-1] if not row.step.of_experts]
        self.expert_rows = [row for row in rows if row.step.of_experts]
        self.router, self.choice = (
            rows[0].inputs[0],
            next(row.name for row in rows if isinstance(row.operation, Choose | ChooseById)),
        )

    def __call__(self, now: Pass, router: Tensor, x: Tensor) -> Tensor:
        """The router's logits (B, T, E) and x (B, T, C) -> (B, T, C)."""
        tokens = x.flatten(0, -2)  # (B, T, C) -> (B·T, C)
        routed, total = {self.router: router.flatten(0, -2)}, torch.zeros_like(tokens)
        for row in self.routing_rows:
            routed[row.name] = row.operation.run(row.module, now, *(routed[name] for name in row.inputs))
        for number in used_experts(routed[self.choice]):
            sent = routed[self.choice][:, number].nonzero()[:, 0]  # (N,)
            values, expert_tokens = {name: tensor[sent, number] for name, tensor in routed.items()}, tokens[sent]
            for row in self.expert_rows:
                inputs = (values.get(name, expert_tokens) for name in row.inputs)
                values[row.name] = row.operation.for_expert(row.module, number, *inputs)
            total = total.index_add(0, sent, values[self.expert_rows[-1].name])
        return total.view(x.shape)


class FusedState(ABC):
    """A recurrence, computed by its state, some tokens at a time."""

    @abstractmethod
    def scan(self, state: Tensor | None, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs (B, H, T, D) of the tokens of ``inputs``, and the state after them."""

    def __call__(self, now: Pass, *inputs: Tensor) -> Tensor:
        """Inputs (B, G or H, T, …) -> (B, H, T, D)."""
        dtype = inputs[0].dtype
        if now.cache is None:
            return self.scan(None, *inputs)[0].to(dtype)
        last = inputs[0].shape[-2] - 1
        before, after = ([x[:, :, at] for x in inputs] for at in (slice(0, last), slice(last, None)))
        earlier_outputs, state_before = self.scan(now.cache.recall(self), *before)
        last_output, state = self.scan(state_before, *after)
        now.cache.remember(self, last + 1, state_before, state)
        return torch.cat((earlier_outputs, last_output), dim=2).to(dtype)


class FusedDelta(FusedState):
    """A gated delta rule from writing to reading."""

    def __init__(self, rows: Sequence[Instruction]) -> None:
        (self.divisor,) = (row.operation.divisor for row in rows if isinstance(row.operation, Scale))

    def scan(self, state: Tensor | None, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        k, v, beta, decay, q = inputs
        return delta_rule(q, k, v, beta, decay, state, self.divisor)


class FusedChannelDelta(FusedDelta):
    """Kimi delta attention, from the fits of keys to reading."""

    def scan(self, state: Tensor | None, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        k, decay, v, beta, q = inputs
        return channel_delta_rule(k, decay, v, beta, q, state, self.divisor)


class FusedUnroll(FusedState):
    """A state space from the fits of queries and keys to what is read."""

    def __init__(self, rows: Sequence[Instruction]) -> None:
        (self.row,) = (row for row in rows if isinstance(row.operation, Unroll))

    def scan(self, state: Tensor | None, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        q, k, decay, dt, v = inputs
        read, state = state_space(q, k, v, dt, decay, state)
        return read + wide(self.row.module.get_parameter("weight"))[:, None, None] * wide(v), state


class FusedFade(FusedState):
    """Lightning attention from the fits of queries and keys to what is read."""

    def __init__(self, rows: Sequence[Instruction]) -> None:
        (self.fade,) = (row.operation for row in rows if isinstance(row.operation, FadeAtRate))

    def __call__(self, now: Pass, *inputs: Tensor) -> Tensor:
        q, k, v = inputs
        return super().__call__(
            now, q, k if now.padding_mask is None else k * real_tokens(now.padding_mask, k.shape[-2]), v
        )

    def scan(self, state: Tensor | None, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = inputs
        return self.fade.scan(q, k, v, state)


_STATES: dict[type[Operation], Callable[[Sequence[Instruction]], FusedState]] = {
    Write: FusedDelta,
    DecayedFits: FusedChannelDelta,
    Unroll: FusedUnroll,
    FadeAtRate: FusedFade,
}
"""The kernels of recurrences, by an operation among the rows that each replaces."""


def states(rows: Sequence[Instruction]) -> Iterator[Fused]:
    """Find the rows of a layer whose recurrence can be computed by its state."""
    kernel = next((_STATES[type(row.operation)] for row in rows if type(row.operation) in _STATES), None)
    if kernel is not None:
        first = next(
            number for number, row in enumerate(rows) if isinstance(row.operation, Write | DecayedFits | Scores)
        )
        last = next(number for number, row in enumerate(rows) if isinstance(row.operation, Mix))
        yield Fused(rows[first : last + 1], kernel(rows[first : last + 1]), remembers=False)


def kernels(config: ModelConfig, rows: Sequence[Instruction]) -> Iterator[Fused]:
    """Find all rows of a layer that kernels can replace; ``config`` is the layer's configuration."""
    yield from attention(config, rows)
    yield from states(rows)
    yield from experts(rows)


def attention(config: ModelConfig, rows: Sequence[Instruction]) -> Iterator[Fused]:
    """Find the rows from scores to head outputs, if torch's fused attention computes all of them."""
    cores = [row for row in rows if row.step.core]
    own = [row for row in cores if not row.name.startswith("cross.")]
    crossing = [row for row in cores if row not in own]
    for core, sight in ((own, Sight.of(config)), (crossing, None)):
        if core and all(row.operation.fused for row in core):
            yield Fused(core, FusedAttention(sight, config.score_divisor))


def experts(rows: Sequence[Instruction]) -> Iterator[Fused]:
    """Find the rows from after the router to the sum over experts."""
    feed_forward = [row for row in rows if row.step.role == "ffn"]
    mixed_rows = [row for row in feed_forward if row.step.in_experts or isinstance(row.operation, SumExperts)]
    if mixed_rows:
        yield Fused(mixed_rows, FusedExperts(mixed_rows))
