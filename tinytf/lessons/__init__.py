"""Lessons about a user's own text and model, in the order of the pipeline.

Here are their names, titles and texts, without torch; ``tinytf.lessons.course`` computes them.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import Data, Report
from tinytf.tables import ColumnStyle

TEXTS: Mapping[str, Any] = tomllib.loads((files("tinytf") / "assets" / "lessons.toml").read_text("utf-8"))
"""In the order of the pipeline; a lesson's number is its place here, from 1."""
TITLES: Mapping[str, str] = {name: texts["title"] for name, texts in TEXTS.items()}
NAMES = tuple(TITLES)
_ALSO = {"q/k/v": "qkv", "ffn": "feed-forward", "optimizer": "optimiser", "attention": "scores", "adam": "optimiser"}


@dataclass(frozen=True)
class Listed(Data):
    """A lesson in the list of all."""

    COLUMNS: ClassVar = {"number": ColumnStyle("#"), "name": ColumnStyle("lesson"), "title": ColumnStyle("")}

    number: int
    name: str
    title: str


@dataclass(frozen=True)
class LessonList(Report):
    """Number, name and title of every lesson."""

    KIND = "lesson_list"
    EVENTS: ClassVar = {"lessons": "lesson"}
    ROWS = "lessons"

    lessons: tuple[Listed, ...] = tuple(Listed(number, *row) for number, row in enumerate(TITLES.items(), 1))

    def fields(self) -> dict[str, Any]:
        return self.members("lessons")


def find(word: str) -> int:
    """The number of a lesson by its number or name. Raises UsageError, with the nearest, for an unknown one."""
    text = word.strip().casefold()
    text = _ALSO.get(text, text)
    if text in TITLES:
        return NAMES.index(text) + 1
    if text.lstrip("-").isdecimal():
        if len(text) <= 3 and 1 <= int(text) <= len(NAMES):
            return int(text)
        end = 1 if text.startswith("-") or not text.strip("0") else len(NAMES)
        said = f"there is no lesson {text[:12]}: there are {len(NAMES)}, 1 to {len(NAMES)}"
        raise UsageError(said, f"the nearest is {end}, {NAMES[end - 1]}")
    raise UsageError(
        f"there is no lesson {word!r}", did_you_mean(text, NAMES, otherwise="tinytf learn --list names them all")
    )
