"""``tinytf diff --logprobs``: two programs' log-probabilities of the same tokens."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf_cli.command import argument, command, option
from tinytf_cli.host import is_typed
from tinytf_cli.options import FLOORS, ModelOptions
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The arguments and options of this command alone."""

    first: Path = argument(type=click.Path(path_type=Path), metavar="TRAINER")
    second: Path = argument(type=click.Path(path_type=Path), metavar="ROLLOUT")
    floor: str | None = option(
        type=click.Choice(FLOORS),
        help="Say whether it is rounding: compare with the model's own error in these numbers. Exit 1 if it is not.",
    )


@command("diff --logprobs")
def diff_logprobs(options: Options, model_options: ModelOptions, output: Output) -> int:
    """The files are JSON lines, a text each, with its log-probabilities and ids. With a --model, what one of the
    programs did to them is looked for by experiment.
    """
    from tinytf.compare.logprobs import diff_logprobs as compare

    model = model_options.open(because="a log of samples has a prompt and no source") if is_typed("model") else None
    return output.draw_checked(compare(options.first, options.second, model, options.floor))
