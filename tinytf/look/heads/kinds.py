"""The kinds of heads, and from which score on a head is one. Imports no torch."""

from dataclasses import dataclass
from typing import ClassVar

from tinytf.report import Data


@dataclass(frozen=True)
class Label(Data):
    """A kind of head: the ``score`` that identifies it, the ``least`` score needed, its meaning, what
    they do, and the ``formula`` of the score, from the weights w[query, key].

    A label ``of_repeats`` is read on repeated random tokens, the others on text if there is any.
    """

    LESS: ClassVar = ("does", "formula", "of_repeats")

    name: str
    score: str
    least: float
    meaning: str
    does: str
    formula: str
    of_repeats: bool = False


LABELS: tuple[Label, ...] = (
    Label(
        "induction", "induction", 0.5,
        "finds what followed last time, to repeat it", "repeat what followed last time",
        "mean of w[T + i, i + 1], of T random tokens twice in a row", True,
    ),
    Label(
        "duplicate", "duplicate", 0.5, "finds the earlier copy of its own token", "find an earlier copy",
        "mean of w[T + i, i], of T random tokens twice in a row", True,
    ),
    Label(
        "previous", "previous", 0.5, "brings each token the one before it", "look at the token before",
        "mean of w[i, i − 1]", True,
    ),
    Label("self", "self", 0.5, "stays at its own token", "look at the token itself", "mean of w[i, i]"),
    Label(
        "offset", "offset_weight", 0.5,
        "looks a fixed number of tokens back or ahead", "look a fixed number of tokens away",
        "the largest mean of w[i, i + d], over all distances d",
    ),
    Label(
        "first", "first", 0.5,
        "rests on the first token: a sink, where attention goes that is not needed", "rest on the first token",
        "mean of w[i, 0], for i > 0",
    ),
    Label(
        "broad", "entropy_share", 0.9,
        "looks at all tokens nearly alike, and so takes their mean", "look at all tokens nearly alike",
        "mean of entropy(w[i]) / ln(keys that i can see)",
    ),
)  # fmt: skip
"""The most specific label comes first: a head has the first label that it reaches. Half is the majority of its weight:
on the same sequences no other place can have as much."""
