"""A typed line in its parts: words, and what is to become of the output."""

from collections.abc import Callable
from dataclasses import dataclass

from tinytf.errors import PlacedError, UsageError

LONGEST = 100_000
_ESCAPED = "\"'\\ |>#"


@dataclass(frozen=True)
class Piece:
    """``line[start:end]``. ``kind`` is word, space, sign (``|`` and ``>``), target (what stands behind one), comment,

    bang or python; ``word`` is a word without its quotes, and ``open`` where a quote begins that has no end.
    """

    kind: str
    start: int
    end: int
    word: str = ""
    open: int | None = None


@dataclass(frozen=True)
class Typed:
    """One line. ``words`` are as a shell splits them; ``rest`` is what stands behind the first, as it was typed, and

    ``rest_at`` where. ``sign`` is ``|`` or ``>`` where the output goes to ``target``, a command or a file; ``!`` where
    ``target`` is Python.
    """

    line: str
    words: tuple[str, ...] = ()
    rest: str = ""
    rest_at: int = 0
    sign: str = ""
    target: str = ""


def pieces_of(line: str, redirects: Callable[[str], bool] = lambda _: True) -> list[Piece]:
    """The pieces of a line, also of one that is still being typed; together they are the line.

    ``redirects`` says of a first word whether ``|`` and ``>`` behind it are about the output. A word in '…' is as it
    stands; in "…" a \\ before " or \\ goes.
    """
    found: list[Piece] = []
    place = _past_blanks(line, 0)
    if line[place : place + 1] == "!":
        found = [Piece("space", 0, place), Piece("bang", place, place + 1), Piece("python", place + 1, len(line))]
        return [piece for piece in found if piece.end > piece.start]
    place, first = 0, None
    while place < len(line):
        start, char = place, line[place]
        if char.isspace():
            place = _past_blanks(line, place)
            found.append(Piece("space", start, place))
        elif char == "#":
            return [*found, Piece("comment", start, len(line))]
        elif char in "|>" and (first is None or redirects(first.word)):
            target = _past_blanks(line, start + 1)
            behind = [Piece("space", start + 1, target), Piece("target", target, len(line), line[target:])]
            return [*found, Piece("sign", start, start + 1), *(one for one in behind if one.end > one.start)]
        else:
            word = _word(line, place)
            place, first = word.end, first or word
            found.append(word)
    return found


def read_line(line: str, redirects: Callable[[str], bool] = lambda _: True) -> Typed:
    """Split a line, as ``pieces_of`` does.

    Raises PlacedError for a quote without an end, UsageError for a line that is too long.
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
    start = _past_blanks(line, words[0].end) if words else stop
    target = ""
    if sign:
        target = line[stop + 1 :].strip() if sign == "|" else _file(line, stop)
        if not target:
            what = "a command" if sign == "|" else "a file"
            raise PlacedError(f"behind {sign} comes {what}", line, stop, f"quote a {sign} that is text")
    return Typed(line, tuple(piece.word for piece in words), line[start:stop].rstrip(), start, sign, target)


def shell_quoted(word: str) -> str:
    """A word as a line takes it for one."""
    return '"' + escaped(word) + '"'


def escaped(word: str) -> str:
    """A word as it stands between "…"."""
    return word.replace("\\", "\\\\").replace('"', '\\"')


def _past_blanks(line: str, place: int) -> int:
    while place < len(line) and line[place].isspace():
        place += 1
    return place


def _word(line: str, start: int) -> Piece:
    """The word that begins at ``start``."""
    found: list[str] = []
    place, open = start, None
    while place < len(line) and not (open is None and line[place].isspace()):
        char, behind = line[place], line[place + 1 : place + 2]
        quote = None if open is None else line[open]
        if char == quote:
            open = None
        elif quote is None and char in "\"'":
            open = place
        elif char == "\\" and behind and behind in {None: _ESCAPED, '"': '"\\', "'": ""}[quote]:
            found.append(behind)
            place += 1
        else:
            found.append(char)
        place += 1
    return Piece("word", start, place, "".join(found), open)


def _closed(line: str, word: Piece) -> Piece:
    """The word; PlacedError where a quote of it has no end."""
    if word.open is not None:
        said = f"the quote {line[word.open]} has no end"
        raise PlacedError(said, line, word.open, 'a text with an apostrophe goes between "…", or write \\\'')
    return word


def _file(line: str, place: int) -> str:
    """The one word behind a ``>``; empty without one."""
    if line[place + 1 : place + 2] == ">":
        raise PlacedError("there is no >>: a file is written whole", line, place, "use > FILE")
    word = _closed(line, _word(line, _past_blanks(line, place + 1)))
    behind = _past_blanks(line, word.end)
    if behind < len(line) and line[behind] != "#":
        raise PlacedError("behind > comes one file", line, behind, "quote a name with blanks, and a > that is text")
    return word.word
