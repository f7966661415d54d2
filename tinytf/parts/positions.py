"""How attention tells positions apart: RoPE, ALiBi, embeddings of distances, queries scaled by position."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.norm import make_norm
from tinytf.parts.part import ABOVE_ZERO, COUNT, NOT_NEGATIVE, Part, choice, leaf, listed
from tinytf.parts.row import HEADS, KV, MAP, SCORES, Config, K, Predicate, Q, Step, make_linear

if TYPE_CHECKING:
    from types import ModuleType

_TURNS = {"rope_low_frequency", "rope_high_frequency", "rope_original_context"}
_SCALED_BY: Mapping[str, set[str]] = {
    "none": set(),
    "reversed": set(),
    "linear": {"rope_factor"},
    "llama3": {"rope_factor", *_TURNS},
    "dynamic": {"rope_factor", "rope_original_context"},
    "yarn": {"rope_factor", *_TURNS, "rope_attention_factor", "rope_truncate"},
    "longrope": {"rope_original_context", "rope_attention_factor", "rope_short_factors", "rope_long_factors"},
    "proportional": {"rope_factor", "rope_turned"},
}
"""The settings that each scaling reads."""
_OF_SCALINGS = set().union(*_SCALED_BY.values())


@dataclass(frozen=True, kw_only=True)
class Rotary(Part):
    """RoPE; ``Rope`` in tinytf.config explains the settings. ``rope_width`` 0 rotates the whole head."""

    rope_theta: float = leaf(
        10_000.0,
        ABOVE_ZERO,
        differs=True,
        usual=(10_000.0, 100_000.0, 500_000.0, 1_000_000.0),
        said="a rotary base of {}",
    )
    rope_width: int = leaf(0, COUNT, differs=True, zero="d_head", said="a rotation of {} dimensions of a head")
    rope_scaling: str = choice(
        "none", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional", "reversed", differs=True,
        said="{} scaling of RoPE", named={"llama3": "Llama 3's", "yarn": "YaRN's", "longrope": "LongRoPE's"},
    )  # fmt: skip
    rope_factor: float = leaf(
        1.0, ABOVE_ZERO, differs=True, usual=(2.0, 4.0, 8.0, 32.0, 40.0), said="angles scaled by {}"
    )
    rope_low_frequency: float = leaf(1.0, usual=(32.0,), said="low_freq_factor (YaRN: beta_slow) {}")
    rope_high_frequency: float = leaf(4.0, usual=(32.0,), said="high_freq_factor (YaRN: beta_fast) {}")
    rope_original_context: int = leaf(
        0, COUNT, usual=(2_048, 4_096, 8_192, 32_768), said="original_max_position_embeddings {}"
    )
    rope_attention_factor: float = leaf(1.0, ABOVE_ZERO, said="a factor of {} of the rotated queries and keys")
    rope_truncate: bool = leaf(True, said="rounding of YaRN's range")
    rope_turned: int = leaf(0, COUNT, said="a rotation of {} pairs of a head")
    rope_short_factors: tuple[float, ...] = leaf((), ABOVE_ZERO, said="the short factors {}")
    rope_long_factors: tuple[float, ...] = leaf((), ABOVE_ZERO, said="the long factors {}")

    def require(self) -> None:
        between = 0 < self.rope_low_frequency < self.rope_high_frequency < math.inf
        if self.rope_scaling in ("llama3", "yarn") and not between:
            raise ConfigError(
                f"rope_low_frequency {self.rope_low_frequency} is not between 0 and "
                f"rope_high_frequency {self.rope_high_frequency}"
            )
        if self.rope_scaling in ("dynamic", "llama3", "yarn", "longrope") and not self.rope_original_context:
            raise ConfigError(f"rope_scaling {self.rope_scaling!r} needs rope_original_context")
        if self.rope_scaling == "yarn" and self.rope_theta <= 1:
            raise ConfigError(f"rope_scaling 'yarn' needs a rope_theta above 1, not {self.rope_theta}")

    def idle(self) -> Collection[str]:
        return _OF_SCALINGS - _SCALED_BY[self.rope_scaling]

    def words_of(self, width: int) -> str:
        """The settings in words, for heads ``width`` wide."""
        rotated_width = self.rope_width or width
        since = f"from {self.rope_original_context:,} tokens"
        waves = f"{since}, {self.rope_low_frequency:g} to {self.rope_high_frequency:g} turns"
        ranges = (
            f"{factors[0]:g} … {factors[-1]:g}"
            for factors in (self.rope_short_factors, self.rope_long_factors)
            if factors
        )
        scaling = {
            "none": "",
            "reversed": "turned the other way",
            "linear": f"all frequencies / {self.rope_factor:g}",
            "dynamic": f"a base that grows with a longer text (dynamic, {since}, factor {self.rope_factor:g})",
            "llama3": f"long waves / {self.rope_factor:g} (llama3, {waves})",
            "yarn": f"long waves / {self.rope_factor:g} (yarn, {waves}{'' if self.rope_truncate else ', not rounded'})",
            "proportional": listed(
                f"only the fastest {self.rope_turned} of {rotated_width // 2} pairs turned",
                self.rope_factor != 1 and f"all frequencies / {self.rope_factor:g}",
            ),
            "longrope": f"each frequency by its own factor (longrope, {f' and {since} on '.join(ranges)})",
        }
        multiplied = self.rope_scaling in ("yarn", "longrope") and self.rope_attention_factor != 1
        return listed(
            f"rotary (RoPE), θ = {self.rope_theta:g}",
            scaling[self.rope_scaling],
            multiplied and f"rotated queries and keys times {self.rope_attention_factor:g}",
            rotated_width < width and f"{rotated_width} of {width} dimensions",
        )

    def require_head(self, width: int, positions: str) -> None:
        """Raise ConfigError where the settings do not fit heads ``width`` wide with these positions."""
        if positions == "rotary" and not self.rope_width and width % 2:
            raise ConfigError(f"d_head {width} is odd, but RoPE rotates pairs of dimensions")
        if self.rope_scaling != "none" and positions != "rotary":
            raise ConfigError(f"rope_scaling {self.rope_scaling!r} needs rotary positions")
        if self.rope_scaling == "dynamic" and (self.rope_width or width) <= 2:
            raise ConfigError("rope_scaling 'dynamic' needs more than one pair of dimensions")
        if self.rope_scaling == "proportional" and not 2 * self.rope_turned <= (self.rope_width or width):
            raise ConfigError(f"rope_turned {self.rope_turned} pairs are more than d_head {width} has")
        for name in ("rope_short_factors", "rope_long_factors") if self.rope_scaling == "longrope" else ():
            count, pairs = len(getattr(self, name)), (self.rope_width or width) // 2
            if count != pairs:
                raise ConfigError(f"{name} has {count:,} numbers for {pairs:,} pairs of dimensions")
        if not 0 <= self.rope_width <= width or self.rope_width % 2:
            raise ConfigError(f"rope_width {self.rope_width} is not an even number up to d_head {width}")


@dataclass(frozen=True, kw_only=True)
class Alibi(Part):
    """ALiBi: the last head's scores fall by 2^−``alibi_max_bias`` a token, and ``alibi_scale`` multiplies every slope.

    ``alibi_rounded`` rounds slope · position to bfloat16.
    """

    alibi_max_bias: float = leaf(8.0, ABOVE_ZERO, said="ALiBi slopes down to 2^−{}")
    alibi_scale: float = leaf(1.0, ABOVE_ZERO, said="ALiBi slopes times {}")
    alibi_rounded: bool = leaf(False, said="the rounding of ALiBi to bfloat16")

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "positions": listed(
                f"ALiBi, slopes down to 2^−{self.alibi_max_bias:g}",
                self.alibi_scale != 1 and f"times {self.alibi_scale:g}",
                self.alibi_rounded and "slope · position in bfloat16",
            )
        }


@dataclass(frozen=True, kw_only=True)
class Distances(Part):
    """Embeddings of ``distances`` to each side, shared by all layers (DeBERTa); 0 for none.

    ``distance_norm`` norms them. With a ``farthest`` the outer half of them stand for ranges of distances up to that
    one. Queries score keys made of them (``distance_keys``), and keys score queries made of them
    (``distance_queries``): by W_K and W_Q of the tokens, or by matrices of their own (``distance_matrices``). With
    ``distance_waves`` keys are made of fixed sines and cosines instead (XLNet).
    """

    distances: int = leaf(0, COUNT, said="embeddings of {} distances")
    farthest: int = leaf(0, COUNT, said="a farthest distance of {} tokens")
    distance_norm: bool = leaf(False, said="the norm of the embedded distances")
    distance_keys: bool = leaf(False, said="the keys made of distances")
    distance_queries: bool = leaf(False, said="the queries made of distances")
    distance_matrices: bool = leaf(False, said="matrices of their own for distances")
    distance_waves: bool = leaf(False, said="keys made of sines and cosines of distances")

    def require(self) -> None:
        if bool(self.distances) != (self.distance_keys or self.distance_queries):
            raise ConfigError(f"distances {self.distances} and distance_keys or distance_queries need each other")
        if self.distance_norm and not self.distances:
            raise ConfigError("distance_norm needs distances")
        others = self.distance_queries or self.distance_norm or self.farthest
        if self.distance_waves and (others or not (self.distance_keys and self.distance_matrices)):
            raise ConfigError("distance_waves are keys of every distance by a matrix of their own, without a norm")
        if self.farthest and not 2 <= self.distances < 2 * self.farthest - 3:
            raise ConfigError(f"farthest {self.farthest} does not fit distances {self.distances}")

    def words(self, causal: bool) -> dict[str, str]:
        if not self.distances:
            return {}
        matrices = "by their own matrices" if self.distance_matrices else "by the matrices of tokens"
        kinds = ("key",) * self.distance_keys + ("query",) * self.distance_queries
        vectors = " and ".join(f"a {kind} for each of {2 * self.distances:,} distances" for kind in kinds)
        return {
            "scores": f"{vectors} {matrices}",
            "positions": listed(
                "distances in the scores",
                bool(self.farthest) and f"far ones in ranges up to {self.farthest:,}",
                self.distance_norm and "their embeddings normed",
                self.distance_waves and "of sines and cosines",
            ),
        }


@dataclass(frozen=True, kw_only=True)
class Profiles(Part):
    """Learned ``profiles`` of a bias over ``profile_extent`` distances (0: all), which each query mixes for each head.

    The weights of that mixture are computed from what attention reads (Inkling).
    """

    profiles: int = leaf(0, COUNT, said="{} profiles of a bias of distance")
    profile_extent: int = leaf(0, COUNT, differs=True, said="a bias of {} distances", zero="context")

    def words(self, causal: bool) -> dict[str, str]:
        over = f"{self.profile_extent:,}" if self.profile_extent else "all"
        mixed = f"a mixture of {self.profiles} learned profiles over {over} distances"
        return {"scores": mixed if self.profiles else ""}


@dataclass(frozen=True, kw_only=True)
class Growth(Part):
    """Scales the query at position t by 1 + ``query_scale``·ln(1 + ⌊(t + ``…_first``) / ``…_every``⌋).

    With ``head_growth`` that of each head is scaled by s·ln(1 + t) + b, by numbers that it learned (Mistral Large 4).
    Scores, biases included, are scaled by 1 + ``score_scale``·ln(max(1, (t + 1) / ``…_from``)) (Inkling).
    """

    query_scale: float = leaf(0.0, NOT_NEGATIVE, differs=True, said="a growth of {} of late queries")
    query_scale_every: int = leaf(0, COUNT, said="queries that grow every {} tokens")
    query_scale_first: int = leaf(0, COUNT, said="queries that grow from token {} on")
    head_growth: bool = leaf(False, said="the growth of late queries that each head learns")
    score_scale: float = leaf(0.0, NOT_NEGATIVE, differs=True, said="a growth of {} of late scores")
    score_scale_from: int = leaf(0, COUNT, said="scores that grow from {} tokens on")

    def require(self) -> None:
        if self.query_scale and not self.query_scale_every:
            raise ConfigError(f"query_scale {self.query_scale:g} needs query_scale_every")
        if self.query_scale and self.head_growth:
            raise ConfigError("query_scale and head_growth exclude each other")
        if self.score_scale and not self.score_scale_from:
            raise ConfigError(f"score_scale {self.score_scale:g} needs score_scale_from")

    def words(self, causal: bool) -> dict[str, str]:
        position = f"(t + {self.query_scale_first})" if self.query_scale_first else "t"
        grown = f"1 + {self.query_scale:g}·ln(1 + ⌊{position} / {self.query_scale_every}⌋)"
        later = f"1 + {self.score_scale:g}·ln(max(1; (t + 1) / {self.score_scale_from}))"
        return {
            "scores": listed(
                bool(self.query_scale) and f"queries at position t times {grown}",
                self.head_growth and "queries at position t of each head times s·ln(1 + t) + b",
                bool(self.score_scale) and f"scores at position t times {later}",
            )
        }


def make_projection(o: "ModuleType", c: Config) -> Any:
    """The operation that projects to queries, keys or values."""
    return make_linear(o, c.qkv_bias, c.qkv_groups)


def make_keys(o: "ModuleType", c: Config) -> Any:
    """The operation that projects to keys, which may lack the bias of queries and values."""
    return make_linear(o, c.qkv_bias and c.k_bias, c.qkv_groups)


def _rotary(c: Config) -> bool:
    return c.positions == "rotary"


def owns_keys(c: Config) -> bool:
    """Whether attention makes keys and values of its own."""
    return not c.shares_keys


NOT_OWN = "this layer takes the keys and values of an earlier one"


def _distant(matrices: bool, *, keys: bool) -> Predicate:
    """Whether keys (or queries) are made of distances, by ``matrices`` of their own (or by those of tokens)."""
    return lambda c: (c.distance_keys if keys else c.distance_queries) and c.distance_matrices == matrices


def _by_distance(o: "ModuleType", c: Config, of_keys: bool) -> Any:
    return o.ByDistance(c.distances, c.farthest, of_keys)


def _shift(o: "ModuleType", _: Config) -> Any:
    return o.Shift()


_DISTANCES = ("distance", "d_model")
_OF_DISTANCES = ("head", "distance", "d_head")
_NO_BIASES = "queries have no biases for what they score in this model"
_NO_SEGMENTS = "scores do not depend on segments in this model"
_NO_DISTANCES = "scores do not depend on embeddings of distances in this model"

PROFILED: tuple[Step, ...] = (
    Step("r", "weights of the profiles of distance", "{0}·W_R", ("head", "token", "profile"), ("<into mixer>",), "q",
         when=lambda c: c.profiles > 0, absent="{no_profiles}", make=lambda o, _: o.Linear(False),
         module="attention.r", matrix="W_R", late=True),
)  # fmt: skip
"""What each query mixes the profiles of distance by."""
TURNED: tuple[Step, ...] = (
    Step("q_rot", "queries, rotated", "{0} turned by its position", HEADS, (Q,), "q", when=_rotary,
         absent="{no_rotary}", make=lambda o, c: o.Rotate(c.rope)),
    Step("k_rot", "keys, rotated", "{0} turned by its position", KV, (K,), "k",
         when=lambda c: _rotary(c) and owns_keys(c),
         absent="{no_rotary}", make=lambda o, c: o.Rotate(c.rope)),
)  # fmt: skip
"""Queries and keys, rotated by RoPE."""
GROWN: tuple[Step, ...] = (
    Step("q_scaled", "queries, scaled by position", "{0} · (1 + {query_scale})", HEADS, (Q,), "q",
         when=lambda c: c.query_scale > 0, absent="queries are not scaled by their position in this layer",
         make=lambda o, c: o.Grow(c.query_scale, c.query_scale_every, c.query_scale_first)),
    Step("q_scaled", "queries, scaled by position in each head", "{0} · (s·ln(1 + position) + b)", HEADS, (Q,), "q",
         when=lambda c: c.head_growth, make=lambda o, _: o.GrowHeads(), module="attention.q_growth", matrix="",
         late=True),
)  # fmt: skip
"""Queries, scaled by their position."""
SHIFTED: tuple[Step, ...] = (
    Step("q_segment", "queries that score segments", "{0} + b", HEADS, ("q",), "q", when=lambda c: c.segments,
         absent=_NO_SEGMENTS, make=_shift, module="attention.q_segment", matrix="", late=True),
    Step("q_position", "queries that score distances", "{0} + b", HEADS, ("q",), "q",
         when=lambda c: c.query_biases and c.distance_keys, absent=_NO_BIASES, make=_shift,
         module="attention.q_position", matrix="", late=True),
    Step("q_content", "queries that score keys", "{0} + b", HEADS, ("q",), "q", when=lambda c: c.query_biases,
         absent=_NO_BIASES, make=_shift, module="attention.q_content", matrix="", late=True),
)  # fmt: skip
"""Queries with a bias of their own for each of the things that they score."""
OF_DISTANCES: tuple[Step, ...] = (
    Step("distances", "embeddings of distances", "R", _DISTANCES, (), "embed", symbol="R",
         when=lambda c: c.distances > 0 and not c.distance_waves,
         absent=_NO_DISTANCES, make=lambda o, _: o.Table(), module="attention.distances", matrix="R", shared=True,
         late=True),
    Step("distances_norm", "embeddings of distances, normed", "n = {norm}({0})", _DISTANCES, ("distances",), "embed",
         symbol="n",
         when=lambda c: c.distance_norm, absent="{no_distance_norm}", make=make_norm,
         module="attention.distances_norm", matrix="gain", shared=True, late=True),
    Step("pos_k", "keys of distances, as of tokens", "{0}·W_K{k_bias}", _OF_DISTANCES, ("<distances>",), "k",
         when=_distant(False, keys=True), make=make_keys, module="attention.k", matrix="W_K",
         at="attention.pos_k", late=True),
    Step("pos_k", "keys of distances, of waves", "[sin | cos](query − key)·W_KD", _OF_DISTANCES, (), "k",
         when=lambda c: c.distance_waves, make=lambda o, c: o.WaveKeys(c.distances, c.d_head),
         module="attention.pos_k", matrix="W_KD", late=True),
    Step("pos_k", "keys of distances", "{0}·W_KD{k_bias}", _OF_DISTANCES, ("<distances>",), "k",
         when=lambda c: _distant(True, keys=True)(c) and not c.distance_waves, absent="{no_distance_keys}",
         make=make_keys, module="attention.pos_k", matrix="W_KD", late=True),
    Step("pos_q", "queries of distances, as of tokens", "{0}·W_Q{qkv_bias}", _OF_DISTANCES, ("<distances>",),
         "q", when=_distant(False, keys=False), make=make_projection, module="attention.q", matrix="W_Q",
         at="attention.pos_q", late=True),
    Step("pos_q", "queries of distances", "{0}·W_QD{qkv_bias}", _OF_DISTANCES, ("<distances>",), "q",
         when=_distant(True, keys=False), absent="{no_distance_queries}", make=make_projection,
         module="attention.pos_q", matrix="W_QD", late=True),
)  # fmt: skip
"""Embeddings of distances, and the keys and queries made of them."""
SCORED: tuple[Step, ...] = (
    Step("c2p", "scores, with content to position", "{0} + {1}·{2}[query − key]", MAP,
         (SCORES, "<q of distances>", "pos_k"),
         "attention", core=True, when=lambda c: c.distance_keys, absent="queries score no distances in this model",
         make=lambda o, c: _by_distance(o, c, of_keys=False)),
    Step("p2c", "scores, with position to content", "{0} + {1}·{2}[query − key]", MAP, (SCORES, K, "pos_q"),
         "attention", core=True, when=lambda c: c.distance_queries, absent="keys score no distances in this model",
         make=lambda o, c: _by_distance(o, c, of_keys=True)),
    Step("segment", "scores, with segments", "{0} + G[another segment]·{1}", MAP, (SCORES, "q_segment"),
         "attention", core=True, when=lambda c: c.segments, absent=_NO_SEGMENTS, make=lambda o, _: o.BySegment(),
         module="attention.segments", matrix="G", late=True),
)  # fmt: skip
"""Scores with the products of distances added, before the scaling."""
_RELATIVE = Step(
    "relative", "scores, with a bias of distance", "{0} + B[bucket(key − query)]", MAP, (SCORES,), "attention",
    core=True, when=lambda c: c.relative_buckets > 0 and not c.relative_by_layer,
    absent="scores have no learned bias in this model",
    make=lambda o, c: o.RelativeBias(c.relative_buckets, not c.causal, c.relative_farthest),
    module="attention.relative", matrix="B", shared=True, late=True,
)  # fmt: skip
BIASED: tuple[Step, ...] = (
    _RELATIVE,
    replace(_RELATIVE, title="scores, with a bias of distance of each layer", shared=False,
            when=lambda c: c.relative_buckets > 0 and c.relative_by_layer),
    Step("profiled", "scores, with profiles of distance", "{0} + {1}·P_R[query − key] within {profile_extent}", MAP,
         (SCORES, "r"), "attention", core=True, when=lambda c: c.profiles > 0, absent="{no_profiles}",
         make=lambda o, c: o.Profile(c.profile_extent or c.context), module="attention.profile", matrix="P_R",
         late=True),
    Step("biased", "scores, less by distance", "{0} − slope·(query − key){alibi_scale}", MAP, (SCORES,),
         "attention", core=True, when=lambda c: c.positions == "alibi",
         absent="attention scores do not fall with distance in this model",
         make=lambda o, c: o.Alibi(c.n_heads, c.alibi_max_bias, c.alibi_scale, c.alibi_rounded)),
    Step("grown", "scores, scaled by the position of the query", "{0} · (1 + {score_scale})", MAP, (SCORES,),
         "attention", core=True, when=lambda c: c.score_scale > 0,
         absent="scores are not scaled by the position of their query in this layer",
         make=lambda o, c: o.GrowFrom(c.score_scale, c.score_scale_from, 1)),
)  # fmt: skip
"""Scores with a bias by distance, after the scaling, and a growth with the position."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    no_sum = {
        "none": "this model has no positions",
        "alibi": "this model has ALiBi, by which scores fall with distance; see biased",
    }.get(c.positions, "")
    position = f"(t + {c.query_scale_first})" if c.query_scale_first else "t"
    unnormed = "embeddings of distances are not normed in this model"
    return {
        "no_rotary": no_sum
        or (NOT_OWN if _rotary(c) else "")
        or f"positions are {c.positions}, added to the embeddings, so nothing is rotated",
        "no_added_positions": no_sum or "positions are rotary: RoPE turns q and k in every layer; see q_rot and k_rot",
        "no_profiles": "scores have no profiles of distance in this model",
        "profile_extent": f"{c.profile_extent or c.context:,}",
        "no_distance_norm": unnormed if c.distances else _NO_DISTANCES,
        "no_distance_keys": _no_matrix(c, c.distance_keys, "keys", "W_K"),
        "no_distance_queries": _no_matrix(c, c.distance_queries, "queries", "W_Q"),
        "query_scale": f"{c.query_scale:g}·ln(1 + ⌊{position} / {c.query_scale_every:,}⌋)",
        "score_scale": f"{c.score_scale:g}·ln(max(1, (t + 1) / {c.score_scale_from:,}))",
        "alibi_scale": "" if c.alibi_scale == 1 else f"·{c.alibi_scale:.4g}",
    }


def _no_matrix(c: Config, is_made: bool, kind: str, matrix: str) -> str:
    """Why ``kind`` of distances have no matrix of their own."""
    if is_made:
        return f"{kind} of distances are made by {matrix} in this model, as those of tokens"
    return f"no {kind} are made of distances in this model" if c.distances else _NO_DISTANCES


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {
        "<distances>": ("distances_norm",) if c.distance_norm else ("distances",),
        "<q of distances>": ("q_position",) if c.query_biases else (Q,),
    }
