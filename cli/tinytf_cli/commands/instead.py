"""What ``tinytf trace`` can show of a text instead of the trace: its code, an activation, a run without a part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import click

from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf_cli.command import option
from tinytf_cli.host import given
from tinytf_cli.options import Detail

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.report import Report
    from tinytf.trace.address import Address
    from tinytf.trace.trace import Trace
    from tinytf_cli.views.draw import Display


@dataclass(frozen=True)
class Instead:
    """Options that replace the trace by something else, one at a time."""

    GROUP: ClassVar = "Instead"

    code: bool = option(is_flag=True, help="The PyTorch of each step in --layer, run and compared.")
    activations: bool = option(is_flag=True, help="The activation in --layer, with the text's numbers on its curve.")
    without: tuple[str, ...] = option(
        "--without", multiple=True, type=click.Choice(list(LEFT_OUT)),
        help="A run without this part of attention, beside the model's own, and --head in both. Repeatable.",
    )  # fmt: skip

    @property
    def asked(self) -> list[str]:
        return [name for name in ("code", "activations", "without") if getattr(self, name)]

    def refuse_parameters(self) -> None:
        """UsageError for any of them beside the address of a parameter."""
        if self.asked:
            raise UsageError(f"--{self.asked[0]} is not of parameters", "ask for the parameter alone")

    def question(
        self, model: "Model", detail: Detail, at: "list[Address]", top: int
    ) -> "tuple[Callable[[Trace], Report], Display | None]":
        """The question that is asked of a trace, and how its answer is displayed.

        Raises UsageError for two at once, or with single steps.
        """
        from tinytf_cli.views.activations import ActivationsDisplay

        (layer, *_), number = detail.layers(model), detail.head_of(model)
        head = f"L{layer}H{number}" if given("layer", "head") else None
        asked, *others = self.asked
        if others:
            raise UsageError(f"--{asked} and --{others[0]} each replace the trace", "ask for one at a time")
        if at and asked != "code":
            raise UsageError(f"--{asked} shows no single steps", "leave out --at and --step")
        if asked == "code":
            return lambda trace: model.code(trace, detail.layers(model), at), None
        if asked == "activations":
            return lambda trace: model.activations(trace, layer), ActivationsDisplay(detail.rows)
        return lambda trace: model.compare_without(trace, self.without, head=head, top=top), None
