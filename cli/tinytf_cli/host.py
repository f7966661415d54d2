"""The host of a command: the session that runs it, and fills in what its options leave out."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tinytf_cli.interrupt import Interrupt

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.text.chat import Written


class Host(ABC):
    """What a command takes from the session where its own options do not say otherwise."""

    interrupt: Interrupt

    @property
    @abstractmethod
    def model(self) -> "Model":
        """The open model."""

    @abstractmethod
    def require_text(self) -> "Written":
        """The text of the session; UsageError where there is none."""

    @abstractmethod
    def require_own(self, what: str) -> None:
        """Raise UsageError where the running line comes from a file that may not do so."""


def host() -> Host | None:
    """The host of the running command; None on the command line itself."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Host)  # type: ignore[type-abstract]


def current_interrupt() -> Interrupt:
    """The handler of the running command; outside any command, a new one that never fires."""
    context = click.get_current_context(silent=True)
    session = host()
    found = context.find_object(Interrupt) if context is not None else None
    return found or (session.interrupt if session is not None else Interrupt())


def given(*names: str) -> bool:
    """Whether one of these options was typed, for the running command."""
    context = click.get_current_context()
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)
