"""``tinytf info``: architecture, parameters, memory and work of a model."""

from dataclasses import dataclass

from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host, is_typed
from tinytf_cli.options import complete_model, default_model
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The argument and option of this command alone."""

    model: str = argument(default=default_model, shell_complete=complete_model)
    positions: bool = option(is_flag=True, help="Show how positions are encoded: the waves and their lengths.")


@command("info")
def info(options: Options, output: Output) -> int:
    """MODEL is anything that --model of other commands takes. The default is TINYTF_MODEL, or tiny."""
    from tinytf.loading import info, load

    session = host()
    opened = None if session is None or is_typed("model") else session.model
    report = (opened or load(options.model)).positions() if options.positions else info(options.model, opened)
    output.draw(report)
    return 0 if report.holds else 1
