"""The explorer: one screen to walk through a forward pass, with a text that is edited live."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.geometry import Region
from textual.widgets import Input

from tinytf.trace.trace import Trace
from tinytf_cli.explore import status
from tinytf_cli.explore.answering import Answering
from tinytf_cli.explore.arrange import arrange_panes, is_single
from tinytf_cli.explore.clicks import Click
from tinytf_cli.explore.cursor import Cursor, find_cursor, is_parameter
from tinytf_cli.explore.drawing import draw_panes, place_panes, text_width
from tinytf_cli.explore.engine import Superseded
from tinytf_cli.explore.full_screen import FullScreen, Key
from tinytf_cli.explore.guide import HEIGHT, Guide
from tinytf_cli.explore.live import LiveText
from tinytf_cli.explore.pane import Pane
from tinytf_cli.explore.panels import LINES, USUAL, Panel, Request
from tinytf_cli.explore.scene import Look, Scene, first_cursor
from tinytf_cli.explore.tour import Tour
from tinytf_cli.failing import explained
from tinytf_cli.repl.line import shell_quoted
from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.repl.state import find_row
from tinytf_cli.repl.verbs import answer
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Piece, Span

_TYPING_PAUSE = 0.15
"""Seconds without a key before the panes that run a line follow the text."""


class Explorer(FullScreen):
    """The screen of a session, with its ``keys``; ``checkpoints`` are the models of a training run.

    ``look`` is the present view. ``opened`` are the panes that the user opened, the last one first; ``active`` is the
    pane that keys scroll; ``places`` are the earlier cursors, the last one last.
    """

    def __init__(
        self,
        keys: Sequence[Key],
        session: Session,
        terminal: Terminal,
        checkpoints: Sequence[Path] = (),
        tour: Tour | None = None,
    ) -> None:
        super().__init__(terminal, session, keys)
        self.checkpoints = checkpoints
        scene = self.engine.scene()
        self.look = Look(scene, first_cursor(scene))
        self.fault: Exception | None = None
        self.active, self.zoomed, self.single = "main", False, False
        self.opened: list[str] = []
        self.visible_panes: set[str] = set()
        self.places: list[Cursor] = []
        self.seconds = 0.0
        self._awaiting = ""
        self._clicks: dict[str, Click] = {}
        if tour is not None:
            tour.check(scene, frozenset(key.shown for key in keys if key.toured))
        self.guide = None if tour is None else Guide(tour, session.state.spec.name)
        list_panes = ("text", "steps", "main", "heads", "next", "tour", "status")
        self.panes |= {name: Pane(name, terminal, partial(self._clicked, name)) for name in list_panes}
        self.panels = {name: Panel(name, terminal) for name in (*LINES, "output")}
        self.panes |= self.panels
        self.answering = Answering(self.engine, self.panels, lambda: self.look, self.draw, self.on_screen)
        self.live = LiveText(self.engine, self._text_ran, self.say, self.on_screen)

    @property
    def trace(self) -> Trace:
        return self.look.scene.trace

    @property
    def order(self) -> list[str]:
        """The panes that Tab goes through."""
        return ["main", "heads", "next", *dict.fromkeys((*self.opened, *LINES))]

    def on_mount(self) -> None:
        super().on_mount()
        for name in ("SIGTERM", "SIGHUP"):
            with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
                number = getattr(signal, name)
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)

        if self.guide is not None:
            self.call_later(self.press_shown, ">")

    def on_unmount(self) -> None:
        self.engine.close(self.look.cursor)

    def _handle_exception(self, error: Exception) -> None:
        """Leave the screen first; the command raises the fault."""
        self.fault = error
        self.exit(1)

    # Drawing

    def show(self, look: Look) -> None:
        """Show another view."""
        self.look = look
        self.draw()

    def draw_panes(self) -> None:
        self._arrange()
        rows = self.trace.steps.rows
        stop_rows = frozenset(row for row in range(len(rows)) if self.session.state.stops_at(rows, row))
        self.look = replace(self.look, stops=stop_rows)
        self._clicks = draw_panes(self.look, self.panes, self.size.width, self._banner())
        for panel in self.panels.values():
            if panel.id in self.visible_panes:
                panel.repaint()
        if self.guide is not None:
            self.panes["tour"].show(self.guide.blocks(self.look.scene), self.guide.title)
        if self.focused is self.edit:
            number = self.engine.text_number
            self.set_timer(_TYPING_PAUSE, lambda: self._ask_panes() if number == self.engine.text_number else None)
        else:
            self._ask_panes()
        self.draw_status()

    def _ask_panes(self) -> None:
        self.answering.send(self.visible_panes)

    def _arrange(self) -> None:
        """Give every pane its region."""
        width, height = self.size
        tour_height = 0 if self.guide is None else min(HEIGHT, height // 3)
        regions = dict(arrange_panes(width, height - tour_height, self.opened, USUAL, self.active, self.zoomed))
        if tour_height:
            regions["tour"] = Region(0, height - tour_height - 1, width, tour_height)
            regions["status"] = Region(0, height - 1, width, 1)
        self.single = is_single(width, height - tour_height, self.zoomed)
        self.visible_panes = set(regions)
        panes = {name: pane for name, pane in self.panes.items() if name != "offers"}
        place_panes(panes, regions, "" if self.single else self.active)

    @property
    def text_width(self) -> int:
        return text_width(self.size.width)

    def _banner(self) -> list[Piece]:
        time_taken = f"{self.seconds * 1000:.0f} ms   " if self.seconds else ""
        position = f"step {self.look.cursor.row + 1}/{len(self.trace.steps.rows)} "
        return [Span(time_taken, "good"), Span(position, "dim")]

    def status_words(self) -> Sequence[Piece]:
        if self._awaiting:
            return [Span(f"{self._awaiting}: a letter", "k")]
        words: list[Span] = [*status.changes(self.session.state.spec)]
        if self.look.comparing:
            words.append(Span("against the run before  ", "bad"))
        words += status.slider(self.checkpoints, self.session.state.spec.name)
        taken = sum(cell_len(span.text) for span in words)
        return [*words, *status.hints(self._mode, self.size.width - taken - 1)]

    @property
    def _mode(self) -> str:
        """What the keys are for, as in ``status.HINTS``."""
        if self.focused is self.edit:
            return "text"
        if self.guide is not None:
            return "tour"
        if self.active == "main":
            return "map"
        return self.active if self.active in status.HINTS else "pane"

    # Moving

    def go(self, cursor: Cursor) -> None:
        """Move the cursor."""
        if cursor != self.look.cursor:
            self.places.append(self.look.cursor)
        self.show(replace(self.look, cursor=cursor))

    def go_back(self) -> None:
        """Move the cursor to where it was before."""
        self.show(replace(self.look, cursor=self.places.pop()))

    def wait(self, purpose: str) -> None:
        """Wait for a letter."""
        self._awaiting = purpose
        self.draw_status()

    def handle_key(self, event: events.Key) -> bool:
        if self._awaiting and event.key != "ctrl+c":
            self._take_letter(event.character or "")
            return True
        return super().handle_key(event)

    def _take_letter(self, letter: str) -> None:
        """Set a mark or go to it; any other key cancels."""
        purpose, self._awaiting, self._note = self._awaiting, "", None
        marks = self.look.marks
        if letter.isalnum() and purpose == "mark":
            self.show(replace(self.look, marks={**marks, letter: self.look.cursor}))
        elif letter in marks:
            self.go(marks[letter])
        elif letter.isalnum():
            self.say(f"there is no mark {letter}" + (f"; there are {' '.join(marks)}" if marks else ": m sets one"))
        else:
            self.draw_status()

    # Panes

    def open(self, name: str) -> None:
        """Open a pane; its line becomes a line of the session."""
        self.opened = [name, *(pane for pane in self.opened if pane != name)]
        self.active = name
        self.panels[name].noted = False
        self.draw()

    def close(self, *names: str) -> None:
        """Close panes."""
        self.opened = [name for name in self.opened if name not in names]
        self.activate("main", zoomed=False)

    def activate(self, name: str, *, zoomed: bool) -> None:
        """Make a pane the one that keys scroll; ``zoomed`` gives it the screen."""
        self.active, self.zoomed = name, zoomed
        self.draw()

    def show_blocks(self, title: str, blocks: Sequence[Block]) -> None:
        """Show blocks in the output pane."""
        self._show_answer(title, Outcome(0, results=(answer(title, {}, *blocks),)))

    def _show_answer(self, line: str, outcome: Outcome) -> None:
        panel = self.panels["output"]
        panel.request = Request(line, self.look.scene, False)
        self.zoomed = True
        self.open("output")
        panel.top = 0
        panel.answer(self.look, outcome)
        self.draw()

    # Lines of the session

    def line_work(self, line: str, width: int) -> Callable[[], Any]:
        return partial(self.engine.run_line, line, self.look.cursor, width)

    def after_lines(self, work: Callable[[], None]) -> None:
        """Do work on the screen once all that runs behind it is done and shown."""
        self.engine.submit(lambda: None, lambda *_: self.on_screen(work))

    def line_done(self, line: str, result: Any, error: Exception | None) -> None:
        start = self._busy_line[1] if self._busy_line else time.perf_counter()
        self._busy_line, self.seconds = None, time.perf_counter() - start
        if not isinstance(result, tuple):
            self.say(explained(error or Superseded()).message)
            return
        outcome: Outcome
        outcome, scene = result
        changes = self.look.scene.run.spec.changes
        if outcome.leave:
            self.exit(0)
            return
        if scene is not None:
            self._set_scene(scene)
        if outcome.status == 130:
            self.say("interrupted")
        elif outcome.failure is not None:
            self.say(" · ".join(part for part in (outcome.failure.message, outcome.failure.hint) if part))
        elif (now := self.look.scene.run.spec.changes) != changes:
            self.look = replace(self.look, comparing=bool(now) and self.look.scene.previous is not None)
            if self.active == "output":
                self.close("output")  # it shows a number from before
        elif line.split()[0] not in ("model", "undo", "redo") and (outcome.results or outcome.text):
            self._show_answer(line, outcome)
            return
        self.draw()

    def _set_scene(self, scene: Scene) -> None:
        """Show another run, at the same step if it has it."""
        if scene.trace is self.trace and scene.previous is self.look.scene.previous:
            return
        step, layer = self.look.cursor.at(self.trace)
        cursor = self.look.cursor
        if scene.trace.steps is not self.trace.steps:
            same_step = find_row(scene.trace.steps.rows, step.name, layer)
            cursor = replace(cursor, row=first_cursor(scene).row if same_step is None else same_step)
        comparing = self.look.comparing and scene.previous is not None
        self.look = replace(self.look, scene=scene, cursor=cursor, comparing=comparing)

    # The text, lines and finding

    def edit_text(self, *, source: bool = False) -> None:
        """Open the line that edits the text, or the ``source`` that a model of two stacks reads."""
        read = self.trace.source
        if source and read is None:
            self.say("this model reads one text: t edits it")
            return
        self.edit.value = read.encoding.text if source and read is not None else self.trace.encoding.text
        self.live.begin(self.edit.value, source=source)
        self.open_input(self.edit)
        self.draw_status()

    @property
    def layer(self) -> int:
        return self.look.cursor.at(self.trace)[1] or 0

    def on_input_changed(self, event: Input.Changed) -> None:
        super().on_input_changed(event)
        if event.input is self.edit and self.edit.display:
            self.live.run(event.value)

    def _text_ran(self, scene: Scene, seconds: float) -> None:
        """Show the run of a text that is being typed."""
        self._note, self.seconds = None, seconds
        previous_length = len(self.trace.tokens)
        self._set_scene(scene)
        cursor = self.look.cursor
        if cursor.cell[0] == previous_length - 1:  # stay on the last token
            cursor = replace(cursor, cell=(len(self.trace.tokens) - 1, cursor.cell[1]))
        self.show(replace(self.look, cursor=cursor))

    def take_text(self, text: str) -> None:
        self.live.finish(text)

    def find(self, word: str) -> None:
        if is_parameter(self.trace, word):
            self.run_line(f"print {shell_quoted(word)}")
        else:
            self.go(find_cursor(self.trace, self.look.cursor, word))

    def _clicked(self, name: str, line: int, column: int) -> None:
        """Go to what a click on a pane chooses."""
        choose = self._clicks.get(name)
        if choose is not None and (cursor := choose(line, column)) is not None:
            self.go(cursor)
