"""What a claim of a paper can measure: a closed table, so that a file of claims never runs code of its own."""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from tinytf.api import Model
from tinytf.cause.interventions import HookPoint, Intervention, hook_points, intervening
from tinytf.cause.interventions.prediction import predicted_at
from tinytf.cause.interventions.values import values_for
from tinytf.errors import UsageError
from tinytf.estimate import Estimate, mean_of
from tinytf.look.attribute import logit_parts
from tinytf.look.heads.census import Census
from tinytf.look.weights.copying import eigenvalue_score, own_map
from tinytf.look.weights.factors import HeadKey, Vocabulary, circuits, one_head, require_circuits
from tinytf.nearest import did_you_mean
from tinytf.pairs.pair import EncodedPair, PairScores, PairSet, find_answer
from tinytf.pairs.scored import each_lead, score_pairs
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.record import record_all

Settings = Mapping[str, Any]
_TRACED = 25  # pairs, as the measures say, whose steps are all recorded, for direct effects and attention
_SMILES = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9])"
)
"""The tokens of a reaction SMILES (Schwaller et al. 2019, "Molecular Transformer")."""
_ELEMENT = re.compile(r"\[?[0-9]*([A-Z][a-z]?|[a-z]{1,2}|\*)")


@dataclass(frozen=True)
class Reaction:
    """A reaction SMILES, and for each atom of its products the number of its atom of the reactants, −1 for none."""

    smiles: str
    atoms: tuple[int, ...]


class Bench:
    """A model with what the claims of a paper share: its pairs, their scores, its census."""

    def __init__(self, model: Model, make_pairs: Callable[[Model], PairSet], reactions: Sequence[Reaction]) -> None:
        self.model, self._make_pairs, self.reactions = model, make_pairs, reactions

    @cached_property
    def pairs(self) -> tuple[EncodedPair, ...]:
        return self._make_pairs(self.model).encoded(self.model)

    @cached_property
    def scores(self) -> PairScores:
        return score_pairs(self.model, self.pairs)

    @cached_property
    def census(self) -> Census:
        return self.model.heads(random_only=True)

    def heads(self, settings: Settings) -> list[HeadKey]:
        """The heads of the setting ``heads``, addresses, or ``kind``, a label of the census. Raises UsageError."""
        if addresses := settings.get("heads") or settings.get("head"):
            addresses, table = [addresses] if isinstance(addresses, str) else addresses, table_of(self.model.config)
            return [one_head(address, table) for address in addresses]
        kind, labels = settings["kind"], self.census.labels
        return [
            HeadKey(layer, head)
            for layer, row in enumerate(labels)
            for head, label in enumerate(row)
            if label.name == kind
        ]

    def some_heads(self, settings: Settings) -> list[HeadKey]:
        """Like ``heads``. Raises UsageError if there is none."""
        if not (heads := self.heads(settings)):
            raise UsageError(f"{self.model.name} has no head of the kind {settings['kind']}")
        return heads

    def leads_without(self, heads: Sequence[HeadKey], how: str) -> list[float]:
        """The lead of each answer after the clean text, with ``heads`` set to ``zero`` or to the ``mean``.

        The mean is by position over texts in which other names stand for the answer and ``versus``, each another one,
        as in Wang et al. 2023 (there p_ABC); over the pairs with the same label ``template`` and number of tokens.
        """
        points = hook_points([str(head) for head in heads], table_of(self.model.config)) if heads else ()
        if how == "zero":
            values = values_for(self.model, points, how, None).of
            return self._leads(self.pairs, values)
        groups = defaultdict[Any, list[int]](list)
        for index, pair in enumerate(self.pairs):
            groups[pair.pair.labels.get("template"), len(pair.clean.ids)].append(index)
        result = [0.0] * len(self.pairs)
        for indices in groups.values():
            group = [self.pairs[index] for index in indices]
            for index, lead in zip(indices, self._leads(group, self._means(group, points)), strict=True):
                result[index] = lead
        return result

    def _leads(self, pairs: Sequence[EncodedPair], values: Mapping[HookPoint, Tensor]) -> list[float]:
        with intervening(self.model.transformer, [Intervention(point, value) for point, value in values.items()]):
            return list(each_lead(self.model, [pair.clean for pair in pairs], pairs))

    def _means(self, pairs: Sequence[EncodedPair], points: Sequence[HookPoint]) -> dict[HookPoint, Tensor]:
        """The mean (T, D) of each point over the pairs' texts with other names."""
        texts, layers = [self._renamed(pair) for pair in pairs], {point.layer for point in points}
        sums: dict[HookPoint, Tensor] = {}
        for text in texts:
            (trace,) = record_all(self.model.transformer, [text], self.model.tokenizer.mask_id, layers=layers)
            for point in points:
                value = point.value(trace).double()
                sums[point] = sums[point] + value if point in sums else value
        dtype = next(self.model.transformer.parameters()).dtype
        return {point: (total / len(texts)).to(dtype) for point, total in sums.items()}

    def _renamed(self, pair: EncodedPair) -> Encoding:
        """The clean text with another name, each time a new one, for each occurrence of the answer and ``versus``."""
        named = (pair.answer, pair.versus)
        others = sorted({name for other in self.pairs for name in (other.answer, other.versus)} - {*named})
        places = [index for index, token in enumerate(pair.clean.ids) if token in named]
        if len(others) < len(places) or not places:
            raise UsageError("the pairs have too few names to put others in their place", "ask for more pairs")
        drawn = dict(zip(places, random.Random(str(pair.clean.ids)).sample(others, len(places)), strict=True))
        return self.model.encode_ids([drawn.get(index, token) for index, token in enumerate(pair.clean.ids)])

    @cached_property
    def direct_effects(self) -> dict[tuple[int, int], float]:
        """What each head adds to the lead of the answer directly, the mean over the first pairs."""
        sums = defaultdict[tuple[int, int], float](float)
        chosen = self.pairs[:_TRACED]
        for pair in chosen:
            trace = self.model.trace_of(pair.clean)
            for part in logit_parts(trace, predicted_at(trace), pair.answer, pair.versus):
                if part.layer is not None and part.head is not None:
                    sums[part.layer, part.head] += part.value / len(chosen)
        return dict(sums)


def _lead(bench: Bench, settings: Settings) -> Estimate:
    return bench.scores.difference


def _accuracy(bench: Bench, settings: Settings) -> Estimate:
    return mean_of([float(lead > 0) for lead in bench.scores.clean])


def _probability_difference(bench: Bench, settings: Settings) -> Estimate:
    """Hanna et al. 2023, section 2: the probability of later years minus that of the others, by their two digits."""
    differences = []
    for pair in bench.pairs:
        if not str(start := pair.pair.labels.get("start", "")).isdigit():
            raise UsageError("the pairs have no label start, the last two digits of a year")
        years = [find_answer(bench.model, pair.pair.clean, f"{year:02}", "year") for year in range(100)]
        (trace,) = record_all(bench.model.transformer, [pair.clean], layers=())
        shares = trace.logits_at(predicted_at(trace)).double().softmax(dim=-1)[years]
        differences.append(float(shares[int(start) + 1 :].sum() - shares[: int(start) + 1].sum()))
    return mean_of(differences)


def _head_score(bench: Bench, settings: Settings) -> Estimate:
    scores, name = bench.census.repeats.values, settings["score"]
    if name not in scores:
        raise UsageError(f"there is no score {name!r}", did_you_mean(name, scores))
    values = scores[name]
    if "head" in settings:
        return Estimate(float(values[bench.heads(settings)[0]]))
    return Estimate(float(values[~values.isnan()].max()))


def _count(bench: Bench, settings: Settings) -> Estimate:
    return Estimate(float(len(bench.heads(settings))))


def _layers_between(bench: Bench, settings: Settings) -> Estimate:
    first, second = (min(bench.some_heads({"kind": settings[side]}))[0] for side in ("first", "second"))
    return Estimate(float(second - first))


def _copy_gain(bench: Bench, settings: Settings) -> Estimate:
    if bench.census.first_loss is None or bench.census.second_loss is None:
        raise UsageError(f"{bench.model.name} does not predict the next token")
    return Estimate(bench.census.first_loss - bench.census.second_loss)


@torch.no_grad()
def _copying(bench: Bench, settings: Settings) -> Estimate:
    """The copying score of ``tinytf weights`` (Elhage et al. 2021), the mean over heads."""
    model = bench.model.transformer
    keys, own = bench.some_heads(settings), own_map(Vocabulary(model))
    for key in keys:
        require_circuits(table_of(model.config), key.layer)
    return Estimate(fmean(eigenvalue_score(circuits(model, key).ov, own) for key in keys))


def _ablation(bench: Bench, settings: Settings) -> Estimate:
    lost = bench.leads_without(bench.some_heads(settings), settings.get("how", "mean"))
    return _relative(bench, [whole - left for whole, left in zip(bench.scores.clean, lost, strict=True)])


def _faithfulness(bench: Bench, settings: Settings) -> Estimate:
    kept = {*bench.some_heads(settings)}
    config = bench.model.config
    heads = (HeadKey(layer, head) for layer in range(config.n_layers) for head in range(config.at(layer).n_heads))
    others = [head for head in heads if head not in kept]
    return _relative(bench, bench.leads_without(others, settings.get("how", "mean")))


def _relative(bench: Bench, values: Sequence[float]) -> Estimate:
    """A mean as a share of the mean lead of the whole model."""
    whole = bench.scores.difference.value
    if not whole:
        raise UsageError("the model has no mean lead to take a share of")
    estimate = mean_of(values)
    ends = sorted(end / whole for end in (estimate.low, estimate.high) if end is not None)
    return Estimate(estimate.value / whole, *ends)


def _direct_rank(bench: Bench, settings: Settings) -> Estimate:
    (head,) = bench.heads(settings)
    effects = bench.direct_effects
    return Estimate(1.0 + sum(other > effects[head] for other in effects.values()))


def _attention_to_answer(bench: Bench, settings: Settings) -> Estimate:
    heads, shares = bench.some_heads(settings), list[float]()
    for pair in bench.pairs[:_TRACED]:
        trace = bench.model.trace_of(pair.clean)
        places = [index for index, token in enumerate(pair.clean.ids) if token == pair.answer]
        weights = [trace.step(trace.steps.weights, layer, (head,))[0, predicted_at(trace)] for layer, head in heads]
        shares.append(float(torch.stack(weights)[:, places].sum(dim=-1).mean()))
    return mean_of(shares)


def _atom_mapping(bench: Bench, settings: Settings) -> Estimate:
    (layer, head) = bench.heads(settings)[0]
    return mean_of(_mapped(bench)[layer, head])


def _atom_mapping_lead(bench: Bench, settings: Settings) -> Estimate:
    (layer, head) = bench.heads(settings)[0]
    shares = _mapped(bench).double().mean(dim=-1)  # (L, H)
    others = [number for number in range(shares.shape[1]) if number != head]
    return Estimate(float(shares[layer, head] - shares[:, others].max()))


def _mapped(bench: Bench) -> Tensor:
    """Whether each head maps each mapped atom as published, (L, H, atoms).

    An atom goes to that of the same element which it looks at most, or which looks at it most: both weights are added,
    as RXNMapper does. Its later steps, neighbours and one atom at a time, are left out.
    """
    if not bench.reactions:
        raise UsageError("the paper has no reactions to map atoms of")
    matches = []
    for reaction in bench.reactions:
        tokenizer = bench.model.tokenizer
        before, after = tokenizer.surrounding_ids()
        tokens = _SMILES.findall(reaction.smiles)
        known = [tokenizer.id_of(token) for token in tokens]
        if ">>" not in tokens or len([number for number in known if number is None]) > len(known) // 2:
            raise UsageError(f"the tokens of {bench.model.name} are not those of reaction SMILES")
        unknown = tokenizer.special_id("[UNK]") or 0
        trace = bench.model.trace(ids=[*before, *(unknown if number is None else number for number in known), *after])
        atoms = [index for index, token in enumerate(tokens) if token[0] in "[*" or token[0].isalpha()]
        arrow = tokens.index(">>")
        sides = [index for index in atoms if index < arrow], [index for index in atoms if index > arrow]
        reactants, products = ([index + len(before) for index in side] for side in sides)
        same = torch.tensor([[_element(tokens[p]) == _element(tokens[r]) for r in sides[0]] for p in sides[1]])
        layers = []
        for layer in range(trace.config.n_layers):
            weights = trace.step(trace.steps.weights, layer)  # (H, T, T)
            both = weights[:, products][:, :, reactants] + weights[:, reactants][:, :, products].mT  # (H, P, R)
            layers.append(torch.where(same, both, -1.0).argmax(dim=-1))
        published = torch.tensor(reaction.atoms)
        matches.append((torch.stack(layers) == published)[..., published >= 0])
    return torch.cat(matches, dim=-1)


def _element(token: str) -> str:
    match = _ELEMENT.match(token)
    return match[1].capitalize() if match else token


@dataclass(frozen=True)
class Measure:
    """What a claim may measure: its definition, the function, and the fields that it needs or may have, with types."""

    words: str
    compute: Callable[[Bench, Settings], Estimate]
    needs: Mapping[str, type] = field(default_factory=dict)
    takes: Mapping[str, type] = field(default_factory=dict)


_HEADS: Mapping[str, type] = {"heads": list, "kind": str}
MEASURES: Mapping[str, Measure] = {
    "logit difference": Measure("mean logit(answer) − logit(versus) after the clean texts", _lead),
    "pair accuracy": Measure("share of pairs whose answer leads after the clean text", _accuracy),
    "probability difference": Measure(
        "mean probability of later years, minus that of the others", _probability_difference
    ),
    "head score": Measure(
        "score of a head on repeated random tokens; without a head, the highest",
        _head_score, {"score": str}, {"head": str},
    ),
    "heads of a kind": Measure("heads with this label of the census", _count, {"kind": str}),
    "layers between": Measure(
        "layers from the first head of one kind to the first of another",
        _layers_between, {"first": str, "second": str},
    ),
    "copy gain": Measure("loss in the first copy of random tokens, minus that in the second, in nats", _copy_gain),
    "copying": Measure("mean of Σλ / Σ|λ|, the copying score of tinytf weights", _copying, {}, _HEADS),
    "ablation effect": Measure(
        "share of the logit difference that is lost without these heads", _ablation, {}, {**_HEADS, "how": str}
    ),
    "faithfulness": Measure(
        "share of the logit difference that these heads keep with all feed-forwards",
        _faithfulness, {}, {**_HEADS, "how": str},
    ),
    "direct effect rank": Measure(
        "rank of a head by what it adds to the logit difference directly, 1 for the most, in the first 25 pairs",
        _direct_rank, {"head": str},
    ),
    "attention to the answer": Measure(
        "mean attention of these heads from the end to the answer's token, in the first 25 pairs",
        _attention_to_answer, {}, _HEADS,
    ),
    "atom mapping": Measure("share of atoms that a head maps as published", _atom_mapping, {"head": str}),
    "atom mapping lead": Measure(
        "how much larger that share is than of the best head of another number", _atom_mapping_lead, {"head": str}
    ),
}  # fmt: skip
"""By the name that a claim gives."""
