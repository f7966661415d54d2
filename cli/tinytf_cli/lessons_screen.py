"""The lessons on a terminal: one a screen, turned by keys; the only place that reads single keys."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO

from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from rich.cells import cell_len

from tinytf.errors import TinytfError
from tinytf.lessons import NAMES, Lesson, Live, lesson
from tinytf.text.printable import printable
from tinytf_cli.output import Output, ReaderGone
from tinytf_cli.paint.painter import paint
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.place import Place
from tinytf_cli.screen import Screen, clean_exit
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.explain import ExplainView
from tinytf_cli.views.learn import LessonView

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
_AT_ONCE, _DONE = "\x1b[?2026h", "\x1b[?2026l"
_PROSE = 110
"""Columns of running text; longer lines are hard to read."""
_LOOKS = 0.2
"""Seconds between looks at the size of the terminal."""

_KEYS = {
    " ": "next", Keys.Enter: "next", Keys.ControlJ: "next", Keys.Right: "next",
    "b": "back", Keys.Left: "back", Keys.Backspace: "back",
    "e": "explain", "q": "leave", Keys.ControlC: "leave", Keys.ControlD: "leave",
    Keys.Up: "up", Keys.Down: "down", Keys.PageUp: "page up", Keys.PageDown: "page down",
}  # fmt: skip
_SCROLLS = {"up": -1, "down": 1}


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


class Pages:
    """What is on the screen: a lesson, or the arithmetic of a cell of it, and how far it is scrolled."""

    def __init__(self, live: Live, number: int, terminal: Terminal, place: Place, note: str = "") -> None:
        self.live, self.number, self.terminal, self.place, self.note = live, number, terminal, place, note
        self.chosen: dict[int, int] = {}
        self.explaining = False
        self.scrolled = 0
        self._made: dict[int, Lesson] = {}
        self._height = 1

    @property
    def ready(self) -> bool:
        """Whether the lesson has been computed."""
        return self.number in self._made

    @property
    def foreseen(self) -> int:
        """Questions that were answered right."""
        return sum(self._made[number].question.answer == choice for number, choice in self.chosen.items())

    def lesson(self) -> Lesson:
        """The lesson of this page, made when it is first looked at."""
        if not self.ready:
            self._made[self.number] = lesson(self.number, self.live)
        return self._made[self.number]

    def press(self, key: str) -> bool:
        """Do what a key says; false when it says to leave."""
        if key in _SCROLLS or key.startswith("page"):
            self.scrolled += _SCROLLS.get(key, (-1 if key == "page up" else 1) * max(1, self._height - 2))
            return True
        self.note = ""
        if self.explaining:
            self.explaining, self.scrolled = False, 0
            return key != "leave"
        if key in ("next", "back"):
            return self._turn(1 if key == "next" else -1)
        if key == "explain":
            self.explaining, self.scrolled = True, 0
        elif key.isdigit() and self.number not in self.chosen and 1 <= int(key) <= len(self.lesson().question.choices):
            self.chosen[self.number] = int(key) - 1
        return key != "leave"

    def _turn(self, by: int) -> bool:
        if self.number + by > len(NAMES):
            self.number = 1  # all of them are done: the next time begins anew
            self.place.write(1)
            return False
        self.number, self.scrolled = max(1, self.number + by), 0
        self.place.write(self.number)
        return True

    def lines(self, columns: int, rows: int) -> list[str]:
        """The screen: exactly as many lines as it has."""
        terminal = replace(self.terminal, width=max(20, columns))
        body = self._explanation(terminal) if self.explaining else self._lesson(terminal, rows - 1)
        self._height = max(1, rows - 1)
        self.scrolled = max(0, min(self.scrolled, len(body) - self._height))
        shown = body[self.scrolled : self.scrolled + self._height]
        shown += [""] * (self._height - len(shown))
        return [*shown, *self._painted([self._foot(terminal, len(body))], terminal)][:rows]

    def waiting(self, columns: int, rows: int) -> list[str]:
        """The screen while a lesson is computed."""
        terminal = replace(self.terminal, width=max(20, columns))
        said = Line(Span(f"computing lesson {self.number}, {NAMES[self.number - 1]} …", "dim"), single=True)
        return [*[""] * (rows - 1), *self._painted([said], terminal)]

    def _painted(self, blocks: Sequence[Block] | Iterator[Block], terminal: Terminal) -> list[str]:
        return list(paint(blocks, terminal))

    def _lesson(self, terminal: Terminal, room: int) -> list[str]:
        """Head, words, live numbers and question; the numbers take the rows that the others leave."""
        one, chosen = self.lesson(), self.chosen.get(self.number)
        view, prose = LessonView(self.live, one, chosen), replace(terminal, width=min(terminal.width, _PROSE))
        head = self._painted([self._head(one, terminal)], terminal)
        words = self._painted(view.why(), prose)
        asked = self._painted(view.question(prose), prose)
        answer = self._painted([view.answer()], prose)  # its rows are kept free before, so that nothing jumps
        for gaps in ((1, 1, 1), (0, 1, 1), (0, 1, 0), (0, 0, 0)):
            left = room - len(head) - len(words) - len(asked) - len(answer) - sum(gaps)
            numbers = self._numbers(view, terminal, left, revealed=chosen is not None)
            if numbers is not None:
                break
        parts = [head, words, numbers or [], [*asked, *(answer if chosen is not None else [])]]
        body = list(parts[0])
        for gap, part in zip(gaps, parts[1:], strict=True):
            body += [""] * gap + part
        return body

    def _numbers(self, view: LessonView, terminal: Terminal, room: int, *, revealed: bool) -> list[str] | None:
        """As many rows of the live numbers as there is room for; None where that is not even one of each."""
        for rows in range(max(1, min(room, self.live.length + len(NAMES))), 0, -1):
            for found in (view.both, view.revealed) if revealed and view.has_more else (view.numbers,):
                lines = self._painted(found(rows), terminal)
                if len(lines) <= room:
                    return lines
        return None

    def _head(self, one: Lesson, terminal: Terminal) -> Line:
        count = len(NAMES)
        left = [Span(one.name, one.role), Span(f"  {one.title}", "strong")]
        counted = Span(f"  {one.number} of {count}", "dim")
        bar = [Span("█" * one.number, one.role), Span("─" * (count - one.number), "dim")]
        for right in ([*bar, counted], [counted]):
            gap = terminal.width - sum(cell_len(span.text) for span in (*left, *right))
            if gap > 0:
                return Line([*left, Span(" " * gap), *right], single=True)
        return Line(left, single=True)

    def _explanation(self, terminal: Terminal) -> list[str]:
        model = self.live.model
        try:
            found = model.explain(self.live.trace, self.lesson().cell)
        except TinytfError as error:
            return self._painted([Line(printable(error.message, spaces=False))], terminal)
        view = ExplainView(model, self.live.encoding, found)
        return self._painted(view.blocks(replace(terminal, width=min(terminal.width, _PROSE))), terminal)

    def _foot(self, terminal: Terminal, lines: int) -> Line:
        """What the keys do, and of what all this is; or what is to be said first."""
        if self.note:
            return Line(Span(self.note, "strong"), single=True)
        longer = lines > self._height
        keys = [("up down", "scroll")] if longer else []
        if self.explaining:
            keys.append(("any key" if not longer else "any other key", "back to the lesson"))
        else:
            last = self.number == len(NAMES)
            keys += [("space", "finish" if last else "next"), ("b", "back")]
            if self.number not in self.chosen:
                keys.append((f"1-{len(self.lesson().question.choices)}", "answer"))
            keys += [("e", "explain"), ("q", "leave")]
        spans = [span for key, does in keys for span in (Span(key, "strong"), Span(f" {does}   ", "dim"))]
        about = f"{self.live.model.name} · {self.live.encoding.text}"
        return Line([*spans, Span(printable(about[:200], spaces=False), "dim")], single=True)


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
    answered = f"; {pages.foreseen} of {len(pages.chosen)} foreseen" if pages.chosen else ""
    output.note(f"left at lesson {pages.number}, {NAMES[pages.number - 1]}{answered}; tinytf learn goes on there")
    if place.trouble:
        output.note(place.trouble)
