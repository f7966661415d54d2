"""A text coloured by the surprise of each token."""

from collections.abc import Iterator

from tinytf.generate.score import Score
from tinytf.loading import Model
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Piece, Scale, Span, Table
from tinytf_cli.views.continuation import cost_in_words
from tinytf_cli.views.parts import coloured_text, folded, share_column

_MOST_BITS = 16.0
"""The surprise at the end of the colour scale; fixed, so that texts are comparable."""

_ROWS, _TEXT = 20, 120
"""How many tokens a table and a coloured text have."""


def _role(bits: float) -> str:
    return f"unit:{round(255 * min(bits, _MOST_BITS) / _MOST_BITS)}"


class ScoreView:
    """One scored text, drawn."""

    def __init__(self, model: Model, found: Score, whole: bool = False) -> None:
        self.model, self.found, self.whole = model, found, whole

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The perplexity, the text in colours, and one line per token."""
        yield from banner(self.model, self.found.encoding)
        tokens, scored, worst = self.found.encoding.tokens, self.found.tokens, self.found.worst
        yield Line("")
        perplexity: list[Piece] = [Span("perplexity ", "output"), Figure(self.found.perplexity, "%.3f", "strong")]
        mean: list[Piece] = [
            ": ",
            Figure(self.found.bits, "%.3f"),
            " bits per token",
        ]
        token = Span(f"{worst.position} {tokens[worst.position].shown}", "strong")
        yield Line([*perplexity, *mean, "; least expected ", token, ", ", Figure(worst.surprise, "%.2f"), " bits"])
        if self.found.windows > 1:
            said = f"read in {self.found.windows:,} windows of {self.model.config.context:,} tokens, "
            yield Line(Span(f"{said}each token after {self.found.before:,} or more where there are", "dim"))
        if self.found.int8_cost is not None:
            yield Line([Span("int8", "strong"), Span(f" costs {cost_in_words(self.found.int8_cost)}")])
        yield Heading("surprise", f"−log₂ p of {plural(len(scored), 'token')}, in bits; the first is not predicted")
        roles = ["dim", *(_role(one.surprise) for one in scored)]
        yield coloured_text([token.shown for token in tokens], roles, None if self.whole else _TEXT)
        yield Scale("unit", _MOST_BITS, "bits or more")
        yield Line("")
        names = [str(one.position) for one in scored]
        table = Table(
            [
                Column("#", names, "right", said="token"),
                Column("piece", [Span(tokens[one.position].shown, _role(one.surprise)) for one in scored], said=""),
                share_column("p", [one.probability for one in scored], "output", said="probability"),
                Column("bits", [Figure(one.surprise, "%.2f") for one in scored], "right", said="surprise in bits"),
                Column("rank", [f"{one.rank:,}" for one in scored], "right"),
                Column("entropy, bits", [Figure(one.entropy, "%.2f") for one in scored], "right", drop=1),
            ]
        )
        yield from folded(table, names, None if self.whole else _ROWS, "tokens")
