"""``tinytf export``: a model as a directory that other programs open."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf.files import resolve_links
from tinytf_cli.command import argument, command, option
from tinytf_cli.options import complete_model, tokenizer_option
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The arguments and options of this command alone."""

    model: str = argument(shell_complete=complete_model)
    directory: Path | None = argument(type=click.Path(path_type=Path), required=False)
    adapter: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR", help="Merge this PEFT LoRA adapter into the weights."
    )
    tokenizer: str | None = tokenizer_option()
    to: str = option(type=click.Choice(["huggingface"]), shown="huggingface", help="The format to write.")


@command("export")
def export(options: Options, output: Output) -> None:
    """DIRECTORY must be new or empty; the default is the model's name with -hf, here. In transformers,
    AutoModelForCausalLM.from_pretrained(DIRECTORY) (or AutoModelForMaskedLM, AutoModelForSeq2SeqLM) opens it and gives
    the same logits. The tokenizer is included.
    """
    from tinytf.loading import load

    model = load(options.model, options.tokenizer, device="cpu", adapter=options.adapter)
    name = resolve_links(Path(options.model.rpartition(":")[2])).name.removesuffix(".gguf")
    output.draw(model.export(options.directory or Path(f"{name}-hf")))
