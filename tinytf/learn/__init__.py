"""Lessons about a user's own text and model, in the order of the pipeline.

This module has their names, titles and texts, and imports no torch; ``tinytf.learn.course`` computes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, ClassVar

from tinytf.errors import UsageError
from tinytf.files import parse_toml
from tinytf.nearest import did_you_mean
from tinytf.report import Data, Report
from tinytf.tables import ColumnStyle

TEXTS: Mapping[str, Any] = parse_toml((files("tinytf") / "assets" / "lessons.toml").read_text("utf-8"))
"""The texts of each lesson, in the order of the pipeline; a lesson's number is its position here, from 1."""
TITLES: Mapping[str, str] = {name: texts["title"] for name, texts in TEXTS.items()}
NAMES = tuple(TITLES)
OF_TWO_STACKS = tuple(name for name, texts in TEXTS.items() if texts.get("two_stacks"))
"""The last lessons, which only a model of two stacks has."""
OF_ANY = NAMES[: -len(OF_TWO_STACKS)]
_ALIASES = {
    "q/k/v": "qkv",
    "ffn": "feed-forward",
    "optimizer": "optimiser",
    "attention": "scores",
    "adam": "optimiser",
    "two-stacks": "encoder-decoder",
} | dict.fromkeys(("warm-up", "warmup", "clipping", "dry-run"), "schedule")


@dataclass(frozen=True)
class Listed(Data):
    """A lesson in the list of all. ``right`` is whether its question was answered right, None without an answer."""

    COLUMNS: ClassVar = {
        "number": ColumnStyle("#"),
        "name": ColumnStyle("lesson"),
        "right": ColumnStyle(
            "", {True: "✓", False: "✗"}.__getitem__, "left", role={True: "good", False: "bad", None: ""}.__getitem__
        ),
        "title": ColumnStyle(""),
    }

    number: int
    name: str
    title: str
    right: bool | None = None


@dataclass(frozen=True)
class LessonList(Report):
    """Number, name and title of every lesson, and how its question was answered."""

    KIND = "lesson_list"
    EVENTS: ClassVar = {"lessons": "lesson"}
    ROWS = "lessons"

    lessons: tuple[Listed, ...] = tuple(Listed(number, *row) for number, row in enumerate(TITLES.items(), 1))

    def answered(self, answers: Mapping[str, bool]) -> "LessonList":
        """The list with the answers to some lessons, by name: whether they were right."""
        return replace(self, lessons=tuple(replace(row, right=answers.get(row.name)) for row in self.lessons))

    @property
    def sentence(self) -> str:
        """How many questions were answered, and how many right; empty without an answer."""
        answers = [row.right for row in self.lessons if row.right is not None]
        return f"{sum(answers)} of {len(answers)} answered right; there are {len(NAMES)}." if answers else ""

    def fields(self) -> dict[str, Any]:
        return self.members("lessons")


def find(word: str) -> int:
    """The number of a lesson, from its number or name. Raises UsageError, with the nearest lesson, if unknown."""
    text = word.strip().casefold()
    text = _ALIASES.get(text, text)
    if text in TITLES:
        return NAMES.index(text) + 1
    if text.lstrip("-").isdecimal():
        if len(text) <= 3 and 1 <= int(text) <= len(NAMES):
            return int(text)
        nearest = 1 if text.startswith("-") or not text.strip("0") else len(NAMES)
        message = f"there is no lesson {text[:12]}: there are {len(NAMES)}, numbered 1 to {len(NAMES)}"
        raise UsageError(message, f"the nearest is {nearest}, {NAMES[nearest - 1]}")
    raise UsageError(
        f"there is no lesson {word!r}", did_you_mean(text, NAMES, otherwise="tinytf learn --list names them all")
    )
