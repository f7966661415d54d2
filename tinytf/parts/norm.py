"""The norms of a block, and how it adds to the residual stream."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.part import ABOVE_ZERO, NOT_NEGATIVE, Part, choice, leaf, listed
from tinytf.parts.row import ATTN, FFN, RESIDUAL, STREAM, WIDE, Config, Predicate, Step

if TYPE_CHECKING:
    from types import ModuleType

NORMED = {
    "pre": "before each part (pre-norm)",
    "post": "after each sum (post-norm)",
    "both": "before and after each part",
    "output": "after each part",
}
"""Where a block applies its norms, in words, by ``norm_order``."""
NO_FEED_FORWARD = "this layer has no feed-forward"
NO_MIXER = "this layer has a feed-forward only"
CALLED = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
"""The display name of each norm."""


@dataclass(frozen=True, kw_only=True)
class Norms(Part):
    """The norms of a block; ``norm_order`` says where they are.

    On the inputs of attention and feed-forward (``pre``), on their outputs (``output``), on ``both``, or on the
    residual sums (``post``). Without ``input_norm`` attention in a pre-norm block reads the stream as it is. Norms have
    a ``norm_gain``, and LayerNorms a ``norm_bias`` too. With a ``shared_norm`` the feed-forward of a parallel block
    reads norm1, as attention does, and there is no norm2. With ``norm_below`` the mixer reads norm1 of the layer below:
    two mixers side by side are two layers, the second with the feed-forward of both (Falcon-H1). With a ``shortcut``
    the feed-forward reads norm2 of two layers below: experts beside a feed-forward and all of the next layer are a
    third layer, without a mixer (LongCat-Flash). The last norm of the model has ``final_norm_eps`` (0: ``norm_eps``).
    """

    norm: str = choice("layernorm", "rmsnorm", said="{}", named=CALLED)
    norm_eps: float = leaf(1e-5, ABOVE_ZERO, usual=(1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3), said="eps {}")
    final_norm_eps: float = leaf(0.0, NOT_NEGATIVE, zero="norm_eps", said="eps {} of the last norm")
    norm_gain: bool = leaf(True, said="the gain of norms")
    norm_bias: bool = leaf(True, said="the bias of norms")
    norm_order: str = choice(*NORMED, differs=True, said="norms {}", named=NORMED)
    input_norm: bool = leaf(True, differs=True, said="the norm before attention")
    shared_norm: bool = leaf(False, said="one norm for attention and feed-forward")
    norm_below: bool = leaf(False, differs=True, said="the norm of the layer below in place of its own")
    shortcut: bool = leaf(False, differs=True, said="the feed-forward's shortcut from two layers below")

    def require(self) -> None:
        if self.norm_below and not (self.norm_order == "pre" and self.input_norm and not self.shared_norm):
            raise ConfigError("norm_below needs norm_order 'pre', with an input_norm and without a shared_norm")
        if self.shortcut and self.norm_order != "pre":
            raise ConfigError(f"a shortcut needs norm_order 'pre', not {self.norm_order!r}")
        if self.norm == "layernorm" and self.norm_bias and not self.norm_gain:
            raise ConfigError("norm_bias is true, but norm_gain is false", "a norm without a gain has no bias either")

    @property
    def learned(self) -> tuple[str, ...]:
        """The learned parameters of every norm: ``gain``, and for a LayerNorm ``bias``."""
        bias = self.norm == "layernorm" and self.norm_bias
        return ("gain",) * self.norm_gain + ("bias",) * bias

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "norm": listed(
                f"{CALLED[self.norm]} {NORMED[self.norm_order]}",
                f"ε = {self.norm_eps:g}",
                bool(self.final_norm_eps) and f"{self.final_norm_eps:g} in the last",
                f"{' and '.join(self.learned)} learned" if self.learned else "nothing learned",
                not self.input_norm and "none before attention",
                self.norm_below and "that of the layer below before attention",
                self.shortcut and "that of two layers below before the feed-forward",
            ),
            "residual": "one norm for both" if self.shared_norm else "",
        }


@dataclass(frozen=True, kw_only=True)
class Residual(Part):
    """How a block adds to the residual stream: after each part (``sequential``), or both parts at once (``parallel``).

    In a parallel block the feed-forward reads the same stream as attention. ``residual_scale`` multiplies what is
    added. With ``residual_of`` ``normed`` each part is added to its normed input, times ``kept_scale``, rather than to
    the stream (MiniMax). ``layer_scale`` multiplies the stream after each layer by a number of its own (Gemma 4).
    """

    residual: str = choice("sequential", "parallel", said="a {} residual")
    residual_scale: float = leaf(1.0, ABOVE_ZERO, said="what is added, times {}")
    residual_of: str = choice(
        "stream", "normed", said="a residual of {}", named={"stream": "the stream", "normed": "the normed stream"},
    )  # fmt: skip
    kept_scale: float = leaf(1.0, ABOVE_ZERO, said="the stream times {} in every sum")
    layer_scale: bool = leaf(False, said="the scale of each layer")

    def require(self) -> None:
        if self.kept_scale != 1 and self.residual_of != "normed":
            raise ConfigError(f"kept_scale {self.kept_scale:g} multiplies normed inputs, but residual_of is 'stream'")

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "residual": listed(
                self.residual == "parallel" and "attention and feed-forward side by side",
                self.residual_scale != 1 and f"additions times {self.residual_scale:g}",
                self.residual_of == "normed"
                and f"of normed inputs{f' times {self.kept_scale:g}' * (self.kept_scale != 1)}",
                self.layer_scale and "each layer's output times a number of its own",
            )
        }


def make_norm(o: "ModuleType", c: Config) -> Any:
    """The norm of a model."""
    return o.Norm(c.norm == "layernorm", c.norm_eps, c.norm_parameters)


def normed_input(c: Config) -> bool:
    """Whether attention reads the stream through a norm."""
    return normed_between(c) and c.input_norm


def normed_between(c: Config) -> bool:
    """Whether attention and feed-forward read one stream through norms of their own."""
    return c.norm_order in ("pre", "both") and not gates_streams(c)


def order(*orders: str) -> Predicate:
    """Whether the norms of a layer stand in one of these orders."""
    return lambda c: c.norm_order in orders


def _sequential(c: Config) -> bool:
    return c.residual == "sequential"


def _scaled_residual(c: Config) -> bool:
    return c.residual_scale != 1


def has_ffn(c: Config) -> bool:
    """Whether a layer has a feed-forward, or experts."""
    return bool(c.d_ff > 0)


def has_mixer(c: Config) -> bool:
    """Whether a layer has attention, or another mixer."""
    return bool(c.mixer != "none")


def beside(c: Config) -> bool:
    """Whether the layer adds nothing to the stream: the layer above takes what it computes."""
    return bool(c.memory == "gives")


def _has_both(c: Config) -> bool:
    return has_mixer(c) and has_ffn(c)


def has_streams(c: Config) -> bool:
    """Whether there are several residual streams."""
    return bool(c.extra_streams > 0)


def has_hyper(c: Config) -> bool:
    """Whether these are read and written by hyper-connections."""
    return bool(c.hyper)


def gates_streams(c: Config) -> bool:
    """Whether every part reads all of them through gates."""
    return bool(c.stream_rank > 0)


def has_altup(c: Config) -> bool:
    """Whether a layer computes one of them, and predicts the others."""
    return has_streams(c) and not (has_hyper(c) or gates_streams(c))


def has_laurel(c: Config) -> bool:
    """Whether attention has a low-rank residual beside it."""
    return bool(c.laurel_rank > 0)


def _kept(c: Config) -> bool:
    return c.kept_scale != 1


def _scale_kept(o: "ModuleType", c: Config) -> Any:
    return o.Multiply(c.kept_scale)


def _scale_added(o: "ModuleType", c: Config) -> Any:
    return o.Multiply(c.residual_scale)


_NO_OUTPUT_NORM = "the outputs of attention and feed-forward are not normed in this model"
_NOT_KEPT = "the residual stream is not scaled in this model"
_NOT_SCALED = "the outputs of attention and feed-forward are not scaled in this model"

INPUT = Step("in", "block input", "x", STREAM, (), symbol="x", recorded=True, from_stream=True,
             make=lambda o, c: o.Same() if c.d_layer_input or c.memory_sets else o.Add())  # fmt: skip
"""The residual stream, or all of them."""
BEFORE_MIXER: tuple[Step, ...] = (
    Step("norm1", "norm before attention", "n = {norm}({0})", WIDE, ("<into norm1>",), symbol="n",
         when=lambda c: normed_input(c) and has_mixer(c) and not (c.norm_below or beside(c)), make=make_norm,
         module="norm1", matrix="gain"),
    Step("norm1", "norm of the layer below", "n = {0} of the layer below", WIDE, ("norm1",), symbol="n",
         when=lambda c: has_mixer(c) and c.norm_below, recorded=True, make=lambda o, _: o.Same(), below=1),
)  # fmt: skip
"""From the stream that enters the layer to the input of attention."""
ATTENTION_ADDED: tuple[Step, ...] = (
    Step("attn_norm", "attention output, normed", "{norm}({0})", WIDE, ("attn",), "attention",
         when=order("both", "output"), absent=_NO_OUTPUT_NORM,
         make=make_norm, module="attn_norm", matrix="gain"),
    Step("attn_scaled", "attention output, scaled", "{0} · {residual_scale}", WIDE, (ATTN,), "attention",
         when=lambda c: _scaled_residual(c) and has_mixer(c), absent=_NOT_SCALED, make=_scale_added),
)  # fmt: skip
"""From the output of attention to what is added to the stream."""
BETWEEN: tuple[Step, ...] = (
    Step("in_kept", "normed input, scaled for the sum", "{0} · {kept_scale}", WIDE, ("norm1",), when=_kept,
         absent=_NOT_KEPT, make=_scale_kept),
    Step("mid", "residual after attention", "{inputs}", WIDE, ("<kept>", ATTN),
         when=lambda c: _sequential(c) and _has_both(c)
         and not (has_laurel(c) or beside(c) or has_hyper(c) or gates_streams(c)),
         absent="{no_mid}", make=lambda o, _: o.Add()),
    Step("mid", "residual after attention and its low-rank residual", "{0} / √2", WIDE, ("laurel.sum",),
         when=has_laurel, make=lambda o, _: o.Multiply(2**-0.5)),
    Step("norm1", "norm after attention", "n = {norm}({0})", WIDE, ("mid",), symbol="n", when=order("post"),
         absent="the inputs of attention and feed-forward are not normed in this model",
         make=make_norm, module="norm1", matrix="gain"),
)  # fmt: skip
"""From what attention adds to the stream after it."""
BEFORE_FFN: tuple[Step, ...] = (
    Step("norm2", "norm before feed-forward", "n = {norm}({0})", WIDE, ("<read>",), symbol="n",
         when=lambda c: normed_between(c) and not (c.shared_norm or c.shortcut) and has_ffn(c),
         absent="{no_norm2}", make=make_norm, module="norm2", matrix="gain"),
    Step("norm2", "norm of two layers below", "n = {0} of two layers below", WIDE, ("norm2",), symbol="n",
         when=lambda c: has_ffn(c) and c.shortcut, recorded=True, make=lambda o, _: o.Same(), below=2),
)  # fmt: skip
"""From the stream before the feed-forward to its input."""
FFN_ADDED: tuple[Step, ...] = (
    Step("ffn_norm", "feed-forward output, normed", "{norm}({0})", WIDE, ("ffn",), "ffn",
         when=order("both", "output"), absent=_NO_OUTPUT_NORM,
         make=make_norm, module="ffn_norm", matrix="gain"),
    Step("ffn_scaled", "feed-forward output, scaled", "{0} · {residual_scale}", WIDE, (FFN,), "ffn",
         when=lambda c: _scaled_residual(c) and has_ffn(c), absent=_NOT_SCALED, make=_scale_added),
    Step("mid_kept", "normed residual, scaled for the sum", "{0} · {kept_scale}", WIDE, ("norm2",), when=_kept,
         absent=_NOT_KEPT, make=_scale_kept),
    Step("sum", "residual after feed-forward, to be scaled", "{inputs}", WIDE, ("<added>",),
         when=lambda c: c.layer_scale, make=lambda o, _: o.Add()),
    Step("sum", "residual after feed-forward, of the active stream", "{inputs}", WIDE, ("<added>",), when=has_altup,
         make=lambda o, _: o.Add()),
)  # fmt: skip
"""From the output of the feed-forward to the residual stream, where more follows."""
AFTER: tuple[Step, ...] = (
    Step("out", "block output, scaled", "{0} · s", WIDE, (RESIDUAL,), recorded=True,
         when=lambda c: c.layer_scale, make=lambda o, _: o.LayerScale(), module="scale", matrix=""),
    Step("out", "block output", "{inputs}", WIDE, ("<added>",), recorded=True,
         when=lambda c: c.norm_order != "post" and not c.layer_scale and not has_streams(c),
         make=lambda o, c: o.Same() if beside(c) else o.Add()),
    Step("sum", "residual after feed-forward", "{inputs}", WIDE, ("<before ffn>", FFN), when=order("post"), absent=
         "the layers of this model add up to out directly", make=lambda o, _: o.Add()),
    Step("norm2", "norm after feed-forward, the block's output", "{norm}({0})", WIDE, ("sum",), recorded=True,
         when=lambda c: c.norm_order == "post" and not c.side_width, make=make_norm, module="norm2", matrix="gain"),
)  # fmt: skip
"""To the residual stream after the layer."""
FINAL: tuple[Step, ...] = (
    Step("final.norm", "final norm", "{norm}(x)", WIDE, (), "residual", False, True,
         when=lambda c: c.final_norm and not has_streams(c),
         absent="norms come after the residual sums in this model, so the last block's norm2 is the final norm",
         make=lambda o, c: o.Norm(c.norm == "layernorm", c.final_eps, c.norm_parameters), module="final_norm",
         matrix="gain",
         from_stream=True),
)  # fmt: skip
"""After the last block."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    shared = "attention and the feed-forward share norm1 in this model"
    unnormed = "the inputs of attention and feed-forward are not normed in this model"
    return {
        "norm": CALLED[c.norm],
        "residual_scale": f"{c.residual_scale:g}",
        "kept_scale": f"{c.kept_scale:g}",
        "no_norm2": shared if c.shared_norm else unnormed if has_ffn(c) else NO_FEED_FORWARD,
        "no_mid": "this layer adds nothing to the stream"
        if beside(c)
        else "attention and feed-forward read the same stream in this model, side by side"
        if _has_both(c)
        else NO_FEED_FORWARD
        if has_mixer(c)
        else NO_MIXER,
    }


def _mid(c: Config) -> str:
    """The stream before the feed-forward."""
    return "cross.mid" if c.d_source else "mid"


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    normed, kept = c.residual_of == "normed", c.kept_scale != 1
    last = ("final.norm",) if c.final_norm else ("out",) if c.side_width else ("norm2",)
    return {
        "<kept>": ("in_kept" if kept else "norm1" if normed else "<entering>",),
        "<into norm1>": ("memory.sum" if c.memory == "takes" else "<entering>",),
        "<read>": ("attn",)
        if beside(c)
        else ("hyper2.in",)
        if has_hyper(c)
        else (_mid(c),)
        if _sequential(c) and has_mixer(c)
        else ("in",),
        "<added>": ("in",)
        if beside(c)
        else ("mid_kept" if kept else "norm2" if normed else _mid(c), FFN)
        if _sequential(c) and _has_both(c)
        else ("in", *[ATTN] * has_mixer(c), *[FFN] * has_ffn(c)),
        "<before ffn>": ("cross.norm" if c.d_source else "norm1",),
        "<normed>": last,
        "<final>": ("head.mean",) if c.head_reads == "mean" else last,
    }
