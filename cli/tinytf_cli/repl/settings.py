"""The settings of a session: how output is shown."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TextIO

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.outputs import Fence, current_fence
from tinytf_cli.output import DrawingOptions
from tinytf_cli.repl.line import complete_name
from tinytf_cli.terminal import COLORMAPS, THEMES, Terminal, detect

AUTO = "auto"
_SWITCH = ("on", "off")
_COLORS = (AUTO, "always", "never")
_ANY = range(10**6 + 1)


def _setting(
    default: Any, about: str, takes: str, choices: tuple[str, ...] = (), numbers: range = range(0)
) -> Any:  # a dataclass field, of the type of its default
    return field(default=default, metadata={"about": about, "takes": takes, "choices": choices, "numbers": numbers})


@dataclass(frozen=True)
class Settings:
    """How output is shown; None means ``auto``. ``fences`` are those of the settings that a stranger's lines chose."""

    precision: int | None = _setting(None, "digits after the point", "auto or 0 to 9", (AUTO,), range(10))
    dims: int | None = _setting(None, "numbers of a row shown; 0 is all", "auto or a number", (AUTO,), _ANY)
    rows: int | None = _setting(None, "tokens shown in a table; 0 is all", "auto or a number", (AUTO,), _ANY)
    colormap: str = _setting("viridis", "colours of values in 0…1", ", ".join(COLORMAPS), COLORMAPS)
    theme: str = _setting(AUTO, "background to draw for", ", ".join(THEMES), THEMES)
    color: str = _setting(AUTO, "whether to use colour", ", ".join(_COLORS), _COLORS)
    width: int | None = _setting(None, "columns of the output", "auto or 20 to 1000", (AUTO,), range(20, 1001))
    ascii: bool = _setting(False, "7-bit characters only", "on or off", _SWITCH)
    plain: bool = _setting(False, "sentences instead of tables and maps", "on or off", _SWITCH)
    layer: int = _setting(0, "layer of an address without one", "a number", (), _ANY)
    head: int = _setting(0, "head of an address without one", "a number", (), _ANY)
    vi: bool = _setting(False, "vi keys at the prompt", "on or off", _SWITCH)
    pager: bool = _setting(False, "long output a screen at a time", "on or off", _SWITCH)
    fences: Mapping[str, Fence] = field(default_factory=dict, compare=False, repr=False)

    def terminal(self, stream: TextIO, color: str = "") -> Terminal:
        """The terminal of a stream under these settings; ``color`` overrides their colour."""
        options = {field.name: getattr(self, field.name) for field in fields(DrawingOptions)}
        return detect(stream, **{**options, "color": color or self.color})

    def changed(self, name: str, word: str) -> "Settings":
        """The settings with one value read from a word."""
        setting, fence = find_setting(name), current_fence()
        fences = {other: kept for other, kept in self.fences.items() if other != setting.name}
        fences |= {} if fence is None else {setting.name: fence}
        return replace(self, **{setting.name: setting.read(word)}, fences=fences)


@dataclass(frozen=True)
class Setting:
    """One setting: its description, and the ``choices`` and ``numbers`` that it takes (``takes`` in words)."""

    name: str
    about: str
    takes: str
    choices: tuple[str, ...]
    numbers: range

    def shown(self, settings: Settings) -> str:
        """The value as the user types it."""
        value = getattr(settings, self.name)
        if value is None:
            return AUTO
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    def read(self, word: str) -> Any:
        """The value that a word means; UsageError if the setting does not take it."""
        if word in self.choices:
            return word == "on" if self.choices == _SWITCH else None if self.numbers else word
        if re.fullmatch("[0-9]{1,9}", word) and int(word) in self.numbers:
            return int(word)
        nearest = did_you_mean(word, self.choices) if self.choices else ""
        raise UsageError(f"{self.name} takes {self.takes}, not {word!r}", nearest if nearest.endswith("?") else "")


SETTINGS = {entry.name: Setting(entry.name, **entry.metadata) for entry in fields(Settings) if entry.metadata}


def find_setting(word: str) -> Setting:
    """The setting that a name or unique prefix means; UsageError for any other word."""
    name = complete_name(word, SETTINGS)
    if not name:
        otherwise = f"to look at a step: print {word[:60]}" if re.match("L[0-9]", word) else "show lists them"
        raise UsageError(f"there is no setting {word!r}", did_you_mean(word, SETTINGS, otherwise=otherwise))
    return SETTINGS[name]
