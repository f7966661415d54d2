"""Mistakes of rotary positions: pairs, angles, and which vectors are rotated."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tinytf.compare.mistakes.mistake import Mistake, Wrong, unlike
from tinytf.steps.operations import (
    Mix,
    Rotate,
)
from tinytf.steps.operations.operation import into_heads, repeat_groups, side_by_side
from tinytf.steps.operations.rotate import rotary_frequencies, rotary_table, rotate
from tinytf.trace.site import Site


def _turned(
    site: Site, *, theta: float | None = None, shift: int = 0, back: bool = False, width: int | None = None
) -> Tensor:
    operation = site.operation
    assert isinstance(operation, Rotate)
    x, rope = site.input(), operation.rope
    rope = rope if theta is None else rope._replace(theta=theta)
    cosine, sine = rotary_table(len(site.ids) + shift, rope, x.device, x.dtype)
    if width is not None:
        angle = torch.arange(len(site.ids)).float()[:, None] * rope.theta ** (
            -torch.arange(0, x.shape[-1], 2).float() / width
        )
        cosine, sine = (torch.cat((wave, wave), -1) for wave in (angle.cos(), angle.sin()))
    return rotate(x, cosine[shift:], -sine[shift:] if back else sine[shift:])


def _neighbours(site: Site) -> Tensor:
    """Pair dimensions 2i and 2i + 1, where the reference pairs i and i + D/2."""
    operation = site.operation
    assert isinstance(operation, Rotate)
    x = site.input()
    angle = torch.arange(len(site.ids)).float()[:, None] * rotary_frequencies(operation.rope)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, -1).flatten(-2)


def _mixed(site: Site) -> Tensor:
    """Pair neighbours, with cosines and sines that are laid out for halves."""
    operation, x = site.operation, site.input()
    assert isinstance(operation, Rotate)
    cosine, sine = rotary_table(len(site.ids), operation.rope, x.device, x.dtype)
    return x * cosine + torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2) * sine


def _waves(site: Site) -> tuple[Tensor, Tensor, Tensor]:
    """The vectors to rotate, and the cosines and sines of the angles."""
    operation, x = site.operation, site.input()
    assert isinstance(operation, Rotate)
    if x.shape[-1] != operation.rope.width:
        raise RuntimeError("a part is rotated")
    return x, *rotary_table(len(site.ids), operation.rope, x.device, x.dtype)


def _unsigned(site: Site) -> Tensor:
    x, cosine, sine = _waves(site)
    return x * cosine + x.roll(x.shape[-1] // 2, -1) * sine


def _exchanged(site: Site) -> Tensor:
    x, cosine, sine = _waves(site)
    return rotate(x, sine, cosine)


def _before_heads(site: Site) -> Tensor:
    x, *_ = _waves(site)
    rope = site.operation.rope  # type: ignore[attr-defined]
    flat = side_by_side(x)
    waves = rotary_table(len(site.ids), rope._replace(width=flat.shape[-1]), x.device, x.dtype)
    return into_heads(rotate(flat[None], *waves)[0], x.shape[-1])


def rotations() -> Iterator[Mistake]:
    yield Mistake("nothing is rotated: RoPE is left out", Rotate, lambda site: site.input())
    yield Mistake("RoPE is applied twice", Rotate, lambda site: site.operation.forward(site.derive()))
    yield Mistake("RoPE turns neighbours (2i, 2i+1), not halves (i, i + d/2)", Rotate, _neighbours)
    yield Mistake("RoPE pairs neighbours (2i, 2i+1), and takes the angles of halves (i, i + d/2)", Rotate, _mixed)
    yield Mistake("RoPE turns the other way", Rotate, lambda site: _turned(site, back=True))
    yield Mistake("RoPE has no minus: (x₂, x₁) times the sine, not (−x₂, x₁)", Rotate, _unsigned)
    yield Mistake("RoPE's sine and cosine are exchanged", Rotate, _exchanged)
    yield Mistake("RoPE turns all of d_model at once, before heads are split", Rotate, _before_heads)
    yield Mistake("positions start at 1, not at 0", Rotate, lambda site: _turned(site, shift=1))
    yield Mistake(
        "the frequencies divide by d_model, not d_head", Rotate, lambda site: _turned(site, width=site.config.d_model)
    )
    yield Mistake("the exponents are i/d_head, not 2i/d_head", Rotate, lambda s: _turned(s, width=2 * s.config.d_head))
    yield Mistake(
        "the exponents are 4i/d_head, not 2i/d_head", Rotate, lambda s: _turned(s, width=s.config.d_head // 2)
    )
    for theta in (1e3, 1e4, 1e5, 5e5, 1e6):
        wrong: Wrong = lambda site, theta=theta: _turned(site, theta=theta)  # type: ignore[misc]  # noqa: E731
        yield Mistake(
            f"RoPE's base is {theta:,.0f}", Rotate,
            unlike(lambda site, theta=theta: site.operation.rope.theta == theta, wrong),  # type: ignore[misc]
        )  # fmt: skip
    yield Mistake(
        "values are rotated too", Mix,
        lambda site: site.input(0) @ repeat_groups(_turned_values(site), site.config.n_heads),
    )  # fmt: skip


def _turned_values(site: Site) -> Tensor:
    if site.config.positions != "rotary":
        raise RuntimeError("nothing is rotated")
    values = site.input(1)
    return rotate(values, *rotary_table(len(site.ids), site.config.rope, values.device, values.dtype))
