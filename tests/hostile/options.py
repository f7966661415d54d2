"""Words for every option and argument of every command, as click declares them."""

from collections.abc import Iterator
from random import Random

from hostile import surface
from hostile.case import Case
from hostile.strings import argument, word


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"options {seed}")
    for _ in range(count):
        name, parameter = rng.choice(surface.parameters())
        given = argument(rng, word(rng))
        words = surface.with_word(name, parameter, given)
        yield Case(f"{name}: {parameter.name} = {given[:80]!a}", words, surface.files())
