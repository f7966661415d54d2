"""What a module should not depend on, asked of the student's module itself: batch, later tokens, chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.report import Data
from tinytf.student.running import STARTS, Runner
from tinytf.student.seen import outcome, tensors_in
from tinytf.student.steps import difference

_CACHES = ("past_key_values", "past_key_value", "kv_cache", "cache", "caches", "past", "layer_past", "kv_caches")


@dataclass(frozen=True)
class Invariance(Data):
    """One thing that the logits should not depend on; ``difference`` is None where it could not be asked, and why."""

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
    """The invariances of a module that runs on ids (B, T); ``width`` is that of its logits."""

    def logits(rows: Sequence[Sequence[int]]) -> Tensor:
        found = outcome(run.at_all_positions(torch.tensor(rows)), width)
        assert found is not None
        return found

    first, second = list(ids), list(reversed(ids))
    whole = logits([first])
    found = []

    def asked(name: str, what: str, apart: float | None) -> None:
        found.append(Invariance(name, what, apart, tolerance))

    both = logits([first, second])
    apart = max(difference(both[:1], whole), difference(both[1:], logits([second])))
    asked("batch", "two texts in one batch give what each gives alone", apart)
    asked("again", "the same text again gives the same numbers", difference(logits([first]), whole))
    dropping = run.with_dropout(0.5)
    if dropping is not None:
        dropped = outcome(dropping.at_all_positions(torch.tensor([first])), width)
        asked("dropout", "dropout is off in evaluation", None if dropped is None else difference(dropped, whole))
    every = whole.dim() == 3 and whole.shape[1] == len(first)
    if causal and every:
        padded = logits([[*first, *second[:3]]])[:, : len(first)]
        asked("padding", "tokens after a position do not change it", difference(padded, whole))
    elif causal:
        asked("padding", "only the last position is returned, so tokens after it cannot be tried", None)
    found.append(_in_chunks(run, first, width, tolerance, whole))
    return tuple(found)


def _in_chunks(call: Runner, ids: list[int], width: int, tolerance: float, whole: Tensor) -> Invariance:
    takes = call.takes
    cut = len(ids) // 2
    name = next((one for one in takes if one in _CACHES), None)
    start = next((one for one in takes if one in STARTS), None)
    told = {start: cut} if start else {}
    if name is None and start is None:
        return Invariance("cache", "forward takes no cache", None, tolerance)
    more = {"use_cache": True} if "use_cache" in takes else {}
    first = call(torch.tensor([ids[:cut]]), **more)
    if name is not None:
        cache = _cache_of(first, width)
        if cache is None:
            return Invariance("cache", f"forward takes {name}, and returns none to go on with", None, tolerance)
        more[name] = cache
    last = outcome(call(torch.tensor([ids[cut:]]), **more, **told), width)
    assert last is not None
    said = f"{cut} tokens, then {len(ids) - cut} with {name or start}, give what all at once give"
    return Invariance("cache", said, difference(last[:, -1], whole[:, -1]), tolerance)


def _cache_of(result: Any, width: int) -> Any:
    """What a module returned beside its logits that holds tensors."""
    parts = list(result.values()) if isinstance(result, dict) else result if isinstance(result, tuple | list) else ()
    if hasattr(result, "__dict__") and not parts:
        parts = list(vars(result).values())
    for part in parts:
        if not isinstance(part, Tensor) and part is not None and list(tensors_in(part)):
            return part
    return None
