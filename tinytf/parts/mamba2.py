"""The state space of Mamba-2: a mixer whose state is a matrix, in place of keys and values (Dao and Gu 2024).

Mamba's C, B and x are queries, keys and values here, as in the paper's duality with attention.
Shapes: B batch, T tokens, H heads of values, G heads (groups) of queries and keys, K and D their widths.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.parts.part import NOT_NEGATIVE, leaf, listed
from tinytf.parts.recurrence import MatrixState, activate, project
from tinytf.parts.row import KV, MAP, OF_HEADS, RESIDUAL, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Mamba2(MatrixState):
    """``n_heads`` value heads, ``d_value`` wide, and ``n_kv_heads`` query and key heads, ``d_head`` wide.

    Each passes through a convolution over ``conv_width`` tokens, with a ``conv_bias``. A head's state is a matrix S
    (K, D): each token scales it by its decay, writes Δ·v at its key, and reads q·S + D·v, gated and then normed. The
    step Δ is at least ``dt_floor``. Without its ``state_norm`` what is read is only gated (Falcon-H1).
    """

    called, noun = "mamba2", "a state space"
    conv_bias: bool = leaf(False, said="the bias of the convolution")
    dt_floor: float = leaf(0.0, NOT_NEGATIVE, said="a least step size of {}")
    state_norm: bool = leaf(True, said="the norm of what the state gives")

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "recurrence": listed(
                f"Mamba-2 of {self.sizes_in_words()}",
                self.dt_floor > 0 and f"steps of at least {self.dt_floor:g}",
                not self.state_norm and "not normed after its gate",
            ),
            "biases": "convolutions" if self.conv_bias else "",
        }


def _convolve(o: "ModuleType", c: Config) -> Any:
    return o.ShortConv(c.conv_width, c.conv_bias)


_FITS = ("kv head", "query", "key")
_ONE = ("head", "token", "switch")

ROWS: tuple[Step, ...] = (
    Step("q", "queries (Mamba's C) before their convolution", "{0}·W_Q", KV, (RESIDUAL,), "q", recorded=True,
         make=project, module="mamba.q", matrix="W_Q"),
    Step("k", "keys (Mamba's B) before their convolution", "{0}·W_K", KV, (RESIDUAL,), "k", recorded=True,
         make=project, module="mamba.k", matrix="W_K"),
    Step("v", "values (Mamba's x) before their convolution", "{0}·W_V", OF_HEADS, (RESIDUAL,), "v",
         recorded=True, make=project, module="mamba.v", matrix="W_V"),
    Step("q_conv", "queries, convolved", "Σ w·{0} of the last {taps} tokens{conv_bias}", KV, ("q",), "q",
         make=_convolve, module="mamba.q_conv"),
    Step("k_conv", "keys, convolved", "Σ w·{0} of the last {taps} tokens{conv_bias}", KV, ("k",), "k",
         make=_convolve, module="mamba.k_conv"),
    Step("v_conv", "values, convolved", "Σ w·{0} of the last {taps} tokens{conv_bias}", OF_HEADS, ("v",), "v",
         make=_convolve, module="mamba.v_conv"),
    Step("q_act", "queries, activated", "SiLU({0})", KV, ("q_conv",), "q", make=activate),
    Step("k_act", "keys, activated", "SiLU({0})", KV, ("k_conv",), "k", make=activate),
    Step("v_act", "values, activated", "SiLU({0})", OF_HEADS, ("v_conv",), "v", make=activate),
    Step("dt_in", "step size before its softplus", "{0}·W_dt", _ONE, (RESIDUAL,), "attention", make=project,
         module="mamba.dt_in", matrix="W_dt"),
    Step("dt", "step size", "Δ = softplus({0} + b){dt_floor}", _ONE, ("dt_in",), "attention",
         symbol="Δ", make=lambda o, c: o.Softplus(c.dt_floor), module="mamba.dt", matrix=""),
    Step("decay", "logarithm of the decay", "−e^A·{0}", _ONE, ("dt",), "attention", make=lambda o, _: o.Decay(),
         module="mamba.decay", matrix=""),
    Step("scores", "fit of queries and keys", "{0}·{1}ᵀ", _FITS, ("q_act", "k_act"), "attention", core=True,
         make=lambda o, _: o.Scores()),
    Step("read", "weights of what is read", "{2}·{0} · e^({1} since the key), 0 where key > query, + D where equal",
         MAP, ("scores", "decay", "dt"), "attention", core=True, make=lambda o, _: o.Unroll(), module="mamba.read",
         matrix=""),
    Step("head_out", "what is read", "{0}·{1}", OF_HEADS, ("read", "v_act"), "v", recorded=True, core=True,
         make=lambda o, _: o.Mix()),
    Step("gate", "gate of what is read", "{0}·W_Z", OF_HEADS, (RESIDUAL,), "attention", recorded=True,
         make=project, module="mamba.gate", matrix="W_Z"),
    Step("head_gated", "what is read, gated", "SiLU({0}) ⊙ {1}", OF_HEADS, ("gate", "head_out"), "v",
         when=lambda c: c.state_norm, make=activate),
    Step("head_gated", "what is read, gated and not normed", "SiLU({0}) ⊙ {1}", OF_HEADS, ("gate", "head_out"),
         "v", recorded=True, when=lambda c: not c.state_norm, make=activate),
    Step("head_norm", "what is read, gated and normed", "RMSNorm({0}) over {mamba_normed}", OF_HEADS,
         ("head_gated",), "v", recorded=True, when=lambda c: c.state_norm,
         absent="what is read is not normed in this model",
         make=lambda o, c: o.HeadNorm(False, c.norm_eps, ("gain",), c.n_kv_heads),
         module="mamba.norm", matrix="gain"),
    Step("concat", "what is read, heads side by side", "[head 0 | … | head {last_head}] of {0}", ("token",
         "n_heads·d_value"), ("<gated>",), "v", make=lambda o, _: o.Concat()),
    Step("attn", "output of the state space", "{0}·W_O", WIDE, ("concat",), "attention", recorded=True,
         make=project, module="mamba.o", matrix="W_O"),
)  # fmt: skip
"""From the input of the mixer to its output."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {
        "dt_floor": f", at least {c.dt_floor:g}" if c.dt_floor else "",
        "mamba_normed": "all heads" if c.n_kv_heads == 1 else f"each of {c.n_kv_heads} groups of heads",
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {"<gated>": ("head_norm" if c.state_norm else "head_gated",)}
