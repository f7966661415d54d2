"""The feed-forward of a block: dense, or a mixture of experts."""

from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.memory import ADAPTED_FFN, adapts_ffn
from tinytf.parts.norm import NO_FEED_FORWARD, has_ffn, make_norm
from tinytf.parts.part import ABOVE_ZERO, COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Part, choice, leaf, listed, merged
from tinytf.parts.row import RESIDUAL, ROUTES, WIDE, Config, Step, grouped_words, make_linear

if TYPE_CHECKING:
    from types import ModuleType

ACTIVATION_NAMES = {
    "relu": "ReLU", "relu2": "ReLU²", "gelu": "GELU", "gelu_tanh": "GELU(tanh)", "silu": "SiLU", "tanh": "tanh",
    "xielu": "xIELU",
}  # fmt: skip
"""The display name of each activation."""


@dataclass(frozen=True, kw_only=True)
class Experts(Part):
    """Each token goes to ``experts_per_token`` of the ``experts``, each a feed-forward of ``d_expert`` units.

    The ``router`` scores them by a softmax, by sigmoids or by √softplus, with a ``choice_bias`` that is added to these
    in the choice alone. With ``chosen_by_id`` a table names the experts of each token by its id. ``routes_renormed``
    makes the weights of the chosen experts sum to 1, before ``routed_scale`` multiplies them; ``routes_epsilon`` is
    added to a sum of sigmoids before it divides. The weights multiply the outputs of the experts, or with
    ``routes_first`` their inputs. ``sum_bias`` adds a learned vector to the sum (JetMoE). Every token also goes through
    the shared expert of ``d_shared`` units, which ``shared_gate`` multiplies by a sigmoid of its own. With
    ``expert_groups`` a token chooses in its ``groups_per_token`` best groups only, by the sum of the ``group_best``
    largest numbers of each. With a ``route_margin`` the weight of a chosen expert is its share of a softmax over itself
    and the experts below it whose numbers are within that fraction (PhiMoE). With ``expert_norms`` router, experts and
    shared expert are parallel branches: the first two read the stream through norms of their own, the outputs of both
    kinds of experts are normed, and each expert's weight is multiplied by a learned number (Gemma 4). The last
    ``identity_experts`` of the experts have no matrices, and give what they are sent (LongCat-Flash). Every token
    goes to the last ``always_experts``, some of the ``experts_per_token`` (Inkling). The shared expert has a
    ``shared_limit`` in place of ``act_limit`` (Step 3.7).
    """

    experts: int = leaf(0, COUNT, differs=True, off=0, said="{} experts")
    experts_per_token: int = leaf(0, COUNT, said="{} experts a token")
    expert_groups: int = leaf(0, COUNT, said="{} groups of experts")
    groups_per_token: int = leaf(0, COUNT, said="{} groups a token")
    group_best: int = leaf(1, POSITIVE, said="the scores of the best {} experts for a group")
    d_expert: int = leaf(0, COUNT, said="experts {} wide", zero="d_ff")
    router: str = choice("softmax", "sigmoid", "sqrtsoftplus", said="a {} router")
    router_bias: bool = leaf(False, said="the bias of the router")
    choice_bias: bool = leaf(False, said="the bias of the choice of experts")
    chosen_by_id: bool = leaf(False, differs=True, said="experts that the id of a token names")
    routes_renormed: bool = leaf(True, said="the division of experts' weights by the sum of the chosen")
    route_margin: float = leaf(0.0, NOT_NEGATIVE, said="a margin of {} for the choice of experts")
    routes_epsilon: float = leaf(1e-20, NOT_NEGATIVE, said="an ε of {} in the sum of experts' weights")
    routed_scale: float = leaf(1.0, ABOVE_ZERO, said="weights of experts times {}")
    routes_first: bool = leaf(False, said="experts' weights at their inputs")
    sum_bias: bool = leaf(False, said="the bias of the sum of experts")
    d_shared: int = leaf(0, COUNT, said="a shared expert {} wide")
    shared_gate: bool = leaf(False, said="the gate of the shared expert")
    shared_limit: float = leaf(
        0.0, NOT_NEGATIVE, differs=True, usual=(16.0,), said="a limit of {} of the shared expert's units"
    )
    expert_norms: bool = leaf(False, said="the norms of experts")
    always_experts: int = leaf(0, COUNT, said="{} experts for every token")
    identity_experts: int = leaf(0, COUNT, said="{} experts that give their input")

    def require(self) -> None:
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ConfigError(f"experts_per_token {self.experts_per_token} is not between 1 and experts {self.experts}")
        if self.experts and self.expert_groups:
            if self.experts % self.expert_groups:
                raise ConfigError(f"experts {self.experts} is not a multiple of expert_groups {self.expert_groups}")
            size = self.experts // self.expert_groups
            if not 0 < self.groups_per_token <= self.expert_groups:
                raise ConfigError(
                    f"groups_per_token {self.groups_per_token} is not between 1 and expert_groups {self.expert_groups}"
                )
            if self.group_best > size or self.experts_per_token > self.groups_per_token * size:
                raise ConfigError(f"groups of {size} experts are too small for experts_per_token and group_best")
        if self.route_margin and self.router != "softmax":
            raise ConfigError(f"route_margin {self.route_margin:g} needs the router 'softmax', not {self.router!r}")
        if self.sum_bias and self.d_shared:
            raise ConfigError("sum_bias needs experts without a shared one, but d_shared is not 0")
        if self.shared_gate and not self.d_shared:
            raise ConfigError("shared_gate is true, but there is no shared expert: d_shared is 0")
        if self.shared_limit and not self.d_shared:
            raise ConfigError(f"shared_limit {self.shared_limit:g} needs a shared expert, but d_shared is 0")
        if self.expert_norms and not (self.d_shared and not self.shared_gate and not self.routes_first):
            raise ConfigError("expert_norms needs a shared expert without a gate, and weights that multiply outputs")
        alone = self.always_experts < self.experts_per_token and not (self.expert_groups or self.identity_experts)
        if self.experts and self.always_experts and not alone:
            raise ConfigError("always_experts are some of experts_per_token, without groups or identity_experts")
        if self.experts and self.identity_experts:
            if self.identity_experts >= self.experts:
                raise ConfigError(f"identity_experts {self.identity_experts} is not below experts {self.experts}")
            if self.routes_first or self.expert_norms:
                raise ConfigError("identity_experts need weights that multiply outputs, and no norms of experts")

    def words(self, causal: bool) -> dict[str, str]:
        if not self.experts:
            return {"feed-forward": ""}
        best = f", each by its best {self.group_best}" * (self.group_best > 1)
        weights = listed(
            f"a {self.router} router" + " with biases" * self.router_bias,
            self.choice_bias and not self.chosen_by_id and "a bias in the choice only",
            self.chosen_by_id and "chosen by the token's id",
            self.expert_groups > 1 and f"from the best {self.groups_per_token} of {self.expert_groups} groups" + best,
            self._sum_words(),
            self.routed_scale != 1 and f"times {self.routed_scale:g}",
            self.routes_first and "multiplied before the experts",
            self.sum_bias and "a bias on the sum",
            self.expert_norms and "times a learned number of each expert",
        )
        shared = f"; a shared expert of {self.d_shared:,} units" + " behind a gate" * self.shared_gate
        shared += f", activated to at most {self.shared_limit:g}" * (self.shared_limit > 0)
        shared += "; norms of their own before router and experts, and after either kind" * self.expert_norms
        chosen = f"{self.experts} experts of {self.d_expert:,} units, {self.experts_per_token} for each token"
        chosen += f"; the last {self.always_experts} for every token" * (self.always_experts > 0)
        chosen += f"; the last {self.identity_experts} only give what they are sent" * (self.identity_experts > 0)
        return {"feed-forward": f"{chosen}; {weights}" + (shared if self.d_shared else "")}

    def _sum_words(self) -> str:
        """What the weights of the chosen experts add up to."""
        if self.route_margin:
            return f"each weight a share among experts at most {self.route_margin:.0%} below"
        return "the weights of the chosen experts sum to 1" if self.routes_renormed else "weights not normalised"


@dataclass(frozen=True, kw_only=True)
class FeedForward(Part):
    """A feed-forward of ``d_ff`` units; ``gated`` makes it SwiGLU-like: act(gate) ⊙ up.

    With a ``glu_limit`` it is (up + 1) ⊙ gate·σ(α·gate), where α is ``glu_alpha``, gate is clamped from above and
    up on both sides at the limit (gpt-oss); ``glu_added`` stands for that 1, and with ``glu_of_experts`` only
    experts are so limited, not the shared one and dense layers (Hunyuan 4). An ``act_limit`` is that of the activated
    gate, and of up on both sides (Step 3.7). Without ``up_bias`` only the last matrix has a bias. ``xielu`` learns two
    slopes in each layer. With a ``gate_sparsity`` s, a gate is what exceeds the s-quantile of a normal distribution
    with the mean and deviation of the token's gates, else 0 (Gemma 3n). ``act_norm`` norms the activated units
    (BitNet). ``ffn_groups`` are equal parts of the input of each matrix that make as many equal parts of its output,
    each by a matrix of its own (SqueezeBERT). ``mixture`` replaces it by experts. With ``d_ff`` 0 there is none.
    """

    d_ff: int = leaf(limits=COUNT, differs=True, off=0, said="a feed-forward {} wide")
    activation: str = choice(
        "relu", "relu2", "gelu", "gelu_tanh", "silu", "xielu", default="gelu", said="the activation {}",
        named=ACTIVATION_NAMES,
    )  # fmt: skip
    gated: bool = leaf(False, said="the gate of the feed-forward")
    glu_limit: float = leaf(0.0, NOT_NEGATIVE, usual=(7.0,), said="a clamped gate, limit {}")
    glu_alpha: float = leaf(1.0, ABOVE_ZERO, usual=(1.702,), said="an α of {} in the gate")
    glu_added: float = leaf(1.0, NOT_NEGATIVE, usual=(0.0,), said="{} added to up in a clamped gate")
    glu_of_experts: bool = leaf(False, said="a clamped gate in experts alone")
    act_limit: float = leaf(0.0, NOT_NEGATIVE, differs=True, usual=(7.0,), said="a limit of {} of activated units")
    ffn_bias: bool = leaf(True, said="the bias of the feed-forward")
    up_bias: bool = leaf(True, said="the bias of the hidden units")
    act_norm: bool = leaf(False, said="the norm of the activations")
    ffn_groups: int = leaf(1, POSITIVE, said="a feed-forward in {} groups")
    gate_sparsity: float = leaf(0.0, SHARE, differs=True, off=0.0, said="a share of {} of the gate set to 0")
    mixture: Experts = field(default_factory=Experts)

    def idle(self) -> Collection[str]:
        return () if self.d_ff else ("activation", "gated", "ffn_bias", "up_bias", "act_norm", "ffn_groups")

    def require(self) -> None:
        if self.glu_limit and not (self.gated and self.activation == "silu"):
            raise ConfigError(f"glu_limit {self.glu_limit:g} needs a gated feed-forward with the activation 'silu'")
        if self.glu_of_experts and not self.glu_limit:
            raise ConfigError("glu_of_experts needs a glu_limit")
        for name, limit in (("act_limit", self.act_limit), ("shared_limit", self.mixture.shared_limit)):
            if limit and (not self.gated or self.glu_limit):
                raise ConfigError(f"{name} {limit:g} needs a gated feed-forward without glu_limit")
        if self.activation == "xielu" and (self.gated or self.mixture.experts):
            raise ConfigError("activation 'xielu' needs a feed-forward without a gate or experts")
        if self.gate_sparsity and (not self.gated or self.mixture.experts or self.glu_limit):
            raise ConfigError(
                f"gate_sparsity {self.gate_sparsity:g} needs a gated feed-forward without a limit or experts"
            )
        if self.act_norm and self.mixture.experts:
            raise ConfigError("act_norm needs a feed-forward without experts")
        if self.mixture.experts and not self.d_ff:
            raise ConfigError(f"a layer without a feed-forward, d_ff 0, cannot have {self.mixture.experts} experts")
        if not self.up_bias and (not self.ffn_bias or self.mixture.experts):
            raise ConfigError("up_bias is false, but that needs ffn_bias, and a feed-forward without experts")
        if self.ffn_groups > 1 and self.mixture.experts:
            raise ConfigError(f"ffn_groups {self.ffn_groups} needs a feed-forward without experts")
        if self.d_ff % self.ffn_groups:
            raise ConfigError(f"d_ff {self.d_ff} is not divisible by ffn_groups {self.ffn_groups}")
        if self.mixture.experts and not self.mixture.d_expert:
            raise ConfigError(f"{self.mixture.experts} experts have no units: d_expert is 0")

    def fit(self, d_model: int, causal: bool) -> None:
        super().fit(d_model, causal)
        if d_model % self.ffn_groups:
            raise ConfigError(f"d_model {d_model} is not divisible by ffn_groups {self.ffn_groups}")

    def words(self, causal: bool) -> dict[str, str]:
        if not self.d_ff:
            return {"feed-forward": "none"}
        sparse = f"gates {self.gate_sparsity:.0%} sparse" if self.gate_sparsity else ""
        where = " in experts" * self.glu_of_experts
        limited = f"limited to {self.glu_limit:g}{where}, α {self.glu_alpha:g}, {self.glu_added:g} added to up"
        rows = {
            "widths": f"d_ff {self.d_ff}",
            "feed-forward": listed(
                self.activation,
                self.gated and "gated",
                bool(self.glu_limit) and limited,
                bool(self.act_limit) and f"activated to at most {self.act_limit:g}",
                sparse,
                self.ffn_groups > 1 and f"matrices of {self.ffn_groups} groups",
            ),
            "norm": "on the activated units too" if self.act_norm else "",
            "biases": ("feed-forward" if self.up_bias else "the feed-forward's last matrix") if self.ffn_bias else "",
        }
        return merged(rows, self.mixture.words(causal))


def _mixed(c: Config) -> bool:
    return c.experts > 0


def _dense(c: Config) -> bool:
    return has_ffn(c) and not _mixed(c)


def _sparse(c: Config) -> bool:
    return c.gate_sparsity > 0


def _deviations(c: Config) -> float:
    """By how many standard deviations a gate must exceed the mean: the quantile of the normal distribution."""
    return NormalDist().inv_cdf(c.gate_sparsity) if _sparse(c) else 0.0


def _learned(c: Config) -> bool:
    return c.activation == "xielu"


def _shared(c: Config) -> bool:
    return _mixed(c) and c.d_shared > 0


def _biased(c: Config) -> bool:
    return _mixed(c) and c.sum_bias


def _weighed_first(c: Config) -> bool:
    return _mixed(c) and c.routes_first


def _prefers(c: Config) -> bool:
    return _mixed(c) and c.choice_bias and not c.chosen_by_id


def _normed(c: Config) -> bool:
    return _mixed(c) and c.expert_norms


def _ffn(o: "ModuleType", c: Config) -> Any:
    return make_linear(o, c.ffn_bias, c.ffn_groups)


def _up(o: "ModuleType", c: Config) -> Any:
    return make_linear(o, c.ffn_bias and c.up_bias, c.ffn_groups)


def _passes_on(c: Config) -> bool:
    return _mixed(c) and c.identity_experts > 0


def _expert(o: "ModuleType", c: Config) -> Any:
    return o.ExpertLinear(c.ffn_bias, c.identity_experts)


def _act_norm(o: "ModuleType", c: Config) -> Any:
    return o.Norm(c.norm == "layernorm", c.norm_eps, c.norm_parameters)


def _choose(o: "ModuleType", c: Config) -> Any:
    return o.Choose(c.experts_per_token, c.expert_groups or 1, c.groups_per_token or 1, c.group_best, c.always_experts)


def _route(o: "ModuleType", c: Config) -> Any:
    if c.route_margin:
        return o.RouteNear(c.route_margin, c.routed_scale)
    return o.Route(c.router, c.routes_renormed, c.routed_scale, c.routes_epsilon)


def _activate(o: "ModuleType", c: Config) -> Any:
    return o.Activate(c.activation, c.act_limit) if c.glu_of_experts else _activate_expert(o, c)


def _activate_expert(o: "ModuleType", c: Config) -> Any:
    limit = c.glu_limit
    return o.ClampedGlu(c.glu_alpha, limit, c.glu_added) if limit else o.Activate(c.activation, c.act_limit)


def _activate_shared(o: "ModuleType", c: Config) -> Any:
    limited = c.glu_limit and not c.glu_of_experts
    return _activate_expert(o, c) if limited else o.Activate(c.activation, c.shared_limit)


def _limited(o: "ModuleType", c: Config, limit: float, clamped: bool) -> Any:
    return o.ClampedGlu(c.glu_alpha, c.glu_limit, c.glu_added) if clamped else o.Activate(c.activation, limit)


_SCORES = {"softmax": "softmax", "sigmoid": "σ", "sqrtsoftplus": "√softplus"}
_HIDDEN = ("token", "d_ff")
_OF_EXPERTS = ("expert", "token", "d_expert")
_SHARED = ("token", "d_shared")
_NO_EXPERTS = "this layer has no experts: one feed-forward takes every token"
_NO_SHARED = "this model has no shared expert, which takes every token"
_NO_DENSE = "{no_dense}"
_NO_NORMS = "router and experts have no norms of their own in this model"

ROWS: tuple[Step, ...] = (
    Step("ffn.hidden", "feed-forward, expanded", "{0}·{w_up}{ffn_bias_1}", _HIDDEN, (RESIDUAL,), "ffn",
         recorded=True, when=_dense, absent=_NO_DENSE, make=_up, module="ffn.up",
         matrix="{w_up}"),
    Step("ffn.gate", "feed-forward, gate", "{0}·W_gate{ffn_bias_g}", _HIDDEN, (RESIDUAL,), "ffn",
         recorded=True, when=lambda c: _dense(c) and c.gated, absent="{no_gate}",
         make=_up, module="ffn.gate", matrix="W_gate", late=True),
    Step("ffn.sparse", "feed-forward, gate above a threshold", "max(0, {0} − ({threshold}))", _HIDDEN,
         ("ffn.gate",), "ffn", when=_sparse, absent="{no_sparse}", make=lambda o, c: o.Exceed(_deviations(c))),
    *ADAPTED_FFN,
    Step("ffn.act", "feed-forward, activated", "{activated}", _HIDDEN, ("<activated>",), "ffn",
         when=lambda c: _dense(c) and not _learned(c), absent=_NO_DENSE, make=_activate),
    Step("ffn.act", "feed-forward, activated by learned slopes", "{activated}", _HIDDEN, ("<activated>",), "ffn",
         when=lambda c: _dense(c) and _learned(c), make=lambda o, _: o.Xielu(), module="ffn.act", matrix="",
         late=True),
    Step("ffn.act_norm", "feed-forward, activated and normed", "{norm}({0})", _HIDDEN, ("ffn.act",), "ffn",
         when=lambda c: _dense(c) and c.act_norm, absent="{no_act_norm}", make=_act_norm, module="ffn.act_norm",
         matrix="gain"),
    Step("ffn", "feed-forward output", "{0}·{w_down}{ffn_bias_2}", WIDE, ("<into down>",), "ffn", recorded=True,
         when=_dense, absent=_NO_DENSE, make=_ffn, module="ffn.down", matrix="{w_down}"),
    Step("ffn.router_norm", "norm before the router", "{norm}({0})", WIDE, ("<read>",), "ffn", when=_normed,
         absent=_NO_NORMS, make=make_norm, module="ffn.router_norm", matrix="gain"),
    Step("ffn.router_in", "input of the router", "{0} / √{d_model}", WIDE, ("ffn.router_norm",), "ffn",
         when=_normed, absent=_NO_NORMS, make=lambda o, c: o.Multiply(c.d_model**-0.5)),
    Step("ffn.experts_norm", "norm before the experts", "{norm}({0})", WIDE, ("<read>",), "ffn", when=_normed,
         absent=_NO_NORMS, make=make_norm, module="ffn.experts_norm", matrix="gain"),
    Step("ffn.router", "router", "{0}·W_router{router_bias}", ROUTES, ("<into router>",), "ffn", recorded=True,
         when=_mixed, absent=_NO_EXPERTS, make=lambda o, c: o.Linear(c.router_bias), module="ffn.router",
         matrix="W_router"),
    Step("ffn.preference", "preference among experts", "{preference} + b", ROUTES, ("ffn.router",), "ffn",
         when=_prefers, absent="experts are chosen by the router alone in this layer",
         make=lambda o, c: o.Prefer(c.router, c.always_experts), module="ffn.preference", matrix="", in_experts=True,
         to_loss=False),
    Step("ffn.chosen", "chosen experts", "1 for the {per_token} largest of {0}{in_groups}{always}, else 0", ROUTES,
         ("<decides>",), "ffn", when=lambda c: _mixed(c) and not c.chosen_by_id, absent=_NO_EXPERTS, make=_choose,
         in_experts=True, to_loss=False),
    Step("ffn.chosen", "experts that the token's id names", "1 for those in its row of a table, else 0, for {0}",
         ROUTES, ("ffn.router",), "ffn", when=lambda c: _mixed(c) and c.chosen_by_id,
         make=lambda o, c: o.ChooseById(c.experts), module="ffn.chosen", matrix="", in_experts=True, to_loss=False),
    Step("ffn.routes", "weights of the chosen experts", "{routes}", ROUTES, ("ffn.router", "ffn.chosen"), "ffn",
         when=_mixed, absent=_NO_EXPERTS, in_experts=True, make=_route),
    Step("ffn.weights", "weights of the experts, scaled", "{0} ⊙ gain", ROUTES, ("ffn.routes",), "ffn",
         when=_normed, absent="the weights of experts are not scaled one by one in this model",
         make=lambda o, _: o.Gain(), module="ffn.weights", matrix="gain", in_experts=True),
    Step("expert.in", "what an expert takes", "{1} ⊙ {0}", ("expert", *WIDE), (RESIDUAL, "ffn.routes"),
         "ffn", when=_weighed_first, absent="{no_expert_in}", make=lambda o, _: o.Weigh(), in_experts=True),
    Step("expert.hidden", "expert, expanded", "{0}·{w_up}{ffn_bias_1} where {1}, else 0", _OF_EXPERTS,
         ("<into expert>", "ffn.chosen"), "ffn", when=_mixed, absent=_NO_EXPERTS, make=_expert, module="ffn.experts.up",
         matrix="{w_up}", in_experts=True),
    Step("expert.gate", "expert, gate", "{0}·W_gate{ffn_bias_g} where {1}, else 0", _OF_EXPERTS,
         ("<into expert>", "ffn.chosen"), "ffn", when=lambda c: _mixed(c) and c.gated, absent=_NO_EXPERTS, make=_expert,
         module="ffn.experts.gate", matrix="W_gate", in_experts=True, late=True),
    Step("expert.act", "expert, activated", "{expert_activated}", _OF_EXPERTS, ("<of expert>",), "ffn", when=_mixed,
         absent=_NO_EXPERTS, make=_activate_expert, in_experts=True),
    Step("expert.out", "expert output", "{0}·{w_down}{ffn_bias_2} where {1}, else 0", ("expert", *WIDE),
         ("expert.act", "ffn.chosen"), "ffn", when=_mixed, absent=_NO_EXPERTS, make=_expert, module="ffn.experts.down",
         matrix="{w_down}", in_experts=True),
    Step("expert.given", "expert output, or its input", "{0}, or {1} of the last {identities} where {2}",
         ("expert", *WIDE), ("expert.out", RESIDUAL, "ffn.chosen"), "ffn", when=_passes_on,
         absent="every expert has matrices in this model",
         make=lambda o, c: o.PassOn(c.experts - c.identity_experts), in_experts=True),
    Step("expert.added", "what an expert adds", "{1} ⊙ {0}", ("expert", *WIDE), ("<given>", "<weights>"),
         "ffn", when=lambda c: _mixed(c) and not c.routes_first, absent="{no_expert_added}",
         make=lambda o, _: o.Weigh(), in_experts=True),
    Step("ffn", "experts, summed", "Σ {0}", WIDE, ("<of experts>",), "ffn", recorded=True,
         when=lambda c: _mixed(c) and not (_shared(c) or _biased(c)), make=lambda o, _: o.SumExperts(), at="ffn.sum"),
    Step("ffn.mixed", "experts, summed", "Σ {0}", WIDE, ("<of experts>",), "ffn",
         when=lambda c: _shared(c) or _biased(c), absent=_NO_SHARED, make=lambda o, _: o.SumExperts(), in_experts=True),
    Step("ffn.mixed_norm", "experts, summed and normed", "{norm}({0})", WIDE, ("ffn.mixed",), "ffn", when=_normed,
         absent=_NO_NORMS, make=make_norm, module="ffn.mixed_norm", matrix="gain"),
    Step("shared.hidden", "shared expert, expanded", "{0}·{w_up}{ffn_bias_1}", _SHARED, (RESIDUAL,), "ffn",
         recorded=True, when=_shared, absent=_NO_SHARED, make=_ffn, module="ffn.shared.up", matrix="{w_up}"),
    Step("shared.gate", "shared expert, gate", "{0}·W_gate{ffn_bias_g}", _SHARED, (RESIDUAL,), "ffn",
         recorded=True, when=lambda c: _shared(c) and c.gated, absent=_NO_SHARED, make=_ffn, module="ffn.shared.gate",
         matrix="W_gate", late=True),
    Step("shared.act", "shared expert, activated", "{shared_activated}", _SHARED, ("<of shared>",), "ffn",
         when=_shared, absent=_NO_SHARED, make=_activate_shared),
    Step("shared.out", "shared expert output", "{0}·{w_down}{ffn_bias_2}", WIDE, ("shared.act",), "ffn", when=_shared,
         absent=_NO_SHARED, make=_ffn, module="ffn.shared.down", matrix="{w_down}"),
    Step("shared.norm", "shared expert output, normed", "{norm}({0})", WIDE, ("shared.out",), "ffn", when=_normed,
         absent=_NO_NORMS, make=make_norm, module="ffn.shared_norm", matrix="gain"),
    Step("shared.score", "score of the shared expert", "{0}·W_score", ("token", "switch"), (RESIDUAL,), "ffn",
         when=lambda c: _shared(c) and c.shared_gate, absent=_NO_SHARED, make=lambda o, _: o.Linear(False),
         module="ffn.shared_score", matrix="W_score"),
    Step("shared.added", "what the shared expert adds", "σ({1}) ⊙ {0}", WIDE, ("shared.out", "shared.score"), "ffn",
         when=lambda c: _shared(c) and c.shared_gate, absent=_NO_SHARED, make=lambda o, _: o.Switch()),
    Step("ffn.constant", "bias of the sum of experts", "b, for each token of {0}", WIDE, ("ffn.mixed",), "ffn",
         when=_biased,
         absent="the sum of experts has no bias in this model", make=lambda o, _: o.Constant(), module="ffn.constant",
         matrix="", late=True),
    Step("ffn", "experts and their bias", "{inputs}", WIDE, ("ffn.mixed", "ffn.constant"), "ffn", recorded=True,
         when=_biased, make=lambda o, _: o.Add(), at="ffn.sum"),
    Step("ffn", "experts and shared expert", "{inputs}", WIDE, ("<mixed>", "<shared>"), "ffn", recorded=True,
         when=_shared, make=lambda o, _: o.Add(), at="ffn.sum"),
)  # fmt: skip
"""From the input of the feed-forward to its output."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    no_dense = "this layer has experts instead of one feed-forward; see expert.hidden" if _mixed(c) else NO_FEED_FORWARD
    bias = c.ffn_bias
    groups = grouped_words(c.ffn_groups)
    of_router = "experts take what the router reads in this model; see ffn.router"
    of_experts = "the weights multiply the inputs of experts in this model; see expert.in"
    return {
        "identities": str(c.identity_experts),
        "no_expert_in": of_router if _mixed(c) else _NO_EXPERTS,
        "no_expert_added": of_experts if _mixed(c) else _NO_EXPERTS,
        "w_up": "W_up" if c.gated else "W₁",
        "w_down": "W_down" if c.gated else "W₂",
        "ffn_bias_1": (" + b₁" if bias and c.up_bias else "") + groups,
        "ffn_bias_g": (" + b" if bias and c.up_bias else "") + groups,
        "ffn_bias_2": (" + b₂" if bias else "") + groups,
        "activation": ACTIVATION_NAMES[c.activation],
        "activated": _activated_words(c, c.glu_limit > 0 and not c.glu_of_experts, c.act_limit),
        "expert_activated": _activated_words(c, c.glu_limit > 0, c.act_limit),
        "shared_activated": _activated_words(c, c.glu_limit > 0 and not c.glu_of_experts, c.shared_limit),
        "no_dense": no_dense,
        "no_act_norm": "activated units are not normed in this model" if _dense(c) else no_dense,
        "threshold": f"mean {'−' if _deviations(c) < 0 else '+'} {abs(_deviations(c)):.4g}·σ",
        "no_sparse": "the whole gate passes in this layer" if _dense(c) and c.gated else _no_gate(c, no_dense),
        "no_gate": _no_gate(c, no_dense),
        "per_token": str(c.experts_per_token - c.always_experts),
        "always": f" and the last {c.always_experts}" * (c.always_experts > 0),
        "in_groups": f" in the best {c.groups_per_token} of {c.expert_groups} groups" if c.expert_groups > 1 else "",
        "preference": f"{_SCORES[c.router]}({{0}})",
        "router_bias": " + b" if c.router_bias else "",
        "routes": _routes_words(c),
    }


def _no_gate(c: Config, no_dense: str) -> str:
    return "the feed-forward of this model has no gate" if _dense(c) else no_dense


def _activated_words(c: Config, clamped: bool, limit: float) -> str:
    """The formula of the activated units, from hidden units and gate."""
    act = ACTIVATION_NAMES[c.activation]
    if clamped:
        up = f"({{1}} + {c.glu_added:g})" if c.glu_added else "{1}"
        return f"{up} ⊙ {{0}}·σ({c.glu_alpha:g}·{{0}}), both up to {c.glu_limit:g}"
    if limit:
        return f"min({act}({{0}}), {limit:g}) ⊙ {{1}} within ±{limit:g}"
    return f"{act}({{0}})" + " ⊙ {1}" * c.gated


def _sent_on(c: Config) -> tuple[str, str]:
    """The last steps of the gate and of the hidden units before the activation, without their prefix."""
    adapted = "_adapted" * adapts_ffn(c)
    return "sparse" if _sparse(c) else f"gate{adapted}", f"hidden{adapted}"


def _routes_words(c: Config) -> str:
    """The formula of the chosen experts' weights: for instance a softmax over them, times a scale."""
    times = "" if c.routed_scale == 1.0 else f"{c.routed_scale:g}·"
    score = _SCORES[c.router]
    if c.route_margin:
        return f"{times}1 / Σ e^({{0}} − its own) of those at most {c.route_margin:.0%} below, where {{1}}, else 0"
    if not c.routes_renormed:
        return f"{times}{score}({{0}}) where {{1}}, else 0"
    if c.router == "softmax":
        return f"{times}softmax({{0}} where {{1}}), else 0"
    return f"{times}{score}({{0}}) / Σ {score}({{0}}) where {{1}}, else 0"


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {
        "<into down>": ("ffn.act_norm",) if c.act_norm else ("ffn.act",),
        "<activated>": tuple(f"ffn.{one}" for one in _sent_on(c)[not c.gated :]),
        "<decides>": ("ffn.preference",) if _prefers(c) else ("ffn.router",),
        "<into router>": ("ffn.router_in",) if c.expert_norms else (RESIDUAL,),
        "<into expert>": ("expert.in",) if c.routes_first else ("ffn.experts_norm" if c.expert_norms else RESIDUAL,),
        "<given>": ("expert.given",) if c.identity_experts else ("expert.out",),
        "<weights>": ("ffn.weights",) if c.expert_norms else ("ffn.routes",),
        "<of experts>": ("expert.out",) if c.routes_first else ("expert.added",),
        "<of expert>": ("expert.gate", "expert.hidden") if c.gated else ("expert.hidden",),
        "<of shared>": ("shared.gate", "shared.hidden") if c.gated else ("shared.hidden",),
        "<mixed>": ("ffn.mixed_norm",) if c.expert_norms else ("ffn.mixed",),
        "<shared>": ("shared.norm",) if c.expert_norms else ("shared.added" if c.shared_gate else "shared.out",),
    }
