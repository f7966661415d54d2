"""What a mistake is: words, the operation whose steps it changes, and the wrong formula."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations import Operation
from tinytf.trace.site import Site

Wrong = Callable[[Site], Tensor]
"""A step of a trace as a wrong formula makes it. Raises RuntimeError where the formula does not fit its shapes."""


@dataclass(frozen=True)
class Mistake:
    """``words`` say what is done; ``at`` is the operation whose steps it changes, ``also`` others, changed with it.

    ``in_heads`` is of steps that have heads alone.
    """

    words: str
    at: type[Operation]
    wrong: Wrong
    also: tuple[tuple[type[Operation], Wrong], ...] = ()
    in_heads: bool = False

    def fits(self, step: Step) -> bool:
        """Whether it can be made at a step."""
        return type(step.operation) is self.at and (step.has_heads or not self.in_heads)


def has(attribute: str, wrong: Wrong) -> Wrong:
    """A mistake of modules that have a parameter."""

    def made(site: Site) -> Tensor:
        if getattr(site.module, attribute, None) is None:
            raise RuntimeError(f"no {attribute}")
        return wrong(site)

    return made


def unlike(value: Callable[[Site], object], wrong: Wrong) -> Wrong:
    """A mistake only where the reference does not do that itself."""

    def made(site: Site) -> Tensor:
        if value(site):
            raise RuntimeError("the reference does this")
        return wrong(site)

    return made
