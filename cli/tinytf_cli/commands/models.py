"""``tinytf models``: what --model can be given here."""

from pathlib import Path

import click

from tinytf_cli.options import output_options
from tinytf_cli.output import Output, Result


@click.command("models")
@click.argument("folder", default=".", type=click.Path(path_type=Path, exists=True, file_okay=False))
@output_options
def command(folder: Path, output: Output) -> None:
    """List the models at hand: built in, presets, in FOLDER (here), and in the Hugging Face cache."""
    from tinytf.catalogue import catalogue
    from tinytf_cli.views.models import ModelsView

    output.show(Result.of(ModelsView(catalogue(folder))))
