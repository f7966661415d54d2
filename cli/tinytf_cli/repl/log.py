"""The lines of a session: what each did, and what can be undone."""

from dataclasses import dataclass

from tinytf.errors import UsageError
from tinytf_cli.repl.line import LONGEST
from tinytf_cli.repl.state import State

_ABOUT_LINES = ("save", "history", "quit")


@dataclass
class Entry:
    """A line that was executed; ``done`` is false if it failed, ``verb`` is what its first word means.

    ``wrote`` says whether its output was the last one then, which a lone | or > takes. ``before`` and ``after`` are the
    states that ``undo`` and ``redo`` restore; None where the line changed nothing.
    """

    line: str
    done: bool
    verb: str
    wrote: bool = False
    before: State | None = None
    after: State | None = None
    undone: bool = False


class Log:
    """The lines of a session."""

    def __init__(self) -> None:
        self.lines: list[Entry] = []

    def last_change(self) -> Entry:
        """The last line that changed something and was not undone; UsageError without one."""
        for entry in reversed(self._changes(undone=False)):
            return entry
        hint = "undo restores the model, text, ablations, runs, settings, stops, displays and aliases"
        raise UsageError("there is nothing to undo", hint)

    def last_undone(self) -> Entry:
        """The line that was undone last and can be redone; UsageError without one."""
        for entry in self._changes(undone=True):
            return entry
        raise UsageError("there is nothing to redo", "it does again what undo took back, until something else changes")

    def transcript(self) -> list[str]:
        """The lines that give the same again: those that were done, but for the ones about the log itself."""
        found, lost = [], False
        for entry in self.lines:
            takes_last = entry.line[:1] in ("|", ">")
            kept = entry.done and entry.verb not in _ABOUT_LINES and entry.line != "!!" and not (takes_last and lost)
            if kept:
                found.append(entry.line)
            if entry.wrote:
                lost = not kept
        return found

    def _changes(self, undone: bool) -> list[Entry]:
        """The lines that changed something: those that were undone and can be redone, or those that were not."""
        return [entry for entry in self.lines if entry.before is not None and entry.undone == undone]

    def remember(self, entry: Entry, before: State, now: State) -> State:
        """Record a line, and return the state that holds after it: a line that failed changes nothing.

        ``source`` and ``explore`` are not recorded: each line that they ran was.
        """
        if len(entry.line) > LONGEST or entry.verb in ("source", "explore"):
            return now
        if entry.done and now != before:
            if entry.verb == "undo":
                self.last_change().undone = True
            elif entry.verb == "redo":
                self.last_undone().undone = False
            else:
                entry.before, entry.after = before, now
                for other in self._changes(undone=True):
                    other.before = None
        self.lines.append(entry)
        return now if entry.done else before
