"""The start-up file: lines that a session at a terminal runs first."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_config_path

from tinytf.errors import TinytfError, UsageError
from tinytf_cli.failing import explained, say
from tinytf_cli.private import require_private
from tinytf_cli.repl.line import PYTHON, read_line, read_script
from tinytf_cli.repl.python import statements
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import run_each
from tinytf_cli.repl.streams import Capture


def startup_path() -> Path:
    """The path of the file, in the platform's folder for user configuration."""
    return user_config_path("tinytf", appauthor=False) / "session"


def run_startup(session: Session, path: Path) -> None:
    """Run the lines of the file without showing their output; a line that fails is reported, and the next one runs.

    No line runs if another user could have written the file, or if any of its lines is not a session's.
    """
    session.streams.depth += 1
    try:
        require_private(path, f"{path} was not run")
        lines = list(statements(read_script(path)))
        _require_session_lines(session, lines)
        with contextlib.redirect_stdout(Capture()):
            for location, outcome in run_each(session, lines):
                session.say(outcome, f"{path.parent / location}: ")
                if outcome.leave or outcome.status == 130:
                    break
    except Exception as error:  # the file cannot be read, or is refused
        failure = explained(error)
        say(failure.message, failure.hint, failure.marked, session.streams.stderr)
    finally:
        session.streams.depth -= 1


def _require_session_lines(session: Session, lines: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError if any line begins with no verb, command or alias: the file is then no session file."""
    aliases = set(session.aliases)
    for location, line in lines:
        if PYTHON.match(line):
            continue
        try:
            words = read_line(line, session.lexicon.redirects).words
            if words and words[0] not in aliases and session.lexicon.find(words[0].partition("/")[0]) == "alias":
                aliases.update(words[1:2])
        except TinytfError as error:
            raise UsageError(f"the start-up file was not run: {location}: {error.message}", error.hint) from None
