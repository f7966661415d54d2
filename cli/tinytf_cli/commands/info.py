"""``tinytf info``: architecture, parameters, memory and work of a model."""

import click

from tinytf_cli.host import given, host
from tinytf_cli.options import output_options
from tinytf_cli.output import Output, Result


@click.command("info")
@click.argument("model", default="tiny")
@output_options
def command(model: str, output: Output) -> int:
    """Show what MODEL consists of: tiny, tiny-encoder, a folder, a .gguf file, preset:NAME or hub:ORG/NAME."""
    from tinytf.loading import info
    from tinytf_cli.views.info import InfoView

    lender = host()
    found = info(model, None if lender is None or given("model") else lender.model)
    output.show(Result.of(InfoView(found)))
    return 0 if found.holds else 1
