"""Where a tour is, and what it says there."""

from collections.abc import Iterator

from tinytf.trace.trace import Trace
from tinytf_cli.explore.scene import Scene
from tinytf_cli.explore.tour import Stop, Tour, said
from tinytf_cli.views.blocks import Block, Line, Piece, Span

HEIGHT = 5
"""The lines of its pane: a rule, and the sentences."""


class Guide:
    """The present stop of a tour on a model. Its sentences are about ``trace``, the run there; None on the way."""

    def __init__(self, tour: Tour, model: str) -> None:
        self.tour, self.model = tour, model
        self.number = -1
        self.trace: Trace | None = None

    @property
    def stop(self) -> Stop:
        return self.tour.stops[self.number]

    @property
    def title(self) -> list[Piece]:
        return [Span("tour", "strong"), Span(f"   stop {max(self.number, 0) + 1} of {len(self.tour.stops)}", "dim")]

    def blocks(self, scene: Scene) -> Iterator[Block]:
        """The sentences of the stop, unless the user has left its run."""
        if self.trace is None:
            yield Line(Span("  …", "dim"))
        elif self.trace is not scene.trace:
            yield Line(Span("this run is your own; u undoes, > goes on, < goes back", "dim"), indent=2)
        else:
            words: list[Piece] = []
            for _, sentence in self.stop.sentences:
                words += [*said(sentence, scene), " "]
            yield Line(words, indent=2, hanging=0)
