"""``tinytf repl``: a session, at a terminal or from a script."""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf_cli.host import host
from tinytf_cli.options import Drawing, Opening, asks, drawing_options, opening_options, option


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    commands: tuple[str, ...] = option("-c", multiple=True, metavar="LINE", help="Run this line and end. Repeatable.")
    files: tuple[Path, ...] = option(
        "-f", multiple=True, type=click.Path(path_type=Path), metavar="SCRIPT",
        help="Run the lines of this file and end, before any -c. Repeatable; - is standard input.",
    )  # fmt: skip
    echo: bool = option(is_flag=True, help="Show each line of a script before what it gives.")
    on_error: str = option(
        type=click.Choice(["stop", "continue"]), shown="stop", help="What a script does behind a line that failed."
    )


@click.command("repl")
@click.argument("words", nargs=-1, metavar="[TEXT]")
@opening_options("As of tinytf trace.", "Makes what is random.")
@asks(Asked)
@drawing_options
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(words: tuple[str, ...], opening: Opening, asked: Asked, drawing: Drawing, debug: bool) -> int:
    """Step through a forward pass: one model, open and warm, and a text, whose trace is walked like a program.

    At a terminal a session with a prompt, where help says what there is. With -c or -f, or from a pipe, its lines are
    run without one; the status is 1 if one of them failed.
    """
    from tinytf_cli.repl.front import Lines, interact, read_script, read_stream, run_lines
    from tinytf_cli.repl.session import Session
    from tinytf_cli.repl.session_verbs import VERBS
    from tinytf_cli.repl.state import Settings, Spec

    if host() is not None:
        raise UsageError("this is a session already", "model opens another model, run another text")
    spec = Spec(opening.model, opening.device, opening.dtype, opening.seed)
    session = Session(VERBS, spec, Settings(**vars(drawing)))
    session.debug = debug
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    interactive = at_a_terminal and not asked.commands and not asked.files
    begin = session.begin(" ".join(words), quiet=not interactive)
    if begin.failure is not None or begin.status:
        session.say(begin)
        return begin.status
    if interactive:
        return interact(session)
    parts: list[Lines] = [
        read_script(file) if str(file) != "-" else read_stream(sys.stdin.buffer) for file in asked.files
    ]
    if asked.commands:
        parts.append([(f"-c {number}", line) for number, line in enumerate(asked.commands, start=1)])
    if not parts:
        if sys.stdin is None:
            raise UsageError("there is no standard input to read lines from", "give them with -c, or in a file with -f")
        parts.append(read_stream(sys.stdin.buffer))
    return run_lines(session, itertools.chain(*parts), echo=asked.echo, stop=asked.on_error == "stop")
