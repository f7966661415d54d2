"""Mistakes of a cache by construction: which earlier tokens a later pass finds there, and what their numbers became.

What is cached are the keys and values of attention, the last inputs of a convolution, or the state of a recurrence.
Each pass after the first is taken to be of one token t, from ``start`` on.
Shapes: T tokens, H heads, G key heads, D head width.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.compare.mistakes.mistake import Wrong
from tinytf.steps.operations import Mask, Mix, Rotate, Scores, ShortConv
from tinytf.steps.operations.operation import repeat_groups
from tinytf.trace.site import Site

Memory = Callable[[int], list[int]]
"""The tokens that the pass of a token finds, in order, itself the last."""
Change = Callable[[Site, Tensor], Tensor]
"""What the cached vectors (…, T, D) of a step's input become."""
_ALL_ORDERS = 4
"""The most heads of which every order is tried."""
FORMATS = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8 (e4m3)": torch.float8_e4m3fn,
    "float8 (e5m2)": torch.float8_e5m2,
}
_SCALES: dict[str, tuple[int, ...]] = {
    "": (-1,),
    ", a scale for each token": (-3, -1),
    ", a scale for each number of a head": (-2,),
    ", one scale": (-3, -2, -1),
}
"""Along which axes (head, token, number) the largest number gives the scale of whole numbers."""


@dataclass(frozen=True)
class CacheMistake:
    """A mistake of a cache in ``words``, its formula, and that of the steps in ``beside``, by name, which share it."""

    words: str
    wrong: Wrong
    beside: dict[str, Wrong]


def cache_mistakes(site: Site, start: int) -> Iterator[CacheMistake]:
    """The mistakes that can be made with what a step takes from a cache."""
    operation = site.operation
    if isinstance(operation, Mask):
        for words, _, memory in _memories(start):
            yield CacheMistake(words, _seen(memory, start), {})
        yield CacheMistake("a query does not see its own key", _seen(lambda at: [*range(at)], start), {})
        only = [*range(start)]
        yield CacheMistake(f"only the keys before token {start} are seen", _seen(lambda _: only, start), {})
        yield CacheMistake("the mask begins at the first key: each pass sees it alone", _seen(lambda _: [0], start), {})
    elif isinstance(operation, Scores | Mix):
        keys, what = isinstance(operation, Scores), "keys" if isinstance(operation, Scores) else "values"
        values = [step.name for step in site.trace.steps.in_layer(site.layer or 0) if type(step.operation) is Mix]
        for words, change in _changes(len(site.input(1)), start, turned=keys):
            wrong = _with_memory(change, start)
            yield CacheMistake(f"{what}{words}", wrong, {})
            if keys:
                yield CacheMistake(f"keys and values{words}", wrong, dict.fromkeys(values, wrong))
        own = _with_memory(lambda _, x: torch.cat((x[..., :-1, :], x[..., -2:-1, :]), dim=-2), start)
        yield CacheMistake(f"the {what[:-1]} of the token before stands in place of its own", own, {})
    elif isinstance(operation, ShortConv):
        for words, memory in (*_of_state("the window of the convolution", start), *_tails(operation.width, start)):
            yield CacheMistake(words, _run_again(memory, start), {})
    elif operation.over_tokens and site.layer is not None:
        steps = site.trace.steps.in_layer(site.layer)
        states = [step.name for step in steps if step.operation is not None and _is_state(step.operation)]
        for words, memory in _of_state("the state", start) if site.step.name in states else ():
            wrong = _run_again(memory, start)
            yield CacheMistake(words, wrong, dict.fromkeys((name for name in states if name != site.step.name), wrong))


def _is_state(operation: object) -> bool:
    return getattr(operation, "over_tokens", False) and not isinstance(operation, ShortConv)


def _memories(start: int) -> Iterator[tuple[str, str, Memory]]:
    """Which tokens a pass finds in a cache: in words of keys, and of a state."""
    yield "the first key is lost", "lacks the first token", lambda at: [*range(1, at + 1)]
    yield (
        f"the keys before token {start} are lost", f"of the tokens before {start} is lost",
        lambda at: [*range(start, at + 1)],
    )  # fmt: skip
    yield "a query sees its own key alone", "is lost in every pass", lambda at: [at]
    yield (
        "the keys of later passes are not kept", "is not written after the first pass",
        lambda at: [*range(start), at],
    )  # fmt: skip
    yield (
        "the last key of the first pass is lost", "lacks the last token of the first pass",
        lambda at: [*range(start - 1), *range(start, at + 1)],
    )  # fmt: skip
    yield "the key of the token before is lost", "lacks the token before", lambda at: [*range(at - 1), at]
    yield (
        "the last key of the first pass is cached twice", "has the last token of the first pass twice",
        lambda at: [*range(start), *range(start - 1, at + 1)],
    )  # fmt: skip
    yield (
        "the keys of later passes are cached twice", "has the tokens of later passes twice",
        lambda at: [*range(start), *(later for later in range(start, at) for _ in range(2)), at],
    )  # fmt: skip


def _of_state(name: str, start: int) -> Iterator[tuple[str, Memory]]:
    return ((f"{name} {words}", memory) for _, words, memory in _memories(start))


def _tails(width: int, start: int) -> Iterator[tuple[str, Memory]]:
    """The window that the first pass leaves in another order."""
    for count in (width - 1, width):
        places = list(range(max(0, start - count), start))
        orders = {
            "rolled by 1": places[-1:] + places[:-1],
            "rolled by −1": places[1:] + places[:1],
            "in the opposite order": places[::-1],
        }
        for words, order in orders.items():
            before = [*range(places[0] if places else 0), *order]
            yield (
                f"the window of the convolution, {count} tokens, is {words}",
                lambda at, before=before: [*before, *range(start, at + 1)],  # type: ignore[misc]
            )


def _seen(memory: Memory, start: int) -> Wrong:
    """Scores of the keys that are in a cache; one that is there twice has twice the share."""

    def masked(site: Site) -> Tensor:
        scores = site.derive()
        times = torch.ones(scores.shape[-2:], dtype=scores.dtype, device=scores.device)
        for at in range(start, len(times)):
            times[at] = torch.bincount(torch.tensor(memory(at), dtype=torch.long), minlength=len(times))
        return torch.where(times > 0, scores + times.clamp(min=1).log(), -math.inf)

    return masked


@dataclass(frozen=True)
class _Again(Site):
    """A step of some tokens alone, in an order that may repeat them."""

    tokens: tuple[int, ...] = ()

    def input(self, number: int = 0, heads: tuple[int, ...] | None = None) -> Tensor:
        x, index = super().input(number, heads), torch.tensor(self.tokens)
        of_map = self.trace.steps.at(*self.sources[number]).is_map
        return x[..., index, :][..., index] if of_map else x[..., index, :]


def _run_again(memory: Memory, start: int) -> Wrong:
    """What a step over tokens gives for each later token from those that a cache has."""

    def again(site: Site) -> Tensor:
        result = site.derive().clone()
        for at in range(start, result.shape[-2]):
            tokens = memory(at)
            last = _Again(site.trace, site.step, site.layer, tuple(tokens)).derive()[..., -1, :]
            if site.step.is_map:
                row = torch.zeros_like(result[..., at, :])
                last = row.index_add(-1, torch.tensor(tokens), last.to(row.dtype))
            result[..., at, :] = last
        return result

    return again


def _with_memory(change: Change, start: int) -> Wrong:
    """Scores or mixed values of later tokens with other keys or values; those up to the token itself are in a cache."""

    def remembered(site: Site) -> Tensor:
        result, x = site.derive().clone(), site.input(1)
        for at in range(start, x.shape[-2]):
            cached = repeat_groups(change(site, x[..., : at + 1, :]), len(site.input(0)))
            if isinstance(site.operation, Scores):
                result[..., at, : at + 1] = (site.input(0)[..., at : at + 1, :] @ cached.mT)[..., 0, :]
            else:
                result[..., at, :] = (site.input(0)[..., at : at + 1, : at + 1] @ cached)[..., 0, :]
        return result

    return remembered


def _changes(heads: int, start: int, *, turned: bool) -> Iterator[tuple[str, Change]]:
    """What becomes of cached vectors, of all, of those of earlier tokens, or of those of the first pass."""
    yield " of the first token are 0", lambda _, x: torch.cat((_nothing(x), x[..., 1:, :]), dim=-2)
    plain = {**dict(orders(heads)), **dict(_formats()), **(dict(_turns()) if turned else {})}
    for words, change in plain.items():
        yield f" are {words}", change
        yield f" of earlier tokens are {words}", _of_earlier(change, None)
        yield f" before token {start} are {words}", _of_earlier(change, start)


def _of_earlier(change: Change, start: int | None) -> Change:
    """A change of the vectors before the last, or before ``start``."""

    def changed(site: Site, x: Tensor) -> Tensor:
        cut = x.shape[-2] - 1 if start is None else start
        return torch.cat((change(site, x[..., :cut, :]), x[..., cut:, :]), dim=-2)

    return changed


def orders(heads: int) -> Iterator[tuple[str, Change]]:
    """The vectors of other tokens or heads."""
    yield "0", lambda _, x: torch.zeros_like(x)
    yield "those of the token before", lambda _, x: x.roll(1, -2)
    yield "those of the token before, the first 0", lambda _, x: torch.cat((_nothing(x), x[..., :-1, :]), -2)
    yield "those of the token before, the first twice", lambda _, x: torch.cat((x[..., :1, :], x[..., :-1, :]), -2)
    yield "those of the token after", lambda _, x: x.roll(-1, -2)
    yield "those of the token after, the last 0", lambda _, x: torch.cat((x[..., 1:, :], _nothing(x)), -2)
    yield "those of the token after, the last twice", lambda _, x: torch.cat((x[..., 1:, :], x[..., -1:, :]), -2)
    yield "in the opposite order of tokens", lambda _, x: x.flip(-2)
    orders = itertools.permutations(range(heads)) if heads <= _ALL_ORDERS else _some_orders(heads)
    for order in orders:
        if order != tuple(range(heads)):
            words = f"those of other heads: {' '.join(map(str, order))}"
            yield words, lambda _, x, order=order: x[list(order)]  # type: ignore[misc]


def _nothing(x: Tensor) -> Tensor:
    return torch.zeros_like(x[..., :1, :])


def _some_orders(heads: int) -> Iterator[tuple[int, ...]]:
    """Orders of many heads: from the last to the first, and rolled."""
    yield tuple(reversed(range(heads)))
    for by in range(1, heads):
        yield tuple((head + by) % heads for head in range(heads))


def _formats() -> Iterator[tuple[str, Change]]:
    for name, dtype in FORMATS.items():
        yield f"kept in {name}", lambda _, x, dtype=dtype: x.to(dtype).to(x.dtype)  # type: ignore[misc]
    for bits, (words, axes) in itertools.product((8, 4), _SCALES.items()):
        yield f"kept in int{bits}{words}", _whole(2 ** (bits - 1) - 1, axes)
        yield f"kept in uint{bits} with a zero point{words}", _from_least(2**bits - 1, axes)


def _whole(most: int, axes: tuple[int, ...]) -> Change:
    """Whole numbers times a scale, the same along some axes."""

    def rounded(_: Site, x: Tensor) -> Tensor:
        scale = x.abs().amax(axes, keepdim=True) / most
        return (x / scale).round() * scale

    return rounded


def _from_least(most: int, axes: tuple[int, ...]) -> Change:
    """Whole numbers from 0 on times a scale, from the least number on."""

    def rounded(_: Site, x: Tensor) -> Tensor:
        least = x.amin(axes, keepdim=True)
        scale = (x.amax(axes, keepdim=True) - least) / most
        return ((x - least) / scale).round() * scale + least

    return rounded


def _turns() -> Iterator[tuple[str, Change]]:
    """Keys that are cached before they are turned, or turned again when they are read."""
    yield "not rotated", lambda site, x: _rotation(site).input()[..., : x.shape[-2], :]
    yield "rotated again when they are read", lambda site, x: _rotation(site).operation.forward(x)


def _rotation(site: Site) -> Site:
    """The step that turns the keys of scores."""
    name, layer = site.sources[1]
    found = Site(site.trace, site.trace.steps.at(name, layer), layer)
    if not isinstance(found.operation, Rotate):
        raise RuntimeError("keys are not rotated")
    return found
