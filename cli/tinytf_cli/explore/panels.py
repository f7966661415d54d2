"""The panes that a line of the session fills: which line asks for what is chosen on the screen."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.text import Text

from tinytf_cli.explore.lists import chosen_tokens
from tinytf_cli.explore.pane import Pane
from tinytf_cli.explore.scene import Look, Scene
from tinytf_cli.repl.session import Outcome
from tinytf_cli.views.blocks import Beside, Block, Heading, Line, Span, led


def _position(look: Look) -> int:
    row, _ = chosen_tokens(look)
    return row if row >= 0 else len(look.scene.trace.tokens) - 1


def _step(look: Look) -> str:
    step, _ = look.place.at(look.scene.trace)
    return f" {look.place.address(look.scene.trace)}" if step.is_tensor else ""


def _block(look: Look) -> str:
    _, layer = look.place.at(look.scene.trace)
    return f"L{layer or 0}H{min(look.place.part, look.scene.trace.config.n_heads - 1)}"


LINES: dict[str, Callable[[Look], str]] = {
    "arithmetic": lambda look: f"explain '{look.place.cell_address(look.scene.trace)}'",
    "lens": lambda look: f"lens --position {_position(look)}",
    "attribution": lambda look: f"attribute --position {_position(look)} --top 8",
    "gradients": lambda look: f"grad{_step(look)}",
    "block": lambda look: f"trace --block {_block(look)}",
    "difference": lambda look: "diff",
}
"""The panes, each with the line of the session that says what it shows of what is looked at."""

USUAL = ("arithmetic", "lens", "attribution")
"""The panes that are there without being asked for, where there is room beside the map."""


class Asked(NamedTuple):
    """What a pane is asked to show: a line about a scene (``Scene`` compares by identity), also of the run before."""

    line: str
    scene: Scene
    against: bool


class Panel(Pane):
    """What a line of the session answered, drawn as wide as the pane is. ``asked`` is what it should show.

    ``noted`` says that the line is one of the session's: it is not where nobody asked for the pane.
    """

    asked: Asked | None = None
    noted = True
    _about: Asked | None = None
    _outcome: Outcome | None = None
    _before: Outcome | None = None
    _look: Look | None = None

    @property
    def answered(self) -> bool:
        """Whether it shows what it is asked to show."""
        return self._about == self.asked

    @property
    def succeeded(self) -> bool:
        """Whether it shows what it is asked to show, and that is an answer."""
        return self.answered and self._outcome is not None and self._outcome.failure is None

    @property
    def leads_to(self) -> str:
        """The cell that the largest term of the explained one comes from; empty where it is unknown."""
        if not self.answered or self._outcome is None or not self._outcome.results:
            return ""
        (explained, *_) = self._outcome.results[0].report.to_dict()["explanations"]
        return next(iter(explained["leads_to"]), "")

    def answer(self, look: Look, outcome: Outcome, before: Outcome | None = None) -> None:
        """Show an answer about what is looked at, beside the same about the run before."""
        verb = self._about.line.split()[:1] if self._about else []
        if self.asked is None or self.asked.line.split()[:1] != verb:
            self.top = 0
        self._look, self._outcome, self._before, self._about = look, outcome, before, self.asked
        self.repaint()

    def repaint(self) -> None:
        """Draw the answer again, as after the pane became another size."""
        title, at, outcome = Span(self._about.line if self._about else "", "strong"), self.top, self._outcome
        if outcome is None:
            self.show([Line(Span("  …", "dim"))], title)
        elif outcome.results or outcome.failure is not None:
            self.show(self._blocks(), title)
        else:
            lines = (Text.from_ansi(line, no_wrap=True, end="") for line in outcome.text.splitlines())
            self.show_lines(([*line.render(self.app.console)] for line in lines), title)
        self.scroll_lines(at)

    def _blocks(self) -> Iterator[Block]:
        assert self._outcome is not None
        now = [*self._answered(self._outcome)]
        if self._before is None:
            yield from now
        else:
            yield Beside([[Heading("this run"), *now], [Heading("the run before"), *self._answered(self._before)]], 50)

    def _answered(self, outcome: Outcome) -> Iterator[Block]:
        """The blocks of an answer, without the lines about the model that stand above them elsewhere."""
        failure = outcome.failure
        if failure is not None:
            yield Line([Span(failure.message, "bad"), Span(f"  {failure.hint}", "dim")], indent=2)
        for result in outcome.results:
            yield from led(result.blocks(self.terminal))[1]
