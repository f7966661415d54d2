"""How attention tells positions apart: RoPE, ALiBi, embeddings of distances, queries that grow."""

import math
from dataclasses import dataclass

from tinytf.errors import ConfigError
from tinytf.parts.part import ABOVE_ZERO, COUNT, NOT_NEGATIVE, Part, choice, leaf, listed


@dataclass(frozen=True, kw_only=True)
class Rotary(Part):
    """RoPE, with the settings that are explained at ``Rope``; ``rope_width`` 0 is all of a head."""

    rope_theta: float = leaf(10_000.0, ABOVE_ZERO, differs=True)
    rope_width: int = leaf(0, COUNT, differs=True)
    rope_scaling: str = choice("none", "linear", "llama3", "yarn", "longrope", differs=True)
    rope_factor: float = leaf(1.0, ABOVE_ZERO, differs=True)
    rope_low_frequency: float = leaf(1.0)
    rope_high_frequency: float = leaf(4.0)
    rope_original_context: int = leaf(0, COUNT)
    rope_attention_factor: float = leaf(1.0, ABOVE_ZERO)
    rope_truncate: bool = leaf(True)
    rope_short_factors: tuple[float, ...] = leaf((), ABOVE_ZERO)
    rope_long_factors: tuple[float, ...] = leaf((), ABOVE_ZERO)

    def require(self) -> None:
        between = 0 < self.rope_low_frequency < self.rope_high_frequency < math.inf
        if self.rope_scaling in ("llama3", "yarn") and not between:
            raise ConfigError(
                f"rope_low_frequency {self.rope_low_frequency} is not between 0 and "
                f"rope_high_frequency {self.rope_high_frequency}"
            )
        if self.rope_scaling in ("llama3", "yarn", "longrope") and not self.rope_original_context:
            raise ConfigError(f"rope_scaling {self.rope_scaling!r} needs rope_original_context")
        if self.rope_scaling == "yarn" and self.rope_theta <= 1:
            raise ConfigError(f"rope_scaling 'yarn' needs a rope_theta above 1, and it is {self.rope_theta}")

    def words_of(self, width: int) -> str:
        """The settings in words, for heads of that width."""
        turned = self.rope_width or width
        since = f"from {self.rope_original_context:,} tokens"
        waves = f"{since}, {self.rope_low_frequency:g} to {self.rope_high_frequency:g} turns"
        each = (f"{some[0]:g} … {some[-1]:g}" for some in (self.rope_short_factors, self.rope_long_factors) if some)
        scaling = {
            "none": "",
            "linear": f"all frequencies / {self.rope_factor:g}",
            "llama3": f"long waves / {self.rope_factor:g} (llama3, {waves})",
            "yarn": f"long waves / {self.rope_factor:g} (yarn, {waves}{'' if self.rope_truncate else ', not rounded'})",
            "longrope": f"each frequency by its own factor (longrope, {f' and {since} on '.join(each)})",
        }
        multiplied = self.rope_scaling in ("yarn", "longrope") and self.rope_attention_factor != 1
        return listed(
            f"rotary (RoPE), θ = {self.rope_theta:g}",
            scaling[self.rope_scaling],
            multiplied and f"what is turned times {self.rope_attention_factor:g}",
            turned < width and f"{turned} of {width} dimensions",
        )

    def require_head(self, width: int, positions: str) -> None:
        """Raise ConfigError where the settings do not fit heads of that width with these positions."""
        if positions == "rotary" and not self.rope_width and width % 2:
            raise ConfigError(f"d_head {width} is odd, and RoPE rotates pairs of dimensions")
        if self.rope_scaling != "none" and positions != "rotary":
            raise ConfigError(f"rope_scaling {self.rope_scaling!r} needs rotary positions")
        for name in ("rope_short_factors", "rope_long_factors") if self.rope_scaling == "longrope" else ():
            count, pairs = len(getattr(self, name)), (self.rope_width or width) // 2
            if count != pairs:
                raise ConfigError(f"{name} has {count:,} numbers for {pairs:,} pairs of dimensions")
        if not 0 <= self.rope_width <= width or self.rope_width % 2:
            raise ConfigError(f"rope_width {self.rope_width} is not an even number up to d_head {width}")


@dataclass(frozen=True, kw_only=True)
class Alibi(Part):
    """The last head's scores fall by 2^−``alibi_max_bias`` a token, and all by ``alibi_scale`` times as much.

    ``alibi_rounded`` keeps slope · position in bfloat16.
    """

    alibi_max_bias: float = leaf(8.0, ABOVE_ZERO)
    alibi_scale: float = leaf(1.0, ABOVE_ZERO)
    alibi_rounded: bool = leaf(False)

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
    """``distances`` to each side have an embedding each, the same in all layers (DeBERTa), where there are any.

    They go through a ``distance_norm`` where there is one; with a ``farthest`` those from half of them on are of
    several distances up to that. Keys are made of them, which queries score too (``distance_keys``), and queries, which
    keys score (``distance_queries``): by the tokens' W_K and W_Q, or by ``distance_matrices``.
    """

    distances: int = leaf(0, COUNT)
    farthest: int = leaf(0, COUNT)
    distance_norm: bool = leaf(False)
    distance_keys: bool = leaf(False)
    distance_queries: bool = leaf(False)
    distance_matrices: bool = leaf(False)

    def require(self) -> None:
        if bool(self.distances) != (self.distance_keys or self.distance_queries):
            raise ConfigError(f"distances {self.distances} and distance_keys or distance_queries need each other")
        if self.distance_norm and not self.distances:
            raise ConfigError("distance_norm needs distances")
        if self.farthest and not 2 <= self.distances < 2 * self.farthest - 3:
            raise ConfigError(f"farthest {self.farthest} does not fit distances {self.distances}")

    def words(self, causal: bool) -> dict[str, str]:
        if not self.distances:
            return {}
        matrices = "by their own matrices" if self.distance_matrices else "by the matrices of tokens"
        made = [f"a {one} for each of {2 * self.distances:,} distances"
                for one, asked in (("key", self.distance_keys), ("query", self.distance_queries)) if asked]  # fmt: skip
        return {
            "scores": f"{' and '.join(made)} {matrices}",
            "positions": listed(
                "distances in the scores",
                bool(self.farthest) and f"far ones up to {self.farthest:,} several together",
                self.distance_norm and "their embeddings normed",
            ),
        }


@dataclass(frozen=True, kw_only=True)
class Growth(Part):
    """The query at position t is multiplied by 1 + ``query_scale``·ln(1 + ⌊(t + ``…_first``) / ``…_every``⌋)."""

    query_scale: float = leaf(0.0, NOT_NEGATIVE, differs=True)
    query_scale_every: int = leaf(0, COUNT)
    query_scale_first: int = leaf(0, COUNT)

    def require(self) -> None:
        if self.query_scale and not self.query_scale_every:
            raise ConfigError(f"query_scale {self.query_scale:g} needs query_scale_every")

    def words(self, causal: bool) -> dict[str, str]:
        position = f"(t + {self.query_scale_first})" if self.query_scale_first else "t"
        grown = f"1 + {self.query_scale:g}·ln(1 + ⌊{position} / {self.query_scale_every}⌋)"
        return {"scores": f"queries at position t times {grown}" if self.query_scale else ""}
