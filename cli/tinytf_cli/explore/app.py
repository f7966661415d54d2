"""The explorer: one screen on which a forward pass is walked, and whose text is edited live."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len
from textual import events
from textual.app import App, ComposeResult
from textual.geometry import Region, Size
from textual.theme import Theme
from textual.widgets import Input

from tinytf.errors import AddressError
from tinytf.trace.trace import Trace
from tinytf_cli.explore.arrange import arranged
from tinytf_cli.explore.engine import Engine, Superseded
from tinytf_cli.explore.lines import BurstInput, CommandLine
from tinytf_cli.explore.lists import head_blocks, head_order, next_blocks, outline, text_line, token_spans
from tinytf_cli.explore.maps import Map, map_title, step_map, word_blocks
from tinytf_cli.explore.pane import Pane
from tinytf_cli.explore.panels import LINES, USUAL, Asked, Panel
from tinytf_cli.explore.place import Place, first_row, found_place
from tinytf_cli.explore.scene import Look, Scene
from tinytf_cli.failing import explained
from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS
from tinytf_cli.paint.heat import SMALL, cell_widths
from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.repl.verbs import answer
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Piece, Span

_HINTS = (
    "↑↓ step", "←→ head", "PgUp PgDn layer", "hjkl cell", "Enter arithmetic", "w without", "t text", ": line",
    "L lens", "a attribution", "g gradient", "d against", "Tab z panes",
)  # fmt: skip
_BANNER = 26
"""The columns at the right end of the text, for the time and the number of the step."""
_PAUSE = 0.15
"""Seconds without a key after which the panes that a line fills follow the text."""


class Key(NamedTuple):
    """Keys in Textual's names, as they are shown, what they do, and that in words."""

    keys: str
    shown: str
    act: "Callable[[Explorer], None]"
    words: str


class Explorer(App[int]):
    """The screen of a session. ``keys`` are what it does, ``checkpoints`` the models of a training run.

    ``look`` is what is looked at. ``opened`` are the panes that were asked for, the last one first; ``active`` is the
    pane that keys scroll; ``trail`` are the cells whose arithmetic was followed.
    """

    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    Pane { position: absolute; display: none; }
    Input { position: absolute; height: 1; border: none; padding: 0; display: none; background: $background; }
    #offers { background: $background; }
    """

    def __init__(
        self, keys: Sequence[Key], session: Session, terminal: Terminal, checkpoints: Sequence[Path] = ()
    ) -> None:
        super().__init__()
        self.keys, self.session, self.terminal, self.checkpoints = keys, session, terminal, checkpoints
        self._acts = {name: key.act for key in keys for name in key.keys.split(",")}
        self.engine = Engine(session)
        scene = self.engine.scene()
        self.look = Look(scene, first_place(scene))
        self.fault: Exception | None = None
        self.active, self.zoomed, self.single = "main", False, False
        self.opened: list[str] = []
        self.in_sight: set[str] = set()
        self.trail: list[Place] = []
        self._asked_text = ""
        self.seconds = 0.0
        self._note: Span | None = None
        self._waiting = ""
        self._size_drawn = Size()
        self._busy: tuple[str, float] | None = None
        self._outlined: list[int] = []
        self._cells: tuple[int, int, int, Map] | None = None
        chosen: dict[str, Callable[[int, int], None]] = {
            "text": self._text_chosen,
            "steps": self._step_chosen,
            "main": self._cell_chosen,
            "heads": self._head_chosen,
        }
        lists = ("text", "steps", "main", "heads", "next", "status", "offers")
        self.panes = {name: Pane(name, terminal, chosen.get(name)) for name in lists}
        self.panels = {name: Panel(name, terminal) for name in (*LINES, "output")}
        self.panes |= self.panels
        self.edit = BurstInput(id="edit", compact=True, select_on_focus=False)
        self.line = CommandLine(session, self.panes["offers"], self._place_offers)
        self.edit.cursor_blink = self.line.cursor_blink = False  # a slow line has better things to carry
        ground = BACKGROUNDS[terminal.theme]
        self.register_theme(
            Theme(
                "tinytf", primary="#5aa2ff", background=ground, surface=ground, panel=ground,
                foreground=FOREGROUNDS[terminal.theme], dark=terminal.theme == "dark",
            )
        )  # fmt: skip
        self.theme = "tinytf"

    @property
    def trace(self) -> Trace:
        return self.look.scene.trace

    @property
    def order(self) -> list[str]:
        """The panes that Tab goes through."""
        return ["main", "heads", "next", *dict.fromkeys((*self.opened, *LINES))]

    def compose(self) -> ComposeResult:
        yield from self.panes.values()
        yield self.edit
        yield self.line

    def on_mount(self) -> None:
        self.set_interval(0.5, self._tick)
        for name in ("SIGTERM", "SIGHUP"):
            with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
                number = getattr(signal, name)
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)

    def _tick(self) -> None:
        if self._busy:
            self.draw_status()

    def on_unmount(self) -> None:
        self.engine.close(self.look.place)

    def _handle_exception(self, error: Exception) -> None:
        """Leave the screen as it was before a fault is told."""
        self.fault = error
        self.exit(1)

    # Drawing

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    def show(self, look: Look) -> None:
        """Look at something else."""
        self.look = look
        self.draw()

    def draw(self) -> None:
        """Draw all panes again."""
        self._arrange()
        look, panes = self.look, self.panes
        rows = self.trace.steps.rows
        stops = [stop for stop in self.session.state.stops if stop.address]
        held = frozenset(row for row in range(len(rows)) if any(stop.applies_at(rows, row) for stop in stops))
        self.look = look = replace(look, stops=held)
        panes["text"].show([text_line(look, self.size.width, _BANNER, self._banner())])
        self._outlined, steps = outline(look)
        here = max((line for line, row in enumerate(self._outlined) if row == look.place.row), default=0)
        moved = "   moved by" if look.against else ""
        panes["steps"].show([steps], [Span(look.scene.model.name, "strong"), Span(moved, "dim")], keep=here)
        if "main" in self.in_sight:
            self._draw_step()
        if "heads" in self.in_sight:
            title = [Span("heads", "attention"), Span(f"   by {look.by} (s)", "dim")]
            panes["heads"].show(head_blocks(look, panes["heads"].room - 1), title)
        if "next" in self.in_sight:
            first = look.scene.predicted[:1]
            after = f"   after {first[0].shown}" if first and first[0].what == "next" else ""
            title = [Span(first[0].title if len(look.scene.predicted) == 1 else "next", "output"), Span(after, "dim")]
            panes["next"].show(next_blocks(look.scene, panes["next"].room - 1), title)
        for panel in self.panels.values():
            if panel.id in self.in_sight:
                panel.repaint()
        if self.focused is self.edit:
            number = self.engine.asked
            self.set_timer(_PAUSE, lambda: self._ask_panels() if number == self.engine.asked else None)
        else:
            self._ask_panels()
        self.draw_status()

    def _arrange(self) -> None:
        """Give every pane its place."""
        width, height = self.size
        found = arranged(width, height, self.opened, USUAL, self.active, self.zoomed)
        self.single = not {"heads", "next"} & found.keys()
        self.in_sight = set(found)
        first = min((where.x for name, where in found.items() if name not in ("text", "status", "steps")), default=0)
        for name, pane in self.panes.items():
            if name == "offers":
                continue
            where = found.get(name)
            pane.display = where is not None
            if where is not None:
                top, left = where.y == 1, where.x == first
                corner = "┌" if top and left else "┬" if top or (not left and name == "next") else "├"
                pane.active = name == self.active and not self.single
                pane.put(where, "" if name in ("text", "status") else "─" if name == "steps" else corner)
        if self._size_drawn != self.size:
            self._size_drawn = self.size
            _put(self.edit, Region(0, 0, max(20, width - _BANNER), 1))
            _put(self.line, Region(2, height - 1, max(1, width - 2), 1))

    def _draw_step(self) -> None:
        """The map of the present step, and where its cells are."""
        main = self.panes["main"]
        self._cells = None
        found = step_map(self.look, main.terminal.width, main.room)
        if found is None:
            main.show(word_blocks(self.look), map_title(self.look))
            return
        main.show([found.heat, *found.below], found.title)
        label, width = cell_widths(found.heat, main.terminal)
        self._cells = (label + 3, width, 0 if width == SMALL else 1, found)

    def _banner(self) -> list[Piece]:
        took = f"{self.seconds * 1000:.0f} ms   " if self.seconds else ""
        at = f"step {self.look.place.row + 1}/{len(self.trace.steps.rows)} "
        return [Span(took, "good"), Span(at, "dim")]

    def draw_status(self) -> None:
        """The last line: what is waited for, what went wrong, and what is not as usual; then the keys."""
        gone = self.session.state.spec.without
        words: list[Piece] = [" "]
        if self.line.display:
            words = [Span(self.line.sign, "strong")]
        elif self._busy:
            line, began = self._busy
            words += [Span(line, "strong"), f"  {time.perf_counter() - began:.0f} s; ", Span("Ctrl-C stops it", "dim")]
        elif self._waiting:
            words.append(Span(f"{self._waiting}: a letter", "k"))
        elif self._note:
            words.append(self._note)
        else:
            if gone is not None:
                words.append(Span(f"without {gone.words}  ", "bad"))
            if self.look.against:
                words.append(Span("against the run before  ", "bad"))
            words += self._slider()
            words += _hints(self.size.width - sum(cell_len(one.text) for one in words if isinstance(one, Span)) - 3)
        self.panes["status"].show([Line(words, single=True)])

    def _slider(self) -> list[Piece]:
        """Where the present model is among the checkpoints of a training run."""
        names, present = [str(one) for one in self.checkpoints], self.session.state.spec.name
        if present not in names:
            return []
        at = names.index(present)
        rail = "".join("●" if number == at else "─" for number in range(len(names)))
        name = "the run" if at == len(names) - 1 else self.checkpoints[at].name
        return [Span(f"< {rail} > ", "attention"), Span(f"{name}, {at + 1} of {len(names)}   ", "strong")]

    def say(self, words: str, role: str = "bad") -> None:
        """Say something in the last line, until the next key."""
        self._note = Span(words, role)
        self.draw_status()

    # Moving

    def go(self, place: Place) -> None:
        """Look from another place, which ends the trail of an arithmetic."""
        self.trail = []
        self.follow(place)

    def follow(self, place: Place) -> None:
        """Look from another place."""
        self.show(replace(self.look, place=place))

    def wait(self, what: str) -> None:
        """Wait for a letter."""
        self._waiting = what
        self.draw_status()

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Key) or not self._pressed(event):
            await super().on_event(event)

    def _pressed(self, event: events.Key) -> bool:
        """Do what a key means here; false where it is for the line that is typed."""
        if event.key == "ctrl+c":
            self._stop()
        elif self._waiting:
            self._take_letter(event.character or "")
        elif isinstance(self.focused, Input):
            if event.key != "escape":
                return False
            self._close_inputs()
            self.draw()
        elif event.key in self._acts:
            self._note = None
            self._acts[event.key](self)
        else:
            return False
        return True

    def _stop(self) -> None:
        """Stop the line that runs, or leave."""
        if self._busy:
            self.engine.interrupt()
        else:
            self.exit(0)

    def _take_letter(self, letter: str) -> None:
        """Set a mark, or go to it; any other key gives that up."""
        waiting, self._waiting, self._note = self._waiting, "", None
        marks = self.look.marks
        if letter.isalnum() and waiting == "mark":
            self.show(replace(self.look, marks={**marks, letter: self.look.place}))
        elif letter in marks:
            self.go(marks[letter])
        elif letter.isalnum():
            self.say(f"there is no mark {letter}" + (f"; there are {' '.join(marks)}" if marks else ": m sets one"))
        else:
            self.draw_status()

    # Panes

    def open(self, name: str) -> None:
        """Show a pane of its own; what it asks becomes a line of the session."""
        self.opened = [name, *(one for one in self.opened if one != name)]
        self.active = name
        self.panels[name].noted = False
        self.draw()

    def close(self, *names: str) -> None:
        """Close panes."""
        self.opened = [name for name in self.opened if name not in names]
        self.activate("main", zoomed=False)

    def activate(self, name: str, *, zoomed: bool) -> None:
        """Let keys scroll a pane; ``zoomed``, it has the screen."""
        self.active, self.zoomed = name, zoomed
        self.draw()

    def show_blocks(self, title: str, blocks: Sequence[Block]) -> None:
        """Show something in the pane of typed lines."""
        self._show_answer(title, Outcome(0, results=(answer(title, {}, *blocks),)))

    def _show_answer(self, line: str, outcome: Outcome) -> None:
        panel = self.panels["output"]
        panel.asked = Asked(line, self.look.scene, False)
        self.zoomed = True
        self.open("output")
        panel.top = 0
        panel.answer(self.look, outcome)
        self.draw()

    def _ask_panels(self) -> None:
        """Ask what the panes in sight should show and do not show yet."""
        for name in LINES:
            panel = self.panels[name]
            against = self.look.against and self.look.scene.before is not None and name != "difference"
            asked = Asked(LINES[name](self.look), self.look.scene, against)
            if name in self.in_sight and asked != panel.asked:
                panel.asked = asked
                self._ask(panel, asked, self.look, self.engine.asked)
            elif name in self.in_sight and not panel.noted and panel.succeeded:
                panel.noted = True
                self.engine.submit(partial(self.engine.note, asked.line, self.look.place), lambda *_: None)

    def _ask(self, panel: Panel, asked: Asked, look: Look, number: int) -> None:
        def work() -> list[Outcome]:
            if panel.asked is not asked:
                raise Superseded
            found = self.engine.answers(asked.line, asked.scene, asked.against, number)
            if not panel.noted and found[0].failure is None:
                panel.noted = True
                self.engine.note(asked.line, look.place)
            return found

        def done(found: Any, error: Exception | None) -> None:
            if error is None:
                self._later(lambda: self._answered(panel, asked, look, found))
            elif panel.asked is asked:
                panel.asked = None

        self.engine.submit(work, done)

    def _answered(self, panel: Panel, asked: Asked, look: Look, found: list[Outcome]) -> None:
        if panel.asked is asked:
            panel.answer(look, *found)

    # Lines of the session

    def run_line(self, line: str) -> None:
        """Run a line of the session behind the screen, and show what it wrote."""
        self._busy = (line, time.perf_counter())
        self.draw_status()
        place, width = self.look.place, self.size.width
        self.engine.submit(
            lambda: self.engine.line(line, place, width),
            lambda found, error: self._later(lambda: self._line_done(line, found, error)),
        )

    def _later(self, work: Callable[[], None]) -> None:
        """Do something on the screen; called in the thread of the engine."""
        self.call_later(work)

    def _line_done(self, line: str, found: Any, error: Exception | None) -> None:
        began = self._busy[1] if self._busy else time.perf_counter()
        self._busy, self.seconds = None, time.perf_counter() - began
        if not isinstance(found, tuple):
            self.say(explained(error or Superseded()).message)
            return
        outcome: Outcome
        outcome, scene = found
        if outcome.leave:
            self.exit(0)
            return
        if scene is not None:
            self._take(scene)
        if outcome.status == 130:
            self.say("interrupted")
        elif outcome.failure is not None:
            self.say(" · ".join(part for part in (outcome.failure.message, outcome.failure.hint) if part))
        elif line.split()[0] not in ("without", "model") and (outcome.results or outcome.text):
            self._show_answer(line, outcome)
            return
        self.draw()

    def _take(self, scene: Scene) -> None:
        """Another run on the screen, at the same step where it has it."""
        if scene.trace is self.trace and scene.before is self.look.scene.before:
            return
        step, layer = self.look.place.at(self.trace)
        place = self.look.place
        if scene.trace.steps is not self.trace.steps:
            rows = scene.trace.steps.rows
            same = (n for n, (one, of) in enumerate(rows) if (one.name, of) == (step.name, layer))
            place = replace(place, row=next(same, first_row(scene.trace)))
        self.look = replace(self.look, scene=scene, place=place)

    # The text, lines and finding

    def edit_text(self) -> None:
        """Open the line in which the text is edited."""
        self.engine.asked += 1
        self._asked_text = self.edit.value = self.trace.encoding.text
        self._open_input(self.edit)

    def ask(self, sign: str) -> None:
        """Open the line for a line of the session (:) or a search (/)."""
        self.line.begin(sign)
        self._open_input(self.line)
        self.draw_status()

    def _open_input(self, line: Input) -> None:
        line.display = True
        self.set_focus(line)  # at once: the next keys of a burst are its own
        line.cursor_position = len(line.value)

    def _close_inputs(self) -> None:
        self.edit.display = self.line.display = False
        self._place_offers(0, 0)
        self.set_focus(None)

    def _place_offers(self, wide: int, count: int) -> None:
        """Put so many offers above the line."""
        pane = self.panes["offers"]
        pane.display = count > 0
        width, height = self.size
        pane.put(Region(1, max(0, height - 1 - count), min(width - 1, wide), count), "")

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self.line and self.line.display:
            self.line.complete()
        if event.input is self.edit and self.edit.display:
            self._follow(event.value)

    def _follow(self, text: str) -> None:
        """Run a text that is being typed, unless it was asked for last."""
        if text == self._asked_text:
            return
        self._asked_text = text
        self.engine.asked += 1
        number, began = self.engine.asked, time.perf_counter()
        self.engine.submit(
            lambda: self.engine.live(text, number),
            lambda found, error: self._later(lambda: self._typed(found, error, began)),
        )

    def _typed(self, found: Any, error: Exception | None, began: float) -> None:
        """A text that is being typed was run, or could not be."""
        if isinstance(error, Superseded):
            return
        if error is not None:
            self.say(explained(error).message)
            return
        self._note, self.seconds, self.trail = None, time.perf_counter() - began, []
        old = len(self.trace.tokens)
        self._take(found)
        place = self.look.place
        if place.cell[0] == old - 1:  # the last token stays the chosen one
            place = replace(place, cell=(len(self.trace.tokens) - 1, place.cell[1]))
        self.show(replace(self.look, place=place))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        value = event.value.strip()
        self._close_inputs()
        if event.input is self.edit:
            self._follow(event.value)  # of a burst of keys no change has been heard of yet
            self.engine.submit(self.engine.settle, lambda *_: None)
            self.draw()
        elif value and self.line.sign == ":":
            self.run_line(value)
        elif value:
            self._find(value)
        else:
            self.draw_status()

    def _find(self, word: str) -> None:
        try:
            self.go(found_place(self.trace, self.look.place, word))
        except AddressError as error:
            self.say(error.message)

    # The mouse

    def _step_chosen(self, line: int, _: int) -> None:
        if line < len(self._outlined):
            self.go(replace(self.look.place, row=self._outlined[line]))

    def _head_chosen(self, line: int, _: int) -> None:
        order = head_order(self.look.scene, self.look.place, self.look.by)
        lead = self.panes["heads"].count - min(len(order), self.panes["heads"].room - 1)
        if 0 <= line - lead < len(order):
            self.go(replace(self.look.place, part=order[line - lead][0]))

    def _cell_chosen(self, line: int, column: int) -> None:
        if self._cells is None:
            return
        margin, width, lead, found = self._cells
        row, across = line - lead, (column - margin) // width
        if 0 <= row < len(found.heat.values) and 0 <= across < found.heat.values.shape[1]:
            self.go(replace(self.look.place, cell=(found.rows.start + row, found.columns.start + across)))

    def _text_chosen(self, _: int, column: int) -> None:
        shown, ends = token_spans(self.look, self.size.width - _BANNER)
        number = next((number for number, end in zip(shown, ends, strict=True) if column < end), None)
        if number is not None:
            self.go(replace(self.look.place, cell=(number, self.look.place.cell[1])))


def first_place(scene: Scene) -> Place:
    """Where to begin: the weights of the last layer, at the token that a prediction is read at."""
    last = len(scene.trace.tokens) - 1
    at = next((one.position for one in scene.predicted if one.of_tokens), last)
    return Place(row=first_row(scene.trace), cell=(at, 0))


def _hints(width: int) -> Iterator[Span]:
    """The first keys that there is room for, and the one that lists all."""
    room = width - len("? keys")
    for hint in _HINTS:
        if (room := room - len(hint) - 2) < 0:
            break
        yield Span(f"{hint}  ", "dim")
    yield Span("? keys", "dim")


def _put(line: Input, where: Region) -> None:
    line.styles.offset, line.styles.width = (where.x, where.y), where.width
