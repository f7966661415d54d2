"""Lightning attention: a mixer whose matrix state decays at a fixed rate (Qin et al. 2024; MiniMax-01).

Shapes: B batch, T tokens, H heads, D their width.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.parts.part import ABOVE_ZERO, leaf
from tinytf.parts.recurrence import Recurrence, project
from tinytf.parts.row import HEADS, KV, MAP, RESIDUAL, VALUES, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType

NORM_EPS = 1e-6
"""ε of the norm of what is read, independent of ``norm_eps``."""


@dataclass(frozen=True, kw_only=True)
class Lightning(Recurrence):
    """``n_heads`` heads, ``d_head`` wide, whose queries, keys and values pass through the ``activation``.

    A head's state is a matrix S (D, D): each token scales it by e^−s, adds k⊗v to it, and reads q·S; what all heads
    read is normed, then gated. The rate s of head h = 1 … H is 2^(−8·h / H) · ``decay_scale``.
    """

    called, noun = "lightning", "lightning attention"
    decay_scale: float = leaf(1.0, ABOVE_ZERO, differs=True, said="decays times {}")

    @property
    def n_kv_heads(self) -> int:
        """Every head has its own keys and values."""
        return self.n_heads

    @property
    def state_size(self) -> int:
        """How many numbers a layer caches of a text of any length: the states."""
        return self.n_heads * self.d_head**2

    def words(self, causal: bool) -> dict[str, str]:
        state = f"a state of {self.d_head} × {self.d_head} numbers each"
        rates = f"fixed decays times {self.decay_scale:.4g}" if self.decay_scale != 1 else "fixed decays"
        return {"recurrence": f"lightning attention of {self.n_heads} heads, {state}, {rates}"}


def _activate(o: "ModuleType", c: Config) -> Any:
    return o.Activate(c.activation)


ROWS: tuple[Step, ...] = (
    Step("q", "queries before their activation", "{0}·W_Q", HEADS, (RESIDUAL,), "q", recorded=True,
         make=project, module="lightning.q", matrix="W_Q"),
    Step("k", "keys before their activation", "{0}·W_K", KV, (RESIDUAL,), "k", recorded=True,
         make=project, module="lightning.k", matrix="W_K"),
    Step("v", "values before their activation", "{0}·W_V", VALUES, (RESIDUAL,), "v", recorded=True,
         make=project, module="lightning.v", matrix="W_V"),
    Step("q_act", "queries, activated", "{activation}({0})", HEADS, ("q",), "q", make=_activate),
    Step("k_act", "keys, activated", "{activation}({0})", KV, ("k",), "k", make=_activate),
    Step("v_act", "values, activated", "{activation}({0})", VALUES, ("v",), "v", make=_activate),
    Step("scores", "fit of queries and keys", "{0}·{1}ᵀ", MAP, ("q_act", "k_act"), "attention", core=True,
         make=lambda o, _: o.Scores()),
    Step("read", "weights of what is read", "{0} · e^(−s·(query − key)), 0 where key > query", MAP, ("scores",),
         "attention", core=True, make=lambda o, c: o.FadeAtRate(c.n_heads, c.decay_scale)),
    Step("head_out", "what is read", "{0}·{1}", VALUES, ("read", "v_act"), "v", recorded=True, core=True,
         make=lambda o, _: o.Mix()),
    Step("head_norm", "what is read, normed", "RMSNorm({0}) over all heads", VALUES, ("head_out",), "v",
         make=lambda o, _: o.HeadNorm(False, NORM_EPS, ("gain",), 1), module="lightning.norm", matrix="gain"),
    Step("gate", "gate of what is read", "{0}·W_Z", VALUES, (RESIDUAL,), "attention", recorded=True,
         make=project, module="lightning.gate", matrix="W_Z"),
    Step("head_gated", "what is read, gated", "{0} ⊙ σ({1})", VALUES, ("head_norm", "gate"), "v", recorded=True,
         make=lambda o, _: o.Switch()),
    Step("concat", "what is read, heads side by side", "[head 0 | … | head {last_head}] of {0}", ("token",
         "n_heads·d_value"), ("head_gated",), "v", make=lambda o, _: o.Concat()),
    Step("attn", "output of lightning attention", "{0}·W_O", WIDE, ("concat",), "attention", recorded=True,
         make=project, module="lightning.o", matrix="W_O"),
)  # fmt: skip
"""From the input of the mixer to its output."""
