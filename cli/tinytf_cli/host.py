"""The host of a command: the session that runs it, and fills in what its options leave out."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.text.chat import Written
    from tinytf_cli.interrupt import Interrupt
    from tinytf_cli.output import Output
    from tinytf_cli.terminal import Terminal


class Host(ABC):
    """What a command takes from the session where its own options do not say otherwise."""

    interrupt: "Interrupt"

    @property
    @abstractmethod
    def model(self) -> "Model":
        """The open model."""

    @abstractmethod
    def require_text(self) -> "Written":
        """The text of the session; UsageError where there is none."""

    @abstractmethod
    def output(self, terminal: "Terminal", form: str, file: Path | None) -> "Output":
        """Where results go."""

    @abstractmethod
    def require_own(self, what: str) -> None:
        """Raise UsageError where the running line comes from a file that may not do so."""


def host() -> Host | None:
    """The host of the running command; None on the command line itself."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Host)  # type: ignore[type-abstract]


def given(*names: str) -> bool:
    """Whether one of these options was typed, for the running command."""
    context = click.get_current_context()
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)
