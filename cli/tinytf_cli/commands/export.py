"""``tinytf export``: a model as a directory that other programs open."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command, option
from tinytf_cli.options import complete_model, tokenizer_option
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The arguments and options of this command alone."""

    model: str = argument(shell_complete=complete_model)
    directory: Path = argument(type=click.Path(path_type=Path))
    adapter: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR", help="Merge this PEFT LoRA adapter into the weights."
    )
    tokenizer: str | None = tokenizer_option()
    to: str = option(type=click.Choice(["huggingface"]), shown="huggingface", help="The format to write.")


@command("export")
def export(options: Options, output: Output) -> None:
    """DIRECTORY must be new or empty. In transformers, AutoModelForCausalLM.from_pretrained(DIRECTORY) (or
    AutoModelForMaskedLM) opens it and gives the same logits. The tokenizer is included.
    """
    from tinytf.loading import load

    output.draw(load(options.model, options.tokenizer, device="cpu", adapter=options.adapter).export(options.directory))
