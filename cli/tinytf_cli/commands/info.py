"""``tinytf info``: architecture, parameters, memory and work of a model."""

from dataclasses import dataclass

from tinytf_cli.command import argument, command
from tinytf_cli.host import given, host
from tinytf_cli.output import Output, Result


@dataclass(frozen=True)
class Asked:
    """The argument of this command alone."""

    model: str = argument(default="tiny")


@command("info")
def info(asked: Asked, output: Output) -> int:
    """MODEL is tiny, tiny-encoder, a folder, a .gguf file, preset:NAME or hub:ORG/NAME."""
    from tinytf.loading import info as report
    from tinytf_cli.views.info import InfoView

    lender = host()
    found = report(asked.model, None if lender is None or given("model") else lender.model)
    output.show(Result.of(InfoView(found)))
    return 0 if found.holds else 1
