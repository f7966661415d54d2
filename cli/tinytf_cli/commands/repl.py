"""``tinytf repl``: an interactive session, or a script."""

import itertools
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import current_interrupt, host, is_typed
from tinytf_cli.options import ModelOptions
from tinytf_cli.output import DrawingOptions
from tinytf_cli.repl.trust import Trust


@dataclass(frozen=True)
class Options:
    """The argument and options of this command alone."""

    words: tuple[str, ...] = argument(nargs=-1, metavar="[TEXT]")
    commands: tuple[str, ...] = option("-c", multiple=True, metavar="LINE", help="Run this line and exit. Repeatable.")
    files: tuple[Path, ...] = option(
        "-f", multiple=True, type=click.Path(path_type=Path), metavar="SCRIPT",
        help="Run the lines of this file before any -c, then exit. Repeatable; - is standard input.",
    )  # fmt: skip
    echo: bool = option(is_flag=True, help="Show each line of a script before its output.")
    on_error: str = option(
        type=click.Choice(["stop", "continue"]), shown="stop", help="What a script does after a line fails."
    )
    startup: bool | None = option(
        "--startup/--no-startup", default=None,
        help="Run the start-up file first, ~/.config/tinytf/session on Linux.  [default: at a terminal]",
    )  # fmt: skip


@command("repl")
def repl(options: Options, trust: Trust, model_options: ModelOptions, drawing: DrawingOptions) -> int:
    """A session keeps one model and one text open, and steps through the trace like a debugger through a program. Type
    help at its prompt for a list of commands. With -c or -f, or from a pipe, the lines run without a prompt; the exit
    status is 1 if any of them fails.
    """
    from tinytf_cli.repl.line import Lines, read_script, read_stream
    from tinytf_cli.repl.python import statements
    from tinytf_cli.repl.session import Session
    from tinytf_cli.repl.session_verbs import VERBS, run_lines
    from tinytf_cli.repl.settings import Settings
    from tinytf_cli.repl.state import OPENED_BY, Spec

    if model_options.trust_remote_code:
        raise UsageError("code in the directory of a model does not run in a session", "trace and others take it")
    if host() is not None:
        raise UsageError("this is a session already", "model opens another model, run traces another text")
    spec = Spec(model_options.model, **{name: getattr(model_options, name) for name in OPENED_BY})
    session = Session(VERBS, spec, Settings(**vars(drawing)), interrupt=current_interrupt())
    session.debug = bool(click.get_current_context().params.get("debug"))
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    interactive = at_a_terminal and not options.commands and not options.files
    typed_spec = None
    if interactive if options.startup is None else options.startup:
        from tinytf_cli.repl.startup import run_startup, startup_path

        path = startup_path()
        if path.exists() or options.startup:
            run_startup(session, path)
            drawn = {name: value for name, value in vars(drawing).items() if is_typed(name)}
            session.change(settings=replace(session.settings, **drawn))
            typed_spec = spec if is_typed("model", *OPENED_BY) else None
    outcome = session.begin(" ".join(options.words), typed_spec, quiet=not interactive)
    if outcome.failure is not None or outcome.status:
        session.say(outcome)
        return outcome.status
    if interactive:
        from tinytf_cli.repl.prompt import interact

        return interact(session)
    parts: list[Lines] = [
        session.streams.of_file(statements(read_script(file)), trust)
        if str(file) != "-"
        else statements(read_stream(sys.stdin.buffer))
        for file in options.files
    ]
    if options.commands:
        parts.append(statements((f"-c {number}", line) for number, line in enumerate(options.commands, start=1)))
    if not parts:
        if sys.stdin is None:
            raise UsageError("there is no standard input to read lines from", "give them with -c, or in a file with -f")
        parts.append(statements(read_stream(sys.stdin.buffer)))
    return run_lines(session, itertools.chain(*parts), echo=options.echo, stop=options.on_error == "stop")
