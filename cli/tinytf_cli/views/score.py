"""A text coloured by how little each token was foreseen."""

from collections.abc import Iterator
from typing import Any

from tinytf.generate.compared import QuantizationCost
from tinytf.generate.score import Score
from tinytf.loading import Model
from tinytf.text.tokenizer import Encoding
from tinytf_cli.numbers import number
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.banner import banner, model_data, text_data
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.int8 import cost_data, cost_in_words

_MOST_BITS = 16.0
"""The surprise at the end of the colour scale; fixed, so that texts can be compared."""


def _role(bits: float) -> str:
    return f"unit:{round(255 * min(bits, _MOST_BITS) / _MOST_BITS)}"


class ScoreView:
    """One scored text in every form."""

    def __init__(
        self, model: Model, encoding: Encoding, score: Score, int8_cost: QuantizationCost | None = None
    ) -> None:
        self.model, self.encoding, self.score, self.int8_cost = model, encoding, score, int8_cost

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The text in colours, a line for each token, and the perplexity."""
        yield from banner(self.model, self.encoding)
        tokens, scored = self.encoding.tokens, self.score.tokens
        yield Heading("surprise", f"0 to {_MOST_BITS:g} bits, dark to bright; the first token is not foreseen")
        coloured = [Span(tokens[one.position].shown, _role(one.surprise)) for one in scored]
        yield Line([Span(tokens[0].shown, "dim"), *coloured])
        yield Line("")
        yield Table(
            [
                Column("#", [str(one.position) for one in scored], "right", said="token"),
                Column("piece", coloured, said=""),
                Column("log p", [number(one.log_probability, "%.3f") for one in scored], "right"),
                Column("rank", [f"{one.rank:,}" for one in scored], "right"),
                Column("surprise", [f"{one.surprise:.2f} bits" for one in scored], "right"),
                Column("entropy", [f"{one.entropy:.2f} bits" for one in scored], "right", drop=1),
            ]
        )
        yield Line("")
        bits = sum(one.surprise for one in scored)
        yield Line(
            [
                Span("perplexity", "strong"),
                Span(f" {self.score.perplexity:,.3f} a token · loss {self.score.loss:.4f} nats a token · "),
                Span(f"{bits:,.1f} bits in {len(scored)} token{'' if len(scored) == 1 else 's'}"),
            ]
        )

        if self.int8_cost is not None:
            yield Line([Span("int8", "strong"), Span(f" costs {cost_in_words(self.int8_cost)}")])

    def data(self) -> dict[str, Any]:
        """The score as one JSON object."""
        int8 = {} if self.int8_cost is None else {"int8_cost": cost_data(self.int8_cost)}
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "score",
            "model": model_data(self.model),
            **text_data(self.encoding),
            "loss": self.score.loss,
            "perplexity": self.score.perplexity,
            **int8,
            "scores": [
                {
                    "index": one.position,
                    "id": one.id,
                    "log_probability": one.log_probability,
                    "rank": one.rank,
                    "surprise_bits": one.surprise,
                    "entropy_bits": one.entropy,
                }
                for one in self.score.tokens
            ],
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        scores = data.pop("scores")
        yield {"type": data.pop("kind"), **data}
        for one in scores:
            yield {"type": "token_score", **one}
