"""``tinytf models``: the models that --model can open here."""

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
    """Looks at built-in models, presets, FOLDER (default: this one), the Hugging Face cache, Ollama and LM Studio.
    Reads no weights.
    """
    from tinytf.models import catalogue

    output.draw(catalogue(options.folder))
