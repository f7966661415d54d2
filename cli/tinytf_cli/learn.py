"""The lessons on a terminal, one a screen: what is on it, what each key does, and where a learner left."""

from dataclasses import replace
from pathlib import Path

from prompt_toolkit.keys import Keys
from rich.cells import cell_len

from tinytf.errors import CheckpointError
from tinytf.files import read_json, to_json
from tinytf.lessons import NAMES
from tinytf.lessons.course import lesson
from tinytf.lessons.lesson import Lesson
from tinytf.lessons.live import Live
from tinytf.outputs import make_folder, write_state
from tinytf.text.printable import printable
from tinytf_cli.output import Output
from tinytf_cli.paged import screen_of
from tinytf_cli.paint.painter import paint
from tinytf_cli.screen import clean_exit
from tinytf_cli.terminal import Terminal
from tinytf_cli.views import explain  # noqa: F401 - registers it
from tinytf_cli.views.blocks import Line, Span
from tinytf_cli.views.draw import blocks_of
from tinytf_cli.views.learn import LessonView

_PROSE = 110
"""Columns of running text; longer lines are hard to read."""

KEYS = {
    " ": "on", Keys.Enter: "on", Keys.ControlJ: "on", Keys.Right: "next",
    "b": "back", Keys.Left: "back", Keys.Backspace: "back",
    "e": "explain", "q": "leave", Keys.ControlD: "leave", Keys.ControlC: "interrupt", Keys.SIGINT: "interrupt",
    Keys.Up: "up", Keys.Down: "down", Keys.PageUp: "page up", Keys.PageDown: "page down",
    **{digit: digit for digit in "123456789"},
}  # fmt: skip
"""What each key does: ``on`` shows the answer and then goes on, a digit answers; any other key only leaves an
explanation."""


class Place:
    """The number of the last lesson in a small file. ``trouble`` is why it could not be written, or empty."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            from platformdirs import user_state_path

            path = user_state_path("tinytf", appauthor=False) / "learn.json"
        self.path, self.trouble = path, ""

    def read(self, most: int) -> int | None:
        """The lesson to continue with; None where the file is missing or holds no lesson from 1 to ``most``."""
        try:
            number = read_json(self.path).get("lesson")
        except (CheckpointError, OSError):
            return None
        return number if type(number) is int and 1 <= number <= most else None

    def write(self, number: int) -> None:
        """Remember a lesson; after a first failure nothing more is tried."""
        if self.trouble:
            return
        try:
            make_folder(self.path.parent)
            write_state(self.path, to_json({"lesson": number}))
        except OSError as error:
            self.trouble = f"cannot remember the place in {self.path}: {error.strerror}"


class Pages:
    """What is on the screen: a lesson, or the arithmetic of a cell of it, and how far it is scrolled."""

    def __init__(self, live: Live, number: int, terminal: Terminal, place: Place, note: str = "") -> None:
        self.live, self.number, self.terminal, self.place, self.note = live, number, terminal, place, note
        self.chosen: dict[int, int] = {}
        self.revealed: set[int] = set()
        self.explaining = self.finished = False
        self.scrolled = 0
        self._made: dict[int, Lesson] = {}
        self._height = 1

    keys = KEYS

    @property
    def ready(self) -> bool:
        """Whether the lesson has been computed."""
        return self.number in self._made

    def farewell(self) -> str:
        """Where the learner left, how many answers were predicted correctly, and how to continue."""
        right = sum(self._made[number].question.answer == choice for number, choice in self.chosen.items())
        answered = f"; {right} of {len(self.chosen)} predicted correctly" if self.chosen else ""
        if self.finished:
            return f"that was the last of {len(NAMES)} lessons{answered}"
        onward = "" if self.place.trouble else "; tinytf learn continues there"
        return f"left at lesson {self.number}, {NAMES[self.number - 1]}{answered}{onward}"

    def compute(self) -> None:
        self.lesson()

    def lesson(self) -> Lesson:
        """The lesson of this page, computed when it is first looked at."""
        if not self.ready:
            self._made[self.number] = lesson(self.number, self.live)
        return self._made[self.number]

    def press(self, key: str) -> bool:
        """Do what a key says; false when it says to leave."""
        page = max(1, self._height - 2)
        if by := {"up": -1, "down": 1, "page up": -page, "page down": page}.get(key):
            self.scrolled += by
            return True
        self.note = ""
        known = self.number in self.revealed
        if self.explaining:
            self.explaining, self.scrolled = False, 0
        elif key in ("next", "back") or (key == "on" and known):
            return self._turn(-1 if key == "back" else 1)
        elif key == "explain" and not known:
            self.note = "an explanation would give the answer away: predict first, or space shows it"
        elif key == "explain":
            self.explaining, self.scrolled = True, 0
        elif key == "on":
            self.revealed.add(self.number)
        elif key.isdigit() and not known and int(key) <= len(self.lesson().question.choices):
            self.chosen[self.number] = int(key) - 1
            self.revealed.add(self.number)
        return key != "leave"

    def _turn(self, by: int) -> bool:
        if self.number + by > len(NAMES):
            self.finished = True
            self.place.write(1)  # the next time starts from the beginning
            return False
        self.number, self.scrolled = max(1, self.number + by), 0
        self.place.write(self.number)
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
            said = f"computing lesson {self.number}, {NAMES[self.number - 1]} …"
            foot = Line(Span(said, "dim"), single=True)
        self.scrolled = max(0, min(self.scrolled, len(body) - self._height))
        shown = body[self.scrolled : self.scrolled + self._height]
        shown += [""] * (self._height - len(shown))
        return [*shown, *paint([foot], terminal)][:rows]

    def _lesson(self, terminal: Terminal) -> list[str]:
        """Head, words, live numbers and question; the numbers take the rows that the others leave."""
        one, revealed = self.lesson(), self.number in self.revealed
        prose = replace(terminal, width=min(terminal.width, _PROSE))
        dims = max(4, terminal.width // 10)
        view = LessonView(self.live, one, self.chosen.get(self.number), revealed=revealed, dims=dims)
        body = list(paint([self._head(one, terminal)], terminal))
        words, asked = list(paint(view.why(), prose)), list(paint(view.question(prose), prose))
        answer = list(paint([view.answer()], prose))  # its rows stay free until it is shown, so that nothing jumps
        for gaps in ((1, 1, 1), (0, 1, 1), (0, 1, 0), (0, 0, 0)):
            room = self._height - len(body) - len(words) - len(asked) - len(answer) - sum(gaps)
            numbers = self._numbers(view, terminal, room)
            if numbers is not None:
                break
        asked += answer if revealed else []
        for gap, part in zip(gaps, (words, numbers or [], asked), strict=True):
            body += [""] * gap + part
        return body

    def _numbers(self, view: LessonView, terminal: Terminal, room: int) -> list[str] | None:
        """As many rows of the live numbers as there is room for; None where that is not even one of each."""
        both = view.known and view.has_more
        for rows in range(max(1, min(room, self.live.length + len(NAMES))), 0, -1):
            for found in (view.both, view.revealed, view.bare) if both else (view.numbers,):
                lines = list(paint(found(rows), terminal))
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
        prose = replace(terminal, width=min(terminal.width, _PROSE))
        report = self.live.model.explain(self.live.trace, self.lesson().cell)
        return list(paint(blocks_of(report, prose), prose))

    def _foot(self, *, longer: bool) -> Line:
        """What the keys do, and which model and text this is; or a note."""
        if self.note:
            return Line(Span(self.note, "strong"), single=True)
        keys = {"up down": "scroll"} if longer else {}
        if self.explaining:
            keys["any other key" if longer else "any key"] = "back to the lesson"
        else:
            if self.number in self.revealed:
                keys |= {"space": "finish" if self.number == len(NAMES) else "next", "b": "back", "e": "explain"}
            else:
                answers = f"1-{len(self.lesson().question.choices)}"
                keys |= {"space": "show the answer", answers: "answer", "b": "back"}
            keys["q"] = "leave"
        spans = [span for key, does in keys.items() for span in (Span(key, "strong"), Span(f" {does}   ", "dim"))]
        about = f"{self.live.model.name} · {self.live.encoding.text}"
        return Line([*spans, Span(printable(about[:200], spaces=False), "dim")], single=True)


def run_lessons(live: Live, number: int | None, output: Output, *, fixed: bool) -> None:
    """Show the lessons from ``number`` on, or from where the learner left, until a key leaves them."""
    place, note = Place(), ""
    if number is None:
        number = place.read(len(NAMES)) or 1
        if number > 1:
            note = f"continuing at lesson {number}, where you left; tinytf learn 1 starts again"
    pages = Pages(live, number, output.terminal, place, note)
    place.write(number)
    app = screen_of(pages, output.terminal.width if fixed else None)

    def redraw() -> None:
        app.renderer.erase(leave_alternate_screen=False)
        app.invalidate()

    try:
        with clean_exit(redraw):
            app.run()
    finally:
        output.note(pages.farewell())
        if place.trouble:
            output.note(place.trouble)
