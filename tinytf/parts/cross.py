"""Cross-attention: what a layer reads of another stack, the encoder of a model with two."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.norm import make_norm, order
from tinytf.parts.part import COUNT, Part, leaf
from tinytf.parts.positions import make_keys, make_projection
from tinytf.parts.row import CROSS_MAP, HEADS, OF_HEADS, RESIDUAL, WIDE, Config, Nearest, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Cross(Part):
    """Attention to the last hidden states of another stack, ``d_source`` wide (Vaswani et al. 2017).

    It follows the layer's own attention, and has as many heads, biases, and the same divisor and cap of scores. With
    ``source_projection`` all layers read the states as a matrix brings them to the model's width.
    """

    d_source: int = leaf(0, COUNT, said="cross-attention to states {} wide")
    source_projection: bool = leaf(False, said="the projection of the encoder's states")

    def require(self) -> None:
        """Raise ConfigError for a projection of nothing."""
        if self.source_projection and not self.d_source:
            raise ConfigError("source_projection needs a d_source")

    def require_block(self, block: Any) -> None:
        """Raise ConfigError for a layer that cannot read another stack."""
        mixer = block.mixer
        if block.residual.residual == "parallel" or not block.norms.input_norm or block.norms.shortcut:
            raise ConfigError("d_source needs a sequential block with a norm for each part")
        if mixer.called != "attention" or mixer.latent.kv_rank or mixer.shares_keys or mixer.attention_gate:
            raise ConfigError("d_source needs attention with keys of its own, and without gates")
        if block.residual.residual_scale != 1 or block.residual.residual_of != "stream":
            raise ConfigError("d_source needs outputs that are added to the stream as they are")

    def words(self, causal: bool) -> dict[str, str]:
        projected = ", projected" * self.source_projection
        return {"cross-attention": f"to the states of the encoder, {self.d_source} wide{projected}" * crosses(self)}


def crosses(c: Config) -> bool:
    """Whether the layer reads another stack."""
    return bool(c.d_source > 0)


def _crosses_and(*orders: str) -> Any:
    in_order = order(*orders)
    return lambda c: crosses(c) and in_order(c)


def _scale(o: "ModuleType", c: Config) -> Any:
    name = "divisor" if c.attention_divisor else "√d_head"
    return o.Scale(c.score_divisor, name, c.score_divisor_words)


_ABSENT = "this model has one stack"
_KEYS, _VALUES = ("kv head", "source", "d_head"), ("kv head", "source", "d_value")
_SCORES, _ADDED = Nearest("cross", CROSS_MAP), Nearest("cross", WIDE)

SOURCE: tuple[Step, ...] = (
    Step("source", "states of the encoder", "…", ("source", "d_source"), (),
         "embed", False, True, when=crosses, absent=_ABSENT, make=lambda o, _: o.Given()),
    Step("source.projected", "states of the encoder, projected", "{0}·W_XS + b_XS", ("source", "d_model"), ("source",),
         "embed", False, True, when=lambda c: c.source_projection,
         absent="this model has one stack, or reads the states as they are", make=lambda o, _: o.Linear(True),
         module="source_projection", matrix="W_XS"),
)  # fmt: skip
"""What all layers read of the other stack."""
ROWS: tuple[Step, ...] = (
    Step("cross.norm", "norm before cross-attention", "n = {norm}({0})", WIDE, ("mid",), symbol="n",
         when=_crosses_and("pre", "both"), absent=_ABSENT, make=make_norm, module="cross.norm", matrix="gain"),
    Step("cross.q", "queries of the source", "{0}·W_XQ{qkv_bias}", HEADS, (RESIDUAL,), "q", recorded=True,
         when=crosses, absent=_ABSENT, make=make_projection, module="cross.q", matrix="W_XQ"),
    Step("cross.k", "keys of the source", "{0}·W_XK{k_bias}", _KEYS, ("<source>",), "k", recorded=True, when=crosses,
         absent=_ABSENT, make=make_keys, module="cross.k", matrix="W_XK"),
    Step("cross.v", "values of the source", "{0}·W_XV{qkv_bias}", _VALUES, ("<source>",), "v", recorded=True,
         when=crosses, absent=_ABSENT, make=make_projection, module="cross.v", matrix="W_XV"),
    Step("cross.scores", "scores of the source", "{0}·{1}ᵀ", CROSS_MAP, ("cross.q", "cross.k"), "cross", core=True,
         when=crosses, absent=_ABSENT, make=lambda o, _: o.CrossScores()),
    Step("cross.scaled", "scores of the source, scaled", "{scale}", CROSS_MAP, (_SCORES,), "cross", core=True,
         when=lambda c: crosses(c) and c.score_divisor != 1, absent=_ABSENT, make=_scale),
    Step("cross.capped", "scores of the source, capped", "{attention_cap}·tanh({0} / {attention_cap})", CROSS_MAP,
         (_SCORES,), "cross", core=True, when=lambda c: crosses(c) and c.attention_cap > 0, absent=_ABSENT,
         make=lambda o, c: o.Cap(c.attention_cap)),
    Step("cross.weights", "weights of the source", "softmax({0}), each row sums to 1", CROSS_MAP, (_SCORES,),
         "cross", core=True, when=crosses, absent=_ABSENT, make=lambda o, _: o.Softmax()),
    Step("cross.head_out", "weighted values of the source", "{0}·{1}", OF_HEADS, ("cross.weights", "cross.v"), "v",
         recorded=True, core=True, when=crosses, absent=_ABSENT, make=lambda o, _: o.CrossMix()),
    Step("cross.concat", "heads side by side", "[head 0 | … | head {last_head}] of {0}", ("token", "n_heads·d_value"),
         ("cross.head_out",), "v", when=crosses, absent=_ABSENT, make=lambda o, _: o.Concat()),
    Step("cross.attn", "cross-attention output", "{0}·W_XO{o_bias}", WIDE, ("cross.concat",), "cross",
         recorded=True,
         when=crosses, absent=_ABSENT, make=lambda o, c: o.Linear(c.o_bias), module="cross.o", matrix="W_XO"),
    Step("cross.attn_norm", "cross-attention output, normed", "{norm}({0})", WIDE, ("cross.attn",), "cross",
         when=_crosses_and("both", "output"), absent=_ABSENT, make=make_norm, module="cross.attn_norm",
         matrix="gain"),
    Step("cross.mid", "residual after cross-attention", "{inputs}", WIDE, ("<crossed>", _ADDED), when=crosses,
         absent=_ABSENT, make=lambda o, _: o.Add()),
    Step("cross.norm", "norm after cross-attention", "n = {norm}({0})", WIDE, ("cross.mid",), symbol="n",
         when=_crosses_and("post"), make=make_norm, module="cross.norm", matrix="gain"),
)  # fmt: skip
"""From the residual stream after attention to that before the feed-forward."""


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {
        "<crossed>": ("norm1",) if c.norm_order == "post" else ("mid",),
        "<source>": ("source.projected",) if c.source_projection else ("source",),
    }
