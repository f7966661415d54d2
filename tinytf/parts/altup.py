"""AltUp: several residual streams, of which a layer computes one and predicts the others (Baykal et al. 2023)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.fields import Limits
from tinytf.parts.hyper import Hyper
from tinytf.parts.norm import has_altup, has_hyper, make_norm
from tinytf.parts.part import COUNT, Part, leaf, listed
from tinytf.parts.row import OTHERS, STREAMS, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


_MOST = 63
"""More streams make no sense, and each sum lists a number for every stream."""


@dataclass(frozen=True, kw_only=True)
class AltUp(Part):
    """``extra_streams`` beside the embeddings: projections of them, each scaled to the size of its embedding.

    A router reads the stream number ``active_stream``. By its weights a layer predicts all streams, computes the active
    one, and corrects every stream by what the prediction of that one missed. The embeddings of the layer are added to
    all streams but the first; their gate reads the active one, times a learned gain if there is a ``stream_gain``.
    After the last layer the streams are projected back and averaged (Gemma 3n).

    With a ``stream_rank`` all streams start as the embeddings, and none is active. Attention and feed-forward read the
    mean of the normed streams, each number times a gate that is computed from all streams through ``stream_rank``
    dimensions; what they give is added to each stream, times a weight between 0 and 2. The head reads such a mean too
    (Qwen4-Exp).
    """

    extra_streams: int = leaf(0, Limits(least=0, most=_MOST), said="{} extra streams")
    active_stream: int = leaf(0, COUNT, said="the active stream {}", zero="0")
    stream_rank: int = leaf(0, COUNT, said="gates of streams of rank {}")
    stream_gain: bool = leaf(False, said="the gain of the streams")
    hyper: Hyper = field(default_factory=Hyper)

    def require(self) -> None:
        if self.active_stream > self.extra_streams:
            raise ConfigError(f"active_stream {self.active_stream} is not one of {self.extra_streams + 1} streams")
        if self.stream_gain and not self.extra_streams:
            raise ConfigError("stream_gain is true, but there is one stream: extra_streams is 0")
        if self.hyper.hyper and (not self.extra_streams or self.active_stream or self.stream_gain):
            raise ConfigError("hyper needs extra_streams, without an active_stream and a stream_gain")
        if self.stream_rank and (not self.extra_streams or self.active_stream or self.stream_gain):
            raise ConfigError("stream_rank gates several streams, of which none is active: see extra_streams")

    def words(self, causal: bool) -> dict[str, str]:
        if not self.extra_streams:
            return {}
        if self.hyper.hyper:
            return {"residual": self.hyper.words_of(self.extra_streams + 1)}
        if self.stream_rank:
            return {"residual": f"{self.extra_streams + 1} streams, gated by all through {self.stream_rank} dimensions"}
        return {
            "residual": listed(
                f"{self.extra_streams + 1} streams, number {self.active_stream} computed and the others predicted",
                self.stream_gain and "a gain before the gate of embeddings",
            )
        }


Matrix = tuple[tuple[float, ...], ...]


def _eye(c: Config) -> Matrix:
    streams = range(c.extra_streams + 1)
    return tuple(tuple(float(row == column) for column in streams) for row in streams)


def _active(o: "ModuleType", c: Config) -> Any:
    return o.MixStreams((_eye(c)[c.active_stream],))


def _linear(o: "ModuleType", _: Config) -> Any:
    return o.Linear(False)


def _scale(o: "ModuleType", c: Config) -> Any:
    return o.Multiply(1 / c.d_model)


def _predict(o: "ModuleType", c: Config) -> Any:
    return o.MixStreams(_eye(c), weighted=c.extra_streams + 1)


def _miss(o: "ModuleType", c: Config) -> Any:
    return o.MixStreams(((1.0, *(-share for share in _eye(c)[c.active_stream])),))


def _correct(o: "ModuleType", c: Config) -> Any:
    return o.MixStreams(tuple((1.0, *row) for row in _eye(c)), weighted=1)


def _add_to_others(o: "ModuleType", c: Config) -> Any:
    return o.MixStreams(tuple((*row, float(number > 0)) for number, row in enumerate(_eye(c))))


def _match(o: "ModuleType", c: Config) -> Any:
    return o.MatchStreams(c.extra_streams)


_ONE = "this model has one residual stream"
_ROUTES = ("token", "stream")

AFTER_EMBEDDING: tuple[Step, ...] = (
    Step("streams.projected", "other streams, projected from the embeddings", "{0}·W_S", OTHERS, ("embed.out",),
         "embed",
         False, when=has_altup, absent=_ONE, make=_linear, module="streams.projection", matrix="W_S", late=True),
    Step("streams.out", "all streams, of one size", "[{0} | {1} · |{0}| / |{1}|]", STREAMS,
         ("embed.out", "streams.projected"), "residual", False, True, when=has_altup, absent=_ONE, make=_match),
)  # fmt: skip
"""From the embeddings to the streams."""
BEFORE_LAYER: tuple[Step, ...] = (
    Step("altup.seen", "the active stream", "{0}[{active}]", WIDE, ("in",), when=has_altup, absent=_ONE,
         make=_active),
    Step("altup.norm", "the active stream, normed", "{norm}({0})", WIDE, ("altup.seen",), when=has_altup,
         absent=_ONE, make=make_norm, module="altup.norm", matrix="g_A", late=True),
    Step("altup.scaled", "the active stream, normed and scaled", "{0} / {d_model}", WIDE, ("altup.norm",),
         when=has_altup, absent=_ONE, make=_scale),
    Step("altup.router", "router of the streams", "{0}·W_A", _ROUTES, ("altup.scaled",), when=has_altup,
         absent=_ONE, make=_linear, module="altup.router", matrix="W_A", late=True),
    Step("altup.modes", "router of the streams, within ±1", "tanh({0})", _ROUTES, ("altup.router",),
         when=has_altup, absent=_ONE, make=lambda o, _: o.Cap(1.0)),
    Step("altup.weights", "weights of the streams in each prediction", "{0}·W_AP", ("token", "stream·stream"),
         ("altup.modes",), when=has_altup, absent=_ONE, make=_linear, module="altup.predict", matrix="W_AP",
         late=True),
    Step("altup.predicted", "streams, predicted", "{0} + {1}·{0}", STREAMS, ("in", "altup.weights"), when=has_altup,
         absent=_ONE, make=_predict),
    Step("altup.active", "the active stream, predicted", "{0}[{active}]", WIDE, ("altup.predicted",),
         when=has_altup, absent=_ONE, make=_active),
)  # fmt: skip
"""From the streams to the input of the layer."""
AFTER_LAYER: tuple[Step, ...] = (
    Step("altup.out_norm", "the layer's output, normed", "{norm}({0})", WIDE, ("sum",), when=has_altup, absent=_ONE,
         make=make_norm, module="altup.norm", matrix="g_A", at="altup.out_norm", late=True),
    Step("altup.out_scaled", "the layer's output, normed and scaled", "{0} / {d_model}", WIDE, ("altup.out_norm",),
         when=has_altup, absent=_ONE, make=_scale),
    Step("altup.out_router", "router of the layer's output", "{0}·W_A", _ROUTES, ("altup.out_scaled",),
         when=has_altup, absent=_ONE, make=_linear, module="altup.router", matrix="W_A", at="altup.out_router",
         late=True),
    Step("altup.out_modes", "router of the layer's output, within ±1", "tanh({0})", _ROUTES,
         ("altup.out_router",), when=has_altup, absent=_ONE, make=lambda o, _: o.Cap(1.0)),
    Step("altup.gains", "weights of the correction of each stream", "{0}·W_AC", _ROUTES, ("altup.out_modes",),
         when=has_altup, absent=_ONE, make=_linear, module="altup.correct", matrix="W_AC", late=True),
    Step("altup.error", "what the prediction missed", "{0} − {1}[{active}]", WIDE, ("sum", "altup.predicted"),
         when=has_altup, absent=_ONE, make=_miss),
    Step("altup.corrected", "streams, corrected", "{1} + (1 + {2})·{0}", STREAMS,
         ("altup.error", "altup.predicted", "altup.gains"), when=has_altup, absent=_ONE, make=_correct),
    Step("altup.current", "the active stream, corrected", "{0}[{active}]", WIDE, ("altup.corrected",),
         when=has_altup, absent=_ONE, make=_active),
    Step("altup.gained", "the active stream, times a gain", "{0} ⊙ gain", WIDE, ("altup.current",),
         when=lambda c: c.stream_gain, absent="the active stream has no gain in this model",
         make=lambda o, _: o.Gain(), module="altup.gain", matrix="gain", late=True),
)  # fmt: skip
"""From the sums of the layer to the streams."""
OUT = Step("out", "streams, with the layer's input in all but the first", "{inputs} but in the first", STREAMS,
           ("altup.corrected", "ple.out_norm"), recorded=True, when=has_altup, make=_add_to_others)  # fmt: skip
"""The streams after the layer."""
MERGED: tuple[Step, ...] = (
    Step("final.main", "the first stream", "x[0]", WIDE, (), "residual", False, when=has_altup, absent=_ONE,
         make=lambda o, c: o.MixStreams((_eye(c)[0],)), at="final_norm.main", from_stream=True),
    Step("final.others", "the other streams", "x[1…{extra_streams}]", OTHERS, (), "residual", False, when=has_altup,
         absent=_ONE, make=lambda o, c: o.MixStreams(_eye(c)[1:]), at="final_norm.others", from_stream=True),
    Step("final.projected", "the other streams, each projected", "{0}·W_SU of each", OTHERS, ("final.others",),
         "residual", False, when=has_altup, absent=_ONE, make=lambda o, c: o.StreamLinear(c.extra_streams),
         module="final_norm.projection", matrix="W_SU", late=True),
    Step("final.matched", "all streams, of one size", "[{0} | {1} · |{0}| / |{1}|]", STREAMS,
         ("final.main", "final.projected"), "residual", False, when=has_altup, absent=_ONE, make=_match,
         at="final_norm.matched"),
    Step("final.mean", "the mean of the streams", "Σ {0} / {streams}", WIDE, ("final.matched",), "residual", False,
         when=has_altup, absent=_ONE,
         make=lambda o, c: o.MixStreams(((1 / (c.extra_streams + 1),) * (c.extra_streams + 1),)),
         at="final_norm.mean"),
    Step("final.norm", "final norm of the mean", "{norm}({0})", WIDE, ("final.mean",), "residual", False, True,
         when=has_altup, make=make_norm, module="final_norm.norm", matrix="gain"),
)  # fmt: skip
"""From the streams after the last layer to its final norm."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {
        "active": str(c.active_stream),
        "extra_streams": str(c.extra_streams),
        "streams": str(c.extra_streams + 1),
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {"<entering>": ("altup.active",) if has_altup(c) else ("hyper1.in",) if has_hyper(c) else ("in",)}
