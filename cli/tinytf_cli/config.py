"""The user's defaults for options that commands share: from the environment, or from a file of their own."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import click

from tinytf.errors import UsageError
from tinytf.files import SMALL, parse_toml, read_bytes
from tinytf.nearest import did_you_mean
from tinytf.report import Data, Report
from tinytf.tables import ColumnStyle
from tinytf.text.printable import printable
from tinytf_cli.command import Option, parameters_of
from tinytf_cli.options import ModelOptions
from tinytf_cli.output import DrawingOptions
from tinytf_cli.pager import CONFIGURED as CONFIGURED_PAGER
from tinytf_cli.pager import find_pager
from tinytf_cli.private import require_private

NAMES = ("model", "device", "dtype", "theme", "colormap", "width", "precision", "ascii", "plain")
"""The options that can be configured, besides the pager."""
PAGER = "pager"
_DEFAULTS = {"model": "tiny", "width": "that of the terminal", "precision": "as each view needs"}
_ABOUT_PAGER = "Command for output longer than the screen; empty for none."


@dataclass(frozen=True)
class Configured(Data):
    """One setting: its ``value``, the ``source`` of it (a variable, the file, or ``default``), and what it is."""

    COLUMNS: ClassVar[Mapping[str, ColumnStyle]] = {
        "name": ColumnStyle("setting", role="strong"),
        "value": ColumnStyle("value", shrink=12),
        "source": ColumnStyle("from"),
        "about": ColumnStyle("", role="dim", shrink=12),
    }

    name: str
    value: str
    source: str
    about: str


@dataclass(frozen=True)
class Configuration(Report):
    """The settings in force, and the ``file`` that may hold them."""

    KIND = "config"
    EVENTS: ClassVar = {"settings": "setting"}
    ROWS = "settings"
    ALWAYS_SAID = True

    file: str
    settings: tuple[Configured, ...]

    def in_a_sentence(self) -> str:
        """Whether there is a file, and the form of its lines."""
        if Path(self.file).is_file():
            return f"Your settings are in {printable(self.file, spaces=False)}."
        return f'There is no {printable(self.file, spaces=False)}; a line of it is theme = "dark".'

    def fields(self) -> dict[str, Any]:
        return self.members("file", "settings")


def config_path() -> Path:
    """The file that TINYTF_CONFIG names, or config.toml in the platform's folder for user configuration."""
    named = os.environ.get("TINYTF_CONFIG")
    if named:
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("tinytf", appauthor=False) / "config.toml"


@cache
def _options() -> dict[str, Option]:
    """The options that can be configured, by name."""
    declared = [option for options in (ModelOptions, DrawingOptions) for option in parameters_of(options)]
    return {option.name: option for option in declared if isinstance(option, Option) and option.name in NAMES}


def _values(refused: Callable[[UsageError], None] = lambda error: None) -> Iterator[tuple[str, Any, str]]:
    """Yield each configured setting: its name, its value and where it comes from.

    A pager is a program: that of a file that others may write is left out, and ``refused`` gets the reason.
    """
    path = config_path()
    in_file = _read(path)
    for name in (*NAMES, PAGER):
        variable = f"TINYTF_{name.upper()}"
        if os.environ.get(variable) or (name == PAGER and variable in os.environ):
            yield name, _checked(name, os.environ[variable], variable), variable
        elif name in in_file:
            value = _checked(name, in_file[name], str(path))
            try:
                if name == PAGER:
                    require_private(path, f"the pager of {path} is not used")
            except UsageError as error:
                refused(error)
            else:
                yield name, value, str(path)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        if os.environ.get("TINYTF_CONFIG"):
            raise UsageError(f"there is no file {path}, which TINYTF_CONFIG names")
        return {}
    try:
        data = parse_toml(read_bytes(path, SMALL).decode())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}", 'a line of it is theme = "dark"') from None
    for key in data:
        if key not in (*NAMES, PAGER):
            raise UsageError(f"{path} has an unknown setting {key!r}", did_you_mean(key, (*NAMES, PAGER)))
    return data


def _checked(name: str, value: Any, source: str) -> Any:
    """The value as the option takes it. Raises UsageError, with its source, for one that it does not take."""
    if name == PAGER:
        if isinstance(value, str):
            return value
        raise UsageError(f"{source}: pager is a command in quotes, not {value!r}", 'such as pager = "less -R"')
    option = _options()[name]
    try:
        return option.type.convert(str(value), option, None)
    except click.BadParameter as error:
        raise UsageError(f"{source}: {name}: {error.message}") from None


class _ForEveryCommand(dict[str, Any]):
    """The defaults of click for a group: under any command's name, the configured values."""

    def get(self, command: str, default: Any = None) -> Any:
        return dict(self)


def configure(context: click.Context) -> None:
    """Give the configured values to every command of the group, and say on stderr which one is refused.

    Raises UsageError like ``configuration``.
    """
    values = {name: value for name, value, _ in _values(_note)}
    if PAGER in values:
        context.meta[CONFIGURED_PAGER] = values.pop(PAGER)
    context.default_map = _ForEveryCommand(values)


def _note(error: UsageError) -> None:
    note = printable(f"{error.message}; {error.hint}", spaces=False)
    click.echo(f"tinytf: note: {note}", err=True)


def configuration() -> Configuration:
    """Every setting with its value and source.

    Raises UsageError for a file that is not TOML, an unknown key, and a value that the option does not take.
    """
    configured = {name: (value, source) for name, value, source in _values()}
    settings = []
    for name in (*NAMES, PAGER):
        value, source = configured.get(name, (None, "default"))
        if name == PAGER:
            settings.append(Configured(name, " ".join(find_pager() or ("none",)), source, _ABOUT_PAGER))
            continue
        option = _options()[name]
        default = "false" if option.is_flag else option.default
        shown = _DEFAULTS.get(name, default) if value is None else value
        shown = str(shown).lower() if isinstance(shown, bool) else str(shown)
        settings.append(Configured(name, shown, source, option.help or ""))
    return Configuration(file=str(config_path()), settings=tuple(settings))
