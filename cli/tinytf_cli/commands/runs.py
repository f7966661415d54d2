"""``tinytf runs``: training runs side by side."""

from pathlib import Path

import click

from tinytf_cli.options import output_options
from tinytf_cli.output import Output, Result


@click.command("runs")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER or RUN]...")
@output_options
def command(folders: tuple[Path, ...], output: Output) -> None:
    """Compare training runs: a table, their losses in one chart, their last milestones.

    Looks in every FOLDER and the folders in it; the default is the folder runs, or this one if there is none.
    """
    from tinytf.training.run_report import compare_runs
    from tinytf_cli.views.runs import RunsView

    default = Path("runs") if Path("runs").is_dir() else Path()
    output.show(Result.of(RunsView(compare_runs(folders or (default,), must_open=bool(folders)))))
