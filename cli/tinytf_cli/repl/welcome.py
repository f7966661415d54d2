"""What a session begins with: a line, and the first time a text, what comes next, and where a head looks."""

from rich.cells import cell_len, set_cell_size

from tinytf import __version__
from tinytf.text.printable import printable
from tinytf_cli.paint.painter import paint
from tinytf_cli.repl.history import history_path
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import echo_line
from tinytf_cli.repl.state import Spec
from tinytf_cli.views.blocks import Line
from tinytf_cli.views.names import pairs_of

_SHOWN = ("run The cat sat on the", "heat L1H0")
"""Lines that are run for a newcomer, on the model that comes with tinytf: what comes next, and where a head looks."""
_TITLE = "tinytf shows every number inside a transformer; tiny, a small one, is open."
_NEXT = (
    ("why mat?", "which parts of the model made it say mat"),
    ("step", "walk through the pass, step by step; an empty line walks on"),
    ("learn", "24 lessons on these numbers; Ctrl-D leaves"),
    ("help", "what there is; how do I …? finds the command for it"),
)
"""What to type next, and what it does."""


def greet(session: Session) -> None:
    """Write the first line of a session without a text; for a newcomer also run some lines, and say what to type."""
    if session.run is not None:
        return
    terminal, write = session.terminal(), session.streams.write
    if history_path().exists() or session.state.spec != Spec():
        write(f"{banner(session, terminal.width)}\n")
        return
    write("".join(f"{line}\n" for line in paint([Line(_TITLE)], terminal)))
    for line in _SHOWN:
        echo_line(session, line)
        outcome = session.execute(line)
        session.say(outcome)
        if outcome.status:
            return
    write("".join(f"{line}\n" for line in paint([Line(""), *pairs_of(_NEXT)], terminal)))


def banner(session: Session, width: int) -> str:
    """The first line of a session, shortened to the width."""
    model = printable(session.state.spec.short, spaces=False)
    full = f"tinytf {__version__}, {model}: run TEXT begins, help lists what there is, Ctrl-D leaves"
    short = f"tinytf {__version__}: help lists what there is"
    return full if cell_len(full) < width else shortened(short, width - 1, session.settings.ascii)


def shortened(text: str, width: int, ascii: bool) -> str:
    """A text in at most ``width`` cells."""
    if cell_len(text) <= width:
        return text
    sign = "..." if ascii else "…"
    return set_cell_size(text, max(0, width - len(sign))) + sign if width > len(sign) else set_cell_size(text, width)
