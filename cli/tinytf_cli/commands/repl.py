"""``tinytf repl``: a session, at a terminal or from a script."""

import sys
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf_cli.host import host
from tinytf_cli.options import DEVICES, DTYPES, complete_model


@click.command("repl")
@click.argument("words", nargs=-1, metavar="[TEXT]")
@click.option("--model", "-m", default="tiny", show_default=True, metavar="MODEL", shell_complete=complete_model,
              help="As of tinytf trace.")  # fmt: skip
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True,
              help="Makes what is random.")  # fmt: skip
@click.option("-c", "commands", multiple=True, metavar="LINE", help="Run this line and end. Repeatable.")
@click.option("-f", "files", multiple=True, type=click.Path(path_type=Path), metavar="SCRIPT",
              help="Run the lines of this file and end, before any -c. Repeatable; - is standard input.")  # fmt: skip
@click.option("--echo", is_flag=True, help="Show each line of a script before what it gives.")
@click.option("--on-error", type=click.Choice(["stop", "continue"]), default="stop", show_default=True,
              help="What a script does behind a line that failed.")  # fmt: skip
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.option("--width", type=click.IntRange(20, 1000), help="Columns to draw in.")
@click.option("--ascii", is_flag=True, help="7-bit signs only.")
@click.option("--plain", is_flag=True, help="Sentences instead of tables and maps, for screen readers.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(
    words: tuple[str, ...],
    model: str,
    device: str,
    dtype: str,
    seed: int,
    commands: tuple[str, ...],
    files: tuple[Path, ...],
    echo: bool,
    on_error: str,
    color: str,
    width: int | None,
    ascii: bool,
    plain: bool,
    debug: bool,
) -> int:
    """Step through a forward pass: one model, open and warm, and a text, whose trace is walked like a program.

    At a terminal a session with a prompt, where help says what there is. With -c or -f, or from a pipe, its lines are
    run without one; the status is 1 if one of them failed.
    """
    import itertools

    from tinytf_cli.repl.script import Lines, read_script, read_stream, run_lines
    from tinytf_cli.repl.script import commands as given
    from tinytf_cli.repl.session import Session
    from tinytf_cli.repl.settings import Settings
    from tinytf_cli.repl.state import Spec
    from tinytf_cli.repl.table import VERBS

    if host() is not None:
        raise UsageError("this is a session already", "model opens another model, run another text")
    settings = Settings(color=color, width=width, ascii=ascii, plain=plain)
    session = Session(VERBS, Spec(model, device, dtype, seed), settings)
    session.debug = debug
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    interactive = at_a_terminal and not commands and not files
    begin = session.begin(" ".join(words), quiet=not interactive)
    if begin.failure is not None or begin.status:
        session.say(begin)
        return begin.status
    if interactive:
        from tinytf_cli.repl.front import interact

        return interact(session)
    parts: list[Lines] = [read_script(file) if str(file) != "-" else read_stream(sys.stdin.buffer) for file in files]
    if commands:
        parts.append(given(commands))
    if not parts:
        if sys.stdin is None:
            raise UsageError("there is no standard input to read lines from", "give them with -c, or in a file with -f")
        parts.append(read_stream(sys.stdin.buffer))
    return run_lines(session, itertools.chain(*parts), echo=echo, stop=on_error == "stop")
