"""What was done in a session, and the way back."""

from dataclasses import dataclass

from tinytf.errors import UsageError
from tinytf_cli.repl.line import LONGEST
from tinytf_cli.repl.state import State

Moment = tuple[State, int | None]
"""A state, and the place among the steps."""


@dataclass(frozen=True)
class Entry:
    """A line that was executed; ``done`` is false for one that failed, ``verb`` what its first word stands for."""

    line: str
    done: bool
    verb: str


class Log:
    """The lines of a session, and for each that changed something what was before."""

    def __init__(self) -> None:
        self.lines: list[Entry] = []
        self.undone: set[int] = set()
        self._taken_back: tuple[int, Moment] | None = None
        self._undoable: list[tuple[int, Moment]] = []

    def undo(self) -> tuple[str, Moment]:
        """The last line that changed something, and what was before it."""
        if not self._undoable:
            raise UsageError(
                "there is nothing to undo", "undo takes back model, text, ablations, settings, stops, displays"
            )
        self._taken_back = number, before = self._undoable.pop()
        self.undone.add(number)
        return self.lines[number - 1].line, before

    @property
    def changes(self) -> list[int]:
        """The numbers, from 1, of the lines that ``undo`` would take back."""
        return [number for number, _ in self._undoable]

    def remember(self, entry: Entry, before: Moment, now: Moment) -> Moment:
        """Write down a line; the answer is what is true after it: one that failed leaves nothing changed.

        The lines that ``source`` ran were remembered one by one.
        """
        if len(entry.line) > LONGEST or entry.verb == "source":
            return now
        taken, self._taken_back = self._taken_back, None
        if not entry.done and taken is not None:  # as by undo | false
            self._undoable.append(taken)
            self.undone.discard(taken[0])
        elif entry.done and now[0] != before[0] and entry.verb != "undo":
            self._undoable.append((len(self.lines) + 1, before))
        self.lines.append(entry)
        return now if entry.done else before
