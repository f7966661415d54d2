"""What runs a text in several ways: a model of ours, or one through transformers.

Shapes: B texts, T tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tinytf.errors import UsageError
from tinytf.model.cache import KVCache
from tinytf.model.transformer import Source
from tinytf.steps.table import table_of
from tinytf.text_model import TextModel
from tinytf.through.model import ThroughModel


class Runner(Protocol):
    """A module whose steps are kept while it runs.

    ``mask`` and ``positions`` are the names of the arguments that take them, empty where none does. ``right_alone``
    says why a text cannot be padded on the left, and is empty where it can.
    """

    @property
    def modules(self) -> Mapping[str, nn.Module]: ...
    @property
    def causal(self) -> bool: ...
    @property
    def mask(self) -> str: ...
    @property
    def positions(self) -> str: ...
    @property
    def padding(self) -> int: ...
    @property
    def right_alone(self) -> str: ...
    def seed(self, number: int) -> None: ...
    def whole(self, rows: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor | None: ...
    def pieces(self, pieces: Sequence[Tensor], positions: bool) -> Iterator[Tensor | None]: ...


@dataclass(frozen=True)
class Ours:
    """A model that tinytf computes, and the number of tokens of the text, which may read a ``source``."""

    model: TextModel
    tokens: int
    source: Source | None = None
    mask, positions, padding = "padding_mask", "", 0
    right_alone = "tinytf pads texts on the right alone, since it counts positions from the start of a row"

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        found, module = dict[str, nn.Module](), self.model.transformer
        for step, layer in table_of(self.model.config).rows:
            if step.recorded and step.runs:
                path = step.path if layer is None else f"blocks.{layer}.{step.path}"
                found[step.full_name(layer)] = module.get_submodule(path)
        return found

    @property
    def causal(self) -> bool:
        return not self.model.config.looks_ahead

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def whole(self, rows: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor | None:
        if mask is not None and mask.dtype is not torch.bool:
            raise UsageError("a padding_mask is of booleans, one for each token")
        if self.tokens < self.model.config.turned_alike_from(rows.shape[1]):
            raise UsageError("RoPE turns a longer row by other angles, so this text goes alone")
        module = self.model.transformer
        hidden: Tensor = module.hidden(rows, padding_mask=mask, source=self.source)
        return hidden if module.head is None else module.unembed(hidden)

    def facing(self, beside: Sequence[int], room: int) -> "Ours":
        """What runs a text whose source is the last of a batch, after those ``beside`` it, with ``room`` for padding.

        Raises UsageError for a source that fills the context.
        """
        stack, reads = self.model.transformer.encoder, self.model.transformer.reads
        assert stack is not None
        assert reads is not None
        rows = [*([[*beside]] if beside else []), [*reads.trace.encoding.ids]]
        most = min(max(map(len, rows)) + room * (not beside), stack.config.context)
        if most <= len(rows[-1]) and not beside:
            raise UsageError("the source fills the context")
        kept = torch.tensor([[place < len(row) for place in range(most)] for row in rows])
        ids = torch.tensor([[*row[:most], *[self.padding] * (most - len(row))] for row in rows])
        device = next(stack.parameters()).device
        return replace(self, source=self.model.transformer.read(ids.to(device), kept.to(device)))

    def pieces(self, pieces: Sequence[Tensor], positions: bool) -> Iterator[Tensor | None]:
        module, tokens = self.model.transformer, sum(piece.shape[1] for piece in pieces)
        weight = next(module.parameters())
        cache = KVCache(self.model.config, tokens, device=weight.device, dtype=weight.dtype)
        for piece in pieces:
            hidden = module.hidden(piece, cache=cache)
            yield hidden if module.head is None else module.unembed(hidden)


@dataclass(frozen=True)
class Theirs:
    """A model that runs through transformers."""

    model: ThroughModel

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        return {name: module for name, module in self.model.transformer.named_modules() if name}

    @property
    def causal(self) -> bool:
        return self.model.config.causal

    @property
    def _takes(self) -> Mapping[str, Any]:
        return signature(self.model.transformer.forward).parameters

    @property
    def mask(self) -> str:
        return "attention_mask" if "attention_mask" in self._takes else ""

    @property
    def positions(self) -> str:
        return "position_ids" if "position_ids" in self._takes else ""

    @property
    def padding(self) -> int:
        padding = getattr(self.model.transformer.config.get_text_config(), "pad_token_id", None)
        return padding if isinstance(padding, int) and padding >= 0 else 0

    @property
    def right_alone(self) -> str:
        return "" if self.causal else "the texts of an encoder are padded on the right"

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def whole(self, rows: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor | None:
        given: dict[str, Any] = {**self.model.options, **({} if mask is None else {"attention_mask": mask})}
        given |= {} if positions is None else {"position_ids": positions}
        return _logits(self.model.transformer(input_ids=rows, **given))

    def pieces(self, pieces: Sequence[Tensor], positions: bool) -> Iterator[Tensor | None]:
        if "past_key_values" not in self._takes and "cache_params" not in self._takes:
            raise UsageError("it takes no cache")
        name = "past_key_values" if "past_key_values" in self._takes else "cache_params"
        cache, start = None, 0
        for piece in pieces:
            end = start + piece.shape[1]
            given = {"position_ids": torch.arange(start, end, device=piece.device)[None]} if positions else {}
            result = self.model.transformer(input_ids=piece, use_cache=True, **{name: cache}, **given)
            cache, start = getattr(result, name, None), end
            if cache is None:
                raise UsageError("it returns no cache")
            yield _logits(result)


def _logits(result: Any) -> Tensor | None:
    found = getattr(result, "logits", None)
    return found if isinstance(found, Tensor) else None
