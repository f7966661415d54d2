"""The recurrent block of Griffin: a mixer whose channels decay by gates of their own (De et al. 2024, RecurrentGemma).

Shapes: B batch, T tokens, H heads, each D channels, among which the matrices of the gates mix; W = H·D channels.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.parts.part import POSITIVE, leaf
from tinytf.parts.recurrence import Recurrence
from tinytf.parts.row import HEADS, RESIDUAL, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Griffin(Recurrence):
    """``n_heads`` blocks of ``d_head`` channels, each with a state of one number.

    Values pass through a convolution over ``conv_width`` tokens; from the result come an input gate and a recurrence
    gate. What is read is gated by the ``activation`` of another projection.
    """

    called, noun = "griffin", "a gated linear recurrence"
    conv_width: int = leaf(4, POSITIVE, said="a convolution over {} tokens")

    @property
    def n_kv_heads(self) -> int:
        """The number of heads: none is shared."""
        return self.n_heads

    @property
    def state_size(self) -> int:
        """How many numbers a layer caches of a text of any length: the states, and the window of the convolution."""
        return self.n_heads * self.d_head * self.conv_width

    def words(self, causal: bool) -> dict[str, str]:
        channels = f"gated linear recurrence of {self.n_heads * self.d_head:,} channels in {self.n_heads} heads"
        return {"recurrence": f"{channels}, after convolutions over {self.conv_width} tokens"}


def _project(o: "ModuleType", _: Config) -> Any:
    return o.Linear(True)


def _of_head(o: "ModuleType", _: Config) -> Any:
    return o.HeadLinear()


ROWS: tuple[Step, ...] = (
    Step("v", "values before their convolution", "{0}·W_V + b", HEADS, (RESIDUAL,), "v", recorded=True,
         make=_project, module="griffin.v", matrix="W_V"),
    Step("v_conv", "values, convolved", "Σ w·{0} of the last {taps} tokens + b", HEADS, ("v",), "v",
         make=lambda o, c: o.ShortConv(c.conv_width, True), module="griffin.v_conv"),
    Step("gate_in", "input gate before its sigmoid", "{0}·W_GI + b in each head", HEADS, ("v_conv",), "attention",
         recorded=True, make=_of_head, module="griffin.gate_in", matrix="W_GI"),
    Step("v_gated", "values, gated", "{0} ⊙ σ({1})", HEADS, ("v_conv", "gate_in"), "v",
         make=lambda o, _: o.Switch()),
    Step("gate_kept", "recurrence gate before its sigmoid", "{0}·W_GR + b in each head", HEADS, ("v_conv",),
         "attention", recorded=True, make=_of_head, module="griffin.gate_kept", matrix="W_GR"),
    Step("decay", "logarithm of the share of its state that a channel keeps", "−8·softplus(Λ)·σ({0})", HEADS,
         ("gate_kept",), "attention", make=lambda o, _: o.ChannelDecay(), module="griffin.decay", matrix=""),
    Step("head_out", "the state of each channel", "S ← e^{0}·S + √(1 − e^(2·{0}))·{1}, of the first all", HEADS,
         ("decay", "v_gated"), "v", recorded=True, core=True, make=lambda o, _: o.Retain()),
    Step("gate", "gate of what is read", "{0}·W_G + b", HEADS, (RESIDUAL,), "attention", recorded=True,
         make=_project, module="griffin.gate", matrix="W_G"),
    Step("head_gated", "what is read, gated", "{activation}({0}) ⊙ {1}", HEADS, ("gate", "head_out"), "v",
         recorded=True, make=lambda o, c: o.Activate(c.activation)),
    Step("concat", "what is read, heads side by side", "[head 0 | … | head {last_head}] of {0}", ("token",
         "n_heads·d_value"), ("head_gated",), "v", make=lambda o, _: o.Concat()),
    Step("attn", "output of the recurrence", "{0}·W_O + b", WIDE, ("concat",), "attention", recorded=True,
         make=_project, module="griffin.o", matrix="W_O"),
)  # fmt: skip
"""From the input of the mixer to its output."""
