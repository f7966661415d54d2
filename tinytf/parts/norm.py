"""Where a block norms, how, and how it adds to the residual stream."""

from dataclasses import dataclass

from tinytf.errors import ConfigError
from tinytf.parts.part import ABOVE_ZERO, Part, choice, leaf, listed

NORMED = {
    "pre": "before each part (pre-norm)",
    "post": "after each sum (post-norm)",
    "both": "before and after each part",
    "output": "after each part",
}
"""Where a block norms, in words, by ``norm_order``."""
CALLED = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
"""What the norms are called."""


@dataclass(frozen=True, kw_only=True)
class Norms(Part):
    """``norm_order`` says where a block norms.

    What goes into attention and the feed-forward (``pre``), what they add (``output``), ``both``, or the residual sums
    (``post``). Where there is no ``input_norm`` a pre-norm block gives attention the stream as it is. Norms have a
    ``norm_gain``, and LayerNorms a ``norm_bias`` too. With a ``shared_norm`` the feed-forward of a parallel residual
    reads the stream as attention does, after norm1, and there is no norm2.
    """

    norm: str = choice("layernorm", "rmsnorm")
    norm_eps: float = leaf(1e-5, ABOVE_ZERO)
    norm_gain: bool = leaf(True)
    norm_bias: bool = leaf(True)
    norm_order: str = choice(*NORMED)
    input_norm: bool = leaf(True, differs=True)
    shared_norm: bool = leaf(False)

    def require(self) -> None:
        if self.norm == "layernorm" and self.norm_bias and not self.norm_gain:
            raise ConfigError("norm_bias is true, and norm_gain is false", "a norm without a gain has no bias either")

    @property
    def learned(self) -> tuple[str, ...]:
        """What every norm has learned: a gain, and a LayerNorm a bias."""
        bias = self.norm == "layernorm" and self.norm_bias
        return ("gain",) * self.norm_gain + ("bias",) * bias

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "norm": listed(
                f"{CALLED[self.norm]} {NORMED[self.norm_order]}",
                f"ε = {self.norm_eps:g}",
                f"{' and '.join(self.learned)} learned" if self.learned else "nothing learned",
                not self.input_norm and "none before attention",
            ),
            "residual": "both of one norm" if self.shared_norm else "",
        }


@dataclass(frozen=True, kw_only=True)
class Residual(Part):
    """A ``parallel`` residual has the feed-forward read the stream that attention reads, and adds both at once.

    What is added is multiplied by ``residual_scale`` before.
    """

    residual: str = choice("sequential", "parallel")
    residual_scale: float = leaf(1.0, ABOVE_ZERO)

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "residual": listed(
                self.residual == "parallel" and "attention and feed-forward side by side",
                self.residual_scale != 1 and f"what is added times {self.residual_scale:g}",
            )
        }
