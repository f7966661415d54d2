"""Worked examples in TOML: given values, computed steps, and the author's claims."""

import math
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.errors import AddressError, UsageError
from tinytf.files import SMALL, parse_toml, read_bytes
from tinytf.nearest import did_you_mean
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.words import AxisNames, as_slice, find_index
from tinytf.verify.claims import Claim, read_claim
from tinytf.verify.language import BY_NAME, Formula, LanguageError
from tinytf.verify.operations import CONSTANTS, OPERATIONS

_SHIPPED = Path(__file__).parents[1] / "assets" / "worked"
MOST_RANDOM = 20_000_000
"""The most numbers of a given random tensor."""
TOO_LARGE = 2**63
"""Whole numbers of this size and above do not fit a tensor."""


class ExampleError(UsageError):
    """A worked example that cannot be read, with the line and the field."""


@dataclass(frozen=True)
class ClaimedStep:
    """One operation and the result that the author claims; without a ``claim`` it is only computed.

    ``note`` says what is wrong with the claim and why. ``rows`` and ``columns`` name the cells of the last two axes.
    ``shown`` is true for a main result of the example, shown even if nothing is wrong with it.
    """

    name: str
    title: str
    formula: Formula
    claim: Claim | None
    note: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    line: int
    claim_line: int
    shown: bool


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of an example's token ids: its name, and a text with its ids to recognise it by."""

    name: str
    text: str
    ids: tuple[int, ...]

    def fits(self, tokenizer: Tokenizer) -> bool:
        """Whether a tokenizer has this vocabulary."""
        return tuple(tokenizer.encode(self.text).ids) == self.ids


@dataclass(frozen=True)
class Edit:
    """A number that replaces one of an example, or a tensor that replaces a whole value; see ``edits``.

    ``words`` are those of a cell, None for the whole; ``labels`` name its rows and columns. ``where`` is the line.
    """

    name: str
    words: tuple[str, ...] | None
    number: Any
    where: str
    labels: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def __str__(self) -> str:
        cell = "" if self.words is None else f"[{','.join(self.words)}]"
        return f"{self.name}{cell} = {self.number:g}" if np.ndim(self.number) == 0 else f"{self.name} = …"

    def applied(self, value: Any, copied: Callable[[Any], Any], convert: Callable[[Any], Any]) -> Any:
        """The value with the number in it. ``copied`` makes an array of a value, ``convert`` one of a number.

        Raises ExampleError for a cell that does not exist, and for another shape.
        """
        shape = np.shape(value)
        if isinstance(value, str) or getattr(getattr(value, "dtype", None), "kind", "f") in "US":
            raise ExampleError(f"{self.where}: {self.name} is a text, and has no numbers")
        if self.words is None:
            if np.shape(self.number) != shape:
                sizes = (in_words(np.shape(self.number)), in_words(shape))
                message = f"{self.where}: {self.name} would be {sizes[0]}, and is {sizes[1]}"
                raise ExampleError(message, "give as many numbers as it has")
            return convert(self.number)
        if len(self.words) > len(shape):
            raise ExampleError(f"{self.where}: {self.name} has {len(shape)} axes, and {len(self.words)} are named")
        last = list(zip(("row", "column"), self.labels, strict=True))[2 - min(2, len(shape)) :]
        kinds = [*[("index", tuple[str, ...]())] * (len(shape) - 2), *last]
        array, index = copied(value), list[int | slice]()
        for word, size, (axis, names) in zip(self.words, shape, kinds, strict=False):
            number = str(names.index(word)) if word in names else word
            try:
                index.append(as_slice(find_index(number, axis, size, AxisNames())))
            except AddressError as error:
                names_too = f", or by name: {', '.join(names)}" if names else ""
                hint = f"count from 0, such as {self.name}[{','.join('0' * len(shape))}]{names_too}"
                raise ExampleError(f"{self.where}: {error.message}", hint) from None
        array[tuple(index)] = self.number
        return array


def in_words(shape: tuple[int, ...]) -> str:
    """A shape in words."""
    return " × ".join(map(str, shape)) if len(shape) > 1 else f"{shape[0]} cells" if shape else "one number"


@dataclass(frozen=True)
class Example:
    """A worked example; ``path`` is its file, ``source`` the author's title.

    ``given`` holds the author's starting values by name: numbers, texts, and tensors (float64). ``edits`` are numbers
    put in their place and in that of computed ones.
    """

    name: str
    title: str
    source: str
    about: str
    given: Mapping[str, Any]
    steps: tuple[ClaimedStep, ...]
    path: Path
    seed: int = 0
    vocabulary: Vocabulary | None = None
    edits: tuple[Edit, ...] = ()

    def read_by(self, names: Collection[str]) -> frozenset[str]:
        """The given values and steps that the formulas of some steps read; for a gradient, all that leads to its loss.

        Raises ExampleError for a name that is no step.
        """
        formulas = {step.name: step.formula for step in self.steps}
        for name in names:
            if name not in formulas:
                raise ExampleError(f"{self.name} has no step {name!r}", did_you_mean(name, formulas))
        read = frozenset[str]().union(*(formulas[name].names for name in names))
        behind = [name for step in names if formulas[step].calls & BY_NAME for name in formulas[step].names]
        while behind:
            formula = formulas.get(behind.pop())
            if formula is not None:
                behind += formula.names - read
                read |= formula.names
        return read


def shipped() -> tuple[str, ...]:
    """The names of the examples that come with tinytf, sorted."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.toml")))


def open_example(name: str) -> Example:
    """Open an example by the name of a shipped one, or by its file. Raises ExampleError if there is none."""
    if name in shipped():
        return parse(_SHIPPED / f"{name}.toml")
    path = Path(name)
    if not path.exists() and not path.suffix:
        raise ExampleError(
            f"there is no worked example {name!r}, and no file of that name", did_you_mean(name, shipped())
        )
    return parse(path)


def parse(path: Path) -> Example:
    """Read a worked example. Raises ExampleError with the line and the field."""
    hint = "tinytf verify lists those that come with tinytf; samples/worked/README.md says how to write one"
    return _Reader(path, hint).example()


def read_toml(path: Path, hint: str) -> "tuple[Mapping[str, Any], _Lines]":
    """The data of a file, with Decimals, and its line numbers. Raises ExampleError; ``hint`` is for a missing file."""
    try:
        text = read_bytes(path, SMALL).decode("utf-8-sig")
    except OSError as error:
        raise ExampleError(f"cannot read {path}: {error.strerror}", hint) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ExampleError(f"{path}, line {line}: this is not UTF-8 text ({error.reason})") from None
    try:
        data = parse_toml(text, _decimal)
    except tomllib.TOMLDecodeError as error:
        raise ExampleError(f"{path} is not TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None
    except ValueError as error:
        raise ExampleError(f"cannot read {path} as TOML: {error}") from None
    return data, _Lines(text)


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace("_", ""))


class _Lines:
    """The line numbers of tables and fields; multi-line strings are skipped."""

    _TABLE = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]\]?")
    _FIELD = re.compile(r"""\s*["']?([\w-]+(?:\[[^"'\]]*\])?)["']?\s*=""")

    def __init__(self, text: str) -> None:
        self.at: dict[tuple[str, int, str], int] = {}
        table, counts, open_quotes = "", dict[str, int](), ""
        for number, line in enumerate(text.splitlines(), 1):
            if open_quotes:
                open_quotes = "" if open_quotes in line else open_quotes
                continue
            if match := self._TABLE.match(line):
                table = match[2]
                counts[table] = counts.get(table, -1) + 1
                self.at[table, counts[table], ""] = number
            elif match := self._FIELD.match(line):
                self.at.setdefault((table, counts.get(table, 0), match[1]), number)
            for quotes in ('"""', "'''"):
                if line.count(quotes) % 2:
                    open_quotes = quotes

    def of(self, table: str, index: int, field: str) -> int:
        """The line of a field, or of its table if the field is not found; 1 if neither is."""
        return self.at.get((table, index, field)) or self.at.get((table, index, "")) or 1


_EXAMPLE_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("title", "source", "about"), (str,)),
    "seed": (int,),
    "given": (dict,),
    "vocabulary": (dict,),
    "step": (list,),
}
_STEP_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "title", "value", "note"), (str,)),
    "claim": (int, str, Decimal, list),
    "tolerance": (int, Decimal),
    "shown": (bool,),
    **dict.fromkeys(("rows", "columns"), (list,)),
}
_TYPE_NAMES: dict[type, str] = {
    str: "text",
    int: "number",
    Decimal: "number",
    list: "list",
    dict: "table",
    bool: "yes or no",
}
_NAME = re.compile(r"[^\W\d]\w*")
_Fault = Callable[..., ExampleError]
"""A function that makes an error from a message, a hint and, if not yet bound, the field."""


class TomlReader:
    """Read the parts of one file; errors have the line and the field. ``hint`` is for a missing file."""

    def __init__(self, path: Path, hint: str) -> None:
        self.path, (self.data, self.lines) = path, read_toml(path, hint)

    def fault(self, message: str, hint: str = "", *, table: str = "", index: int = 0, field: str = "") -> ExampleError:
        position = f"{self.path}, line {self.lines.of(table, index, field)}"
        field_note = f", field {field!r}" if field else ""
        entry = f" of {self.entry(table, index)}" if isinstance(self.data.get(table), list) else ""
        return ExampleError(f"{position}{field_note}{entry}: {message}", hint)

    def entry(self, table: str, index: int) -> str:
        """An entry of a list of tables, in words."""
        return f"{table} {index + 1}"


class _Reader(TomlReader):
    def entry(self, table: str, index: int) -> str:
        step = self.data[table][index]
        name = step.get("name") if isinstance(step, dict) else None
        return f"{table} {name!r}" if isinstance(name, str) else super().entry(table, index)

    def example(self) -> Example:
        require_fields(self.data, _EXAMPLE_FIELDS, self.fault)
        seed = self.data.get("seed", 0)
        generator = np.random.default_rng(abs(seed))
        given = {name: self._given(name, value, generator) for name, value in self.data.get("given", {}).items()}
        if not self.data.get("step"):
            raise self.fault("there is no [[step]], so there is nothing to check")
        known = {*given, *CONSTANTS}
        return Example(
            name=self.path.stem,
            title=self.data.get("title", self.path.stem),
            source=self.data.get("source", ""),
            about=self.data.get("about", "").strip(),
            given=given,
            steps=tuple(self._step(index, step, known) for index, step in enumerate(self.data["step"])),
            path=self.path,
            seed=seed,
            vocabulary=self._vocabulary(),
        )

    def _vocabulary(self) -> Vocabulary | None:
        match self.data.get("vocabulary"):
            case None:
                return None
            case {"name": str(name), "text": str(text), "ids": [*ids], **rest} if not rest and _whole_numbers(ids):
                return Vocabulary(name, text, tuple(ids))
        message = "must have a name, a text, and the text's ids, which are whole numbers"
        raise self.fault(message, 'name = "GPT-2", text = "Hello", ids = [15496]', table="vocabulary")

    def _given(self, name: str, value: Any, generator: np.random.Generator) -> Any:
        fault = partial(self.fault, table="given", field=name)
        _require_name(name, CONSTANTS, fault)
        if isinstance(value, int) and abs(value) >= TOO_LARGE:
            raise fault("is too large a whole number")
        if isinstance(value, (str, bool, int)):
            return value
        if isinstance(value, Decimal):
            return float(value)
        if isinstance(value, dict):
            return _random(value, generator, fault)
        claim = _read(value, None, fault)
        return claim.shown if claim.words else claim.values

    def _step(self, index: int, step: Any, known: set[str]) -> ClaimedStep:
        """A step whose formula may use the ``known`` names; its own is added to them."""
        fault = partial(self.fault, table="step", index=index)
        if not isinstance(step, dict):
            raise fault("a step is a table, [[step]]")
        require_fields(step, _STEP_FIELDS, fault)
        for field in ("name", "value"):
            if field not in step:
                raise fault(f"a step needs {field!r}")
        for field in ("rows", "columns"):
            if not all(isinstance(label, str) for label in step.get(field, ())):
                raise fault("must be a list of words", field=field)
        _require_name(step["name"], known, partial(fault, field="name"))
        try:
            formula = Formula.parse(step["value"], known, OPERATIONS)
        except LanguageError as error:
            raise fault(error.message, error.hint, field="value") from None
        known.add(step["name"])
        tolerance = float(step["tolerance"]) if "tolerance" in step else None
        if tolerance is not None and not tolerance >= 0:
            raise fault("a tolerance must be 0 or more", field="tolerance")
        return ClaimedStep(
            name=step["name"],
            title=step.get("title", ""),
            formula=formula,
            claim=_read(step["claim"], tolerance, partial(fault, field="claim")) if "claim" in step else None,
            note=" ".join(step.get("note", "").split()),
            rows=tuple(step.get("rows", ())),
            columns=tuple(step.get("columns", ())),
            line=self.lines.of("step", index, "value"),
            claim_line=self.lines.of("step", index, "claim"),
            shown=step.get("shown", False),
        )


def _whole_numbers(values: list[Any]) -> bool:
    return bool(values) and all(type(value) is int for value in values)


def require_fields(data: Mapping[str, Any], allowed: Mapping[str, tuple[type, ...]], fault: _Fault) -> None:
    """Raise the fault of a field that is not ``allowed``, or has another type."""
    for field, value in data.items():
        if field not in allowed:
            raise fault("there is no such field", did_you_mean(field, allowed), field=field)
        if not isinstance(value, allowed[field]) or (isinstance(value, bool) and field not in ("claim", "shown")):
            kinds = " or ".join(dict.fromkeys(_TYPE_NAMES[kind] for kind in allowed[field]))
            kind = _TYPE_NAMES.get(type(value), type(value).__name__)
            raise fault(f"is a {kind}, but must be a {kinds}", field=field)


def _require_name(name: str, known: Collection[str], fault: _Fault) -> None:
    if not _NAME.fullmatch(name):
        raise fault(f"{name!r} is not a name: use letters, digits and _")
    if name in CONSTANTS:
        raise fault(f"{name!r} is a constant")
    if name in known:
        raise fault(f"{name!r} is already defined")


def _read(data: Any, tolerance: float | None, fault: _Fault) -> Claim:
    try:
        return read_claim(data, tolerance)
    except ValueError as error:
        raise fault(str(error)) from None


def _random(value: Mapping[str, Any], generator: np.random.Generator, fault: _Fault) -> Any:
    shape, scale = value.get("random", ()), value.get("scale", 1)
    is_shape = isinstance(shape, list) and shape and all(type(n) is int and n > 0 for n in shape)
    if not is_shape or set(value) - {"random", "scale"} or not isinstance(scale, (int, Decimal)):
        raise fault("a table must be {random = [rows, columns]}, with an optional scale")
    if math.prod(shape) > MOST_RANDOM:
        raise fault(f"random tensors have at most {MOST_RANDOM:,} numbers")
    return generator.standard_normal(tuple(shape)) * float(scale)
