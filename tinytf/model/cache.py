"""Keys and values of the tokens so far, so that the next one does not compute them again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import MemoryShortage, UsageError
from tinytf.memory import UNASKED, free_bytes, in_gib


@dataclass(frozen=True)
class LayerUse:
    """The memory of one layer's cache; ``shape`` is that of the keys, and of the values."""

    layer: int
    shape: tuple[int, int, int, int]
    used: int
    used_bytes: int
    allocated_bytes: int
    bytes_per_token: int


class KVCache:
    """Room for the keys and values of ``capacity`` tokens in every layer, (B, G, T_max, D) each, allocated at once.

    ``position`` is how many tokens it holds, ``reached`` how many it held at most since it was empty. Keys are stored
    once per group, after RoPE. Raises UsageError for an encoder, where a token also sees later ones, and for a capacity
    that is not between 1 and the context.
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
        shape, widths = (batch, config.n_kv_heads, self.capacity), (config.d_head, config.value_width)
        needed = config.n_layers * math.prod(shape) * sum(widths) * dtype.itemsize
        _require_memory(needed, batch, self.capacity, torch.device(device))
        self.position = self.reached = 0
        self.layers = [
            LayerCache(self, *(torch.zeros(*shape, width, device=device, dtype=dtype) for width in widths))
            for _ in range(config.n_layers)
        ]

    @property
    def batch(self) -> int:
        return self.layers[0].keys.shape[0]

    def require_memory(self, texts: int) -> None:
        """Raise MemoryShortage where the cache of this many texts would not fit into the free memory."""
        one = self.layers[0]
        each = (one.keys.nbytes + one.values.nbytes) // self.batch
        _require_memory(len(self.layers) * (texts - self.batch) * each, texts, self.capacity, one.keys.device)

    def select(self, rows: Sequence[int]) -> None:
        """Keep the texts of ``rows``, in that order; a row may be named several times."""
        if list(rows) == list(range(self.batch)):
            return
        for layer in self.layers:
            layer.select(rows)

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
        found = []
        for number, layer in enumerate(self.layers):
            batch, groups, capacity, width = layer.keys.shape
            each = (layer.keys.nbytes + layer.values.nbytes) // capacity
            taken = self.position
            shape = (batch, groups, capacity, width)
            found.append(LayerUse(number, shape, taken, each * taken, each * capacity, each))
        return found


class LayerCache:
    """The part of one layer."""

    def __init__(self, whole: KVCache, keys: Tensor, values: Tensor) -> None:
        self.whole, self.keys, self.values = whole, keys, values

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
