"""The lessons on a terminal: one a screen, turned by keys; the only place that reads single keys."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from tinytf.lessons import NAMES, Live
from tinytf_cli.lesson_pages import Pages
from tinytf_cli.output import Output, ReaderGone
from tinytf_cli.place import Place
from tinytf_cli.screen import Screen, clean_exit

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
_AT_ONCE, _DONE = "\x1b[?2026h", "\x1b[?2026l"
_LOOKS = 0.2
"""Seconds between looks at the size of the terminal."""

_KEYS = {
    " ": "next", Keys.Enter: "next", Keys.ControlJ: "next", Keys.Right: "next",
    "b": "back", Keys.Left: "back", Keys.Backspace: "back",
    "e": "explain", "q": "leave", Keys.ControlC: "leave", Keys.ControlD: "leave",
    Keys.Up: "up", Keys.Down: "down", Keys.PageUp: "page up", Keys.PageDown: "page down",
}  # fmt: skip


class KeyReader:
    """The keys of a terminal as words: those of the table, a digit as itself, anything else as ``other``."""

    def __init__(self, source: Input) -> None:
        self.source = source
        self._arrived: asyncio.Queue[str] = asyncio.Queue()

    def read(self) -> None:
        """Take what was typed; a terminal that has gone leaves."""
        self._take(self.source.read_keys())
        if self.source.closed:
            self._arrived.put_nowait("leave")

    def _take(self, pressed: Sequence[KeyPress]) -> None:
        for one in pressed:
            digit = one.key if isinstance(one.key, str) and one.key.isdecimal() and one.key.isascii() else "other"
            self._arrived.put_nowait(_KEYS.get(one.key, digit))

    async def next(self) -> str:
        """The next key, or nothing after a moment."""
        try:
            return await asyncio.wait_for(self._arrived.get(), _LOOKS)
        except TimeoutError:
            self._take(self.source.flush_keys())  # an escape that nothing followed
            return "" if self._arrived.empty() else self._arrived.get_nowait()


@contextmanager
def _alternate(stream: TextIO) -> Iterator[None]:
    """The other screen of the terminal, without a cursor; what was there before comes back whatever happens."""
    stream.write(_ENTER)
    stream.flush()
    try:
        yield
    finally:
        stream.write(_LEAVE)
        stream.flush()


class _Drawing(Screen):
    """The whole screen, drawn at once, and only where it has changed."""

    def __init__(self, stream: TextIO, width: int | None) -> None:
        super().__init__(stream)
        self.width, self.before = width, list[str]()

    @property
    def room(self) -> tuple[int, int]:
        columns, rows = self.size
        return (columns if self.width is None else min(columns, self.width)), rows

    def draw(self, lines: Sequence[str]) -> None:
        if list(lines) != self.before:
            body = "\x1b[0m\x1b[K\r\n".join(lines)
            self.stream.write(f"{_AT_ONCE}\x1b[H{body}\x1b[0m\x1b[K\x1b[J{_DONE}")
            self.stream.flush()
            self.before = list(lines)

    def forget(self) -> None:
        self.before = []


async def _turn_pages(pages: Pages, source: Input, drawing: _Drawing) -> None:
    keys = KeyReader(source)
    with source.raw_mode(), source.attach(keys.read):
        going, room = True, drawing.room
        while going:
            if not pages.ready:
                drawing.draw(pages.waiting(*room))
            drawing.draw(pages.lines(*room))
            key = ""
            while not key and room == drawing.room and drawing.before:
                key = await keys.next()
            if room != drawing.room:
                room = drawing.room
                drawing.forget()
            if key:
                going = pages.press(key)


def run_lessons(live: Live, number: int | None, output: Output, *, fixed: bool) -> None:
    """Show the lessons from ``number`` on, or from where they were left, until a key leaves them."""
    place, note = Place(), ""
    if number is None:
        number = place.read(len(NAMES)) or 1
        if number > 1:
            note = f"on from lesson {number}, where you left; tinytf learn 1 begins anew"
    pages = Pages(live, number, output.terminal, place, note)
    place.write(number)
    drawing = _Drawing(output.stdout, output.terminal.width if fixed else None)
    try:
        with clean_exit(drawing), _alternate(output.stdout):
            asyncio.run(_turn_pages(pages, create_input(sys.stdin), drawing))
    except BrokenPipeError:
        raise ReaderGone from None
    output.note(pages.farewell())
    if place.trouble:
        output.note(place.trouble)
