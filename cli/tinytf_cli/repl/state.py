"""The state of a session: the settings, the model and its runs, the stops and displays; and the log of lines."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.steps.table import Step
from tinytf.trace.address import Address
from tinytf_cli.numbers import plural
from tinytf_cli.output import Drawing
from tinytf_cli.repl.line import LONGEST, begun_name
from tinytf_cli.terminal import COLORMAPS, THEMES, Terminal, detect

if TYPE_CHECKING:
    from tinytf.text.chat import Written
    from tinytf.trace.conditions import Condition
    from tinytf.trace.trace import Trace

Rows = Sequence[tuple[Step, int | None]]
"""The steps of a model in their order, each with its layer."""

AUTO = "auto"
_SWITCH = ("on", "off")
_COLORS = (AUTO, "always", "never")
_ANY = range(10**6 + 1)
_SAID = 3
"""The most heads of which a stop says where it held."""


def _setting(
    default: Any, about: str, takes: str, choices: tuple[str, ...] = (), numbers: range = range(0)
) -> Any:  # a field of whatever type its default has
    return field(default=default, metadata={"about": about, "takes": takes, "choices": choices, "numbers": numbers})


@dataclass(frozen=True)
class Settings:
    """How things are shown; None is ``auto``."""

    precision: int | None = _setting(None, "digits after the point", "auto or 0 to 9", (AUTO,), range(10))
    dims: int = _setting(8, "dimensions shown as numbers", "1 or more", (), _ANY[1:])
    rows: int | None = _setting(None, "tokens shown in a table; 0 is all", "auto or a number", (AUTO,), _ANY)
    colormap: str = _setting("viridis", "colours of values in 0…1", ", ".join(COLORMAPS), COLORMAPS)
    theme: str = _setting(AUTO, "background to draw for", ", ".join(THEMES), THEMES)
    color: str = _setting(AUTO, "whether to use colour", ", ".join(_COLORS), _COLORS)
    width: int | None = _setting(None, "columns to draw in", "auto or 20 to 1000", (AUTO,), range(20, 1001))
    ascii: bool = _setting(False, "7-bit signs only", "on or off", _SWITCH)
    plain: bool = _setting(False, "sentences, no tables and maps", "on or off", _SWITCH)
    layer: int = _setting(0, "layer of an address without one", "a number", (), _ANY)
    head: int = _setting(0, "head of an address without one", "a number", (), _ANY)
    pager: bool = _setting(False, "long output a screen at a time", "on or off", _SWITCH)

    def terminal(self, stream: TextIO, color: str = "") -> Terminal:
        """What a stream can show under these settings; ``color`` replaces theirs."""
        drawing = {one.name: getattr(self, one.name) for one in fields(Drawing)}
        return detect(stream, **{**drawing, "color": color or self.color})

    def changed(self, name: str, word: str) -> "Settings":
        """The settings with one of them read from a word."""
        setting = find_setting(name)
        return replace(self, **{setting.name: setting.read(word)})


@dataclass(frozen=True)
class Setting:
    """One of the ``Settings``: a line ``about`` it, and what it ``takes``: one of ``choices``, or of ``numbers``."""

    name: str
    about: str
    takes: str
    choices: tuple[str, ...]
    numbers: range

    def shown(self, settings: Settings) -> str:
        """The value as it is typed."""
        value = getattr(settings, self.name)
        if value is None:
            return AUTO
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    def read(self, word: str) -> Any:
        """The value of a word; UsageError for one that the setting does not take."""
        if word in self.choices:
            return word == "on" if self.choices == _SWITCH else None if self.numbers else word
        if re.fullmatch("[0-9]{1,9}", word) and int(word) in self.numbers:
            return int(word)
        near = did_you_mean(word, self.choices) if self.choices else ""
        raise UsageError(f"{self.name} takes {self.takes}, and not {word!r}", near if near.endswith("?") else "")


SETTINGS = {one.name: Setting(one.name, **one.metadata) for one in fields(Settings)}


def find_setting(word: str) -> Setting:
    """A setting by its name or the beginning of one; UsageError for any other word."""
    name = begun_name(word, SETTINGS)
    if not name:
        raise UsageError(f"there is no setting {word!r}", did_you_mean(word, SETTINGS) or "show lists them")
    return SETTINGS[name]


@dataclass(frozen=True)
class Without:
    """The parts of attention that are left out and the steps that are ablated, by address.

    ``how`` says what replaces those steps: ``zero``, or the ``mean`` over a reference.
    """

    at: tuple[str, ...]
    how: str = "zero"
    reference: str | None = None

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(name for name in self.at if name not in LEFT_OUT)

    @property
    def words(self) -> str:
        source = f" over {self.reference}" if self.reference else ""
        parts = [name for name in self.at if name not in self.steps]
        return ", ".join([*parts, *([f"{', '.join(self.steps)} ({self.how}{source})"] if self.steps else [])])

    def to_dict(self) -> dict[str, Any]:
        """The ablation as JSON data."""
        return {"at": list(self.at), "how": self.how, "reference": self.reference}


@dataclass(frozen=True)
class Spec:
    """How a model is opened, and which of its steps are ablated."""

    name: str = "tiny"
    device: str = "auto"
    dtype: str = "float32"
    seed: int = 0
    adapter: Path | None = None
    without: Without | None = None

    @property
    def words(self) -> str:
        """The model by the name that was asked for, its adapter, and what is ablated."""
        merged = f" + {self.adapter.name}" if self.adapter else ""
        return self.name + merged + (f" without {self.without.words}" if self.without else "")


@dataclass(frozen=True)
class Run:
    """One text through one model."""

    spec: Spec
    text: "Written"
    truncate: bool = False
    force: bool = False


@dataclass(frozen=True)
class Stop:
    """A breakpoint at the steps of ``where`` (None: at every step), if ``condition`` holds there."""

    number: int
    where: Address | None
    condition: "Condition | None"

    @property
    def words(self) -> str:
        at = str(self.where or "every step")
        return f"{at} if {self.condition.text}" if self.condition else at

    def to_dict(self) -> dict[str, Any]:
        """The stop as JSON data."""
        return {
            "number": self.number,
            "at": str(self.where) if self.where else None,
            "if": self.condition.text if self.condition else None,
        }

    def is_at(self, rows: Rows, place: int) -> bool:
        """Whether it is at a step. One at a whole layer is at its first step, and with a condition at each."""
        (step, layer), where = rows[place], self.where
        if where is None:
            return True
        if where.layers is not None and layer not in where.layers:
            return False
        if where.step is None:
            return self.condition is not None or place == 0 or rows[place - 1][1] != layer
        return where.step.name == step.name and (where.layers is not None or layer is None)

    def held(
        self, trace: "Trace", step: Step, layer: int | None, before: "Trace | None", find: Callable[[str], int]
    ) -> str | None:
        """What it says at a step where it holds: itself, and where its condition does; None where it does not.

        Several heads that it names are each looked at alone.
        """
        from tinytf.trace.measures import Moment

        words = f"stop {self.number}: {self.words}"
        if self.condition is None:
            return words
        heads = self.where.parts_of(step) if self.where is not None else None
        cell = self.where.cell if self.where is not None else ()
        each = [heads] if heads is None or len(heads) == 1 else [(head,) for head in heads]
        moments = [Moment(trace, step, layer, some, cell, before, find) for some in each]
        holding = [moment for moment in moments if self.condition.holds(moment)]
        if not holding:
            return None
        more = f" and in {plural(len(holding) - _SAID, 'more head')}" if len(holding) > _SAID else ""
        return f"{words}: {'; '.join(self.condition.said(one) for one in holding[:_SAID])}{more}"


@dataclass(frozen=True)
class State:
    """Everything that a line can change; ``runs`` are the last two, the present one last.

    ``place`` is the index of the present step, and ``head`` the one that ``goto`` named. States that differ in these
    alone are equal: ``undo`` undoes no movement.
    """

    spec: Spec = field(default_factory=Spec)
    runs: tuple[Run, ...] = ()
    settings: Settings = field(default_factory=Settings)
    stops: tuple[Stop, ...] = ()
    displays: tuple[str, ...] = ()
    place: int | None = field(default=None, compare=False)
    head: int | None = field(default=None, compare=False)


@dataclass
class Entry:
    """A line that was executed; ``done`` is false if it failed, ``verb`` is what its first word means.

    ``before`` is the state that ``undo`` restores; None where the line changed nothing.
    """

    line: str
    done: bool
    verb: str
    before: State | None = None
    undone: bool = False


class Log:
    """The lines of a session."""

    def __init__(self) -> None:
        self.lines: list[Entry] = []

    def last_change(self) -> Entry:
        """The last line that changed something and was not undone; UsageError without one."""
        for entry in reversed(self.lines):
            if entry.before is not None and not entry.undone:
                return entry
        hint = "undo restores the model, text, ablations, settings, stops and displays"
        raise UsageError("there is nothing to undo", hint)

    def remember(self, entry: Entry, before: State, now: State) -> State:
        """Record a line, and return the state that holds after it: a line that failed changes nothing.

        ``source`` and ``explore`` are not recorded: each line that they ran was.
        """
        if len(entry.line) > LONGEST or entry.verb in ("source", "explore"):
            return now
        if entry.done and now != before:
            if entry.verb == "undo":
                self.last_change().undone = True
            else:
                entry.before = before
        self.lines.append(entry)
        return now if entry.done else before
