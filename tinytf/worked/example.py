"""A worked example as its author writes it, in TOML: what is given, what is computed, what is claimed."""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.errors import TinytfError
from tinytf.nearest import did_you_mean
from tinytf.worked.claims import Claim, read_claim
from tinytf.worked.language import Formula, LanguageError
from tinytf.worked.operations import CONSTANTS, OPERATIONS

MOST_RANDOM = 20_000_000
"""Numbers that a given random tensor may have."""
_MOST_WHOLE = 2**63
"""Where whole numbers of tensors end."""


class ExampleError(TinytfError):
    """A worked example that cannot be read, with the line and the field."""

    exit_status = 2


@dataclass(frozen=True)
class Given:
    """Something that the author starts from: a number, a text, or a tensor (float64)."""

    name: str
    value: Any


@dataclass(frozen=True)
class ClaimedStep:
    """One operation and what the author says that it gives; without a ``claim`` it is only computed.

    ``note`` says what is wrong with the claim and why. ``rows`` and ``columns`` name the cells of the last two axes.
    """

    name: str
    title: str
    formula: Formula
    claim: Claim | None
    note: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Example:
    """A worked example; ``path`` is where it stands, ``source`` what the author called it."""

    name: str
    title: str
    source: str
    about: str
    given: tuple[Given, ...]
    steps: tuple[ClaimedStep, ...]
    path: Path
    seed: int = 0


def parse(path: Path) -> Example:
    """Read a worked example. Raises ExampleError, which names the line and the field."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        hint = "tinytf verify lists those that come with tinytf; samples/worked/README.md says how to write one"
        raise ExampleError(f"cannot read {path}: {error.strerror}", hint) from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ExampleError(f"{path}, line {line}: this is not UTF-8 text ({error.reason})") from None
    try:
        data = tomllib.loads(text, parse_float=_decimal)
    except tomllib.TOMLDecodeError as error:
        raise ExampleError(f"{path} is not TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None
    except (RecursionError, ValueError) as error:
        raise ExampleError(f"{path} is not TOML that can be read: {error}") from None
    return _Reader(path, data, _Lines(text)).example()


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace("_", ""))


class _Lines:
    """On which line each table and field stands; a text in three quotes is passed over."""

    _TABLE = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]\]?")
    _FIELD = re.compile(r"\s*([\w-]+)\s*=")

    def __init__(self, text: str) -> None:
        self.at: dict[tuple[str, int, str], int] = {}
        table, counts, inside = "", dict[str, int](), ""
        for number, line in enumerate(text.splitlines(), 1):
            if inside:
                inside = "" if inside in line else inside
                continue
            if match := self._TABLE.match(line):
                table = match[2]
                counts[table] = counts.get(table, -1) + 1
                self.at[table, counts[table], ""] = number
            elif match := self._FIELD.match(line):
                self.at.setdefault((table, counts.get(table, 0), match[1]), number)
            for quotes in ('"""', "'''"):
                if line.count(quotes) % 2:
                    inside = quotes

    def of(self, table: str, place: int, field: str) -> int:
        """The line of a field, or of its table where it cannot be found; 1 for the file."""
        return self.at.get((table, place, field)) or self.at.get((table, place, "")) or 1


_TOP: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("title", "source", "about"), (str,)),
    "seed": (int,),
    "given": (dict,),
    "step": (list,),
}
_STEP: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "title", "value", "note"), (str,)),
    "claim": (int, str, Decimal, list),
    "tolerance": (int, Decimal),
    **dict.fromkeys(("rows", "columns"), (list,)),
}
_NAME = re.compile(r"[^\W\d]\w*")


class _Reader:
    """Reads the parts of one file, saying of each fault where it is."""

    def __init__(self, path: Path, data: Mapping[str, Any], lines: _Lines) -> None:
        self.path, self.data, self.lines = path, data, lines

    def fault(self, said: str, hint: str = "", *, table: str = "", place: int = 0, field: str = "") -> ExampleError:
        where = f"{self.path}, line {self.lines.of(table, place, field)}"
        step = self._step_name(place) if table == "step" else ""
        named = f", field {field!r}" if field else ""
        return ExampleError(f"{where}{named}{step}: {said}", hint)

    def _step_name(self, place: int) -> str:
        step = self.data["step"][place]
        name = step.get("name") if isinstance(step, dict) else None
        return f" of step {name!r}" if isinstance(name, str) else f" of step {place + 1}"

    def example(self) -> Example:
        self._require_fields(self.data, _TOP, self.fault)
        given = self._given()
        return Example(
            name=self.path.stem,
            title=self.data.get("title", self.path.stem),
            source=self.data.get("source", ""),
            about=self.data.get("about", "").strip(),
            given=given,
            steps=self._steps({one.name for one in given}),
            path=self.path,
            seed=self.data.get("seed", 0),
        )

    def _given(self) -> tuple[Given, ...]:
        generator = np.random.default_rng(abs(self.data.get("seed", 0)))
        found = []
        for name, value in self.data.get("given", {}).items():
            self._require_name(name, "given", 0, name, ())
            found.append(Given(name, self._given_value(name, value, generator)))
        return tuple(found)

    def _given_value(self, name: str, value: Any, generator: np.random.Generator) -> Any:
        if isinstance(value, int) and abs(value) >= _MOST_WHOLE:
            raise self.fault("is too large a whole number", table="given", field=name)
        if isinstance(value, (str, bool, int)):
            return value
        if isinstance(value, Decimal):
            return float(value)
        if isinstance(value, dict):
            return self._random(name, value, generator)
        try:
            claim = read_claim(value, None)
        except ValueError as error:
            raise self.fault(str(error), table="given", field=name) from None
        return claim.shown if claim.words else claim.values

    def _random(self, name: str, value: Mapping[str, Any], generator: np.random.Generator) -> Any:
        shape, scale = value.get("random"), value.get("scale", 1)
        sound = isinstance(shape, list) and shape and all(type(n) is int and n > 0 for n in shape)
        if not sound or set(value) - {"random", "scale"} or not isinstance(scale, (int, Decimal)):
            said = "a given table is {random = [rows, columns]}, with a scale if need be"
            raise self.fault(said, table="given", field=name)
        assert shape is not None
        if np.prod(shape, dtype=object) > MOST_RANDOM:
            raise self.fault(f"random tensors have at most {MOST_RANDOM:,} numbers", table="given", field=name)
        return generator.standard_normal(tuple(shape)) * float(scale)

    def _steps(self, known: set[str]) -> tuple[ClaimedStep, ...]:
        steps = self.data.get("step", [])
        if not steps:
            raise self.fault("there is no [[step]], so there is nothing to check")
        return tuple(self._step(place, step, known) for place, step in enumerate(steps))

    def _require_fields(
        self, data: Mapping[str, Any], known: Mapping[str, tuple[type, ...]], fault: Callable[..., ExampleError]
    ) -> None:
        for field, value in data.items():
            if field not in known:
                raise fault("there is no such field", did_you_mean(field, known), field=field)
            if not isinstance(value, known[field]) or (isinstance(value, bool) and field != "claim"):
                kinds = " or ".join(dict.fromkeys(_WORDS[kind] for kind in known[field]))
                raise fault(f"is a {_kind(value)}, and should be a {kinds}", field=field)

    def _step(self, place: int, step: Any, known: set[str]) -> ClaimedStep:
        fault = partial(self.fault, table="step", place=place)
        if not isinstance(step, dict):
            raise fault("a step is a table, [[step]]")
        self._require_fields(step, _STEP, fault)
        for field in ("name", "value"):
            if field not in step:
                raise fault(f"a step needs {field!r}")
        self._require_name(step["name"], "step", place, "name", known)
        try:
            formula = Formula.parse(step["value"], known | set(CONSTANTS), OPERATIONS)
        except LanguageError as error:
            raise fault(error.message, error.hint, field="value") from None
        known.add(step["name"])
        return ClaimedStep(
            name=step["name"],
            title=step.get("title", ""),
            formula=formula,
            claim=self._claim(place, step),
            note=" ".join(step.get("note", "").split()),
            rows=self._labels(place, step, "rows"),
            columns=self._labels(place, step, "columns"),
            line=self.lines.of("step", place, "value"),
        )

    def _claim(self, place: int, step: Mapping[str, Any]) -> Claim | None:
        tolerance = float(step["tolerance"]) if "tolerance" in step else None
        if tolerance is not None and not tolerance >= 0:
            raise self.fault("a tolerance is 0 or more", table="step", place=place, field="tolerance")
        if "claim" not in step:
            return None
        try:
            return read_claim(step["claim"], tolerance)
        except ValueError as error:
            raise self.fault(str(error), table="step", place=place, field="claim") from None

    def _labels(self, place: int, step: Mapping[str, Any], field: str) -> tuple[str, ...]:
        labels: Sequence[Any] = step.get(field, ())
        if not all(isinstance(label, str) for label in labels):
            raise self.fault("is a list of words", table="step", place=place, field=field)
        return tuple(labels)

    def _require_name(self, name: str, table: str, place: int, field: str, known: Collection[str]) -> None:
        said = ""
        if not _NAME.fullmatch(name):
            said = f"{name!r} is no name: letters, digits and _"
        elif name in CONSTANTS:
            said = f"{name!r} is a constant"
        elif name in known:
            said = f"{name!r} is there already"
        if said:
            raise self.fault(said, table=table, place=place, field=field)


_WORDS: dict[type, str] = {
    str: "text",
    int: "number",
    Decimal: "number",
    list: "list",
    dict: "table",
    bool: "yes or no",
}


def _kind(value: Any) -> str:
    return _WORDS.get(type(value), type(value).__name__)
