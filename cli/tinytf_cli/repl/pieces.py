"""A line that is still being typed, in its pieces: as ``line.read_line`` splits it, with places, and never wrong."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """``line[start:end]``. ``kind`` is word, space, sign (``|`` and ``>``), target (what stands behind one), comment,

    bang or python; ``word`` is a word without its quotes, and ``quote`` the one that is still open.
    """

    kind: str
    start: int
    end: int
    word: str = ""
    quote: str = ""


def pieces_of(line: str, redirects: Callable[[str], bool] = lambda _: True) -> list[Piece]:
    """The pieces of a line, which together are the line; ``redirects`` as of ``read_line``."""
    found: list[Piece] = []
    first = len(line) - len(line.lstrip())
    if line[first : first + 1] == "!":
        found = [Piece("space", 0, first), Piece("bang", first, first + 1), Piece("python", first + 1, len(line))]
        return [piece for piece in found if piece.end > piece.start]
    first_word = ""
    place = 0
    while place < len(line):
        start, char = place, line[place]
        if char.isspace():
            while place < len(line) and line[place].isspace():
                place += 1
            found.append(Piece("space", start, place))
        elif char == "#":
            found.append(Piece("comment", start, len(line)))
            break
        elif char in "|>" and (not first_word or redirects(first_word)):
            found.append(Piece("sign", start, start + 1))
            place = start + 1
            while place < len(line) and line[place].isspace():
                place += 1
            if place > start + 1:
                found.append(Piece("space", start + 1, place))
            if place < len(line):
                found.append(Piece("target", place, len(line), line[place:]))
            break
        else:
            word, place, quote = _word(line, place)
            first_word = first_word or word
            found.append(Piece("word", start, place, word, quote))
    return found


def _word(line: str, place: int) -> tuple[str, int, str]:
    """The word that begins at ``place``, where it ends, and the quote that is still open there."""
    found: list[str] = []
    quote = ""
    while place < len(line):
        char, behind = line[place], line[place + 1 : place + 2]
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and quote == '"' and behind in ('"', "\\"):
                found.append(behind)
                place += 1
            else:
                found.append(char)
        elif char.isspace():
            break
        elif char in "\"'":
            quote = char
        elif char == "\\" and behind and behind in "\"'\\ |>#":
            found.append(behind)
            place += 1
        else:
            found.append(char)
        place += 1
    return "".join(found), place, quote
