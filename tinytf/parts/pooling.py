"""Pooling: from the last hidden states of a text to one vector, as models of sentence embeddings do."""

from dataclasses import dataclass
from typing import Any

from tinytf.errors import ConfigError
from tinytf.parts.feed_forward import ACTIVATION_NAMES
from tinytf.parts.part import POSITIVE, Part, choice, leaf, listed
from tinytf.parts.row import Config, Step

TOKENS = "tokens"
"""No pooling: every token keeps its vector, and is compared with every token of another text (ColBERT)."""
FORMULAS = {
    "mean": "Σ {0}[i] / T",
    "sqrt": "Σ {0}[i] / √T",
    "weighted": "Σ (i + 1)·{0}[i] / Σ (i + 1)",
    "first": "{0}[0]",
    "last": "{0}[T−1]",
    "max": "max {0}[i], in each dimension",
}
"""How the tokens i of a text of T become one vector, by the word of ``pooling``."""
WORDS = {
    "mean": "the mean of the tokens",
    "sqrt": "the sum of the tokens over √T",
    "weighted": "the mean of the tokens, later ones weighted more",
    "first": "the first token",
    "last": "the last token",
    "max": "the maximum over the tokens in each dimension",
    TOKENS: "a vector of each token, for late interaction",
}
UNREAD = "no vector of a text"
"""The first words of the note on a folder whose way to a vector is not implemented."""
_MOST_DENSE = 2
UNIT_EPS = 1e-24
"""Added to the squared length: the vector 0 stays 0, and no other changes (sentence-transformers: length ≥ 1e-12)."""


@dataclass(frozen=True, kw_only=True)
class Pooling(Part):
    """How a text becomes one vector: ``pooling`` over its tokens, dense layers of the widths ``pooled_dense``, each
    followed by ``pooled_activation``, and with ``unit_embedding`` a division by the length.
    """

    kind: str = choice("none", *FORMULAS, TOKENS, flat="pooling", said="pooling of {}", named=WORDS)
    pooled_dense: tuple[int, ...] = leaf((), POSITIVE, said="dense layers {} wide after the pooling")
    pooled_bias: bool = leaf(True, said="the bias of the dense layers after the pooling")
    pooled_activation: str = choice(
        "none",
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
        "tanh",
        said="the activation {} after the pooling",
        named=ACTIVATION_NAMES,
    )
    unit_embedding: bool = leaf(False, said="the division by the length")

    def require(self) -> None:
        object.__setattr__(self, "pooled_dense", tuple(self.pooled_dense))
        if self.kind == "none" and (self.pooled_dense or self.unit_embedding):
            setting = "pooled_dense" if self.pooled_dense else "unit_embedding"
            raise ConfigError(f"{setting} needs a vector of the text, but pooling is 'none'")
        if self.kind == TOKENS and self.pooled_activation != "none":
            raise ConfigError(f"pooled_activation {self.pooled_activation!r} needs pooling to one vector")
        if len(self.pooled_dense) > _MOST_DENSE:
            raise ConfigError(f"{len(self.pooled_dense)} dense layers follow pooling, and at most {_MOST_DENSE} can")

    def words(self, causal: bool) -> dict[str, str]:
        if self.kind == "none":
            return {}
        act = "" if self.pooled_activation == "none" else f" with {ACTIVATION_NAMES[self.pooled_activation]}"
        act = act if self.pooled_bias else f" without a bias{act}"
        dense = [f"a dense layer to {width:,}{act}" for width in self.pooled_dense]
        return {"pooling": listed(WORDS[self.kind], *dense, self.unit_embedding and "scaled to length 1")}


def _pools(c: Config) -> bool:
    return c.pooling not in ("none", TOKENS)


def _dense(count: int) -> Any:
    return lambda c: _pools(c) and len(c.pooled_dense) >= count


def _acts(count: int) -> Any:
    return lambda c: _pools(c) and len(c.pooled_dense) >= count and c.pooled_activation != "none"


def _dense_of_tokens(count: int) -> Any:
    return lambda c: c.pooling == TOKENS and len(c.pooled_dense) >= count


_NO_DENSE = "so many dense layers do not follow pooling in this model"
_NO_TOKENS = "tokens have no vectors of their own for late interaction in this model"
_NO_ACT = "no activation follows pooling in this model"

ROWS: tuple[Step, ...] = (
    Step("pooled", "tokens, pooled", "{pool}", ("d_model",), ("<final>",), "output", False, when=_pools,
         absent="this model has no pooler and no pooling", make=lambda o, c: o.Pool(c.pooling), at="pooling.pooled",
         to_loss=False),
    Step("pooled.dense", "pooled vector, dense", "{0}·W{pooled_bias}", ("d_dense",), ("pooled",), "output", False,
         when=_dense(1), absent=_NO_DENSE, make=lambda o, c: o.Linear(c.pooled_bias), module="pooling.dense",
         to_loss=False),
    Step("pooled.act", "pooled vector, activated", "{pooled_act}({0})", ("d_dense",), ("pooled.dense",), "output",
         False, when=_acts(1), absent=_NO_ACT, make=lambda o, c: o.Activate(c.pooled_activation), at="pooling.act",
         to_loss=False),
    Step("pooled.dense2", "pooled vector, second dense", "{0}·W{pooled_bias}", ("d_vector",), ("<dense>",),
         "output", False, when=_dense(2), absent=_NO_DENSE, make=lambda o, c: o.Linear(c.pooled_bias),
         module="pooling.dense2", to_loss=False),
    Step("pooled.act2", "pooled vector, activated again", "{pooled_act}({0})", ("d_vector",), ("pooled.dense2",),
         "output", False, when=_acts(2), absent=_NO_ACT, make=lambda o, c: o.Activate(c.pooled_activation),
         at="pooling.act2", to_loss=False),
    Step("embedding", "embedding of the text", "{0} / ‖{0}‖", ("d_vector",), ("<vector>",), "output", False,
         when=lambda c: _pools(c) and c.unit_embedding, absent="{no_unit}", make=lambda o, _: o.Unit(UNIT_EPS),
         at="pooling.embedding", to_loss=False),
    Step("pooled.dense", "token vectors, dense", "{0}·W{pooled_bias}", ("token", "d_dense"), ("<final>",), "output",
         False, when=_dense_of_tokens(1), absent=_NO_TOKENS, make=lambda o, c: o.Linear(c.pooled_bias),
         module="pooling.dense", to_loss=False),
    Step("pooled.dense2", "token vectors, second dense", "{0}·W{pooled_bias}", ("token", "d_vector"),
         ("pooled.dense",), "output", False, when=_dense_of_tokens(2), absent=_NO_TOKENS,
         make=lambda o, c: o.Linear(c.pooled_bias), module="pooling.dense2", to_loss=False),
    Step("embedding", "vectors of the tokens", "{0} / ‖{0}‖", ("token", "d_vector"), ("<token vector>",), "output",
         False, when=lambda c: c.pooling == TOKENS and c.unit_embedding, absent=_NO_TOKENS,
         make=lambda o, _: o.Unit(UNIT_EPS), at="pooling.vectors", to_loss=False),
)  # fmt: skip
"""From the last hidden states to the vector of the text; no prediction depends on them."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    vector = _vector(c)
    return {
        "pool": FORMULAS.get(c.pooling, ""),
        "pooled_bias": " + b" if c.pooled_bias else "",
        "pooled_act": ACTIVATION_NAMES.get(c.pooled_activation, ""),
        "no_unit": f"the vector of a text is {vector} in this model, of any length" if _pools(c) else _NO_VECTOR,
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    of_tokens = ("<final>", "pooled.dense", "pooled.dense2")[len(c.pooled_dense)]
    return {"<dense>": (_vector(c, 1),), "<vector>": (_vector(c),), "<token vector>": (of_tokens,)}


_NO_VECTOR = "this model pools no tokens into one vector"


def _vector(c: Config, most: int = _MOST_DENSE) -> str:
    """The name of the vector after at most so many dense layers."""
    count = min(most, len(c.pooled_dense))
    step = "dense" if c.pooled_activation == "none" else "act"
    return f"pooled.{step}{'' if count == 1 else count}" if count else "pooled"
