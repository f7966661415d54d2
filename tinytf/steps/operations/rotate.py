"""RoPE: pairs of dimensions of queries and keys, rotated by the token's position (Su et al. 2021)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tinytf.config import Rope
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Pass,
    Quantity,
    Summand,
    into_heads,
    side_by_side,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, product, single


def _stretched(frequency: Tensor, rope: Rope) -> Tensor:
    """Llama 3's scaling of the frequencies: long waves become slower, short ones stay (Grattafiori et al. 2024)."""
    wavelength = 2 * math.pi / frequency
    turns = rope.original_context / wavelength  # within the context of training
    keep = ((turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency)).clamp(0.0, 1.0)
    return (1 - keep) * frequency / rope.factor + keep * frequency


def yarn_range(rope: Rope) -> tuple[float, float]:
    """The first and last pair of YaRN's transition from unchanged to divided frequencies (Peng et al. 2023)."""

    def pair(turns: float) -> float:  # the pair that makes this many turns within the original context
        return rope.width * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair(rope.high_frequency), pair(rope.low_frequency)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.width - 1)
    return first, last if last != first else last + 0.001


def _yarn(frequency: Tensor, rope: Rope) -> Tensor:
    first, last = yarn_range(rope)
    divided = ((torch.arange(len(frequency)).float() - first) / (last - first)).clamp(0.0, 1.0)
    return divided * frequency / rope.factor + (1 - divided) * frequency


def _first(turned: int, frequency: Tensor) -> Tensor:
    """The first ``turned`` frequencies, and 0 for the rest."""
    return torch.cat((frequency[:turned], torch.zeros_like(frequency[turned:])))


ROPE_SCALINGS: dict[str, Callable[[Tensor, Rope], Tensor]] = {
    "none": lambda frequency, _: frequency,
    "reversed": lambda frequency, _: -frequency,
    "dynamic": lambda frequency, _: frequency,  # whose base depends on the length, see Rope.of_text
    "linear": lambda frequency, rope: frequency / rope.factor,
    "llama3": _stretched,
    "yarn": _yarn,
    "longrope": lambda frequency, rope: frequency / torch.tensor(rope.factors),
    "proportional": lambda frequency, rope: _first(rope.turned, frequency) / rope.factor,
}


def _start_and_length(rope: Rope) -> tuple[float, float]:
    first, last = yarn_range(rope)
    return first, last - first


ROPE_SCALING_CODE: dict[str, Callable[[Rope], list[str]]] = {
    "none": lambda _: [],
    "reversed": lambda _: ["turn = -turn"],
    "dynamic": lambda _: [],
    "linear": lambda rope: [f"turn = turn / {rope.factor}"],
    "llama3": lambda rope: [
        f"turns = {rope.original_context} * turn / (2 * torch.pi)",
        f"keep = ((turns - {rope.low_frequency}) / {rope.high_frequency - rope.low_frequency}).clamp(0, 1)",
        f"turn = (1 - keep) * turn / {rope.factor} + keep * turn",
    ],
    "yarn": lambda rope: [
        "divided = ((torch.arange({}) - {}) / {}).clamp(0, 1)".format(rope.width // 2, *_start_and_length(rope)),
        f"turn = divided * turn / {rope.factor} + (1 - divided) * turn",
    ],
    "longrope": lambda rope: [f"turn = turn / torch.tensor({list(rope.factors)})"],
    "proportional": lambda rope: [f"turn = turn * (torch.arange({rope.width // 2}) < {rope.turned}) / {rope.factor}"],
}
"""The scaling of the frequencies as lines of PyTorch."""


def rotary_frequencies(rope: Rope) -> Tensor:
    """The angle by which each pair of dimensions turns from one position to the next, in radians, (width / 2,).

    In float32, as in the training of the checkpoints.
    """
    exponent = torch.arange(0, rope.width, 2, dtype=torch.int64).float() / rope.width
    return ROPE_SCALINGS[rope.scaling](1.0 / rope.theta**exponent, rope)


def table_length(length: int) -> int:
    """The length of the table for a text: the next power of two, so that a growing text seldom needs a new one."""
    return 1 << max(5, (length - 1).bit_length())


@lru_cache(maxsize=8)
def _rotary(length: int, rope: Rope, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.no_grad():
        angle = torch.arange(length).float()[:, None] * rotary_frequencies(rope)  # (T, width/2)
        angle = torch.cat((angle, angle), dim=-1)  # (T, width): both halves turn by the same angles
        waves = (angle.cos(), angle.sin())
        if rope.attention_factor != 1:
            waves = (waves[0] * rope.attention_factor, waves[1] * rope.attention_factor)
        cosine, sine = (wave.to(device=device, dtype=dtype) for wave in waves)
        return cosine, sine


def rotary_table(length: int, rope: Rope, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles of a text of ``length``, each (length, rope.width); half rotation."""
    cosine, sine = _rotary(table_length(length), rope.of_text(length), device, dtype)
    return cosine[:length], sine[:length]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + W/2]) of ``x`` (…, T, D) by the angle of its position; W is the tables' width.

    Dimensions from W on do not change.
    """
    width = cosine.shape[-1]
    turned = x if width == x.shape[-1] else x[..., :width]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cosine + torch.cat((-second, first), dim=-1) * sine
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)


def rotation_gradient(g: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The gradient of the input: g rotated back by the same angles, as the transpose of a rotation negates its sine."""
    return rotate(g, cosine, -sine)


@dataclass(frozen=True)
class Rotate(Operation):
    """Rotates the first ``rope.width`` dimensions, in the pairs d and d + width/2; the others do not change.

    With ``back`` it turns them the other way, as does the gradient.
    """

    rope: Rope
    back: bool = False

    words = "a rotation"

    def _waves(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        cosine, sine = rotary_table(start + x.shape[-2], self.rope, x.device, x.dtype)
        return cosine[start:], -sine[start:] if self.back else sine[start:]

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return rotate(inputs[0], *self._waves(inputs[0], now.start))

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return rotate(x, *self._waves(x))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (rotation_gradient(g, *self._waves(g)),)

    def code(self, site: Site) -> str:
        return self._code(site, site.names[0], site.value.shape[-1])

    @property
    def _position_code(self) -> str:
        """The position of each token, negative where it is turned back."""
        return "-torch.arange(T)" if self.back else "torch.arange(T)"

    def _code(self, site: Site, x: str, width: int) -> str:
        """The rotation of ``x``, heads of this ``width``, as lines of PyTorch."""
        rope = self.rope.of_text(len(site.ids))
        lines = [f"turn = 1 / {rope.theta} ** (torch.arange(0, {rope.width}, 2) / {rope.width})"]
        lines += ROPE_SCALING_CODE[rope.scaling](rope)
        lines.append(f"angle = {self._position_code}[:, None] * turn")
        factor = "" if rope.attention_factor == 1 else f" * {rope.attention_factor}"
        full = rope.width == width
        lines.append(f"a, b = {x}{'' if full else f'[..., :{rope.width}]'}.chunk(2, dim=-1)")
        rest = "" if full else f", {x}[..., {rope.width}:]"
        lines.append(f"cos, sin = angle.cos(){factor}, angle.sin(){factor}")
        return "\n".join([*lines, f"{site.variable} = torch.cat((a * cos - b * sin, b * cos + a * sin{rest}), dim=-1)"])

    def arithmetic(self, cell: Cell) -> Working:
        """Cosine and sine come from the model's table, which rounds the angle to float32."""
        (token, at), half = cell.index, self.rope.width // 2
        first = self._first(at)
        width = at - first
        if width >= self.rope.width:
            source = cell.source(0, token, at)
            return Working(((source, 2),), single("as it is", [(source.step.name, source.value)], (source,)))
        pair = width % half
        partner_width = width + half if width < half else width - half
        source, partner = cell.source(0, token, at), cell.source(0, token, first + partner_width)
        rope = self.rope.of_text(len(cell.site.ids))
        frequency = float(rotary_frequencies(rope)[pair])
        value = cell.site.value
        place = self._place(token)
        cosine, sine = (float(wave[place, width]) for wave in rotary_table(place + 1, rope, value.device, value.dtype))
        sine = -sine if self.back else sine
        words = "of the angle" + ("" if rope.attention_factor == 1 else f", times {rope.attention_factor:.4g}")
        before = (
            Value("frequency", frequency, f"radians a token, of the pair d{pair} and d{pair + half}"),
            Value("angle", place * frequency, f"position {place} × frequency" + ", turned back" * self.back),
            Value("cos", cosine, words),
            Value("sin", sine, words),
        )
        turned_by = (cosine, -sine if width < half else sine)
        series = product(
            (source.step.name, "cos, −sin" if width < half else "cos, sin"),
            (
                torch.tensor([source.value, partner.value], dtype=torch.float64),
                torch.tensor(turned_by, dtype=torch.float64),
            ),
            lambda i: f"d{(width, partner_width)[i]} · {('cos', 'sin')[i]}",
            lambda i: ((source, partner)[i],),
        )
        return Working(((source, 2), (partner, 2)), series, before=before)

    def _place(self, token: int) -> int:
        """The position that a token is turned by."""
        return token

    def _first(self, at: int) -> int:
        """The first dimension of the head of dimension ``at`` in a row."""
        return 0

    def summand(self, to: Consumer) -> Summand:
        g, width = to.incoming, self.rope.width
        cosine, sine = (wave[to.row.place] for wave in self._waves(to.g))
        first, second = g.values[:width].chunk(2)
        swapped = torch.cat((second, -first))
        result = torch.cat((g.values[:width] * cosine + swapped * sine, g.values[width:]))
        lines = [f"[a | b] = {to.symbol} in halves; so it is turned back by the angles of its position"]
        if width < len(g.values):
            lines.append(f"d{width} and those after it are not turned")
        return Summand(
            f"{to.symbol} ⊙ cos + [b | −a] ⊙ sin",
            result,
            tuple(lines),
            (g, Quantity("cos", cosine), Quantity("sin", sine)),
            (Quantity("[b | −a]", swapped),),
        )


@dataclass(frozen=True)
class RotateEach(Rotate):
    """Rotates each of the heads, ``width`` wide, that lie side by side in a row: (…, T, H·D)."""

    width: int = 0

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return side_by_side(super().run(module, now, into_heads(inputs[0], self.width)))

    def forward(self, *inputs: Tensor) -> Tensor:
        return side_by_side(super().forward(into_heads(inputs[0], self.width)))

    def code(self, site: Site) -> str:
        heads = f"heads = {site.names[0]}.unflatten(-1, (-1, {self.width})).transpose(0, 1)"
        joined = f"{site.variable} = {site.variable}.transpose(0, 1).flatten(1)"
        return "\n".join((heads, self._code(site, "heads", self.width), joined))

    def _first(self, at: int) -> int:
        return at - at % self.width


@dataclass(frozen=True)
class RotateBlocks(Rotate):
    """Rotates blocks (…, T, D), each in the row of its last token, by the position of its first, ``behind`` it.

    All tokens of the text are given, even with a cache. With ``heads`` the blocks become the keys of one head,
    (…, 1, T, D); if ``still`` nothing else changes.
    """

    behind: int = 0
    heads: bool = False
    still: bool = False

    def _waves(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        cosine, sine = super()._waves(x)
        places = (torch.arange(x.shape[-2], device=x.device) - self.behind).clamp(min=0) * (not self.still)
        return cosine[places], sine[places]

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        turned = super().forward(*inputs)
        return turned.unsqueeze(-3) if self.heads else turned

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        (gradient,) = super().input_gradients(site, g)
        return (gradient.squeeze(-3) if self.heads else gradient,)

    @property
    def _position_code(self) -> str:
        return "torch.zeros(T)" if self.still else f"(torch.arange(T) - {self.behind}).clamp(min=0)"

    def _code(self, site: Site, x: str, width: int) -> str:
        code = super()._code(site, x, width)
        return f"{code}\n{site.variable} = {site.variable}[None]" if self.heads else code

    def _place(self, token: int) -> int:
        return 0 if self.still else max(0, token - self.behind)
