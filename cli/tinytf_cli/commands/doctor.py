"""``tinytf doctor``: what there is here to work with."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command
from tinytf_cli.output import Output, Result


@dataclass(frozen=True)
class Asked:
    """The argument of this command alone."""

    folder: Path = argument(default=".", type=click.Path(path_type=Path, exists=True, file_okay=False))


@command("doctor")
def doctor(asked: Asked, output: Output) -> int:
    """Versions, devices, threads, the terminal, and the models at hand, those in FOLDER (default: this one) too. Traces
    the built-in model on every device; exit status 1 if one computes something wrong. Nothing is downloaded.
    """
    from tinytf.doctor import checkup
    from tinytf_cli.views.doctor import DoctorView

    view = DoctorView(checkup(asked.folder), output.terminal, output.pager)
    output.show(Result(view.blocks, view.data, view.events, sheet=lambda long: view.found.sheet(long=long)))
    return 0 if view.found.holds else 1
