"""``tinytf runs``: training runs side by side."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command, option
from tinytf_cli.output import Output

ORDERS = ("bits", "held-out", "loss", "speed", "time", "step")


@dataclass(frozen=True)
class Options:
    """The argument and options of this command alone."""

    folders: tuple[Path, ...] = argument(nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER or RUN]...")
    by: str | None = option(
        type=click.Choice(ORDERS), help="Rank by bits per byte, held-out or training loss, tokens/s, time or step."
    )
    log: bool = option(is_flag=True, help="Plot the losses over a logarithmic step axis.")


@command("runs")
def runs(options: Options, output: Output) -> None:
    """Looks in every FOLDER and its subfolders; RUN is a run's folder, or its name in runs/. The default is the folder
    runs, or the current one without it.
    """
    from tinytf.runs.naming import default_folder, named_run
    from tinytf.runs.runs import compare_runs
    from tinytf_cli.views.runs import RunsDisplay

    folders = tuple(map(named_run, options.folders)) or (default_folder(),)
    report = compare_runs(folders, must_open=bool(options.folders), by=options.by)
    output.draw(report, RunsDisplay(options.log))
