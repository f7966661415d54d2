"""Activations: one number at a time, and the gated form act(gate) ⊙ up (Shazeer 2020)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single

_LEAST = 1e-6
"""The number below which a root is that of 1e-6: its slope has no limit at 0."""


def signed_root(x: Tensor) -> Tensor:
    """sign(x)·√|x| (Qwen4-Exp)."""
    return x.abs().clamp_min(_LEAST).sqrt() * x.sign()


def signed_root_slope(x: Tensor) -> Tensor:
    """1 / 2√|x|, and 0 where the root is that of the least number."""
    size = x.abs()
    return torch.where(size > _LEAST, 0.5 * size.clamp_min(_LEAST).rsqrt(), 0.0)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "signed_root": signed_root,
}


def relu_slope(x: Tensor) -> Tensor:
    """1 above 0, else 0; 0 at 0 itself, as in torch."""
    return (x > 0).to(x.dtype)


def relu2_slope(x: Tensor) -> Tensor:
    """2x above 0, else 0 (So et al. 2021)."""
    return 2 * x.clamp(min=0)


def gelu_slope(x: Tensor) -> Tensor:
    """Φ(x) + x·φ(x) (Hendrycks and Gimpel 2016); by erfc, which keeps the digits of Φ at large negative x."""
    below = torch.special.erfc(x * -math.sqrt(0.5)) / 2
    density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    return below + x * density


def gelu_tanh_slope(x: Tensor) -> Tensor:
    """GELU(tanh) is x·σ(2u) with u = √(2/π)·(x + 0.044715·x³): its slope is σ(2u) + 2x·u′·σ(2u)·σ(−2u)."""
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    u = root * (x + cubic * x**3)
    u_slope = root * (1 + 3 * cubic * x.square())
    return torch.sigmoid(2 * u) * (1 + 2 * x * u_slope * torch.sigmoid(-2 * u))


def silu_slope(x: Tensor) -> Tensor:
    """σ(x)·(1 + x·σ(−x)), of x·σ(x)."""
    return torch.sigmoid(x) * (1 + x * torch.sigmoid(-x))


def tanh_slope(x: Tensor) -> Tensor:
    """1 − tanh²(x), as 1 / cosh²(x): far from 0 the difference would lose its digits."""
    return x.cosh().square().reciprocal()


SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu_slope,
    "relu2": relu2_slope,
    "gelu": gelu_slope,
    "gelu_tanh": gelu_tanh_slope,
    "silu": silu_slope,
    "tanh": tanh_slope,
    "signed_root": signed_root_slope,
}


def activation_gradient(g: Tensor, x: Tensor, name: str) -> Tensor:
    """g ⊙ act′(x)."""
    return (g * SLOPES[name](wide(x))).to(g.dtype)


def gated_gradients(g: Tensor, gate: Tensor, hidden: Tensor, activated: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The gradients of gate and hidden from the gradient of act(gate) ⊙ hidden; ``activated`` is act(gate)."""
    return (wide(g * hidden) * SLOPES[name](wide(gate))).to(g.dtype), g * activated


def _cubic(x: float) -> float:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


_SHARES: dict[str, tuple[str, Callable[[float], float]]] = {
    "relu": ("[x > 0]", lambda x: 1.0 if x > 0 else 0.0),
    "relu2": ("max(0, x)", lambda x: max(0.0, x)),
    "gelu": ("Φ(x)", lambda x: (1 + math.erf(x / math.sqrt(2))) / 2),
    "gelu_tanh": ("½(1 + tanh u)", lambda x: (1 + math.tanh(_cubic(x))) / 2),
    "silu": ("σ(x)", lambda x: (1 + math.tanh(x / 2)) / 2),
    "tanh": ("tanh(x) / x", lambda x: math.tanh(x) / x if x else 1.0),
    "signed_root": ("√|x| / |x|", lambda x: math.sqrt(max(abs(x), _LEAST)) / abs(x) if x else 1.0),
}
"""Each activation is x times a share that depends on x: the name of the share, and its formula."""

_DERIVATIVES = {
    "relu": ("ReLU", "1 where x > 0, else 0"),
    "relu2": ("ReLU²", "2x where x > 0, else 0"),
    "gelu": ("GELU", "Φ(x) + x·φ(x)"),
    "gelu_tanh": ("GELU", "σ(2u) + 2x·u′·σ(2u)·σ(−2u), u = √(2/π)·(x + 0.044715·x³)"),
    "silu": ("SiLU", "σ(x)·(1 + x·σ(−x))"),
    "tanh": ("tanh", "1 − tanh²(x)"),
    "signed_root": ("root", "1 / 2√|x|"),
}


_CODE = {
    "gelu_tanh": 'F.gelu({}, approximate="tanh")',
    "relu2": "F.relu({}).square()",
    "tanh": "torch.tanh({})",
    "signed_root": f"{{0}}.sign() * {{0}}.abs().clamp_min({_LEAST}).sqrt()",
}
"""The code of activations that torch has no function of the same name for."""


@dataclass(frozen=True)
class Activate(Operation):
    """The activation ``name`` of the first input, times the second where there is one.

    With a ``limit`` the activated number is at most that, and the second input within ± that (Step 3.7).
    """

    name: str
    limit: float = 0.0

    words = "an activation"
    pointwise = True

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.product(ACTIVATIONS[self.name](inputs[0]), *inputs[1:])

    def product(self, activated: Tensor, *gated: Tensor) -> Tensor:
        """What is activated times what it gates, each within the limit."""
        if self.limit:
            activated, gated = activated.clamp(max=self.limit), tuple(x.clamp(-self.limit, self.limit) for x in gated)
        return activated * gated[0] if gated else activated

    def _within(self, number: int, x: Tensor) -> Tensor:
        """Where an input is within the limit; beyond, the derivative is 0."""
        return (x.abs() if number else ACTIVATIONS[self.name](x)) <= self.limit

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        x, *gated = site.inputs()
        if not gated:
            return (activation_gradient(g, x, self.name),)
        (up,), activated = gated, ACTIVATIONS[self.name](x)
        if not self.limit:
            return gated_gradients(g, x, up, activated, self.name)
        limited = (up.clamp(-self.limit, self.limit), activated.clamp(max=self.limit))
        of_x, of_up = gated_gradients(g, x, *limited, self.name)
        return of_x * self._within(0, x), of_up * self._within(1, up)

    def side(self, number: int, x: Tensor) -> Tensor | None:
        above_zero = x > 0 if self.name in ("relu", "signed_root") and number == 0 else None
        if not self.limit:
            return above_zero
        within = self._within(number, x)
        return within if above_zero is None else within & above_zero

    def code(self, site: Site) -> str:
        first, *gated = site.names
        activated = _CODE.get(self.name, f"F.{self.name}({{}})").format(first)
        if self.limit:
            activated += f".clamp(max={self.limit})"
            gated = [f"{up}.clamp(-{self.limit}, {self.limit})" for up in gated]
        return f"{site.variable} = {' * '.join([activated, *gated])}"

    def arithmetic(self, cell: Cell) -> Working:
        cells = [cell.source(number, *cell.index) for number in range(len(cell.site.source_steps))]
        name, share_of = _SHARES[self.name]
        x = cells[0].value
        share = share_of(x)
        before = [Value("x", x, cells[0].step.name)]
        if self.name == "gelu_tanh":
            before.append(Value("u", _cubic(x), "√(2/π)·(x + 0.044715·x³)"))
        before += [Value(name, share), Value("activated", x * share, f"x · {name}")]
        factors = [("x", x), (name, share), *((gated.step.name, gated.value) for gated in cells[1:])]
        if self.limit:
            up = cells[1]
            factors = [
                ("g", min(x * share, self.limit)),
                (f"{up.step.name} within ±{self.limit:g}", max(-self.limit, min(up.value, self.limit))),
            ]
            before.append(Value("g", factors[0][1], f"activated, no larger than {self.limit:g}"))
        label = " · ".join(factor for factor, _ in factors)
        return Working(
            tuple((source, len(source.index)) for source in cells),
            single(label, factors, tuple(cells)),
            before=tuple(before),
        )

    def summand(self, to: Consumer) -> Summand:
        name, derivative = _DERIVATIVES[self.name]
        g, gated = to.incoming, len(to.site.source_steps) == 2
        x = to.input_at_row(0)
        limits: tuple[str, ...] = ()
        if self.limit:
            limits = (f"within a limit of {self.limit:g}; beyond, the derivative is 0",)
        if gated and to.number == 1:
            activated, up = ACTIVATIONS[self.name](x.values), to.input_at_row(1).values
            if self.limit:
                activated = activated.clamp(max=self.limit) * self._within(1, up)
            act = Quantity(f"{name}({x.name})", activated)
            return Summand(f"{g.name} ⊙ {act.name}", g.values * act.values, limits, (g, x), (act,))
        slopes = SLOPES[self.name](x.values)
        slope = Quantity(f"{name}′({x.name})", slopes * self._within(0, x.values) if self.limit else slopes)
        lines = (f"{name}′(x) = {derivative}", *limits)
        if not gated:
            return Summand(f"{g.name} ⊙ {slope.name}", g.values * slope.values, lines, (g, x), (slope,))
        hidden = to.input_at_row(1)
        up = hidden.values.clamp(-self.limit, self.limit) if self.limit else hidden.values
        through = Quantity(f"{g.name} ⊙ {hidden.name}", g.values * up)
        result = through.values * slope.values
        return Summand(f"{through.name} ⊙ {slope.name}", result, lines, (g, x, hidden), (slope, through))
