"""A convolution of a layer's input, beside the layer, which is added to its output and normed (DeBERTa-v2 xlarge)."""

from dataclasses import dataclass

from tinytf.errors import ConfigError
from tinytf.parts.feed_forward import ACTIVATION_NAMES
from tinytf.parts.norm import make_norm
from tinytf.parts.part import COUNT, Part, choice, leaf
from tinytf.parts.row import RESIDUAL, WIDE, Config, Step


@dataclass(frozen=True, kw_only=True)
class SideConvolution(Part):
    """Layers with a ``side_conv`` convolve their input over ``side_width`` tokens, as many before as after each token.

    Its ``side_activation`` is added to the output of the layer, and the sum normed (He et al. 2021).
    """

    side_width: int = leaf(0, COUNT, said="a convolution over {} tokens beside attention")
    side_conv: bool = leaf(False, differs=True, said="the convolution beside attention")
    side_activation: str = choice(
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
        "tanh",
        default="tanh",
        said="the activation {} of the convolution beside attention",
        named=ACTIVATION_NAMES,
    )

    def require(self) -> None:
        if self.side_conv and self.side_width % 2 == 0:
            raise ConfigError(f"side_conv needs an odd side_width, not {self.side_width}")

    def fit(self, d_model: int, causal: bool) -> None:
        if self.side_width and causal:
            raise ConfigError(f"a side_width of {self.side_width} tokens reads ahead, but causal is true")

    def words(self, causal: bool) -> dict[str, str]:
        beside = f"of {self.side_width} tokens beside the layer with {self.side_activation}"
        return {"convolution": beside if self.side_conv else ""}


def _has(c: Config) -> bool:
    return bool(c.side_conv)


_NONE = "this layer has no convolution beside it"

ROWS: tuple[Step, ...] = (
    Step("norm2", "norm after feed-forward, before any convolution", "{norm}({0})", WIDE, ("sum",), recorded=True,
         when=lambda c: c.side_width > 0, make=make_norm, module="norm2", matrix="gain"),
    Step("side.near", "tokens around each token", "{0} of {side_width} tokens", ("token", "d_model·near"), ("in",),
         "ffn", when=_has, absent=_NONE, make=lambda o, c: o.Neighbours(c.side_width or 1)),
    Step("side", "convolution of the block input", "{0}·W_SC + b", WIDE, ("side.near",), "ffn", recorded=True,
         when=_has, absent=_NONE, make=lambda o, _: o.Linear(True), module="side.conv", matrix="W_SC", late=True),
    Step("side_act", "convolution, activated", "{side_act}({0})", WIDE, ("side",), "ffn", when=_has, absent=_NONE,
         make=lambda o, c: o.Activate(c.side_activation)),
    Step("side_sum", "block output and convolution", "{inputs}", WIDE, ("norm2", "side_act"), when=_has, absent=_NONE,
         make=lambda o, _: o.Add()),
    Step("side_norm", "block output and convolution, normed", "{norm}({0})", WIDE, ("side_sum",), recorded=True,
         when=_has, absent=_NONE, make=make_norm, module="side.norm", matrix="gain", late=True),
    Step("out", "block output, after any convolution", "{inputs}", WIDE, (RESIDUAL,), recorded=True,
         when=lambda c: c.side_width > 0, make=lambda o, _: o.Same()),
)  # fmt: skip
"""From the sum after the feed-forward to the residual stream after the layer, in models with such convolutions."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {"side_width": str(c.side_width), "side_act": ACTIVATION_NAMES[c.side_activation]}
