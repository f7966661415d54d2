"""A typed line in its parts: words, and what is to become of the output."""

from collections.abc import Callable
from dataclasses import dataclass

from tinytf.errors import PlacedError, UsageError

LONGEST = 100_000
_ESCAPED = "\"'\\ |>#"


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


def read_line(line: str, redirects: Callable[[str], bool] = lambda _: True) -> Typed:
    """Split a line. ``redirects`` says of a first word whether ``|`` and ``>`` behind it are about the output.

    A word in '…' is as it stands; in "…" a \\ before " or \\ goes. Raises PlacedError for a quote without an end,
    UsageError for a line that is too long.
    """
    if len(line) > LONGEST:
        raise UsageError(
            f"the line has {len(line):,} characters, and a session takes at most {LONGEST:,}",
            "a text of that length belongs in a file: tinytf trace - < FILE",
        )
    stripped = line.lstrip()
    if stripped.startswith("!"):
        return Typed(line, sign="!", target=stripped[1:].strip())
    words: list[str] = []
    ends: list[int] = []
    place = 0
    while (place := _past_blanks(line, place)) < len(line):
        char = line[place]
        if char == "#":
            break
        if char in "|>" and (not words or redirects(words[0])):
            target = line[place + 1 :].strip() if char == "|" else _file(line, place)
            if not target:
                what = "a command" if char == "|" else "a file"
                raise PlacedError(f"behind {char} comes {what}", line, place, f"quote a {char} that is text")
            return _typed(line, words, ends, place, char, target)
        word, place = _word(line, place)
        words.append(word)
        ends.append(place)
    return _typed(line, words, ends, place)


def _typed(line: str, words: list[str], ends: list[int], end: int, sign: str = "", target: str = "") -> Typed:
    start = _past_blanks(line, ends[0]) if ends else end
    return Typed(line, tuple(words), line[start:end].rstrip(), start, sign, target)


def _past_blanks(line: str, place: int) -> int:
    while place < len(line) and line[place].isspace():
        place += 1
    return place


def _word(line: str, place: int) -> tuple[str, int]:
    """The word that begins at ``place``, and where it ends."""
    found: list[str] = []
    while place < len(line) and not line[place].isspace():
        char = line[place]
        if char in "\"'":
            text, place = _quoted(line, place)
            found.append(text)
        elif char == "\\" and line[place + 1 : place + 2] and line[place + 1] in _ESCAPED:
            found.append(line[place + 1])
            place += 2
        else:
            found.append(char)
            place += 1
    return "".join(found), place


def _quoted(line: str, start: int) -> tuple[str, int]:
    found: list[str] = []
    quote, place = line[start], start + 1
    while place < len(line):
        char = line[place]
        if char == quote:
            return "".join(found), place + 1
        if char == "\\" and quote == '"' and line[place + 1 : place + 2] in ('"', "\\"):
            place += 1
        found.append(line[place])
        place += 1
    raise PlacedError(
        f"the quote {quote} has no end", line, start, 'a text with an apostrophe goes between "…", or write \\\''
    )


def _file(line: str, place: int) -> str:
    """The one word behind a ``>``."""
    if line[place + 1 : place + 2] == ">":
        raise PlacedError("there is no >>: a file is written whole", line, place, "use > FILE")
    start = _past_blanks(line, place + 1)
    if start == len(line):
        return ""
    word, end = _word(line, start)
    behind = _past_blanks(line, end)
    if behind < len(line) and line[behind] != "#":
        raise PlacedError("behind > comes one file", line, behind, "quote a name with blanks, and a > that is text")
    return word
