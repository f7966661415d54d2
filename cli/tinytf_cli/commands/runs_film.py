"""``tinytf runs --film``: the film of a training run."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf_cli.command import argument, command, option
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.runs.film import Film


@dataclass(frozen=True)
class Options:
    """Which run to play."""

    run: Path | None = argument(type=click.Path(path_type=Path), required=False)
    versus: Path | None = option(
        type=click.Path(path_type=Path), metavar="RUN", help="Play this run beside it, in step."
    )


@command("runs --film")
def runs_film(options: Options, output: Output) -> None:
    """RUN is the folder of a training run, or its name in runs/; the default is the one that trained last. Keys on a
    terminal: left and right to change the frame, space to play, + and - for the speed, up and down to choose a token,
    tab to choose a text, h to choose a head, Enter to open the model of this frame in the explorer, q to quit.
    Elsewhere it prints a table. To save the film, use -o FILE.cast or -o FILE.svg.
    """
    from tinytf.runs.film import Films, read_film
    from tinytf.runs.naming import named_run, newest_run
    from tinytf_cli.board import takes_pictures

    film = read_film(newest_run() if options.run is None else named_run(options.run))
    versus = None if options.versus is None else read_film(named_run(options.versus))
    films = [film] if versus is None else [film, versus]
    on_screen = output.file is None and output.format == "text" and takes_pictures(output.terminal)
    if on_screen and sys.stdin is not None and sys.stdin.isatty():
        _play(films, output)
        return

    output.draw(film if versus is None else Films((film, versus)))


def _play(films: "list[Film]", output: Output) -> None:
    """Play until the user quits. After a model was opened in the explorer, the film continues."""
    from tinytf_cli.commands.explore import explore
    from tinytf_cli.paged import screen_of
    from tinytf_cli.replay import Player
    from tinytf_cli.screen import clean_exit

    context = click.get_current_context()
    player = Player(films, output.terminal)
    width = output.terminal.width if context.params.get("width") else None
    while True:
        app = screen_of(player, width, every=0.1)

        def redraw(app: "object" = app) -> None:
            app.renderer.erase(leave_alternate_screen=False)  # type: ignore[attr-defined]
            app.invalidate()  # type: ignore[attr-defined]

        with clean_exit(redraw):
            app.run()
        if player.opened is None:
            return
        probe = films[0].probes[player.sight.probe]
        explore.main(["-m", str(player.opened), "--", probe.text], standalone_mode=False, obj=context.obj)
        player.opened = None
