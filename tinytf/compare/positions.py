"""Positions by construction: where queries and keys stand, and how exactly the angles of their rotation are known.

Shapes: T tokens, D head width.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tinytf.compare.mistakes.mistake import Wrong
from tinytf.config import Rope
from tinytf.steps.operations.rotate import rotary_frequencies, rotate
from tinytf.trace.site import Site

_MOST_OFF = 8
"""The most tokens that positions are tried to be off, or padding that they skip."""
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
Places = Callable[[Tensor], Tensor]
"""Positions from those of the tokens."""


def at_positions(places: Places) -> Wrong:
    """Queries or keys at other positions, made from those of the tokens."""
    return _turned(places=places)


def _turned(
    places: Places = lambda at: at,
    frequencies: Places = lambda numbers: numbers,
    angles: Places = lambda numbers: numbers,
    waves: Places = lambda numbers: numbers,
) -> Wrong:
    """Queries or keys turned after a change of what their angles are computed from."""

    def turned(site: Site) -> Tensor:
        rope, x = site.operation.rope, site.input()  # type: ignore[attr-defined]
        positions = places(torch.arange(x.shape[-2])).to(x.dtype)
        angle = angles(positions[:, None] * frequencies(rotary_frequencies(rope.of_text(x.shape[-2]))))
        angle = torch.cat((angle, angle), dim=-1)
        return rotate(x, *(waves(wave * rope.attention_factor) for wave in (angle.cos(), angle.sin())))

    return turned


def schemes(rope: Rope) -> Iterator[tuple[str, Rope]]:
    """Other scalings of RoPE's frequencies at usual settings, in words."""
    contexts, factors = [2**power for power in range(3, 18)], (2, 4, 8, 16, 32, 40, 64)
    for (scaling, high), factor, context in itertools.product((("llama3", 4), ("yarn", 32)), factors, contexts):
        settings = {"low_frequency": 1.0, "high_frequency": float(high), "original_context": context}
        made = rope._replace(scaling=scaling, factor=float(factor), attention_factor=1.0, **settings)
        words = f"rope scaling {scaling} of factor {factor}, from {context:,} tokens on"
        yield words, made
        if scaling == "yarn":
            yield f"{words}, and its attention factor", made._replace(attention_factor=0.1 * math.log(factor) + 1)


def scaled_as(rope: Rope) -> Wrong:
    """Queries or keys turned by another scaling, where the layer turns as much of a head by this base."""

    def turned(site: Site) -> Tensor:
        own = site.operation.rope  # type: ignore[attr-defined]
        if (own.width, own.theta) != (rope.width, rope.theta):
            raise RuntimeError("another rotation")
        return replace(site.operation, rope=rope).forward(site.input())  # type: ignore[type-var]

    return turned


def positions(tokens: range) -> Iterator[tuple[str, Wrong]]:
    """Other positions of queries and keys; ``tokens`` reach from the first that differs to the last."""
    for by in (2, 4, 8):
        yield f"positions are divided by {by}", at_positions(lambda at, by=by: at / by)  # type: ignore[misc]
        yield f"positions are multiplied by {by}", at_positions(lambda at, by=by: at * by)  # type: ignore[misc]
    for by in range(1, _MOST_OFF + 1):
        words = f"positions skip {by} at token 1, as after padding on the left"
        yield words, at_positions(lambda at, by=by: at + by * (at > 0))  # type: ignore[misc]
        if by > 1:
            yield f"positions start at {by}, not at 0", at_positions(lambda at, by=by: at + by)  # type: ignore[misc]
        yield f"positions start at −{by}, not at 0", at_positions(lambda at, by=by: at - by)  # type: ignore[misc]
    for start in range(max(1, tokens.start - 2), tokens.start + 1):
        words = f"positions restart at 0 at token {start}"
        yield words, at_positions(lambda at, start=start: at - start * (at >= start))  # type: ignore[misc]
    for start in range(max(2, tokens.start - 2), tokens.start + 1):
        words = f"every position from {start} on is {start - 1}"
        yield words, at_positions(lambda at, start=start: at.clamp(max=start - 1))  # type: ignore[misc]
    for name, dtype in _DTYPES.items():

        def rounded(numbers: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return numbers.to(dtype).float()

        yield f"RoPE's frequencies are rounded to {name}", _turned(frequencies=rounded)
        yield f"positions are rounded to {name}", _turned(places=lambda at, rounded=rounded: rounded(at.float()))  # type: ignore[misc]
        yield f"RoPE's angles are computed in {name}", _turned(rounded, rounded, rounded)
        yield f"RoPE's cosines and sines are rounded to {name}", _turned(waves=rounded)
