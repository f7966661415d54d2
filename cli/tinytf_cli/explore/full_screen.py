"""The base of the explorers' screens: panes, keys and input lines on the terminal's background, drawn for its size."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from textual import events
from textual.app import App, ComposeResult
from textual.geometry import Region, Size
from textual.theme import Theme
from textual.widgets import Input

from tinytf.errors import AddressError
from tinytf_cli.explore import palette, status
from tinytf_cli.explore.engine import Engine
from tinytf_cli.explore.lines import BurstInput, CommandLine
from tinytf_cli.explore.pane import Pane
from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS
from tinytf_cli.repl.session import Session
from tinytf_cli.terminal import Terminal, too_small
from tinytf_cli.views.blocks import Column, Line, Piece, Span, Table


class Key(NamedTuple):
    """Keys by Textual's names and as shown, with their action on the screen and its description.

    ``toured`` keys can be pressed by a tour.
    """

    keys: str
    shown: str
    action: Callable[[Any], object]
    words: str
    toured: bool = True


class FullScreen(App[int]):
    """A screen of ``panes``, among them its ``status`` and the ``offers`` of its line, drawn again at every size.

    ``keys`` act on it. ``edit`` changes the text; ``line`` is a line of the session, or finds anything. What runs
    behind the screen runs in the ``engine``.
    """

    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    Pane { position: absolute; display: none; }
    Input { position: absolute; height: 1; border: none; padding: 0; display: none; background: $background; }
    #offers { background: $background; }
    """

    def __init__(self, terminal: Terminal, session: Session, keys: Sequence[Key]) -> None:
        super().__init__()
        self.terminal, self.session, self.keys = terminal, session, keys
        self._actions = {name: key.action for key in keys for name in key.keys.split(",")}
        self.engine = Engine(session)
        offers = Pane("offers", terminal)
        self.panes: dict[str, Pane] = {"offers": offers}
        self.edit = BurstInput(id="edit", compact=True, select_on_focus=False)
        self.line = CommandLine(session, offers, self._place_offers, {key.shown: key.words for key in keys})
        self.edit.cursor_blink = self.line.cursor_blink = False  # blinking would load a slow connection
        self._note: Span | None = None
        self._busy_line: tuple[str, float] | None = None
        self._busy_job = 0
        self._size_drawn = Size()
        background = BACKGROUNDS[terminal.theme]
        self.register_theme(
            Theme(
                "tinytf", primary="#5aa2ff", background=background, surface=background, panel=background,
                foreground=FOREGROUNDS[terminal.theme], dark=terminal.theme == "dark",
            )
        )  # fmt: skip
        self.theme = "tinytf"

    def compose(self) -> ComposeResult:
        yield from (pane for name, pane in self.panes.items() if name != "offers")
        yield self.panes["offers"]
        yield self.edit
        yield self.line

    def on_mount(self) -> None:
        self.set_interval(0.5, self._tick)

    def _tick(self) -> None:
        if self._busy_line:
            self.draw_status()

    # Drawing

    def on_resize(self, event: events.Resize) -> None:
        self.call_later(self.draw)  # Textual sets the new size after this handler

    def draw(self) -> None:
        """Draw all panes again, or say that the terminal is too small for them."""
        width, height = self.size
        if lines := too_small(width, height):
            for pane in self.panes.values():
                pane.display = False
            last = self.panes["status"]
            last.display = True
            last.place(Region(0, 0, width, height), "")
            last.show(map(Line, lines))
        else:
            if self._size_drawn != self.size:
                self._size_drawn = self.size
                _place_input(self.edit, Region(0, 0, self.text_width, 1))
                _place_input(self.line, Region(2, height - 1, max(1, status.line_width(self.line.sign, width)), 1))
                if self.line.display:
                    self.line.show_offers()
            self.draw_panes()

    def draw_panes(self) -> None:
        """Draw all panes in a terminal of sufficient size."""
        raise NotImplementedError

    @property
    def text_width(self) -> int:
        """The columns of the line that edits the text."""
        return self.size.width

    def draw_status(self) -> None:
        """Draw the last line: input, running line or note; otherwise the screen's own words."""
        words: list[Piece] = [" "]
        if self.line.display:
            room = status.line_width(self.line.sign, self.size.width)
            words = [Span(self.line.sign, "strong"), " " * (room + 1)]
            words += status.hints(self.line.sign, self.size.width - room - 2)
        elif self._busy_line:
            line, start = self._busy_line
            words += [Span(line, "strong"), f"  {time.perf_counter() - start:.0f} s; ", Span("Ctrl-C stops it", "dim")]
        elif self._note:
            words.append(self._note)
        else:
            words += self.status_words()
        self.panes["status"].show([Line(words, single=True)])

    def status_words(self) -> Sequence[Piece]:
        """The modes and the keys, for the last line."""
        raise NotImplementedError

    def say(self, words: str, role: str = "bad") -> None:
        """Show a note in the last line, until the next key."""
        self._note = Span(words, role)
        self.draw_status()

    def keys_table(self) -> Table:
        """The keys, and what they do."""
        shown = [Span(key.shown, "strong") for key in self.keys]
        return Table([Column("", shown), Column("", [key.words for key in self.keys], shrink=8)], header=False)

    # Keys

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Key) or not self.handle_key(event):
            await super().on_event(event)

    def handle_key(self, event: events.Key) -> bool:
        """Handle a key; returns False for a key that belongs to the input line."""
        if event.key == "ctrl+c":
            self._stop()
        elif isinstance(self.focused, Input):
            if event.key != "escape":
                return False
            self.close_inputs()
            self.draw()
        elif event.key in self._actions:
            self._note = None
            self._actions[event.key](self)
        else:
            return False
        return True

    def _stop(self) -> None:
        """Stop the running line, or leave."""
        if self._busy_line:
            self.engine.interrupt(self._busy_job)
        else:
            self.exit(0)

    def press_shown(self, key: str) -> None:
        """Do what a key does, by the name that is shown."""
        next(known for known in self.keys if known.shown == key).action(self)

    # Lines

    @property
    def layer(self) -> int:
        """The layer whose steps a search finds first."""
        return 0

    def ask(self, sign: str, value: str = "") -> None:
        """Open the input for a line of the session (:) or a search (/), which begins with ``value``."""
        _place_input(self.line, Region(2, self.size.height - 1, status.line_width(sign, self.size.width), 1))
        self.line.begin(sign, self.layer, value)
        self.open_input(self.line)
        self.draw_status()

    def open_input(self, line: Input) -> None:
        """Give the keys to an input line."""
        line.display = True
        self.set_focus(line)  # at once, so that it gets the next keys of a burst
        line.cursor_position = len(line.value)

    def close_inputs(self) -> None:
        """Give the keys back to the screen."""
        self.edit.display = self.line.display = False
        self._place_offers(0, 0)
        self.set_focus(None)

    def _place_offers(self, columns: int, count: int) -> None:
        """Make room for ``count`` offers above the line."""
        pane = self.panes["offers"]
        pane.display = count > 0
        width, height = self.size
        pane.place(Region(1, max(0, height - 1 - count), min(width - 1, columns), count), "")

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self.line and self.line.display:
            self.line.complete()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        value = event.value.strip()
        self.close_inputs()
        if event.input is self.edit:
            self.take_text(event.value)
            self.draw()
        elif value and self.line.sign == ":":
            self.run_line(value)
        elif value:
            self.line.take_offer()
            self._find(self.line.value.strip())
        else:
            self.draw_status()

    def _find(self, word: str) -> None:
        """Go to what a word names, do what a key does, or open a line of the session."""
        try:
            if word.startswith(palette.LINE):
                self.ask(":", f"{word.removeprefix(palette.LINE)} ")
            elif word.startswith(palette.KEY):
                self.press_shown(word.removeprefix(palette.KEY))
            else:
                self.find(word)
        except AddressError as error:
            self.say(error.message)

    def find(self, word: str) -> None:
        """Go to the step, head, token or parameter that a word names. Raises AddressError."""
        raise NotImplementedError

    def take_text(self, text: str) -> None:
        """Show the run of a text that was edited."""
        raise NotImplementedError

    def run_line(self, line: str) -> None:
        """Run a line of the session behind the screen, and show its output."""
        self._busy_line = (line, time.perf_counter())
        self.draw_status()
        self._busy_job = self.engine.submit(
            self.line_work(line, self.line_columns),
            lambda result, error: self.on_screen(lambda: self.line_done(line, result, error)),
        )

    @property
    def line_columns(self) -> int:
        """The columns for the output of a line."""
        return self.size.width

    def line_work(self, line: str, width: int) -> Callable[[], Any]:
        """What runs a line behind the screen."""
        raise NotImplementedError

    def line_done(self, line: str, result: Any, error: Exception | None) -> None:
        """Show what a line gave."""
        raise NotImplementedError

    def on_screen(self, work: Callable[[], None]) -> None:
        """Schedule work on the screen from the engine's thread."""
        self.call_later(work)


def _place_input(line: Input, region: Region) -> None:
    line.styles.offset, line.styles.width = (region.x, region.y), region.width
