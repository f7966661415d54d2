"""``tinytf models``: what --model can be given here."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The argument of this command alone."""

    folder: Path = argument(default=".", type=click.Path(path_type=Path, exists=True, file_okay=False))


@command("models")
def models(options: Options, output: Output) -> None:
    """They are built in, presets, in FOLDER (default: this one), in the Hugging Face cache, of Ollama, or of LM Studio.
    No weights are read.
    """
    from tinytf.catalogue import catalogue

    output.draw(catalogue(options.folder))
