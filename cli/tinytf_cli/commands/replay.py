"""``tinytf replay``: the film of a training run."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command
from tinytf_cli.output import Output, Result


@dataclass(frozen=True)
class Asked:
    """Which run to play."""

    run: Path = argument(type=click.Path(path_type=Path))


@command("replay")
def replay(asked: Asked, output: Output) -> None:
    """RUN is its folder. On a terminal: left and right turn frames, space plays, Enter opens a frame's model, q leaves.
    Elsewhere a table.
    """
    from tinytf.training.film import read_film
    from tinytf_cli.views.film import FilmView

    output.show(Result.of(FilmView(read_film(asked.run))))
