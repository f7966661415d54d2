"""The view of neighbours: how similar the words are to each other, and the nearest tokens of each."""

from collections.abc import Iterator

from tinytf.loading import Model
from tinytf.look.neighbours import Neighbours, Space
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Figure, Grid, Heading, Heat, Line
from tinytf_cli.views.parts import folded, note, row_limit
from tinytf_cli.views.steps import as_array


class NeighboursView:
    """The nearest tokens in each table; of many vectors at most ``rows``."""

    def __init__(self, model: Model, found: Neighbours, rows: int | None) -> None:
        self.model, self.found, self.rows = model, found, rows

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The similarity of each pair where there are several, then the neighbours; one vector has bars."""
        found, several = self.found, len(self.found.names) > 1
        yield from banner(self.model, found.about.text if found.about else None)
        for place, space in enumerate(found.spaces):
            if several and (not found.at or not place):  # a stream is the same whatever it is compared with
                pairs = "pair; the same order down and across" if found.at else f"pair of {space.title}"
                yield Heading("similarity", f"cosine of each {pairs}", "embed")
                names = list(found.names)
                yield Heat(as_array(space.similarity), names, names, "signed", digits=2)
            yield from self._several(space, terminal) if several else self._one(space)
        yield Line("")
        width = space.vectors.shape[1]
        yield note(f"1: the same direction; two random vectors of {width:,} dimensions: 0 ± {found.chance:.2g}")
        yield from map(note, found.notes)

    def _one(self, space: Space) -> Iterator[Block]:
        yield Heading(self.found.names[0], f"the nearest {space.title}, by cosine", "embed")
        near = zip(space.ids[0].tolist(), space.cosines[0].tolist(), strict=True)
        yield Bars([Bar(self._token(i), max(0.0, cosine), Figure(cosine, "%.3f"), "embed") for i, cosine in near])

    def _several(self, space: Space, terminal: Terminal) -> Iterator[Block]:
        yield Heading("neighbours", f"the nearest {space.title} of each, by cosine", "embed")
        grid = Grid(
            [[self._token(i) for i in row] for row in space.ids.tolist()],
            as_array(space.cosines),
            self.found.names,
            [f"{rank + 1}." for rank in range(space.ids.shape[1])],
            many="neighbours",
            verb="is",
        )
        yield from folded(grid, self.found.names, row_limit(terminal, self.rows), "vectors", "--rows 0")

    def _token(self, token_id: int) -> str:
        return self.model.tokenizer.shown(token_id)
