"""Numbers that are solved for from another program's: how accurate they are, and which known constants they are."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from tinytf.config import FIELDS, ModelConfig, Rope
from tinytf.fields import REQUIRED

_SAME = 5e-6
"""How far apart two numbers are that float32 cannot tell apart, relative to them."""


def plain(number: float, within: float = _SAME) -> float:
    """The number with the fewest digits that is as near as it is known; itself where that is none of six digits."""
    rounded = (float(f"{number:.{digits}g}") for digits in range(1, 7))
    return next((short for short in rounded if abs(short - number) <= within * abs(number)), number)


def shown(number: float, config: ModelConfig, within: float = _SAME) -> str:
    """A factor in words: its digits, and which known constant of the model it is."""
    name = next((words for words, known in _known(config) if abs(known - number) <= within * abs(number)), "")
    return f"{plain(number, within):.6g}" + (f" ({name})" if name else "")


def _known(config: ModelConfig) -> Iterator[tuple[str, float]]:
    """Constants that a factor may be, the model's own settings first."""
    for name, field in FIELDS.items():
        if field.kind is float and field.default is not REQUIRED:
            value = config.setting(name)
            if value not in (0.0, 0.5, 1.0, 2.0, field.default):
                yield name, value
                yield f"1/{name}", 1 / value
                yield f"{name} twice", value**2
    for words, width in (("d_model", config.d_model), ("d_head", config.d_head)):
        if not math.sqrt(width).is_integer():
            rounded = float(torch.tensor(math.sqrt(width)).bfloat16())
            yield f"√{words}", math.sqrt(width)
            yield f"√{words} in bfloat16", rounded
            yield f"√{words} in bfloat16, beside √{words}", rounded / math.sqrt(width)
            yield f"1/√{words}", 1 / math.sqrt(width)
    yield "√2", math.sqrt(2)
    yield "1/√2", 1 / math.sqrt(2)
    scaling = config.rope_factor
    if scaling > 1:
        yield "0.1·ln s + 1, s being rope_factor", 0.1 * math.log(scaling) + 1
        yield "1/(0.1·ln s + 1), s being rope_factor", 1 / (0.1 * math.log(scaling) + 1)


def solved_eps(x: Tensor, normed: Tensor, gain: Tensor, bias: Tensor | None, *, centred: bool) -> float:
    """The ε with which a norm of ``x`` (…, C) gives ``normed``: from the token with the smallest variance."""
    x, normed = x.double(), normed.double() - (0.0 if bias is None else bias.double())
    deviation = x - x.mean(-1, keepdim=True) if centred else x
    gained, variance = deviation * gain, deviation.square().mean(-1).flatten()
    sigma = (gained.square().sum(-1) / (gained * normed).sum(-1)).flatten()
    token = int(variance.argmin())
    eps = float(sigma[token] ** 2 - variance[token])
    return plain(eps, max(1e-3, _SAME * float(variance[token]) / abs(eps))) if eps else 0.0


def solved_base(x: Tensor, turned: Tensor, rope: Rope) -> float:
    """The rotary base that turns ``x`` (H, T, D) into ``turned``; NaN where it is none.

    The angles at position 1 are known without their whole turns; those of later positions then say it ever better.
    """
    half, length = rope.width // 2, x.shape[1]
    a, b = (torch.complex(h[..., :half].double(), h[..., half : rope.width].double()) for h in (x, turned))
    product = (b * a.conj()).sum(0)  # (T, W/2), whose angle is that of the position
    pair = torch.arange(half, dtype=torch.float64) / half
    start = product[1].angle().abs()[1:] if length > 1 else product[:0, 0].real
    if not len(start) or not bool(start[0] > 0):
        return math.nan
    logarithm = -math.log(float(start[0])) / float(pair[1])
    reach = 2
    while reach < 2 * length:
        places = torch.arange(min(reach, length), dtype=torch.float64)[:, None]
        for _ in range(4):
            angle = places * (-logarithm * pair).exp()
            weight = product[: len(places)].abs() * (pair * angle)
            off = (product[: len(places)] * torch.polar(torch.ones_like(angle), -angle)).angle()
            logarithm -= float((off * weight * pair * angle).sum() / (weight * pair * angle).sum())
        reach *= 2
    return plain(math.exp(min(logarithm, 40.0)), 2e-5) if rope.scaling == "none" else math.exp(min(logarithm, 40.0))


def nearest(gives: Callable[[Sequence[float]], Tensor], wanted: Tensor, start: Sequence[float]) -> list[float]:
    """The numbers with which ``gives`` is nearest to ``wanted``, from a start on: by Gauss and Newton's method."""
    numbers, wanted = [*start], wanted.double().nan_to_num(neginf=0.0)

    def at(numbers: Sequence[float]) -> Tensor:
        return gives(numbers).double().nan_to_num(neginf=0.0)

    for _ in range(12 if numbers else 0):
        here = at(numbers)
        moves = ([one + 1e-2 * (at_ == place) for at_, one in enumerate(numbers)] for place in range(len(numbers)))
        slopes = torch.stack([((at(moved) - here) / 1e-2).flatten() for moved in moves])
        square = slopes @ slopes.T + 1e-30 * torch.eye(len(slopes), dtype=slopes.dtype)
        step = (torch.linalg.pinv(square, rtol=1e-10) @ (slopes @ (wanted - here).flatten())).clamp(-0.5, 0.5).tolist()
        numbers = [one + by for one, by in zip(numbers, step, strict=True)]
        if max(map(abs, step)) < 1e-6:
            break
    return numbers
