"""The state of a session: the model and its runs, settings, stops, displays and aliases."""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytf.config import LEFT_OUT
from tinytf.parts.row import Step
from tinytf.trace.address import Address
from tinytf_cli.numbers import plural
from tinytf_cli.repl.settings import Settings

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.text.chat import Written
    from tinytf.trace.conditions import Condition
    from tinytf.trace.trace import Trace

Rows = Sequence[tuple[Step, int | None]]
"""The steps of a model in their order, each with its layer."""

_NO_PATH = ("preset:", "hub:", "ollama:", "lmstudio:")
_SAID = 3
"""The most heads of which a stop says where it held."""


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
    def short(self) -> str:
        """``words``, with the last part of a path."""
        path = "" if self.name.startswith(_NO_PATH) else os.path.basename(self.name.rstrip(os.sep))
        return f"{path or self.name}{self.words.removeprefix(self.name)}"

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
    """A breakpoint at the steps of ``where`` (None: at every step), if ``condition`` holds there.

    One that stops ``once`` is deleted then. ``hits`` counts where it held in the present run; at the first ``passed``
    of them nothing stops.
    """

    number: int
    where: Address | None
    condition: "Condition | None"
    once: bool = False
    passed: int = 0
    hits: int = field(default=0, compare=False)

    @property
    def words(self) -> str:
        often = ["once"] if self.once else []
        often += [f"after {plural(self.passed, 'hit')}"] if self.passed else []
        words = ", ".join([str(self.where or "every step"), *often])
        return f"{words}{',' if often else ''} if {self.condition.text}" if self.condition else words

    def to_dict(self) -> dict[str, Any]:
        """The stop as JSON data."""
        return {
            "number": self.number,
            "at": str(self.where) if self.where else None,
            "if": self.condition.text if self.condition else None,
            "once": self.once,
            "hits": self.hits,
            "passed": self.passed,
        }

    def is_at(self, rows: Rows, place: int) -> bool:
        """Whether it is at a step. One at a layer or at heads is at their first step, and with a condition at each."""
        (step, layer), where = rows[place], self.where
        if where is None:
            return True
        if not self._covers(step, layer):
            return False
        if where.step is not None or self.condition is not None:
            return True
        before = itertools.takewhile(lambda row: row[1] == layer, (rows[at] for at in range(place - 1, -1, -1)))
        return not any(self._covers(*row) for row in before)

    def _covers(self, step: Step, layer: int | None) -> bool:
        """Whether a step is one that its address names: of a layer any, of a head those that heads have."""
        where = self.where
        if where is None or (where.layers is not None and layer not in where.layers):
            return where is None
        if where.step is None:
            return where.heads is None or where.parts_of(step) is not None
        return where.step.name == step.name and (where.layers is not None or layer is None)

    def held(self, trace: "Trace", step: Step, layer: int | None, before: "Trace | None", model: "Model") -> str | None:
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
        find = partial(model.find_outcome, option="the token")
        moments = [Moment(trace, step, layer, some, cell, before, find, model.shown) for some in each]
        holding = [moment for moment in moments if self.condition.holds(moment)]
        if not holding:
            return None
        more = f" and in {plural(len(holding) - _SAID, 'more head')}" if len(holding) > _SAID else ""
        return f"{words}: {'; '.join(self.condition.said(one) for one in holding[:_SAID])}{more}"


@dataclass(frozen=True)
class State:
    """Everything that a line can change; ``runs`` are the last two, the present one last, ``kept`` those with names.

    ``aliases`` are lines by the word that stands for them.

    ``place`` is the index of the present step, and ``head`` the one that ``goto`` named. States that differ in these
    alone are equal: ``undo`` undoes no movement.
    """

    spec: Spec = field(default_factory=Spec)
    runs: tuple[Run, ...] = ()
    kept: Mapping[str, Run] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    stops: tuple[Stop, ...] = ()
    displays: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    place: int | None = field(default=None, compare=False)
    head: int | None = field(default=None, compare=False)
