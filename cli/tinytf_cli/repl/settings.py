"""What a session can be set to: a table of names, what they take, and what they mean."""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, TextIO

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.output import Drawing
from tinytf_cli.terminal import COLORMAPS, THEMES, Terminal, detect

AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """The values; None is ``auto``."""

    precision: int | None = None
    dims: int = 8
    rows: int | None = None
    colormap: str = "viridis"
    theme: str = AUTO
    color: str = AUTO
    width: int | None = None
    ascii: bool = False
    plain: bool = False
    layer: int = 0
    head: int = 0
    pager: bool = False

    def terminal(self, stream: TextIO, color: str = "") -> Terminal:
        """What a stream can show, as the settings say; ``color`` in place of theirs."""
        drawing = {field.name: getattr(self, field.name) for field in fields(Drawing)}
        return detect(stream, **{**drawing, "color": color or self.color})


_SWITCH = ("on", "off")


@dataclass(frozen=True)
class Setting:
    """One name: ``about`` in a line, ``takes`` what may stand behind it: one of the ``choices``, or of ``numbers``."""

    name: str
    about: str
    takes: str
    choices: tuple[str, ...] = ()
    numbers: range = range(0)

    def shown(self, settings: Settings) -> str:
        """The value as it is typed."""
        value = getattr(settings, self.name)
        if value is None:
            return AUTO
        return ("on" if value else "off") if isinstance(value, bool) else str(value)

    def read(self, word: str) -> Any:
        """The value that a word stands for; ValueError for one that is not taken."""
        if word in self.choices:
            return word == "on" if self.choices == _SWITCH else None if self.numbers else word
        if not re.fullmatch("[0-9]{1,9}", word) or int(word) not in self.numbers:
            raise ValueError(word)
        return int(word)


_COLORS = (AUTO, "always", "never")
_ANY = range(10**6 + 1)

SETTINGS: dict[str, Setting] = {
    one.name: one
    for one in (
        Setting("precision", "digits after the point", "auto or 0 to 9", (AUTO,), range(10)),
        Setting("dims", "dimensions shown as numbers", "1 or more", (), _ANY[1:]),
        Setting("rows", "tokens shown in a table; 0 is all", "auto or a number", (AUTO,), _ANY),
        Setting("colormap", "colours of values in 0…1", ", ".join(COLORMAPS), COLORMAPS),
        Setting("theme", "background to draw for", ", ".join(THEMES), THEMES),
        Setting("color", "whether to use colour", ", ".join(_COLORS), _COLORS),
        Setting("width", "columns to draw in", "auto or 20 to 1000", (AUTO,), range(20, 1001)),
        Setting("ascii", "7-bit signs only", "on or off", _SWITCH),
        Setting("plain", "sentences, no tables and maps", "on or off", _SWITCH),
        Setting("layer", "layer of what names none", "a number", (), _ANY),
        Setting("head", "head of what names none", "a number", (), _ANY),
        Setting("pager", "long output a screen at a time", "on or off", _SWITCH),
    )
}
assert [field.name for field in fields(Settings)] == list(SETTINGS)


def find_setting(word: str) -> Setting:
    """A setting by its name or the beginning of one; UsageError for any other word."""
    found = [one for name, one in SETTINGS.items() if name == word] or [
        one for name, one in SETTINGS.items() if name.startswith(word) and word
    ]
    if len(found) > 1:
        raise UsageError(f"{word!r} can be {', '.join(one.name for one in found)}", "write a little more of it")
    if not found:
        raise UsageError(f"there is no setting {word!r}", did_you_mean(word, SETTINGS) or "show lists them")
    return found[0]


def changed(settings: Settings, name: str, word: str) -> tuple[Setting, Settings]:
    """The settings with one of them read from a word."""
    setting = find_setting(name)
    try:
        return setting, replace(settings, **{setting.name: setting.read(word)})
    except ValueError:
        hint = did_you_mean(word, setting.choices) if setting.choices else ""
        raise UsageError(f"{setting.name} takes {setting.takes}, and not {word!r}", hint) from None
