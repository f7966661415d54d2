"""Whether a model is another one with an adapter merged into its weights: for each weight, W + c·Δ with c = 1.

Δ is what the adapter adds. A merge is rounded once to its type of numbers, and its products before that, so each
weight may be off by ε·(|W| + |W + Δ|) / 2 + 2·ε·|Δ|.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.checkpoints.huggingface.adapter import Merged
from tinytf.compare.conversions import Parameters
from tinytf.model.transformer import Transformer
from tinytf.report import Data
from tinytf.sentences import first_of, listed, percent, plural

_HEAD, _EMBEDDINGS = "head.decoder.weight", "embed.tokens.weight"
_SINGULAR = {"are": "is", "have": "has"}


@dataclass(frozen=True)
class MergedWeights(Data):
    """The weights at ``addresses`` of which ``words`` hold, such as that they hold the adapter ``times``."""

    words: str
    addresses: tuple[str, ...]
    times: float | None
    adapted: bool
    holds: bool

    @property
    def in_words(self) -> str:
        verb, rest = self.words.split(" ", 1)
        if len(self.addresses) == 1:
            verb = _SINGULAR.get(verb, f"{verb}s")
        return f"{first_of(self.addresses, 3)} {verb} {rest}"


@dataclass(frozen=True)
class MergeCompared(Data):
    """Whether B is A's adapter, merged: how many weights the adapter ``changes``, and what B has in place of each.

    ``dtype`` is the type of numbers whose rounding explains what is left.
    """

    ALSO: ClassVar = ("is_merge",)

    name: str
    dtype: str
    changes: int
    weights: tuple[MergedWeights, ...]

    @property
    def is_merge(self) -> bool:
        return all(one.holds for one in self.weights)

    def in_words(self) -> str:
        rounding = f"up to rounding in {self.dtype}"
        if self.is_merge:
            others = "" if all(one.adapted for one in self.weights) else ", and the others are the base's"
            once = f"{plural(self.changes, 'weight')} hold{'s' if self.changes == 1 else ''} it once"
            return f"Yes, B is {self.name}, merged: {once}{others}, {rounding}."
        wrong = [one for one in self.weights if not one.holds]
        right = sum(len(one.addresses) for one in self.weights if one.adapted and one.holds)
        said = [self._of(one) for one in wrong[:3]]
        more = f"; {right:,} of the {self.changes:,} that it changes hold it once" if right else ""
        return f"No, B is not {self.name}, merged: {listed(said)}{more}, {rounding}."

    def _of(self, wrong: MergedWeights) -> str:
        if wrong.adapted and len(wrong.addresses) == self.changes > 1:
            return f"all {self.changes:,} weights that it changes {wrong.words}"
        return wrong.in_words


@torch.no_grad()
def compare_merge(merge: Transformer, adapter: Merged, other: Transformer) -> MergeCompared | None:
    """Hold every weight of ``other`` against those of the merge and of its base; None for models of other shapes."""
    base, scales, parameters = dict(adapter.base().named_parameters()), adapter.scales(), Parameters.of(merge)
    theirs = dict(other.named_parameters())
    groups: dict[tuple[str, float | None, bool, bool], list[str]] = defaultdict(list)
    changes, dtypes = 0, set[torch.dtype]()
    for path, ours in parameters.tensors.items():
        w, b = (_of(tensors, path) for tensors in (base, theirs))
        if w is None or b is None or not w.shape == ours.shape == b.shape:
            return None
        adapted = not torch.equal(w, ours.to(w))
        changes += adapted
        dtype = _stored_in(b)
        dtypes |= {dtype} if adapted else set()
        words, times, holds = _relation(w, ours, b, dtype, scales.get(path))
        groups[words, times, adapted, holds].append(parameters.address(path))
    weights = tuple(
        MergedWeights(words, tuple(addresses), times, adapted, holds)
        for (words, times, adapted, holds), addresses in groups.items()
    )
    kinds = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
    return MergeCompared(adapter.name, listed(kinds or ["float32"]), changes, weights)


def _of(tensors: Mapping[str, Tensor], path: str) -> Tensor | None:
    """A parameter; for a head that is tied, the embeddings."""
    found = tensors.get(path)
    found = tensors.get(_EMBEDDINGS) if found is None and path == _HEAD else found
    return None if found is None else found.detach()


def _stored_in(tensor: Tensor) -> torch.dtype:
    """The coarsest type of numbers that holds all numbers of a tensor."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
            return dtype
    return tensor.dtype


def _error_of_merge(base: Tensor, change: Tensor, other: Tensor, dtype: torch.dtype) -> float:
    """How far B is from a merge in its type of numbers; a small change is lost in the rounding of a weight of it."""
    merges = (base + change).to(dtype), base.to(dtype) + change.to(dtype)
    return min(float((other - merge.double()).norm()) for merge in merges)


def _relation(
    base: Tensor, merge: Tensor, other: Tensor, dtype: torch.dtype, scale: float | None
) -> tuple[str, float | None, bool]:
    """What B's weight is in words, how often it holds the adapter if that is known, and whether that is right."""
    w, a, b = (tensor.double().cpu() for tensor in (base, merge, other))
    delta, epsilon = a - w, max(torch.finfo(kind).eps for kind in (dtype, merge.dtype))
    allowed = float((epsilon * (w.abs() + a.abs()) / 2 + 2 * epsilon * delta.abs()).norm())
    size = float(delta.square().sum())
    if not size:
        error = float((b - w).norm())
        if error <= allowed:
            return "are the base's", None, True
        share = percent(error / max(float(w.norm()), 1e-30))
        return f"differ by {share} from the base's, which the adapter does not change", None, False
    times = float(((b - w) * delta).sum()) / size
    known = {
        1.0: "hold the adapter",
        0.0: "are without the adapter",
        2.0: "hold the adapter twice",
        -1.0: "have the adapter taken away",
    }
    if scale not in (None, 1.0):
        for factor, words in (
            (1 / scale, f"without its scale s = {scale:.3g}"),
            (scale, f"with its scale s = {scale:.3g} twice"),
        ):
            known[factor] = f"{known[factor]}, or {words}" if factor in known else f"hold the adapter {words}"
    fitting = [c for c in known if float((b - w - c * delta).norm()) <= allowed]
    if fitting:
        closest = min(fitting, key=lambda c: (_error_of_merge(w, c * delta, b, dtype), c != 1.0))
        return known[closest], closest, closest == 1.0
    left = float((b - w - times * delta).norm())
    if left <= allowed:
        return f"hold the adapter {times:.3g} ×", times, False
    return f"differ by {percent(float((b - a).norm()) / float(a.norm()))} from the merge", None, False
