"""Gated streams: several residual streams that every part reads through gates, and writes with weights (Qwen4-Exp)."""

from typing import TYPE_CHECKING, Any

from tinytf.parts.norm import gates_streams
from tinytf.parts.recurrence import activate, project
from tinytf.parts.row import ATTN, FFN, STREAMS, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


def norm_each(o: "ModuleType", c: Config) -> Any:
    """The norm of a model, of each stream by itself."""
    return o.PartNorm(c.norm == "layernorm", c.norm_eps, c.norm_parameters, "d_model")


def _share(o: "ModuleType", c: Config) -> Any:
    return o.Multiply(1 / (c.extra_streams + 1))


def _mean(o: "ModuleType", c: Config) -> Any:
    count = c.extra_streams + 1
    return o.MixStreams(((1 / count,) * count,))


def _write(o: "ModuleType", c: Config) -> Any:
    count = c.extra_streams + 1
    return o.MixStreams(tuple((0.0, *(float(i == j) for j in range(count))) for i in range(count)), weighted=1)


_OF: dict[str, Any] = {"when": gates_streams, "absent": "the streams of this model have no gates"}
_LOW, _WEIGHTS = ("token", "stream_rank"), ("token", "stream")


_NORMED, _GATE = "{norm}(%s) of each", "gates of the streams for"


def _read(name: str, out: str, reader: str, source: str) -> tuple[Step, ...]:
    """The rows from all streams to what a part of the model reads, the row ``out``."""
    inside = bool(source)  # a layer; else after the last one
    base, of = name if inside else "final_norm", {**_OF, "in_layer": inside}
    return (
        Step(f"{name}.streams", f"streams, each normed for {reader}", _NORMED % ("{0}" if inside else "x"), STREAMS,
             (source,) * inside, make=norm_each, module=f"{base}.streams", matrix="gain", late=True,
             from_stream=not inside, **of),
        Step(f"{name}.low", f"{_GATE} {reader}, compressed", "{0}·W", _LOW, (f"{name}.streams",), make=project,
             module=f"{base}.low", late=True, **of),
        Step(f"{name}.scaled", f"{_GATE} {reader}, scaled", "{0} / {streams}", _LOW, (f"{name}.low",), make=_share,
             at=f"{base}.scaled", **of),
        Step(f"{name}.act", f"{_GATE} {reader}, activated", "SiLU({0})", _LOW, (f"{name}.scaled",), make=activate,
             at=f"{base}.act", **of),
        Step(f"{name}.gate", f"{_GATE} {reader}", "{0}·W", STREAMS, (f"{name}.act",), make=project,
             module=f"{base}.gate", late=True, **of),
        Step(f"{name}.gated", f"streams, gated for {reader}", "{0} ⊙ σ({1})", STREAMS,
             (f"{name}.streams", f"{name}.gate"), make=lambda o, _: o.Switch(), at=f"{base}.gated", **of),
        Step(out, f"mean of the streams, gated for {reader}", "Σ {0} / {streams}", WIDE, (f"{name}.gated",), make=_mean,
             at=f"{base}.mean", **of | ({"absent": ""} if out == "final.norm" else {})),
    )  # fmt: skip


def _weights(name: str, writer: str, read: str) -> tuple[Step, ...]:
    """The rows from the normed streams to what multiplies the output of a part of the model in each stream."""
    title = f"what {writer} adds to each stream"
    return (
        Step(f"{name}.in", f"{title}, before its sigmoid", "{0}·W", _WEIGHTS, (f"{read}.streams",), make=project,
             module=f"{name}.in", late=True, **_OF),
        Step(f"{name}.scaled", f"{title}, scaled", "{0} / {streams}", _WEIGHTS, (f"{name}.in",), make=_share, **_OF),
        Step(f"{name}.share", f"{title}, as a share", "σ({0})", _WEIGHTS, (f"{name}.scaled",),
             make=lambda o, _: o.Sigmoid(), **_OF),
        Step(f"{name}.weight", f"weights of {title}", "2·{0}", _WEIGHTS, (f"{name}.share",),
             make=lambda o, _: o.Multiply(2.0), **_OF),
    )  # fmt: skip


_ADDED = "{1} + {2} of each stream · {0}"

BEFORE_MIXER = (*_read("read1", "read1", "attention", "<streams in>"), *_weights("write1", "attention", "read1"))
"""From the streams that enter a layer to the input of its mixer, and the weights of what that gives."""
BEFORE_FFN: tuple[Step, ...] = (
    Step("mid", "streams after attention", _ADDED, STREAMS, (ATTN, "<streams in>", "write1.weight"), recorded=True,
         make=_write, when=gates_streams),
    *_read("read2", "read2", "the feed-forward", "mid"),
    *_weights("write2", "the feed-forward", "read2"),
)  # fmt: skip
"""From the output of the mixer to the input of the feed-forward."""
OUT = Step("out", "streams after the feed-forward", _ADDED, STREAMS, (FFN, "mid", "write2.weight"), recorded=True,
           make=_write, when=gates_streams)  # fmt: skip
"""The streams after the layer."""
FINAL = _read("final", "final.norm", "the head", "")
"""From the streams after the last layer to what the head reads."""
