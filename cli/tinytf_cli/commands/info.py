"""``tinytf info``: architecture, parameters, memory and work of a model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytf_cli.command import argument, command, option
from tinytf_cli.host import given, host
from tinytf_cli.options import complete_model, default_model
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf.loading import Model


@dataclass(frozen=True)
class Asked:
    """The argument and option of this command alone."""

    model: str = argument(default=default_model, shell_complete=complete_model)
    positions: bool = option(is_flag=True, help="Show how positions are encoded: the waves and their lengths.")


@command("info")
def info(asked: Asked, output: Output) -> int:
    """MODEL is what --model of other commands takes; without it, TINYTF_MODEL or tiny."""
    from tinytf.loading import info as report
    from tinytf.loading import load
    from tinytf_cli.views.info import InfoView

    lender = host()
    opened = None if lender is None or given("model") else lender.model
    if asked.positions:
        return _positions(opened or load(asked.model), output)
    found = report(asked.model, opened)
    output.show(Result.of(InfoView(found)))
    return 0 if found.holds else 1


def _positions(model: "Model", output: Output) -> int:
    from tinytf_cli.views.positions import PositionsView

    found = model.positions()
    output.show(Result.of(PositionsView(model, found)))
    return 0 if found.holds else 1
