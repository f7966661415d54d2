"""A line: reading it from a script, and splitting it into words, redirection and Python."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from tinytf.errors import PlacedError, TinytfError, UsageError
from tinytf.files import SMALL, lasting_files, read_bytes

PROMPT = "tinytf> "
LONGEST = 100_000
MORE_MARK = "... "
PYTHON = re.compile(r"\s*(?:!|(?:>>>|\.\.\.)(?=\s|$))")
"""The start of a line of Python: ! or, as at Python's own prompt, >>> or ..."""
MORE = re.compile(r"(?:>>>|\.\.\.)(?:\s|$)")
"""The optional mark of a further line of a statement."""
Lines = Iterable[tuple[str, str]]
"""Pairs of location and line; a location reads ``look.session line 3``."""

_BLANKS = re.compile(r"\s*")
_PART = re.compile(r"""\\(["'\\ |>#])|'([^']*)('?)|"((?:\\["\\]|[^"])*)("?)|((?:[^\s'"\\]|(?<=\w)')+|\\)""")
"""A part of a word: an escaped character; a quoted text with its closing quote, if any; plain characters."""


@dataclass(frozen=True)
class Piece:
    """``line[start:end]``. ``kind`` is word, space, sign (``|``, ``>``), target (of a sign), comment, bang or python.

    ``word`` is the word without its quotes, ``open`` the column of a quote that is not closed.
    """

    kind: str
    start: int
    end: int
    word: str = ""
    open: int | None = None


@dataclass(frozen=True)
class Typed:
    """One line, split into ``words`` as a shell does.

    ``rest`` is everything after the first word as typed, from column ``rest_at``. ``sign`` is ``|`` or ``>`` if the
    output goes to ``target``, a command or a file; ``!`` if ``target`` is Python.
    """

    line: str
    words: tuple[str, ...] = ()
    rest: str = ""
    rest_at: int = 0
    sign: str = ""
    target: str = ""


def pieces_of(line: str, redirects: Callable[[str], bool] = lambda _: True) -> list[Piece]:
    """The pieces of a line, which may be incomplete; joined, they are the line.

    ``redirects`` says whether ``|`` and ``>`` redirect the output after a first word. A word in '…' is literal; in "…"
    a \\ escapes " and \\; a ' after a letter or digit is an apostrophe.
    """
    pieces: list[Piece] = []
    column = _skip_blanks(line, 0)
    if mark := PYTHON.match(line):
        pieces = [Piece("space", 0, column), Piece("bang", column, mark.end()), Piece("python", mark.end(), len(line))]
        return [piece for piece in pieces if piece.end > piece.start]
    column, first_word = 0, None
    while column < len(line):
        start, char = column, line[column]
        if char.isspace():
            column = _skip_blanks(line, column)
            pieces.append(Piece("space", start, column))
        elif char == "#":
            return [*pieces, Piece("comment", start, len(line))]
        elif char in "|>" and (first_word is None or redirects(first_word.word)):
            target = _skip_blanks(line, start + 1)
            rest = [Piece("space", start + 1, target), Piece("target", target, len(line), line[target:])]
            return [*pieces, Piece("sign", start, start + 1), *(piece for piece in rest if piece.end > piece.start)]
        else:
            word = _word(line, column)
            column, first_word = word.end, first_word or word
            pieces.append(word)
    return pieces


def read_line(line: str, redirects: Callable[[str], bool] = lambda _: True) -> Typed:
    """Split a line, as ``pieces_of`` does.

    Raises PlacedError for a quote that is not closed, UsageError for a line that is too long.
    """
    if len(line) > LONGEST:
        raise UsageError(
            f"the line has {len(line):,} characters, and a session takes at most {LONGEST:,}",
            "a text of that length belongs in a file: tinytf trace - < FILE",
        )
    pieces = pieces_of(line, redirects)
    words = [_require_closed(line, piece) for piece in pieces if piece.kind == "word"]
    terminator = next((piece for piece in pieces if piece.kind in ("sign", "comment", "bang")), None)
    if terminator is not None and terminator.kind == "bang":
        return Typed(line, sign="!", target=python_of(line).rstrip())
    sign = line[terminator.start] if terminator is not None and terminator.kind != "comment" else ""
    stop = len(line) if terminator is None else terminator.start
    start = _skip_blanks(line, words[0].end) if words else stop
    target = ""
    if sign:
        target = line[stop + 1 :].strip() if sign == "|" else _redirect_target(line, stop)
        if not target:
            operand = "a command" if sign == "|" else "a file"
            raise PlacedError(f"{sign} needs {operand} after it", line, stop, f"quote a {sign} that is text")
    return Typed(line, tuple(piece.word for piece in words), line[start:stop].rstrip(), start, sign, target)


def python_of(text: str) -> str:
    """The Python code of a statement, without the marks of its lines."""
    first, *others = PYTHON.sub("", text, count=1).lstrip(" \t").split("\n")
    lines = [MORE.sub("", line) for line in (first, *others)]
    return "\n".join([*lines[:-1], lines[-1].rstrip()])


def complete_name(word: str, names: Iterable[str]) -> str:
    """The name that a word is, or is the only prefix of; empty for no match, UsageError for several."""
    matches = [name for name in names if word and name.startswith(word)]
    if word in matches or len(matches) == 1:
        return word if word in matches else matches[0]
    if matches:
        raise UsageError(f"{word!r} can be {', '.join(matches)}", "type more of it")
    return ""


def shell_quoted(word: str) -> str:
    """A word in "…", which a line reads as one word."""
    return '"' + escape(word) + '"'


def escape(word: str) -> str:
    """A word as written between "…"."""
    return word.replace("\\", "\\\\").replace('"', '\\"')


def _skip_blanks(line: str, column: int) -> int:
    match = _BLANKS.match(line, column)
    return column if match is None else match.end()


def _word(line: str, start: int) -> Piece:
    """The word that begins at ``start``."""
    parts: list[str] = []
    column, open_quote = start, None
    while match := _PART.match(line, column):
        escape, single, single_end, double, double_end, unquoted = match.groups()
        if unquoted is None and escape is None and not (single_end or double_end):
            open_quote = column
        parts.append(escape or single or unquoted or re.sub(r'\\(["\\])', r"\1", double or ""))
        column = match.end()
    return Piece("word", start, column, "".join(parts), open_quote)


def _require_closed(line: str, word: Piece) -> Piece:
    """The word; PlacedError if a quote in it is not closed."""
    if word.open is not None:
        message = f"the quote {line[word.open]} is not closed"
        raise PlacedError(message, line, word.open, 'put a text with an apostrophe between "…", or write \\\'')
    return word


def _redirect_target(line: str, column: int) -> str:
    """The word after a ``>``; empty if there is none, PlacedError if there are more."""
    if line[column + 1 : column + 2] == ">":
        raise PlacedError(">> is not supported: a file is written whole", line, column, "use > FILE")
    word = _require_closed(line, _word(line, _skip_blanks(line, column + 1)))
    rest = _skip_blanks(line, word.end)
    if rest < len(line) and line[rest] != "#":
        raise PlacedError("> takes one file", line, rest, "quote a file name with blanks, and a > that is text")
    return word.word


def read_script(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file, which no output replaces from now on; UsageError if it cannot be read."""
    try:
        with lasting_files():
            data = read_bytes(path, SMALL)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return read_stream(BytesIO(data), f"{path.name} line")


def read_stream(stream: BinaryIO, name: str = "line") -> Iterator[tuple[str, str]]:
    """The lines of a stream such as standard input, each as soon as it arrives."""
    with stream:
        for number, data in enumerate(iter(stream.readline, b""), start=1):
            location = f"{name} {number}"
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise TinytfError(f"{location} is not UTF-8: byte 0x{data[error.start]:02x}") from None
            yield location, line.rstrip("\r\n")
