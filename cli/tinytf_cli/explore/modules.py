"""The explorer of a model that runs through transformers: its modules, what each returned, and the prediction."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.text import Text
from textual.geometry import Region

from tinytf.errors import AddressError
from tinytf.through.recording import Call
from tinytf.through.traced import ThroughTrace, predicted
from tinytf_cli.explore import status
from tinytf_cli.explore.drawing import place_panes
from tinytf_cli.explore.engine import Superseded
from tinytf_cli.explore.full_screen import FullScreen, Key
from tinytf_cli.explore.pane import Pane
from tinytf_cli.failing import explained
from tinytf_cli.repl.addressing import cell_words
from tinytf_cli.repl.line import shell_quoted
from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Piece, Span, Table
from tinytf_cli.views.parts import note
from tinytf_cli.views.predictions import likely_blocks
from tinytf_cli.views.through import ThroughDisplay, output_blocks, proof_lines

_LEFT, _BELOW = 46, 13
"""The columns of the modules, and the lines of the prediction."""


class ModuleExplorer(FullScreen):
    """The screen of a session whose model runs through transformers.

    ``at`` is the number of the call that is shown, among those of ``calls``; ``token`` the position that predicts;
    ``weights`` shows the attention weights that a call returned in place of its output.
    """

    def __init__(self, session: Session, terminal: Terminal) -> None:
        super().__init__(terminal, session, KEYS)
        self.panes |= {name: Pane(name, terminal) for name in ("text", "steps", "main", "next", "status")}
        self.calls: list[Call] = []
        self.at, self.weights = 0, False
        self._take(session.through_trace)

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

    def on_unmount(self) -> None:
        self.engine.close()

    # Drawing

    @property
    def call(self) -> Call:
        return self.calls[self.at]

    def draw_panes(self) -> None:
        width, height = self.size
        left = min(_LEFT, width // 2)
        below = min(_BELOW, height // 3)
        place_panes(
            {name: pane for name, pane in self.panes.items() if name != "offers"},
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

    def status_words(self) -> Sequence[Piece]:
        return [*status.hints("module", self.size.width - 1)]

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

    def list_keys(self) -> None:
        """List the keys where the numbers were, until the next key that draws them."""
        self.draw()
        self.panes["main"].show([self.keys_table()], [Span("keys", "strong")])

    # Lines

    def edit_text(self) -> None:
        """Open the line that edits the text."""
        self.edit.value = self.trace.encoding.text
        self.open_input(self.edit)
        self.draw_status()

    def take_text(self, text: str) -> None:
        if text.strip():
            self.run_line(f"run --quiet -- {shell_quoted(text)}")
        else:
            self.say("an empty text has nothing to predict from")

    def find(self, word: str) -> None:
        """Go to the module or the token that a word names; of modules that did not run, to the first inside."""
        paths = [call.path for call in self.calls]
        tokens = cell_words(self.session.tokens)
        path = word.removesuffix(".weights") if word in self.trace.outputs else word
        inside = next((number for number, one in enumerate(paths) if f"{one}.".startswith(f"{path}.")), None)
        if inside is not None:
            self.at, self.weights = inside, path != word
        elif word in tokens:
            self.token = tokens.index(word)
        else:
            raise AddressError(f"nothing here is called {word}", "a few letters of it find a module or a token")
        self.draw()

    @property
    def line_columns(self) -> int:
        return self.panes["main"].terminal.width

    def line_work(self, line: str, width: int) -> Callable[[], Outcome]:
        return partial(self.engine.run_at_width, line, width)

    def line_done(self, line: str, result: Any, error: Exception | None) -> None:
        self._busy_line = None
        if not isinstance(result, Outcome):
            self.say(explained(error or Superseded()).message)
            return
        if result.leave:
            self.exit(0)
            return
        if self.session.through is None:
            self.session.execute("undo")
            self._note = Span(f"{line}: this screen is for models that run through transformers", "bad")
        elif result.status == 130:
            self._note = Span("interrupted", "bad")
        elif result.failure is not None:
            words = " · ".join(part for part in (result.failure.message, result.failure.hint) if part)
            self._note = Span(words, "bad")
        if self.session.through_trace is not self.trace:
            self._take(self.session.through_trace)
        self.draw()
        if result.failure is None and result.text and not line.startswith("run "):
            shown = (Text.from_ansi(one, no_wrap=True, end="") for one in result.text.splitlines())
            self.panes["main"].show_lines(([*one.render(self.console)] for one in shown), [Span(line, "strong")])


KEYS = (
    Key("up,k", "↑", lambda app: app.move(-1), "the previous module"),
    Key("down,j", "↓", lambda app: app.move(1), "the next module"),
    Key("left,h", "←", lambda app: app.choose_token(app.token - 1), "predict a token earlier"),
    Key("right,l", "→", lambda app: app.choose_token(app.token + 1), "predict a token later"),
    Key("pageup", "PgUp", lambda app: app.move_layer(-1), "this module, a layer up"),
    Key("pagedown", "PgDn", lambda app: app.move_layer(1), "this module, a layer down"),
    Key("w", "w", ModuleExplorer.toggle_weights, "attention weights, or not"),
    Key("n", "n", ModuleExplorer.next_unproved, "the next unproved module"),
    Key("space", "Space", lambda app: app.panes["main"].scroll_page(), "scroll the numbers"),
    Key("t", "t", ModuleExplorer.edit_text, "edit the text"),
    Key("slash,ctrl+p", "/ Ctrl-P", lambda app: app.ask("/"), "find module, token, key"),
    Key("colon", ":", lambda app: app.ask(":"), "any line of the session"),
    Key("escape", "Esc", ModuleExplorer.draw, "back to the numbers"),
    Key("question_mark,f1", "? F1", ModuleExplorer.list_keys, "list these keys"),
    Key("q", "q", lambda app: app.exit(0), "leave"),
)
"""The keys of this screen."""
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
