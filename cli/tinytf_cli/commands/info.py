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
    from tinytf_cli.views.info import InfoView

    if model.startswith("preset:"):
        from tinytf.presets import preset

        view = InfoView(model, preset(model.removeprefix("preset:")))
    else:
        import torch

        from tinytf.checkpoints.weights import not_finite
        from tinytf.sources import find_source

        source, lender = find_source(model), host()
        if lender is not None and not given("model"):
            counted, notes = lender.model.n_parameters, lender.model.notes
        else:
            weighed = source.weigh(torch.float32, seed=0)
            parameters = dict(weighed.transformer.named_parameters())
            counted = sum(parameter.numel() for parameter in parameters.values())
            notes = (*weighed.notes, *not_finite(parameters))
        view = InfoView(source.name, source.config(), source.family, counted, notes, source.card())
    output.show(Result(view.blocks, view.data, view.events))
    return 0 if view.counted in (None, view.total) else 1
