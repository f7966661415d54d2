"""Controls: the effect of an intervention beside those of others of its kind.

For heads, experts and units they are random sets of as many others of the same layers; for whole steps, changes of the
same length in random directions; for a vector, random vectors of its length; for the largest effect of a sweep, the
rest of the sweep.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from math import comb, prod
from statistics import median

import torch
from torch import Tensor

from tinytf.cause.interventions.hooks import HookPoint, Intervention, changed
from tinytf.cause.interventions.sweep import Interventions, written
from tinytf.errors import UsageError
from tinytf.model.batches import typed
from tinytf.model.transformer import evaluating
from tinytf.report import Data
from tinytf.steps.table import StepTable
from tinytf.trace.trace import Trace

CONTROLS = 10
"""The default number of random controls; each takes a run."""
_TOKENS = 1024
"""Tokens in a batch."""


@dataclass(frozen=True)
class Control(Data):
    """An ``effect`` beside those of ``count`` others; ``what`` these are.

    ``reached`` of them have an effect at least as large, whatever its sign; ``median`` and ``largest`` are of sizes.
    ``picked``: the effect is the largest of a sweep and the others are its rest, so that only equal ones reach it.
    ``exceeded`` is how many of them it is clearly larger than over pairs of texts: where the 95 % interval of the
    difference of their sizes is above 0. None for one text, and where the same pairs picked it.
    """

    what: str
    count: int
    effect: float
    reached: int
    median: float
    largest: float
    picked: bool = False
    exceeded: int | None = None

    @classmethod
    def of(
        cls, what: str, effect: float, others: Sequence[float], *, picked: bool = False, exceeded: int | None = None
    ) -> "Control | None":
        """The control of an effect; None without any other. Others that are NaN were not measured."""
        sizes = [abs(value) for value in others if not math.isnan(value)]
        if not sizes or math.isnan(effect):
            return None
        reached = sum(size >= abs(effect) for size in sizes)
        return cls(what, len(sizes), effect, reached, median(sizes), max(sizes), picked, exceeded)

    @classmethod
    def of_sweep(cls, what: str, effects: Sequence[float]) -> "Control | None":
        """The largest of all ``effects``, by size, beside the rest; None for fewer than two that are not NaN."""
        first, *others = sorted((value for value in effects if not math.isnan(value)), key=abs, reverse=True) or [0.0]
        return cls.of(what, first, others, picked=True)

    @property
    def words(self) -> str:
        """``0 of 10 random heads of L1 reach it``, ``the largest of 270 heads``, or how many it clearly exceeds."""
        if self.exceeded is not None:
            return f"clearly larger than {self.exceeded:,} of {self.count:,} {self.what}"
        if self.picked:
            largest = f"one of {self.reached + 1:,} equal largest" if self.reached else "the largest"
            return f"{largest} of {self.count + 1:,} {self.what}"
        return f"{self.reached:,} of {self.count:,} {self.what} reach{'es' * (self.reached == 1)} it"


def require_controls(controls: int) -> None:
    """Raise UsageError for fewer than none."""
    if controls < 0:
        raise UsageError(f"{controls} random controls cannot be run", "give 0 or more")


def random_sets(
    points: Sequence[HookPoint], table: StepTable, count: int, seed: int
) -> tuple[str, list[tuple[HookPoint, ...]]]:
    """Up to ``count`` distinct sets of as many others of each layer and step as ``points``, and what they are.

    A set may share some points, and never all. There is none where a point is no head, expert or unit, and where a
    layer has no other.
    """
    groups: dict[tuple[int, str, tuple[int, ...] | None, bool], list[HookPoint]] = {}
    for point in points:
        groups.setdefault((point.layer, point.step, point.rows, point.head is None), []).append(point)
    choices = [] if any(point.stack for point in points) else [_others(of, table) for of in groups.values()]
    if not choices or not all(choices):
        return "", []
    sizes = [len(of) for of in groups.values()]
    possible = prod(comb(len(of), size) for of, size in zip(choices, sizes, strict=True)) - 1
    asked = frozenset(points)
    if possible <= count:
        every = product(*(combinations(of, size) for of, size in zip(choices, sizes, strict=True)))
        sets = [tuple(point for of in chosen for point in of) for chosen in every]
        sets = [chosen for chosen in sets if frozenset(chosen) != asked]
    else:
        sets = list(islice(_drawn(choices, sizes, asked, seed), count))
    what, one = "unit" if points[0].head is None else "expert" if points[0].is_expert else "head", len(sets) == 1
    layers = f"L{points[0].layer}" if len(groups) == 1 else "the same layers"
    if len(points) == 1:
        return f"{'random ' if possible > count else 'other '}{what}{'s' * (not one)} of {layers}", sets
    sets_of = f"set{'s' * (not one)} of {len(points)} {what}s"
    return f"{'random' if possible > count else 'other'} {sets_of} of {layers}", sets


def _drawn(
    choices: Sequence[Sequence[HookPoint]], sizes: Sequence[int], asked: frozenset[HookPoint], seed: int
) -> Iterator[tuple[HookPoint, ...]]:
    """Draw distinct sets without end; there must be more of them than are taken."""
    generator, seen = torch.Generator().manual_seed(seed), {asked}
    while True:
        drawn = tuple(
            of[index]
            for of, size in zip(choices, sizes, strict=True)
            for index in torch.randperm(len(of), generator=generator)[:size].tolist()
        )
        if frozenset(drawn) not in seen:
            seen.add(frozenset(drawn))
            yield drawn


def _others(points: Sequence[HookPoint], table: StepTable) -> list[HookPoint]:
    """All heads, experts or units of a layer that may stand for ``points``, these among them."""
    point = points[0]
    step, config = table.at(point.step, point.layer), table.config.at(point.layer)
    if point.head is not None:
        return [replace(point, head=head) for head in step.part_numbers(config)]
    if step.name == table.ffn_activation and len(point.columns) == 1:
        return [replace(point, columns=(unit,)) for unit in range(config.d_ff)]
    return []


def has_directions(points: Sequence[HookPoint], table: StepTable) -> bool:
    """Whether all points are whole steps with a vector for each token, which can change in other directions."""
    return all(
        not (point.stack or point.columns) and point.head is None and len(table.at(point.step, point.layer).axes) == 2
        and not table.at(point.step, point.layer).is_map
        for point in points
    )  # fmt: skip


def changes_in(count: int) -> str:
    """What controls in random directions are."""
    return (
        f"change{'s' * (count > 1)} of the same length in {'random directions' if count > 1 else 'a random direction'}"
    )


def or_directions(
    sets: tuple[str, list[Interventions]], trace: Trace, row: Interventions, count: int, seed: int
) -> tuple[str, list[Interventions]]:
    """Random sets and what they are; where there are none, ``row`` in random directions, if it has directions."""
    if sets[1] or not count or not has_directions([sent.point for sent in row], trace.steps):
        return sets
    return changes_in(count), random_directions(trace, row, count, seed)


def random_directions(trace: Trace, row: Interventions, count: int, seed: int) -> list[Interventions]:
    """``row`` in other directions: each token's vector moves as far from that of the trace, in a direction drawn by
    ``seed``, uniformly and for each token and step anew.
    """
    generator, rows = torch.Generator().manual_seed(seed), list[Interventions]()
    for _ in range(count):
        moved = list[Intervention]()
        for sent in row:
            own = sent.point.value(trace)  # (T, C)
            drawn = torch.randn(own.shape, generator=generator, dtype=torch.float64).to(own.device)
            length = (sent.value.to(own) - own).double().norm(dim=-1, keepdim=True)
            value = own.double() + drawn * (length / drawn.norm(dim=-1, keepdim=True))
            moved.append(replace(sent, value=value.to(own.dtype)))
        rows.append(tuple(moved))
    return rows


@torch.no_grad()
def logits_of_sets(trace: Trace, rows: Sequence[Interventions], read: Sequence[int]) -> Iterator[Tensor]:
    """Yield the logits (P, V) at positions ``read`` of the trace's text under each row, in any layers."""
    model, text, at_once = trace.model, trace.encoding, max(1, _TOKENS // len(trace.encoding.ids))
    for some in (rows[first : first + at_once] for first in range(0, len(rows), at_once)):
        ids = torch.tensor([text.ids] * len(some), device=trace.last_hidden.device)
        with evaluating(model), changed(model, written(some)):
            hidden = model.hidden(ids, token_types=typed([text.types] * len(some), ids.device))
        yield from model.unembed(hidden[:, list(read)])


def random_vectors(vector: Tensor, count: int, seed: int) -> list[Tensor]:
    """Vectors (C,) in directions uniformly at random, as long as ``vector``."""
    drawn = torch.randn(count, len(vector), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn *= vector.double().norm().cpu() / drawn.norm(dim=1, keepdim=True)
    return list(drawn.to(vector))
