"""``tinytf runs``: training runs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinytf_cli.options import output_options
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf_cli.views.runs import Run


@click.command("runs")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER or RUN]...")
@output_options
def command(folders: tuple[Path, ...], output: Output) -> None:
    """Compare training runs: a table, their losses in one chart, their last milestones.

    Those of every FOLDER and of the folders in it; without one, of the folder runs if it is here, else of this one.
    """
    from tinytf_cli.views.runs import RunsView

    asked = folders or ((Path("runs"),) if Path("runs").is_dir() else (Path(),))
    found: dict[Path, Run] = {}
    for folder in asked:
        for run in _runs(folder, alone=len(asked) == 1, must_open=bool(folders)):
            found.setdefault(run.path.resolve(), run)
    view = RunsView(list(found.values()), asked)
    output.show(Result(view.blocks, view.data, view.events))


def _runs(folder: Path, alone: bool, must_open: bool) -> "list[Run]":
    """The runs of a folder; one that was named itself has to be whole."""
    from tinytf.errors import TinytfError
    from tinytf.training.reader import read_history
    from tinytf.training.run_files import find_runs
    from tinytf_cli.views.runs import Run

    runs = []
    for path in find_runs(folder):
        name = str(path.relative_to(folder)) if alone and path != folder else str(path)
        name = path.resolve().name if name == "." else name
        try:
            runs.append(Run(name, path, read_history(path)))
        except TinytfError as error:
            if must_open and path == folder:
                raise
            runs.append(Run(name, path, None, error.message))
    return runs
