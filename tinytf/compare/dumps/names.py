"""The meaning of another program's tensor names: the step, its layer, and how its numbers lie."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tinytf.checkpoints.table import FamilyTable
from tinytf.compare.dumps.beside import kind_of_tensor
from tinytf.compare.dumps.layouts import Meaning, best_layout
from tinytf.config import ENC
from tinytf.errors import AddressError, DumpError, UsageError
from tinytf.files import SMALL, parse_toml, read_bytes
from tinytf.steps.table import StepKey, StepTable
from tinytf.trace.address import parse_address, parse_tensor
from tinytf.trace.lens_names import HOOK

OURS = "tinytf"
_AT_ENCODER = re.compile(rf"{re.escape(ENC)}|encoder_(?=hidden_states|attentions|last_hidden_state)")
"""How names of an encoder begin, ours and those of what transformers returns."""
_LINES = 'each line of it is "their.{n}.name" = "L{n}.q"'


@dataclass(frozen=True)
class Named:
    """The meanings of the names of a file; ``spelling`` says in words whose names they are.

    ``beside`` are names of no step that are known all the same: positions, masks, labels; ``elsewhere`` counts those of
    another stack's steps.
    """

    found: Mapping[str, tuple[Meaning, ...]]
    unmatched: tuple[str, ...]
    spelling: str
    known: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    elsewhere: int = 0

    @cached_property
    def at(self) -> dict[StepKey, list[tuple[str, Meaning]]]:
        """The names of each step."""
        places: dict[StepKey, list[tuple[str, Meaning]]] = {}
        for name, meanings in self.found.items():
            for meaning in meanings:
                places.setdefault(meaning.place, []).append((name, meaning))
        return places


def resolve_all(
    names: Iterable[str],
    steps: StepTable,
    patterns: Mapping[str, str] | None = None,
    table: FamilyTable | None = None,
) -> Named:
    """The meanings of all ``names`` for the model of ``steps``, whose files have the names of ``table``.

    Names are our addresses, TransformerLens' names, module paths of a family of transformers, or GGML's names; the
    family is the one that knows most of them. ``patterns`` map names, with {n} for the layer, to our addresses, and
    take precedence. Raises UsageError for a pattern whose address is not a step.
    """
    names, read_given = list(names), _pattern_reader(patterns or {}, steps)
    ours = {name: meanings for name in names if (meanings := _ours(name, steps))}
    layout = best_layout(names, steps, table) if len(ours) < len(names) else None
    theirs = {} if layout is None else {name: meanings for name in names if (meanings := layout.meanings(name))}
    counts: Counter[str] = Counter()
    meanings_of: dict[str, tuple[Meaning, ...]] = {}
    for name in names:
        if meanings := read_given(name):
            spelling = "--names"
        elif name in theirs and (len(theirs) > len(ours) or name not in ours):
            assert layout is not None
            meanings, spelling = theirs[name], layout.spelling
        elif name in ours:
            meanings, spelling = ours[name], "TransformerLens" if HOOK in name else OURS
        else:
            continue
        meanings_of[name] = meanings
        counts[spelling] += 1
    others = [name for name in names if name not in meanings_of]
    beside = tuple(name for name in others if kind_of_tensor(name))
    unmatched = tuple(name for name in others if name not in beside)
    known = tuple(step.full_name(layer) for step, layer in steps.rows if step.is_tensor)
    return Named(meanings_of, unmatched, " and ".join(spelling for spelling, _ in counts.most_common()), known, beside)


def in_encoder(name: str) -> str:
    """The name of an encoder's tensor as a model of one stack has it; empty for any other name."""
    return _AT_ENCODER.sub("", name) if _AT_ENCODER.match(name) or ".encoder." in f".{name}" else ""


def resolve(name: str, steps: StepTable, table: FamilyTable | None = None) -> tuple[Meaning, ...]:
    """The meanings of one name; empty if this model has no step of that name."""
    return resolve_all([name], steps, table=table).found.get(name, ())


def read_names(path: Path | None) -> dict[str, str]:
    """The patterns of a TOML file, which maps names with {n} for the layer (quoted or nested tables) to our addresses.

    Raises DumpError for a file that is missing, too large, or not such a table.
    """
    if path is None:
        return {}
    try:
        table = parse_toml(read_bytes(path, SMALL).decode("utf-8"))
    except FileNotFoundError:
        raise DumpError(f"there is no file {path}", _LINES) from None
    except OSError as error:
        raise DumpError(f"cannot read {path}: {error.strerror}", _LINES) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise DumpError(f"{path} is not TOML: {error}", _LINES) from None
    return dict(_flat(table, "", path))


def _flat(table: Mapping[str, Any], prefix: str, path: Path) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.", path)
        elif isinstance(value, str):
            yield f"{prefix}{key}", value
        else:
            raise DumpError(f"{path}: {prefix}{key} is {value!r}, not an address", "an address is such as L{n}.q")


def _ours(name: str, steps: StepTable) -> tuple[Meaning, ...]:
    """The meaning of our address or TransformerLens' name; empty for any other name."""
    try:
        where = parse_tensor(name, steps)
    except AddressError:
        return ()
    if where.step is None or where.cell or not where.step.is_tensor:
        return ()
    layers = where.layers or (None,)
    note = f"{name} is {where.lens.of(str(replace(where, lens=None)))}" if where.lens and not where.lens.is_step else ""
    return tuple(
        Meaning((where.step.name, layer), where.heads, pick=index if len(layers) > 1 else None, note=note)
        for index, layer in enumerate(layers)
    )


def _pattern_reader(patterns: Mapping[str, str], steps: StepTable) -> Callable[[str], tuple[Meaning, ...]]:
    """A function that reads names by the user's patterns."""
    compiled = []
    for pattern, address in patterns.items():
        if not _ours(address.replace("{n}", "0"), steps):
            try:
                parse_address(address.replace("{n}", "0"), steps)
            except AddressError as error:
                raise UsageError(f"{pattern!r} is {address!r}: {error.message}", error.hint or _LINES) from None
            raise UsageError(f"{pattern!r} is {address!r}, which is not a whole step", _LINES)
        compiled.append((re.compile(re.escape(pattern).replace(r"\{n\}", r"(\d{1,6})")), address))

    def meanings(name: str) -> tuple[Meaning, ...]:
        for pattern, address in compiled:
            if match := pattern.fullmatch(name):
                return _ours(address.replace("{n}", match[1] if pattern.groups else ""), steps)
        return ()

    return meanings
