"""The words of tinytf's screens, from the tables of steps, lessons and kinds of heads, and one of other words.

Imports no torch.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from math import inf, prod
from typing import Any, ClassVar

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.files import parse_toml
from tinytf.learn import TITLES
from tinytf.look.heads.kinds import LABELS
from tinytf.nearest import did_you_mean
from tinytf.parts.row import TEXT_AXES, K, Nearest, Q, Step, V
from tinytf.presets import PRESETS
from tinytf.report import Data, Report
from tinytf.steps.table import STEPS, StepTable, described

_WORDS = parse_toml((files("tinytf") / "assets" / "words.toml").read_text("utf-8"))
OTHER_STEP = "step of other models"
KINDS = ("word", "parameter", "head", "lesson", "step", OTHER_STEP)
"""The kinds of words, in the order in which they are listed."""
WAY = "way"
"""The kind of a line that does what was asked for, which is no word."""
EXAMPLE = "'The cat sat'"
"""The text of commands that show a word, where the reader has none."""
_COUNTS = {"head": "n_heads", "kv head": "n_kv_heads", "vocab": "vocab_size", "expert": "experts", "layer": "n_layers"}
"""The setting that is the size of an axis with another name."""


@dataclass(frozen=True)
class Word(Data):
    """A word and its ``meaning`` in one line; ``kind`` is one of ``KINDS``, or ``WAY``.

    ``more`` are labels with what there is to add, and ``read`` the commands to read on with.
    """

    LESS: ClassVar = ("more", "read")

    name: str
    kind: str
    meaning: str
    more: tuple[tuple[str, str], ...] = ()
    read: tuple[str, ...] = ()


@dataclass(frozen=True)
class Glossary(Report):
    """All words, those of the field first; a word of several kinds has its first meaning here."""

    KIND = "glossary"
    EVENTS: ClassVar = {"words": "word"}

    words: tuple[Word, ...]

    def fields(self) -> dict[str, Any]:
        return self.members("words")


@dataclass(frozen=True)
class Meanings(Report):
    """What one word means in each table that has it."""

    KIND = "meanings"
    EVENTS: ClassVar = {"meanings": "meaning"}

    meanings: tuple[Word, ...]

    def fields(self) -> dict[str, Any]:
        return {
            "meanings": [{**word.to_dict(), "more": _joined(word.more), "read": word.read} for word in self.meanings]
        }


def _joined(facts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Facts by label; those that share one are joined by semicolons."""
    return {label: "; ".join(fact for other, fact in facts if other == label) for label, _ in facts}


def _table(config: ModelConfig | None = None) -> Iterator[Word]:
    """Every meaning of every word: of the field, of parameters and heads, of lessons, and of steps.

    Formulas, shapes and addresses are those of the model with ``config``, where it has the step; without one they are
    those of a Llama, without sizes.
    """
    layers = described(PRESETS["llama-tiny"] if config is None else config)
    own = {name: step for name, (step, _) in layers.items()}
    at = {name: f"L{layer}." * step.in_layer for name, (step, layer) in layers.items()}
    for name, word in _WORDS.items():
        steps = [own[step] for step in word.get("steps", ()) if step in own]
        steps = steps or [_ordinary(step) for step in word.get("steps", ())]
        formulas = [word.get("formula", ""), *map(_formula, steps)]
        facts = [("formula", formula) for formula in formulas if formula]
        shapes = [word["shape"]] if "shape" in word else [_sized(word["axes"], config)] if "axes" in word else []
        shapes = shapes or [_shape(step, config) for step in steps[-1:] if step.axes]
        facts += [("shape", shape) for shape in shapes]
        facts += [
            ("more", " ".join(word["more"].split())),
            *(_elsewhere(steps[0]) if len(steps) == 1 and "formula" not in word else ()),
        ]
        yield Word(name, "word", word["is"], tuple(facts), tuple(_fitted(word, at)))
    for step in own.values():
        if step.axes and step.matrix and re.search(rf"·{step.matrix}(?!ᵀ)", step.formula):
            read = (f"trace --at {at[step.name]}{step.parameter}", f"trace TEXT --at {at[step.name]}{step.name}")
            facts = [("formula", _formula(step))]
            yield Word(
                step.parameter, "parameter", f"the learned matrix of {step.title}", tuple(facts),
                (*read, *_lesson(step.name)),
            )  # fmt: skip
    for label in LABELS:
        facts = [
            ("formula", f"{label.score.replace('_', ' ')} = {label.formula}"),
            ("shape", _sized(("head",), config)),
        ]
        facts += [("counted from", f"{label.score.replace('_', ' ')} ≥ {label.least:g}")]
        commands = ("heads", "attention TEXT", "learn heads")
        yield Word(f"{label.name} head", "head", f"a head that {label.meaning}", tuple(facts), commands)
    for name, title in TITLES.items():
        yield Word(name, "lesson", title, (), (f"learn {name}",))
    for name in dict.fromkeys(step.name for step in STEPS):
        step = own.get(name) or _ordinary(name)
        formula, shape = _formula(step), _shape(step, config)
        facts = [*([("formula", formula)] if formula else []), *([("shape", shape)] if step.is_tensor else [])]
        shown = (f"trace TEXT --at {at[name]}{name}",) if step.is_tensor and name in own else ()
        kind = "step" if name in own else OTHER_STEP
        yield Word(name, kind, step.title, (*facts, *_elsewhere(step)), (*shown, "trace TEXT --teach", *_lesson(name)))


def _fitted(word: Mapping[str, Any], at: Mapping[str, str]) -> Iterator[str]:
    """The commands of a word, at steps that the model has, each in the first layer with it."""
    instead = next((step for step in word.get("steps", ()) if step in at), "")
    for line in word["read"]:
        found = _AT.search(line)
        name = "" if found is None else found["step"] if found["step"] in at else instead
        if found is None:
            yield line
        elif name:
            yield line.replace(found[0], at[name].replace(".", f"{found['head'] or ''}.") + name)


def _lesson(step: str) -> Iterator[str]:
    """The lesson of the word of the field that a step belongs to, if there is one."""
    words = (word for word in _WORDS.values() if step in word.get("steps", ()))
    yield from itertools.islice((line for word in words for line in word["read"] if line.startswith("learn ")), 1)


def _ordinary(name: str) -> Step:
    """The row of a step in the most ordinary kind of model that has it."""
    rows = [step for step in STEPS if step.name == name]
    return next((step for step in rows if step.mixer in ("", "attention")), rows[0])


def _elsewhere(step: Step) -> Iterator[tuple[str, str]]:
    """What a step of this name is in other models, in one line."""
    titles = dict.fromkeys(row.title for row in STEPS if row.name == step.name and row.title != step.title)
    if titles:
        yield "elsewhere", "; ".join(titles)


def _shape(step: Step, config: ModelConfig | None) -> str:
    return _sized(step.axes, config)


def _sized(axes: Sequence[str], config: ModelConfig | None) -> str:
    """Axes, and their sizes in a model as far as it has all."""
    named = f"({', '.join(axes)})"
    sizes = [_size(axis, config.at(0)) for axis in axes] if config else []
    return f"{named} = ({', '.join(sizes)})" if sizes and all(sizes) else named


def _size(axis: str, config: Any) -> str:
    """The size of an axis; empty if the configuration does not name it."""
    if axis in TEXT_AXES:
        return {"source": "S"}.get(axis, "T")
    factors = [getattr(config, _COUNTS.get(name, name), None) for name in axis.split("·")]
    known = [factor for factor in factors if isinstance(factor, int) and factor]
    return str(prod(known)) if len(known) == len(factors) else ""


def _formula(step: Step) -> str:
    """The formula after the step's name; empty where, without a model, its words or inputs are not known."""
    formula = step.formula
    if any(sign in formula for sign in ("{", "<")) and any("<" in name or "{" in formula for name in step.inputs):
        roles = [name.role if isinstance(name, Nearest) and name in (Q, K, V) else name for name in step.inputs]
        try:
            formula = "" if any("<" in name for name in roles) else formula.format(*roles)
        except (KeyError, IndexError):
            formula = ""
    defines = formula.startswith(f"{step.symbol} = ") and step.symbol
    return formula if not formula or defines else f"{step.name} = {formula}"


def glossary(config: ModelConfig | None = None) -> Glossary:
    """Every word: those of the field first, then parameters, heads, lessons, and steps, the model's own before others.

    Each kind is in the order of the alphabet; a word of several kinds stands with the first.
    """
    entries: dict[str, Word] = {}
    for word in _table(config):
        entries.setdefault(word.name, word)
    return Glossary(tuple(sorted(entries.values(), key=lambda word: (KINDS.index(word.kind), word.name.casefold()))))


_ASKING = re.compile(
    r"(?:(?:what|who)(?:'s|s| is| are| does)|how do(?:es)?|explain|define|meaning of)\s+"
    r"(?:(?:a|an|the)\s+)?(.+?)(?:\s+(?:mean|do|work))?",
    re.IGNORECASE,
)


_AT = re.compile(r"(?:(?<= )L0(?P<head>H0)?\.|(?<=--at ))(?P<step>[a-z][a-z_0-9]*(?:\.[a-z]+)?)")
"""A step in the commands of the table of words."""
_PLACE = re.compile(r"L(?P<layer>[0-9]+)(?:[HE][0-9]+)?\.")
"""The layer and head of an address, whose step is the word."""


def asked(text: str) -> str:
    """The word that a question such as ``what is softmax?`` asks for; the text itself if it is no such question."""
    bare = text.strip().rstrip("?!. ")
    found = _ASKING.fullmatch(bare)
    return found[1] if found else bare or text


def meanings_of(
    word: str, commands: Sequence[str] = (), config: ModelConfig | None = None, text: str = EXAMPLE
) -> Meanings:
    """What a word means, on the model with ``config`` if there is one; a kind of head may leave out "head".

    ``text`` takes the place of TEXT in the commands to read on with. Raises UsageError, with the nearest word or one
    of ``commands``, if unknown.
    """
    key = asked(word)
    if (place := _PLACE.match(key)) and int(place["layer"]) < (config.n_layers if config else inf):
        key = key[place.end() :]
    key = key.casefold()
    entries = list(_table(config))
    found = [entry for entry in entries if key in _spellings(entry)]
    if not found:
        names = [*commands, *(name for entry in entries for name in (entry.name, *_also(entry)))]
        what = "command or word" if commands else "word"
        raise UsageError(
            f"there is no {what} {word!r}", did_you_mean(key, names, otherwise="tinytf help words has all")
        )
    found = [_with_axes(entry, config) if entry.kind == "parameter" and config else entry for entry in found]
    said = {step for entry in found if entry.kind == "word" for step in _WORDS[entry.name].get("steps", ())}
    found = [entry for entry in found if entry.kind not in ("step", OTHER_STEP) or entry.name not in said]
    return Meanings(tuple(replace(entry, read=tuple(_with(line, text) for line in entry.read)) for entry in found))


def _also(entry: Word) -> Sequence[str]:
    also: Sequence[str] = _WORDS[entry.name].get("also", ()) if entry.kind == "word" else ()
    return also


def _with_axes(entry: Word, config: ModelConfig) -> Word:
    """The word of a parameter with its shape in the first layer that has it, which its operation knows."""
    table = StepTable(config)
    layer = next(layer for step, layer in table.rows if step.parameter == entry.name)
    _, parameter = table.parameter(entry.name, layer)
    return replace(entry, more=(*entry.more, ("shape", _sized(parameter.axes, config))))


def said_of(name: str) -> str:
    """What a word of the field means, in one sentence; empty if it is none."""
    return next((word["is"] for key, word in _WORDS.items() if name in (key, *word.get("also", ()))), "")


def field_words() -> Iterator[tuple[Word, Sequence[str]]]:
    """Each word of the field, with every way to type it."""
    return ((entry, [*_spellings(entry)]) for entry in _table() if entry.kind == "word")


def spellings() -> Iterator[str]:
    """Every way to type a word, without a model, in small letters."""
    return (name for entry in _table() for name in _spellings(entry))


def _spellings(entry: Word) -> Iterator[str]:
    """The ways to type a word, in small letters."""
    yield from (name.casefold() for name in (entry.name, *_also(entry)))
    if entry.kind == "head":
        yield entry.name.removesuffix(" head")


def _with(line: str, text: str) -> str:
    return " ".join(line.replace("TEXT", text).split())
