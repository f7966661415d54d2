"""The session that runs a command and supplies the model and text that its options leave out."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tinytf.errors import UsageError
from tinytf_cli.interrupt import Interrupt

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.text.chat import Written
    from tinytf.through.model import ThroughModel


class Host(ABC):
    """What a session supplies to a command whose options name no model or text."""

    interrupt: Interrupt

    @property
    @abstractmethod
    def opened(self) -> "Model | ThroughModel":
        """The open model."""

    @property
    def through(self) -> "ThroughModel | None":
        """The open model, if it runs through transformers."""
        from tinytf.through.model import ThroughModel

        return self.opened if isinstance(self.opened, ThroughModel) else None

    @property
    def model(self) -> "Model":
        """The open model. Raises UsageError if it runs through transformers."""
        return with_steps(self.opened)

    @abstractmethod
    def require_text(self) -> "Written":
        """The text of the session. Raises UsageError if there is none."""

    def require_source(self) -> "Written":
        """What a model of two stacks reads, or the text of the session. Raises UsageError if there is none."""
        reads = None if self.through is not None else self.model.transformer.reads
        return self.require_text() if reads is None or reads.trace is None else reads.trace.encoding.text

    @abstractmethod
    def require_own(self, what: str) -> None:
        """Raise UsageError if the running line comes from a file that is not trusted to do ``what``."""


def with_steps(model: "Model | ThroughModel") -> "Model":
    """The model. Raises UsageError if it runs through transformers, which has no steps."""
    from tinytf.loading import Model

    if isinstance(model, Model):
        return model
    context = click.get_current_context(silent=True)
    asked = None if context is None else context.info_name
    raise UsageError(
        f"this model runs through transformers, which has no steps, and {asked or 'this'} needs them",
        "run, print, top, tokens, trace, score, generate, lens, ablate, patch and diff work on its modules",
    )


def host() -> Host | None:
    """The session that runs the current command; None on the command line itself."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Host)  # type: ignore[type-abstract]


def current_interrupt() -> Interrupt:
    """The Ctrl-C handler of the running command; outside any command, a new one that never fires."""
    context = click.get_current_context(silent=True)
    session = host()
    interrupt = context.find_object(Interrupt) if context is not None else None
    return interrupt or (session.interrupt if session is not None else Interrupt())


def is_typed(*names: str) -> bool:
    """Whether any of these options of the running command was typed."""
    context = click.get_current_context()
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)
