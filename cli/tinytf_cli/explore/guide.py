"""The guide through a tour: it goes to a stop, presses its keys, and says its sentences below the panes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tinytf.errors import TinytfError
from tinytf.trace.trace import Trace
from tinytf_cli.explore.tour import Tour, said
from tinytf_cli.repl.line import shell_quoted
from tinytf_cli.views.blocks import Block, Line, Piece, Span

if TYPE_CHECKING:
    from tinytf_cli.explore.app import Explorer

HEIGHT = 5
"""The lines of its pane: a rule, and the sentences."""


class Guide:
    """The present stop of a tour. Its sentences are about ``trace``, the run after its keys; None on the way there."""

    def __init__(self, app: "Explorer", tour: Tour) -> None:
        self.app, self.tour = app, tour
        self.number = 0
        self.model = app.session.state.spec.name
        self.trace: Trace | None = None

    @property
    def title(self) -> list[Piece]:
        return [Span("tour", "strong"), Span(f"   stop {self.number + 1} of {len(self.tour.stops)}", "dim")]

    def blocks(self) -> Iterator[Block]:
        """The sentences of the stop, unless the user has left its run."""
        if self.trace is None:
            yield Line(Span("  …", "dim"))
        elif self.trace is not self.app.trace:
            yield Line(Span("this run is your own; u undoes, > goes on, < goes back", "dim"), indent=2)
        else:
            words: list[Piece] = []
            for _, sentence in self.tour.stops[self.number].sentences:
                words += [*said(sentence, self.app.look.scene), " "]
            yield Line(words, indent=2, hanging=0)

    def go(self, by: int) -> None:
        """Go to another stop: back to the tour's own run, without panes, then there."""
        app, number = self.app, self.number + by
        if not 0 <= number < len(self.tour.stops):
            app.say("this is the last stop" if by > 0 else "this is the first stop")
            return
        self.number, self.trace = number, None
        app.look = replace(app.look, comparing=False)
        app.opened.clear()
        app.activate("main", zoomed=False)
        spec = app.session.state.spec
        if spec.name != self.model:
            app.run_line(f"model --quiet {shell_quoted(self.model)}")
        elif spec.without is not None:
            app.run_line("without none")
        if app.trace.encoding.text != self.tour.text:
            app.run_line(f"run --quiet -- {shell_quoted(self.tour.text)}")
        app.after_lines(lambda: self._arrive(number))

    def _arrive(self, number: int) -> None:
        if number != self.number:
            return
        app, stop = self.app, self.tour.stops[number]
        try:
            app.go(app.look.cursor.to(app.trace, app.trace.address(stop.address)))
        except TinytfError as error:
            app.say(error.message)
            return
        for key in stop.keys:
            app.press_shown(key)
        app.after_lines(lambda: self._settle(number))

    def _settle(self, number: int) -> None:
        if number == self.number:
            self.trace = self.app.trace
            self.app.draw()
