"""The selective state space of Mamba: a mixer with a small state for each channel (Gu and Dao 2023).

Mamba's C, B and x are queries, keys and values here. Shapes: B batch, T tokens, H heads, which are groups of D
channels and change no number; N numbers of a channel's state, the width of the one query and key head, or of several.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.part import COUNT, NOT_NEGATIVE, POSITIVE, choice, leaf, listed
from tinytf.parts.recurrence import Recurrence, activate, project
from tinytf.parts.row import KV, OF_HEADS, RESIDUAL, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType

_INNER_NORMS = {"none": "", "plain": "on q, k and steps too without a gain", "learned": "on q, k and steps too"}


@dataclass(frozen=True, kw_only=True)
class Mamba(Recurrence):
    """``n_heads`` groups of ``d_value`` channels, each with a state of ``d_head`` numbers.

    Values pass through a convolution over ``conv_width`` tokens, with a ``conv_bias``; queries, keys, and steps through
    ``dt_rank`` dimensions, are computed from the result: from all channels, or in each of ``scan_heads`` equal parts of
    them from these alone (Zamba). An ``inner_norm`` of these, learned or plain, is an RMSNorm
    with ε ``inner_norm_eps``, or that of the other norms if it is 0.
    """

    called, noun = "mamba", "a state space"
    conv_width: int = leaf(4, POSITIVE, said="a convolution over {} tokens")
    d_value: int = leaf(0, COUNT, differs=True, said="values {} wide", zero="d_head")
    conv_bias: bool = leaf(False, said="the bias of the convolution")
    dt_rank: int = leaf(0, COUNT, said="a rank of {} of the step sizes")
    scan_heads: int = leaf(1, POSITIVE, said="{} heads of the scan")
    inner_norm: str = choice(
        *_INNER_NORMS, said="{} of B, C and Δ", named={"plain": "a norm without a gain", "learned": "a norm"},
    )  # fmt: skip
    inner_norm_eps: float = leaf(0.0, NOT_NEGATIVE, said="eps {} of the norm of B, C and Δ", zero="norm_eps")

    def require(self) -> None:
        if not self.dt_rank:
            raise ConfigError("a selective state space computes its steps through dt_rank dimensions, and that is 0")
        if self.n_heads % self.scan_heads:
            raise ConfigError(f"n_heads {self.n_heads} is not divisible by scan_heads {self.scan_heads}")
        if self.scan_heads > 1 and self.inner_norm != "none":
            raise ConfigError(f"inner_norm {self.inner_norm!r} needs scan_heads 1, not {self.scan_heads}")
        if not self.d_value:
            object.__setattr__(self, "d_value", self.d_head)

    @property
    def n_kv_heads(self) -> int:
        """One query and one key serve all channels of a scan head."""
        return self.scan_heads

    @property
    def state_size(self) -> int:
        """How many numbers a layer caches of a text of any length: the states, and the window of the convolution."""
        return self.n_heads * self.d_value * (self.d_head + self.conv_width - 1)

    def words(self, causal: bool) -> dict[str, str]:
        parts = f" in {self.scan_heads} heads" * (self.scan_heads > 1)
        channels = f"Mamba of {self.n_heads * self.d_value:,} channels{parts}, a state of {self.d_head} numbers each"
        return {
            "recurrence": f"{channels}, after convolutions over {self.conv_width} tokens, "
            f"steps through {self.dt_rank} dimensions",
            "norm": listed(
                _INNER_NORMS[self.inner_norm], self.inner_norm_eps > 0 and f"ε = {self.inner_norm_eps:g} there"
            ),
            "biases": "convolutions" if self.conv_bias else "",
        }


def _inner_normed(c: Config) -> bool:
    return c.inner_norm != "none"


def _in_heads(c: Config) -> bool:
    return bool(c.scan_heads > 1)


def _one_head(c: Config) -> bool:
    return not _in_heads(c)


def _project_part(o: "ModuleType", c: Config) -> Any:
    return o.GroupedLinear(False, c.scan_heads, "d_scan")


def _norm(o: "ModuleType", c: Config) -> Any:
    return o.Norm(False, c.inner_norm_eps or c.norm_eps, ("gain",) * (c.inner_norm == "learned"))


_NOT_NORMED = "queries, keys and steps are not normed in this model"
_INNER = ("token", "n_heads·d_value")

ROWS: tuple[Step, ...] = (
    Step("v", "values (Mamba's x) before their convolution", "{0}·W_V", OF_HEADS, (RESIDUAL,), "v",
         recorded=True, make=project, module="mamba.v", matrix="W_V"),
    Step("v_conv", "values, convolved", "Σ w·{0} of the last {taps} tokens{conv_bias}", OF_HEADS, ("v",), "v",
         make=lambda o, c: o.ShortConv(c.conv_width, c.conv_bias), module="mamba.v_conv"),
    Step("v_act", "values, activated", "SiLU({0})", OF_HEADS, ("v_conv",), "v", make=activate),
    Step("inner", "values, side by side", "[head 0 | … | head {last_head}] of {0}", _INNER, ("v_act",), "v",
         make=lambda o, _: o.Concat()),
    Step("q", "queries (Mamba's C)", "{0}·W_Q", KV, ("inner",), "q", recorded=True, when=_one_head, make=project,
         module="mamba.q", matrix="W_Q"),
    Step("q", "queries (Mamba's C) of each head", "{0}·W_Q in each head", KV, ("inner",), "q", recorded=True,
         when=_in_heads, make=_project_part, module="mamba.q", matrix="W_Q"),
    Step("k", "keys (Mamba's B)", "{0}·W_K", KV, ("inner",), "k", recorded=True, when=_one_head, make=project,
         module="mamba.k", matrix="W_K"),
    Step("k", "keys (Mamba's B) of each head", "{0}·W_K in each head", KV, ("inner",), "k", recorded=True,
         when=_in_heads, make=_project_part, module="mamba.k", matrix="W_K"),
    Step("dt_low", "step size, compressed", "{0}·W_dt_down", ("token", "dt_rank"), ("inner",), "attention",
         when=_one_head, make=project, module="mamba.dt_low", matrix="W_dt_down"),
    Step("dt_low", "step size of each head, compressed", "{0}·W_dt_down in each head",
         ("token", "n_kv_heads·dt_rank"), ("inner",), "attention", when=_in_heads, make=_project_part,
         module="mamba.dt_low", matrix="W_dt_down"),
    Step("q_norm", "queries, normed", "RMSNorm({0})", KV, ("q",), "q", when=_inner_normed, absent=_NOT_NORMED,
         make=_norm, module="mamba.q_norm", matrix="gain"),
    Step("k_norm", "keys, normed", "RMSNorm({0})", KV, ("k",), "k", when=_inner_normed, absent=_NOT_NORMED, make=_norm,
         module="mamba.k_norm", matrix="gain"),
    Step("dt_norm", "step size, compressed and normed", "RMSNorm({0})", ("token", "dt_rank"), ("dt_low",),
         "attention", when=_inner_normed, absent=_NOT_NORMED, make=_norm, module="mamba.dt_norm", matrix="gain"),
    Step("dt_in", "step size of each channel before its softplus", "{0}·W_dt", OF_HEADS, ("<low>",), "attention",
         when=_one_head, make=project, module="mamba.dt_in", matrix="W_dt"),
    Step("dt_in", "step size of each channel in its head, before its softplus", "{0}·W_dt in each head", OF_HEADS,
         ("dt_low",), "attention", when=_in_heads, make=lambda o, c: o.GroupedLinear(False, c.scan_heads, "dt_rank"),
         module="mamba.dt_in", matrix="W_dt"),
    Step("dt", "step size of each channel", "Δ = softplus({0} + b)", OF_HEADS, ("dt_in",), "attention",
         symbol="Δ", make=lambda o, _: o.Softplus(), module="mamba.dt", matrix=""),
    Step("head_out", "what is read of each channel's state", "{0}·S + D·{3}, S ← e^(−e^A·{2})·S + {2}·{3}·{1}",
         OF_HEADS, ("<scan q>", "<scan k>", "dt", "v_act"), "v", recorded=True, core=True, make=lambda o, _: o.Scan(),
         module="mamba.scan", matrix=""),
    Step("gate", "gate of what is read", "{0}·W_Z", OF_HEADS, (RESIDUAL,), "attention", recorded=True,
         make=project, module="mamba.gate", matrix="W_Z"),
    Step("head_gated", "what is read, gated", "SiLU({0}) ⊙ {1}", OF_HEADS, ("gate", "head_out"), "v",
         recorded=True, make=activate),
    Step("concat", "what is read, heads side by side", "[head 0 | … | head {last_head}] of {0}", _INNER,
         ("head_gated",), "v", make=lambda o, _: o.Concat()),
    Step("attn", "output of the state space", "{0}·W_O", WIDE, ("concat",), "attention", recorded=True,
         make=project, module="mamba.o", matrix="W_O"),
)  # fmt: skip
"""From the input of the mixer to its output."""


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    normed = _inner_normed(c)
    return {
        "<scan q>": ("q_norm" if normed else "q",),
        "<scan k>": ("k_norm" if normed else "k",),
        "<low>": ("dt_norm" if normed else "dt_low",),
    }
