"""What is put in the place of a step: nothing, its mean over texts, or what it is in another text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.analysis.interventions.reference import Reference
from tinytf.analysis.interventions.sites import Site
from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

Progress = Callable[[int, int], None]

HOWS = ("zero", "mean", "resample")


@dataclass(frozen=True)
class Values:
    """The value of each site, and ``source``: what they are of, in words (of zeros nothing)."""

    of: dict[Site, Tensor]
    source: str = ""


def values_for(
    trace: Trace,
    sites: Sequence[Site],
    how: str,
    reference: Reference | None,
    seed: int,
    on_progress: Progress = lambda done, of: None,
) -> Values:
    """What goes in the place of each site in an ablation of ``trace``'s text.

    ``zero``: zeros. ``mean``: the mean over all positions of the texts of ``reference``. ``resample``: the values at
    the same positions of one of them, drawn by ``seed``; another text than this, and no shorter. Raises UsageError for
    another word, where there is no reference, and where it has no such text.
    """
    if how not in HOWS:
        raise UsageError(f"there is no way to ablate {how!r}", did_you_mean(how, HOWS))
    if how == "zero":
        hidden, d_head = trace.last_hidden, trace.config.d_head
        return Values({site: hidden.new_zeros(hidden.shape[-1] if site.head is None else d_head) for site in sites})
    if reference is None:
        raise UsageError(f"{how} takes values from other texts, and there are none", "name a file of them: --reference")
    layers = {site.layer for site in sites}
    if how == "mean":
        return Values(_means(trace, sites, reference, on_progress), f"mean over {reference}")
    drawn = _another(trace, reference, seed)
    other = record(trace.model, reference.texts[drawn], layers=layers)
    length = len(trace.tokens)
    said = f"from text {drawn + 1} of the {len(reference.texts):,} of {reference.name}, drawn by seed {seed}"
    return Values({site: site.value(other)[:length] for site in sites}, said)


def _means(trace: Trace, sites: Sequence[Site], reference: Reference, on_progress: Progress) -> dict[Site, Tensor]:
    layers = {site.layer for site in sites}
    sums: dict[Site, Tensor] = {}
    for number, text in enumerate(reference.texts):
        other = record(trace.model, text, layers=layers)
        for site in sites:
            total = site.value(other).double().sum(dim=0)
            sums[site] = sums[site] + total if number else total
        on_progress(number + 1, len(reference.texts))
    return {site: (total / reference.n_tokens).to(trace.last_hidden.dtype) for site, total in sums.items()}


def _another(trace: Trace, reference: Reference, seed: int) -> int:
    """The number of a text, drawn from those that are another one and long enough."""
    ids = trace.encoding.ids
    fits = [
        number for number, text in enumerate(reference.texts) if len(text.ids) >= len(ids) and text.ids != ids
    ]  # fmt: skip
    if not fits:
        longest = max(len(text.ids) for text in reference.texts)
        raise UsageError(
            f"no other text of {reference.name} has the {len(ids):,} tokens of this one; the longest has {longest:,}",
            "give longer texts, or a shorter one to ablate",
        )
    drawn = torch.randint(len(fits), (), generator=torch.Generator().manual_seed(seed))
    return fits[int(drawn)]
