"""The metadata of a GGUF file with its types checked, every key that is asked for remembered."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tinytf.checkpoints.gguf.cursor import quoted
from tinytf.checkpoints.gguf.header import Header
from tinytf.errors import CheckpointError

_REQUIRED: Any = object()


class Metadata:
    """Typed access to the keys of a header; CheckpointError names file, key and value of what does not fit."""

    def __init__(self, header: Header) -> None:
        self.path: Path = header.path
        self.data: Mapping[str, Any] = header.metadata
        self.asked: set[str] = set()

    def _get(self, key: str, default: Any, kinds: tuple[type, ...], words: str) -> Any:
        self.asked.add(key)
        if key not in self.data:
            if default is _REQUIRED:
                raise CheckpointError(f"{self.path} lacks {key}")
            return default
        value = self.data[key]
        if type(value) not in kinds:
            raise CheckpointError(f"{self.path}: {key} is {_shown(value)}, and has to be {words}")
        return value

    def whole(self, key: str, default: Any = _REQUIRED) -> int:
        """A whole number; ``default`` where the key is missing."""
        return int(self._get(key, default, (int,), "a whole number"))

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A finite number."""
        value = float(self._get(key, default, (int, float), "a number"))
        if not math.isfinite(value):
            raise CheckpointError(f"{self.path}: {key} is {value}, and has to be a finite number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return bool(self._get(key, default, (bool,), "true or false"))

    def word(self, key: str, default: Any = _REQUIRED) -> str:
        """A string."""
        return str(self._get(key, default, (str,), "a string"))

    def strings(self, key: str) -> list[str]:
        """An array of strings."""
        found = self._get(key, _REQUIRED, (list,), "an array of strings")
        return list(found)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """An array of ``count`` numbers, empty where the key is missing."""
        found = tuple(self._get(key, (), (tuple,), "an array of numbers"))
        if key in self.data and len(found) != count:
            raise CheckpointError(f"{self.path}: {key} has {len(found):,} entries, and has to have {count:,}")
        return found

    def place(self, key: str, count: int) -> int | None:
        """The number of one of ``count`` things, such as a token id; None where the key is missing."""
        if key not in self.data:
            return None
        found = self.whole(key)
        if not 0 <= found < count:
            raise CheckpointError(f"{self.path}: {key} is {found:,}, and has to be one of 0 to {count - 1:,}")
        return found

    def require(self, key: str, only: Collection[Any]) -> None:
        """Refuse any value but those in ``only``: the others change the numbers, and are not implemented."""
        self.asked.add(key)
        if key in self.data and self.data[key] not in only:
            raise CheckpointError(f"{self.path}: {key} {_shown(self.data[key])} is not implemented")

    def refuse_unknown(self, prefix: str, harmless: Collection[str], endings: tuple[str, ...] = ()) -> None:
        """Refuse keys below ``prefix`` that nobody asked for, that are not ``harmless`` and have no such ending."""
        for key in self.data:
            rest = key.removeprefix(prefix)
            known = key in self.asked or rest in harmless or (endings and rest.endswith(endings))
            if key.startswith(prefix) and not known:
                raise CheckpointError(
                    f"{self.path}: the key {quoted(key)} is not known, and could change the numbers",
                    "a newer tinytf may know it",
                )


def _shown(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    return f"an array of {len(value):,}" if isinstance(value, (list, tuple)) else repr(value)
