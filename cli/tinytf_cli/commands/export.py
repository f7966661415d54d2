"""``tinytf export``: a model as a directory that other programs open."""

from pathlib import Path

import click

from tinytf_cli.options import output_options
from tinytf_cli.output import Output, Result


@click.command("export")
@click.argument("model")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(["huggingface"]), required=True, help="Whose format.")
@output_options
def command(model: str, directory: Path, to: str, output: Output) -> None:
    """Write MODEL to DIRECTORY, new or empty, in the format that --to names.

    With --to huggingface, AutoModelForCausalLM.from_pretrained(DIRECTORY) (or AutoModelForMaskedLM) of transformers
    opens it and gives the same logits, its tokenizer included.
    """
    from tinytf.loading import load
    from tinytf_cli.views.export import ExportView

    output.show(Result.of(ExportView(load(model, device="cpu").export(directory))))
