"""The table of a family of transformers, read and written by it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tinytf.checkpoints.table import Table
from tinytf.config import ModelConfig


class Left(NamedTuple):
    """Stored tensors that are passed over, and why; ``said`` is for what a user would miss."""

    pattern: str
    why: str
    said: bool = False


@dataclass(frozen=True, kw_only=True)
class Family(Table):
    """One family of transformers. Stored names are those without ``prefix``, which all but those ``outside`` have.

    ``classes`` are those of transformers, by our word for the head, the first for want of another. ``needs`` are fields
    of ours that cannot be 0, ``written`` keys that are written as they are. ``copies`` are tensors that can be stored a
    second time under another name. ``spellings`` replaces older names.
    """

    model_type: str
    prefix: str
    classes: Mapping[str, str]
    needs: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    left: tuple[Left, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    spellings: tuple[tuple[str, str], ...] = ()
    outside: tuple[str, ...] = ()

    def write(self, config: ModelConfig) -> dict[str, Any] | None:
        """A config.json for a configuration of ours, None where the family has no word for it."""
        if not all(getattr(config, name) for name in self.needs):
            return None
        said: dict[str, Any] = {"architectures": [self.classes.get(config.head, next(iter(self.classes.values())))]}
        for setting in self.settings:
            said |= setting.write(config)
        return {**said, **self.written}

    def plain(self, stored: str) -> str:
        """A stored name without the family's prefix and in today's spelling."""
        name = stored.removeprefix(self.prefix)
        for old, new in self.spellings:
            name = re.sub(old, new, name)
        return name

    def prefixed(self, plain: str) -> str:
        """The name that transformers stores today: heads stand ``outside`` of the prefix."""
        return plain if plain.startswith(self.outside) else self.prefix + plain

    def why_left(self, plain: str) -> Left | None:
        """Why a stored tensor is passed over, if the table says so."""
        return next((left for left in self.left if re.fullmatch(left.pattern, plain)), None)
