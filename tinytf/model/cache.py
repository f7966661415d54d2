"""What layers keep of the tokens so far, so that the next does not compute them again: keys and values, or states."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import MemoryShortage, UsageError
from tinytf.memory import UNASKED, free_bytes, in_gib


@dataclass(frozen=True)
class LayerUse:
    """The memory of one layer's cache; ``shape`` is that of the keys, and of the values, empty of a state."""

    layer: int
    shape: tuple[int, ...]
    used: int
    used_bytes: int
    allocated_bytes: int
    bytes_per_token: int


class KVCache:
    """Room for the keys and values of ``capacity`` tokens in every layer, (B, G, T_max, D) each, allocated at once.

    Layers whose mixer keeps a state have that in their place (StateCache). ``position`` is how many tokens it holds,
    ``reached`` how many it held at most since it was empty. Keys are stored once per group, after RoPE. Raises
    UsageError for an encoder, where a token also sees later ones, and for a capacity that is not between 1 and the
    context.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int | None = None,
        *,
        batch: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        require_decoder(config)
        if config.looks_ahead:
            raise UsageError("without its mask every token sees those after it, so nothing can be cached")
        self._switch = config.rope_switch
        self.capacity = config.context if capacity is None else capacity
        if not 1 <= self.capacity <= config.context:
            raise UsageError(
                f"a cache of {self.capacity:,} tokens is not between 1 and the model's context of {config.context:,}"
            )
        own = [config.at(layer) for layer in range(config.n_layers)]
        sizes = [(batch, one.n_kv_heads, self.capacity, one.d_head + one.value_width) for one in own]
        kept = [batch * block.mixer.state_size for block in config.blocks]
        needed = sum(few or math.prod(size) for few, size in zip(kept, sizes, strict=True)) * dtype.itemsize
        _require_memory(needed, batch, self.capacity, torch.device(device))
        self.position, self.reached, self.batch, self.device = 0, 0, batch, torch.device(device)
        self.layers = [
            StateCache(self, few * dtype.itemsize // batch)
            if few
            else LayerCache(
                self,
                *(
                    torch.zeros(*size[:-1], width, device=device, dtype=dtype)
                    for width in (one.d_head, one.value_width)
                ),
            )
            for few, size, one in zip(kept, sizes, own, strict=True)
        ]

    def require_memory(self, texts: int) -> None:
        """Raise MemoryShortage where the cache of this many texts would not fit into the free memory."""
        each = sum(layer.allocated for layer in self.layers) // self.batch
        _require_memory((texts - self.batch) * each, texts, self.capacity, self.device)

    def select(self, rows: Sequence[int]) -> None:
        """Keep the texts of ``rows``, in that order; a row may be named several times."""
        if list(rows) == list(range(self.batch)):
            return
        for layer in self.layers:
            layer.select(rows)
        self.batch = len(rows)

    def clear(self) -> None:
        """Forget every token; the memory stays."""
        self.position = self.reached = 0

    def require_room(self, batch: int, tokens: int) -> None:
        """Raise UsageError where ``tokens`` more do not fit, or for another number of texts."""
        if batch != self.batch:
            raise UsageError(f"{batch} texts cannot continue in a cache that was made for {self.batch}")
        if self.position + tokens > self.capacity:
            raise UsageError(
                f"the cache has room for {self.capacity:,} tokens: it holds {self.position:,}, {tokens:,} more came",
                "make a larger one, up to the model's context",
            )

    def is_turned(self, length: int) -> bool:
        """Whether LongRoPE turns a text of ``length`` by other angles than the keys that are held."""
        return 0 < self.reached <= self._switch < length

    def advance(self, tokens: int) -> None:
        """Count the tokens that every layer has stored; until then an interrupted pass leaves the cache as it was."""
        self.position += tokens
        self.reached = max(self.reached, self.position)

    def use(self) -> list[LayerUse]:
        """How much of every layer's memory is in use."""
        return [layer.use(number) for number, layer in enumerate(self.layers)]


class LayerCache:
    """The part of one layer."""

    def __init__(self, whole: KVCache, keys: Tensor, values: Tensor) -> None:
        self.whole, self.keys, self.values = whole, keys, values

    @property
    def allocated(self) -> int:
        """Its bytes."""
        return self.keys.nbytes + self.values.nbytes

    def use(self, number: int) -> LayerUse:
        """How much of it is in use; ``number`` is that of the layer."""
        batch, groups, capacity, width = self.keys.shape
        each, taken = self.allocated // capacity, self.whole.position
        return LayerUse(number, (batch, groups, capacity, width), taken, each * taken, each * capacity, each)

    def select(self, rows: Sequence[int]) -> None:
        """Keep some texts; in the same memory where their number stays."""
        used = self.whole.position
        for name in ("keys", "values"):
            stored: Tensor = getattr(self, name)
            kept = stored[list(rows), :, :used]  # (rows, G, position, D), a copy
            if len(rows) != len(stored):
                stored = stored.new_zeros(len(rows), *stored.shape[1:])
                setattr(self, name, stored)
            stored[:, :, :used] = kept

    def extend(self, what: str, new: Tensor) -> Tensor:
        """Store the ``keys`` or ``values`` of T new tokens, (B, G, T, D), and return all so far, as a view."""
        stored: Tensor = getattr(self, what)
        start = self.whole.position
        stored[:, :, start : start + new.shape[2]] = new
        return stored[:, :, : start + new.shape[2]]


class StateCache:
    """The part of a layer that keeps states, each under the module or kernel that makes it; it does not grow.

    A state is kept after the last token and after the one before it, and that from which a pass began, so that one
    that was interrupted, or goes one token back, finds what it continues from.
    """

    def __init__(self, whole: KVCache, needed: int) -> None:
        self.whole, self.needed = whole, needed
        self._states: dict[Any, dict[int, Tensor]] = {}

    def recall(self, key: Any) -> Tensor | None:
        """The state (B, …) after the tokens that are held; None where there are none.

        Raises UsageError where the cache went back further than it can.
        """
        if not self.whole.position:
            return None
        if self.whole.position not in self._states.get(key, {}):
            raise UsageError("a state of so many tokens ago is not kept", "clear the cache, and compute the text again")
        return self._states[key][self.whole.position]

    def remember(self, key: Any, tokens: int, before: Tensor, state: Tensor) -> None:
        """Keep the state after ``tokens`` more, and that ``before`` the last of them."""
        at = self.whole.position
        began = {at: self._states[key][at]} if at else {}
        self._states[key] = {**began, at + tokens - 1: before, at + tokens: state}

    @property
    def allocated(self) -> int:
        """Bytes of one state of each kind; what is foreseen of them before there are any."""
        last = (states[max(states)].nbytes for states in self._states.values())
        return sum(last) or self.needed * self.whole.batch

    def use(self, number: int) -> LayerUse:
        """What it holds; ``number`` is that of the layer."""
        return LayerUse(number, (), self.whole.position, self.allocated, self.allocated, 0)

    def select(self, rows: Sequence[int]) -> None:
        """Keep some texts."""
        self._states = {key: {n: one[list(rows)] for n, one in states.items()} for key, states in self._states.items()}


def _require_memory(needed: int, texts: int, tokens: int, device: torch.device) -> None:
    if needed >= UNASKED and needed > (free := free_bytes(device)):
        raise MemoryShortage(
            f"a cache of {tokens:,} tokens for {texts} text{'s' if texts > 1 else ''} takes {in_gib(needed)}, "
            f"and {in_gib(free)} are free",
            "ask for fewer tokens or texts, or use --no-cache",
        )


def require_decoder(config: ModelConfig) -> None:
    """Raise UsageError for a model that does not predict the next token."""
    if config.labels:
        raise UsageError(
            f"the model gives classes ({config.head.labels_in_words}) and predicts no token", "trace shows its classes"
        )
    if not config.causal:
        raise UsageError("the model is an encoder and predicts masked tokens", "use trace with [MASK] in the text")
