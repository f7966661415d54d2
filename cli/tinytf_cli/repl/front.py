"""Which front end a terminal gets."""

import os
import sys

from tinytf_cli.repl import plain
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.warming import Warming

_USUAL = "windows" if sys.platform == "win32" else ""  # where TERM says nothing


def interact(session: Session) -> int:
    """Talk to whoever sits at the terminal until they leave; the answer is the exit status."""
    warming = Warming()
    try:
        if os.environ.get("TERM", _USUAL) not in ("", "dumb", "unknown"):
            try:
                from tinytf_cli.repl import prompt
            except ImportError:  # prompt_toolkit is not there
                pass
            else:
                return prompt.interact(session, warming.begin)
        warming.begin()
        return plain.interact(session)
    finally:
        warming.end()
