"""Hyper-connections: several residual streams, read, written and mixed by weights of their own (Xie et al. 2026)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.parts.norm import gates_streams, has_hyper
from tinytf.parts.part import ABOVE_ZERO, COUNT, NOT_NEGATIVE, Part, leaf, listed
from tinytf.parts.row import STREAMS, WIDE, Config, Predicate, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Hyper(Part):
    """With ``hyper`` every stream begins as the embeddings, and attention and the feed-forward read a sum of streams.

    Each of them computes the weights of that sum from the streams, and those by which it adds its output to each of
    them: sigmoids plus ``hyper_eps``, the latter times ``hyper_magnitude``. With ``sinkhorn_rounds`` the streams are
    mixed before by a matrix whose rows and columns are divided by their sums as often, and ``hyper_eps`` is in these
    sums rather than in the weights of the output (DeepSeek-V4); without, they are kept as they are (Hunyuan 4). What is
    unembedded is such a sum too or, with ``streams_averaged``, the mean of the streams (GLM-5).
    """

    hyper: bool = leaf(False, said="hyper-connections")
    hyper_magnitude: float = leaf(2.0, ABOVE_ZERO, said="what is written to streams, times {}")
    hyper_eps: float = leaf(1e-6, NOT_NEGATIVE, said="an ε of {} in the weights of streams")
    sinkhorn_rounds: int = leaf(0, COUNT, said="{} rounds of Sinkhorn", usual=(20,))
    streams_averaged: bool = leaf(False, said="the mean of the streams after the last layer")

    def words_of(self, streams: int) -> str:
        """The streams in words."""
        return listed(
            f"{streams} streams, read and written by hyper-connections",
            f"weights of what is written up to {self.hyper_magnitude:g}",
            f"ε {self.hyper_eps:g}",
            bool(self.sinkhorn_rounds) and f"mixed by matrices of {self.sinkhorn_rounds} Sinkhorn rounds",
            self.streams_averaged and "averaged in the end",
        )


Matrix = tuple[tuple[float, ...], ...]
_ONE = "this model has no hyper-connections"
_NOT_MIXED = "streams are not mixed in this model: each is kept as it is"


def _mixed(c: Config) -> bool:
    return has_hyper(c) and c.sinkhorn_rounds > 0


def _weighed(c: Config) -> bool:
    return has_hyper(c) and not c.streams_averaged


def _all(o: "ModuleType", c: Config, constant: float) -> Any:
    """One sum of all streams, by weights to which a ``constant`` is added."""
    return o.MixStreams(((constant,) * (c.extra_streams + 1),), weighted=c.extra_streams + 1)


def _mix(o: "ModuleType", c: Config) -> Any:
    streams = c.extra_streams + 1
    return o.MixStreams(((0.0,) * streams,) * streams, weighted=streams)


def _written(o: "ModuleType", c: Config) -> Any:
    streams, eps = range(c.extra_streams + 1), 0.0 if _mixed(c) else c.hyper_eps
    return o.MixStreams(tuple((eps, *(float(row == column) for column in streams)) for row in streams), weighted=1)


def _scores(at: str, called: str, axis: str, when: Predicate, **where: Any) -> tuple[Step, Step]:
    """From the normed streams of ``at`` to the scores of weights."""
    path, absent = where.pop("path", at), where.pop("absent", _ONE)
    return (
        Step(f"{at}.{called}_scaled", f"streams, scaled for the scores of {called}", "{0} · gain", STREAMS,
             (f"{at}.norm_all",), when=when, absent=absent, make=lambda o, _: o.Gain(one=True),
             module=f"{path}.{called}_scaled", matrix="gain", late=True, **where),
        Step(f"{at}.{called}_scores", f"scores of {called}", "{0}·W + b", ("token", axis), (f"{at}.{called}_scaled",),
             when=when, absent=absent, make=lambda o, _: o.Linear(True), module=f"{path}.{called}_scores", late=True,
             **where),
    )  # fmt: skip


def _shares(at: str, called: str, when: Predicate, **where: Any) -> Step:
    path = where.pop("path", at)
    return Step(f"{at}.{called}", f"weights of the streams in what is {called}", "σ({0})", ("token", "stream"),
                (f"{at}.{called}_scores",), when=when, absent=_ONE, make=lambda o, _: o.Sigmoid(rounded=True),
                at=f"{path}.{called}", **where)  # fmt: skip


def _half(at: str, source: str, reader: str) -> tuple[Step, ...]:
    """From the streams ``source`` to what ``reader`` reads, and to the weights by which its output is added."""
    return (
        Step(f"{at}.norm_all", "all streams, normed as one", "RMSNorm({0})", STREAMS, (source,), when=has_hyper,
             absent=_ONE, make=lambda o, c: o.Norm(False, c.norm_eps, ()), module=f"{at}.norm_all", matrix="gain",
             late=True),
        *_scores(at, "read", "stream", has_hyper),
        _shares(at, "read", has_hyper),
        Step(f"{at}.in", f"what {reader} reads of the streams", "Σ ({1} + {hyper_eps})·{0}", WIDE,
             (source, f"{at}.read"), when=has_hyper, absent=_ONE, make=lambda o, c: _all(o, c, c.hyper_eps)),
        *_scores(at, "written", "stream", has_hyper),
        _shares(at, "written", has_hyper),
        Step(f"{at}.write", f"weights of what {reader} adds to each stream", "{0} · {hyper_magnitude}",
             ("token", "stream"), (f"{at}.written",), when=has_hyper, absent=_ONE,
             make=lambda o, c: o.Multiply(c.hyper_magnitude)),
        *_scores(at, "mixed", "stream·stream", _mixed, absent=_NOT_MIXED),
        Step(f"{at}.mix", "weights of each stream in each, rows and columns near a sum of 1", "Sinkhorn({0})ᵀ",
             ("token", "stream·stream"), (f"{at}.mixed_scores",), when=_mixed, absent=_NOT_MIXED,
             make=lambda o, c: o.Sinkhorn(c.extra_streams + 1, c.sinkhorn_rounds, c.hyper_eps)),
        Step(f"{at}.kept", "streams, mixed", "{1}·{0}", STREAMS, (source, f"{at}.mix"), when=_mixed,
             absent=_NOT_MIXED, make=_mix),
    )  # fmt: skip


def written(name: str, after: str, added: Any, **settings: Any) -> Step:
    """The streams after a part of the layer, to which its output is ``added``."""
    half = "hyper1" if name == "mid" else "hyper2"
    return Step(name, f"streams after {after}", "{1} + ({2} + {written_eps})·{0}", STREAMS,
                (added, f"<kept {half}>", f"{half}.write"), when=has_hyper, make=_written, **settings)  # fmt: skip


AFTER_EMBEDDING = Step("streams.out", "all streams, each a copy of the embeddings", "[{0} | … | {0}]", STREAMS,
                       ("embed.out",), "residual", False, True,
                       when=lambda c: has_hyper(c) or gates_streams(c),
                       make=lambda o, c: o.MixStreams(((1.0,),) * (c.extra_streams + 1)))  # fmt: skip
"""From the embeddings to the streams, where none is predicted."""
BEFORE_MIXER = _half("hyper1", "in", "attention")
BEFORE_FFN = _half("hyper2", "mid", "the feed-forward")
_LAST: dict[str, Any] = {"in_layer": False, "path": "final_norm"}
MERGED: tuple[Step, ...] = (
    Step("final.streams", "all streams after the last layer", "x", STREAMS, (), "residual", False, when=has_hyper,
         absent=_ONE, make=lambda o, _: o.Same(), at="final_norm.streams", from_stream=True),
    Step("final.norm_all", "all streams, normed as one", "RMSNorm({0})", STREAMS, ("final.streams",), "residual",
         False, when=_weighed, absent=_ONE, make=lambda o, c: o.Norm(False, c.norm_eps, ()),
         module="final_norm.norm_all", matrix="gain", late=True),
    *_scores("final", "read", "stream", _weighed, **_LAST),
    _shares("final", "read", _weighed, **_LAST),
    Step("final.sum", "what is unembedded of the streams", "Σ ({1} + {hyper_eps})·{0}", WIDE,
         ("final.streams", "final.read"), "residual", False, when=_weighed, absent=_ONE,
         make=lambda o, c: _all(o, c, c.hyper_eps), at="final_norm.sum"),
    Step("final.sum", "the mean of the streams, as they are", "Σ {0} / {streams}", WIDE, ("final.streams",),
         "residual", False, when=lambda c: has_hyper(c) and c.streams_averaged, at="final_norm.sum",
         make=lambda o, c: o.MixStreams(((1 / (c.extra_streams + 1),) * (c.extra_streams + 1),))),
    Step("final.norm", "final norm of the sum", "{norm}({0})", WIDE, ("final.sum",), "residual", False, True,
         when=has_hyper, make=lambda o, c: o.Norm(c.norm == "layernorm", c.final_eps, c.norm_parameters),
         module="final_norm.norm", matrix="gain"),
)  # fmt: skip
"""From the streams after the last layer to its final norm."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {
        "hyper_eps": f"{c.hyper_eps:g}",
        "written_eps": f"{0.0 if _mixed(c) else c.hyper_eps:g}",
        "hyper_magnitude": f"{c.hyper_magnitude:g}",
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    mixed = _mixed(c)
    return {
        "<kept hyper1>": ("hyper1.kept" if mixed else "in",),
        "<kept hyper2>": ("hyper2.kept" if mixed else "mid",),
    }
