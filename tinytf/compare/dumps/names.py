"""What a tensor's name in another program means here: which step, of which layer, and how its numbers lie."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tinytf.checkpoints.table import FamilyTable
from tinytf.compare.dumps.layouts import Meaning, best_layout
from tinytf.errors import AddressError, DumpError, UsageError
from tinytf.files import SMALL, read_bytes
from tinytf.steps.table import Place, StepTable
from tinytf.trace.address import parse_address, parse_tensor
from tinytf.trace.lens_names import HOOK

OURS = "tinytf"
_LINES = 'each line of it is "their.{n}.name" = "L{n}.q"'


@dataclass(frozen=True)
class Named:
    """What the names of a file mean; ``spelling`` says in words whose names they are."""

    found: Mapping[str, tuple[Meaning, ...]]
    unmatched: tuple[str, ...]
    spelling: str
    known: tuple[str, ...] = ()

    @cached_property
    def at(self) -> dict[Place, list[tuple[str, Meaning]]]:
        """The names of each step."""
        places: dict[Place, list[tuple[str, Meaning]]] = {}
        for name, meanings in self.found.items():
            for one in meanings:
                places.setdefault(one.place, []).append((name, one))
        return places


def resolve_all(
    names: Iterable[str],
    steps: StepTable,
    given: Mapping[str, str] | None = None,
    table: FamilyTable | None = None,
) -> Named:
    """The meanings of all ``names`` for the model of ``steps``, whose files have the names of ``table``.

    They are addresses of ours, TransformerLens' names, module paths of a family of transformers, or GGML's names; the
    family is the one that knows most of them. ``given`` are patterns of names, {n} standing for the layer, with our
    addresses; it is asked first. Raises UsageError for one of those that is no step.
    """
    names, asked = list(names), _given(given or {}, steps)
    ours = {name: meanings for name in names if (meanings := _ours(name, steps))}
    layout = best_layout(names, steps, table) if len(ours) < len(names) else None
    theirs = {} if layout is None else {name: meanings for name in names if (meanings := layout.meanings(name))}
    whose: Counter[str] = Counter()
    found: dict[str, tuple[Meaning, ...]] = {}
    for name in names:
        if meanings := asked(name):
            spelling = "--names"
        elif name in theirs and (len(theirs) > len(ours) or name not in ours):
            assert layout is not None
            meanings, spelling = theirs[name], layout.spelling
        elif name in ours:
            meanings, spelling = ours[name], "TransformerLens" if HOOK in name else OURS
        else:
            continue
        found[name] = meanings
        whose[spelling] += 1
    unmatched = tuple(name for name in names if name not in found)
    known = tuple(step.full_name(layer) for step, layer in steps.rows if step.is_tensor)
    return Named(found, unmatched, " and ".join(one for one, _ in whose.most_common()), known)


def resolve(name: str, steps: StepTable, table: FamilyTable | None = None) -> tuple[Meaning, ...]:
    """The meanings of one name; none where nothing of this model is called so."""
    return resolve_all([name], steps, table=table).found.get(name, ())


def read_names(path: Path | None) -> dict[str, str]:
    """The patterns of a TOML file: names with {n} for the layer, quoted or as nested tables, to our addresses.

    Raises DumpError for one that is missing, too large, or no such table.
    """
    if path is None:
        return {}
    try:
        read = tomllib.loads(read_bytes(path, SMALL).decode("utf-8"))
    except FileNotFoundError:
        raise DumpError(f"there is no file {path}", _LINES) from None
    except OSError as error:
        raise DumpError(f"cannot read {path}: {error.strerror}", _LINES) from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML
        raise DumpError(f"{path} is not TOML: {error}", _LINES) from None
    return dict(_flat(read, "", path))


def _flat(table: Mapping[str, Any], before: str, path: Path) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.", path)
        elif isinstance(value, str):
            yield f"{before}{key}", value
        else:
            raise DumpError(f"{path}: {before}{key} is {value!r}, no address", "such as L{n}.q")


def _ours(name: str, steps: StepTable) -> tuple[Meaning, ...]:
    """An address of ours, or a name of TransformerLens."""
    try:
        where = parse_tensor(name, steps)
    except AddressError:
        return ()
    if where.step is None or where.cell or not where.step.is_tensor:
        return ()
    layers = where.layers or (None,)
    note = f"{name} is {where.lens.of(str(replace(where, lens=None)))}" if where.lens and not where.lens.is_step else ""
    return tuple(
        Meaning((where.step.name, layer), where.heads, pick=place if len(layers) > 1 else None, note=note)
        for place, layer in enumerate(layers)
    )


def _given(patterns: Mapping[str, str], steps: StepTable) -> Callable[[str], tuple[Meaning, ...]]:
    """What reads names by the patterns that a user gave."""
    read = []
    for pattern, address in patterns.items():
        if not _ours(address.replace("{n}", "0"), steps):
            try:
                parse_address(address.replace("{n}", "0"), steps)
            except AddressError as error:
                raise UsageError(f"{pattern!r} is {address!r}: {error.message}", error.hint or _LINES) from None
            raise UsageError(f"{pattern!r} is {address!r}, which is not a whole step", _LINES)
        read.append((re.compile(re.escape(pattern).replace(r"\{n\}", r"(\d{1,6})")), address))

    def meanings(name: str) -> tuple[Meaning, ...]:
        for pattern, address in read:
            if match := pattern.fullmatch(name):
                return _ours(address.replace("{n}", match[1] if pattern.groups else ""), steps)
        return ()

    return meanings
