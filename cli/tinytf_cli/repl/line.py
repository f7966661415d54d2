"""A typed line, split into words and what happens to the output."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tinytf.errors import PlacedError, UsageError

PROMPT = "tinytf> "
LONGEST = 100_000
_ESCAPED = "\"'\\ |>#"
_BLANKS = re.compile(r"\s*")


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
    literally; in "…" a \\ escapes " and \\.
    """
    found: list[Piece] = []
    place = _after_blanks(line, 0)
    if line[place : place + 1] == "!":
        found = [Piece("space", 0, place), Piece("bang", place, place + 1), Piece("python", place + 1, len(line))]
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
    sign = line[end.start] if end is not None and end.kind != "comment" else ""
    if sign == "!":
        return Typed(line, sign="!", target=line.strip()[1:].strip())
    stop = len(line) if end is None else end.start
    start = _after_blanks(line, words[0].end) if words else stop
    target = ""
    if sign:
        target = line[stop + 1 :].strip() if sign == "|" else _file(line, stop)
        if not target:
            what = "a command" if sign == "|" else "a file"
            raise PlacedError(f"{sign} needs {what} after it", line, stop, f"quote a {sign} that is text")
    return Typed(line, tuple(piece.word for piece in words), line[start:stop].rstrip(), start, sign, target)


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
    while place < len(line) and not (open is None and line[place].isspace()):
        char, after = line[place], line[place + 1 : place + 2]
        quote = None if open is None else line[open]
        if char == quote:
            open = None
        elif quote is None and char in "\"'":
            open = place
        elif char == "\\" and after and after in {None: _ESCAPED, '"': '"\\', "'": ""}[quote]:
            found.append(after)
            place += 1
        else:
            found.append(char)
        place += 1
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
