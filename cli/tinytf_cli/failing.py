"""Every error as one line, a hint and an exit status, and if known the place in the typed line."""

import errno
import json
import os
import re
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import click

from tinytf.errors import PlacedError, TinytfError
from tinytf.nearest import did_you_mean, near_path
from tinytf.text.printable import printable
from tinytf_cli.asking import option_meant

_AROUND = 60
_NAMED = 4
"""The most commands that a hint names for an option."""


@dataclass(frozen=True)
class Failure:
    """How an error is reported. ``marked`` is two lines, the typed line and a caret under the mistake, or empty."""

    message: str
    hint: str
    status: int
    marked: str = ""


_TOO_MANY = "Got unexpected extra argument"
_NO_MEMORY = ("can't allocate memory", os.strerror(errno.ENOMEM), "failed to map segment")
"""What torch's RuntimeError, an OSError, and the ImportError of a library say where memory is short."""
_PLAINER = [
    (r"a valid integer$", "a whole number"),
    (r"a valid float$", "a number"),
    (r"^Missing argument '{([\w|]+)}'.*", r"one of \1 is missing"),
    (
        r"^Invalid value for '(?:{.*}|(--[\w-]+)).*': ('.*') is not (?:one of )?('.*')$",
        r"\2 is not one of \3, which \1 takes",
    ),
    (r", which  takes$", ""),
    (r"^Missing option '([^' ]+)'(?: / '[^']+')*$", r"\1 is missing"),
    (r"^Option '([^' ]+)' requires (?:an argument|(\d+) arguments)$", r"\1 needs a value"),
    (r"^Option '([^' ]+)' does not take a value$", r"\1 takes no value"),
    (rf"^{_TOO_MANY}s? \((.*)\)$", r"too many arguments: \1"),
    (r"^Missing argument '\[?([^'\]]+?)\]?(?:\.\.\.|…)?'$", r"\1 is missing"),
    (r"^Invalid value for '\[?([A-Z|]+)\]?…?': ", r"\1: "),
    (r"^Invalid value for '\{[^']+\}': ", ""),
    (r"^Invalid value for '([^']+)'(?: / '[^']+')*: ", r"\1: "),
    (r"Directory ('.*') does not exist$", r"there is no folder \1"),
    (r"Directory ('.*') is a file$", r"\1 is a file, not a folder"),
]
"""click's wording, and plainer words for it."""


def explained(error: Exception, shows: str = "--debug shows where it happened") -> Failure:
    """Explain an error to the user. ``shows`` is the hint to the traceback, for a fault of tinytf itself."""
    if isinstance(error, click.UsageError):
        return Failure(usage_message(error), _usage_hint(error), 2)
    if isinstance(error, PlacedError):
        return Failure(error.message, error.hint, error.exit_status, _marked(error.line, error.column))
    if isinstance(error, TinytfError):
        return Failure(error.message, _file_hint(error.message, error.__context__, error.hint), error.exit_status)
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return Failure("there is not enough memory for this", "use a smaller model or a shorter text", 1)
    if isinstance(error, OSError):
        message = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return Failure(message, _file_hint(message, error), 1)
    if isinstance(error, ValueError) and "embedded null" in str(error):  # Python's message for a path with a NUL byte
        return Failure("a file name cannot hold a NUL byte", "", 2)
    return Failure(f"{type(error).__name__}: {error}", f"this is a fault of tinytf; {shows}", 1)


_FILE_HINTS: Sequence[tuple[type[BaseException], str]] = (
    (FileNotFoundError, "is its name right?"),
    (PermissionError, "change its permissions, or name another"),
    (IsADirectoryError, "name a file in it"),
    (UnicodeDecodeError, "re-encode it, for example with iconv -t utf-8"),
    (json.JSONDecodeError, "is it the right file, and whole?"),
    (tomllib.TOMLDecodeError, "is it the right file, and whole?"),
)


def _file_hint(message: str, cause: BaseException | None, hint: str = "") -> str:
    """The hint of an error that came of a file: the file beside a missing one, if near, then ``hint``, then advice."""
    if isinstance(cause, FileNotFoundError) and str(cause.filename) in message:
        hint = near_path(Path(str(cause.filename))) or hint
    return hint or next((advice for kind, advice in _FILE_HINTS if isinstance(cause, kind)), "")


def say(message: str, hint: str = "", marked: str = "", stream: TextIO | None = None) -> None:
    """Write an error to ``stream`` (default: stderr); without one that can be written it is lost.

    Messages repeat what a user typed, so control characters are escaped.
    """
    stream = sys.stderr if stream is None else stream
    if stream is None:
        return
    lines = [_fitted(f"tinytf: error: {printable(message, spaces=False)}", stream), marked]
    lines += [_fitted(f"hint: {printable(hint, spaces=False)}", stream)] if hint else []
    with suppress(OSError):  # a full disk, or a reader that has gone
        print(*filter(None, lines), sep="\n", file=stream, flush=True)


def _fitted(line: str, stream: TextIO) -> str:
    """A line, wrapped between words on a terminal."""
    width = shutil.get_terminal_size().columns
    if not stream.isatty() or len(line) < width:
        return line
    return textwrap.fill(line, width - 1, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _marked(line: str, column: int) -> str:
    """The text around a column, and a caret under it. Wide characters count as two cells."""
    from rich.cells import cell_len

    start = max(0, column - _AROUND)
    left = printable(line[start:column], spaces=False)
    right = printable(line[column : column + _AROUND], spaces=False)
    cut = "…" if start else ""
    return f"  {cut}{left}{right}\n  {' ' * cell_len(cut + left)}^"


def _usage_hint(error: click.UsageError) -> str:
    hint, context = getattr(error, "hint", ""), error.ctx
    if hint or context is None:
        return str(hint) or "see tinytf --help"
    if isinstance(error, click.NoSuchOption):
        return _option_hint(error.option_name, context)
    name = getattr(error, "option_name", "")
    parameter = getattr(error, "param", None) or next((one for one in context.command.params if name in one.opts), None)
    typed = re.match("(?:Directory )?'(.*)' (?:is not|does not exist)", error.message)
    kind = parameter.type if parameter else None
    if typed and isinstance(kind, click.Choice):
        hint = _near(typed[1], kind.choices)
    elif typed and isinstance(kind, click.Path):
        hint = near_path(Path(typed[1]))
    if isinstance(parameter, click.Option) and (parameter.help or isinstance(kind, click.Choice)):
        return hint or _about(parameter, context)
    if isinstance(parameter, click.Argument):
        return hint or f"it is {_usage(context)}"
    if error.message.startswith(_TOO_MANY):
        return f"it is {_usage(context)}; put quotes around a text of several words"
    return hint or f"see {context.command_path} --help"


def _near(word: str, names: Iterable[object]) -> str:
    """A hint that names the nearest; empty where none is near."""
    hint = did_you_mean(word, map(str, names))
    return hint if hint.endswith("?") else ""


def _about(option: click.Option, context: click.Context) -> str:
    """An option with what it takes, the first of a few words, and the first sentence of its help."""
    name = max(option.opts, key=len)
    takes = option.type.choices[0] if isinstance(option.type, click.Choice) else option.make_metavar(context)
    about = re.split(r"[.:;](?: |$)", option.help or "")[0]
    shown = f"{name}{'' if option.is_flag else f' {takes}'}{about and f': {about}'}"
    return f"{shown}; see {context.command_path} --help"


def _usage(context: click.Context) -> str:
    """The command with what it needs: its arguments and required options."""
    takes = [one for one in context.command.params if isinstance(one, click.Argument)]
    needs = [one for one in context.command.params if isinstance(one, click.Option) and one.required]
    options = [f"{max(one.opts, key=len)} {one.make_metavar(context)}" for one in needs]
    return " ".join([context.command_path, *(one.make_metavar(context) for one in takes), *options])


def _option_hint(typed: str, context: click.Context) -> str:
    """What to type instead of an option that the command does not have."""
    options = [option for option in context.command.params if isinstance(option, click.Option)]
    about = {name: option.help or "" for option in options
             for name in (*option.opts, *option.secondary_opts) if name.startswith("--")}  # fmt: skip
    if meant := option_meant(typed, about):
        twin = f"-{typed}"  # -n is easily typed for --n
        either = [meant, twin] if twin in about else [meant]
        return f"did you mean {' or '.join(f'{name} ({about[name].rstrip(chr(46))})' for name in either)}?"
    arguments = {word: shown for argument in context.command.params if isinstance(argument, click.Argument)
                 for shown in [argument.make_metavar(context)]
                 for word in (f"--{argument.name}", f"--{shown.strip('[].').lower()}")}  # fmt: skip
    near = _near(typed, [*about, *arguments])
    name = near.removeprefix("did you mean ").rstrip("?")
    if name in arguments:
        return f"it is an argument: {context.command_path} {arguments[name]}"
    return "; ".join(filter(None, (_elsewhere(typed), near))) or f"see {context.command_path} --help"


def _elsewhere(option: str) -> str:
    """Which other commands have an option, if few do."""
    from tinytf_cli.command import WITH_FORMS, load

    names = [name for group in WITH_FORMS.values() for name in group]
    having = [f"tinytf {name}" for name in names if any(option in one.opts for one in load(name).params)]
    return f"{option} is an option of {', '.join(having)}" if 0 < len(having) <= _NAMED else ""


def usage_message(error: click.UsageError) -> str:
    """A usage error of click in plainer words."""
    if isinstance(error, click.NoSuchOption):
        return f"there is no option {error.option_name}"
    message = " ".join(error.format_message().split()).rstrip(".")
    for words, plainer in _PLAINER:
        message = re.sub(words, plainer, message)
    return message
