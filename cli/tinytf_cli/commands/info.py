"""``tinytf info``: architecture, parameters, memory and work of a model."""

import click

from tinytf_cli.options import output_options
from tinytf_cli.output import Output, Result


@click.command("info")
@click.argument("model", default="tiny")
@output_options
def command(model: str, output: Output) -> int:
    """Show what MODEL consists of: tiny, tiny-encoder, the folder of a run, or preset:NAME."""
    from tinytf.presets import preset
    from tinytf_cli.views.info import InfoView

    if model.startswith("preset:"):
        view = InfoView(model, preset(model.removeprefix("preset:")), None, None)
    else:
        from tinytf.loading import load

        opened = load(model, device="cpu")
        view = InfoView(opened.name, opened.config, opened.n_parameters, opened.card())
    output.show(Result(view.blocks, view.data, view.events))
    return 0 if view.counted in (None, view.total) else 1
