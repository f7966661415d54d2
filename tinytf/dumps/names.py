"""What a tensor's name in another program means here: which step, of which layer, and how its numbers lie.

Names with parameters behind them stand in the tables of the families already: the path of a module is the name of its
weight without ``.weight``, and what it gives is the step that is made with that weight. A module around others gives
the last step that follows from theirs alone. What has no parameters at all is in ``_PLACES``.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.checkpoints.huggingface.load import FAMILIES
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import FamilyTable, Stored, fused
from tinytf.errors import AddressError, DumpError, UsageError
from tinytf.files import SMALL, read_bytes
from tinytf.steps.operations import HeadNorm, Linear, Lookup, Norm, Pooled, Positions
from tinytf.steps.table import Place, Step, StepTable
from tinytf.trace.address import parse_address

OURS = "tinytf"
Spellings = tuple[tuple[str, str], ...]
"""Patterns of names, whose group is the layer, with the steps that they mean."""


@dataclass(frozen=True)
class Meaning:
    """The step at ``place`` that a name means; ``heads`` where it is only some of them.

    ``how`` says how the numbers of a module's output lie where they are parts of it, or in another order. ``pick`` is
    the place along a leading axis of layers. ``certain`` is false for one of several steps that a program gives one
    name. ``note`` is for the reader.
    """

    place: Place
    heads: tuple[int, ...] | None = None
    how: Stored | None = None
    pick: int | None = None
    certain: bool = True
    note: str = ""


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


def resolve_all(names: Iterable[str], steps: StepTable, given: Mapping[str, str] | None = None) -> Named:
    """The meanings of all ``names`` for the model of ``steps``.

    They are addresses of ours, TransformerLens' names, module paths of a family of transformers, or GGML's names; the
    family is the one that knows most of them. ``given`` are patterns of names, {n} standing for the layer, with our
    addresses; it is asked first. Raises UsageError for one of those that is no step.
    """
    names = list(names)
    found: dict[str, tuple[Meaning, ...]] = {}
    whose: Counter[str] = Counter()
    own = _given(given or {}, steps)
    for name in names:
        for said, meanings in (("--names", own(name)), (OURS, _ours(name, steps))):
            if meanings and name not in found:
                found[name] = meanings
                whose["TransformerLens" if said == OURS and "hook_" in name else said] += 1
    rest = [name for name in names if name not in found]
    layout = _best(rest, steps) if rest else None
    if layout is not None:
        for name in rest:
            if meanings := layout.meanings(name):
                found[name] = meanings
                whose[layout.spelling] += 1
    unmatched = tuple(name for name in names if name not in found)
    known = tuple(step.full_name(layer) for step, layer in steps.rows if step.is_tensor)
    return Named(found, unmatched, " and ".join(one for one, _ in whose.most_common()), known)


def resolve(name: str, steps: StepTable, given: Mapping[str, str] | None = None) -> tuple[Meaning, ...]:
    """The meanings of one name; none where nothing of this model is called so."""
    return resolve_all([name], steps, given).found.get(name, ())


def read_names(path: Path | None) -> dict[str, str]:
    """The patterns of a TOML file: names with {n} for the layer, quoted or as nested tables, to our addresses.

    Raises DumpError for one that is missing, too large, or no such table.
    """
    if path is None:
        return {}
    try:
        read = tomllib.loads(read_bytes(path, SMALL).decode("utf-8"))
    except FileNotFoundError:
        raise DumpError(f"there is no file {path}") from None
    except OSError as error:
        raise DumpError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML
        raise DumpError(f"{path} is not TOML: {error}", 'each line is "their.{n}.name" = "L{n}.q"') from None
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
        where = parse_address(name, steps)
    except AddressError:
        return ()
    if where.step is None or where.cell or not where.step.is_tensor:
        return ()
    layers = where.layers or (None,)
    note = where.step.alias_note if "hook_" in name else ""
    return tuple(
        Meaning((where.step.name, layer), where.heads, pick=place if len(layers) > 1 else None, note=note)
        for place, layer in enumerate(layers)
    )


def _given(patterns: Mapping[str, str], steps: StepTable) -> Callable[[str], tuple[Meaning, ...]]:
    """What reads names by the patterns that a user gave."""
    read = []
    for pattern, address in patterns.items():
        if not _ours(address.replace("{n}", "0"), steps):
            parse_address(address.replace("{n}", "0"), steps)  # says what is wrong with it
            raise UsageError(f"{address!r} is not a whole step", "such as L{n}.q")
        read.append((re.compile(re.escape(pattern).replace(r"\{n\}", r"(\d{1,6})")), address))

    def meanings(name: str) -> tuple[Meaning, ...]:
        for pattern, address in read:
            if match := pattern.fullmatch(name):
                return _ours(address.replace("{n}", match[1] if pattern.groups else ""), steps)
        return ()

    return meanings


_WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|base_model|_fsdp_wrapped_module)\.)+")
_OUTPUT = re.compile(r"(\.outputs?|\.out|\[0\]|\.0)+$")
_INPUT = re.compile(r"(\.inputs?|\.in)(\[0\]|\.0)*$")
_NUMBER = re.compile(r"(?<=\.)\d{1,6}(?=\.|$)")

# What has no parameters. Of several steps with one name the last is what a file holds, unless its numbers are those of
# one before: llama.cpp calls queries Qcur before RoPE and after it.
_IN_GGML: Spellings = (
    (r"inp_embd", "embed.tokens"),
    (r"Qcur-(\d+)", "q q_norm q_rot"),
    (r"Kcur-(\d+)", "k k_norm k_rot"),
    (r"Vcur-(\d+)", "v"),
    (r"Qcur_normed-(\d+)", "q_norm"),
    (r"Kcur_normed-(\d+)", "k_norm"),
    (r"Qcur_rope-(\d+)", "q_rot"),
    (r"Kcur_rope-(\d+)", "k_rot"),
    (r"kq-(\d+)", "scores"),
    (r"kq_scaled-(\d+)", "scaled"),
    (r"kq_masked-(\d+)", "masked"),
    (r"kq_soft_max(?:_ext)?-(\d+)", "weights"),
    (r"kqv-(\d+)", "head_out"),
    (r"kqv_merged(?:_cont)?-(\d+)", "concat"),
    (r"(?:kqv_out|attn_out)-(\d+)", "attn"),
    (r"attn_norm-(\d+)", "norm1"),
    (r"attn_post_norm-(\d+)", "attn_norm"),
    (r"ffn_inp-(\d+)", "mid"),
    (r"ffn_norm-(\d+)", "norm2"),
    (r"ffn_up-(\d+)", "ffn.hidden"),
    (r"ffn_gate-(\d+)", "ffn.gate"),
    (r"ffn_(?:gate_par|swiglu|geglu|gelu|relu)-(\d+)", "ffn.act"),
    (r"ffn_(?:out|down)-(\d+)", "ffn"),
    (r"ffn_post_norm-(\d+)", "ffn_norm"),
    (r"l_out-(\d+)", "out"),
    (r"result_norm", "final"),
    (r"result_output", "logits"),
)  # fmt: skip
_IN_TRANSFORMERS: Spellings = (
    (r"hidden_states?[._\[](\d+)\]?", "in"),
    (r"attentions?[._\[](\d+)\]?", "weights"),
    (r"last_hidden_state", "final"),
    (r"(?:.*\.)?[a-z_]*\.(\d+)\.mlp\.(?:act|act_fn|activation_fn)", "ffn.act"),
    (r"(?:transformer\.)?drop", "embed.out"),
)


@dataclass(frozen=True)
class Layout:
    """The names of one family for one model."""

    table: FamilyTable
    steps: StepTable

    @property
    def spelling(self) -> str:
        """Whose names they are, in words."""
        return f"{'Hugging Face' if isinstance(self.table, Family) else 'GGML'} ({self.table.name})"

    @property
    def without_parameters(self) -> Spellings:
        return _IN_TRANSFORMERS if isinstance(self.table, Family) else _IN_GGML

    @cached_property
    def leaves(self) -> dict[str, list[tuple[str, Stored]]]:
        """Our modules by the pattern of a stored one."""
        found: dict[str, list[tuple[str, Stored]]] = {}
        for ours, how in self.table.stored.items():
            found.setdefault(how.module, []).append((ours, how))
        return found

    @cached_property
    def inside(self) -> dict[str, list[str]]:
        """Our modules that are inside a stored one that has no parameters of its own, by its pattern."""
        found: dict[str, list[str]] = {}
        for module, owners in self.leaves.items():
            for end in (match.start() for match in re.finditer(r"\.", module)):
                found.setdefault(module[:end], []).extend(ours for ours, _ in owners)
        return found

    @cached_property
    def covered(self) -> int:
        """How many of the model's modules the table has, less those of the table that the model has not."""
        ours = {f"blocks.{{n}}.{s.module}" if s.in_layer else s.module for s, _ in self.steps.rows if s.module}
        return len(ours & set(self.table.stored)) * 100 - len(set(self.table.stored) - ours)

    def spelled(self, name: str) -> Iterator[tuple[str, int | None, bool]]:
        """Patterns that a name may be, with its layer, and whether what is meant is the module's input."""
        plain = _WRAPPERS.sub("", name)
        for ends, is_input in ((None, False), (_OUTPUT, False), (_INPUT, True)):
            if ends is not None and not ends.search(plain):
                continue
            path = self.table.plain(plain if ends is None else ends.sub("", plain)).removesuffix(".")
            numbers = _NUMBER.search(f".{path}")
            if numbers is None:
                yield path, None, is_input
            else:
                start, end = numbers.start() - 1, numbers.end() - 1
                yield f"{path[:start]}{{n}}{path[end:]}", int(numbers[0]), is_input

    def knows(self, name: str) -> bool:
        """Whether the table has a module of that name, or modules inside it."""
        return any(
            (pattern in self.leaves or pattern in self.inside) and (layer is None or layer < self.steps.config.n_layers)
            for pattern, layer, _ in self.spelled(name)
        ) or any(re.fullmatch(pattern, _WRAPPERS.sub("", name)) for pattern, _ in self.without_parameters)

    def meanings(self, name: str) -> tuple[Meaning, ...]:
        """The steps that a name means in this model."""
        for pattern, layer, is_input in self.spelled(name):
            if layer is not None and layer >= self.steps.config.n_layers:
                continue
            places = [(place, how) for ours, how in self.leaves.get(pattern, ()) for place in self._made(ours, layer)]
            if places and not is_input:
                return tuple(Meaning(place, how=how) for place, how in places)
            modules = self.inside.get(pattern) or [ours for ours, _ in self.leaves.get(pattern, ())]
            made = [place for ours in modules for place in self._made(ours, layer)]
            if made and is_input:
                return (Meaning(self._source(made)),)
            if made:
                return (Meaning(self._last(made)),)
        return self._without_parameters(_WRAPPERS.sub("", name))

    def _made(self, ours: str, layer: int | None) -> list[Place]:
        """The steps that a module of ours makes, in one layer or, for a stack of them, in all."""
        short = ours.removeprefix("blocks.{n}.")
        inside = short != ours
        return [
            (step.name, within)
            for step, within in self._by_module.get(short, ())
            if step.in_layer == inside and (layer is None or not inside or within == layer)
        ]

    @cached_property
    def _by_module(self) -> dict[str, list[tuple[Step, int | None]]]:
        """The steps that modules of ours give as they are, by the short names of these."""
        found: dict[str, list[tuple[Step, int | None]]] = {}
        for step, layer in self.steps.rows:
            makes = isinstance(step.operation, Linear | Norm | HeadNorm | Lookup | Positions)
            if step.module and makes and not isinstance(step.operation, Pooled):
                found.setdefault(step.module, []).append((step, layer))
        return found

    @cached_property
    def _order(self) -> dict[Place, int]:
        return {(step.name, layer): number for number, (step, layer) in enumerate(self.steps.rows)}

    def _source(self, made: list[Place]) -> Place:
        """What the first of some steps is computed from."""
        first = min(made, key=self._order.__getitem__)
        sources = self.steps.sources(self.steps.at(*first), first[1])
        return sources[0] if sources else first

    def _last(self, made: list[Place]) -> Place:
        """The last step that follows from these and from what the first of them is computed from."""
        start, last = min(self._order[place] for place in made), self._source(made)
        known, layers = {*made, last}, {layer for _, layer in made}
        for step, layer in self.steps.rows[start:]:
            place, sources = (step.name, layer), self.steps.sources(step, layer)
            follows = layer in layers and not step.module and sources and known.issuperset(sources)
            if step.is_tensor and not step.is_vocabulary and (place in known or follows):
                known.add(place)
                last = place
        return last

    def _without_parameters(self, name: str) -> tuple[Meaning, ...]:
        config, steps = self.steps.config, self.steps
        for pattern, words in self.without_parameters:
            match = re.fullmatch(pattern, name)
            if match is None:
                continue
            layer = int(match[1]) if match.re.groups else None
            if words == "final" or (words, layer) == ("in", config.n_layers):  # of transformers the last one is normed
                step = steps.by_name[steps.final]
                return (Meaning((step.name, config.n_layers - 1 if step.in_layer else None)),)
            there = [word for word in (steps.synonym(one) or one for one in words.split()) if steps.has(word, layer)]
            return tuple(Meaning((one, layer), how=self._rows_of(one), certain=one == there[-1]) for one in there)
        return ()

    def _rows_of(self, step: str) -> Stored | None:
        """The order of the rows of queries and keys, which GGML's graphs have too."""
        role = self.steps.by_name[step].role
        how = self.table.stored.get(f"blocks.{{n}}.attention.{role}")
        return Stored(how.module, paired=how.paired) if how is not None and how.paired and role in ("q", "k") else None


@lru_cache(maxsize=1)
def _tables() -> tuple[FamilyTable, ...]:
    """Every family's table, also with the heads of classes, and GGUF's with joint queries, keys and values."""
    heads = [replace(one, stored={**one.stored, **h.stored}) for one in FAMILIES.values() for h in one.heads.values()]
    joint = [
        replace(one, stored={**one.stored, **fused("blk.{n}.attn_qkv")})
        for one in ARCHITECTURES.values()
        if "blk.{n}.attn_q" in {how.module for how in one.stored.values()}
    ]
    return (*FAMILIES.values(), *heads, *ARCHITECTURES.values(), *joint)


def _best(names: list[str], steps: StepTable) -> Layout | None:
    """The family whose names these are: it knows most of them, and of several the one most like the model."""
    config = steps.config
    best: tuple[tuple[int, int, int], Layout] | None = None
    for table in _tables():
        layout = Layout(table, steps)
        known = sum(1 for name in names if layout.knows(name))
        fits = all(getattr(config, name) == value for name, value in table.fixed.items())
        rank = known, int(fits), layout.covered
        if best is None or rank > best[0]:
            best = rank, layout
    return None if best is None else best[1]
