"""``tinytf config --doctor``: what works on this machine."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from tinytf_cli.command import argument, command
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The argument of this command alone."""

    folder: Path = argument(default=".", type=click.Path(path_type=Path, exists=True, file_okay=False))


@command("config --doctor")
def config_doctor(options: Options, output: Output) -> int:
    """Lists versions, devices, threads, the terminal, and the models that can be opened, including those in FOLDER
    (default: this one). Traces the built-in model on every device, and exits with 1 if one computes wrong numbers.
    Downloads nothing.
    """
    from tinytf.doctor import checkup

    screen = output.terminal
    terminal = {
        "screen": screen.cuts, "width": screen.width, "height": screen.height, "colours": screen.depth,
        "unicode": not screen.ascii, "theme": screen.theme, "pager": list(output.pager or ()),
    }  # fmt: skip
    report = replace(checkup(options.folder), terminal=terminal)
    return output.draw_checked(report)
