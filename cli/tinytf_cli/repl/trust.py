"""The rights of session files: they run code and write files only if the user allows it by an option."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click

from tinytf_cli.command import option


@dataclass(frozen=True)
class Trust:
    """What the lines of a file are allowed to do."""

    GROUP: ClassVar = "Trust"

    allow_code: bool = option(is_flag=True, help="Let the lines of files run Python and programs, and write anywhere.")
    write_to: Path | None = option(
        type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
        help="Let the lines of files write new files of results below DIR; otherwise they write nothing.",
    )  # fmt: skip
