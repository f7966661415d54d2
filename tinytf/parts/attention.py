"""Softmax attention: the mixer of most architectures."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts import blocks, indexer
from tinytf.parts.added_conv import KEYS_AND_VALUES
from tinytf.parts.blocks import Blocks, has_blocks
from tinytf.parts.indexer import Indexer
from tinytf.parts.memory import ADAPTED_ATTENTION
from tinytf.parts.part import (
    ABOVE_ZERO,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    ROUNDED,
    SHARE,
    Part,
    choice,
    leaf,
    listed,
    merged,
)
from tinytf.parts.positions import (
    BIASED,
    GROWN,
    NOT_OWN,
    OF_DISTANCES,
    PROFILED,
    SCORED,
    SHIFTED,
    TURNED,
    Alibi,
    Distances,
    Growth,
    Profiles,
    Rotary,
    make_keys,
    make_projection,
    owns_keys,
)
from tinytf.parts.row import (
    HEADS,
    KV,
    MAP,
    OF_HEADS,
    RESIDUAL,
    ROUTES,
    SCORES,
    VALUES,
    WIDE,
    Config,
    K,
    Q,
    Step,
    V,
    grouped_words,
    make_linear,
)

if TYPE_CHECKING:
    from types import ModuleType

POSITIONS = ("learned", "sinusoidal", "sinusoidal_halves", "sinusoidal_concat", "rotary", "alibi", "none")
_POSITIONED = {
    "learned": "learned positions", "sinusoidal": "sinusoidal positions", "rotary": "RoPE", "alibi": "ALiBi",
    "sinusoidal_halves": "sinusoidal positions, sines in the first half",
    "sinusoidal_concat": "sinusoidal positions, sines before cosines",
}  # fmt: skip
_ACROSS = {"head": "", "heads": " with a gain for each head", "all": " over all heads"}
_OVER = {"head": "each head", "heads": "each head, with a gain for each", "all": "all heads"}
LATENT_EPS = 1e-6
"""ε of the norms of latent attention, independent of ``norm_eps``."""


@dataclass(frozen=True, kw_only=True)
class Latent(Part):
    """Latent attention: keys and values are computed from a normed vector ``kv_rank`` wide (DeepSeek-V2).

    Every key then begins with ``rope_width`` dimensions that all heads share and RoPE rotates. With a ``q_rank``
    queries too are computed from a vector of that width, even without a ``kv_rank`` (DeepSeek-V4). ``kv_scale``
    multiplies the normed vector (LongCat-Flash), and ``latent_eps`` is the ε of these norms. Without positions
    ``rope_width`` may be 0: no part is shared. A layer that ``shares_latent`` takes the vector and the shared part of
    the last layer below with its own (Mistral Large 4).
    """

    q_rank: int = leaf(0, COUNT, said="a rank of {} of queries")
    kv_rank: int = leaf(0, COUNT, said="a rank of {} of keys and values")
    kv_scale: float = leaf(1.0, ABOVE_ZERO, said="latent keys and values times {}")
    latent_eps: float = leaf(LATENT_EPS, ABOVE_ZERO, said="eps {} of the norms of latent vectors")
    shares_latent: bool = leaf(False, differs=True, said="the latent keys and values of an earlier layer")

    def require(self) -> None:
        if self.kv_scale != 1 and not self.kv_rank:
            raise ConfigError(f"kv_scale {self.kv_scale:g} needs a kv_rank")
        if self.shares_latent and not self.kv_rank:
            raise ConfigError("shares_latent needs a kv_rank")

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "widths": listed(
                bool(self.kv_rank) and f"keys and values of {self.kv_rank} numbers a token{self._scale_words()}",
                self.shares_latent and "those of an earlier layer",
                bool(self.q_rank) and f"queries of {self.q_rank}",
                self.latent_eps != LATENT_EPS and f"normed with ε {self.latent_eps:g}",
            )
        }

    def _scale_words(self) -> str:
        return f" times {self.kv_scale:.4g}" if self.kv_scale != 1 else ""


@dataclass(frozen=True, kw_only=True)
class QKNorm(Part):
    """A norm of queries and keys: of each head with one gain for all heads (``head``) or one for each (``heads``).

    Or of all heads at once (``all``). With ``qk_norm_last`` it follows the rotation; without ``qk_norm_gain`` it has
    no parameters, and without ``qk_norm_bias`` no bias where the other norms have one (StableLM).
    Without ``q_norm_gain`` that of queries has no parameters (DeepSeek-V4).
    ``v_norm`` norms the values of each head too, without parameters (Gemma 4).
    """

    qk_norm: bool = leaf(False, differs=True, said="the norm of queries and keys")
    qk_norm_across: str = choice(
        "head",
        "heads",
        "all",
        said="a norm of queries and keys over {}",
        named={"head": "each head", "heads": "each head, with a gain for each", "all": "all heads"},
    )
    qk_norm_last: bool = leaf(
        False, said="the norm of queries and keys {} the rotation", named={True: "after", False: "before"}
    )
    qk_norm_gain: bool = leaf(True, said="the gain of the norm of queries and keys")
    qk_norm_bias: bool = leaf(True, said="the bias of the norm of queries and keys")
    q_norm_gain: bool = leaf(True, said="the gain of the norm of queries")
    v_norm: bool = leaf(False, said="the norm of values")

    def require(self) -> None:
        if self.qk_norm_last and self.qk_norm_across != "head":
            raise ConfigError("qk_norm_last needs qk_norm_across 'head': a norm of each head, with one gain for all")

    def words(self, causal: bool) -> dict[str, str]:
        after = " after the rotation" if self.qk_norm_last else ""
        gain = " without a gain" if not self.qk_norm_gain else "" if self.qk_norm_bias else " without a bias"
        gain += " and that of q without a gain" * (self.qk_norm_gain and not self.q_norm_gain)
        queries_keys = self.qk_norm and f"on q and k too{_ACROSS[self.qk_norm_across]}{after}{gain}"
        return {"norm": listed(queries_keys, self.v_norm and "on v too without a gain")}


@dataclass(frozen=True, kw_only=True)
class Attention(Part):
    """Attention with ``n_heads`` query heads and ``n_kv_heads`` key and value heads (0: as many).

    Values are ``d_value`` wide (0: as queries and keys). Without its ``mask`` a decoder looks both ways. With a
    ``window`` a token sees only itself and the window − 1 tokens before it, in an encoder as many after it too; with
    ``chunk`` it sees only the earlier tokens of its own chunk of that many. Scores are divided by ``attention_divisor``
    (0: √d_head) and softly capped at ``attention_cap``; ``attention_sinks`` adds a learned logit per head that takes a
    share of every softmax. Without ``k_bias`` keys have no bias where queries and values do (DeBERTa), without
    ``gate_bias`` the gate (LFM3). Queries, keys and values are clipped to ±``clip_qkv``. ``values_of_keys`` have no
    matrix of their own: they are the keys before their norm and rotation (Gemma 4). With ``values_turned`` they are the
    keys after both, and what a head gives is rotated back by the position of its query; ``o_groups`` of heads then each
    make an equal part of ``o_rank`` numbers, 0 for none, from which the output is computed (DeepSeek-V4). With
    ``shares_keys`` a layer has queries only: its keys and values are those of the last layer below with its own and as
    wide a window. Each of ``relative_buckets`` of distances adds a learned bias to the scores, shared by all layers
    (MPNet, T5) unless ``relative_by_layer`` (UMT5); all from ``relative_farthest`` on fall into one.
    ``sinusoidal_halves`` puts all sines before all cosines (XGLM), as does ``sinusoidal_concat`` with the frequencies
    of the paper (CTRL). ``talking_heads`` mixes the maps of all heads before and after the softmax. ``attention_gate``
    multiplies every number that a head gives by the ``gate_function`` of another, computed from the input of attention
    (Qiu et al. 2025); with ``gate_by_head`` there is one such number for each head (Laguna). ``query_biases`` are added
    to queries, one where they score keys and another where they score distances; with ``segments`` they score, by a
    third, vectors of their own segment and of all others (XLNet). ``out_norm`` norms what all heads give before the
    last matrix (BitNet). ``qkv_groups`` are equal parts of a token that make as many equal parts of its queries, keys
    and values, each by a matrix of its own (SqueezeBERT). With ``head_experts`` every key-value head has a query head
    of each expert, and a router chooses as many experts as in the feed-forward: their heads are multiplied by their
    weight, those of the others by 0 (Shen et al. 2024). With a ``lambda_init`` heads h and h + H/2 both use the
    difference of their maps, and what the two give is normed together and multiplied by 1 − ``lambda_init`` (Ye et al.
    2024).
    """

    called = "attention"
    state_size = 0  # keys and values grow with the text instead
    n_heads: int = leaf(limits=POSITIVE, differs=True, said="{} heads")
    n_kv_heads: int = leaf(0, COUNT, differs=True, said="{} key heads", zero="n_heads")
    d_head: int = leaf(0, COUNT, differs=True, said="heads {} wide", zero="d_model / n_heads")
    d_value: int = leaf(0, COUNT, differs=True, said="values {} wide", zero="d_head")
    mask: bool = leaf(True, said="the causal mask")
    window: int = leaf(0, COUNT, differs=True, said="a window of {} tokens", usual=(128, 512, 1_024, 4_096))
    chunk: int = leaf(0, COUNT, differs=True, said="chunks of {} tokens")
    attention_divisor: float = leaf(0.0, NOT_NEGATIVE, differs=True, zero="√d_head", said="scores divided by {}")
    attention_cap: float = leaf(0.0, NOT_NEGATIVE, usual=(50.0, 30.0), said="a soft cap of {} of the scores")
    attention_sinks: bool = leaf(False, differs=True, said="attention sinks")
    talking_heads: bool = leaf(False, said="the mix of maps over heads")
    lambda_init: float = leaf(0.0, SHARE, differs=True, said="an initial share of {} of the second map")
    attention_gate: bool = leaf(False, said="the gate of attention")
    gate_by_head: bool = leaf(False, said="one gate for each head")
    gate_function: str = choice(
        "sigmoid",
        "softplus",
        said="{} as the gate of attention",
        named={"sigmoid": "a sigmoid", "softplus": "a softplus"},
    )
    out_norm: bool = leaf(False, said="the norm of the heads side by side")
    head_experts: bool = leaf(False, said="the experts of heads")
    clip_qkv: float = leaf(0.0, NOT_NEGATIVE, usual=(6.0, 8.0), said="clipping of q, k and v to ±{}")
    qkv_bias: bool = leaf(True, said="the bias of q, k and v")
    k_bias: bool = leaf(True, said="the bias of k")
    gate_bias: bool = leaf(True, said="the bias of the gate of attention")
    qkv_groups: int = leaf(1, POSITIVE, said="q, k and v stored in {} groups")
    query_biases: bool = leaf(False, said="biases of queries")
    segments: bool = leaf(False, said="the scores of segments")
    values_of_keys: bool = leaf(False, differs=True, said="values that are the keys")
    values_turned: bool = leaf(False, said="values that are the rotated keys")
    shares_keys: bool = leaf(False, differs=True, said="the keys and values of an earlier layer")
    o_bias: bool = leaf(True, differs=True, said="the bias of the output of attention")
    o_groups: int = leaf(1, POSITIVE, said="{} groups of heads in the output of attention")
    o_rank: int = leaf(0, COUNT, said="a rank of {} of the output of attention")
    latent: Latent = field(default_factory=Latent)
    indexer: Indexer = field(default_factory=Indexer)
    blocks: Blocks = field(default_factory=Blocks)
    qk_norms: QKNorm = field(default_factory=QKNorm)
    positions: str = choice(*POSITIONS, differs=True, off="none", said="{}", named=_POSITIONED)
    rotary: Rotary = field(default_factory=Rotary)
    alibi: Alibi = field(default_factory=Alibi)
    relative_buckets: int = leaf(0, COUNT, said="{} buckets of relative positions")
    relative_by_layer: bool = leaf(False, said="a bias of distance for each layer")
    relative_farthest: int = leaf(128, POSITIVE, usual=(20, 256), said="distances of {} tokens and more in one bucket")
    by_distance: Distances = field(default_factory=Distances)
    growth: Growth = field(default_factory=Growth)
    profile: Profiles = field(default_factory=Profiles)

    def require(self) -> None:
        if not self.n_kv_heads:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.d_value == self.d_head:
            object.__setattr__(self, "d_value", 0)
        if math.isclose(self.attention_divisor, math.sqrt(self.d_head), rel_tol=ROUNDED):
            object.__setattr__(self, "attention_divisor", 0.0)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.n_kv_heads}")
        self.rotary.require_head(self.d_head, self.positions)
        for name in ("k_bias", "gate_bias"):
            if not (getattr(self, name) or self.qkv_bias):
                raise ConfigError(f"{name} is false, but qkv_bias is too", f"leave {name} as it is")
        if self.values_of_keys and (self.latent.kv_rank or self.d_value or (self.qkv_bias and not self.k_bias)):
            raise ConfigError("values_of_keys need keys of one matrix, with the width and bias of the values")
        if self.shares_keys and (self.latent.kv_rank or self.attention_gate or self.by_distance.distances):
            raise ConfigError("shares_keys needs attention without latent keys, gates and distances")
        scaled = self.latent.kv_rank or self.qk_norms.qk_norm or self.clip_qkv or self.growth.query_scale
        if self.query_biases and (scaled or self.positions == "rotary"):
            raise ConfigError("query_biases need queries that nothing norms, clips, turns or scales")
        if self.segments and not self.query_biases:
            raise ConfigError("segments need query_biases")
        if self.latent.kv_rank:
            self._require_latent()
        if self.lambda_init and (self.n_heads % 2 or self.n_kv_heads % 2):
            heads = f"{self.n_heads} heads and {self.n_kv_heads} key-value heads"
            raise ConfigError(f"lambda_init needs an even number of each, not {heads}")
        if self.attention_gate + self.head_experts + bool(self.lambda_init) > 1:
            raise ConfigError("attention_gate, head_experts and lambda_init exclude one another")
        if self.values_turned and (self.values_of_keys or self.latent.kv_rank or self.d_value or self.shares_keys):
            raise ConfigError("values_turned need keys of their own, and no other values")
        if self.blocks.block_size and not (self.attention_sinks and self.values_turned and self.n_kv_heads == 1):
            raise ConfigError("a block_size needs attention_sinks, values_turned and one key head")
        if self.blocks.block_size and (self.talking_heads or self.lambda_init or self.attention_cap):
            raise ConfigError("a block_size needs scores that are neither capped nor mixed")
        if self.o_rank % self.o_groups or self.n_heads % self.o_groups or (self.o_groups > 1 and not self.o_rank):
            raise ConfigError(f"o_groups {self.o_groups} do not divide n_heads {self.n_heads} and o_rank {self.o_rank}")
        if self.relative_buckets % 4:
            raise ConfigError(f"relative_buckets {self.relative_buckets} is not a multiple of 4")
        of_distances = self.by_distance.distances
        if of_distances and (self.n_kv_heads != self.n_heads or self.latent.kv_rank):
            raise ConfigError(f"distances {of_distances} need a key head for each query head")
        if self.qkv_groups > 1:
            self._require_groups()

    def _require_groups(self) -> None:
        groups = self.qkv_groups
        if self.latent.kv_rank or self.attention_gate or self.by_distance.distances:
            raise ConfigError(f"qkv_groups {groups} needs attention without latent keys, gates and distances")
        queries, keys = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        for made in (queries, keys, self.n_kv_heads * (self.d_value or self.d_head)):
            if made % groups:
                raise ConfigError(f"queries, keys or values of {made} numbers are not divisible by qkv_groups {groups}")

    def _require_latent(self) -> None:
        rank, turned = self.latent.kv_rank, self.rotary.rope_width
        if not (0 < turned < self.d_head or (self.positions == "none" and not turned)):
            need = f"a rope_width between 0 and d_head {self.d_head}, not {turned}"
            raise ConfigError(f"kv_rank {rank} needs {need}")
        needed = {
            "n_kv_heads": (self.n_kv_heads, self.n_heads),
            "qkv_bias": (self.qkv_bias, False),
            "qk_norm": (self.qk_norms.qk_norm, False),
            "clip_qkv": (self.clip_qkv, 0),
        }
        for name, (value, required) in needed.items():
            if value != required:
                raise ConfigError(f"kv_rank {rank} needs {name} {required}, not {value}")

    def fit(self, d_model: int, causal: bool) -> None:
        super().fit(d_model, causal)
        if d_model % self.qkv_groups:
            raise ConfigError(f"d_model {d_model} is not divisible by qkv_groups {self.qkv_groups}")
        if self.positions == "sinusoidal_halves" and d_model < 4:
            raise ConfigError(f"d_model {d_model} is below 4, but sinusoidal_halves needs two frequencies")
        if self.positions.startswith("sinusoidal") and d_model % 2:
            raise ConfigError(f"d_model {d_model} is odd, but sinusoidal positions fill pairs of dimensions")
        if self.positions == "alibi" and not causal:
            raise ConfigError("ALiBi counts back from each query, but causal is false")
        if self.blocks.block_size and not (causal and self.mask):
            raise ConfigError(f"blocks of {self.blocks.block_size} tokens need a causal mask")
        if self.window and causal and not self.mask:
            raise ConfigError(f"a window of {self.window} tokens needs a mask, but mask is false")
        if self.indexer.index_keys and self.indexer.index_width < self.rotary.rope_width:
            raise ConfigError(f"index_width {self.indexer.index_width} is below rope_width {self.rotary.rope_width}")
        if self.indexer.index_by_head and not causal:
            raise ConfigError("blocks of keys that each key head chooses need a causal mask")
        if self.indexer.index_by_head and self.indexer.index_heads != self.n_kv_heads:
            raise ConfigError(f"index_by_head needs as many index_heads as key heads, {self.n_kv_heads}")
        if self.indexer.index_block and not self.indexer.index_by_head:
            self._require_whole_blocks()
        if self.chunk and (self.window or not (causal and self.mask)):
            raise ConfigError(f"chunks of {self.chunk} tokens need a causal mask, and no window")

    def _require_whole_blocks(self) -> None:
        size = self.indexer.index_block
        if self.window or self.chunk or self.blocks.block_size:
            raise ConfigError(f"an index_block of {size} keys needs attention without windows, chunks and a block_size")
        if self.indexer.index_pooled and self.positions == "rotary":
            raise ConfigError("index_pooled sums keys of several positions, which positions 'rotary' turns")

    def words(self, causal: bool) -> dict[str, str]:
        shared = self.n_heads // self.n_kv_heads
        groups = f"{self.n_kv_heads:,} key-value head{'s' * (self.n_kv_heads > 1)} ({shared} query heads share one)"
        sides = f"{self.window:,} tokens" if causal else f"{self.window - 1:,} tokens to each side"
        rows = {
            "attention": listed(
                f"{self.n_heads} heads",
                shared > 1 and groups,
                self.qkv_groups > 1 and f"matrices of {self.qkv_groups} groups",
            ),
            "window": sides if self.window else "",
            "chunks": f"of {self.chunk:,} tokens" if self.chunk else "",
            "scores": listed(
                f"q·k / {divisor_words(self)}",
                bool(self.clip_qkv) and f"q, k and v clipped to ±{self.clip_qkv:g}",
                bool(self.attention_cap) and f"softly capped at {self.attention_cap:g}",
                self.attention_sinks and "a learned sink for each head in every softmax",
                bool(self.relative_buckets)
                and f"a bias for each of {self.relative_buckets} buckets of distance up to {self.relative_farthest}"
                + ", of each layer's own" * self.relative_by_layer,
                self.query_biases and "queries with a bias for each kind of score",
                self.segments and "a vector for the query's segment and one for others",
                self.talking_heads and "mixed over heads before and after the softmax",
                bool(self.lambda_init) and f"the maps of two heads subtracted, λ from {self.lambda_init:.4g}",
                self.values_of_keys and "the values are the keys",
                self.values_turned and "the values are the rotated keys, and what heads give is rotated back",
                self.shares_keys and "keys and values of an earlier layer",
            ),
            "gates": self._gate_words(),
            "widths": listed(
                f"d_head {self.d_head}",
                bool(self.o_rank) and f"heads compressed to {self.o_rank} numbers in {self.o_groups} groups",
                bool(self.d_value) and self.d_value != self.d_head and f"values {self.d_value}",
                bool(self.latent.kv_rank and self.rotary.rope_width)
                and self.positions != "rotary"
                and f"{self.rotary.rope_width} of a key shared by all heads",
            ),
            "positions": listed(
                self._positions_words(causal), bool(self.relative_buckets) and "distances in the scores"
            ),
            "biases": listed(
                self.qkv_bias
                and ("q/k/v" if self.k_bias else "q/v") + "/gate" * (self.attention_gate and self.gate_bias),
                self.o_bias and "o",
            ),
        }
        rows["norm"] = listed(
            bool(self.lambda_init) and "on what each pair of heads gives too",
            self.out_norm and "on the heads side by side too",
        )
        parts = (
            self.growth, self.profile, self.by_distance, self.latent, self.blocks, self.indexer, self.qk_norms,
        )  # fmt: skip
        return merged(rows, *(part.words(causal) for part in parts))

    def _gate_words(self) -> str:
        if self.head_experts:
            return "each expert's weight on its heads"
        if not self.attention_gate:
            return ""
        return f"a {self.gate_function} on every " + ("head" if self.gate_by_head else "number that a head gives")

    def _positions_words(self, causal: bool) -> str:
        if self.positions == "rotary":
            return self.rotary.words_of(self.d_head)
        if self.positions == "alibi":
            return self.alibi.words(causal)["positions"]
        papers = self.positions.replace("_concat", ", sines before cosines, with the paper's frequencies")
        return papers.replace("_halves", ", sines before cosines")


def divisor_words(part: Any) -> str:
    """The divisor of attention scores as an expression: √d_head, unless ``attention_divisor`` is set."""
    return f"{part.attention_divisor:.4g}" if part.attention_divisor else f"√{part.d_head}"


def _latent(c: Config) -> bool:
    return c.kv_rank > 0


def _own_latent(c: Config) -> bool:
    return _latent(c) and not c.shares_latent


def _in_parts(c: Config) -> bool:
    return _latent(c) and c.rope_width > 0


def _scaled_latent(c: Config) -> bool:
    return _latent(c) and c.kv_scale != 1


def _clipped(c: Config) -> bool:
    return c.clip_qkv > 0


def _normed_first(c: Config) -> bool:
    return c.qk_norm and not c.qk_norm_last


def _normed_last(c: Config) -> bool:
    return c.qk_norm and c.qk_norm_last


def _head_norm(o: "ModuleType", c: Config) -> Any:
    kept = ("gain",) * c.qk_norm_gain + ("bias",) * (c.qk_norm_gain and c.qk_norm_bias)
    learned = tuple(name for name in c.norm_parameters if name in kept)
    if c.qk_norm_across == "head":
        return o.Norm(c.norm == "layernorm", c.norm_eps, learned)
    return o.HeadNorm(c.norm == "layernorm", c.norm_eps, learned, int(c.qk_norm_across == "all"))


def _q_norm(o: "ModuleType", c: Config) -> Any:
    return _head_norm(o, c) if c.q_norm_gain else o.Norm(c.norm == "layernorm", c.norm_eps, ())


def _out_norm(o: "ModuleType", c: Config) -> Any:
    return o.Norm(c.norm == "layernorm", c.norm_eps, c.norm_parameters)


def _latent_norm(o: "ModuleType", c: Config) -> Any:
    return o.Norm(False, c.latent_eps, ("gain",))


def _gate(o: "ModuleType", c: Config) -> Any:
    return make_linear(o, c.qkv_bias and c.gate_bias, c.qkv_groups)


def _clip(o: "ModuleType", c: Config) -> Any:
    return o.Clip(c.clip_qkv)


def _scale(o: "ModuleType", c: Config) -> Any:
    name = "divisor" if c.attention_divisor else "√d_head"
    return o.Scale(c.score_divisor, name, c.score_divisor_words)


def _differential(c: Config) -> bool:
    return c.lambda_init > 0


def _routed(c: Config) -> bool:
    return c.head_experts


def _turned_back(c: Config) -> bool:
    return c.values_turned and c.positions == "rotary"


def _talking(c: Config) -> bool:
    return c.talking_heads


def _gated(c: Config) -> bool:
    return c.attention_gate


_NOT_GATED = "head outputs are not gated in this model"
_NOT_ROUTED = "heads are not chosen in this model: all heads take every token"
_NO_DIFFERENCE = "attention weights are not subtracted in this layer"
_NOT_TALKING = "heads are not mixed in this model: each has its own scores and weights"
_SINK = ("head", "query", "sink")
_NOT_LATENT = "keys and values are computed from the stream directly in this model"
_NO_Q_RANK = "queries are computed from the stream directly in this model"
_NO_QK_NORM = "queries and keys are not normed in this model"
_NOT_CLIPPED = "queries, keys and values are not clipped in this model"

ROWS: tuple[Step, ...] = (
    Step("q_a", "queries, compressed", "{0}·W_QA", ("token", "q_rank"), (RESIDUAL,), "q", absent=_NO_Q_RANK,
         when=lambda c: c.q_rank > 0, make=make_projection, module="attention.q_a", matrix="W_QA"),
    Step("q_a_norm", "queries, compressed and normed", "RMSNorm({0})", ("token", "q_rank"), ("q_a",), "q",
         when=lambda c: c.q_rank > 0, absent=_NO_Q_RANK, make=_latent_norm, module="attention.q_a_norm", matrix="gain"),
    Step("q", "queries", "{0}·W_Q{qkv_bias}", HEADS, ("<into q>",), "q", recorded=True,
         make=make_projection, module="attention.q", matrix="W_Q"),
    Step("kv_a", "keys and values, compressed", "{0}·W_KVA", ("token", "kv_rank"), (RESIDUAL,), "k",
         when=_own_latent, absent=_NOT_LATENT, make=make_projection, module="attention.kv_a", matrix="W_KVA"),
    Step("kv_a_norm", "keys and values, compressed and normed", "RMSNorm({0})", ("token", "kv_rank"), ("kv_a",), "k",
         when=_own_latent, absent=_NOT_LATENT, make=_latent_norm, module="attention.kv_a_norm", matrix="gain"),
    Step("kv_a_norm", "compressed keys and values of an earlier layer", "{lender}", ("token", "kv_rank"), (), "k",
         recorded=True, when=lambda c: c.shares_latent, make=lambda o, _: o.Same(), lent="kv_a_norm"),
    Step("kv_a_scaled", "keys and values, normed and scaled", "{0} · {kv_scale}", ("token", "kv_rank"),
         ("kv_a_norm",), "k", when=_scaled_latent, absent="compressed keys and values are not scaled in this model",
         make=lambda o, c: o.Multiply(c.kv_scale)),
    Step("k_shared", "keys, the part of all heads", "{0}·W_KR", ("token", "d_shared_key"), (RESIDUAL,), "k",
         when=lambda c: _in_parts(c) and not c.shares_latent, absent=_NOT_LATENT, make=make_projection,
         module="attention.k_shared", matrix="W_KR"),
    Step("k_shared", "keys, the part of all heads of an earlier layer", "{lender}", ("token", "d_shared_key"), (), "k",
         recorded=True, when=lambda c: _in_parts(c) and c.shares_latent, make=lambda o, _: o.Same(), lent="k_shared"),
    Step("k_own", "keys, the part of each head", "{0}·W_K", ("kv head", "token", "d_own"), ("<into v>",), "k",
         when=_latent, absent=_NOT_LATENT, make=make_projection, module="attention.k", matrix="W_K"),
    Step("k", "keys, both parts", "[{0} | {1}]", KV, ("k_shared", "k_own"), "k", recorded=True, when=_in_parts,
         make=lambda o, _: o.Join()),
    Step("k", "keys, without a shared part", "{0}", KV, ("k_own",), "k", recorded=True,
         when=lambda c: _latent(c) and not _in_parts(c), make=lambda o, _: o.Same()),
    Step("k", "keys", "{0}·W_K{k_bias}", KV, ("<into mixer>",), "k", recorded=True,
         when=lambda c: not _latent(c) and owns_keys(c), absent=NOT_OWN, make=make_keys, module="attention.k",
         matrix="W_K"),
    Step("k", "keys of an earlier layer", "{lender}", KV, (), "k", recorded=True,
         when=lambda c: not owns_keys(c), make=lambda o, _: o.Same(), lent="scores"),
    Step("v", "values", "{0}·W_V{qkv_bias}", VALUES, ("<into v>",), "v", recorded=True,
         when=lambda c: owns_keys(c) and not (c.values_of_keys or c.values_turned), absent="{no_v}",
         make=make_projection, module="attention.v", matrix="W_V"),
    Step("v", "values, as the keys", "{0}", VALUES, (K,), "v", recorded=True,
         when=lambda c: owns_keys(c) and c.values_of_keys, make=lambda o, _: o.Same()),
    Step("v", "values of an earlier layer", "{lender}", VALUES, (), "v", recorded=True,
         when=lambda c: not owns_keys(c), make=lambda o, _: o.Same(), lent="head_out"),
    *ADAPTED_ATTENTION,
    *KEYS_AND_VALUES,
    *PROFILED,
    Step("gate", "output gate", "{0}·W_G{gate_bias}", OF_HEADS, (RESIDUAL,), "attention", recorded=True,
         when=lambda c: _gated(c) and not c.gate_by_head, absent=_NOT_GATED, make=_gate,
         module="attention.gate", matrix="W_G", late=True),
    Step("gate", "output gate of a head", "{0}·W_G{gate_bias}", ("head", "token", "switch"), (RESIDUAL,),
         "attention", recorded=True, when=lambda c: _gated(c) and c.gate_by_head, make=_gate,
         module="attention.gate", matrix="W_G", late=True),
    Step("attn.router", "router of the heads", "{0}·W_RH", ROUTES, (RESIDUAL,), "attention", recorded=True,
         when=_routed, absent=_NOT_ROUTED, make=lambda o, _: o.Linear(False), module="attention.router", matrix="W_RH",
         late=True),
    Step("attn.chosen", "experts whose heads are chosen", "1 for the {per_token} largest of {0}, else 0", ROUTES,
         ("attn.router",), "attention", when=_routed, absent=_NOT_ROUTED,
         make=lambda o, c: o.Choose(c.experts_per_token), in_experts=True, to_loss=False),
    Step("attn.routes", "weights of the chosen heads", "softmax({0} where {1}), else 0", ROUTES,
         ("attn.router", "attn.chosen"), "attention", when=_routed, absent=_NOT_ROUTED,
         make=lambda o, _: o.Route("softmax", True, 1.0, 0.0)),
    Step("q_norm", "queries, normed", "{norm}({0}) {across}", HEADS, (Q,), "q", when=_normed_first,
         absent=_NO_QK_NORM, make=_q_norm, module="attention.q_norm", matrix="gain", late=True),
    Step("k_norm", "keys, normed", "{norm}({0}) {across}", KV, (K,), "k",
         when=lambda c: _normed_first(c) and owns_keys(c),
         absent=_NO_QK_NORM, make=_head_norm, module="attention.k_norm", matrix="gain", late=True),
    Step("v_norm", "values, normed", "{norm}({0}) in each head", VALUES, (V,), "v",
         when=lambda c: c.v_norm and owns_keys(c),
         absent="values are not normed in this model",
         make=lambda o, c: o.Norm(c.norm == "layernorm", c.norm_eps, ()), module="attention.v_norm", matrix="gain",
         late=True),
    Step("q_clip", "queries, clipped", "{0} within ±{clip_qkv}", HEADS, (Q,), "q", when=_clipped,
         absent=_NOT_CLIPPED, make=_clip),
    Step("k_clip", "keys, clipped", "{0} within ±{clip_qkv}", KV, (K,), "k",
         when=lambda c: _clipped(c) and owns_keys(c),
         absent=_NOT_CLIPPED, make=_clip),
    Step("v_clip", "values, clipped", "{0} within ±{clip_qkv}", VALUES, (V,), "v",
         when=lambda c: _clipped(c) and owns_keys(c),
         absent=_NOT_CLIPPED, make=_clip),
    *TURNED,
    Step("q_norm", "queries, normed last", "{norm}({0}) {across}", HEADS, (Q,), "q", when=_normed_last,
         make=_head_norm, module="attention.q_norm", matrix="gain", late=True),
    Step("k_norm", "keys, normed last", "{norm}({0}) {across}", KV, (K,), "k",
         when=lambda c: _normed_last(c) and owns_keys(c),
         make=_head_norm, module="attention.k_norm", matrix="gain", late=True),
    Step("v", "values, as the rotated keys", "{0}", VALUES, (K,), "v", recorded=True, when=lambda c: c.values_turned,
         make=lambda o, _: o.Same()),
    *GROWN,
    *SHIFTED,
    *OF_DISTANCES,
    *indexer.ROWS,
    *blocks.ROWS,
    Step("scores", "attention scores", "{0}·{1}ᵀ", MAP, (Q, K), "attention", core=True,
         make=lambda o, _: o.Scores()),
    *SCORED,
    Step("scaled", "scaled scores", "{scale}", MAP, (SCORES,), "attention", core=True, make=_scale,
         when=lambda c: c.score_divisor != 1, absent="attention scores are not scaled in this model"),
    Step("capped", "scores, capped", "{attention_cap}·tanh({0} / {attention_cap})", MAP, (SCORES,), "attention",
         core=True, when=lambda c: c.attention_cap > 0, absent="attention scores are not capped in this model",
         make=lambda o, c: o.Cap(c.attention_cap)),
    *BIASED,
    Step("scores_mixed", "scores, mixed over heads", "{0}·W_TL", MAP, (SCORES,), "attention", core=True,
         when=_talking, absent=_NOT_TALKING, make=lambda o, _: o.MixHeads(), module="attention.mix_scores",
         matrix="W_TL", late=True),
    Step("masked", "masked scores", "{0}, −∞ where {masked}", MAP, (SCORES, "<chosen>"), "attention",
         core=True, when=lambda c: not c.looks_ahead or c.window > 0 or c.index_keys > 0,
         absent="this model looks both ways and the text has no padding, so nothing is masked",
         make=lambda o, c: o.Mask(o.Sight.of(c))),
    Step("sink", "share of the sink", "e^s / (e^s + Σ e^{0})", _SINK, (SCORES,), "attention", core=True,
         when=lambda c: c.attention_sinks and not has_blocks(c),
         absent="attention has no sinks in this model: keys take all the weight",
         make=lambda o, _: o.Sink(), module="attention.sink", matrix="sink.logit", late=True),
    Step("sink", "share of the sink and of blocks", "(e^s + Σ e^{1}) / (e^s + Σ e^{1} + Σ e^{0})", _SINK,
         (SCORES, "<beside>"), "attention", core=True, when=has_blocks, make=lambda o, _: o.Sink(),
         module="attention.sink", matrix="sink.logit", late=True),
    Step("weights", "attention weights", "softmax({0}), each row sums to 1", MAP, (SCORES,), "attention",
         when=lambda c: not c.attention_sinks, make=lambda o, _: o.Softmax(), core=True),
    Step("weights", "attention weights beside the sink", "softmax({0})·(1 − {1}), each row sums to 1 − {1}", MAP,
         (SCORES, "sink"), "attention", when=lambda c: c.attention_sinks,
         make=lambda o, _: o.SunkSoftmax(), core=True),
    Step("weights_mixed", "weights, mixed over heads", "{0}·W_TW", MAP, ("weights",), "attention",
         core=True, when=_talking, absent=_NOT_TALKING, make=lambda o, _: o.MixHeads(), module="attention.mix_weights",
         matrix="W_TW", late=True),
    Step("difference", "attention weights, less those of another head",
         "{0} of head h − λ·{0} of head h + {half_heads}, "
         "λ = e^(lambda_q1·lambda_k1) − e^(lambda_q2·lambda_k2) + {lambda_init}", MAP, (SCORES,), "attention",
         core=True, when=_differential, absent=_NO_DIFFERENCE,
         make=lambda o, c: o.Difference(c.lambda_init), module="attention.difference", matrix="", late=True),
    *blocks.MIXED,
    Step("head_out", "weighted values", "{0}·{1}", OF_HEADS, (SCORES, V), "v",
         recorded=True, make=lambda o, _: o.Mix(), core=True, when=lambda c: not has_blocks(c)),
    Step("head_back", "weighted values, rotated back", "{0} turned back by its position", OF_HEADS, ("head_out",), "v",
         recorded=True, when=_turned_back, absent="values are not rotated in this model",
         make=lambda o, c: o.Rotate(c.rope, back=True)),
    Step("head_gated", "weighted values, gated", "{0} ⊙ {gate_act}({1})", OF_HEADS, ("head_out", "gate"), "v",
         when=_gated, recorded=True, absent=_NOT_GATED, make=lambda o, c: o.Switch(c.gate_function)),
    Step("head_gated", "weighted values, times the weights of experts", "{0} ⊙ {1}", OF_HEADS,
         ("head_out", "attn.routes"), "v", when=_routed, recorded=True, make=lambda o, _: o.WeighHeads()),
    Step("head_norm", "weighted values, normed with those of another head",
         "RMSNorm({0}) over heads h and h + {half_heads}", OF_HEADS, ("head_out",), "v", when=_differential,
         absent=_NO_DIFFERENCE, make=lambda o, c: o.PairNorm(False, c.norm_eps, (), c.n_heads // 2),
         module="attention.head_norm", matrix=""),
    Step("head_scaled", "weighted values, normed and scaled", "{0} · {lambda_left}", OF_HEADS, ("head_norm",),
         "v", recorded=True, when=_differential, absent=_NO_DIFFERENCE,
         make=lambda o, c: o.Multiply(1 - c.lambda_init)),
    Step("concat", "heads side by side", "[head 0 | … | head {last_head}] of {0}", ("token", "n_heads·d_value"),
         ("<heads>",), "v", make=lambda o, _: o.Concat()),
    Step("concat_norm", "heads side by side, normed", "{norm}({0})", ("token", "n_heads·d_value"), ("concat",), "v",
         when=lambda c: c.out_norm, absent="the heads side by side are not normed in this model", make=_out_norm,
         module="attention.out_norm", matrix="gain"),
    Step("o_a", "heads side by side, compressed in groups", "{0}·W_OA of each group", ("token", "o_rank"),
         ("<into o>",), "v", when=lambda c: c.o_rank > 0, absent="heads are not compressed in this model",
         make=lambda o, c: o.GroupedLinear(False, c.o_groups, "d_heads_of_group"), module="attention.o_a",
         matrix="W_OA", late=True),
    Step("attn", "attention output", "{0}·W_O{o_bias}", WIDE, ("<from o>",), "attention", recorded=True,
         make=lambda o, c: o.Linear(c.o_bias), module="attention.o", matrix="W_O"),
)  # fmt: skip
"""From the input of attention to its output."""


_ACROSS_HEADS = {"head": "in each head", "heads": "in each head, by its own gain", "all": "over all heads at once"}


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    scaled = f"{{0}} / {c.score_divisor_words}"
    return {
        "across": _ACROSS_HEADS[c.qk_norm_across],
        "kv_scale": f"{c.kv_scale:.4g}",
        "qkv_bias": (" + b" if c.qkv_bias else "") + grouped_words(c.qkv_groups),
        "k_bias": (" + b" if c.qkv_bias and c.k_bias else "") + grouped_words(c.qkv_groups),
        "gate_bias": " + b" if c.qkv_bias and c.gate_bias else "",
        "o_bias": " + b" if c.o_bias else "",
        "scale": scaled if c.attention_divisor else f"{scaled} = {{0}} / {c.score_divisor:.4g}",
        "gate_act": "σ" if c.gate_function == "sigmoid" else c.gate_function,
        "attention_cap": f"{c.attention_cap:g}",
        "masked": _masked(c),
        "clip_qkv": f"{c.clip_qkv:g}",
        "no_v": NOT_OWN
        if c.shares_keys
        else f"the values of this layer are its keys, {'rotated' if c.values_turned else 'as projected'}",
        "lender": "as in the last layer below with its own",
        "last_head": str(c.n_heads - 1),
        "half_heads": str(c.n_heads // 2),
        "lambda_init": f"{c.lambda_init:.4g}",
        "lambda_left": f"{1 - c.lambda_init:.4g}",
    }


def _masked(c: Config) -> str:
    """Which keys are hidden from a query, in words."""
    if c.index_keys and not has_blocks(c):
        return "{1} is 0"
    ahead = "key > query" if not c.looks_ahead else f"key ≥ query + {c.window:,}"
    if c.chunk:
        return f"{ahead} or in another chunk of {c.chunk:,}"
    return f"{ahead} or key ≤ query − {c.window:,}" if c.window else ahead


def _given(c: Config) -> str:
    """The step whose heads are put side by side."""
    if _turned_back(c):
        return "head_back"
    return "head_gated" if _gated(c) or _routed(c) else "head_scaled" if _differential(c) else "head_out"


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {
        "<into q>": ("q_a_norm",) if c.q_rank else ("<into mixer>",),
        "<into v>": ("kv_a_scaled",) if _scaled_latent(c) else ("kv_a_norm",) if _latent(c) else ("<into mixer>",),
        "<heads>": (_given(c),),
        "<into o>": ("concat_norm",) if c.out_norm else ("concat",),
        "<from o>": ("o_a",) if c.o_rank else ("concat_norm",) if c.out_norm else ("concat",),
    }
