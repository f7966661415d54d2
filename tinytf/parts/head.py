"""What reads the last hidden states."""

from dataclasses import dataclass

from tinytf.errors import ConfigError
from tinytf.parts.part import ABOVE_ZERO, NOT_NEGATIVE, Part, choice, leaf, listed

CLASS_HEADS = ("sequence", "token", "question")
"""Heads whose logits are of the classes in ``labels``: of the whole text, of each token, or two of each token."""

_KINDS = {
    "lm": "next token", "mlm": "masked token", "none": "none",
    "sequence": "classes of the text", "token": "classes of each token", "question": "where an answer lies",
}  # fmt: skip
_DECIDES = {"one": "", "several": "each by itself", "number": "a number"}


@dataclass(frozen=True, kw_only=True)
class Head(Part):
    """``lm`` predicts the next token, ``mlm`` fills masks (BERT's transform with ``head_activation``, norm, decoder).

    Logits are multiplied by ``logit_scale`` and softly capped by ``logit_cap``. A ``sequence``, ``token`` or
    ``question`` head has a logit for each of ``labels``, read at the ``first`` or ``last`` token or at ``every`` one
    (``head_reads``), after a ``head_dense`` layer with its activation and a ``head_norm`` where there are such. It
    ``decides`` for ``one`` class (softmax), for ``several`` (sigmoid), or gives a ``number``. A ``pooler`` makes one
    vector of the first token (BERT).
    """

    kind: str = choice("lm", "mlm", *CLASS_HEADS, "none", flat="head")
    tied_head: bool = leaf(True)
    head_bias: bool = leaf(False)
    head_activation: str = choice("relu", "gelu", "gelu_tanh", "silu", "tanh", default="gelu")
    head_dense_bias: bool = leaf(True)
    labels: tuple[str, ...] = leaf(())
    head_reads: str = choice("every", "first", "last")
    head_dense: bool = leaf(False)
    head_norm: bool = leaf(False)
    decides: str = choice("one", "several", "number")
    logit_scale: float = leaf(1.0, ABOVE_ZERO)
    logit_cap: float = leaf(0.0, NOT_NEGATIVE)
    pooler: bool = leaf(False)

    def require(self) -> None:
        if self.logit_scale != 1 and self.logit_cap:
            raise ConfigError(f"logit_scale {self.logit_scale:g} and logit_cap {self.logit_cap:g} exclude each other")
        if self.head_bias and self.kind == "none":
            raise ConfigError("head_bias is true, and head is 'none'")
        self._require_classes()

    def _require_classes(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        if self.kind not in CLASS_HEADS:
            for name in ("labels", "head_dense", "head_norm"):
                if getattr(self, name):
                    raise ConfigError(f"{name} needs a head of classes, and head is {self.kind!r}")
            return
        if not self.labels:
            raise ConfigError(f"head {self.kind!r} has no labels")
        if self.tied_head:
            raise ConfigError(f"head {self.kind!r} is no token table, and tied_head is true")
        if self.kind == "question" and len(self.labels) != 2:
            raise ConfigError(f"a question head has the labels start and end, and there are {len(self.labels)}")
        if (self.head_reads == "every") == (self.kind == "sequence"):
            raise ConfigError(
                f"head {self.kind!r} does not read {self.head_reads!r}", "a sequence head reads one token"
            )

    @property
    def labels_in_words(self) -> str:
        """The first few labels."""
        named = ", ".join(self.labels[:4])
        return f"{named} … {len(self.labels):,} in all" if len(self.labels) > 4 else named

    def words(self, causal: bool) -> dict[str, str]:
        kind = "mlm" if self.kind == "lm" and not causal else self.kind
        dense = f"a dense layer with {self.head_activation}" + ("" if self.head_dense_bias else " and no bias")
        return {
            "head": listed(
                _KINDS[kind] + (f": {self.labels_in_words}" if self.labels else ""),
                _DECIDES[self.decides],
                bool(self.labels) and self.head_reads != "every" and f"read at the {self.head_reads} token",
                (self.head_dense or self.kind == "mlm") and dense,
                self.head_norm and "a norm",
                self.tied_head and self.kind != "none" and "tied to the token embeddings",
                self.head_bias and "a bias",
                self.logit_scale != 1 and f"logits times {self.logit_scale:g}",
                bool(self.logit_cap) and f"logits softly capped at {self.logit_cap:g}",
                self.pooler and "a pooler",
            )
        }

    def fit(self, d_model: int, causal: bool) -> None:
        if self.kind == "mlm" and causal:
            raise ConfigError("head 'mlm' fills masks from both sides, and causal is true", "set causal to false")
        if self.pooler and causal:
            raise ConfigError("a pooler reads the first token, which in a causal model has seen nothing else")
