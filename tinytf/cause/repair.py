"""Self-repair: what an ablation takes from a logit directly, and what later parts and norms put back.

The direct effect is the change of the ablated parts' own terms in the logit, with the scales of all norms held (direct
logit attribution). The later parts' terms change too, since they read another residual stream, and the norms rescale
all terms; together these are the repair (McGrath et al. 2023, "The Hydra Effect"; Rushing & Nanda 2024, "Explorations
of Self-Repair in Language Models").
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from tinytf.cause.interventions.hooks import HookPoint, Intervention, intervening, points_of
from tinytf.cause.interventions.prediction import predicted_at
from tinytf.cause.interventions.values import Reference, values_for
from tinytf.errors import UsageError
from tinytf.look.attribute import Part, attribute, logit_parts, total
from tinytf.report import About, Data, Progress, Report, Verified, ignore_progress
from tinytf.sentences import listed, percent
from tinytf.steps.table import StepTable
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text

_KINDS = {"head": "later heads", "feed-forward": "later feed-forwards", "expert": "later experts"}
_OTHERS = "other terms"


@dataclass(frozen=True)
class RepairPart(Data):
    """A term of the logit ``before`` and ``after`` the ablation, both with the norms' scales of before.

    ``ablated``: it belongs to what was ablated. ``kind`` is one of KINDS of attribution.
    """

    LESS: ClassVar = ("name",)
    ALSO: ClassVar = ("change",)

    name: str
    kind: str
    layer: int | None
    head: int | None
    before: float
    after: float
    ablated: bool

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Repair(Report):
    """The change of the logit of ``target`` by an ablation, as a sum: direct effect, later parts, and norms.

    With ``versus``, of its lead over the logit of that token, which does not change where all logits move alike.
    ``before`` and ``after`` are the model's own logits, ``norms`` what the other scales of the norms make of all terms.
    ``of`` names the logit: ``head.logits`` where a cap or a factor follows. ``check`` compares the sum with the change.
    """

    KIND = "repair"
    EVENTS: ClassVar = {"tokens": "token", "parts": "part", "check": "check"}

    sites: tuple[HookPoint, ...]
    how: str
    source: str
    position: int
    target: int
    versus: int | None
    before: float
    after: float
    parts: tuple[RepairPart, ...]
    norms: float
    of: str
    check: Verified

    @property
    def direct(self) -> float:
        """The change of the ablated parts' own terms."""
        return _change(part for part in self.parts if part.ablated)

    @property
    def change(self) -> float:
        """The change of the logit."""
        return self.after - self.before

    @property
    def repair(self) -> float:
        """What the rest of the model adds to the direct effect; of the other sign where it repairs."""
        return _change(part for part in self.parts if not part.ablated) + self.norms

    @property
    def share(self) -> float | None:
        """The share of the direct effect that is put back, above 1 for more than all; negative where damage grows."""
        return -self.repair / self.direct if self.direct else None

    @property
    def by_kind(self) -> dict[str, float]:
        """The terms of the change: direct effect, later heads, feed-forwards and experts, other terms, norms."""
        later = [part for part in self.parts if not part.ablated]
        kinds = {words: [part for part in later if part.kind == kind] for kind, words in _KINDS.items()}
        kinds[_OTHERS] = [part for part in later if part.kind not in _KINDS]
        sums = {words: _change(parts) for words, parts in kinds.items() if any(part.change for part in parts)}
        return {"direct effect": self.direct, **sums, "norms": self.norms}

    def strongest(self, count: int | None = None) -> list[RepairPart]:
        """The later parts that change the logit most, in either direction."""
        changed = [part for part in self.parts if not part.ablated and part.change]
        return sorted(changed, key=lambda part: -abs(part.change))[:count]

    def in_a_sentence(self) -> str:
        """The direct effect, the change, and what made the difference."""
        names = listed([str(site) for site in self.sites]) if len(self.sites) <= 3 else f"these {len(self.sites)} parts"
        what = f"the {self.of} of {self.shown(self.target)}"
        if self.versus is not None:
            what = f"the lead of {self.shown(self.target)} over {self.shown(self.versus)}"
        direct, rest, share = self.direct, self.repair, self.share
        if not direct and not rest:
            return f"Ablating {names} does not change {what}."
        most = next((part for part in self.strongest() if part.change * rest > 0), None)
        named = "" if most is None else f", {most.name} most ({most.change:+.3g})"
        moved = f"it {'falls' if self.change < 0 else 'rises'} by {abs(self.change):.3g}"
        others = "later parts and norms" if self.strongest() else "the norms"
        if share is None:
            return f"Ablating {names} does not change {what} directly; {others} do{named}: {moved}."
        told = f"Ablating {names} directly {'lowers' if direct < 0 else 'raises'} {what} by {abs(direct):.3g}"
        does = "outweigh that" if share > 1 else f"put {percent(share)} of that back" if share > 0 else "add to that"
        return f"{told}; {others} {does}{named}, so that {moved}."

    def fields(self) -> dict[str, Any]:
        return {
            "at": [str(site) for site in self.sites],
            **self.members("how", "source", "position"),
            "target": self.named(self.target),
            "versus": None if self.versus is None else self.named(self.versus),
            **self.members("of", "before", "after", "change", "direct", "repair", "share", "by_kind", "norms"),
            "parts": [{"part": part.name, **part.to_dict()} for part in self.parts if part.before or part.after],
            **self.members("check"),
        }

    def stored(self) -> list[Array]:
        """The terms before and after, in the order in which the model adds them."""
        columns = {name: torch.tensor([getattr(part, name) for part in self.parts]) for name in ("before", "after")}
        return [Array.of(name, ["part"], values.double()) for name, values in columns.items()]


def _change(parts: Iterable[RepairPart]) -> float:
    return sum(part.change for part in parts)


def repair(
    model: TextModel,
    text: Text,
    at: str | Sequence[str],
    *,
    target: str | int | None = None,
    versus: str | int | None = None,
    how: str = "zero",
    reference: Reference | str | Path | None = None,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> Repair:
    """Split the effect of an ablation on the logit of ``target`` into its direct effect and what the rest adds.

    With ``versus``, the effect on its lead over that token. The other settings are those of ``ablate``; the target is
    by default the predicted token. Raises the errors of ``ablate`` and ``attribute``, and UsageError for what is no
    term of the logit: the residual stream, queries, keys and values, units, and a part at some tokens alone.
    """
    trace = model.trace(text)
    table = trace.steps
    sites = points_of(at, trace) if at else ()
    other = next((site for site in sites if not _is_term(site, table)), None)
    if other is not None or not sites:
        message = "nothing is named to ablate" if other is None else f"{other} is no part that adds to the logit"
        raise UsageError(message, "name a head, such as L0H1, a part, such as L0.ffn, or a layer, L0")
    position = predicted_at(trace)
    plain = attribute(model, trace, token=target, versus=versus, position=str(position))
    values = values_for(model, sites, how, reference, text=trace.encoding, seed=seed, on_progress=on_progress)
    with intervening(model.transformer, [Intervention(site, values.of[site]) for site in sites]):
        ablated = model.trace_of(trace.encoding)
        changed = attribute(model, ablated, token=plain.token, versus=versus, position=str(position))
        held = logit_parts(ablated, position, plain.token, plain.versus, frozen=trace)
    before, after = ({part.name: part for part in parts} for parts in (plain.parts, held))
    parts = tuple(
        RepairPart(
            name,
            part.kind,
            part.layer,
            part.head,
            before=before[name].value if name in before else 0.0,
            after=after[name].value if name in after else 0.0,
            ablated=any(_belongs(part, site, table) for site in sites),
        )
        for name, part in {**after, **before}.items()
    )
    norms = total(changed.parts) - total(held)
    difference = abs(_change(parts) + norms - (changed.logit - plain.logit))
    return Repair(
        sites=sites,
        how=how,
        source=values.source,
        position=position,
        target=plain.token,
        versus=plain.versus,
        before=plain.logit,
        after=changed.logit,
        parts=parts,
        norms=norms,
        of=plain.of,
        check=Verified("the terms sum to the change of the logit", difference, plain.allowed + changed.allowed),
        about=About(model, trace.encoding),
    )


def _is_term(site: HookPoint, table: StepTable) -> bool:
    """Whether a hook point is a head, an expert, attention or a feed-forward, at all tokens."""
    whole = site.rows is None and not site.columns
    return whole and (site.short if site.head is not None else site.step in {step.name for step in table.added})


def _belongs(part: Part, site: HookPoint, table: StepTable) -> bool:
    """Whether a term of the logit is of an ablated site."""
    if part.layer != site.layer:
        return False
    if site.head is not None:
        return part.name == str(site)
    is_attention = table.by_name[site.step].role == "attention"
    inside = part.kind == "head" if is_attention else part.kind == "expert"
    return inside or part.name in (str(site), f"{site} bias")
