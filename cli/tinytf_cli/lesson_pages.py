"""The pages of the lessons: which one is up, what a key does to it, and its lines for a screen of any size."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len

from tinytf.errors import TinytfError
from tinytf.lessons import NAMES, Lesson, Live, lesson
from tinytf.text.printable import printable
from tinytf_cli.paint.painter import paint
from tinytf_cli.place import Place
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.explain import ExplainView
from tinytf_cli.views.learn import LessonView

_PROSE = 110
"""Columns of running text; longer lines are hard to read."""

_SCROLLS = {"up": -1, "down": 1}


class Pages:
    """What is on the screen: a lesson, or the arithmetic of a cell of it, and how far it is scrolled."""

    def __init__(self, live: Live, number: int, terminal: Terminal, place: Place, note: str = "") -> None:
        self.live, self.number, self.terminal, self.place, self.note = live, number, terminal, place, note
        self.chosen: dict[int, int] = {}
        self.explaining = self.finished = False
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

    def farewell(self) -> str:
        """Where the lessons were left, how many answers were foreseen, and how they go on."""
        where = f"left at lesson {self.number}, {NAMES[self.number - 1]}"
        if self.finished:
            where = f"that was the last of {len(NAMES)} lessons"
        answered = f"; {self.foreseen} of {len(self.chosen)} foreseen" if self.chosen else ""
        return where + answered + ("" if self.finished or self.place.trouble else "; tinytf learn goes on there")

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
            self.finished = True
            self.place.write(1)  # the next time begins anew
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
        view, prose = (
            LessonView(self.live, one, chosen, dims=max(4, terminal.width // 10)),
            replace(terminal, width=min(terminal.width, _PROSE)),
        )
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
        bar = [Span("━" * one.number, one.role), Span("─" * (count - one.number), "dim")]
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
        view = ExplainView(model, found)
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
