"""``tinytf watch``: a training run, followed from another terminal."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf_cli.options import output_options
from tinytf_cli.output import Output, ReaderGone, Result

if TYPE_CHECKING:
    from tinytf.training.history import RunReader


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
    from tinytf.training.history import RunReader
    from tinytf_cli.paint.text import shown
    from tinytf_cli.views.run import RunView, event_in_words

    reader, name = RunReader(run), run.resolve().name
    history = reader.read()
    view = RunView(name, history, quiet=_quiet(run))
    present = Result(view.blocks, view.data, view.events)
    if once or output.file is not None or output.format == "json":
        output.show(present)
    elif output.format == "text" and _takes_pictures(output):
        _on_screen(name, reader, interval, output)
    else:

        def lines(terminal: Any) -> Iterator[str]:
            return (shown(event_in_words(event), terminal) + "\n" for event in _follow(name, reader, every, interval))

        events = partial(_follow, name, reader, every, interval)
        output.show(Result(view.blocks, view.data, events, text=lines, live=True))


def _quiet(run: Path) -> float:
    """Seconds since the last line was written."""
    try:
        return max(0.0, time.time() - (run / "metrics.jsonl").stat().st_mtime)
    except OSError:
        return 0.0


def _takes_pictures(output: Output) -> bool:
    terminal = output.terminal
    return terminal.cuts and not terminal.plain and os.environ.get("TERM", "dumb") not in ("", "dumb")


def _follow(name: str, reader: "RunReader", every: int, interval: float) -> Iterator[dict[str, Any]]:
    """How the run is now, then what comes, until it is finished."""
    from tinytf_cli.views.run import news, summary_data

    history = reader.read()
    yield {"type": "run", **summary_data(name, history)}
    said = history.last
    while not history.finished:
        time.sleep(interval)
        history = reader.read()
        yield from news(history, said, every)
        said = history.last


class _Pace:
    """What is left of a run without speed.jsonl, by the steps that were seen to pass."""

    def __init__(self) -> None:
        self.began: tuple[float, int] | None = None

    def seconds_left(self, step: int, steps: int) -> float | None:
        now = time.monotonic()
        if self.began is None or step < self.began[1]:
            self.began = now, step
        passed, done = now - self.began[0], step - self.began[1]
        return passed / done * (steps - step) if done else None


def _on_screen(name: str, reader: "RunReader", interval: float, output: Output) -> None:
    """Redraw the run in place until it is finished; Ctrl-C never breaks a picture, only the pauses between."""
    from tinytf_cli.interrupt import current
    from tinytf_cli.paint.painter import paint
    from tinytf_cli.screen import Screen, clean_exit
    from tinytf_cli.views.blocks import Line, Span
    from tinytf_cli.views.run import LAYOUTS, RunView

    screen, pace = Screen(output.stdout), _Pace()
    fixed = bool(click.get_current_context().params.get("width"))
    with current().held(), clean_exit(screen):
        while True:
            history = reader.read()
            columns, rows = screen.size
            terminal = output.terminal if fixed else replace(output.terminal, width=max(20, columns))
            left = history.seconds_left
            left = pace.seconds_left(history.last, history.steps) if left is None else left
            for layout in LAYOUTS:
                view = RunView(name, history, left, _quiet(reader.directory), layout)
                lines = list(paint(view.blocks(terminal), terminal))
                if len(lines) < rows:
                    break
            if len(lines) >= rows > 2:
                left_out = Line(Span(f"{len(lines) - rows + 2} more lines have no room here", "dim"))
                lines = [*lines[: rows - 2], *list(paint([left_out], terminal))[:1]]
            try:
                screen.draw(lines)
            except BrokenPipeError:
                raise ReaderGone from None
            if history.finished:
                return
            with current().let_in():
                time.sleep(interval)
