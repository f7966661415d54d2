"""What was done in a session, and the way back."""

from dataclasses import dataclass, replace
from typing import Any

from tinytf.errors import UsageError
from tinytf_cli.repl.holding import Holding
from tinytf_cli.repl.line import LONGEST
from tinytf_cli.repl.state import Spec, State


@dataclass(frozen=True)
class Entry:
    """A line that was executed; ``done`` is false for one that failed, ``verb`` what its first word stands for."""

    line: str
    done: bool
    verb: str


class Changing(Holding):
    """A session whose changes are written down, so that they can be taken back."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.lines: list[Entry] = []
        self.undone: set[int] = set()
        self._taken_back: tuple[int, tuple[State, int | None]] | None = None
        self._undoable: list[tuple[int, tuple[State, int | None]]] = []

    def change(self, **values: Any) -> None:
        """Another state, with some of its fields changed."""
        self.state = replace(self.state, **values)

    def take(self, spec: Spec) -> None:
        """Go on with another model, or with other steps of it gone; the present text goes through it."""
        runs = self.state.runs
        self.change(spec=spec, runs=(*runs[-1:], replace(runs[-1], spec=spec)) if runs else ())
        if runs:
            self.trace_of(self.state.runs[-1])

    def undo(self) -> str:
        """Bring back what was before the last line that changed something; the answer is that line."""
        if not self._undoable:
            raise UsageError(
                "there is nothing to undo", "undo takes back model, text, ablations, settings, stops, displays"
            )
        self._taken_back = number, (self.state, self.place) = self._undoable.pop()
        self.undone.add(number)
        return self.lines[number - 1].line

    @property
    def changes(self) -> list[int]:
        """The numbers, from 1, of the lines that ``undo`` would take back."""
        return [number for number, _ in self._undoable]

    def _remember(self, line: str, name: str, before: tuple[State, int | None], *, done: bool) -> None:
        """Write down the line that was executed; one that failed leaves nothing changed.

        ``name`` is what its first word stands for. The lines that ``source`` ran were remembered one by one.
        """
        if len(line) > LONGEST or name == "source":
            return
        taken, self._taken_back = self._taken_back, None
        if not done:
            if taken is not None:  # as by undo | false
                self._undoable.append(taken)
                self.undone.discard(taken[0])
            self.state, self.place = before
        elif self.state != before[0] and name != "undo":
            self._undoable.append((len(self.lines) + 1, before))
        self.lines.append(Entry(line, done, name))
