"""What is tried where a generation differs from a later pass on: mistakes of a cache, and any other from then on."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tinytf.compare.attempts import Attempt
from tinytf.compare.caches import cache_mistakes
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.positions import at_positions
from tinytf.steps.operations import Positions, Rotate
from tinytf.trace.site import Site

_MOST_OFF = 8
"""The most tokens that positions are tried to be off."""
_OF_PLACES = ("positions skip", "positions start", "positions restart")


def later_attempts(site: Site, start: int, usual: Iterable[Attempt]) -> Iterator[Attempt]:
    """Attempts at a step from the token ``start`` on, with which a pass begins; the ``usual`` ones come last."""
    since = f"from token {start} on"
    for words, wrong in _of_positions(site, start):
        yield Attempt(f"{since} {words}", _from(wrong, start))
    for one in cache_mistakes(site, start):
        yield Attempt(f"{since} {one.words}", one.wrong, beside=one.beside)
    for attempt in usual:
        if isinstance(site.operation, Rotate) and attempt.words.startswith(_OF_PLACES):
            continue  # one of the above
        yield replace(
            attempt,
            words=f"{since}: {attempt.words}",
            wrong=_from(attempt.wrong, start),
            also=tuple((kind, _from(wrong, start)) for kind, wrong in attempt.also),
            beside={name: _from(wrong, start) for name, wrong in attempt.beside.items()},
        )


def _from(wrong: Wrong, start: int) -> Wrong:
    """A wrong formula for the tokens from ``start`` on, and the right one before."""

    def formula(site: Site) -> Tensor:
        right, value, axis = site.derive(), wrong(site), site.step.token_axis
        if axis is None or value.shape != right.shape:
            raise RuntimeError("it has no tokens")
        later = torch.arange(right.shape[axis], device=right.device) >= start
        return torch.where(later.view(-1, *(1 for _ in range(right.dim() - axis - 1))), value, right)

    return formula


def _of_positions(site: Site, start: int) -> Iterator[tuple[str, Wrong]]:
    """Other positions of the tokens of later passes."""
    operation = site.operation
    if isinstance(operation, Rotate | Positions):
        at = at_positions if isinstance(operation, Rotate) else _of_table
        for by in range(1, _MOST_OFF + 1):
            yield f"positions are {by} too large", at(lambda places, by=by: places + by)  # type: ignore[misc]
            if by != start:  # those restart
                yield f"positions are {by} too small", at(lambda places, by=by: places - by)  # type: ignore[misc]
        yield "positions restart at 0", at(lambda places: places - start)
        for stands in (0, start - 1, start):
            yield (
                f"every position is {stands}",
                at(lambda places, stands=stands: torch.full_like(places, stands)),  # type: ignore[misc]
            )


def _of_table(places: Callable[[Tensor], Tensor]) -> Wrong:
    """Rows of a table of positions at other places."""

    def taken(site: Site) -> Tensor:
        right = site.derive()
        moved = places(torch.arange(len(right)))
        offset, table = site.operation.offset, getattr(site.module, "weight", None)  # type: ignore[attr-defined]
        if table is None:
            raise RuntimeError("positions are computed")
        return table[(moved + offset).clamp(0, len(table) - 1)].to(right.dtype)

    return taken
