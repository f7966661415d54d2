"""``tinytf runs --follow``: follow a training run from another terminal."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf.files import resolve_links
from tinytf_cli.board import Board, quiet_seconds, takes_pictures
from tinytf_cli.command import argument, command, option
from tinytf_cli.output import Output, ReaderGone
from tinytf_cli.ranges import Real, Whole

if TYPE_CHECKING:
    from tinytf.runs.reader import RunReader


@dataclass(frozen=True)
class Options:
    """Which run to follow, and how closely."""

    run: Path | None = argument(type=click.Path(path_type=Path), required=False)
    every: int = option(type=Whole(1), shown=100, help="Steps per line of output, off a terminal.")
    once: bool = option(is_flag=True, help="Show the current state and exit.")
    interval: float = option(type=Real(0.05, 3600), shown=1.0, help="Seconds between updates.")
    log: bool = option(is_flag=True, help="Plot the loss over a logarithmic step axis.")


@command("runs --follow")
def runs_follow(options: Options, output: Output) -> int | None:
    """RUN is the folder of the run, or its name in runs/; the default is the one that trained last. It is only read.
    A terminal shows a picture, redrawn in place; elsewhere, and with --plain, a line appears every --every steps. JSON
    and files hold the current state, as with --once; --format ndjson follows the run. Exits when the run finishes, or
    with 1 if it was stopped.
    """
    from tinytf.runs.naming import named_run, newest_run
    from tinytf.runs.reader import RunReader
    from tinytf.runs.run_files import is_stopped
    from tinytf.runs.runs import FollowedRun, RunReport
    from tinytf_cli.views.run import LAYOUTS, Layout, RunDisplay

    run = newest_run() if options.run is None else named_run(options.run)
    reader, name = RunReader(run), resolve_links(run).name
    history = reader.read()
    if options.once or output.file is not None or output.format not in ("text", "ndjson"):
        layout = Layout() if output.file is None else LAYOUTS[0]
        display = RunDisplay(quiet=quiet_seconds(run), layout=layout, log=options.log)
        output.draw(RunReport(name, run, history, stopped=is_stopped(run)), display)
    elif output.format == "text" and takes_pictures(output.terminal):
        return _on_screen(name, reader, options, output)
    else:
        followed = FollowedRun(name, run, history, reader=reader, every=options.every, interval=options.interval)
        replace(output, at_once=True).draw(followed)
        return 0 if reader.read().finished else 1
    return 0


def _on_screen(name: str, reader: "RunReader", options: Options, output: Output) -> int:
    """Redraw the run in place until it finishes or is stopped. Ctrl-C interrupts only the pauses between pictures."""
    from tinytf.runs.run_files import is_stopped
    from tinytf_cli.screen import Screen, clean_exit

    screen = Screen(output.stdout)
    fixed = bool(click.get_current_context().params.get("width"))
    board = Board(name, reader, screen, output.terminal, fixed=fixed, log=options.log)
    with output.interrupt.blocked(), clean_exit(screen.forget):
        while True:
            try:
                history = board.draw()
            except BrokenPipeError:
                raise ReaderGone from None
            if history.finished:
                return 0
            if is_stopped(reader.directory):  # its last lines may still be unread
                return 0 if board.draw().finished else 1
            with output.interrupt.allowed():
                time.sleep(options.interval)
