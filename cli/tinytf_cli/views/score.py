"""A text coloured by the surprise of each token."""

from collections.abc import Iterator

from tinytf.generate.score import Score
from tinytf.loading import Model
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Scale, Span, Table
from tinytf_cli.views.continuation import cost_in_words

_MOST_BITS = 16.0
"""The surprise at the end of the colour scale; fixed, so that texts are comparable."""


def _role(bits: float) -> str:
    return f"unit:{round(255 * min(bits, _MOST_BITS) / _MOST_BITS)}"


class ScoreView:
    """One scored text, drawn."""

    def __init__(self, model: Model, found: Score) -> None:
        self.model, self.found = model, found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The text in colours, one line per token, and the perplexity."""
        yield from banner(self.model, self.found.encoding)
        tokens, scored = self.found.encoding.tokens, self.found.tokens
        yield Heading("surprise", "−log₂ p of each token, in bits; the first is not predicted")
        coloured = [Span(tokens[one.position].shown, _role(one.surprise)) for one in scored]
        yield Line([Span(tokens[0].shown, "dim"), *coloured])
        yield Scale("unit", _MOST_BITS, "bits")
        yield Line("")
        yield Table(
            [
                Column("#", [str(one.position) for one in scored], "right", said="token"),
                Column("piece", coloured, said=""),
                Column("log p", [Figure(one.log_probability, "%.3f") for one in scored], "right"),
                Column("rank", [f"{one.rank:,}" for one in scored], "right"),
                Column("surprise", [f"{one.surprise:.2f} bits" for one in scored], "right"),
                Column("entropy", [f"{one.entropy:.2f} bits" for one in scored], "right", drop=1),
            ]
        )
        yield Line("")
        bits = sum(one.surprise for one in scored)
        said = f" {self.found.perplexity:,.3f} per token · loss {self.found.loss:.4f} nats per token · "
        yield Line([Span("perplexity", "strong"), Span(f"{said}{bits:,.1f} bits in {plural(len(scored), 'token')}")])
        if self.found.int8_cost is not None:
            yield Line([Span("int8", "strong"), Span(f" costs {cost_in_words(self.found.int8_cost)}")])
