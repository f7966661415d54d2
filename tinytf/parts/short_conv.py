"""The gated short convolution: a mixer that reads a few tokens back, between two gates (Liquid AI 2025, LFM2).

Shapes: B batch, T tokens, C model width. Channels do not mix: H heads are groups of them, each
D = C / H wide, and change no number.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.part import POSITIVE, leaf
from tinytf.parts.recurrence import Recurrence, project
from tinytf.parts.row import HEADS, RESIDUAL, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class ShortConvolution(Recurrence):
    """gate ⊙ conv(gate_in ⊙ v), where conv weighs each channel of the last ``conv_width`` tokens.

    Channels are shown in ``n_heads`` groups of ``d_head``, which together are as wide as the model.
    """

    called, noun = "short_convolution", "a short convolution"
    conv_width: int = leaf(3, POSITIVE, said="a convolution over {} tokens")

    def fit(self, d_model: int, causal: bool) -> None:
        super().fit(d_model, causal)
        if self.n_heads * self.d_head != d_model:
            groups = f"{self.n_heads} groups of {self.d_head} channels"
            raise ConfigError(f"a short convolution of {groups} does not have the {d_model} channels of d_model")

    @property
    def n_kv_heads(self) -> int:
        """The number of groups: none is shared."""
        return self.n_heads

    @property
    def state_size(self) -> int:
        """How many numbers a layer caches of a text of any length: the convolution's window before the next token."""
        return (self.conv_width - 1) * self.n_heads * self.d_head

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "convolution": f"each channel over {self.conv_width} tokens, between an input and an output gate",
            "widths": f"d_head {self.d_head}",
        }


def _multiply(o: "ModuleType", _: Config) -> Any:
    return o.Product()


ROWS: tuple[Step, ...] = (
    Step("gate_in", "input gate", "{0}·W_GI", HEADS, (RESIDUAL,), "attention", recorded=True, make=project,
         module="conv.gate_in", matrix="W_GI"),
    Step("v", "values before their gate", "{0}·W_V", HEADS, (RESIDUAL,), "v", recorded=True, make=project,
         module="conv.v", matrix="W_V"),
    Step("v_gated", "values, gated", "{0} ⊙ {1}", HEADS, ("gate_in", "v"), "v", make=_multiply),
    Step("v_conv", "gated values, convolved", "Σ w·{0} of the last {taps} tokens", HEADS, ("v_gated",), "v",
         make=lambda o, c: o.ShortConv(c.conv_width), module="conv.v_conv"),
    Step("gate", "gate of the convolution", "{0}·W_G", HEADS, (RESIDUAL,), "attention", recorded=True,
         make=project, module="conv.gate", matrix="W_G"),
    Step("head_out", "convolution, gated", "{0} ⊙ {1}", HEADS, ("gate", "v_conv"), "v", recorded=True, core=True,
         make=_multiply),
    Step("concat", "convolution, groups side by side", "[head 0 | … | head {last_head}] of {0}", ("token",
         "n_heads·d_value"), ("head_out",), "v", make=lambda o, _: o.Concat()),
    Step("attn", "output of the short convolution", "{0}·W_O", WIDE, ("concat",), "attention", recorded=True,
         make=project, module="conv.o", matrix="W_O"),
)  # fmt: skip
"""From what the mixer reads to what it gives."""
