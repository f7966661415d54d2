"""The gated delta rule: a mixer whose state is a matrix, in place of keys and values (Yang et al. 2024).

Shapes: B batch, T tokens, H heads of values, G heads of queries and keys, K and D their widths.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.parts.part import ABOVE_ZERO, NOT_NEGATIVE, choice, leaf, listed
from tinytf.parts.recurrence import MatrixState, activate, project
from tinytf.parts.row import KV, MAP, OF_HEADS, RESIDUAL, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType

UNIT_EPS = 1e-6
"""ε of the division of queries and keys by their lengths."""


@dataclass(frozen=True, kw_only=True)
class GatedDelta(MatrixState):
    """``n_heads`` value heads, ``d_value`` wide, and ``n_kv_heads`` query and key heads, ``d_head`` wide.

    Each passes through a convolution over ``conv_width`` tokens. A head's state is a matrix S (K, D): each token scales
    it by its decay, writes β·(v − k·S) at its key, and reads q·S / √d_head. β lies between 0 and ``beta_scale``. The
    norm of what is read has ε ``head_norm_eps``, or that of the other norms if it is 0. The ``read_gate`` is a function
    of a gate that multiplies it.
    """

    called, noun = "gated_delta", "a gated delta rule"
    beta_scale: float = leaf(1.0, ABOVE_ZERO, said="a writing strength times {}")
    read_gate: str = choice("silu", "sigmoid", said="the function {} of the gate of what is read")
    head_norm_eps: float = leaf(0.0, NOT_NEGATIVE, said="eps {} of the norm of heads", zero="norm_eps")

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "recurrence": listed(
                f"gated delta rule of {self.sizes_in_words()}", self.beta_scale != 1 and f"β up to {self.beta_scale:g}"
            ),
            "gates": "a sigmoid of what is read" if self.read_gate == "sigmoid" else "",
            "norm": f"ε = {self.head_norm_eps:g} on what is read" if self.head_norm_eps else "",
        }


def _convolve(o: "ModuleType", c: Config) -> Any:
    return o.ShortConv(c.conv_width)


def _unit(o: "ModuleType", _: Config) -> Any:
    return o.Unit(UNIT_EPS)


_FITS = ("kv head", "query", "key")
_ONE = ("head", "token", "switch")

ROWS: tuple[Step, ...] = (
    Step("q", "queries before their convolution", "{0}·W_Q", KV, (RESIDUAL,), "q", recorded=True,
         make=project, module="delta.q", matrix="W_Q"),
    Step("k", "keys before their convolution", "{0}·W_K", KV, (RESIDUAL,), "k", recorded=True,
         make=project, module="delta.k", matrix="W_K"),
    Step("v", "values before their convolution", "{0}·W_V", OF_HEADS, (RESIDUAL,), "v", recorded=True,
         make=project, module="delta.v", matrix="W_V"),
    Step("q_conv", "queries, convolved", "Σ w·{0} of the last {taps} tokens", KV, ("q",), "q", make=_convolve,
         module="delta.q_conv"),
    Step("k_conv", "keys, convolved", "Σ w·{0} of the last {taps} tokens", KV, ("k",), "k", make=_convolve,
         module="delta.k_conv"),
    Step("v_conv", "values, convolved", "Σ w·{0} of the last {taps} tokens", OF_HEADS, ("v",), "v", make=_convolve,
         module="delta.v_conv"),
    Step("q_act", "queries, activated", "SiLU({0})", KV, ("q_conv",), "q", make=activate),
    Step("k_act", "keys, activated", "SiLU({0})", KV, ("k_conv",), "k", make=activate),
    Step("v_act", "values, activated", "SiLU({0})", OF_HEADS, ("v_conv",), "v", make=activate),
    Step("q_unit", "queries of length 1", "{0} / ‖{0}‖", KV, ("q_act",), "q", make=_unit),
    Step("k_unit", "keys of length 1", "{0} / ‖{0}‖", KV, ("k_act",), "k", make=_unit),
    Step("beta_in", "writing strength before its sigmoid", "{0}·W_B", _ONE, (RESIDUAL,), "k", make=project,
         module="delta.beta_in", matrix="W_B"),
    Step("beta", "writing strength", "σ({0})", _ONE, ("beta_in",), "k", make=lambda o, _: o.Sigmoid()),
    Step("beta_scaled", "writing strength, scaled", "{0} · {beta_scale}", _ONE, ("beta",), "k",
         when=lambda c: c.beta_scale != 1, absent="writing strengths are not scaled in this model",
         make=lambda o, c: o.Multiply(c.beta_scale)),
    Step("decay_in", "decay before its softplus", "{0}·W_A", _ONE, (RESIDUAL,), "attention", make=project,
         module="delta.decay_in", matrix="W_A"),
    Step("dt", "step size", "Δ = softplus({0} + b)", _ONE, ("decay_in",), "attention",
         symbol="Δ", make=lambda o, _: o.Softplus(), module="delta.dt", matrix=""),
    Step("decay", "logarithm of the decay", "−e^A·{0}", _ONE, ("dt",), "attention", make=lambda o, _: o.Decay(),
         module="delta.decay", matrix=""),
    Step("written", "what a token writes", "{2}·({1} − {0}·S), where S decays by e^{3}", OF_HEADS, ("k_unit", "v_act",
         "<beta>", "decay"), "v", make=lambda o, _: o.Write()),
    Step("scores", "fit of queries and keys", "{0}·{1}ᵀ", _FITS, ("q_unit", "k_unit"), "attention", core=True,
         make=lambda o, _: o.Scores()),
    Step("scaled", "fit of queries and keys, scaled", "{fit}", _FITS, ("scores",), "attention", core=True,
         make=lambda o, c: o.Scale(c.d_head**0.5, "√d_head", f"√{c.d_head}")),
    Step("read", "weights of what is read", "{0} · e^({1} since the key), 0 where key > query", MAP,
         ("scaled", "decay"), "attention", core=True, make=lambda o, _: o.Fade()),
    Step("head_out", "what is read", "{0}·{1}", OF_HEADS, ("read", "written"), "v", recorded=True, core=True,
         make=lambda o, _: o.Mix()),
    Step("head_norm", "what is read, normed", "RMSNorm({0}) in each head", OF_HEADS, ("head_out",), "v",
         make=lambda o, c: o.Norm(False, c.head_norm_eps or c.norm_eps, ("gain",)), module="delta.norm", matrix="gain"),
    Step("gate", "gate of what is read", "{0}·W_Z", OF_HEADS, (RESIDUAL,), "attention", recorded=True,
         make=project, module="delta.gate", matrix="W_Z"),
    Step("head_gated", "what is read, gated", "SiLU({0}) ⊙ {1}", OF_HEADS, ("gate", "head_norm"), "v",
         recorded=True, when=lambda c: c.read_gate == "silu", make=activate),
    Step("head_gated", "what is read, gated by a sigmoid", "{0} ⊙ σ({1})", OF_HEADS, ("head_norm", "gate"), "v",
         recorded=True, when=lambda c: c.read_gate == "sigmoid", make=lambda o, _: o.Switch()),
    Step("concat", "what is read, heads side by side", "[head 0 | … | head {last_head}] of {0}", ("token",
         "n_heads·d_value"), ("head_gated",), "v", make=lambda o, _: o.Concat()),
    Step("attn", "output of the delta rule", "{0}·W_O", WIDE, ("concat",), "attention", recorded=True, make=project,
         module="delta.o", matrix="W_O"),
)  # fmt: skip
"""From the input of the mixer to its output."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {
        "beta_scale": f"{c.beta_scale:g}",
        "fit": f"{{0}} / √{c.d_head} = {{0}} / {c.d_head**0.5:.4g}",
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {"<beta>": ("beta_scaled",) if c.beta_scale != 1 else ("beta",)}
