"""Activation patching: the corrupt text is run with activations of the clean one put in (Meng et al. 2022).

How much of the clean run's logit difference comes back says what those activations carry (Wang et al. 2022).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.analysis.interventions.exchange import Intervention, logits_with
from tinytf.analysis.interventions.pair import Contrast, contrast, first_different, require_even
from tinytf.analysis.interventions.prediction import Choice, Verified, choices, compared, log_probabilities
from tinytf.analysis.interventions.sites import Site, sites_of
from tinytf.analysis.interventions.sweep import Row, swept
from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import Report, text_data
from tinytf.text.tokenizer import Encoding
from tinytf.trace.trace import Trace

Progress = Callable[[int, int], None]

PATCH_SWEEPS = {"residual": "in", "heads": "head_out", "attn": "attn", "ffn": "ffn"}
"""What each sweep exchanges: the input of a block, the output of a head, of attention, of a feed-forward."""


@dataclass(frozen=True)
class Patched(Report):
    """What became of the corrupt run with the clean activations of all ``sites`` put in, at ``positions`` (None: all).

    ``difference`` is that of the contrast; ``recovered`` is 1 where it is the clean run's and 0 where the corrupt
    one's. ``choices`` are probabilities in the corrupt run (``before``) and in the patched one (``after``).
    """

    KIND = "patch"
    EVENTS: ClassVar = {"choices": "choice", "checks": "check"}

    sites: tuple[Site, ...]
    positions: tuple[int, ...] | None
    contrast: Contrast
    difference: float
    recovered: float
    choices: tuple[Choice, ...]
    checks: tuple[Verified, ...]
    texts: tuple[Encoding, ...] = field(default=(), repr=False, kw_only=True)

    @property
    def holds(self) -> bool:
        return all(one.holds for one in self.checks)

    def tensors(self) -> dict[str, Tensor]:
        """What came back, as a tensor of one number."""
        return {"recovered": torch.tensor(self.recovered), "difference": torch.tensor(self.difference)}

    def fields(self) -> dict[str, Any]:
        return {
            **_texts(self),
            "at": [str(site) for site in self.sites],
            "positions": None if self.positions is None else list(self.positions),
            "contrast": _contrast_data(self),
            "difference": self.difference,
            "recovered": self.recovered,
            "choices": [{**vars(one), "token": self.shown(one.id)} for one in self.choices],
            "checks": [one.to_dict() for one in self.checks],
        }


@dataclass(frozen=True)
class PatchSweep(Report):
    """Every patch of a sweep by itself: logit differences (layers, positions), or (layers, heads).

    In a decoder the positions before ``first``, up to which the texts are the same, were not run: there clean and
    corrupt activations are the same.
    """

    KIND = "patch_sweep"
    EVENTS: ClassVar = {"layers": "layer", "checks": "check"}

    what: str
    contrast: Contrast
    differences: Tensor
    first: int
    checks: tuple[Verified, ...]
    texts: tuple[Encoding, ...] = field(default=(), repr=False, kw_only=True)

    @property
    def holds(self) -> bool:
        return all(one.holds for one in self.checks)

    def itemised(self) -> dict[str, Any]:
        """A layer with its row of the map."""
        data = self.to_dict()
        maps = zip(data.pop("difference"), data.pop("recovered"), strict=True)
        rows = [{"layer": layer, "difference": one, "recovered": other} for layer, (one, other) in enumerate(maps)]
        return {**data, "layers": rows}

    def tensors(self) -> dict[str, Tensor]:
        """The map, (layers, positions) or (layers, heads), as it came back and as logit differences."""
        return {"recovered": self.recovered, "difference": self.differences}

    @property
    def recovered(self) -> Tensor:
        """1 where the difference is the clean run's, 0 where it is the corrupt one's; float64."""
        return (self.differences - self.contrast.corrupt) / (self.contrast.clean - self.contrast.corrupt)

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """(layer, position or head, recovered) of those that move the difference most, in either direction."""
        flat = self.recovered.flatten()
        order = flat.abs().argsort(descending=True, stable=True)[:count].tolist()
        width = self.differences.shape[1]
        return [(*divmod(number, width), float(flat[number])) for number in order]

    def fields(self) -> dict[str, Any]:
        return {
            **_texts(self),
            "sweep": self.what,
            "contrast": _contrast_data(self),
            "axes": ["layer", "head" if self.what == "heads" else "position"],
            "difference": self.differences.tolist(),
            "recovered": self.recovered.tolist(),
            "checks": [one.to_dict() for one in self.checks],
        }


@torch.no_grad()
def patch(
    clean: Trace,
    corrupt: Trace,
    at: Sequence[str],
    *,
    positions: Sequence[int] | None = None,
    answer: int | None = None,
    versus: int | None = None,
    top: int = 5,
) -> Patched:
    """Run the corrupt text with the clean run's activations at all the steps of ``at``, at ``positions`` or at all.

    Errors as of ``require_even``, ``contrast`` and ``sites_of``, and UsageError for a position beyond the text.
    """
    if not at:
        raise UsageError("nothing is named to patch", "name a head as L0H1, a part as L0.ffn, the stream as L0.in")
    require_even(clean.encoding, corrupt.encoding)
    found = contrast(clean, corrupt, answer, versus)
    places = None if positions is None else tuple(dict.fromkeys(positions))
    for place in places or ():
        if not 0 <= place < len(clean.tokens):
            raise UsageError(f"there is no position {place}: the texts have {len(clean.tokens)} tokens")
    sites = sites_of(at, clean.steps)
    logits = logits_with(corrupt, [Intervention(site, site.value(clean), places) for site in sites], found.position)
    (difference,) = found.of(logits[None])
    before = log_probabilities(corrupt.logits_at(found.position))
    tokens = choices(before, log_probabilities(logits), top, [found.answer, found.versus])
    checks = _ends(clean, corrupt, found.position)
    texts = clean.encoding, corrupt.encoding
    return Patched(sites, places, found, difference, found.normalised(difference), tokens, checks, texts=texts)


@torch.no_grad()
def patch_sweep(
    clean: Trace,
    corrupt: Trace,
    what: str = "residual",
    *,
    answer: int | None = None,
    versus: int | None = None,
    on_progress: Progress = lambda done, of: None,
) -> PatchSweep:
    """Patch each layer at each position (``residual``, ``attn``, ``ffn``), or each head at all positions (``heads``).

    Batched. Errors as of ``patch``, and UsageError for another word.
    """
    if what not in PATCH_SWEEPS:
        raise UsageError(f"there is no sweep over {what!r}", did_you_mean(what, PATCH_SWEEPS))
    require_even(clean.encoding, corrupt.encoding)
    found = contrast(clean, corrupt, answer, versus)
    first = first_different(clean.encoding.ids, corrupt.encoding.ids) if clean.config.causal else 0
    step, layers = PATCH_SWEEPS[what], range(clean.config.n_layers)
    every: dict[tuple[int, int], tuple[Site, tuple[int, ...] | None]]
    if what == "heads":
        every = {(n, h): (Site(step, n, h), None) for n in layers for h in range(clean.config.n_heads)}
        width = clean.config.n_heads
    else:
        width = len(clean.tokens)
        every = {(n, place): (Site(step, n), (place,)) for n in layers for place in range(first, width)}
    rows: list[Row] = [(Intervention(site, site.value(clean), places),) for site, places in every.values()]
    cells = list(every)
    differences = torch.full((len(layers), width), found.corrupt, dtype=torch.float64)
    strongest, logits_there = -1, corrupt.logits_at(found.position)
    furthest = -1.0
    for numbers, logits in swept(corrupt, rows, found.position, on_progress):
        for place, (number, difference) in enumerate(zip(numbers, found.of(logits), strict=True)):
            differences[cells[number]] = difference
            if abs(difference - found.corrupt) > furthest:
                strongest, furthest, logits_there = number, abs(difference - found.corrupt), logits[place].clone()
    alone = logits_with(corrupt, rows[strongest], found.position)
    layer, column = cells[strongest]
    name = f"L{layer}H{column}" if what == "heads" else f"L{layer}.{step} at position {column}"
    check = compared(f"{name} run by itself gives the same logits", logits_there, alone)
    return PatchSweep(
        what,
        found,
        differences,
        0 if what == "heads" else first,
        (*_ends(clean, corrupt, found.position), check),
        texts=(clean.encoding, corrupt.encoding),
    )


def _texts(found: Patched | PatchSweep) -> dict[str, Any]:
    return {name: text_data(text) for name, text in zip(("clean", "corrupt"), found.texts, strict=True)}


def _contrast_data(found: Patched | PatchSweep) -> dict[str, Any]:
    contrast = found.contrast
    return {**contrast.to_dict(), "answer": found.named(contrast.answer), "versus": found.named(contrast.versus)}


def _ends(clean: Trace, corrupt: Trace, position: int) -> tuple[Verified, ...]:
    """Everything patched is the clean run and nothing patched the corrupt one, to the last bit."""
    everything = Site("in", 0)  # all that follows from the tokens goes through here
    all_in = logits_with(corrupt, [Intervention(everything, everything.value(clean))], position)
    none_in = logits_with(corrupt, [], position)
    return (
        compared("everything patched is the clean run", all_in, clean.logits_at(position), exactly=True),
        compared("nothing patched is the corrupt run", none_in, corrupt.logits_at(position), exactly=True),
    )
