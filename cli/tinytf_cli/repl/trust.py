"""What the lines of a file may do: code runs, and files are written, only where the user asks for it in words."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click

from tinytf_cli.command import option


@dataclass(frozen=True)
class Trust:
    """What the lines of a file may do."""

    GROUP: ClassVar = "Trust"

    allow_code: bool = option(is_flag=True, help="Let the lines of files run Python and programs, and write anywhere.")
    write_to: Path | None = option(
        type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
        help="Let the lines of files write new files of results below DIR; otherwise they write nothing.",
    )  # fmt: skip
