"""The state of a session: the model and its runs, settings, stops, displays and aliases."""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytf.config import LEFT_OUT
from tinytf.outputs import Fence, current_fence, fenced
from tinytf.parts.row import Step
from tinytf.trace.address import Address
from tinytf_cli.numbers import plural
from tinytf_cli.repl.settings import Settings

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.text.chat import Written
    from tinytf.trace.conditions import Condition
    from tinytf.trace.measures import Moment
    from tinytf.trace.trace import Trace

Rows = Sequence[tuple[Step, int | None]]
"""The steps of a model in order, each with its layer (None outside the layers)."""


def find_row(rows: Rows, name: str, layer: int | None) -> int | None:
    """The index of a step among the rows, by its name and layer; None if the model lacks it."""
    return next((row for row, (step, of_layer) in enumerate(rows) if (step.name, of_layer) == (name, layer)), None)


_SCHEMES = ("preset:", "hub:", "ollama:", "lmstudio:")
_MOST_HEADS = 3
"""The most heads that the message of a stop describes."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A part of a session's state, with the ``fence`` of the stranger's line that made or last changed it, if any.

    Whatever the part stands for is opened, evaluated or run inside its fence, also after the stranger's file has ended.
    """

    fence: Fence | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fence", current_fence() or self.fence)


@dataclass(frozen=True)
class Alias(Made):
    """A word that stands for a line; a stranger's has a meaning only in the lines of the file that made it."""

    name: str
    line: str


@dataclass(frozen=True)
class Display(Made):
    """An address that is shown after each movement."""

    address: str


@dataclass(frozen=True)
class Movement(Made):
    """A line that Enter repeats: a verb and its arguments, without options and redirection."""

    line: str = ""


@dataclass(frozen=True)
class Ablation:
    """The addresses of ablated steps, and the parts of attention that are left out.

    ``how`` says what replaces the steps: ``zero``, or the ``mean`` over a reference.
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


OPENED_BY = ("device", "dtype", "seed", "adapter", "tokenizer", "through", "keep_quantized")
"""The options of a model that say how it is opened."""


@dataclass(frozen=True)
class Spec(Made):
    """How a model is opened, what it ``reads``, which of its steps are ablated, and which ``numbers`` are set."""

    name: str = "tiny"
    device: str = "auto"
    dtype: str = "float32"
    seed: int = 0
    adapter: Path | None = None
    tokenizer: str | None = None
    through: str | None = None
    keep_quantized: bool = False
    without: Ablation | None = None
    numbers: tuple[tuple[str, float], ...] = ()
    reads: str = ""

    @property
    def whole(self) -> "Spec":
        """The model as it was opened."""
        return replace(self, without=None, numbers=(), reads="")

    @property
    def changes(self) -> dict[str, str]:
        """What is changed in the model, in words: what it ``reads``, is ``without``, and has ``set``."""
        set_words = ", ".join(f"{at} = {number:g}" for at, number in self.numbers)
        changes = {"reads": self.reads, "without": self.without.words if self.without else "", "set": set_words}
        return {name: words for name, words in changes.items() if words}

    @property
    def changes_data(self) -> dict[str, Any]:
        """What is changed in the model, as JSON data."""
        data = {"reads": self.reads, "without": self.without and self.without.to_dict(), "set": dict(self.numbers)}
        return {name: value for name, value in data.items() if value}

    @property
    def options(self) -> dict[str, Any]:
        """The options of the model by name, as ``model`` and the commands take them."""
        return {name: getattr(self, name) for name in OPENED_BY}

    @property
    def short(self) -> str:
        """``words``, with only the last component of a path."""
        basename = "" if self.name.startswith(_SCHEMES) else os.path.basename(self.name.rstrip(os.sep))
        return f"{basename or self.name}{self.words.removeprefix(self.name)}"

    @property
    def words(self) -> str:
        """The name of the model as typed, its adapter, and its changes."""
        adapter = f" + {self.adapter.name}" if self.adapter else ""
        return self.name + adapter + "".join(f" {name} {words}" for name, words in self.changes.items())


@dataclass(frozen=True)
class Run(Made):
    """One text through one model."""

    spec: Spec
    text: "Written"
    truncate: bool = False
    force: bool = False


@dataclass(frozen=True)
class Stop(Made):
    """A breakpoint at the steps of ``address`` (None: every step) where ``condition`` holds.

    A stop with ``once`` is deleted when it first stops. ``hits`` counts how often it held in the present run; the first
    ``ignore_count`` hits do not stop.
    """

    number: int
    address: Address | None
    condition: "Condition | None"
    once: bool = False
    ignore_count: int = 0
    hits: int = field(default=0, compare=False)

    @property
    def words(self) -> str:
        qualifiers = ["once"] if self.once else []
        qualifiers += [f"after {plural(self.ignore_count, 'hit')}"] if self.ignore_count else []
        words = ", ".join([str(self.address or "every step"), *qualifiers])
        return f"{words}{',' if qualifiers else ''} if {self.condition.text}" if self.condition else words

    def to_dict(self) -> dict[str, Any]:
        """The stop as JSON data."""
        return {
            "number": self.number,
            "at": str(self.address) if self.address else None,
            "if": self.condition.text if self.condition else None,
            "once": self.once,
            "hits": self.hits,
            "passed": self.ignore_count,
        }

    def applies_at(self, rows: Rows, row: int) -> bool:
        """Whether the stop applies at ``rows[row]``.

        A stop at a layer or at heads applies at their first step only; with a condition, at each of their steps.
        """
        (step, layer), address = rows[row], self.address
        if address is None:
            return True
        if not self._covers(step, layer):
            return False
        if address.step is not None or self.condition is not None:
            return True
        earlier = itertools.takewhile(lambda pair: pair[1] == layer, (rows[n] for n in range(row - 1, -1, -1)))
        return not any(self._covers(*pair) for pair in earlier)

    def _covers(self, step: Step, layer: int | None) -> bool:
        """Whether the address names a step: a layer names all its steps, a head only those that heads have."""
        address = self.address
        if address is None or (address.layers is not None and layer not in address.layers):
            return address is None
        if address.step is None:
            return address.heads is None or address.parts_of(step) is not None
        return address.step.name == step.name and (address.layers is not None or layer is None)

    def hit_message(
        self, trace: "Trace", step: Step, layer: int | None, previous: "Trace | None", model: "Model"
    ) -> str | None:
        """The message of the stop at a step, with where its condition holds; None if it does not hold.

        If the address names several heads, each is measured alone.
        """
        label = f"stop {self.number}: {self.words}"
        if self.condition is None:
            return label
        with fenced(self.fence):
            hits = [one for one in self._moments(trace, step, layer, previous, model) if self.condition.holds(one)]
        if not hits:
            return None
        rest = f" and in {plural(len(hits) - _MOST_HEADS, 'more head')}" if len(hits) > _MOST_HEADS else ""
        return f"{label}: {'; '.join(self.condition.said(moment) for moment in hits[:_MOST_HEADS])}{rest}"

    def closest(self, trace: "Trace", rows: Rows, previous: "Trace | None", model: "Model") -> str:
        """Where the one term of a condition came nearest to its number in a pass; empty for another kind of stop."""
        condition = self.condition
        if condition is None or not condition.is_bound:
            return ""
        places = [place for row, place in enumerate(rows) if self.applies_at(rows, row)]
        with fenced(self.fence):
            moments = [moment for place in places for moment in self._moments(trace, *place, previous, model)]
            nearest = min(moments, key=condition.missed_by, default=None)
        return "" if nearest is None else condition.said(nearest)

    def _moments(
        self, trace: "Trace", step: Step, layer: int | None, previous: "Trace | None", model: "Model"
    ) -> "list[Moment]":
        """Where the condition is evaluated at a step: once, or for each head that the address names."""
        from tinytf.trace.measures import Moment

        heads = self.address.parts_of(step) if self.address is not None else None
        cell = self.address.cell if self.address is not None else ()
        groups = [heads] if heads is None or len(heads) == 1 else [(head,) for head in heads]
        find_token = partial(model.find_outcome, option="the token")
        return [Moment(trace, step, layer, group, cell, previous, find_token, model.shown) for group in groups]


@dataclass(frozen=True)
class State:
    """Everything that a line can change.

    ``runs`` are the last two, the present one last; ``named_runs`` those that ``keep`` has named. ``row`` is the
    index of the present step, and ``head`` the head that ``goto`` named. States that differ only in these two are
    equal: ``undo`` undoes no movement.
    """

    spec: Spec = field(default_factory=Spec)
    runs: tuple[Run, ...] = ()
    named_runs: Mapping[str, Run] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    stops: tuple[Stop, ...] = ()
    displays: tuple[Display, ...] = ()
    aliases: tuple[Alias, ...] = ()
    row: int | None = field(default=None, compare=False)
    head: int | None = field(default=None, compare=False)

    def stops_at(self, rows: Rows, row: int) -> tuple[Stop, ...]:
        """The stops that apply at ``rows[row]``, except those that apply at every step."""
        return tuple(stop for stop in self.stops if stop.address is not None and stop.applies_at(rows, row))
