"""A line: read from a script, and split into words and what happens to the output."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from tinytf.errors import PlacedError, TinytfError, UsageError
from tinytf.files import SMALL, read_bytes

PROMPT = "tinytf> "
LONGEST = 100_000
MORE_MARK = "... "
PYTHON = re.compile(r"\s*(?:!|(?:>>>|\.\.\.)(?=\s|$))")
"""What a line of Python begins with: ! or, as Python's own prompt shows it, >>> and ..."""
MORE = re.compile(r"(?:>>>|\.\.\.)(?:\s|$)")
"""The mark of a further line of a statement, which may have none."""
Lines = Iterable[tuple[str, str]]
"""Each line after its place: ``look.session line 3``."""

_BLANKS = re.compile(r"\s*")
_PART = re.compile(r"""\\(["'\\ |>#])|'([^']*)('?)|"((?:\\["\\]|[^"])*)("?)|((?:[^\s'"\\]|(?<=\w)')+|\\)""")
"""A part of a word: an escaped character; a text in quotes, with the closing one; characters as they are."""


@dataclass(frozen=True)
class Piece:
    """``line[start:end]``. ``kind`` is word, space, sign (``|`` or ``>``), target (what follows one), comment, bang or

    python; ``word`` is a word without its quotes, ``open`` the place of a quote that is not closed.
    """

    kind: str
    start: int
    end: int
    word: str = ""
    open: int | None = None


@dataclass(frozen=True)
class Typed:
    """One line. ``words`` are split as a shell does; ``rest`` is everything after the first word as typed, from

    column ``rest_at``. ``sign`` is ``|`` or ``>`` where the output goes to ``target``, a command or a file; ``!`` where
    ``target`` is Python.
    """

    line: str
    words: tuple[str, ...] = ()
    rest: str = ""
    rest_at: int = 0
    sign: str = ""
    target: str = ""


def pieces_of(line: str, redirects: Callable[[str], bool] = lambda _: True) -> list[Piece]:
    """The pieces of a line, which may still be incomplete; joined, they are the line.

    ``redirects`` says of a first word whether ``|`` and ``>`` after it redirect the output. A word in '…' is taken
    literally; in "…" a \\ escapes " and \\; after a letter or digit, a ' is an apostrophe.
    """
    found: list[Piece] = []
    place = _after_blanks(line, 0)
    if mark := PYTHON.match(line):
        found = [Piece("space", 0, place), Piece("bang", place, mark.end()), Piece("python", mark.end(), len(line))]
        return [piece for piece in found if piece.end > piece.start]
    place, first = 0, None
    while place < len(line):
        start, char = place, line[place]
        if char.isspace():
            place = _after_blanks(line, place)
            found.append(Piece("space", start, place))
        elif char == "#":
            return [*found, Piece("comment", start, len(line))]
        elif char in "|>" and (first is None or redirects(first.word)):
            target = _after_blanks(line, start + 1)
            after = [Piece("space", start + 1, target), Piece("target", target, len(line), line[target:])]
            return [*found, Piece("sign", start, start + 1), *(one for one in after if one.end > one.start)]
        else:
            word = _word(line, place)
            place, first = word.end, first or word
            found.append(word)
    return found


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
    words = [_closed(line, piece) for piece in pieces if piece.kind == "word"]
    end = next((piece for piece in pieces if piece.kind in ("sign", "comment", "bang")), None)
    if end is not None and end.kind == "bang":
        return Typed(line, sign="!", target=python_of(line).rstrip())
    sign = line[end.start] if end is not None and end.kind != "comment" else ""
    stop = len(line) if end is None else end.start
    start = _after_blanks(line, words[0].end) if words else stop
    target = ""
    if sign:
        target = line[stop + 1 :].strip() if sign == "|" else _file(line, stop)
        if not target:
            what = "a command" if sign == "|" else "a file"
            raise PlacedError(f"{sign} needs {what} after it", line, stop, f"quote a {sign} that is text")
    return Typed(line, tuple(piece.word for piece in words), line[start:stop].rstrip(), start, sign, target)


def python_of(text: str) -> str:
    """The Python of a statement, without the marks of its lines."""
    first, *others = PYTHON.sub("", text, count=1).lstrip(" \t").split("\n")
    lines = [MORE.sub("", line) for line in (first, *others)]
    return "\n".join([*lines[:-1], lines[-1].rstrip()])


def begun_name(word: str, names: Iterable[str]) -> str:
    """The name that a word is, or the only one that it begins; empty if there is none, UsageError if there are more."""
    found = [name for name in names if word and name.startswith(word)]
    if word in found or len(found) == 1:
        return word if word in found else found[0]
    if found:
        raise UsageError(f"{word!r} can be {', '.join(found)}", "type a little more of it")
    return ""


def shell_quoted(word: str) -> str:
    """A word in "…", so that a line reads it as one word."""
    return '"' + escaped(word) + '"'


def escaped(word: str) -> str:
    """A word as it is written between "…"."""
    return word.replace("\\", "\\\\").replace('"', '\\"')


def _after_blanks(line: str, place: int) -> int:
    match = _BLANKS.match(line, place)
    return place if match is None else match.end()


def _word(line: str, start: int) -> Piece:
    """The word that begins at ``start``."""
    found: list[str] = []
    place, open = start, None
    while match := _PART.match(line, place):
        escaped, single, single_end, double, double_end, plain = match.groups()
        if plain is None and escaped is None and not (single_end or double_end):
            open = place
        found.append(escaped or single or plain or re.sub(r'\\(["\\])', r"\1", double or ""))
        place = match.end()
    return Piece("word", start, place, "".join(found), open)


def _closed(line: str, word: Piece) -> Piece:
    """The word; PlacedError where one of its quotes is not closed."""
    if word.open is not None:
        message = f"the quote {line[word.open]} is not closed"
        raise PlacedError(message, line, word.open, 'put a text with an apostrophe between "…", or write \\\'')
    return word


def _file(line: str, place: int) -> str:
    """The one word after a ``>``; empty without one."""
    if line[place + 1 : place + 2] == ">":
        raise PlacedError("there is no >>: a file is written whole", line, place, "use > FILE")
    word = _closed(line, _word(line, _after_blanks(line, place + 1)))
    after = _after_blanks(line, word.end)
    if after < len(line) and line[after] != "#":
        raise PlacedError("> takes one file", line, after, "quote a file name with blanks, and a > that is text")
    return word.word


def read_script(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file; UsageError for one that cannot be read."""
    try:
        data = read_bytes(path, SMALL)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return read_stream(BytesIO(data), f"{path.name} line")


def read_stream(stream: BinaryIO, name: str = "line") -> Iterator[tuple[str, str]]:
    """The lines of a stream, such as standard input, each as soon as it is there."""
    with stream:
        for number, data in enumerate(iter(stream.readline, b""), start=1):
            where = f"{name} {number}"
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise TinytfError(f"{where} is not UTF-8: byte 0x{data[error.start]:02x}") from None
            yield where, line.rstrip("\r\n")
