"""The lessons on a terminal, one per screen: its contents and its keys."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from prompt_toolkit.keys import Keys
from rich.cells import cell_len

from tinytf.learn import NAMES
from tinytf.learn.course import lesson
from tinytf.learn.lesson import Lesson
from tinytf.learn.live import Live
from tinytf.text.printable import printable
from tinytf_cli.bookmark import Bookmark
from tinytf_cli.output import Output
from tinytf_cli.paged import screen_of
from tinytf_cli.paint.painter import paint
from tinytf_cli.screen import clean_exit, forget_typed
from tinytf_cli.terminal import Terminal
from tinytf_cli.views import explain  # noqa: F401 - registers its view
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.draw import blocks_of
from tinytf_cli.views.learn import LessonView

_PROSE = 110
"""Columns of running text; longer lines are hard to read."""

_LABEL, _CELL = 17, 9
"""The columns of a row label of a map with the gaps beside it, and of a number below the name of its key, at most."""

KEYS = {
    " ": "on", Keys.Enter: "on", Keys.ControlJ: "on", Keys.Right: "next",
    "b": "back", Keys.Left: "back", Keys.Backspace: "back",
    "e": "explain", "q": "leave", Keys.ControlD: "leave", Keys.ControlC: "interrupt", Keys.SIGINT: "interrupt",
    Keys.Up: "up", Keys.Down: "down", Keys.PageUp: "page up", Keys.PageDown: "page down",
    **{digit: digit for digit in "123456789"},
}  # fmt: skip
"""The action of each key. ``on`` shows the answer, then turns to the next lesson; a digit answers. Any other key only
closes an explanation."""


def _draws(view: LessonView, *, split: bool) -> tuple[Callable[[int], Iterator[Block]], ...]:
    """The ways to draw the numbers of a lesson, the fullest first; ``split`` if its answer has some of its own."""
    return (view.both, view.revealed, view.bare) if split else (view.numbers,)


class Pages:
    """The screen: a lesson or the arithmetic of one of its cells, and how far it is scrolled."""

    def __init__(self, live: Live, number: int, terminal: Terminal, bookmark: Bookmark, note: str = "") -> None:
        self.live, self.number, self.terminal, self.bookmark, self.note = live, number, terminal, bookmark, note
        self.chosen: dict[int, int] = {}
        self.revealed: set[int] = set()
        self.explaining = self.finished = False
        self.scrolled = 0
        self._lessons: dict[int, Lesson] = {}
        self._height = 1

    keys = KEYS

    @property
    def ready(self) -> bool:
        """Whether the lesson has been computed."""
        return self.number in self._lessons

    def farewell(self) -> str:
        """A last line: where the learner stopped, how many answers were right, and how to continue."""
        right = sum(self._lessons[number].question.answer == choice for number, choice in self.chosen.items())
        answered = f"; {right} of {len(self.chosen)} predicted correctly" if self.chosen else ""
        if self.finished:
            return f"that was the last of {len(self.live.lessons)} lessons{answered}"
        onward = "" if self.bookmark.trouble else "; tinytf learn continues there"
        return f"left at lesson {self.number}, {NAMES[self.number - 1]}{answered}{onward}"

    def compute(self) -> None:
        self.lesson()

    def lesson(self) -> Lesson:
        """The current lesson, computed on first use."""
        if not self.ready:
            self._lessons[self.number] = lesson(self.number, self.live)
        return self._lessons[self.number]

    def press(self, key: str) -> bool:
        """Handle a key. Returns false to leave."""
        page = max(1, self._height - 2)
        if rows := {"up": -1, "down": 1, "page up": -page, "page down": page}.get(key):
            self.scrolled += rows
            return True
        self.note = ""
        is_revealed = self.number in self.revealed
        if self.explaining:
            self.explaining, self.scrolled = False, 0
        elif key in ("next", "back") or (key == "on" and is_revealed):
            return self._turn(-1 if key == "back" else 1)
        elif key == "explain" and not is_revealed:
            self.note = "an explanation would give the answer away: predict first, or space shows it"
        elif key == "explain":
            self.explaining, self.scrolled = True, 0
        elif key == "on":
            self.revealed.add(self.number)
        elif key.isdigit() and not is_revealed and int(key) <= len(self.lesson().question.choices):
            self.chosen[self.number] = int(key) - 1
            self.revealed.add(self.number)
            self.bookmark.answers[NAMES[self.number - 1]] = self.lesson().question.answer == int(key) - 1
            self.bookmark.write(self.number)
        return key != "leave"

    def _turn(self, change: int) -> bool:
        if self.number + change > len(self.live.lessons):
            self.finished = True
            self.bookmark.write(1)  # the next session starts at the beginning
            return False
        self.number, self.scrolled = max(1, self.number + change), 0
        self.bookmark.write(self.number)
        return True

    def lines(self, columns: int, rows: int) -> list[str]:
        """The screen: exactly as many lines as it has."""
        terminal = replace(self.terminal, width=max(20, columns))
        self._height = max(1, rows - 1)
        if self.ready:
            body = self._explanation(terminal) if self.explaining else self._lesson(terminal)
            foot = self._foot(longer=len(body) > self._height)
        else:
            body = []
            message = f"computing lesson {self.number}, {NAMES[self.number - 1]} …"
            foot = Line(Span(message, "dim"), single=True)
        self.scrolled = max(0, min(self.scrolled, len(body) - self._height))
        visible = body[self.scrolled : self.scrolled + self._height]
        visible += [""] * (self._height - len(visible))
        return [*visible, *paint([foot], terminal)][:rows]

    def _lesson(self, terminal: Terminal) -> list[str]:
        """Heading, text, live numbers and question. The numbers take the rows that remain."""
        lesson, revealed = self.lesson(), self.number in self.revealed
        prose = replace(terminal, width=min(terminal.width, _PROSE))
        dims, keys = max(4, terminal.width // 10), max(3, (terminal.width - _LABEL) // _CELL)
        view = LessonView(self.live, lesson, self.chosen.get(self.number), revealed=revealed, dims=dims, keys=keys)
        body = list(paint([self._head(lesson, terminal)], terminal))
        words, question = list(paint(view.why(), prose)), list(paint(view.question(prose), prose))
        choices = (None, *range(len(lesson.question.choices)))
        longest = max(len(list(paint([view.answer(choice)], prose))) for choice in choices)  # free until it is shown
        numbers, rest = (
            self._numbers(view, terminal, sys.maxsize) or [],
            len(body) + len(words) + len(question) + longest,
        )
        spaces = ((1, 1, 1), (0, 1, 1), (0, 1, 0), (0, 0, 0))
        gaps = next((gaps for gaps in spaces if rest + sum(gaps) + len(numbers) <= self._height), None)
        if gaps is None:  # they do not fit as a whole: rows of them are left out rather than the gaps
            tries = ((gaps, self._numbers(view, terminal, self._height - rest - sum(gaps))) for gaps in spaces)
            gaps, numbers = next(((gaps, lines) for gaps, lines in tries if lines is not None), (spaces[-1], []))
        question += paint([view.answer(self.chosen.get(self.number))], prose) if revealed else []
        for gap, part in zip(gaps, (words, numbers, question), strict=True):
            body += [""] * gap + part
        return body

    def _numbers(self, view: LessonView, terminal: Terminal, room: int) -> list[str] | None:
        """As many rows of live numbers as fit in ``room``; None if not even one row of each fits."""
        split = view.known and view.has_more
        heights = range(max(1, min(room, self.live.length + len(NAMES))), 0, -1)
        tries = [(draw, rows) for rows in heights for draw in _draws(view, split=split)]
        if view.lesson.pace is not None:  # a lower picture is better than none
            tries.sort(key=lambda attempt: attempt[0] == view.bare)
        for draw, rows in tries:
            lines = list(paint(draw(rows), terminal))
            if len(lines) <= room:
                return lines
        return None

    def _head(self, lesson: Lesson, terminal: Terminal) -> Line:
        count = len(self.live.lessons)
        left = [Span(lesson.name, lesson.role), Span(f"  {lesson.title}", "strong")]
        counted = Span(f"  {lesson.number} of {count}", "dim")
        bar = [Span("━" * lesson.number, lesson.role), Span("─" * (count - lesson.number), "dim")]
        for right in ([*bar, counted], [counted]):
            gap = terminal.width - sum(cell_len(span.text) for span in (*left, *right))
            if gap > 0:
                return Line([*left, Span(" " * gap), *right], single=True)
        return Line(left, single=True)

    def _explanation(self, terminal: Terminal) -> list[str]:
        prose = replace(terminal, width=min(terminal.width, _PROSE))
        report = self.live.model.explain(self.live.trace, self.lesson().cell)
        return list(paint(blocks_of(report, prose), prose))

    def _foot(self, *, longer: bool) -> Line:
        """The keys, the model and the text; or a note."""
        if self.note:
            return Line(Span(self.note, "strong"), single=True)
        keys = {"up down": "scroll"} if longer else {}
        if self.explaining:
            keys["any other key" if longer else "any key"] = "back to the lesson"
        else:
            if self.number in self.revealed:
                keys |= {
                    "space": "finish" if self.number == len(self.live.lessons) else "next",
                    "b": "back",
                    "e": "explain",
                }
            else:
                answers = f"1-{len(self.lesson().question.choices)}"
                keys |= {"space": "show the answer", answers: "answer", "b": "back"}
            keys["q"] = "leave"
        spans = [span for key, does in keys.items() for span in (Span(key, "strong"), Span(f" {does}   ", "dim"))]
        about = f"{self.live.model.name} · {self.live.encoding.text}"
        return Line([*spans, Span(printable(about[:200], spaces=False), "dim")], single=True)


def run_lessons(live: Live, number: int | None, output: Output, *, fixed: bool) -> None:
    """Show the lessons from ``number``, or from the bookmark, until the user leaves."""
    bookmark, note = Bookmark(), ""
    if bookmark.unread:
        output.note(bookmark.unread)
    if number is None:
        number = bookmark.lesson or 1
        number = number if number <= len(live.lessons) else 1
        if number > 1:
            note = f"continuing at lesson {number}, where you left; tinytf learn 1 starts again"
    pages = Pages(live, number, output.terminal, bookmark, note)
    bookmark.write(number)
    pages.compute()
    forget_typed()  # what was typed before the first question was seen is no answer to it
    app = screen_of(pages, output.terminal.width if fixed else None)

    def redraw() -> None:
        app.renderer.erase(leave_alternate_screen=False)
        app.invalidate()

    try:
        with clean_exit(redraw):
            app.run()
    finally:
        output.note(pages.farewell())
        if bookmark.trouble:
            output.note(bookmark.trouble)
