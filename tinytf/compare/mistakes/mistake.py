"""A mistake: its words, the operation whose steps it changes, and the wrong formula."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations import Operation
from tinytf.trace.site import Site

Wrong = Callable[[Site], Tensor]
"""A wrong formula for a step of a trace. Raises RuntimeError where it does not fit the step's shapes."""


@dataclass(frozen=True)
class Mistake:
    """A mistake in ``words``. ``at`` is the operation whose steps it changes, ``also`` others that change with it.

    ``in_heads`` restricts it to steps with heads. With one ``across_texts`` a text in a batch depends on the others.
    """

    words: str
    at: type[Operation]
    wrong: Wrong
    also: tuple[tuple[type[Operation], Wrong], ...] = ()
    in_heads: bool = False
    across_texts: bool = False

    def fits(self, step: Step) -> bool:
        """Whether the mistake can be made at a step."""
        return type(step.operation) is self.at and (step.has_heads or not self.in_heads)


def has(attribute: str, wrong: Wrong) -> Wrong:
    """Limit a wrong formula to modules that have a parameter."""

    def wrong_or_refused(site: Site) -> Tensor:
        if getattr(site.module, attribute, None) is None:
            raise RuntimeError(f"no {attribute}")
        return wrong(site)

    return wrong_or_refused


def unlike(value: Callable[[Site], object], wrong: Wrong) -> Wrong:
    """Limit a wrong formula to steps where the reference does not do the same: ``value`` is false."""

    def wrong_or_refused(site: Site) -> Tensor:
        if value(site):
            raise RuntimeError("the reference does this")
        return wrong(site)

    return wrong_or_refused
