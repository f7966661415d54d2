"""``tinytf watch``: a training run, followed from another terminal."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf_cli.board import Board, quiet_seconds, takes_pictures
from tinytf_cli.options import output_options
from tinytf_cli.output import Output, ReaderGone, Result

if TYPE_CHECKING:
    from tinytf.training.reader import RunReader


@click.command("watch")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--every", type=click.IntRange(1), default=100, show_default=True, help="Off a terminal: steps a line.")
@click.option("--once", is_flag=True, help="Show the present state, and end.")
@click.option(
    "--interval", type=click.FloatRange(0.05, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@output_options
def command(run: Path, every: int, once: bool, interval: float, output: Output) -> None:
    """Follow the training run in the folder RUN until it is finished; nothing is ever written there.

    On a terminal a picture is redrawn in place; elsewhere (and with --plain) there is a line now and then. JSON and
    files have the present state, as with --once; --format ndjson follows.
    """
    from tinytf.training.reader import RunReader
    from tinytf_cli.views.blocks import Span
    from tinytf_cli.views.run import RunView
    from tinytf_cli.views.run_news import event_in_words

    reader, name = RunReader(run), run.resolve().name
    history = reader.read()
    view = RunView(name, history, quiet=quiet_seconds(run))
    present = Result(view.blocks, view.data, view.events)
    if once or output.file is not None or output.format == "json":
        output.show(present)
    elif output.format == "text" and takes_pictures(output.terminal):
        _on_screen(name, reader, interval, output)
    else:

        def lines(terminal: Any) -> Iterator[Span]:
            return (Span(event_in_words(event) + "\n") for event in _follow(name, reader, every, interval))

        events = partial(_follow, name, reader, every, interval)
        output.show(Result(view.blocks, view.data, events, text=lines, live=True))


def _follow(name: str, reader: "RunReader", every: int, interval: float) -> Iterator[dict[str, Any]]:
    """How the run is now, then what comes, until it is finished."""
    from tinytf_cli.views.run_data import summary_data
    from tinytf_cli.views.run_news import news

    history = reader.read()
    yield {"type": "run", **summary_data(name, history)}
    said = history.last
    while not history.finished:
        time.sleep(interval)
        history = reader.read()
        yield from news(history, said, every)
        said = history.last


def _on_screen(name: str, reader: "RunReader", interval: float, output: Output) -> None:
    """Redraw the run in place until it is finished; Ctrl-C never breaks a picture, only the pauses between."""
    from tinytf_cli.interrupt import current
    from tinytf_cli.screen import Screen, clean_exit

    screen = Screen(output.stdout)
    fixed = bool(click.get_current_context().params.get("width"))
    board = Board(name, reader, screen, output.terminal, fixed=fixed)
    with current().held(), clean_exit(screen):
        while True:
            try:
                history = board.draw()
            except BrokenPipeError:
                raise ReaderGone from None
            if history.finished:
                return
            with current().let_in():
                time.sleep(interval)
