"""Every error as one line, a hint and an exit status, and if known the place in the typed line."""

import errno
import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TextIO

import click

from tinytf.errors import PlacedError, TinytfError
from tinytf.nearest import did_you_mean
from tinytf.text.printable import printable
from tinytf_cli.asking import option_meant

_AROUND = 60


@dataclass(frozen=True)
class Failure:
    """How an error is reported. ``marked`` is two lines, the typed line and a caret under the mistake, or empty."""

    message: str
    hint: str
    status: int
    marked: str = ""


_PLAINER = [
    (r"a valid integer$", "a whole number"),
    (r"a valid float$", "a number"),
    (r"^Missing argument '{([\w|]+)}'.*", r"one of \1 is missing"),
    (r"^Missing (?:argument|option) '\[?([\w.:|-]+?)\]?(?:\.\.\.)?'\.?", r"\1 is missing"),
    (
        r"^Invalid value for '(?:{.*}|(--[\w-]+)).*': ('.*') is not (?:one of )?('.*')$",
        r"\2 is not one of \3, which \1 takes",
    ),
    (r", which  takes$", ""),
    (r"^Invalid value for '\[?([A-Z|]+)\]?…?': ", r"\1: "),
]
"""click's wording, and plainer words for it."""


_NO_MEMORY = ("can't allocate memory", os.strerror(errno.ENOMEM), "failed to map segment from shared object")
"""What torch says, the system, and what loads libraries, in errors of other kinds."""


def explained(error: Exception, shows: str = "--debug shows where it happened") -> Failure:
    """Explain an error to the user. ``shows`` is the hint to the traceback, for a fault of tinytf itself."""
    if isinstance(error, click.UsageError):
        return Failure(usage_message(error), _usage_hint(error), 2)
    if isinstance(error, PlacedError):
        return Failure(error.message, error.hint, error.exit_status, _marked(error.line, error.column))
    if isinstance(error, TinytfError):
        return Failure(error.message, error.hint, error.exit_status)
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return Failure("there is not enough memory for this", "use a smaller model or a shorter text", 1)
    if isinstance(error, OSError):
        message = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return Failure(message, "", 1)
    if isinstance(error, ValueError) and "embedded null" in str(error):  # Python's message for a path with a NUL byte
        return Failure("a file name cannot hold a NUL byte", "", 2)
    return Failure(f"{type(error).__name__}: {error}", f"this is a fault of tinytf; {shows}", 1)


def say(message: str, hint: str = "", marked: str = "", stream: TextIO | None = None) -> None:
    """Write an error to ``stream`` (default: stderr); without a stderr it is lost.

    Messages repeat what a user typed, so control characters are escaped.
    """
    stream = sys.stderr if stream is None else stream
    if stream is None:
        return
    print(_fitted(f"tinytf: error: {printable(message, spaces=False)}", stream), file=stream)
    if marked:
        print(marked, file=stream)
    if hint:
        print(_fitted(f"hint: {printable(hint, spaces=False)}", stream), file=stream)
    stream.flush()


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
    hint = getattr(error, "hint", "")
    if hint:
        return str(hint)
    if isinstance(error, click.NoSuchOption) and error.ctx:
        for argument in error.ctx.command.params:
            if isinstance(argument, click.Argument) and argument.name == error.option_name.lstrip("-"):
                return f"it is an argument: {error.ctx.command_path} {argument.make_metavar(error.ctx)}"
    if error.ctx and isinstance(error, click.BadParameter) and error.param and (typed := _as_typed(error)):
        return typed
    see = f"see {error.ctx.command_path} --help" if error.ctx else "see tinytf --help"
    if isinstance(error, click.NoSuchOption) and error.ctx:
        options = [option for option in error.ctx.command.params if isinstance(option, click.Option)]
        about = {name: option.help or "" for option in options for name in option.opts if name.startswith("--")}
        names = [*about]
        if meant := option_meant(error.option_name, names):
            twin = f"-{error.option_name}"  # -n is easily typed for --n
            either = [meant, twin] if twin in about else [meant]
            return f"did you mean {' or '.join(f'{name} ({about[name].rstrip(chr(46))})' for name in either)}?"
        return did_you_mean(error.option_name, names, otherwise=see)
    return see


def _as_typed(error: click.BadParameter) -> str:
    """The line to type, where a parameter is missing or is one of a few words; empty for other mistakes."""
    ctx, parameter = error.ctx, error.param
    assert ctx is not None
    assert parameter is not None
    shown = parameter.make_metavar(ctx)
    usage = [ctx.command_path, *(piece for piece in ctx.command.collect_usage_pieces(ctx) if piece != "[OPTIONS]")]
    if isinstance(parameter, click.Option):
        usage += [max(parameter.opts, key=len), shown]
    if isinstance(parameter.type, click.Choice):
        return f"such as: {' '.join(usage).replace(shown, str(parameter.type.choices[0]))}"
    return f"type: {' '.join(usage)}" if isinstance(error, click.MissingParameter) else ""


def usage_message(error: click.UsageError) -> str:
    """A usage error of click in plainer words."""
    if isinstance(error, click.NoSuchOption):
        return f"there is no option {error.option_name}"
    message = " ".join(error.format_message().split()).rstrip(".")
    for words, plainer in _PLAINER:
        message = re.sub(words, plainer, message)
    return message
