"""Which heads follow grammar: how much of a noun's attention goes to its article, and of a verb's to its subject.

The pairs of words are in assets/grammar.toml. The same distance elsewhere in the texts is the control, or a head that
looks at the token before would count as one that finds articles (Clark et al. 2019, section 4.2).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.files import parse_toml
from tinytf.report import About, Report
from tinytf.sentences import percent
from tinytf.text_model import TextModel
from tinytf.trace.trace import Trace

PAIRS: Mapping[str, list[str]] = parse_toml((files("tinytf") / "assets" / "grammar.toml").read_text("utf-8"))
"""The marked texts of each relation: [earlier word] … (later word)."""
LEAST, APART, OFTEN = 0.3, 0.2, 7 / 8
"""A head follows a relation if it gives the word this weight, so much more than it gives its distance elsewhere, and
more than elsewhere in this share of the pairs. The last keeps out heads that rest on the first token of a text."""
_MARKED = re.compile(r"\[(?P<earlier>[^]]+)\]|\((?P<later>[^)]+)\)")


@dataclass(frozen=True, eq=False)
class Grammar(Report):
    """For each relation of PAIRS the mean weight (L, H) from the later word to the earlier one, and elsewhere.

    ``elsewhere`` is the mean weight at the same distances from the other tokens of the texts, ``often`` the share of
    the pairs with more weight than there; NaN marks a layer without attention.
    """

    KIND = "grammar"
    TABLE = ("heads",)
    EVENTS: ClassVar = {"heads": "head"}

    weight: Mapping[str, Tensor]
    elsewhere: Mapping[str, Tensor]
    often: Mapping[str, Tensor]

    def follows(self, relation: str) -> Tensor:
        """Which heads follow a relation, (L, H)."""
        weight, elsewhere = self.weight[relation], self.elsewhere[relation]
        return (weight >= LEAST) & (weight - elsewhere >= APART) & (self.often[relation] >= OFTEN)

    def best(self, relation: str) -> tuple[int, int]:
        """The layer and head that come first in ``ranked``."""
        return self.ranked(relation)[0]

    def ranked(self, relation: str) -> list[tuple[int, int]]:
        """Every layer and head, those that follow first, then by the weight beyond that of the distance."""
        beyond = (self.weight[relation] - self.elsewhere[relation] + 2 * self.follows(relation)).nan_to_num(-torch.inf)
        return [divmod(index, beyond.shape[1]) for index in beyond.flatten().argsort(descending=True).tolist()]

    def in_a_sentence(self) -> str:
        """For each relation the number of heads that follow it, and the best one."""
        parts = []
        for relation in self.weight:
            place, count = self.best(relation), int(self.follows(relation).sum())
            name = f"L{place[0]}H{place[1]} ({percent(float(self.weight[relation][place]))})"
            some = f"{count} {'head follows' if count == 1 else 'heads follow'}"
            parts.append(
                f"{some} {relation}, {name} most" if count else f"no head follows {relation}, {name} comes nearest"
            )
        sentence = "; ".join(parts)
        return f"{sentence[0].upper()}{sentence[1:]}."

    def fields(self) -> dict[str, Any]:
        return {
            "least": LEAST,
            "apart": APART,
            "least_often": OFTEN,
            "heads": [
                {
                    "relation": relation,
                    "head": f"L{layer}H{head}",
                    "weight": float(weight[layer, head]),
                    "elsewhere": float(self.elsewhere[relation][layer, head]),
                    "often": float(self.often[relation][layer, head]),
                    "follows": bool(self.follows(relation)[layer, head]),
                }
                for relation, weight in self.weight.items()
                for layer, head in torch.nonzero(~weight.isnan()).tolist()
            ],
        }


def grammar(model: TextModel) -> Grammar:
    """Score every head of a model on the marked pairs of words."""
    measured = {relation: [_measured(model, text) for text in texts] for relation, texts in PAIRS.items()}
    pairs = {relation: torch.stack([torch.stack(pair) for pair in pairs]) for relation, pairs in measured.items()}
    means = {relation: numbers.mean(0) for relation, numbers in pairs.items()}  # (2, L, H): on the pairs, and elsewhere
    return Grammar(
        {relation: mean[0] for relation, mean in means.items()},
        {relation: mean[1] for relation, mean in means.items()},
        {relation: (numbers[:, 0] > numbers[:, 1]).double().mean(0) for relation, numbers in pairs.items()},
        about=About(model),
    )


def _measured(model: TextModel, marked: str) -> tuple[Tensor, Tensor]:
    """The weight (L, H) from the last token of the later word to that of the earlier, and the mean elsewhere."""
    text, places = _unmarked(marked)
    trace = model.trace(text)
    key, query = (_last_token(trace, place) for place in (places["earlier"], places["later"]))
    config = trace.config
    weight, elsewhere = torch.full((2, config.n_layers, config.n_heads), torch.nan).double()
    for layer in trace.steps.attention_layers:
        weights = trace.step(trace.steps.weights, layer).cpu().double()  # (H, Q, K)
        along = weights.diagonal(key - query, dim1=-2, dim2=-1)  # (H, T - distance): entry i is of key i
        heads, others = len(weights), torch.arange(along.shape[1]) != key
        weight[layer, :heads] = weights[:, query, key]
        elsewhere[layer, :heads] = along[:, others].mean(-1)
    return weight, elsewhere


def _unmarked(marked: str) -> tuple[str, dict[str, int]]:
    """The text without its marks, and where each marked word ends in it."""
    text, ends, after = "", {}, 0
    for match in _MARKED.finditer(marked):
        kind = str(match.lastgroup)
        text += marked[after : match.start()] + match[kind]
        ends[kind], after = len(text), match.end()
    return text + marked[after:], ends


def _last_token(trace: Trace, end: int) -> int:
    """The token that covers the character before ``end``."""
    return next(i for i, token in enumerate(trace.tokens) if token.start < end <= token.end)
