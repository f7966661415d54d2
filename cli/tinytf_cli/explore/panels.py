"""Panes filled by a line of the session about the present view."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.text import Text

from tinytf_cli.explore.pane import Pane
from tinytf_cli.explore.scene import Look, Scene
from tinytf_cli.repl.session import Outcome
from tinytf_cli.views.blocks import Beside, Block, Heading, Line, Span, led


def _step_argument(look: Look) -> str:
    step, _ = look.cursor.at(look.scene.trace)
    return f" {look.cursor.address(look.scene.trace)}" if step.is_tensor else ""


def _block_argument(look: Look) -> str:
    _, layer = look.cursor.at(look.scene.trace)
    return f"L{layer or 0}H{min(look.cursor.part, look.scene.trace.config.at(layer).n_heads - 1)}"


LINES: dict[str, Callable[[Look], str]] = {
    "arithmetic": lambda look: f"explain '{look.cursor.cell_address(look.scene.trace)}'",
    "lens": lambda look: f"lens --position {look.position}",
    "attribution": lambda look: f"attribute --position {look.position} --top 8",
    "gradients": lambda look: f"grad{_step_argument(look)}",
    "block": lambda look: f"trace --block {_block_argument(look)}",
    "difference": lambda look: "diff",
    "what": lambda look: f"help step {look.cursor.cell_address(look.scene.trace)}",
}
"""The panes by name, each with a function that gives its line for a view."""

USUAL = ("arithmetic", "lens", "attribution")
"""The panes that open by themselves if there is room beside the map."""


class Request(NamedTuple):
    """What a pane should show: a line about a scene (compared by identity), and whether also about the run before."""

    line: str
    scene: Scene
    comparing: bool


class Panel(Pane):
    """A pane with the answer to a line of the session, as wide as the pane. ``request`` is what it should show.

    ``noted`` says whether the line is in the session's log; the line of a pane that opened by itself is not.
    """

    request: Request | None = None
    noted = True
    _shown: Request | None = None
    _outcome: Outcome | None = None
    _before: Outcome | None = None
    _look: Look | None = None

    @property
    def answered(self) -> bool:
        """Whether the pane shows what it should."""
        return self._shown == self.request

    @property
    def succeeded(self) -> bool:
        """Whether the pane shows what it should, and the line did not fail."""
        return self.answered and self._outcome is not None and self._outcome.failure is None

    @property
    def parameter(self) -> str:
        """The address of the parameter that the pane shows; empty if it shows something else."""
        shown = self._outcome.results[:1] if self.answered and self._outcome is not None else ()
        return next((one["address"] for result in shown for one in result.report.to_dict().get("parameters", ())), "")

    @property
    def leads_to(self) -> str:
        """The cell that the largest term of the explained cell comes from; empty if unknown."""
        if not self.answered or self._outcome is None or not self._outcome.results:
            return ""
        (explained, *_) = self._outcome.results[0].report.to_dict()["explanations"]
        return next(iter(explained["leads_to"]), "")

    def answer(self, look: Look, outcome: Outcome, previous: Outcome | None = None) -> None:
        """Show an answer about the view, beside the answer about the run before, if given."""
        verb = self._shown.line.split()[:1] if self._shown else []
        if self.request is None or self.request.line.split()[:1] != verb:
            self.top = 0
        self._look, self._outcome, self._before, self._shown = look, outcome, previous, self.request
        self.repaint()

    def repaint(self) -> None:
        """Draw the answer again, for instance after a resize."""
        title, top, outcome = Span(self._shown.line if self._shown else "", "strong"), self.top, self._outcome
        if outcome is None:
            self.show([Line(Span("  …", "dim"))], title)
        elif outcome.results or outcome.failure is not None:
            self.show(self._blocks(), title)
        else:
            lines = (Text.from_ansi(line, no_wrap=True, end="") for line in outcome.text.splitlines())
            self.show_lines(([*line.render(self.app.console)] for line in lines), title)
        self.scroll_lines(top)

    def _blocks(self) -> Iterator[Block]:
        assert self._outcome is not None
        current = [*self._answer_blocks(self._outcome)]
        if self._before is None:
            yield from current
        else:
            yield Beside(
                [[Heading("this run"), *current], [Heading("the run before"), *self._answer_blocks(self._before)]], 50
            )

    def _answer_blocks(self, outcome: Outcome) -> Iterator[Block]:
        """The blocks of an answer, without the leading lines about the model."""
        failure = outcome.failure
        if failure is not None:
            yield Line([Span(failure.message, "bad"), Span(f"  {failure.hint}", "dim")], indent=2)
        for result in outcome.results:
            sentence, _, rest = led(result.blocks(self.terminal))
            yield from (*sentence, *rest)
