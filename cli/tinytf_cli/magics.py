"""``%load_ext tinytf`` in IPython or a notebook: lines of a session, drawn where they are typed.

``%tinytf LINE`` runs any line of a session, which goes on from cell to cell; ``%trace`` and ``%diff`` are its verbs.
"""

import io
from typing import Any

from tinytf_cli.failing import say
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.terminal import Terminal

NAMES = ("tinytf", "trace", "diff")


class Magics:
    """The session behind the magics of one IPython shell."""

    def __init__(self) -> None:
        self.session = Session(VERBS, stdout=io.StringIO())

    def run(self, line: str) -> None:
        """Run a line, and display what it shows: a drawing as HTML, anything else as text."""
        from IPython.display import HTML, display

        outcome = self.session.execute(line)
        if outcome.failure is not None:
            say(outcome.failure.message, outcome.failure.hint, outcome.failure.marked)
            return
        for shown in outcome.results:
            display(HTML(_drawn(shown)))  # type: ignore[no-untyped-call]
        if not outcome.results and outcome.text:
            print(outcome.text, end="")  # noqa: T201 - the cell's own output


def _drawn(shown: Any) -> str:
    from tinytf_cli.paint.painter import paint
    from tinytf_cli.picture import fragment

    screen = Terminal(depth="truecolor", cuts=True)
    return fragment(paint(shown.blocks(screen), screen), screen)


def load(shell: Any) -> None:
    """Register the magics in a shell."""
    magics = Magics()
    shell.register_magic_function(magics.run, magic_kind="line", magic_name="tinytf")
    for name in NAMES[1:]:
        shell.register_magic_function(
            lambda line, name=name: magics.run(f"{name} {line}"), magic_kind="line", magic_name=name
        )
