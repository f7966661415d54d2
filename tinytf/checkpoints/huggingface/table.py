"""What a family's table is made of: the names of its tensors, and what is done to them in either direction."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.fields import Fields


@dataclass(frozen=True)
class Change:
    """How a stored tensor becomes ours: part ``part`` of ``parts`` along its output axis, transposed or not."""

    transposed: bool = False
    part: int = 0
    parts: int = 1

    def read(self, stored: Tensor) -> Tensor:
        """A view of the stored tensor as ours."""
        piece = stored.chunk(self.parts, dim=-1 if self.transposed else 0)[self.part]
        return piece.t() if self.transposed and piece.dim() == 2 else piece

    def stored_shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that the stored tensor has to have for ours to have this one."""
        whole = (ours[0] * self.parts, *ours[1:])
        return whole[::-1] if self.transposed else whole

    @staticmethod
    def join(pieces: list[Tensor], transposed: bool) -> Tensor:
        """The way back: our tensors, in the order of their parts, as one stored tensor."""
        whole = torch.cat(pieces)
        return (whole.t() if transposed and whole.dim() == 2 else whole).contiguous()


SAME = Change()
TRANSPOSED = Change(transposed=True)
"""GPT-2's Conv1D keeps its matrices as (in, out)."""


class Place(NamedTuple):
    """Where a module of ours is stored: the module there, and the change to each of its tensors."""

    module: str
    change: Change = SAME


class Left(NamedTuple):
    """Stored tensors that are passed over, and why; ``said`` is for what a user would miss."""

    pattern: str
    why: str
    said: bool = False


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    ``read`` makes our configuration from config.json and the names that are stored (without ``prefix``);
    ``write`` makes a config.json from ours, or answers None where the family has no word for it.
    ``places`` says where each module of ours is stored, ``{n}`` standing for the layer. ``copies`` are tensors that
    can be stored a second time under another name. ``spellings`` replaces older names.
    """

    name: str
    model_type: str
    prefix: str
    read: Callable[[Fields, Collection[str]], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any] | None]
    places: Mapping[str, Place]
    left: tuple[Left, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    spellings: tuple[tuple[str, str], ...] = ()
    outside: tuple[str, ...] = ()

    def plain(self, stored: str) -> str:
        """A stored name without the family's prefix and in today's spelling."""
        name = stored.removeprefix(self.prefix)
        for old, new in self.spellings:
            name = re.sub(old, new, name)
        return name

    def prefixed(self, plain: str) -> str:
        """The name that transformers stores today: heads stand ``outside`` of the prefix."""
        return plain if plain.startswith(self.outside) else self.prefix + plain

    def place(self, ours: str) -> tuple[str, Change]:
        """Where a parameter of ours is stored: its plain name there, and the change."""
        module, _, kind = ours.rpartition(".")
        layer = module.split(".")[1] if module.startswith("blocks.") else ""
        place = self.places[module.replace(f"blocks.{layer}.", "blocks.{n}.", 1) if layer else module]
        return f"{place.module.replace('{n}', layer)}.{kind}" if place.module else kind, place.change

    def why_left(self, plain: str) -> Left | None:
        """Why a stored tensor is passed over, if the table says so."""
        return next((left for left in self.left if re.fullmatch(left.pattern, plain)), None)
