"""The session that runs a command and supplies the model and text that its options leave out."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tinytf_cli.interrupt import Interrupt

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.text.chat import Written


class Host(ABC):
    """What a session supplies to a command whose options name no model or text."""

    interrupt: Interrupt

    @property
    @abstractmethod
    def model(self) -> "Model":
        """The open model."""

    @abstractmethod
    def require_text(self) -> "Written":
        """The text of the session. Raises UsageError if there is none."""

    @abstractmethod
    def require_own(self, what: str) -> None:
        """Raise UsageError if the running line comes from a file that is not trusted to do ``what``."""


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
