"""Which front end a terminal gets."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinytf_cli.repl.session import Session


def interact(session: "Session") -> int:
    """Talk to whoever sits at the terminal until they leave; the answer is the exit status."""
    from tinytf_cli.repl import plain

    if os.environ.get("TERM", "") in ("dumb", "unknown"):
        return plain.interact(session)
    try:
        from tinytf_cli.repl import prompt
    except ImportError:
        return plain.interact(session)
    return prompt.interact(session)
