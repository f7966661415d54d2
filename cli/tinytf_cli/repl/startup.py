"""The start-up file: lines that a session at a terminal begins with."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_config_path

from tinytf.errors import TinytfError, UsageError
from tinytf_cli.failing import explained, say
from tinytf_cli.repl.line import PYTHON, read_line, read_script
from tinytf_cli.repl.python import statements
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import outcomes
from tinytf_cli.repl.streams import Capture

_OTHERS_MAY_WRITE = 0o022


def startup_path() -> Path:
    """The file: in the platform's folder for what a user sets."""
    return user_config_path("tinytf", appauthor=False) / "session"


def run_startup(session: Session, path: Path) -> None:
    """Run the lines of the file, silently; what is wrong with one is told, and the next one runs.

    Nothing runs of a file that somebody else can have written, or in which a line is none of a session.
    """
    session.streams.depth += 1
    try:
        _require_own(path)
        lines = list(statements(read_script(path)))
        _require_lines(session, lines)
        with contextlib.redirect_stdout(Capture()):
            for where, outcome in outcomes(session, lines):
                session.say(outcome, f"{path.parent / where}: ")
                if outcome.leave or outcome.status == 130:
                    break
    except Exception as error:  # a file that cannot be read, or is not run
        failure = explained(error)
        say(failure.message, failure.hint, failure.marked, session.streams.stderr)
    finally:
        session.streams.depth -= 1


def _require_own(path: Path) -> None:
    """Raise UsageError for a file, or a folder of it, that is another user's or that others may write to, on POSIX."""
    if not hasattr(os, "geteuid"):
        return
    for place in (path, path.parent):
        try:
            status = place.stat()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        if status.st_uid != os.geteuid():
            raise UsageError(f"{path} was not run: {place} belongs to another user", "make it your own: chown")
        if status.st_mode & _OTHERS_MAY_WRITE:
            raise UsageError(f"{path} was not run: others may write to {place}", f"chmod go-w {place}")


def _require_lines(session: Session, lines: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError where a line begins with no verb, command or alias, and so was not written for a session."""
    aliases = set(session.state.aliases)
    for where, line in lines:
        if PYTHON.match(line):
            continue
        try:
            words = read_line(line, session.lexicon.redirects).words
            if words and words[0] not in aliases and session.lexicon.find(words[0].partition("/")[0]) == "alias":
                aliases.update(words[1:2])
        except TinytfError as error:
            raise UsageError(f"nothing of the start-up file was run: {where}: {error.message}", error.hint) from None
