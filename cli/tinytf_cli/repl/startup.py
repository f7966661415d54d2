"""The start-up file: lines that a session at a terminal begins with."""

import contextlib
from pathlib import Path

from platformdirs import user_config_path

from tinytf_cli.failing import explained, say
from tinytf_cli.repl.line import read_script
from tinytf_cli.repl.python import statements
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import outcomes
from tinytf_cli.repl.streams import Capture


def startup_path() -> Path:
    """The file: in the platform's folder for what a user sets."""
    return user_config_path("tinytf", appauthor=False) / "session"


def run_startup(session: Session, path: Path) -> None:
    """Run the lines of the file, silently; what is wrong with one is told, and the next one runs."""
    session.streams.depth += 1
    try:
        with contextlib.redirect_stdout(Capture()):
            for where, outcome in outcomes(session, statements(read_script(path))):
                session.say(outcome, f"{path.parent / where}: ")
                if outcome.leave or outcome.status == 130:
                    break
    except Exception as error:  # a file that cannot be read
        failure = explained(error)
        say(failure.message, failure.hint, failure.marked, session.streams.stderr)
    finally:
        session.streams.depth -= 1
