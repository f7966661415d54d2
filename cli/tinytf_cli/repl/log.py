"""The log of a session: its lines, their outcomes, and what can be undone."""

from dataclasses import dataclass

from tinytf.errors import UsageError
from tinytf.outputs import Fence
from tinytf_cli.repl.line import LONGEST
from tinytf_cli.repl.state import State

_LOG_VERBS = ("save", "history", "quit")


@dataclass
class Entry:
    """An executed line; ``done`` is false if it failed, ``verb`` is what its first word means.

    ``wrote`` says whether its output became the last output, which a lone | or > sends. ``before`` and ``after`` are
    the states that ``undo`` and ``redo`` restore; None if the line changed nothing. ``target`` is the line that an
    undo or a redo is about, and ``fence`` that of a stranger's line.
    """

    line: str
    done: bool
    verb: str
    wrote: bool = False
    before: State | None = None
    after: State | None = None
    undone: bool = False
    target: "Entry | None" = None
    fence: Fence | None = None

    @property
    def is_foreign_alias(self) -> bool:
        """Whether the line defines or removes a word of a stranger's file, which ends with that file."""
        entry = self.target or self
        return entry.fence is not None and entry.verb in ("alias", "unalias")


class Log:
    """The lines of a session."""

    def __init__(self) -> None:
        self.lines: list[Entry] = []

    def last_change(self) -> Entry:
        """The last line that changed something and was not undone; UsageError if there is none."""
        for entry in reversed(self._changes(undone=False)):
            return entry
        hint = "undo restores the model, text, ablations, runs, settings, stops, displays and aliases"
        raise UsageError("there is nothing to undo", hint)

    def last_undone(self) -> Entry:
        """The line that was undone last and can be redone; UsageError if there is none."""
        for entry in self._changes(undone=True):
            return entry
        raise UsageError(
            "there is nothing to redo", "it repeats what undo took back, until another line changes something"
        )

    def transcript(self) -> list[str]:
        """The lines that reproduce the session: those that succeeded, except lines about the log itself."""
        lines, output_omitted = [], False
        for entry in self.lines:
            reuses_output = entry.line[:1] in ("|", ">")
            is_kept = (
                entry.done
                and entry.verb not in _LOG_VERBS
                and entry.line != "!!"
                and not entry.is_foreign_alias
                and not (reuses_output and output_omitted)
            )
            if is_kept:
                lines.append(entry.line)
            if entry.wrote:
                output_omitted = not is_kept
        return lines

    def _changes(self, undone: bool) -> list[Entry]:
        """The lines that changed something: those undone that can be redone, or those not undone."""
        return [entry for entry in self.lines if entry.before is not None and entry.undone == undone]

    def remember(self, entry: Entry, before: State, now: State) -> State:
        """Record a line, and return the state after it; a line that failed changes nothing.

        ``source`` and ``explore`` are not recorded, as the lines that they run are.
        """
        if len(entry.line) > LONGEST or entry.verb in ("source", "explore"):
            return now
        if entry.done and now != before:
            if entry.verb == "undo":
                entry.target = self.last_change()
                entry.target.undone = True
            elif entry.verb == "redo":
                entry.target = self.last_undone()
                entry.target.undone = False
            else:
                entry.before, entry.after = before, now
                for redoable in self._changes(undone=True):
                    redoable.before = None
        self.lines.append(entry)
        return now if entry.done else before
