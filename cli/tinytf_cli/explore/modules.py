"""The explorer of a model that runs through transformers: its modules, what each returned, and the prediction."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.geometry import Region
from textual.widgets import Input

from tinytf.through.recording import Call
from tinytf.through.traced import ThroughTrace, predicted
from tinytf_cli.explore import palette
from tinytf_cli.explore.app import Key
from tinytf_cli.explore.drawing import place_panes
from tinytf_cli.explore.full_screen import FullScreen
from tinytf_cli.explore.lines import BurstInput, CommandLine
from tinytf_cli.explore.pane import Pane
from tinytf_cli.repl.addressing import Offer, tokens
from tinytf_cli.repl.line import shell_quoted
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.streams import Capture
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Piece, Span, Table
from tinytf_cli.views.parts import note
from tinytf_cli.views.predictions import likely_blocks
from tinytf_cli.views.through import ThroughDisplay, output_blocks, proof_lines

_LEFT, _BELOW = 46, 13
"""The columns of the modules, and the lines of the prediction."""
_HINTS = (
    "↑↓ module  ←→ token  PgUp PgDn layer  Ctrl-P find  w weights  n next unproved  t text  : line  ? keys  q leave"
)


class ModuleExplorer(FullScreen):
    """The screen of a session whose model runs through transformers.

    ``at`` is the number of the call that is shown, among those of ``calls``; ``token`` the position that predicts;
    ``weights`` shows the attention weights that a call returned in place of its output.
    """

    def __init__(self, session: Session, terminal: Terminal) -> None:
        super().__init__(terminal)
        self.session = session
        self._streams = session.streams.stdout, session.streams.stderr
        session.streams.stdout, session.streams.stderr = Capture(), None
        self.panes = {name: Pane(name, terminal) for name in ("text", "steps", "main", "next", "status", "offers")}
        self.edit, self.line = (
            BurstInput(id="edit", compact=True),
            CommandLine(session, self.panes["offers"], self._offer, self._everything),
        )
        self.calls: list[Call] = []
        self.at, self.weights, self.said = 0, False, ""
        self._take(session.through_trace)
        self._actions = {name: key.action for key in KEYS for name in key.keys.split(",")}

    def _take(self, trace: ThroughTrace) -> None:
        """Show another trace, at the same module if it has it."""
        assert self.session.through is not None
        path = self.calls[self.at].path if self.calls else ""
        paths = [name for name, _ in self.session.through.transformer.named_modules()]
        self.trace = trace
        self.calls = sorted(
            (call for call in trace.recording.calls if call.path), key=lambda call: paths.index(call.name)
        )
        self.layers = list(dict.fromkeys(call.name for call in self.calls if trace.role(call) == "layer"))
        self.at = next((number for number, call in enumerate(self.calls) if call.path == path), 0)
        self.token = len(trace.encoding.tokens) - 1

    def compose(self) -> ComposeResult:
        yield from self.panes.values()
        yield self.edit
        yield self.line

    def on_unmount(self) -> None:
        self.session.streams.stdout, self.session.streams.stderr = self._streams

    # Drawing

    @property
    def call(self) -> Call:
        return self.calls[self.at]

    def draw_panes(self) -> None:
        width, height = self.size
        left = min(_LEFT, width // 2)
        below = min(_BELOW, height // 3)
        place_panes(
            self.panes,
            {
                "text": Region(0, 0, width, 1),
                "steps": Region(0, 1, left, height - 2),
                "main": Region(left, 1, width - left, height - 2 - below),
                "next": Region(left, height - 1 - below, width - left, below),
                "status": Region(0, height - 1, width, 1),
            },
            "",
        )
        tokens: list[Piece] = []
        for position, token in enumerate(self.trace.encoding.tokens):
            chosen = position == self.token
            tokens += [Span("│" if position else "", "dim"), Span(f"[{token.shown}]", "q") if chosen else token.shown]
        self.panes["text"].show([Line(tokens, single=True)])
        lines, table = self._outline()
        at = lines.index(self.at)
        self.panes["steps"].show([table], [Span(self.session.state.spec.name, "strong")], keep=(at, at))
        self.panes["main"].show(self._numbers(), [Span(self.call.path or "(the model)", "strong")])
        self.panes["next"].show(self._prediction(), [Span("prediction", "output")])
        self.draw_status()

    def draw_status(self) -> None:
        """Draw the last line: what went wrong last, or the keys."""
        if not self.line.display:
            self.panes["status"].show(
                [Line(Span(f" {self.said or _HINTS}", "bad" if self.said else "dim"), single=True)]
            )
        self.said = ""

    def _outline(self) -> tuple[list[int], Table]:
        """The number of the call in each line, and the table: the layer of the present call is open."""
        here = self._layer(self.call)
        marks: list[Cell] = []
        names: list[Cell] = []
        proofs: list[Cell] = []
        lines = []
        for number, call in enumerate(self.calls):
            layer = self._layer(call)
            if layer and layer != here and call.path != layer:
                continue
            lines.append(number)
            inside = bool(layer) and call.path != layer
            name = call.path.removeprefix(f"{layer}.") if inside else call.path or "(the model)"
            marks.append(Span("▶" if number == self.at else " ", "strong"))
            names.append(
                [
                    Span("  " * inside + name, "strong" if call.path == layer else ""),
                    Span(f" {self.trace.role(call)}", "dim"),
                ]
            )
            proofs.append(_proof(call))
        return lines, Table([Column("", marks), Column("", names, shrink=12), Column("", proofs)], header=False)

    def _layer(self, call: Call) -> str:
        """The path of the layer that a call is in; empty outside the layers."""
        return next((path for path in self.layers if f"{call.name}.".startswith(f"{path}.")), "")

    def _numbers(self) -> Iterator[Block]:
        """What the present call returned, and how it was computed again."""
        call, terminal = self.call, self.panes["main"].terminal
        yield Line([Span(type(call.module).__name__, "dim"), Span(f"  {_words(call)}", "")], indent=2)
        if call.weights is not None:
            yield note("w shows its attention weights" if not self.weights else "w shows its output")
        name = f"{call.path}.weights" if self.weights and call.weights is not None else call.path
        shown = replace(self.trace, at=((name, self.trace.outputs[name]),))
        yield from output_blocks(shown, terminal, ThroughDisplay(dims=max(4, (terminal.width - 16) // 8), rows=0))

    def _prediction(self) -> Iterator[Block]:
        """What the model predicts after the chosen token, and the proof of the whole."""
        assert self.session.through is not None
        seen = predicted(self.session.through, self.trace.encoding, self.trace.recording.logits, 6, self.token)
        if seen is None:
            yield note("no prediction here: the model has no head of tokens, or reads later tokens too")
        else:
            yield Heading(f"after {seen.shown}" if seen.what == "next" else seen.title, "", "output")
            yield from likely_blocks([(one.shown, one) for one in seen.top], digits=True)
        yield from proof_lines(self.trace.check)

    # Keys

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not isinstance(self.focused, Input) and event.key in self._actions:
            self._actions[event.key](self)
        elif isinstance(event, events.Key) and isinstance(self.focused, Input) and event.key in ("escape", "ctrl+c"):
            self._close_inputs()
        else:
            await super().on_event(event)

    def move(self, by: int) -> None:
        """Go to the call in the next or the previous line."""
        lines, _ = self._outline()
        self.at = lines[max(0, min(len(lines) - 1, lines.index(self.at) + by))]
        self.draw()

    def move_layer(self, by: int) -> None:
        """Go to the same module of the next or the previous layer."""
        layers, here = self.layers, self._layer(self.call)
        number = layers.index(here) + by if here else (0 if by > 0 else len(layers) - 1)
        if layers and 0 <= number < len(layers):
            path = f"{layers[number]}{self.call.path.removeprefix(here)}" if here else layers[number]
            self.at = next((n for n, call in enumerate(self.calls) if call.path == path), self.at)
            self.draw()

    def choose_token(self, position: int) -> None:
        """Predict after another token."""
        self.token = max(0, min(len(self.trace.encoding.tokens) - 1, position))
        self.draw()

    def toggle_weights(self) -> None:
        """Show the attention weights of a call, or its output again."""
        self.weights = not self.weights
        self.draw()

    def next_unproved(self) -> None:
        """Go to the next call whose output is new and was not computed again."""
        later = [*range(self.at + 1, len(self.calls)), *range(self.at + 1)]
        unproved = [n for n in later if not self.calls[n].passes and _proof(self.calls[n]) != _PROVED]
        self.at = unproved[0] if unproved else self.at
        self.draw()

    # Lines

    def ask(self, sign: str) -> None:
        """Open the line of the session (:), a search (/), or the line that edits the text (t)."""
        given = self.edit if sign == "t" else self.line
        y = 0 if sign == "t" else self.size.height - 1
        given.styles.offset, given.styles.width = (0, y), self.size.width
        if given is self.line:
            self.line.begin(sign, 0)
        else:
            self.edit.value = self.trace.encoding.text
        given.display = True
        self.set_focus(given)
        given.cursor_position = len(given.value)

    def _offer(self, columns: int, count: int) -> None:
        pane, (width, height) = self.panes["offers"], self.size
        pane.display = count > 0
        pane.place(Region(1, max(0, height - 1 - count), min(width - 1, columns), count), "")

    def _close_inputs(self) -> None:
        self.edit.display = self.line.display = False
        self._offer(0, 0)
        self.set_focus(None)
        self.draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self.line and self.line.display:
            self.line.complete()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        is_search, is_text = event.input is self.line and self.line.sign == "/", event.input is self.edit
        if is_search and event.value.strip():
            self.line.take_offer()
        value = event.input.value.strip()
        self._close_inputs()
        if is_search:
            self._find(value)
        elif value:
            await self.run_line(f"run --quiet -- {shell_quoted(value)}" if is_text else value)

    def _everything(self, layer: int) -> Iterator[Offer]:
        """What a search finds beside tokens: modules, keys, and lines of the session."""
        for call in self.calls:
            yield Offer(call.path, f"{self.trace.role(call)} {type(call.module).__name__}".strip())
        yield from palette.everything(self.session, layer, {key.shown: key.words for key in KEYS})

    def _find(self, word: str) -> None:
        """Go to the module or token that a word names, do what a key does, or open a line of the session."""
        paths, names = [call.path for call in self.calls], [token.word for token in tokens(self.session, "")]
        if word.startswith(palette.LINE):
            self.ask(":")
            self.line.value = f"{word.removeprefix(palette.LINE)} "
            self.line.cursor_position = len(self.line.value)
        elif word.startswith(palette.KEY):
            next(key for key in KEYS if key.shown == word.removeprefix(palette.KEY)).action(self)
        elif word in names:
            self.choose_token(names.index(word))
        elif word in paths:
            self.at = paths.index(word)
            self.draw()
        elif word:
            self.said = f"there is no module {word!r}"
            self.draw()

    def list_keys(self) -> None:
        """Show what each key does, in place of the numbers."""
        columns = [Column("", [Span(key.shown, "strong") for key in KEYS]), Column("", [key.words for key in KEYS])]
        self.panes["main"].show([Table(columns, header=False)], [Span("keys", "strong")])

    async def run_line(self, line: str) -> None:
        """Run a line of the session, show its output, and the run that it made."""
        settings = self.session.settings
        self.session.change(settings=replace(settings, width=max(20, self.panes["main"].terminal.width)))
        outcome = await asyncio.to_thread(self.session.execute, line)
        self.session.change(settings=replace(self.session.settings, width=settings.width))
        if outcome.leave:
            self.exit(0)
            return
        if self.session.through is None:
            self.session.execute("undo")
            self.said = f"{line}: this screen is for models that run through transformers"
        elif outcome.failure is not None:
            self.said = " · ".join(part for part in (outcome.failure.message, outcome.failure.hint) if part)
        if self.session.through_trace is not self.trace:
            self._take(self.session.through_trace)
        self.draw()
        if outcome.failure is None and outcome.text and not line.startswith("run "):
            shown = (Text.from_ansi(one, no_wrap=True, end="") for one in outcome.text.splitlines())
            self.panes["main"].show_lines(([*one.render(self.console)] for one in shown), [Span(line, "strong")])


KEYS = (
    Key("up,k", "↑", lambda app: app.move(-1), "the previous module"),
    Key("down,j", "↓", lambda app: app.move(1), "the next module"),
    Key("pageup", "PgUp", lambda app: app.move_layer(-1), "the same module, a layer up"),
    Key("pagedown", "PgDn", lambda app: app.move_layer(1), "the same module, a layer down"),
    Key("left,h", "←", lambda app: app.choose_token(app.token - 1), "predict after the token before"),
    Key("right,l", "→", lambda app: app.choose_token(app.token + 1), "predict after the next token"),
    Key("slash,ctrl+p", "/ Ctrl-P", lambda app: app.ask("/"), "find a module, token, key or line"),
    Key("w", "w", lambda app: app.toggle_weights(), "the attention weights of a module, or its output"),
    Key("n", "n", lambda app: app.next_unproved(), "the next module that was not computed again"),
    Key("space", "Space", lambda app: app.panes["main"].scroll_page(), "scroll the numbers by a page"),
    Key("t", "t", lambda app: app.ask("t"), "edit the text"),
    Key("colon", ":", lambda app: app.ask(":"), "any line of the session"),
    Key("question_mark,f1", "?", lambda app: app.list_keys(), "list these keys"),
    Key("escape", "Esc", lambda app: app.draw(), "back to the numbers"),
    Key("q,ctrl+c", "q", lambda app: app.exit(0), "leave"),
)

_PROVED = Span("✓", "good")


def _proof(call: Call) -> Cell:
    """Whether a call's output was computed again; empty for one that only passes on a result."""
    if call.passes:
        return ""
    return _PROVED if call.proof is not None and call.proof.holds else Span("–", "dim")


def _words(call: Call) -> str:
    """How a call's output was computed again."""
    if call.passes:
        return f"passes on {call.passes}"
    if call.proof is None:
        return "not computed again: code of its own"
    return f"{call.proof.formula}, off by {call.proof.off:.1e}" if call.proof.holds else f"not {call.proof.formula}"
