"""The attention mask: −∞ where a query may not look."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.steps.operations.operation import Consumer, Operation, Pass, Quantity, Summand, repeats
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


def mask_scores(scaled: Tensor, allowed: Tensor | None) -> Tensor:
    """−∞ where a query may not look; ``allowed`` is boolean and broadcasts to (…, Q, K)."""
    return scaled if allowed is None else scaled.masked_fill(~allowed, -math.inf)


def mask_gradient(g: Tensor, allowed: Tensor | None) -> Tensor:
    """The gradient of the scores: 0 where a score was masked, since −∞ replaced it."""
    return g if allowed is None else g.masked_fill(~allowed, 0.0)


def real_tokens(padding_mask: Tensor, tokens: int) -> Tensor:
    """1 for a real token and 0 for padding, of the last ``tokens``: (B, K) -> (B, 1, T, 1).

    Raises UsageError where several texts share a row: they would mix in a state.
    """
    if padding_mask.dtype is not torch.bool:
        raise UsageError(
            "several texts in one row would mix in the convolutions and states of this model",
            "put each text in a row of its own",
        )
    return padding_mask[:, None, -tokens:, None]


def first_real(padding_mask: Tensor) -> Tensor:
    """The number of the first real token of each text, (B, K) -> (B,).

    Raises UsageError where several texts share a row.
    """
    real_tokens(padding_mask, 1)
    return padding_mask.to(torch.uint8).argmax(dim=-1)


def real_keys(padding_mask: Tensor) -> Tensor:
    """The keys that are real tokens: ``padding_mask`` (B, K), True for a real token -> (B, 1, 1, K).

    Where several texts share a row, ``padding_mask`` holds the number of the text at each token, and a query sees only
    the keys of its own text: (B, 1, Q, K).
    """
    if padding_mask.dtype is torch.bool:
        return padding_mask[:, None, None, :]
    return padding_mask[:, None, :, None] == padding_mask[:, None, None, :]


def chosen_in(allowed: Tensor | None, *chosen: Tensor, heads: int = 0) -> Tensor | None:
    """Of the ``allowed`` keys those that an indexer chose, if there is one: (…, Q, K), with 1 for a chosen key.

    With ``heads`` the choice is of each key head, (…, G, Q, K), for as many query heads.
    """
    for choice in chosen:
        visible = choice != 0
        if heads:
            visible = visible.repeat_interleave(heads // choice.shape[-3], dim=-3)
        elif choice.dim() > 2:
            visible = visible.unsqueeze(-3)
        allowed = visible if allowed is None else allowed & visible
    return allowed


@dataclass(frozen=True)
class Sight:
    """Which keys a query may look at: in a ``causal`` model none after it, with a ``window`` only the last ones.

    A window of W lets the query at t see the keys t − W + 1 … t, and if not causal as many after it; 0 is no window.
    With a ``chunk`` it sees only the keys of its own chunk of that many tokens. Of those keys an indexer leaves it
    ``chosen``, 0 for all; with a ``block``, in whole blocks of so many, of which the ``near`` last are always chosen;
    with ``whole``, in blocks of so many that the query sees all of, and, with a ``tail``, those after the last of them.
    With ``every`` keys are blocks of that many tokens, each at its last one.
    """

    causal: bool
    window: int = 0
    chunk: int = 0
    chosen: int = 0
    block: int = 0
    near: int = 0
    every: int = 0
    whole: int = 0
    tail: bool = True

    @classmethod
    def of(cls, config: ModelConfig) -> "Sight":
        block, whole = (config.index_block, 0) if config.index_by_head else (0, config.index_block)
        return cls(
            not config.looks_ahead,
            config.window,
            config.chunk,
            chosen=0 if config.block_size else config.index_keys,
            block=block,
            near=config.index_near,
            whole=whole,
            tail=config.index_tail,
        )

    def allowed(self, length: int, padding_mask: Tensor | None, device: torch.device, past: int = 0) -> Tensor | None:
        """True where a query may look, whatever an indexer chooses; None where nothing is hidden.

        ``padding_mask`` is as in ``real_keys``. The queries are the last ``length`` of K = past + length tokens. The
        result is (Q, K), or (B, 1, Q, K) with padding.
        """
        allowed, cuts = None, 0 < self.window < past + length
        if self.causal or cuts:
            allowed = torch.ones(length, past + length, dtype=torch.bool, device=device)
            allowed = allowed.tril(past if self.causal else past + self.window - 1)
        if allowed is not None and cuts:
            allowed = allowed.triu(past + 1 - self.window)
        if allowed is not None and 0 < self.chunk < past + length:
            number = torch.arange(past + length, device=device) // self.chunk
            allowed &= number[past:, None] == number
        if allowed is not None and self.every:
            number = torch.arange(1, past + length + 1, device=device)
            if padding_mask is not None:
                number = (number - first_real(padding_mask)[:, None])[:, None, None]  # (B, 1, 1, K)
            allowed = allowed & (number % self.every == 0)
        if padding_mask is None:
            return allowed
        keys = real_keys(padding_mask)
        return keys.expand(-1, 1, length, -1) if allowed is None else keys & allowed

    def first(self, at: int) -> int:
        """The first key that the query at position ``at`` may look at."""
        if self.chunk:
            return at // self.chunk * self.chunk
        return max(0, at + 1 - self.window) if self.window else 0

    def cuts(self, length: int) -> bool:
        """Whether the window, the chunks or the choice hide any key in a text of ``length`` tokens."""
        some = any(0 < most < length for most in (self.window, self.chunk, self.chosen))
        return some or self.every > 1 or not self.tail


@dataclass(frozen=True)
class Mask(Operation):
    """Every score that ``sight`` hides becomes −∞, as does that of a key that an indexer did not choose."""

    sight: Sight

    words = "a mask"
    fused = True
    deciding = (1,)

    def allowed(self, x: Tensor, *chosen: Tensor) -> Tensor | None:
        """Which keys are seen, (Q, K), in scores of this shape, of those that an indexer ``chosen`` if there is one."""
        length, keys = x.shape[-2:]
        allowed = self.sight.allowed(length, None, x.device, keys - length)
        return chosen_in(allowed, *chosen, heads=x.shape[-3] if self.sight.block else 0)

    def forward(self, *inputs: Tensor) -> Tensor:
        return mask_scores(inputs[0], self.allowed(*inputs))

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        if not self.sight.every or now.padding_mask is None:
            return self.forward(*inputs)
        x, *chosen = inputs
        length, keys = x.shape[-2:]
        return mask_scores(x, chosen_in(self.sight.allowed(length, now.padding_mask, x.device, keys - length), *chosen))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        chosen = site.inputs()[1:]
        return (mask_gradient(g, self.allowed(g, *chosen)), *(torch.zeros_like(x) for x in chosen))

    def code(self, site: Site) -> str:
        window = self.sight.window
        hidden = "torch.ones(T, T).triu(1).bool()"
        if window:
            ahead = "" if self.sight.causal else window - 1
            hidden = f"~torch.ones(T, T).tril({ahead}).triu({1 - window}).bool()"
        lines = []
        if self.sight.chunk:
            lines = [f"number = torch.arange(T) // {self.sight.chunk}"]
            hidden += " | (number[:, None] != number)"
        if self.sight.every:
            hidden += f" | ((torch.arange(T) + 1) % {self.sight.every} != 0)"
        each = f".repeat_interleave({repeats(site, 1)}, 0)" if self.sight.block and repeats(site, 1) > 1 else ""
        hidden += "".join(f" | ({chosen}{each} == 0)" for chosen in site.names[1:])
        return "\n".join([*lines, f"{site.variable} = {site.names[0]}.masked_fill({hidden}, -torch.inf)"])

    def arithmetic(self, cell: Cell) -> Working:
        (query, key), window, chunk = cell.index, self.sight.window, self.sight.chunk
        source = cell.source(0, query, key)
        if self.sight.causal and key > query:
            reason = f"masked: key {key} {cell.token(key)} comes after query {query} {cell.token(query)}"
        elif chunk and key // chunk != query // chunk:
            reason = (
                f"masked: key {key} {cell.token(key)} is in chunk {key // chunk}, and the query in {query // chunk}"
            )
        elif window and key <= query - window:
            reason = f"masked: key {key} {cell.token(key)} is {query - key} back, and the window sees {window - 1} back"
        elif window and key >= query + window:
            reason = (
                f"masked: key {key} {cell.token(key)} is {key - query} ahead, and the window sees {window - 1} ahead"
            )
        elif self.sight.every and (key + 1) % self.sight.every:
            reason = f"masked: no block of {self.sight.every} tokens ends at key {key} {cell.token(key)}"
        elif any(not cell.source(number, query, key).value for number in range(1, len(cell.site.source_steps))):
            reason = f"masked: the indexer did not choose key {key} {cell.token(key)}"
        else:
            visible = f"visible: key {key} {cell.token(key)} does not come after query {query} {cell.token(query)}"
            if not self.sight.causal:
                visible = f"visible: key {key} {cell.token(key)} is in the window of query {query} {cell.token(query)}"
            value = Value("masked", source.value, f"{source.step.name}, as it is")
            return Working(((source, 2),), after=(value,), leads=(source,), note=visible)
        after = (Value("masked", -math.inf, "−∞, whatever the score"),)
        return Working(((source, 2),), before=(Value(source.step.name, source.value),), after=after, note=reason)

    def summand(self, to: Consumer) -> Summand:
        allowed = self.allowed(to.g, *to.site.inputs()[1:])  # None where the text is shorter than the window
        seen = allowed[to.row.head or 0] if allowed is not None and allowed.dim() > 2 else allowed
        row = torch.ones_like(to.incoming.values) if seen is None else seen[to.row.place]
        visible = row.to(to.g.dtype)
        quantities = (to.incoming, Quantity("visible", visible))
        return Summand(
            f"{to.symbol} ⊙ visible", to.incoming.values * visible, ("visible is 0 where masked",), quantities
        )
