"""Gated streams: several residual streams that every part reads through gates, and writes with weights (Qwen4-Exp)."""

from typing import TYPE_CHECKING, Any

from tinytf.parts.norm import gates_streams
from tinytf.parts.row import ATTN, FFN, STREAMS, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


def _linear(o: "ModuleType", _: Config) -> Any:
    return o.Linear(False)


def norm_each(o: "ModuleType", c: Config) -> Any:
    """The norm of a model, of each stream by itself."""
    return o.PartNorm(c.norm == "layernorm", c.norm_eps, c.norm_parameters, "d_model")


def _mean(o: "ModuleType", c: Config) -> Any:
    return o.Multiply(1 / (c.extra_streams + 1))


def _mean_of_streams(o: "ModuleType", c: Config) -> Any:
    count = c.extra_streams + 1
    return o.MixStreams(((1 / count,) * count,))


def _write(o: "ModuleType", c: Config) -> Any:
    count = c.extra_streams + 1
    return o.MixStreams(tuple((0.0, *(float(i == j) for j in range(count))) for i in range(count)), weighted=1)


_NONE = "the streams of this model have no gates"
_LOW, _WEIGHTS = ("token", "stream_rank"), ("token", "stream")


def _read(name: str, out: str, reader: str, source: str, **place: Any) -> tuple[Step, ...]:
    """The rows from all streams to what a part of the model reads, the row ``out``."""
    entering = () if place.get("from_stream") else (source,)
    base, place = place.pop("base", name), {"when": gates_streams, "absent": _NONE, **place}
    later = {key: value for key, value in place.items() if key != "from_stream"}
    return (
        Step(f"{name}.streams", f"streams, each normed for {reader}", f"{{norm}}({'x' if not entering else '{0}'}) of each",
             STREAMS, entering, make=norm_each, module=f"{base}.streams", matrix="gain", late=True, **place),
        Step(f"{name}.low", f"gates of the streams for {reader}, compressed", "{0}·W", _LOW, (f"{name}.streams",),
             make=_linear, module=f"{base}.low", late=True, **later),
        Step(f"{name}.scaled", f"gates of the streams for {reader}, scaled", "{0} / {streams}", _LOW, (f"{name}.low",),
             make=_mean, at=f"{base}.scaled", **later),
        Step(f"{name}.act", f"gates of the streams for {reader}, activated", "SiLU({0})", _LOW, (f"{name}.scaled",),
             make=lambda o, _: o.Activate("silu"), at=f"{base}.act", **later),
        Step(f"{name}.gate", f"gates of the streams for {reader}", "{0}·W", STREAMS, (f"{name}.act",), make=_linear,
             module=f"{base}.gate", late=True, **later),
        Step(f"{name}.gated", f"streams, gated for {reader}", "{0} ⊙ σ({1})", STREAMS,
             (f"{name}.streams", f"{name}.gate"), make=lambda o, _: o.Switch(), at=f"{base}.gated", **later),
        Step(out, f"mean of the streams, gated for {reader}", "Σ {0} / {streams}", WIDE, (f"{name}.gated",),
             make=_mean_of_streams, at=f"{base}.mean", **later),
    )  # fmt: skip


def _weights(name: str, writer: str, read: str) -> tuple[Step, ...]:
    """The rows from the normed streams to what multiplies the output of a part of the model in each stream."""
    place: dict[str, Any] = {"when": gates_streams, "absent": _NONE}
    return (
        Step(f"{name}.in", f"what {writer} adds to each stream, before its sigmoid", "{0}·W", _WEIGHTS, (f"{read}.streams",),
             make=_linear, module=f"{name}.in", late=True, **place),
        Step(f"{name}.scaled", f"what {writer} adds to each stream, scaled", "{0} / {streams}", _WEIGHTS, (f"{name}.in",),
             make=_mean, **place),
        Step(f"{name}.share", f"what {writer} adds to each stream, as a share", "σ({0})", _WEIGHTS, (f"{name}.scaled",),
             make=lambda o, _: o.Sigmoid(), **place),
        Step(f"{name}.weight", f"weights of what {writer} adds to each stream", "2·{0}", _WEIGHTS, (f"{name}.share",),
             make=lambda o, _: o.Multiply(2.0), **place),
    )  # fmt: skip


BEFORE_MIXER = (*_read("read1", "read1", "attention", "<streams in>"), *_weights("write1", "attention", "read1"))
"""From the streams that enter a layer to the input of its mixer, and the weights of what that gives."""
BEFORE_FFN: tuple[Step, ...] = (
    Step("mid", "streams after attention", "{1} + {2} of each stream · {0}", STREAMS, (ATTN, "<streams in>", "write1.weight"),
         recorded=True, when=gates_streams, make=_write),
    *_read("read2", "read2", "the feed-forward", "mid"),
    *_weights("write2", "the feed-forward", "read2"),
)  # fmt: skip
"""From the output of the mixer to the input of the feed-forward."""
OUT = Step("out", "streams after the feed-forward", "{1} + {2} of each stream · {0}", STREAMS,
           (FFN, "mid", "write2.weight"), recorded=True, when=gates_streams, make=_write)  # fmt: skip
"""The streams after the layer."""
FINAL = _read("final", "final.norm", "the head", "", base="final_norm", in_layer=False, from_stream=True)
"""From the streams after the last layer to what the head reads."""
