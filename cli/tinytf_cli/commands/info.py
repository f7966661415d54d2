"""``tinytf info``: architecture, parameters, memory and work of a model."""

from dataclasses import dataclass, replace

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host, is_typed
from tinytf_cli.options import complete_model, default_model
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole


@dataclass(frozen=True)
class Options:
    """The argument and option of this command alone."""

    model: str = argument(default=default_model, shell_complete=complete_model)
    positions: bool = option(is_flag=True, help="Show how positions are encoded: the waves and their lengths.")
    batch: int | None = option(type=Whole(1), help="Show the shape of every step for a batch of N texts instead.")
    length: int | None = option(type=Whole(1), help="Tokens of each text of the batch.  [default: the context]")


@command("info")
def info(options: Options, output: Output) -> int:
    """MODEL is anything that --model of other commands takes. The default is TINYTF_MODEL, or tiny."""
    from tinytf.loading import info, load

    session = host()
    opened = None if session is None or is_typed("model") else session.model
    is_batch = bool(options.batch or options.length)
    if options.positions and is_batch:
        raise UsageError("--positions is not about a batch", "leave out --positions, or --batch and --length")
    if options.positions:
        positions = (opened or load(options.model)).positions()
        return output.draw_checked(positions)
    report = info(options.model, opened)
    if is_batch:
        report = replace(report, batch=(options.batch or 1, options.length or report.config.context))
    return output.draw_checked(report)
