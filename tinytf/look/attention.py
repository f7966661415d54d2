"""The attention of a trace as a report: measures of every head, and the weights of some heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.look.heads.kinds import LABELS
from tinytf.look.heads.measures import MEASURES, measure_heads, measures_of, require_attention
from tinytf.look.overview import Overview, layer_overview, overview
from tinytf.look.prediction import predictions
from tinytf.look.values import array_at
from tinytf.parts.row import Step
from tinytf.report import About, Report, plain
from tinytf.sentences import listed, percent, plural, several
from tinytf.tables import Array, Sheet, of_records
from tinytf.text.tokenizer import Token
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.check import Check, check
from tinytf.trace.trace import Text, Trace, visible

Window = tuple[int, int, int, int]
_FEW, _NAMED = 3, 2
"""Of fewer tokens the first and the one before are the same; the most heads that are named of those with a habit."""
_PLACES = {label.score: label.does for label in LABELS if label.name in ("first", "previous", "self")}
"""What a head may look at in any text, by measure, and how a sentence says it."""


@dataclass(frozen=True, eq=False)
class Attended(Report):
    """The attention of a trace. ``heads`` are the (layer, head) pairs whose weights are given.

    The weights given are all, those of one ``query``, the ``top`` largest, or those of a ``window``: first query, end,
    first key, end. ``multi_head`` is a layer whose attention is drawn, if requested; ``glance`` is the pass as a whole,
    if neither is. With ``across`` the heads are those of cross-attention, and the keys are the tokens of the source.
    """

    KIND = "attention"
    EVENTS: ClassVar = {
        "tokens": "token",
        "measures": "measures",
        "heads": "head",
        "flow": "flow",
        "layers": "layer",
        "check": "check",
    }

    trace: Trace
    check: Check
    heads: tuple[tuple[int, int], ...] = ()
    query: int | None = None
    top: int | None = None
    window: Window | None = None
    multi_head: Overview | None = None
    glance: Overview | None = None
    across: bool = False

    def __post_init__(self) -> None:
        counts = len(self.trace.tokens), len(self.keys)
        for part, axis, count in zip(self.ranges, ("queries", "keys"), counts, strict=True):
            if not 0 <= part.start < part.stop <= count:
                raise UsageError(
                    f"--window {axis} {part.start}:{part.stop} do not lie in the text of {count} tokens",
                    f"a range is first:end, with 0 ≤ first < end ≤ {count}",
                )

    def in_a_sentence(self) -> str:
        """What most heads look at, and the head that adds most to the prediction; or what one chosen head looks at.

        A head is counted at a place that has half of its weight, averaged over the queries but the first.
        """
        if self.across:
            return self._across()
        if len(self.trace.tokens) == 1:
            return f"The text is one token, {self.trace.tokens[0].shown}: every head can look at it alone."
        if len(self.heads) == 1:
            return self._habit(*self.heads[0])
        if self.glance is None:
            return ""
        if len(self.trace.tokens) < _FEW:
            return self._of_two()
        measured = measures_of(self.trace, list(_PLACES))
        weights = torch.stack(list(measured.values()))  # (places, layers, heads)
        attending = ~weights.isnan().any(dim=0)
        most, place = weights.nan_to_num(-1.0).max(dim=0)
        habits = []
        for index, does in enumerate(_PLACES.values()):
            found = ((place == index) & (most >= 0.5)).nonzero().tolist()
            found.sort(key=lambda head: -float(most[tuple(head)]))
            few = "such as " if len(found) > _NAMED else ""
            names = few + ", ".join(f"L{layer}H{head}" for layer, head in found[:_NAMED])
            habits.append((len(found), f"{several(len(found), does)} ({names})"))
        told = [words for count, words in sorted(habits, key=lambda one: -one[0]) if count]
        words = f"Of {int(attending.sum())} heads {listed(told) if told else 'none has a habit here'}"
        layer, head, added = self.glance.ranked[0]
        if self.glance.predicted is not None and added > 0 and self.glance.most_seen(layer, head):
            seen = self.glance.most_seen(layer, head).removeprefix("→ ")
            words += f"; L{layer}H{head}, which adds most to {self.glance.predicted}, looks at {seen}"
        return f"{words}."

    def _across(self) -> str:
        """The head of cross-attention with the least entropy, or the one chosen, and where three of its tokens look."""
        entropies = self.measured("entropy")
        layer, head = divmod(int(entropies.nan_to_num(torch.inf).argmin()), entropies.shape[1])
        layer, head = self.heads[0] if len(self.heads) == 1 else (layer, head)
        weights = self.weights(layer, head)
        surest = weights.max(dim=1).values.topk(min(3, len(weights))).indices.sort().values.tolist()
        looks = [
            f"{self.trace.tokens[query].shown} at {self.keys[int(row.argmax())].shown} ({percent(float(row.max()))})"
            for query, row in ((query, weights[query]) for query in surest)
        ]
        which = "" if len(self.heads) == 1 else ", of all heads the surest of the source,"
        return f"L{layer}H{head}{which} looks from {listed(looks)}."

    def _of_two(self) -> str:
        """How many heads look from the second of two tokens more at the first than at itself."""
        heads = self.trace.config.heads_in(self.trace.steps.attention_layers)
        rows = [self.weights(layer, head)[1] for layer, head in heads]
        back = sum(bool(row[0] > row[1]) for row in rows)
        first, second = (token.shown for token in self.trace.tokens)
        words = f"{back} of {plural(len(rows), 'head')} {'looks' if back == 1 else 'look'}"
        return f"{words} from {second} more at {first} than at {second} itself."

    def _habit(self, layer: int, head: int) -> str:
        """What a head looks at in general, and from which token it looks where.

        That token is the query; or the last, which predicts; or, where tokens see both sides, the one with the largest
        weight elsewhere.
        """
        measured = {does: float(measure_heads(self.trace, by)[layer, head]) for by, does in _PLACES.items()}
        does = max(measured, key=lambda place: measured[place])
        weights = self.weights(layer, head)
        query = len(weights) - 1 if self.query is None else self.query
        if self.query is None and not self.trace.config.causal:
            query = int((weights - torch.eye(len(weights))).max(dim=1).values.argmax())
        key = int(weights[query].argmax())
        names = [self.trace.tokens[position].shown for position in (query, key)]
        at = "itself" if key == query else names[1]
        looks = f"{names[0]} looks most at {at} ({percent(float(weights[query, key]))})"
        if self.query is not None or len(weights) < _FEW:
            return f"In L{layer}H{head} {looks}."
        words = f"L{layer}H{head} has no habit here"
        if measured[does] >= 0.5:
            habit = several(1, does).removeprefix("1 ")
            words = f"L{layer}H{head} mostly {habit}: {percent(measured[does])} of its weight"
        return f"{words}; {looks}."

    @property
    def ranges(self) -> tuple[slice, slice]:
        """The queries and the keys of the window, or all of them."""
        q0, q1, k0, k1 = self.window or (0, len(self.trace.tokens), 0, len(self.keys))
        return slice(q0, q1), slice(k0, k1)

    @property
    def step(self) -> Step:
        """The step of the attention weights."""
        return self.trace.steps.by_name["cross.weights" if self.across else self.trace.steps.weights]

    @property
    def keys(self) -> Sequence[Token]:
        """The tokens that are looked at."""
        return self.trace.tokens_on(self.step.axes[-1])

    @property
    def measures(self) -> list[str]:
        """The measures that have a meaning for these heads."""
        return ["entropy"] if self.across else list(MEASURES)

    def measured(self, by: str) -> Tensor:
        """One of MEASURES for every head, (layers, heads)."""
        return measures_of(self.trace, [by], of=self.step.name)[by]

    def weights(self, layer: int, head: int | None) -> Tensor:
        """The weights of a head, or the mean over all of a layer (Q, K), float32; −∞ where a key is masked."""
        chosen = None if head is None else (head,)
        weights = self.trace.step(self.step.name, layer, chosen).float().mean(dim=0)
        is_visible = visible(self.trace, self.step, layer, head)
        return weights if is_visible is None else weights.masked_fill(~is_visible, -torch.inf)

    def strongest(self, layer: int, head: int) -> list[tuple[int, int, float]]:
        """The ``top`` largest weights of a head in the window, as (query, key, weight)."""
        queries, keys = self.ranges
        weights = self.weights(layer, head)[queries, keys]
        masked = weights.isneginf()
        flat = weights.masked_fill(masked, -1.0).flatten()
        order = flat.argsort(descending=True, stable=True)[: min(self.top or 0, int((~masked).sum()))].tolist()
        width = weights.shape[1]
        return [(i // width + queries.start, i % width + keys.start, float(flat[i])) for i in order]

    def fields(self) -> dict[str, Any]:
        """The JSON data; masked weights are −∞."""
        drawn = self.multi_head
        return {
            **({"source": [token.shown for token in self.keys]} if self.across else {}),
            "measures": plain(measures_of(self.trace, self.measures, of=self.step.name)),
            "heads": [{"layer": layer, "head": head, **self._head(layer, head)} for layer, head in self.heads],
            **({} if drawn is None else {"flow": plain(drawn.flow), "layers": plain(drawn.layers)}),
            **self.members("check"),
        }

    def _head(self, layer: int, head: int) -> dict[str, Any]:
        if self.query is not None:
            return {"query": self.query, "weights": self.weights(layer, head)[self.query].tolist()}
        if self.top is not None:
            asking, asked = (
                [f"{index} {token.shown}" for index, token in enumerate(tokens)]
                for tokens in (self.trace.tokens, self.keys)
            )
            return {"top": [[asking[q], asked[k], share] for q, k, share in self.strongest(layer, head)]}
        queries, keys = self.ranges
        return {
            "queries": [queries.start, queries.stop],
            "keys": [keys.start, keys.stop],
            "weights": self.weights(layer, head)[queries, keys].tolist(),
        }

    def itemised(self) -> dict[str, Any]:
        data, config = self.to_dict(), self.trace.config
        measures: dict[str, list[list[float]]] = data["measures"]
        heads = config.heads_in(self.trace.steps.attention_layers)
        rows = [
            {"layer": layer, "head": head, **{by: values[layer][head] for by, values in measures.items()}}
            for layer, head in heads
        ]
        return {**data, "measures": rows}

    def stored(self) -> list[Array]:
        """The weights of the chosen heads, of the window or the requested query; without heads, of every layer."""
        if not self.heads:
            layers = self.trace.steps.attention_layers
            return [array_at(self.trace, Address(self.step, (layer,))) for layer in layers]
        arrays = self.arrays() or [self._array(layer, head, {}) for layer, head in self.heads]
        return [replace(array, read=partial(_unmasked, array.read)) for array in arrays]

    def arrays(self) -> list[Array]:
        """The weights of the chosen heads in the window or for one query; empty with ``top``."""
        if self.top is not None:
            return []
        queries, keys = self.ranges
        indices = {"query": range(queries.start, queries.stop), self._axis: range(keys.start, keys.stop)}
        return [self._array(layer, head, indices) for layer, head in self.heads]

    def _array(self, layer: int, head: int, indices: Mapping[str, range]) -> Array:
        name = f"L{layer}H{head}.{self.step.name}"
        if self.query is not None:
            return Array(f"{name}[{self.query}]", [self._axis], lambda: self.weights(layer, head)[self.query])
        queries, keys = self.ranges
        return Array(name, ["query", self._axis], lambda: self.weights(layer, head)[queries, keys], indices)

    @property
    def _axis(self) -> str:
        return self.step.axes[-1]

    def sheet(self, *, long: bool = False) -> Sheet | None:
        """The sheet; with ``top`` the largest weights of each head."""
        if self.top is None:
            return super().sheet(long=long)
        label = self.label
        return of_records(
            {"layer": layer, "head": head, "query": label("query", q), "key": label("key", k), "weight": share}
            for layer, head in self.heads
            for q, k, share in self.strongest(layer, head)
        )


def _unmasked(read: Callable[[], Tensor]) -> Tensor:
    """The weights with 0 where a key is masked, as in the model."""
    weights = read()
    return weights.masked_fill(weights.isneginf(), 0.0)


def attention(
    model: TextModel,
    text: Text,
    *,
    heads: Sequence[tuple[int, int]] = (),
    row: str | None = None,
    top: int | None = None,
    window: Window | None = None,
    layer: int | None = None,
    across: bool = False,
    truncate: bool = False,
    force: bool = False,
) -> Attended:
    """Measures of every head on a text, or on its trace, and the weights of ``heads``, (layer, head) pairs.

    The weights are those of the query ``row``, a token by text or number; the ``top`` pairs; or those of a ``window``.
    Without a head, these are of the one that adds most to the prediction. With a ``layer``, the report shows how its
    heads make what it adds to the stream. ``across`` asks about cross-attention, whose keys are the tokens of the
    source.

    Raises UsageError for a layer without attention weights, and for ``across`` in a model of one stack.
    """
    trace = model.trace(text, truncate=truncate, force=force)
    query = None if row is None else trace.index(row, "query", len(trace.tokens))
    if layer is not None and layer not in trace.steps.attention_layers:
        raise UsageError(f"layer {layer} has no attention weights", f"tinytf trace --layer {layer} shows its steps")
    require_attention(trace.steps)
    if across and not trace.config.d_source:
        raise UsageError("only the decoder of a model of two stacks has cross-attention", "leave out --cross")
    if across and layer is not None:
        raise UsageError("--layer draws what the heads of a layer read of their own text", "name heads, such as L0H*")
    expected = predictions(trace, model, 1)
    drawn = None if layer is None else layer_overview(trace, expected, layer)
    glance = None if heads or drawn or across else overview(trace, expected, model.shown)
    if glance is not None and not (query is None and top is None and window is None):
        heads, glance = [glance.ranked[0][:2]], None
    about = About(model, trace.encoding)
    return Attended(trace, check(trace), tuple(heads), query, top, window, drawn, glance, across, about=about)
