"""Softmax attention: the mixer of all architectures until now."""

from dataclasses import dataclass, field

from tinytf.errors import ConfigError
from tinytf.parts.part import COUNT, NOT_NEGATIVE, POSITIVE, Part, choice, leaf, listed, merged
from tinytf.parts.positions import Alibi, Distances, Growth, Rotary

POSITIONS = ("learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "none")
_ACROSS = {"head": "", "heads": " with a gain for each head", "all": " over all heads"}
LATENT_EPS = 1e-6
"""ε of the norms of latent attention, whatever that of the other norms is."""


@dataclass(frozen=True, kw_only=True)
class Latent(Part):
    """With a ``kv_rank`` keys and values are made of a normed vector of that width (DeepSeek-V2).

    Every key then begins with ``rope_width`` dimensions that all heads share and RoPE turns. With a ``q_rank`` queries
    are made of such a vector too.
    """

    q_rank: int = leaf(0, COUNT)
    kv_rank: int = leaf(0, COUNT)

    def require(self) -> None:
        if self.q_rank and not self.kv_rank:
            raise ConfigError(f"q_rank {self.q_rank} needs a kv_rank")

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "widths": listed(
                bool(self.kv_rank) and f"keys and values of {self.kv_rank} numbers a token",
                bool(self.q_rank) and f"queries of {self.q_rank}",
            )
        }


@dataclass(frozen=True, kw_only=True)
class QKNorm(Part):
    """A norm of every query and key head, with one gain for all (``head``) or one for each (``heads``).

    Or of all heads at once (``all``). With ``qk_norm_last`` it follows the rotation, without ``qk_norm_gain`` it learns
    nothing.
    """

    qk_norm: bool = leaf(False, differs=True)
    qk_norm_across: str = choice("head", "heads", "all")
    qk_norm_last: bool = leaf(False)
    qk_norm_gain: bool = leaf(True)

    def require(self) -> None:
        if self.qk_norm_last and self.qk_norm_across != "head":
            raise ConfigError("qk_norm_last needs a norm of every head, with one gain for all")

    def words(self, causal: bool) -> dict[str, str]:
        after = " after the rotation" if self.qk_norm_last else ""
        gain = "" if self.qk_norm_gain else " without a gain"
        return {"norm": f"on q and k too{_ACROSS[self.qk_norm_across]}{after}{gain}" if self.qk_norm else ""}


@dataclass(frozen=True, kw_only=True)
class Attention(Part):
    """Attention with ``n_heads`` query heads, and as many key and value heads unless ``n_kv_heads`` says fewer.

    Values are ``d_value`` wide (0: as queries and keys). Without its ``mask`` a decoder looks both ways. ``window``
    lets a token see only itself and the window − 1 before it, in an encoder as many after it; with ``chunk`` it sees
    those before it in its own chunk of so many tokens. Scores are divided by ``attention_divisor`` (0: √d_head) and
    softly capped by ``attention_cap``; ``attention_sinks`` are a learned logit per head that takes a share of every
    softmax. Queries, keys and values are clipped to ±``clip_qkv``. ``relative_buckets`` of distances have each a bias
    of scores, the same in all layers (MPNet). ``sinusoidal_halves`` has all its sines before its cosines (XGLM).
    """

    n_heads: int = leaf(limits=POSITIVE)
    n_kv_heads: int = leaf(0, COUNT)
    d_head: int = leaf(0, COUNT)
    d_value: int = leaf(0, COUNT)
    mask: bool = leaf(True)
    window: int = leaf(0, COUNT, differs=True)
    chunk: int = leaf(0, COUNT, differs=True)
    attention_divisor: float = leaf(0.0, NOT_NEGATIVE, differs=True)
    attention_cap: float = leaf(0.0, NOT_NEGATIVE)
    attention_sinks: bool = leaf(False)
    clip_qkv: float = leaf(0.0, NOT_NEGATIVE)
    qkv_bias: bool = leaf(True)
    o_bias: bool = leaf(True)
    latent: Latent = field(default_factory=Latent)
    qk_norms: QKNorm = field(default_factory=QKNorm)
    positions: str = choice(
        "learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "none", differs=True, off="none"
    )
    rotary: Rotary = field(default_factory=Rotary)
    alibi: Alibi = field(default_factory=Alibi)
    relative_buckets: int = leaf(0, COUNT)
    by_distance: Distances = field(default_factory=Distances)
    growth: Growth = field(default_factory=Growth)

    def require(self) -> None:
        if not self.n_kv_heads:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.n_kv_heads}")
        self.rotary.require_head(self.d_head, self.positions)
        if self.latent.kv_rank:
            self._require_latent()
        if self.relative_buckets % 4:
            raise ConfigError(f"relative_buckets {self.relative_buckets} is no multiple of 4")
        of_distances = self.by_distance.distances
        if of_distances and (self.n_kv_heads != self.n_heads or self.latent.kv_rank):
            raise ConfigError(f"distances {of_distances} need a key head for each query head")

    def _require_latent(self) -> None:
        rank, turned = self.latent.kv_rank, self.rotary.rope_width
        if not 0 < turned < self.d_head:
            said = f"a rope_width between 0 and d_head {self.d_head}, and it is {turned}"
            raise ConfigError(f"kv_rank {rank} needs {said}")
        needed = {
            "n_kv_heads": (self.n_kv_heads, self.n_heads),
            "qkv_bias": (self.qkv_bias, False),
            "qk_norm": (self.qk_norms.qk_norm, False),
            "clip_qkv": (self.clip_qkv, 0),
        }
        for name, (value, wanted) in needed.items():
            if value != wanted:
                raise ConfigError(f"kv_rank {rank} needs {name} {wanted}, and it is {value}")

    def fit(self, d_model: int, causal: bool) -> None:
        super().fit(d_model, causal)
        if self.positions == "sinusoidal_halves" and d_model < 4:
            raise ConfigError(f"d_model {d_model} is below 4, and sinusoidal_halves needs two frequencies")
        if self.positions.startswith("sinusoidal") and d_model % 2:
            raise ConfigError(f"d_model {d_model} is odd, and sinusoidal positions fill pairs of dimensions")
        if self.positions == "alibi" and not causal:
            raise ConfigError("ALiBi counts back from each query, and causal is false")
        if self.window and causal and not self.mask:
            raise ConfigError(f"a window of {self.window} tokens needs a mask, and mask is false")
        if self.chunk and (self.window or not (causal and self.mask)):
            raise ConfigError(f"chunks of {self.chunk} tokens need a causal mask, and no window")

    @property
    def score_divisor_words(self) -> str:
        """What attention scores are divided by, as an expression."""
        return f"{self.attention_divisor:.4g}" if self.attention_divisor else f"√{self.d_head}"

    def words(self, causal: bool) -> dict[str, str]:
        shared = self.n_heads // self.n_kv_heads
        groups = f"{self.n_kv_heads:,} key-value head{'s' * (self.n_kv_heads > 1)} ({shared} query heads share one)"
        sides = f"{self.window:,} tokens" if causal else f"{self.window - 1:,} tokens to each side"
        own = {
            "attention": listed(f"{self.n_heads} heads", shared > 1 and groups),
            "window": sides if self.window else "",
            "chunks": f"of {self.chunk:,} tokens" if self.chunk else "",
            "scores": listed(
                f"q·k / {self.score_divisor_words}",
                bool(self.clip_qkv) and f"q, k and v clipped to ±{self.clip_qkv:g}",
                bool(self.attention_cap) and f"softly capped at {self.attention_cap:g}",
                self.attention_sinks and "a learned sink for each head in every softmax",
                bool(self.relative_buckets) and f"a bias for each of {self.relative_buckets} buckets of distance",
            ),
            "widths": listed(
                f"d_head {self.d_head}",
                bool(self.d_value) and self.d_value != self.d_head and f"values {self.d_value}",
            ),
            "positions": listed(self._placed(causal), bool(self.relative_buckets) and "distances in the scores"),
            "biases": listed(self.qkv_bias and "q/k/v", self.o_bias and "o"),
        }
        parts = (self.growth, self.by_distance, self.latent, self.qk_norms)
        return merged(own, *(part.words(causal) for part in parts))

    def _placed(self, causal: bool) -> str:
        if self.positions == "rotary":
            return self.rotary.words_of(self.d_head)
        if self.positions == "alibi":
            return self.alibi.words(causal)["positions"]
        return self.positions.replace("_halves", ", sines before cosines")
