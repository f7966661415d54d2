"""The cache of a decoder: keys and values, or states, of the tokens so far, so that they are not computed again."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import MemoryShortage, UsageError
from tinytf.memory import UNASKED, free_bytes, in_gib
from tinytf.parts import added_conv, ngrams


@dataclass(frozen=True)
class LayerUse:
    """The memory of one layer's cache; ``shape`` is the shape of keys and of values, empty for a state.

    The bytes hold what is kept of a source too, of which ``bytes_per_token`` knows nothing.
    """

    layer: int
    shape: tuple[int, ...]
    used: int
    used_bytes: int
    allocated_bytes: int
    bytes_per_token: int


class KVCache:
    """Room for the keys and values of ``capacity`` tokens in every layer, (B, G, T_max, D) each, allocated at once.

    Layers whose mixer has a state store that instead (StateCache). ``position`` is how many tokens the cache holds,
    ``reached`` the most that it has held since it was last empty. Keys are stored once per group, after RoPE. Raises
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
            raise UsageError("without its mask every token sees later ones, so nothing can be cached")
        self._turned_alike_from = config.turned_alike_from
        self.capacity = config.context if capacity is None else capacity
        if not 1 <= self.capacity <= config.context:
            raise UsageError(
                f"a cache of {self.capacity:,} tokens is not between 1 and the model's context of {config.context:,}"
            )
        shapes = [_shapes(config.at(layer), batch, self.capacity) for layer in range(config.n_layers)]
        states = [batch * block.mixer.state_size for block in config.blocks]
        layers = [config.at(layer) for layer in range(config.n_layers)]
        beside = [batch * (ngrams.windows_of(layer) + added_conv.windows_of(layer)) for layer in layers]
        numbers = (state or sum(map(math.prod, of.values())) for state, of in zip(states, shapes, strict=True))
        _require_memory(sum((*numbers, *beside)) * dtype.itemsize, batch, self.capacity, torch.device(device))
        self.position, self.reached, self.batch, self.device = 0, 0, batch, torch.device(device)
        # by edit, its step of all tokens so far as the model computed it and as the later steps took it
        self.edits: dict[Any, tuple[Tensor, Tensor]] = {}
        self.layers = [
            StateCache(self, (state + windows) * dtype.itemsize // batch)
            if state
            else LayerCache(self, **{name: torch.zeros(of[name], device=device, dtype=dtype) for name in of})
            for state, windows, of in zip(states, beside, shapes, strict=True)
        ]

    def require_memory(self, texts: int) -> None:
        """Raise MemoryShortage if the cache of this many texts would not fit into the free memory."""
        text_bytes = sum(layer.allocated for layer in self.layers) // self.batch
        _require_memory((texts - self.batch) * text_bytes, texts, self.capacity, self.device)

    def select(self, rows: Sequence[int]) -> None:
        """Keep the texts of ``rows``, in that order; a row may occur several times."""
        if list(rows) == list(range(self.batch)):
            return
        for layer in self.layers:
            layer.select(rows)
        self.edits = {key: (old[list(rows)], new[list(rows)]) for key, (old, new) in self.edits.items()}
        self.batch = len(rows)

    def clear(self) -> None:
        """Forget every token; the memory stays allocated."""
        self.position = self.reached = 0
        self.edits.clear()

    def require_room(self, batch: int, tokens: int) -> None:
        """Raise UsageError if ``tokens`` more do not fit, or for another number of texts."""
        if batch != self.batch:
            raise UsageError(f"{batch} texts cannot continue in a cache for {self.batch}")
        if self.position + tokens > self.capacity:
            raise UsageError(
                f"the cache has room for {self.capacity:,} tokens: it holds {self.position:,}, {tokens:,} more came",
                "make a larger one, up to the model's context",
            )

    def is_turned(self, length: int) -> bool:
        """Whether a text of ``length`` tokens is turned by other angles than the cached keys."""
        return 0 < self.reached < self._turned_alike_from(length)

    def advance(self, tokens: int) -> None:
        """Count the tokens that every layer has stored; an interrupted pass before this call changes nothing."""
        self.position += tokens
        self.reached = max(self.reached, self.position)

    def use(self) -> list[LayerUse]:
        """The use of every layer's memory."""
        return [layer.use(number) for number, layer in enumerate(self.layers)]


def _shapes(layer: ModelConfig, batch: int, capacity: int) -> dict[str, tuple[int, ...]]:
    """The shapes of what a layer with attention stores, by name."""
    of_head = (batch, layer.n_kv_heads, capacity)
    sizes, indexed = layer.sizes, layer.index_keys > 0 and not layer.shares_index
    compressed = layer.block_size or layer.index_pooled  # of the tokens that blocks are made of
    widths = {"index_keys": layer.index_width} if indexed and not compressed else {}
    if layer.block_size:
        widths |= dict.fromkeys(("block_content", "block_scores"), sizes["d_block"])
    if compressed and indexed:
        widths |= dict.fromkeys(("index_content", "index_scores"), sizes["d_index_block"])
    return {
        "keys": (*of_head, layer.d_head),
        "values": (*of_head, layer.value_width),
        **{name: (batch, capacity, width) for name, width in widths.items()},
    }


class _OfOneLayer:
    """What the cache keeps of one layer; ``owner`` counts the tokens.

    States, such as the window of a convolution, are stored under the module or kernel that computes each; their size
    does not grow. It holds each state after the last token, after the one before it, and at the start of the last pass,
    so that the cache can continue after an interrupted pass or one token back.
    """

    def __init__(self, owner: KVCache) -> None:
        self.owner, self._once = owner, dict[str, Tensor]()
        self._states: dict[Any, dict[int, Tensor]] = {}

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """What no token of the text changes, such as keys of a source: computed with the first tokens."""
        if not self.owner.position or name not in self._once:
            self._once[name] = compute()
        return self._once[name]

    def select(self, rows: Sequence[int]) -> None:
        """Keep the texts of ``rows``."""
        self._once = {name: kept[list(rows)] for name, kept in self._once.items()}
        self._states = {
            key: {n: state[list(rows)] for n, state in states.items()} for key, states in self._states.items()
        }

    def recall(self, key: Any) -> Tensor | None:
        """The state (B, …) after the cached tokens; None for an empty cache.

        Raises UsageError if the cache went back further than its states reach.
        """
        if not self.owner.position:
            return None
        if self.owner.position not in self._states.get(key, {}):
            raise UsageError("the state that far back is not cached", "clear the cache, and compute the text again")
        return self._states[key][self.owner.position]

    def remember(self, key: Any, tokens: int, before: Tensor, state: Tensor) -> None:
        """Store the state after ``tokens`` more tokens, and the one ``before`` the last of them."""
        position = self.owner.position
        start = {position: self._states[key][position]} if position else {}
        self._states[key] = {**start, position + tokens - 1: before, position + tokens: state}

    @property
    def _state_bytes(self) -> int:
        """The bytes of one state of each kind."""
        return sum(states[max(states)].nbytes for states in self._states.values())


class LayerCache(_OfOneLayer):
    """The keys and values of one layer, and what its indexer and its blocks are computed from, if any."""

    def __init__(self, owner: KVCache, **stored: Tensor) -> None:
        super().__init__(owner)
        self.stored = stored

    @property
    def keys(self) -> Tensor:
        return self.stored["keys"]

    @property
    def values(self) -> Tensor:
        return self.stored["values"]

    @property
    def allocated(self) -> int:
        """The allocated bytes."""
        return sum(stored.nbytes for stored in self.stored.values()) + self._state_bytes

    def use(self, number: int) -> LayerUse:
        """The use of this memory; ``number`` is the number of the layer."""
        batch, groups, capacity, width = self.keys.shape
        per_token, tokens = self.allocated // capacity, self.owner.position
        of_source = sum(kept.nbytes for kept in self._once.values())
        return LayerUse(
            number,
            (batch, groups, capacity, width),
            tokens,
            per_token * tokens + of_source,
            per_token * capacity + of_source,
            per_token,
        )

    def select(self, rows: Sequence[int]) -> None:
        """Keep the texts of ``rows``, in the same memory if their number does not change."""
        super().select(rows)
        used = self.owner.position
        for name, stored in self.stored.items():
            selected = stored[list(rows)][..., :used, :]  # (rows, G, position, D), a copy
            if len(rows) != len(stored):
                stored = stored.new_zeros(len(rows), *stored.shape[1:])
                self.stored[name] = stored
            stored[..., :used, :] = selected

    def extend(self, name: str, new: Tensor) -> Tensor:
        """Store the ``keys`` or ``values`` of T new tokens, (B, G, T, D), and return those of all tokens, as a view.

        What an indexer and blocks are computed from is (B, T, D).
        """
        stored = self.stored[name]
        start, end = self.owner.position, self.owner.position + new.shape[-2]
        stored[..., start:end, :] = new
        return stored[..., :end, :]


class StateCache(_OfOneLayer):
    """The states of one layer whose mixer has one."""

    def __init__(self, owner: KVCache, needed: int) -> None:
        super().__init__(owner)
        self.needed = needed

    @property
    def read(self) -> Tensor:
        """The state (B, …) that the layer reads last: not the windows of its convolutions, which come before it."""
        *_, states = self._states.values()
        return states[self.owner.position]

    @property
    def allocated(self) -> int:
        """The bytes of one state of each kind; the predicted bytes before there is any."""
        return self._state_bytes or self.needed * self.owner.batch

    def use(self, number: int) -> LayerUse:
        """The use of this memory; ``number`` is the number of the layer."""
        return LayerUse(number, (), self.owner.position, self.allocated, self.allocated, 0)


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
    if not config.causal and config.head.kind == "none":
        raise UsageError("the model is an encoder without a head, and predicts no token", "trace shows its vectors")
    if not config.causal:
        raise UsageError("the model is an encoder and predicts masked tokens", "use trace with [MASK] in the text")
