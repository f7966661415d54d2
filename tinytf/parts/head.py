"""The head, which reads the last hidden states."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.embedding import make_widening
from tinytf.parts.feed_forward import ACTIVATION_NAMES
from tinytf.parts.norm import make_norm
from tinytf.parts.part import ABOVE_ZERO, COUNT, NOT_NEGATIVE, Part, choice, leaf, listed
from tinytf.parts.row import EMBEDDED, HEAD, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType

CLASS_HEADS = ("sequence", "token", "question")
"""Heads with a logit for each class in ``labels``: of the text, of each token, or start and end at each token."""

_KINDS = {
    "lm": "next token", "mlm": "masked token", "none": "none",
    "sequence": "classes of the text", "token": "classes of each token", "question": "where an answer lies",
}  # fmt: skip
_READS = {"first": "read at the first token", "last": "read at the last token", "mean": "reads the mean of the tokens"}
_DECIDES = {"one": "", "several": "each by itself", "number": "a number"}


@dataclass(frozen=True, kw_only=True)
class Head(Part):
    """``lm`` predicts the next token, ``mlm`` fills masks (BERT's transform with ``head_activation``, norm, decoder).

    The transform of an ``mlm`` head is ``d_unembed`` wide (0: as token embeddings), if it is not tied to them. Logits
    are multiplied by ``logit_scale`` and softly capped at ``logit_cap``. A ``sequence``, ``token`` or ``question`` head
    has a logit for each of ``labels``, at the token that it reads (``head_reads``: the ``first``, the ``last`` or
    ``every`` one, or the ``mean`` of all). Before it, or an ``lm`` head, may come a ``head_dense`` layer with its
    activation, and a ``head_norm``. It ``decides`` for ``one`` class (softmax), for ``several`` (sigmoid), or gives a
    ``number``. A ``pooler`` maps the first token to one vector (BERT).
    """

    kind: str = choice("lm", "mlm", *CLASS_HEADS, "none", flat="head")
    tied_head: bool = leaf(True, said="the tie of the head to the embeddings")
    head_bias: bool = leaf(False, said="the bias of the head")
    head_activation: str = choice(
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
        "tanh",
        default="gelu",
        said="the activation {} of the head",
        named=ACTIVATION_NAMES,
    )
    head_dense_bias: bool = leaf(True, said="the bias of the head's dense layer")
    d_unembed: int = leaf(0, COUNT, said="a head {} wide", zero="d_model")
    labels: tuple[str, ...] = leaf((), said="labels {}")
    head_reads: str = choice(
        "every",
        "first",
        "last",
        "mean",
        said="a head that reads {}",
        named={
            "every": "every token",
            "first": "the first token",
            "last": "the last token",
            "mean": "the mean of the tokens",
        },
    )
    head_dense: bool = leaf(False, said="the head's dense layer")
    head_norm: bool = leaf(False, said="the head's norm")
    decides: str = choice(
        "one",
        "several",
        "number",
        said="a head for {}",
        named={"one": "one label", "several": "several labels", "number": "a number"},
    )
    logit_scale: float = leaf(1.0, ABOVE_ZERO, said="logits times {}")
    logit_cap: float = leaf(0.0, NOT_NEGATIVE, usual=(30.0,), said="a soft cap of {} of the logits")
    pooler: bool = leaf(False, said="the pooler")

    def idle(self) -> Collection[str]:
        return () if self.head_dense or self.kind == "mlm" else ("head_activation", "head_dense_bias")

    def require(self) -> None:
        if self.logit_scale != 1 and self.logit_cap:
            raise ConfigError(f"logit_scale {self.logit_scale:g} and logit_cap {self.logit_cap:g} exclude each other")
        if self.head_bias and self.kind == "none":
            raise ConfigError("head_bias is true, but head is 'none'")
        if self.d_unembed and (self.kind != "mlm" or self.tied_head):
            raise ConfigError(f"d_unembed {self.d_unembed} needs an untied head 'mlm'")
        self._require_classes()

    def _require_classes(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        if self.kind not in CLASS_HEADS:
            for name in ("labels",) if self.kind == "lm" else ("labels", "head_dense", "head_norm"):
                if getattr(self, name):
                    raise ConfigError(f"{name} needs a head of classes, but head is {self.kind!r}")
            return
        if not self.labels:
            raise ConfigError(f"head {self.kind!r} has no labels")
        if self.tied_head:
            raise ConfigError(f"head {self.kind!r} cannot be tied to the token embeddings, but tied_head is true")
        if self.kind == "question" and len(self.labels) != 2:
            raise ConfigError(f"a question head has two labels, start and end, but there are {len(self.labels)}")
        if (self.head_reads == "every") == (self.kind == "sequence"):
            raise ConfigError(
                f"head {self.kind!r} does not read {self.head_reads!r}",
                "a sequence head reads one token, or the mean of all",
            )

    @property
    def labels_in_words(self) -> str:
        """The first few labels."""
        first_labels = ", ".join(self.labels[:4])
        return f"{first_labels} … {len(self.labels):,} in all" if len(self.labels) > 4 else first_labels

    def words(self, causal: bool) -> dict[str, str]:
        kind = "mlm" if self.kind == "lm" and not causal else self.kind
        dense = f"a dense layer with {self.head_activation}" + ("" if self.head_dense_bias else " and no bias")
        return {
            "head": listed(
                _KINDS[kind] + (f": {self.labels_in_words}" if self.labels else ""),
                _DECIDES[self.decides],
                bool(self.labels) and _READS.get(self.head_reads, ""),
                (self.head_dense or self.kind == "mlm") and dense,
                bool(self.d_unembed) and f"{self.d_unembed} wide",
                self.head_norm and "a norm",
                self.tied_head and self.kind != "none" and "tied to the token embeddings",
                self.head_bias and "a bias",
                self.logit_scale != 1 and f"logits times {self.logit_scale:g}",
                bool(self.logit_cap) and f"logits softly capped at {self.logit_cap:g}",
                self.pooler and "a pooler",
            )
        }

    @property
    def row_read(self) -> int | None:
        """The row of the logits that answers: 0 or −1; None for all. The ``mean`` of the tokens is the same in all."""
        return {"first": 0, "mean": 0, "last": -1}.get(self.head_reads)

    def fit(self, d_model: int, causal: bool) -> None:
        if self.head_reads == "mean" and causal:
            raise ConfigError("a head reads the mean of the tokens only in an encoder, but causal is true")
        if self.kind == "mlm" and causal:
            raise ConfigError("head 'mlm' fills masks from both sides, but causal is true", "set causal to false")
        if self.pooler and causal:
            raise ConfigError("a pooler reads the first token, which in a causal model sees only itself")


def _has_head(c: Config) -> bool:
    return c.head.kind != "none"


def _capped_head(c: Config) -> bool:
    return _has_head(c) and c.logit_cap > 0


def _scaled_head(c: Config) -> bool:
    return _has_head(c) and c.logit_scale != 1


def _classes(c: Config) -> bool:
    return bool(c.labels)


def _head_dense(c: Config) -> bool:
    return c.head.kind == "mlm" or c.head_dense


def _head_normed(c: Config) -> bool:
    return c.head.kind == "mlm" or c.head_norm


def _narrow_lm(c: Config) -> bool:
    return c.d_embed > 0 and c.head.kind == "lm"


def _unembed(o: "ModuleType", c: Config) -> Any:
    return o.Unembed(c.head_bias, c.tied_head)


def _class_shares(o: "ModuleType", c: Config) -> Any:
    if c.head.kind == "question":
        return o.TokenSoftmax()
    return o.Sigmoid() if c.decides == "several" else o.VocabularySoftmax()


_VOCABULARY = ("token", "vocab")
_CLASSES = ("token", "label")
_NO_HEAD = "this model has no language-model head"
_NO_HEAD_DENSE = "the head of this model has no dense layer"

READ = Step(
    "head.mean", "head, mean of the tokens", "Σ {0}[i] / T", WIDE, ("<normed>",), "output", False,
    when=lambda c: c.head_reads == "mean", absent="the head of this model reads tokens by themselves",
    make=lambda o, _: o.MeanOfTokens(), at="averaged.mean",
)  # fmt: skip
"""What a head reads that is no token: in every row."""
ROWS: tuple[Step, ...] = (
    Step("pooled", "pooled first token", "tanh(W·{0}[0] + b)", ("d_model",), ("<final>",), "output", False,
         when=lambda c: c.pooler, absent="this model has no pooler", make=lambda o, _: o.Pooled(True), module="pooler",
         to_loss=False),
    Step("head.projected", "hidden state, projected", "{0}·W_out{projection_bias}", EMBEDDED, ("<final>",), "output",
         False, when=_narrow_lm, absent="the hidden state is as wide as the embeddings in this model",
         make=make_widening, module="head.projection", matrix="W_out", late=True),
    Step("head.dense", "head, dense", "{0}·W{dense_bias}", HEAD, ("<final>",), "output", False, when=_head_dense,
         absent=_NO_HEAD_DENSE, make=lambda o, c: o.Linear(c.head_dense_bias), module="head.dense"),
    Step("head.act", "head, activated", "{head_act}({0})", HEAD, ("head.dense",), "output", False, when=_head_dense,
         absent=_NO_HEAD_DENSE, make=lambda o, c: o.Activate(c.head_activation)),
    Step("head.norm", "head, norm", "{norm}({0})", HEAD, ("<acted>",), "output", False, when=_head_normed,
         absent="the head of this model has no norm", make=make_norm, module="head.norm", matrix="gain"),
    Step("head.logits", "logits before the cap", "{0}·{unembed}{head_bias}", _VOCABULARY, ("<logits>",),
         "output", False, when=_capped_head,
         make=_unembed, module="head.decoder", matrix="{matrix}"),
    Step("logits", "logits, capped", "{logit_cap}·tanh({0} / {logit_cap})", _VOCABULARY, ("head.logits",),
         "output", False, True, when=_capped_head, make=lambda o, c: o.Cap(c.logit_cap), at="head.cap"),
    Step("head.logits", "logits before the scale", "{0}·{unembed}{head_bias}", _VOCABULARY, ("<logits>",),
         "output", False, when=_scaled_head, absent="logits are neither capped nor scaled in this model",
         make=_unembed, module="head.decoder", matrix="{matrix}"),
    Step("logits", "logits, scaled", "{logit_scale} · {0}", _VOCABULARY, ("head.logits",), "output", False,
         True, when=_scaled_head, make=lambda o, c: o.Multiply(c.logit_scale), at="head.scale"),
    Step("logits", "logits", "{0}·{unembed}{head_bias}", _VOCABULARY, ("<logits>",), "output", False, True,
         when=lambda c: c.predicts_tokens and not (_capped_head(c) or _scaled_head(c)), absent=_NO_HEAD,
         make=_unembed, module="head.decoder", matrix="{matrix}"),
    Step("logits", "logits of the classes", "{0}·W_U{head_bias}", _CLASSES, ("<logits>",), "output", False,
         True, when=_classes, make=_unembed, module="head.decoder", matrix="W_U"),
    Step("probs", "probabilities", "softmax({0})", _VOCABULARY, ("logits",), "output", False,
         when=lambda c: c.predicts_tokens, absent="{no_probs}", make=lambda o, _: o.VocabularySoftmax(), to_loss=False),
    Step("probs", "probabilities of the classes", "{class_shares}", _CLASSES, ("logits",), "output", False,
         when=lambda c: _classes(c) and c.decides != "number", make=_class_shares, to_loss=False),
    Step("next", "prediction", "{prediction}, by {0}", (), ("<shares>",), "output", False, when=_has_head,
         absent=_NO_HEAD, to_loss=False),
)  # fmt: skip
"""From the last hidden states to the prediction."""

_PREDICTIONS = {
    "lm": "most probable next tokens",
    "mlm": "most probable fill of each mask",
    "sequence": "classes of the text",
    "token": "classes of each token",
    "question": "where the answer starts and ends",
}


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    kind = c.head.kind
    shares = "σ({0})" if c.decides == "several" else "softmax({0})"
    return {
        "logit_cap": f"{c.logit_cap:g}",
        "logit_scale": f"{c.logit_scale:.4g}",
        "head_act": ACTIVATION_NAMES[c.head_activation],
        "unembed": "Eᵀ" if c.tied_head else "W_U",
        "matrix": "E" if c.tied_head else "W_U",
        "dense_bias": " + b" if c.head_dense_bias else "",
        "head_bias": " + b" if c.head_bias else "",
        "prediction": _PREDICTIONS.get("mlm" if kind == "lm" and not c.causal else kind, ""),
        "class_shares": "softmax({0}) over the tokens" if kind == "question" else shares,
        "no_probs": "the head of this model gives a number" if c.decides == "number" else _NO_HEAD,
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    unembedded = _unembedded(c)
    return {
        "<acted>": ("head.act",) if _head_dense(c) else ("<final>",),
        "<logits>": (unembedded,) if unembedded else ("<final>",),
        "<shares>": ("logits",) if c.decides == "number" else ("probs",),
    }


def _unembedded(c: Config) -> str:
    """The name of the head's step that is unembedded; empty where that is the last hidden state itself."""
    if _head_normed(c):
        return "head.norm"
    return "head.act" if _head_dense(c) else "head.projected" if _narrow_lm(c) else ""
