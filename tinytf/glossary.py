"""The words of tinytf's screens, from the tables of steps, lessons and kinds of heads, and one of other words.

Imports no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, ClassVar

from tinytf.errors import UsageError
from tinytf.files import parse_toml
from tinytf.lessons import TITLES
from tinytf.look.kinds import LABELS
from tinytf.nearest import did_you_mean
from tinytf.parts.row import K, Nearest, Q, Step, V
from tinytf.report import Data, Report
from tinytf.steps.table import STEPS

_WORDS = parse_toml((files("tinytf") / "assets" / "words.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Word(Data):
    """A word and its ``meaning`` in one line; ``kind`` is word, head, lesson or step.

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
    """All words, a line for each; a word of several tables has its first meaning here."""

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
        return {"meanings": [{**word.to_dict(), "more": dict(word.more), "read": word.read} for word in self.meanings]}


def _table() -> Iterator[Word]:
    """Every meaning of every word: of the table of words, of kinds of heads, of lessons, and of steps."""
    for name, word in _WORDS.items():
        yield Word(name, "word", word["is"], (("more", word["more"]),), tuple(word["read"]))
    for label in LABELS:
        counted = ("counted from", f"{label.score.replace('_', ' ')} ≥ {label.least:g}")
        yield Word(f"{label.name} head", "head", f"a head that {label.meaning}", (counted,), ("heads", "learn heads"))
    for name, title in TITLES.items():
        yield Word(name, "lesson", title, (), (f"learn {name}",))
    for step in STEPS:
        facts = {"formula": _formula(step), "shape": f"({', '.join(step.axes)})" if step.is_tensor else ""}
        address = f"L*.{step.name}" if step.in_layer else step.name
        read = (f"trace TEXT --at '{address}'", "trace TEXT --teach") if step.is_tensor else ("trace TEXT --teach",)
        yield Word(step.name, "step", step.title, tuple((key, fact) for key, fact in facts.items() if fact), read)


def _formula(step: Step) -> str:
    """Its formula; empty where the words or the inputs depend on the model. A query is q, however it was changed."""
    names = [name.role if isinstance(name, Nearest) and name in (Q, K, V) else name for name in step.inputs]
    try:
        return "" if any("<" in name for name in names) else step.formula.format(*names)
    except KeyError:
        return ""


def glossary() -> Glossary:
    """Every word in the order of the alphabet; a step has the titles that it has in different models."""
    entries: dict[str, list[Word]] = {}
    for word in _table():
        entries.setdefault(word.name, []).append(word)
    lines = []
    for first, *others in entries.values():
        alike = [first.meaning, *(word.meaning for word in others if word.kind == first.kind)]
        lines.append(replace(first, meaning="; ".join(dict.fromkeys(alike))))
    return Glossary(tuple(sorted(lines, key=lambda word: word.name.casefold())))


def meanings_of(word: str, commands: Sequence[str] = ()) -> Meanings:
    """What a word means; a kind of head may leave out "head".

    Raises UsageError, with the nearest word or one of ``commands``, if unknown.
    """
    text = word.strip().casefold()
    found = tuple(entry for entry in _table() if text in (entry.name.casefold(), entry.name.removesuffix(" head")))
    if not found:
        names = [*commands, *(entry.name for entry in _table())]
        what = "command or word" if commands else "word"
        raise UsageError(
            f"there is no {what} {word!r}", did_you_mean(text, names, otherwise="tinytf help words has all")
        )
    return Meanings(found)
