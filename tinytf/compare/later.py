"""What is tried where a generation differs from a later pass on: mistakes of a cache, and any other from then on.

Shapes: T tokens, H heads, Q queries, K keys.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tinytf.compare.attempts import Attempt
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.positions import at_positions
from tinytf.steps.operations import Mask, Mix, Positions, Rotate, Scores
from tinytf.steps.operations.operation import repeat_groups
from tinytf.trace.site import Site

_MOST_OFF = 8
"""The most tokens that positions are tried to be off."""
_OF_PLACES = ("positions skip", "positions start", "positions restart")


def later_attempts(site: Site, start: int, usual: Iterable[Attempt]) -> Iterator[Attempt]:
    """Attempts at a step from the token ``start`` on, with which a pass begins; the ``usual`` ones come last."""
    since = f"from token {start} on"
    for words, wrong in _of_cache(site, start):
        yield Attempt(f"{since} {words}", _from(wrong, start))
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


def _of_cache(site: Site, start: int) -> Iterator[tuple[str, Wrong]]:
    """Mistakes that only a cache makes possible."""
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
    elif isinstance(operation, Mask):
        yield "a query does not see its own key", _hidden(lambda query, key: key == query)
        yield "the first key is lost", _hidden(lambda query, key: key == 0)
        yield f"the keys before token {start} are lost", _hidden(lambda query, key: key < start)
        yield f"only the keys before token {start} are seen", _hidden(lambda query, key: key >= start)
    elif isinstance(operation, Scores):
        yield "the key of the token before stands in place of its own", _stale_keys
        yield "keys are kept in int8", lambda site: site.input(0) @ _in_int8(site).mT
    elif isinstance(operation, Mix):
        yield "the value of the token before stands in place of its own", _stale_values
        yield "values are kept in int8", lambda site: site.input(0) @ _in_int8(site)


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


def _hidden(hides: Callable[[Tensor, Tensor], Tensor]) -> Wrong:
    """A mask that hides some keys too."""

    def masked(site: Site) -> Tensor:
        right = site.derive()
        places = torch.arange(right.shape[-1], device=right.device)
        return right.masked_fill(hides(places[:, None], places), -math.inf)

    return masked


def _in_int8(site: Site) -> Tensor:
    """Keys or values of all query heads, as whole numbers times a scale for each head and token."""
    scale = site.input(1).abs().amax(-1, keepdim=True) / 127
    return repeat_groups((site.input(1) / scale).round() * scale, len(site.input(0)))


def _before(x: Tensor) -> Tensor:
    """The row of the token before in place of each, (…, T, D)."""
    return torch.cat((x[..., :1, :], x[..., :-1, :]), dim=-2)


def _stale_keys(site: Site) -> Tensor:
    q, k = site.inputs()
    right, stale = site.derive(), (q * repeat_groups(_before(k), len(q))).sum(dim=-1)  # (H, T)
    return right.diagonal_scatter(stale.to(right.dtype), dim1=-2, dim2=-1)


def _stale_values(site: Site) -> Tensor:
    weights, v = site.inputs()
    v = repeat_groups(v, len(weights))
    own = weights.diagonal(dim1=-2, dim2=-1)[..., None]
    return site.derive() + own * (_before(v) - v)
