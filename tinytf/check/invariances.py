"""Check the student's module for what its logits should not depend on: the batch, later tokens, chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.check.running import STARTS, Runner
from tinytf.check.seen import find_logits, tensors_in
from tinytf.check.steps import difference
from tinytf.report import Data

CACHES = ("past_key_values", "past_key_value", "kv_cache", "cache", "caches", "past", "layer_past", "kv_caches")


@dataclass(frozen=True)
class Invariance(Data):
    """Something that the logits should not depend on; ``difference`` is None where it cannot be tried."""

    ALSO: ClassVar = ("holds",)

    name: str
    what: str
    difference: float | None
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.difference is None or self.difference <= self.tolerance


@torch.no_grad()
def invariances(run: Runner, ids: Sequence[int], width: int, tolerance: float, causal: bool) -> tuple[Invariance, ...]:
    """Test the invariances of a module that runs on ids (B, T); its logits have ``width`` numbers a token."""

    def logits(rows: Sequence[Sequence[int]]) -> Tensor:
        result = find_logits(run.at_all_positions(torch.tensor(rows)), width)
        assert result is not None
        of_rows = result.dim() == 2 and len(result) == len(rows) * len(rows[0])  # for a loss, (B·T, V)
        return result.unflatten(0, (len(rows), -1)) if of_rows else result

    first, second = list(ids), list(reversed(ids))
    reference = logits([first])
    results = []

    def add(name: str, what: str, change: float | None) -> None:
        results.append(Invariance(name, what, change, tolerance))

    both = logits([first, second])
    change = max(difference(both[:1], reference), difference(both[1:], logits([second])))
    add("batch", "two texts in one batch give what each gives alone", change)
    add("again", "the same text again gives the same numbers", difference(logits([first]), reference))
    with_dropout = run.with_dropout(0.5)
    if with_dropout is not None:
        after_dropout = find_logits(with_dropout.at_all_positions(torch.tensor([first])), width)
        add(
            "dropout",
            "dropout is off in evaluation",
            None if after_dropout is None else difference(after_dropout.view_as(reference), reference),
        )
    if run.takes_targets:
        without = find_logits(run(torch.tensor([first])), width)
        assert without is not None
        last = without.reshape(-1, width)[-1:]
        add("targets", "without targets, the last position is the same", difference(last, reference[0, -1:]))
    has_every_position = reference.dim() == 3 and reference.shape[1] == len(first)
    if causal and has_every_position:
        padded = logits([[*first, *second[:3]]])[:, : len(first)]
        add("padding", "tokens after a position do not change it", difference(padded, reference))
    elif causal:
        add("padding", "only the last position is returned, so tokens after it cannot be tried", None)
    results.append(_in_chunks(run, first, width, tolerance, reference))
    return tuple(results)


def _in_chunks(run: Runner, ids: list[int], width: int, tolerance: float, reference: Tensor) -> Invariance:
    parameters = run.takes
    cut = len(ids) // 2
    name = next((parameter for parameter in parameters if parameter in CACHES), None)
    start = next((parameter for parameter in parameters if parameter in STARTS), None)
    start_argument = {start: cut} if start else {}
    if name is None and start is None:
        return Invariance("cache", "forward takes no cache", None, tolerance)
    arguments = {"use_cache": True} if "use_cache" in parameters else {}
    first = run(torch.tensor([ids[:cut]]), **arguments)
    if name is not None:
        cache = cache_of(first, width)
        if cache is None:
            return Invariance("cache", f"forward takes {name} but returns none to continue from", None, tolerance)
        arguments[name] = cache
    last = find_logits(run(torch.tensor([ids[cut:]]), **arguments, **start_argument), width)
    assert last is not None
    message = f"{cut} tokens, then {len(ids) - cut} with {name or start}, give the same as all at once"
    return Invariance("cache", message, difference(last[:, -1], reference[:, -1]), tolerance)


def cache_of(result: Any, width: int) -> Any:
    """The cache that a module returned: the first part of its result, other than a tensor, that holds tensors."""
    parts = list(result.values()) if isinstance(result, dict) else result if isinstance(result, tuple | list) else ()
    if hasattr(result, "__dict__") and not parts:
        parts = list(vars(result).values())
    for part in parts:
        if not isinstance(part, Tensor) and part is not None and list(tensors_in(part)):
            return part
    return None
