"""Kimi delta attention: a gated delta rule with a decay for every channel of a key (Kimi Team 2025, Kimi Linear).

Shapes: B batch, T tokens, H heads, D the width of their keys and values.
"""

from dataclasses import dataclass, replace

from tinytf.errors import ConfigError
from tinytf.parts import gated_delta
from tinytf.parts.part import NOT_NEGATIVE, leaf, listed
from tinytf.parts.recurrence import MatrixState, project
from tinytf.parts.row import HEADS, MAP, OF_HEADS, RESIDUAL, Config, Step


@dataclass(frozen=True, kw_only=True)
class KimiDelta(MatrixState):
    """``n_heads`` heads of queries, keys and values, ``d_head`` wide.

    Each passes through a convolution over ``conv_width`` tokens. A head's state is a matrix S (D, D): each token scales
    each of its rows by a decay of its own, writes β·(v − k·S) at its key, and reads q·S / √d_head. The decays, and the
    gate of what is read, are computed through ``d_head`` dimensions.

    The logarithm of a decay is −e^A·softplus(x + b); with a ``decay_bound`` it is −decay_bound·σ(e^A·(x + b)), so that
    a token leaves at least e^−decay_bound of a state (GLM-5.3).
    """

    called, noun = "kimi_delta", "Kimi delta attention"
    decay_bound: float = leaf(0.0, NOT_NEGATIVE, usual=(5.0,), said="logarithms of decays bounded by −{}")

    def require(self) -> None:
        super().require()
        if (self.n_kv_heads, self.d_value) != (self.n_heads, self.d_head):
            raise ConfigError(f"{self.noun} needs as many heads of keys as of values, as wide")

    def words(self, causal: bool) -> dict[str, str]:
        return {
            "recurrence": listed(
                f"Kimi delta attention of {self.sizes_in_words()}",
                "a decay for each channel of a key",
                self.decay_bound > 0 and f"its logarithm at least −{self.decay_bound:g}",
            )
        }


def _bounded(c: Config) -> bool:
    return c.decay_bound > 0


_LOW = ("token", "d_head")
_OWN: dict[str, tuple[Step, ...]] = {
    "decay_in": (
        Step("decay_low", "decays, compressed", "{0}·W_AD", _LOW, (RESIDUAL,), "attention", make=project,
             module="delta.decay_low", matrix="W_AD"),
        Step("decay_in", "decay of each channel before its softplus", "{0}·W_A", HEADS, ("decay_low",),
             "attention", make=project, module="delta.decay_in", matrix="W_A", when=lambda c: not _bounded(c)),
        Step("decay_in", "decay of each channel before its sigmoid", "{0}·W_A + b", HEADS, ("decay_low",),
             "attention", make=lambda o, _: o.Linear(True), module="delta.decay_in", matrix="W_A", when=_bounded),
    ),
    "dt": (
        Step("dt", "step size of each channel", "Δ = softplus({0} + b)", HEADS, ("decay_in",), "attention",
             symbol="Δ", make=lambda o, _: o.Softplus(), module="delta.dt", matrix="",
             when=lambda c: not _bounded(c), absent="decays have no softplus in this model: a sigmoid bounds them"),
    ),
    "decay": (
        Step("decay", "logarithm of the decay of each channel", "−e^A·{0}", HEADS, ("dt",), "attention",
             make=lambda o, _: o.Decay(), module="delta.decay", matrix="", when=lambda c: not _bounded(c)),
        Step("decay", "logarithm of the decay of each channel, bounded", "−{decay_bound}·σ(e^A·{0})", HEADS,
             ("decay_in",), "attention", make=lambda o, c: o.Decay(c.decay_bound), module="delta.decay", matrix="",
             when=_bounded),
        Step("key_fits", "fit of keys and earlier keys", "Σ {0}·{1}·e^({2} since the key)", MAP,
             ("k_unit", "k_unit", "decay"), "attention", make=lambda o, _: o.DecayedFits()),
    ),
    "written": (
        Step("written", "what a token writes", "{2}·({1} − Σ {0}·written of earlier tokens)", OF_HEADS, ("key_fits",
         "v_act", "beta"), "v", make=lambda o, _: o.WriteByFits()),
    ),
    "scores": (
        Step("scores", "fit of queries and keys", "Σ {0}·{1}·e^({2} since the key)", MAP,
             ("q_unit", "k_unit", "decay"), "attention", core=True, make=lambda o, _: o.DecayedRead()),
    ),
    "scaled": (
        Step("read", "weights of what is read", "{fit}", MAP, ("scores",), "attention", core=True,
             make=lambda o, c: o.Scale(c.d_head**0.5, "√d_head", f"√{c.d_head}")),
    ),
    "beta_scaled": (),
    "read": (),
    "head_norm": (
        Step("head_norm", "what is read, normed", "RMSNorm({0}) in each head", OF_HEADS, ("head_out",), "v",
             make=lambda o, c: o.Norm(False, c.norm_eps, ("gain",)), module="delta.norm", matrix="gain"),
    ),
    "gate": (
        Step("gate_low", "gate of what is read, compressed", "{0}·W_ZD", _LOW, (RESIDUAL,), "attention",
             make=project, module="delta.gate_low", matrix="W_ZD"),
        Step("gate", "gate of what is read", "{0}·W_Z", OF_HEADS, ("gate_low",), "attention", recorded=True,
             make=project, module="delta.gate", matrix="W_Z"),
    ),
    "head_gated": (
        Step("head_gated", "what is read, gated", "{0} ⊙ σ({1})", OF_HEADS, ("head_norm", "gate"), "v",
             recorded=True, make=lambda o, _: o.Switch()),
    ),
    "attn": (replace(gated_delta.ROWS[-1], title="output of Kimi delta attention"),),
}  # fmt: skip
"""What stands in place of rows of the gated delta rule, by their names."""

ROWS: tuple[Step, ...] = tuple(dict.fromkeys(own for row in gated_delta.ROWS for own in _OWN.get(row.name, (row,))))
"""From the input of the mixer to its output."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {"decay_bound": f"{c.decay_bound:g}"}
