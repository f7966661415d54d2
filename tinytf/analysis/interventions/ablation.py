"""Ablation: what a prediction becomes without some parts of the model, one after the other or all together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.analysis.interventions.exchange import Intervention, hidden_with, logits_with, unembedded
from tinytf.analysis.interventions.prediction import (
    Choice,
    Effect,
    Verified,
    choices,
    compared,
    effects,
    log_probabilities,
    mean_loss,
    predicted_at,
)
from tinytf.analysis.interventions.reference import Reference
from tinytf.analysis.interventions.sites import Site, sites_of
from tinytf.analysis.interventions.sweep import swept
from tinytf.analysis.interventions.values import values_for
from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import Report
from tinytf.trace.trace import Trace

Progress = Callable[[int, int], None]

SWEEPS = ("heads", "ffn", "layers")


@dataclass(frozen=True)
class Ablation(Report):
    """What became of the prediction at ``position`` with all of ``sites`` ablated ``how``.

    ``source`` says where the values are from that were put in. ``target`` is the token whose probability ``effect``
    follows. ``loss_…`` are over the text, mean cross-entropy in nats; None in an encoder and for one token. ``check``
    compares the plain run with one that has its own values put in at the same sites.
    """

    KIND = "ablation"
    EVENTS: ClassVar = {"tokens": "token", "choices": "choice", "check": "check"}

    sites: tuple[Site, ...]
    how: str
    source: str
    position: int
    target: int
    effect: Effect
    choices: tuple[Choice, ...]
    loss_before: float | None
    loss_after: float | None
    check: Verified

    @property
    def holds(self) -> bool:
        return self.check.holds

    def tensors(self) -> dict[str, Tensor]:
        """The numbers of the effect, each a tensor of one number."""
        return {"kl": torch.tensor(self.effect.kl), "change": torch.tensor(self.effect.change)}

    def fields(self) -> dict[str, Any]:
        return {
            "at": [str(site) for site in self.sites],
            "how": self.how,
            "source": self.source,
            "position": self.position,
            "target": self.named(self.target),
            **self.effect.to_dict(),
            "best": self.named(self.effect.best),
            "choices": [{**vars(one), "token": self.shown(one.id)} for one in self.choices],
            "loss_before": self.loss_before,
            "loss_after": self.loss_after,
            "check": self.check.to_dict(),
        }


@dataclass(frozen=True)
class AblationSweep(Report):
    """Every head, feed-forward or layer of a model, each ablated alone; ``effects[i]`` is that of ``names[i]``.

    ``kl`` and ``change`` are the maps, (layers, heads), or (1, layers) where nothing is split into heads. ``check``
    compares the strongest with a forward pass of its own.
    """

    KIND = "ablation_sweep"
    EVENTS: ClassVar = {"tokens": "token", "effects": "effect", "check": "check"}

    what: str
    how: str
    source: str
    position: int
    target: int
    names: tuple[str, ...]
    effects: tuple[Effect, ...]
    shape: tuple[int, int]
    check: Verified

    @property
    def holds(self) -> bool:
        return self.check.holds

    def tensors(self) -> dict[str, Tensor]:
        """Both maps, (layers, heads), or (1, layers)."""
        return {"kl": self.kl, "change": self.change}

    @property
    def kl(self) -> Tensor:
        return torch.tensor([one.kl for one in self.effects]).view(self.shape)

    @property
    def change(self) -> Tensor:
        return torch.tensor([one.change for one in self.effects]).view(self.shape)

    def strongest(self, count: int) -> list[tuple[str, Effect]]:
        """Those that change the target's probability most, in either direction."""
        pairs = zip(self.names, self.effects, strict=True)
        return sorted(pairs, key=lambda pair: -abs(pair[1].change))[:count]

    def fields(self) -> dict[str, Any]:
        return {
            "sweep": self.what,
            "how": self.how,
            "source": self.source,
            "position": self.position,
            "target": self.named(self.target),
            "effects": [
                {"at": name, **one.to_dict(), "best": self.named(one.best)}
                for name, one in zip(self.names, self.effects, strict=True)
            ],
            "check": self.check.to_dict(),
        }  # fmt: skip


def _predicted(trace: Trace, target: int | None) -> tuple[int, Tensor, int]:
    """Where is looked, the log-probabilities there, and the target: the predicted token where none is named."""
    position = predicted_at(trace)
    before = log_probabilities(trace.logits_at(position))
    return position, before, int(before.argmax()) if target is None else target


@torch.no_grad()
def ablate(
    trace: Trace,
    at: Sequence[str],
    *,
    how: str = "zero",
    reference: Reference | None = None,
    target: int | None = None,
    seed: int = 0,
    top: int = 5,
    on_progress: Progress = lambda done, of: None,
) -> Ablation:
    """Ablate all the steps of ``at`` together, and compare the prediction with that of ``trace``, the plain run.

    Errors as of ``sites_of``, ``values_for`` and ``predicted_at``, and UsageError where ``at`` is empty.
    """
    if not at:
        raise UsageError("nothing is named to ablate", "name a head as L0H1, a part as L0.ffn, a layer as L0")
    position, before, target = _predicted(trace, target)
    sites = sites_of(at, trace.steps)
    values = values_for(trace.model, sites, how, reference, text=trace.encoding, seed=seed, on_progress=on_progress)
    hidden = hidden_with(trace, [Intervention(site, values.of[site]) for site in sites])  # (T, C)
    own = logits_with(trace, [Intervention(site, site.value(trace)) for site in sites], position)
    model, ids = trace.model, trace.encoding.ids
    same = "their own values put in give the plain logits"
    check = compared(same, own, trace.logits_at(position), exactly=True)
    after = log_probabilities(unembedded(trace, hidden, position))
    loss_before, loss_after = (
        mean_loss(model.unembed(states), ids) if trace.config.causal else None for states in (trace.last_hidden, hidden)
    )
    (effect,) = effects(before, after[None], target)
    found = choices(before, after, top, [target])
    return Ablation(sites, how, values.source, position, target, effect, found, loss_before, loss_after, check)


@torch.no_grad()
def ablation_sweep(
    trace: Trace,
    what: str = "heads",
    *,
    how: str = "zero",
    reference: Reference | None = None,
    target: int | None = None,
    seed: int = 0,
    on_progress: Progress = lambda done, of: None,
) -> AblationSweep:
    """Ablate every head (``heads``), feed-forward (``ffn``) or layer (``layers``) alone, batched.

    ``on_progress`` counts the texts of a mean too. Errors as of ``ablate``, and UsageError for another word.
    """
    if what not in SWEEPS:
        raise UsageError(f"there is no sweep over {what!r}", did_you_mean(what, SWEEPS))
    position, before, target = _predicted(trace, target)
    layers, heads = range(trace.config.n_layers), range(trace.config.n_heads)
    every: dict[str, dict[str, tuple[Site, ...]]] = {
        "heads": {f"L{layer}H{head}": (Site("head_out", layer, head),) for layer in layers for head in heads},
        "ffn": {f"L{layer}.ffn": (Site("ffn", layer),) for layer in layers},
        "layers": {f"L{layer}": (Site("attn", layer), Site("ffn", layer)) for layer in layers},
    }
    groups = every[what]
    sites = [site for group in groups.values() for site in group]
    texts = len(reference.texts) if reference is not None and how == "mean" else 0
    of = texts + len(groups)
    values = values_for(
        trace.model,
        sites,
        how,
        reference,
        text=trace.encoding,
        seed=seed,
        on_progress=lambda done, _: on_progress(done, of),
    )
    rows = [tuple(Intervention(site, values.of[site]) for site in group) for group in groups.values()]
    found: dict[int, Effect] = {}
    strongest, logits_there = -1, before
    for numbers, logits in swept(trace, rows, position, lambda done, _: on_progress(texts + done, of)):
        found.update(zip(numbers, effects(before, log_probabilities(logits), target), strict=True))
        best = max(numbers, key=lambda number: abs(found[number].change))
        if strongest < 0 or abs(found[best].change) > abs(found[strongest].change):
            strongest, logits_there = best, logits[numbers.index(best)].clone()
    alone = logits_with(trace, rows[strongest], position)
    check = compared(f"{tuple(groups)[strongest]} run by itself gives the same logits", logits_there, alone)
    shape = (len(layers), len(heads)) if what == "heads" else (1, len(layers))
    in_order = tuple(found[number] for number in range(len(rows)))
    return AblationSweep(what, how, values.source, position, target, tuple(groups), in_order, shape, check)
