"""One row of a gradient, worked out: what a later step contributes to a row of a step that it was computed from."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.gradients import formulas
from tinytf.model.attention import Sight
from tinytf.model.parts import ACTIVATIONS, rotary_table
from tinytf.trace.graph import OPERATIONS, Site
from tinytf.trace.steps import Step


@dataclass(frozen=True, eq=False)
class Quantity:
    """A named scalar (no axes) or vector (one axis)."""

    name: str
    values: Tensor


@dataclass(frozen=True)
class Row:
    """Which row of a step: of the query head ``head`` where the step has heads, the token or query ``place``."""

    step: Step
    layer: int | None
    head: int | None
    place: int

    def of(self, tensor: Tensor, step: Step, heads_per_kv: int) -> Tensor:
        """This row of a tensor with the axes of ``step``; a shared head answers to each of its query heads."""
        if not step.has_heads:
            return tensor[self.place]
        head = self.head or 0
        return tensor[head // heads_per_kv if "kv head" in step.axes else head, self.place]


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of a row: its formula, what the letters in it are, the numbers that it takes, in order, and it."""

    expression: str
    result: Tensor
    where: tuple[str, ...] = ()
    inputs: tuple[Quantity, ...] = ()
    intermediates: tuple[Quantity, ...] = ()


@dataclass(frozen=True, eq=False)
class Part:
    """A later step (``site``) with its gradient ``g``, and which of its inputs (``number``) the row is of."""

    site: Site
    g: Tensor
    number: int
    row: Row

    @property
    def symbol(self) -> str:
        """∂ and the later step's name, without its layer where that is the row's own."""
        return "∂" + (self.site.step.name if self.site.layer == self.row.layer else self.site.name)

    def at_row(self, tensor: Tensor) -> Tensor:
        """The row of a tensor that has the axes of the later step."""
        return self.row.of(tensor, self.site.step, self.site.trace.config.heads_per_kv)

    @property
    def incoming(self) -> Quantity:
        return Quantity(self.symbol, self.at_row(self.g))

    def input_at_row(self, number: int) -> Quantity:
        name, _ = self.site.sources[number]
        step, per_kv = self.site.trace.steps.by_name[name], self.site.trace.config.heads_per_kv
        return Quantity(name, self.row.of(self.site.input(number), step, per_kv))

    @property
    def query_heads(self) -> range:
        """Those that share the row's key head."""
        shared = self.site.trace.config.heads_per_kv
        first = (self.row.head or 0) // shared * shared
        return range(first, first + shared)


def _passed_on(part: Part) -> Term:
    return Term(part.symbol, part.incoming.values, inputs=(part.incoming,))


def _normed(part: Part) -> Term:
    norm, gain = part.site.trace.config.norm, part.site.module.weight.detach()
    x, g = part.input_at_row(0), part.incoming
    normed, sigma = formulas.NORMED[norm](x.values, part.site.module.eps)
    gained = formulas.wide(g.values) * gain
    along = (gained * normed).mean()
    given = [g, x, Quantity("σ", sigma[0]), Quantity("gain", gain)]
    steps = [Quantity("x̂", normed), Quantity("ĝ", gained), Quantity("mean(ĝ⊙x̂)", along)]
    gain_line = f"ĝ = {part.symbol} ⊙ gain"
    if norm == "rmsnorm":
        lines = (gain_line, f"x̂ = {x.name} / σ, σ = √(mean({x.name}²) + ε)")
        result = ((gained - normed * along) / sigma).to(g.values.dtype)
        return Term("(ĝ − x̂·mean(ĝ⊙x̂)) / σ", result, lines, tuple(given), tuple(steps))
    given.insert(2, Quantity("mean", formulas.wide(x.values).mean()))
    steps.insert(2, Quantity("mean(ĝ)", gained.mean()))
    lines = (gain_line, f"x̂ = ({x.name} − mean) / σ, σ = √(variance + ε)")
    result = ((gained - gained.mean() - normed * along) / sigma).to(g.values.dtype)
    return Term("(ĝ − mean(ĝ) − x̂·mean(ĝ⊙x̂)) / σ", result, lines, tuple(given), tuple(steps))


def _matrix(site: Site) -> str:
    config, name = site.trace.config, site.step.name
    if name == "logits":
        return "E" if config.tied_head else "W_Uᵀ"
    feed = {"ffn.hidden": "W_upᵀ", "ffn.gate": "W_gateᵀ", "ffn": "W_downᵀ"}
    plain = {"ffn.hidden": "W₁ᵀ", "ffn": "W₂ᵀ"}
    attention = {"q": "W_Qᵀ", "k": "W_Kᵀ", "v": "W_Vᵀ", "attn": "W_Oᵀ"}
    return {**attention, **(feed if config.gated else plain)}.get(name, "Wᵀ")


def _mapped(part: Part) -> Term:
    site = part.site
    weight = site.trace.model.unembedding if site.step.name == "logits" else site.module.weight
    wide = formulas.side_by_side(part.g) if site.step.has_heads else part.g
    g = Quantity(part.symbol, wide[part.row.place])
    return Term(f"{part.symbol}·{_matrix(site)}", g.values @ weight.detach(), inputs=(g,))


def _rotated_back(part: Part) -> Term:
    g, config = part.incoming, part.site.trace.config
    table = rotary_table(part.g.shape[-2], config.rope, part.g.device, part.g.dtype)
    cosine, sine = (wave[part.row.place] for wave in table)
    first, second = g.values.chunk(2)
    swapped = torch.cat((second, -first))
    return Term(
        f"{part.symbol} ⊙ cos + [b | −a] ⊙ sin",
        g.values * cosine + swapped * sine,
        (f"[a | b] = {part.symbol} in halves; so it is turned back by the angles of its position",),
        (g, Quantity("cos", cosine), Quantity("sin", sine)),
        (Quantity("[b | −a]", swapped),),
    )


def _from_columns(part: Part, maps: Tensor, rows: Tensor, expression: str, symbol: str) -> Term:
    """The row of a key: what each query that looked at it brings back, over all query heads that share it."""
    columns = [
        Quantity(f"{symbol}[·,{part.row.place}], head {h}", maps[h, :, part.row.place]) for h in part.query_heads
    ]
    brought = [
        Quantity(f"from head {h}", column.values @ rows[h]) for h, column in zip(part.query_heads, columns, strict=True)
    ]
    result = torch.stack([part.values for part in brought]).sum(dim=0)
    several = len(brought) > 1
    where = (f"summed over the query heads {part.query_heads[0]} to {part.query_heads[-1]}, which share it",)
    return Term(expression, result, where if several else (), tuple(columns), tuple(brought) if several else ())


def _scored(part: Part) -> Term:
    if part.number == 0:
        key = part.site.input(1)[(part.row.head or 0) // part.site.trace.config.heads_per_kv]  # (K, D)
        return Term(f"{part.symbol}·k", part.incoming.values @ key, inputs=(part.incoming,))
    return _from_columns(part, part.g, part.site.input(0), f"{part.symbol}ᵀ·q", part.symbol)


def _mixed(part: Part) -> Term:
    if part.number == 0:
        value = part.site.input(1)[(part.row.head or 0) // part.site.trace.config.heads_per_kv]  # (K, D)
        return Term(f"{part.symbol}·vᵀ", part.incoming.values @ value.T, inputs=(part.incoming,))
    return _from_columns(part, part.site.input(0), part.g, f"weightsᵀ·{part.symbol}", "weights")


def _scaled(part: Part) -> Term:
    root = math.sqrt(part.site.trace.config.d_head)
    divisor = Quantity("√d", torch.tensor(root, dtype=part.g.dtype))
    return Term(f"{part.symbol} / {root:.4g}", part.incoming.values / root, inputs=(part.incoming, divisor))


def _unmasked(part: Part) -> Term:
    allowed = Sight.of(part.site.trace.config).allowed(part.g.shape[-1], None, part.g.device)
    assert allowed is not None, "only a model that masks has this step"
    visible = allowed[part.row.place].to(part.g.dtype)
    given = (part.incoming, Quantity("visible", visible))
    return Term(f"{part.symbol} ⊙ visible", part.incoming.values * visible, ("visible is 0 where masked",), given)


def _softmaxed(part: Part) -> Term:
    weights, g = Quantity("w", part.at_row(part.site.value)), part.incoming
    along = (formulas.wide(g.values) * weights.values).sum()
    lines = ("w = weights", "g = ∂weights")
    centred = g.values - along
    steps = (Quantity("Σ g⊙w", along), Quantity("g − Σ g⊙w", centred))
    given = (Quantity("g", g.values), weights)
    result = (weights.values * centred).to(g.values.dtype)
    return Term("w ⊙ (g − Σ g⊙w)", result, lines, given, steps)


def _taken_apart(part: Part) -> Term:
    width, head = part.site.trace.config.d_head, part.row.head or 0
    first, last = head * width, (head + 1) * width
    g = Quantity(f"{part.symbol}[{first}…{last - 1}]", part.g[part.row.place, first:last])
    return Term(g.name, g.values, (f"the columns of head {head}",), inputs=(g,))


_ACT = {
    "relu": ("ReLU", "1 where x > 0, else 0"),
    "gelu": ("GELU", "Φ(x) + x·φ(x)"),
    "gelu_tanh": ("GELU", "σ(2u) + 2x·u′·σ(2u)·σ(−2u), u = √(2/π)·(x + 0.044715·x³)"),
    "silu": ("SiLU", "σ(x)·(1 + x·σ(−x))"),
}


def _activated(part: Part) -> Term:
    word = part.site.activation
    name, derivative = _ACT[word]
    g, gated = part.incoming, len(part.site.sources) == 2
    x = part.input_at_row(0)
    if gated and part.number == 1:
        act = Quantity(f"{name}({x.name})", ACTIVATIONS[word](x.values))
        return Term(f"{g.name} ⊙ {act.name}", g.values * act.values, (), (g, x), (act,))
    slope = Quantity(f"{name}′({x.name})", formulas.SLOPES[word](x.values))
    lines = (f"{name}′(x) = {derivative}",)
    if not gated:
        return Term(f"{g.name} ⊙ {slope.name}", g.values * slope.values, lines, (g, x), (slope,))
    hidden = part.input_at_row(1)
    through = Quantity(f"{g.name} ⊙ {hidden.name}", g.values * hidden.values)
    result = through.values * slope.values
    return Term(f"{through.name} ⊙ {slope.name}", result, lines, (g, x, hidden), (slope, through))


_TERMS: dict[str, Callable[[Part], Term]] = {
    "sum": _passed_on,
    "norm": _normed,
    "linear": _mapped,
    "project": _mapped,
    "rotate": _rotated_back,
    "scores": _scored,
    "scale": _scaled,
    "mask": _unmasked,
    "softmax": _softmaxed,
    "mix": _mixed,
    "concat": _taken_apart,
    "activate": _activated,
}


def term_of(part: Part) -> Term:
    """What the later step of ``part`` brings to its row."""
    return _TERMS[OPERATIONS[part.site.step.name]](part)
