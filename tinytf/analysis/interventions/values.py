"""What is put in the place of a step: nothing, its mean over texts, or what it is in another text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.analysis.interventions.reference import Reference
from tinytf.analysis.interventions.sites import Site
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.text.tokenizer import Encoding
from tinytf.trace.record import record

Progress = Callable[[int, int], None]

HOWS = ("zero", "mean", "resample")


@dataclass(frozen=True)
class Values:
    """The value of each site, and ``source``: what they are of, in words (of zeros nothing)."""

    of: dict[Site, Tensor]
    source: str = ""


def values_for(
    model: Transformer,
    sites: Sequence[Site],
    how: str,
    reference: Reference | None = None,
    *,
    text: Encoding | None = None,
    seed: int = 0,
    on_progress: Progress = lambda done, of: None,
) -> Values:
    """What goes in the place of each site in an ablation.

    ``zero``: zeros. ``mean``: the mean over all positions of the texts of ``reference``. ``resample``: the values at
    the same positions of one of them, drawn by ``seed``: another than the ``text`` that is ablated, and no shorter.
    Raises UsageError for another word, where there is no reference, and where it has no such text.
    """
    if how not in HOWS:
        raise UsageError(f"there is no way to ablate {how!r}", did_you_mean(how, HOWS))
    if how == "zero":
        weight, config = next(model.parameters()), model.config
        widths = {site: config.d_model if site.head is None else config.d_head for site in sites}
        return Values({site: weight.new_zeros(width) for site, width in widths.items()})
    if reference is None:
        raise UsageError(f"{how} takes values from other texts, and there are none", "name a file of them: --reference")
    if how == "mean":
        return Values(_means(model, sites, reference, on_progress), f"mean over {reference}")
    if text is None:
        raise UsageError("resample takes the place of the values of one text, and none is given", "zero or mean do not")
    drawn = _another(text, reference, seed)
    other = record(model, reference.texts[drawn], layers={site.layer for site in sites})
    length = len(text.tokens)
    said = f"from text {drawn + 1} of the {len(reference.texts):,} of {reference.name}, drawn by seed {seed}"
    return Values({site: site.value(other)[:length] for site in sites}, said)


def _means(
    model: Transformer, sites: Sequence[Site], reference: Reference, on_progress: Progress
) -> dict[Site, Tensor]:
    layers = {site.layer for site in sites}
    sums: dict[Site, Tensor] = {}
    for number, text in enumerate(reference.texts):
        other = record(model, text, layers=layers)
        for site in sites:
            total = site.value(other).double().sum(dim=0)
            sums[site] = sums[site] + total if number else total
        on_progress(number + 1, len(reference.texts))
    dtype = next(model.parameters()).dtype
    return {site: (total / reference.n_tokens).to(dtype) for site, total in sums.items()}


def _another(own: Encoding, reference: Reference, seed: int) -> int:
    """The number of a text, drawn from those that are another one and long enough."""
    ids = own.ids
    fits = [number for number, text in enumerate(reference.texts) if len(text.ids) >= len(ids) and text.ids != ids]
    if not fits:
        longest = max(len(text.ids) for text in reference.texts)
        raise UsageError(
            f"no other text of {reference.name} has the {len(ids):,} tokens of this one; the longest has {longest:,}",
            "give longer texts, or a shorter one to ablate",
        )
    drawn = torch.randint(len(fits), (), generator=torch.Generator().manual_seed(seed))
    return fits[int(drawn)]
