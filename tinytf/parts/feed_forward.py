"""The feed-forward of a block: dense, or a mixture of experts."""

from dataclasses import dataclass, field

from tinytf.errors import ConfigError
from tinytf.parts.part import ABOVE_ZERO, COUNT, NOT_NEGATIVE, POSITIVE, Part, choice, leaf, listed, merged

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True, kw_only=True)
class Experts(Part):
    """Each token goes to ``experts_per_token`` of the ``experts``, each a feed-forward of ``d_expert`` units.

    The ``router`` scores them by a softmax or by sigmoids; ``routes_renormed`` makes the weights of the chosen ones sum
    to 1, before ``routed_scale`` multiplies them. They multiply what experts give, or with ``routes_first`` what they
    take. Every token goes through the shared expert of ``d_shared`` units too, behind a sigmoid of its own with
    ``shared_gate``.
    """

    experts: int = leaf(0, COUNT, differs=True, off=0)
    experts_per_token: int = leaf(0, COUNT)
    d_expert: int = leaf(0, COUNT)
    router: str = choice("softmax", "sigmoid")
    router_bias: bool = leaf(False)
    choice_bias: bool = leaf(False)
    routes_renormed: bool = leaf(True)
    routed_scale: float = leaf(1.0, ABOVE_ZERO)
    routes_first: bool = leaf(False)
    d_shared: int = leaf(0, COUNT)
    shared_gate: bool = leaf(False)

    def require(self) -> None:
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ConfigError(f"experts_per_token {self.experts_per_token} is not between 1 and experts {self.experts}")
        if self.shared_gate and not self.d_shared:
            raise ConfigError("shared_gate is true, and there is no shared expert: d_shared is 0")

    def words(self, causal: bool) -> dict[str, str]:
        if not self.experts:
            return {"feed-forward": ""}
        weights = listed(
            f"a {self.router} router" + " with biases" * self.router_bias,
            self.choice_bias and "a bias in the choice alone",
            "the weights of those chosen sum to 1" if self.routes_renormed else "weights as they are",
            self.routed_scale != 1 and f"times {self.routed_scale:g}",
            self.routes_first and "multiplied before the experts",
        )
        shared = f"; a shared expert of {self.d_shared:,} units" + " behind a gate" * self.shared_gate
        chosen = f"{self.experts} experts of {self.d_expert:,} units, {self.experts_per_token} for each token"
        return {"feed-forward": f"{chosen}; {weights}" + (shared if self.d_shared else "")}


@dataclass(frozen=True, kw_only=True)
class FeedForward(Part):
    """``gated`` makes it SwiGLU-like: act(gate) ⊙ up.

    With a ``glu_limit`` it is (up + 1) ⊙ gate·σ(α·gate), α being ``glu_alpha``, of gates up to the limit and up within
    ± it (gpt-oss).
    """

    d_ff: int = leaf(limits=POSITIVE)
    activation: str = choice(*ACTIVATIONS, default="gelu")
    gated: bool = leaf(False)
    glu_limit: float = leaf(0.0, NOT_NEGATIVE)
    glu_alpha: float = leaf(1.0, ABOVE_ZERO)
    ffn_bias: bool = leaf(True)
    mixture: Experts = field(default_factory=Experts)

    def require(self) -> None:
        if self.glu_limit and not (self.gated and self.activation == "silu"):
            raise ConfigError(f"glu_limit {self.glu_limit:g} needs a gated feed-forward with the activation 'silu'")
        if self.mixture.experts and not self.mixture.d_expert:
            raise ConfigError(f"{self.mixture.experts} experts have no units: d_expert is 0")

    def words(self, causal: bool) -> dict[str, str]:
        limited = f"limited to {self.glu_limit:g}, α {self.glu_alpha:g}"
        own = {
            "widths": f"d_ff {self.d_ff}",
            "feed-forward": listed(self.activation, self.gated and "gated", bool(self.glu_limit) and limited),
            "biases": "feed-forward" if self.ffn_bias else "",
        }
        return merged(own, self.mixture.words(causal))
