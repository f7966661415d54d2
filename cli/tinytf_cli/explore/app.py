"""The explorer: one screen on which a forward pass is walked, and whose text is edited live."""

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.suggester import Suggester
from textual.theme import Theme
from textual.widgets import Input

from tinytf.analysis.heads import MEASURES
from tinytf.errors import TinytfError
from tinytf.trace.trace import Trace
from tinytf_cli.explore.engine import Engine, Superseded
from tinytf_cli.explore.keys import KEYS
from tinytf_cli.explore.pane import Pane
from tinytf_cli.explore.panes import (
    Map,
    Scene,
    head_blocks,
    head_order,
    next_blocks,
    outline,
    step_map,
    text_line,
    word_blocks,
)
from tinytf_cli.explore.place import Place, matrix, nearest_cell
from tinytf_cli.failing import explained
from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS
from tinytf_cli.paint.heat import SMALL, cell_widths
from tinytf_cli.paint.painter import paint_segments
from tinytf_cli.repl.completing import offered
from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span

_NARROW, _LOW = 100, 32
"""Below so many columns or rows there are the steps and one pane."""


class Completing(Suggester):
    """The session's completion as the suggestion of an input line."""

    def __init__(self, session: Session) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._session = session

    async def get_suggestion(self, value: str) -> str | None:
        start, offers = offered(self._session, value)
        first = next((one.word for one in offers), None)
        return None if first is None else value[: len(value) + start] + first


class Explorer(App[int]):
    """The screen of a session. ``checkpoints`` are the models of a training run that ``<`` and ``>`` go through."""

    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #text { height: 1; }
    #edit, #line { height: 1; border: none; padding: 0; display: none; background: $surface; }
    #steps { width: 34; border-right: solid $primary-background; }
    #right { width: 1fr; }
    #main { height: 1fr; padding-left: 1; }
    #below { height: 14; border-top: solid $primary-background; }
    #heads { width: 1fr; padding-left: 1; }
    #next { width: 1fr; border-left: solid $primary-background; }
    #status { height: 1; }
    .low #below { display: none; }
    .narrow #steps { width: 30; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(one.keys, one.action, one.words, show=False) for one in KEYS),
        Binding("ctrl+c", "leave", show=False, priority=True),
    ]

    def __init__(self, session: Session, terminal: Terminal, scene: Scene, checkpoints: Sequence[Path] = ()) -> None:
        super().__init__()
        self.session, self.terminal = session, terminal
        self.engine = Engine(session)
        self.scene, self.place = scene, Place(row=_first(scene.trace), cell=(len(scene.trace.tokens) - 1, 0))
        self.checkpoints = checkpoints
        self.fault: Exception | None = None
        self.note: str | Span = ""
        self.seconds = 0.0
        self.small, self.against, self.by = False, False, "entropy"
        self.output: str | None = None
        self.trail: list[Place] = []
        self._marks: dict[str, Place] = {}
        self._waiting = ""
        self._busy = ""
        self._outlined: list[int] = []
        self._cells: tuple[int, int, int, Map] | None = None
        ground = BACKGROUNDS[terminal.theme]
        self.register_theme(
            Theme(
                "tinytf", primary="#5aa2ff", background=ground, surface=ground, panel=ground,
                foreground=FOREGROUNDS[terminal.theme], dark=terminal.theme == "dark",
            )
        )  # fmt: skip
        self.theme = "tinytf"

    def on_mount(self) -> None:
        for name in ("SIGTERM", "SIGHUP"):
            with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
                number = getattr(signal, name)
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)

    def _handle_exception(self, error: Exception) -> None:
        """Leave the screen as it was before a fault is told."""
        self.fault = error
        self.exit(1)

    def compose(self) -> ComposeResult:
        yield Pane(id="text", on_chosen=self._text_chosen)
        yield Input(id="edit", compact=True, select_on_focus=False)
        with Horizontal():
            yield Pane(id="steps", on_chosen=self._step_chosen)
            with Vertical(id="right"):
                yield Pane(id="main", on_chosen=self._cell_chosen)
                with Horizontal(id="below"):
                    yield Pane(id="heads", on_chosen=self._head_chosen)
                    yield Pane(id="next")
        yield Input(id="line", compact=True, suggester=Completing(self.session))
        yield Pane(id="status")

    # Drawing

    def on_resize(self, event: events.Resize) -> None:
        self.screen.set_class(event.size.width < _NARROW or event.size.height < _LOW, "low")
        self.screen.set_class(event.size.width < _NARROW, "narrow")
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw all panes again."""
        scene, place = self.scene, self.place
        took = f"{self.seconds * 1000:.0f} ms" if self.seconds else ""
        self._paint("text", [text_line(scene, place, self.note or Span(took, "dim"))])
        stops = self.session.state.stops
        rows = scene.trace.steps.rows
        held = frozenset(row for row in range(len(rows)) if any(stop.where and stop.is_at(rows, row) for stop in stops))
        self._outlined, steps = outline(scene, place, held, self.against)
        here = max((line for line, row in enumerate(self._outlined) if row == place.row), default=0)
        self._paint("steps", [steps], keep=here)
        if self.output is None:
            self._draw_step()
        if not self.screen.has_class("low"):
            most = self._pane("heads").size.height - 2
            self._paint("heads", head_blocks(scene, place, self.by, most))
            self._paint("next", next_blocks(scene, most))
        self._status()

    def _draw_step(self) -> None:
        """The map of the present step, and where its cells are."""
        main = self._pane("main")
        size = main.content_size
        self._cells = None
        found = step_map(
            self.scene, self.place, small=self.small, against=self.against, width=size.width, height=size.height
        )
        if found is None:
            self._paint("main", word_blocks(self.scene, self.place))
            return
        self._paint("main", [found.above, found.heat, *found.below])
        label, width = cell_widths(found.heat, self._terminal(main))
        self._cells = (label + 3, width, 1 if width == SMALL else 2, found)

    def _status(self) -> None:
        rows = self.scene.trace.steps.rows
        gone = self.session.state.spec.without
        words: list[Any] = [Span(f" {self.scene.model.name}", "strong")]
        if gone is not None:
            words.append(Span(f" without {gone.words}", "bad"))
        words.append(Span(f"  {self.place.address(self.scene.trace)}  {self.place.row + 1}/{len(rows)}", "attention"))
        if self.against:
            words.append(Span("  against the run before", "bad"))
        if self._busy:
            words.append(Span(f"  {self._busy} …", "k"))
        if self._waiting:
            words.append(Span(f"  {self._waiting}: a letter", "k"))
        hidden = self._pane("main").hidden
        if hidden:
            words.append(Span(f"  {hidden} more lines: wheel", "dim"))
        keys = "↑↓ step ←→ head PgUp/Dn layer hjkl cell Enter arithmetic t text : line ? keys"
        words.append(Span(f"  {keys}", "dim"))
        self._paint("status", [Line(words, single=True)])

    def _pane(self, name: str) -> Pane:
        return self.query_one(f"#{name}", Pane)

    def _paint(self, name: str, blocks: Any, keep: int | None = None) -> None:
        pane = self._pane(name)
        pane.show(paint_segments(blocks, self._terminal(pane)), keep=keep)

    def _terminal(self, pane: Pane) -> Terminal:
        """What a pane can show."""
        return replace(self.terminal, width=max(20, pane.content_size.width), cuts=True)

    # Moving

    def _go(self, place: Place) -> None:
        self.place, self.output, self.trail = place, None, []
        self.draw()

    def action_step(self, by: int) -> None:
        self._go(self.place.stepped(self.scene.trace, by))

    def action_edge(self, by: int) -> None:
        self._go(self.place.stepped(self.scene.trace, by * len(self.scene.trace.steps.rows)))

    def action_layer(self, by: int) -> None:
        self._go(self.place.in_layer(self.scene.trace, by))

    def action_part(self, by: int) -> None:
        self._go(self.place.in_part(self.scene.trace, by))

    def action_cell(self, down: int, right: int) -> None:
        if matrix(self.scene.trace, self.place) is not None:
            self._go(self.place.moved(self.scene.trace, down, right))

    def action_map(self) -> None:
        self._close()
        self.output, self.trail = None, []
        self.draw()

    def action_numbers(self) -> None:
        self.small = not self.small
        self.action_map()

    def action_against(self) -> None:
        if self.scene.before is None:
            self._say("there is no run before this one: edit the text, or go without a head")
            return
        self.against = not self.against
        self.action_map()

    def action_sort(self) -> None:
        known = list(MEASURES)
        self.by = known[(known.index(self.by) + 1) % len(known)]
        self.draw()

    def action_mark(self) -> None:
        self._waiting = "mark"
        self._status()

    def action_jump(self) -> None:
        self._waiting = "go to mark"
        self._status()

    def on_key(self, event: events.Key) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, ""
            letter = event.character or ""
            if waiting == "mark" and letter.isalnum():
                self._marks[letter] = self.place
            elif letter in self._marks:
                self._go(self._marks[letter])
            elif letter:
                self._say(f"there is no mark {letter}")
            self._status()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No key but the letter of a mark while one is waited for; typing goes to the input line."""
        typing = isinstance(self.focused, Input)
        return action in ("leave", "map") or not (self._waiting or typing)

    # Lines of the session

    def action_arithmetic(self) -> None:
        trace = self.scene.trace
        if not self.trail:
            self.trail = [self.place]
        else:
            try:
                (explained_cell, *_) = self.scene.model.explain(trace, self.place.cell_address(trace))
                lead = explained_cell.leads_to
            except TinytfError:
                lead = ()
            if not lead:
                self._say("this is where it begins")
                return
            self.place = self.place.to(trace, trace.address(lead[0]))
            self.trail.append(self.place)
        self._explain()

    def action_before(self) -> None:
        if len(self.trail) > 1:
            self.trail.pop()
            self.place = self.trail[-1]
            self._explain()
        else:
            self.action_map()

    def _explain(self) -> None:
        self.run_line(f"explain '{self.place.cell_address(self.scene.trace)}'")

    def action_without(self) -> None:
        gone = self.session.state.spec.without
        step, layer = self.place.at(self.scene.trace)
        self.against = gone is None
        if gone is not None:
            self.run_line("without none", show=False)
        elif step.is_split and layer is not None:
            part = self.place.address(self.scene.trace).heads
            assert part is not None
            self.run_line(f"without L{layer}{step.letter}{part[0]}", show=False)
        elif step.role == "ffn" and layer is not None:
            self.run_line(f"without L{layer}.ffn", show=False)
        else:
            self.against = False
            self._say("this step is of no head: go to one, such as L0H0.weights")

    def action_line(self, verb: str) -> None:
        step, _ = self.place.at(self.scene.trace)
        address = f" {self.place.address(self.scene.trace)}" if verb == "grad" and step.is_tensor else ""
        self.run_line(verb + address)

    def action_checkpoint(self, by: int) -> None:
        names = [str(one) for one in self.checkpoints]
        present = self.session.state.spec.name
        if not names:
            self._say("this is no training run with checkpoints: tinytf explore RUN")
            return
        at = names.index(present) if present in names else len(names) - 1
        wanted = names[max(0, min(len(names) - 1, at + by))]
        if wanted != present:
            self.run_line(f"model --quiet '{wanted}'", show=False)

    def run_line(self, line: str, *, show: bool = True) -> None:
        """Run a line of the session behind the screen, and show what it wrote in the main pane."""
        self._busy = line
        self._status()
        width = self._pane("main").content_size.width
        place = self.place
        began = time.perf_counter()

        def finished(found: Any, error: Exception | None) -> None:
            self._from_thread(lambda: self._line_done(found, error, show, time.perf_counter() - began))

        self.engine.submit(lambda: self.engine.line(line, place, width), finished)

    def _line_done(self, found: Any, error: Exception | None, show: bool, seconds: float) -> None:
        self._busy, self.seconds = "", seconds
        if error is not None:
            self._say(explained(error).message)
            return
        outcome: Outcome
        outcome, scene = found
        if outcome.leave:
            self.exit(0)
            return
        self.note = ""
        if scene is not None:
            self._take(scene)
        if outcome.failure is not None:
            self.note = Span(" · ".join(p for p in (outcome.failure.message, outcome.failure.hint) if p), "bad")
        elif outcome.text and show:
            self.output = outcome.text
            self._pane("main").show_text(outcome.text)
        elif not show:
            self.output = None
        self.draw()

    def _take(self, scene: Scene) -> None:
        """Another run on the screen, at the same step where it has it."""
        step, layer = self.place.at(self.scene.trace)
        if scene.trace.steps is not self.scene.trace.steps:
            rows = scene.trace.steps.rows
            row = next(
                (n for n, (one, of) in enumerate(rows) if (one.name, of) == (step.name, layer)), _first(scene.trace)
            )
            self.place = replace(self.place, row=row)
        self.scene = scene

    # The text, lines and finding

    def action_edit(self) -> None:
        self.engine.asked += 1
        edit = self.query_one("#edit", Input)
        edit.value = self.scene.trace.encoding.text
        self._open(edit)

    def action_command(self) -> None:
        self._ask(":")

    def action_find(self) -> None:
        self._ask("/")

    def _ask(self, sign: str) -> None:
        line = self.query_one("#line", Input)
        line.value, line.placeholder, self._sign = "", f"{sign} …", sign
        self._open(line)

    def _open(self, line: Input) -> None:
        line.display = True
        line.focus()
        line.cursor_position = len(line.value)

    def _close(self) -> None:
        for name in ("edit", "line"):
            self.query_one(f"#{name}", Input).display = False
        self.set_focus(None)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id != "edit" or not event.input.display or event.value == self.scene.trace.encoding.text:
            return
        self.engine.asked += 1
        number, text, began = self.engine.asked, event.value, time.perf_counter()

        def finished(found: Any, error: Exception | None) -> None:
            self._from_thread(lambda: self._typed(found, error, began))

        self.engine.submit(lambda: self.engine.live(text, number), finished)

    def _typed(self, found: Any, error: Exception | None, began: float) -> None:
        """A text that is being typed was run, or could not be."""
        if isinstance(error, Superseded):
            return
        if error is not None:
            self._say(explained(error).message)
            return
        self.note, self.seconds, self.output, self.trail = "", time.perf_counter() - began, None, []
        old, scene = len(self.scene.trace.tokens), found
        self._take(scene)
        row, column = self.place.cell
        if row == old - 1:  # the last token stays the chosen one
            self.place = replace(self.place, cell=(len(scene.trace.tokens) - 1, column))
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        value = event.value
        self._close()
        if event.input.id == "edit":
            self.engine.submit(self.engine.settle, lambda *_: None)
        elif self._sign == ":" and value.strip():
            self.run_line(value)
        elif self._sign == "/" and value.strip():
            self._find(value.strip())

    def _find(self, word: str) -> None:
        """Go to an address, a step of this layer, a token, or the cell with this number."""
        trace = self.scene.trace
        _, layer = self.place.at(trace)
        for candidate in (word, f"L{layer}.{word}" if layer is not None else word):
            try:
                self._go(self.place.to(trace, trace.address(candidate)))
                return
            except TinytfError:
                continue
        try:
            try:
                position = trace.index(word, "token", len(trace.tokens)) if not _is_number(word) else None
            except TinytfError:
                position = None
            if position is not None:
                self._go(replace(self.place, cell=(position, self.place.cell[1])))
            elif _is_number(word):
                self._go(replace(self.place, cell=nearest_cell(trace, self.place, float(word))))
            else:
                self._say(f"{word} is no step, no token of the text and no number")
        except TinytfError as error:
            self._say(error.message)

    # Leaving the screen with something

    def action_copy(self, what: str) -> None:
        trace = self.scene.trace
        words = str(self.place.cell_address(trace))
        if what == "table":
            found = matrix(trace, self.place)
            if found is None:
                self._say("this step has no numbers")
                return
            words = "\n".join("\t".join(f"{value:.9g}" for value in row) for row in found.float().tolist())
        self.copy_to_clipboard(words)
        self._say(f"copied {words.partition(chr(10))[0][:60]}", "good")

    def action_picture(self) -> None:
        path = next(p for n in range(1, 10**6) if not (p := Path(f"tinytf-explore-{n}.svg")).exists())
        try:
            path.write_text(self.export_screenshot(title="tinytf explore"), encoding="utf-8")
        except OSError as error:
            self._say(f"cannot write {path}: {error.strerror}")
        else:
            self._say(f"wrote {path}", "good")

    def action_keys(self) -> None:
        width = max(len(one.shown) for one in KEYS)
        lines: list[Block] = [
            Line([Span(one.shown.ljust(width + 2), "strong"), one.words], single=True) for one in KEYS
        ]
        self.output = ""
        self._paint("main", lines)
        self._status()

    def action_leave(self) -> None:
        self.exit(0)

    def action_end(self) -> None:
        self.exit(0)

    def on_unmount(self) -> None:
        self.engine.close()

    def _say(self, words: str, role: str = "bad") -> None:
        self.note = Span(words, role)
        self.draw()
        self.note = ""

    def _from_thread(self, work: Callable[[], None]) -> None:
        if self.is_running:
            self.call_from_thread(work)

    # The mouse

    def _step_chosen(self, line: int, _: int) -> None:
        if line < len(self._outlined):
            self._go(replace(self.place, row=self._outlined[line]))

    def _head_chosen(self, line: int, _: int) -> None:
        order = head_order(self.scene, self.place, self.by)
        lead = self._pane("heads").count - min(len(order), self._pane("heads").size.height - 2)
        if 0 <= line - lead < len(order):
            self._go(replace(self.place, part=order[line - lead][0]))

    def _cell_chosen(self, line: int, column: int) -> None:
        if self._cells is None or self.output is not None:
            return
        margin, width, lead, found = self._cells
        row, across = line - lead, (column - margin) // width
        if 0 <= row < len(found.heat.values) and 0 <= across < found.heat.values.shape[1]:
            self._go(replace(self.place, cell=(found.rows.start + row, found.columns.start + across)))

    def _text_chosen(self, _: int, column: int) -> None:
        at = 0
        for number, token in enumerate(self.scene.trace.tokens):
            at += len(token.shown) + 1 + 2 * (number == self.place.cell[0])
            if column < at:
                self._go(replace(self.place, cell=(number, self.place.cell[1])))
                return


def _first(trace: Trace) -> int:
    """The step to begin with: the weights of the last layer."""
    last = trace.config.n_layers - 1
    rows = trace.steps.rows
    return next(row for row, (step, layer) in enumerate(rows) if (step.name, layer) == (trace.steps.weights, last))


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False
