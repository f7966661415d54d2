"""Whoever runs a command inside itself, and lends it what its options leave out: the session."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf_cli.interrupt import Interrupt
    from tinytf_cli.output import Output
    from tinytf_cli.terminal import Terminal


class Host:
    """What a command takes from its host where its own options do not say otherwise."""

    interrupt: "Interrupt"

    @property
    def model(self) -> "Model":
        """The open model."""
        raise NotImplementedError

    def require_text(self) -> str:
        """The text of the session; UsageError where there is none."""
        raise NotImplementedError

    def output(self, terminal: "Terminal", form: str, file: Path | None) -> "Output":
        """Where results go."""
        raise NotImplementedError


def host() -> Host | None:
    """The host of the command that is running; None on the command line itself."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Host)


def given(*names: str) -> bool:
    """Whether one of these options was typed, for the command that is running."""
    context = click.get_current_context()
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)
