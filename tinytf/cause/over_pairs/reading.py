"""Questions that read the plain runs of pairs: attribution, lens, attention, measures of heads, and the score."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tinytf.cause.over_pairs.report import OverPairs, Quantity, Row
from tinytf.cause.over_pairs.running import Measured, PairRun, Question, ask
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.look.attribute import Attribution, require_logits
from tinytf.look.attribute import attribute as attribute_one
from tinytf.look.heads.measures import MEASURES, measures_of, require_attention
from tinytf.look.lens import lens as lens_one
from tinytf.look.lens import require_readable
from tinytf.metric import Answer, Asked, Measure, MetricFunction
from tinytf.nearest import did_you_mean
from tinytf.pairs.pair import Pairs, pair_set
from tinytf.report import Progress, Verified, ignore_progress
from tinytf.steps.table import table_of
from tinytf.text_model import TextModel
from tinytf.trace.trace import Trace

_LEAD = Quantity("lead", "logit(answer) − logit(versus)", signed=True)


class _Attribute(Question):
    asked = "attribute"

    def __init__(self, measured: Measure) -> None:
        self.measured = measured
        of = "the lead of the answer" if measured.is_lead else measured.words
        self.words = f"what each part adds to {of} after the clean text"
        self.words += "" if measured.name in ("logit", "logit_diff") else ", to first order"

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        of = "logit(answer) − logit(versus)" if self.measured.is_lead else self.measured.words
        return (Quantity("added", f"the part's term of {of}", signed=True),)

    def rows(self, run: PairRun) -> tuple[Row, ...]:
        return tuple(self._summed(self._attribution(run)))

    def measure(self, run: PairRun) -> Measured:
        attribution = self._attribution(run)
        values = torch.tensor([list(self._summed(attribution).values())], dtype=torch.float64)
        what = "the parts of each pair sum to its "
        what += "difference of logits" if self.measured.is_lead else "logits times the gradient"
        return Measured(values, Verified(what, attribution.difference, attribution.allowed))

    def _attribution(self, run: PairRun) -> Attribution:
        asked = run.pair.asked
        return attribute_one(
            run.model,
            run.clean,
            token=asked.answer,
            versus=asked.versus,
            metric=asked.metric,
            position=str(run.position),
        )

    def _summed(self, attribution: Attribution) -> dict[Row, float]:
        """The parts by row; the experts of a layer, which differ from text to text, count as its feed-forward."""
        sums: dict[Row, float] = {}
        for part in attribution.parts:
            row = Row(f"L{part.layer} experts" if part.kind == "expert" else part.name, part.layer, part.head)
            sums[row] = sums.get(row, 0.0) + part.value
        return sums


def attribute_over(
    model: TextModel,
    pairs: Pairs,
    *,
    metric: str | MetricFunction | None = None,
    answer: Answer = None,
    where: Sequence[str] = (),
    on_progress: Progress = ignore_progress,
) -> OverPairs:
    """``attribute`` for the answer over ``versus`` after each clean text: the mean of what each part adds, in logits.

    Another ``metric`` is split to first order, with each pair's answer, or one ``answer`` for all pairs.

    ``pairs`` are a PairSet, a file or rows; ``where`` chooses pairs by ``column=value``. Raises UsageError like
    PairSet and ``attribute``, with the line of the pair.
    """
    require_logits(model.transformer)
    wanted = Asked.of(model, metric, answer)
    wanted.require_gradient()
    chosen = pair_set(pairs, where)
    encoded = chosen.encoded(model, even=False, metric=metric, answer=answer)
    return ask(model, _Attribute(wanted.measure()), chosen, encoded, where, on_progress)


class _Lens(Question):
    asked = "lens"
    words = "the lead of the answer, its probability and its rank, read after each layer of the clean text"
    quantities = (
        _LEAD,
        Quantity("probability", "probability of the answer"),
        Quantity("rank", "rank of the answer, from 1", median=True),
    )

    def rows(self, run: PairRun) -> tuple[Row, ...]:
        table = run.clean.steps
        layers = [layer for layer in range(run.clean.config.n_layers) if table.has(table.output, layer)]
        first = Row(table.at(table.embedded, None).full_name(None))
        return (first, *(Row(table.at(table.output, layer).full_name(layer), layer) for layer in layers))

    def measure(self, run: PairRun) -> Measured:
        tokens = [run.pair.answer, run.pair.versus]
        report = lens_one(run.model, run.clean, position=str(run.position), top=1, track=tokens)
        shares = torch.stack([stage.probabilities[0] for stage in report.stages])  # (N, 2), float64
        ranks = torch.stack([stage.ranks[0, 0] for stage in report.stages])
        lead = shares.log()[:, 0] - shares.log()[:, 1]  # of log-probabilities, so of logits
        return Measured(torch.stack((lead, shares[:, 0], ranks.double())))


def lens_over(
    model: TextModel, pairs: Pairs, *, where: Sequence[str] = (), on_progress: Progress = ignore_progress
) -> OverPairs:
    """``lens`` for the answer of each pair: after every layer its mean lead and probability, and its median rank.

    ``pairs`` and ``where`` are as in ``attribute_over``. Raises UsageError like PairSet and ``lens``.
    """
    require_readable(model.transformer)
    return _asked(model, _Lens(), pairs, where, on_progress)


class _OfHeads(Question):
    """Numbers of every head in the layers with attention weights."""

    def rows(self, run: PairRun) -> tuple[Row, ...]:
        config, layers = run.clean.config, require_attention(run.clean.steps)
        return tuple(Row(f"L{at}H{head}", at, head) for at in layers for head in range(config.at(at).n_heads))


class _Attention(_OfHeads):
    asked = "attention"
    even = True
    words = "where each head looks from the predicting token of the clean text"
    quantities = (
        Quantity("differing", "weight on the tokens in which the two texts differ"),
        Quantity("answer", "weight on the answer's token, in the texts that hold it"),
        Quantity("first", "weight on the first token"),
    )

    def measure(self, run: PairRun) -> Measured:
        ids, corrupt_ids = torch.tensor(run.clean.encoding.ids), torch.tensor(run.corrupt.encoding.ids)
        is_answer = ids == run.pair.answer
        looks = _weights_from(run.clean, run.position)  # (heads of all layers, K)
        on_answer = looks[:, is_answer].sum(dim=-1) if is_answer.any() else looks.new_full((len(looks),), torch.nan)
        return Measured(torch.stack((looks[:, ids != corrupt_ids].sum(dim=-1), on_answer, looks[:, 0])))


def _weights_from(trace: Trace, position: int) -> Tensor:
    """The attention weights (heads of all attending layers, K) of one query, float64."""
    layers = require_attention(trace.steps)
    return torch.cat([trace.step(trace.steps.weights, layer)[:, position].double().cpu() for layer in layers])


def attention_over(
    model: TextModel, pairs: Pairs, *, where: Sequence[str] = (), on_progress: Progress = ignore_progress
) -> OverPairs:
    """The mean attention of every head from the predicting token of the clean texts.

    It is the weight on the tokens that differ from the corrupt text, on the answer's token, and on the first one.
    ``pairs`` and ``where`` are as in ``attribute_over``. Raises UsageError like PairSet, for a pair of texts with
    different numbers of tokens, and for a model without attention.
    """
    require_attention(table_of(model.config))
    return _asked(model, _Attention(), pairs, where, on_progress)


class _Heads(_OfHeads):
    asked = "heads"
    words = "each head's attention on the clean texts"

    def __init__(self, by: str) -> None:
        self.names = [by, *(name for name in MEASURES if name != by)]

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return tuple(Quantity(name, MEASURES[name][1]) for name in self.names)

    def measure(self, run: PairRun) -> Measured:
        of_layers = measures_of(run.clean, self.names, require_attention(run.clean.steps))
        return Measured(torch.stack([values.flatten().double().cpu() for values in of_layers.values()]))


def heads_over(
    model: TextModel,
    pairs: Pairs,
    *,
    by: str = "previous",
    where: Sequence[str] = (),
    on_progress: Progress = ignore_progress,
) -> OverPairs:
    """Measures of every head on the clean text of each pair, ranked ``by`` one of MEASURES.

    ``pairs`` and ``where`` are as in ``attribute_over``. Raises UsageError like PairSet, for another ``by``, and for a
    model without attention.
    """
    require_attention(table_of(model.config))
    if by not in MEASURES:
        raise UsageError(f"over pairs there is no score {by!r}", did_you_mean(by, MEASURES))
    return _asked(model, _Heads(by), pairs, where, on_progress)


class _Score(Question):
    asked = "score"
    words = "the answer after the clean and after the corrupt text"
    quantities = (
        _LEAD,
        Quantity("ahead", "share of the texts after which the answer is ahead of versus"),
        Quantity("first", "share of the texts after which no token is ahead of the answer"),
        Quantity("log_probability", "log-probability of the answer, in nats", signed=True),
        Quantity("rank", "rank of the answer, from 1", median=True),
    )

    def layers(self, config: ModelConfig) -> Sequence[int]:
        return ()

    def rows(self, run: PairRun) -> tuple[Row, ...]:
        return Row("clean"), Row("corrupt")

    def measure(self, run: PairRun) -> Measured:
        both = (run.clean.logits_at(run.position), run.corrupt.logits_at(run.corrupt_position))
        logits = torch.stack([row.double().cpu() for row in both])  # (2, V)
        lead, answer = run.lead(logits[:, None]), logits[:, run.pair.answer]
        rank = 1 + (logits > answer[:, None]).sum(dim=-1)
        log_p = answer - logits.logsumexp(dim=-1)
        return Measured(torch.stack((lead, (lead > 0).double(), (rank == 1).double(), log_p, rank.double())))


def score_over(
    model: TextModel, pairs: Pairs, *, where: Sequence[str] = (), on_progress: Progress = ignore_progress
) -> OverPairs:
    """How well the model answers each pair: lead, log-probability and rank of the answer, clean and corrupt.

    ``pairs`` and ``where`` are as in ``attribute_over``. Raises UsageError like PairSet, and for a model or a text that
    predicts nothing.
    """
    return _asked(model, _Score(), pairs, where, on_progress)


def _asked(
    model: TextModel, question: Question, pairs: Pairs, where: Sequence[str], on_progress: Progress
) -> OverPairs:
    chosen = pair_set(pairs, where)
    return ask(model, question, chosen, chosen.encoded(model, even=question.even), where, on_progress)
