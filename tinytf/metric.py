"""What a question about causes asks of a run: one number, as a function of its logits.

A metric is chosen by name, or is a function of the reader's own. Patching, its estimates by gradients, ablation and
intervals over pairs all take it in this form. Shapes: B runs, P positions, V vocabulary, T tokens.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from tinytf.errors import TinytfError, UsageError
from tinytf.files import open_bytes
from tinytf.nearest import did_you_mean
from tinytf.report import Data
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.record import record
from tinytf.trace.trace import Text, Trace

Answer: TypeAlias = str | int | Sequence[str | int] | None
"""A token, by its text or its id; for ``prob`` several, for ``log_prob`` a text of several tokens."""
MetricFunction: TypeAlias = Callable[..., Tensor]
"""A function of the logits (T, V), and if it takes two arguments of the clean run's trace, that returns one number."""
_TEXTS = {"clean": "clean text", "plain": "text"}
_FOLLOWED = 5
"""The most tokens of a metric whose probabilities are shown."""
_NAMED = 3
"""The most tokens of a set that are named."""


def divergence(p: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) in nats, (…, V) -> (…); rounding can make the sum a little less than 0."""
    return (p * log_p.sub(log_q)).sum(dim=-1).clamp(min=0)


@dataclass(frozen=True)
class Measure(Data):
    """What a metric is: its ``unit``, its ``noun``, its formula as a ``label``, and in ``words`` what it is of."""

    LESS: ClassVar[tuple[str, ...]] = ("noun", "label", "words")

    name: str
    unit: str
    noun: str
    label: str
    words: str

    @property
    def is_lead(self) -> bool:
        """Whether it is the lead of an answer over another token, which is above 0 where the answer is ahead."""
        return self.name == "logit_diff"

    @property
    def effect(self) -> str:
        """What two runs differ by, in words: the lead itself, or the change of any other metric."""
        return self.words if self.is_lead else f"the change of {self.words}"

    @property
    def of_it(self) -> str:
        """What a share is of, after a sentence that names the metric: the lead itself, or the change of another."""
        return "" if self.is_lead else " of the change"

    @property
    def in_unit(self) -> str:
        """Its unit after a number, with a space before it; empty where the number says it all."""
        return f" {self.unit}" if self.unit in ("logits", "nats", "nats a token") else ""


@dataclass(frozen=True)
class Metric(Measure):
    """A number of a run: ``function`` makes it of the logits at ``positions``, (B, P, V) -> (B,), in float64.

    ``answer`` and ``versus`` are the ids that it is about, empty without any. A pickled metric loses its function,
    which may hold a whole run.
    """

    LESS: ClassVar[tuple[str, ...]] = (*Measure.LESS, "positions", "function", "answer", "versus")

    positions: tuple[int, ...]
    function: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    answer: tuple[int, ...] = ()
    versus: tuple[int, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "function": _not_kept}

    def of(self, logits: Tensor) -> Tensor:
        """The metric of each run (B,), float64, of its logits (B, P or more, V) at ``positions`` and any after them."""
        return self.function(logits[:, : len(self.positions)].double())

    def read(self, position: int) -> tuple[int, ...]:
        """The positions whose logits it takes, then ``position`` if it is none of them."""
        return tuple(dict.fromkeys((*self.positions, position)))

    @property
    def followed(self) -> tuple[int, ...]:
        """The first few tokens that it is about, as far as they are predicted at its first position."""
        return (*(self.answer[:1] if len(self.positions) > 1 else self.answer[:_FOLLOWED]), *self.versus)

    def require_name(self) -> None:
        """Raise UsageError for a function, whose measurements no file can tell from those of another."""
        if self.name not in METRICS:
            raise UsageError("measurements by a function of your own cannot be resumed", "leave out resume")

    @property
    def key(self) -> list[Any]:
        """What measurements by it depend on, beside the texts."""
        return [self.name, list(self.answer), list(self.versus)]


def _not_kept(logits: Tensor) -> Tensor:
    raise UsageError("a metric that was pickled has no function any more", "ask the question again")


@dataclass(frozen=True)
class _Kind:
    """A metric that has a name: ``answer`` is "", "one", "set" or "text"; ``make`` gets the clean run and the ids."""

    unit: str
    noun: str
    label: str
    words: str
    make: Callable[[Trace, int, Sequence[int], Sequence[int]], Callable[[Tensor], Tensor]]
    answer: str = "one"
    versus: bool = False
    differentiable: bool = True


Ids: TypeAlias = Sequence[int]
OfLogits: TypeAlias = Callable[[Tensor], Tensor]


def _logit(clean: Trace, position: int, answer: Ids, versus: Ids) -> OfLogits:
    return lambda logits: logits[:, 0, answer[0]]


def _difference(clean: Trace, position: int, answer: Ids, versus: Ids) -> OfLogits:
    return lambda logits: logits[:, 0, answer[0]] - logits[:, 0, versus[0]]


def _log_probability(clean: Trace, position: int, answer: Ids, versus: Ids) -> OfLogits:
    places, ids = range(len(answer)), list(answer)
    return lambda logits: logits.log_softmax(dim=-1)[:, places, ids].sum(dim=-1)  # (B, P, V) -> (B, P) -> (B,)


def _probability(clean: Trace, position: int, answer: Ids, versus: Ids) -> OfLogits:
    return lambda logits: logits[:, 0].softmax(dim=-1)[:, list(answer)].sum(dim=-1)


def _kl(clean: Trace, position: int, answer: Ids, versus: Ids) -> OfLogits:
    log_p = clean.logits_at(position).double().log_softmax(dim=-1)
    return lambda logits: divergence(log_p.exp(), log_p, logits[:, 0].log_softmax(dim=-1))


def _js(clean: Trace, position: int, answer: Ids, versus: Ids) -> OfLogits:
    log_p = clean.logits_at(position).double().log_softmax(dim=-1)

    def of(logits: Tensor) -> Tensor:
        log_q = logits[:, 0].log_softmax(dim=-1)  # (B, V)
        log_m = torch.logaddexp(log_p.expand_as(log_q), log_q) - math.log(2)
        return (divergence(log_p.exp(), log_p, log_m) + divergence(log_q.exp(), log_q, log_m)) / 2

    return of


def _rank(clean: Trace, position: int, answer: Ids, versus: Ids) -> OfLogits:
    return lambda logits: 1.0 + (logits[:, 0] > logits[:, 0, answer[0], None]).sum(dim=-1, dtype=torch.float64)


def _loss(clean: Trace, position: int, answer: Ids, versus: Ids) -> OfLogits:
    ids = clean.encoding.ids[1:]
    return lambda logits: -logits.log_softmax(dim=-1)[:, range(len(ids)), ids].mean(dim=-1)  # (B, T − 1, V) -> (B,)


METRICS: dict[str, _Kind] = {
    "logit_diff": _Kind("logits", "logit difference", "logit {a} − {b}", "the lead of {a} over {b}", _difference,
                        versus=True),
    "logit": _Kind("logits", "logit", "logit {a}", "the logit of {a}", _logit),
    "log_prob": _Kind("nats", "log-probability", "ln p({a})", "the log-probability of {a}", _log_probability, "text"),
    "prob": _Kind("probability", "probability", "p({a})", "the probability of {a}", _probability, "set"),
    "kl": _Kind("nats", "KL divergence", "KL({run} ‖ run)", "the KL divergence from the {run} run", _kl, ""),
    "js": _Kind("nats", "JS divergence", "JS({run}, run)", "the Jensen–Shannon divergence from the {run} run", _js, ""),
    "rank": _Kind("rank", "rank", "rank of {a}", "the rank of {a}", _rank, differentiable=False),
    "loss": _Kind("nats a token", "loss", "loss", "the loss on the {text}", _loss, ""),
}  # fmt: skip
"""The metrics that have a name. A rank counts from 1; a loss is of the clean text's tokens."""


@dataclass(frozen=True)
class Asked:
    """What a question is to measure, before any run: a metric by name or a function, and the tokens that it is about.

    ``answer`` and ``versus`` are ids, None where they are what a run predicts.
    """

    metric: str | MetricFunction
    answer: tuple[int, ...] | None = None
    versus: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        model: TextModel,
        metric: str | MetricFunction | None,
        answer: Answer = None,
        versus: Answer = None,
        *,
        default: str = "logit_diff",
        names: tuple[str, str] = ("answer", "versus"),
    ) -> "Asked":
        """Read what a caller asks for; ``names`` are those of his options.

        Raises UsageError for an unknown metric, for tokens that it does not take, and for words that are no tokens.
        """
        metric = metric or default
        if not isinstance(metric, str):
            if not callable(metric):
                raise UsageError(f"{metric!r} is no metric", f"name one of {', '.join(METRICS)}, or give a function")
            if answer is not None or versus is not None:
                raise UsageError(f"a function takes no {names[answer is None]}", "leave it out: it reads all logits")
            return cls(metric)
        if metric not in METRICS:
            hint = did_you_mean(metric, METRICS) or f"they are {', '.join(METRICS)}"
            raise UsageError(f"there is no metric {metric!r}", hint)
        kind = METRICS[metric]
        for name, value, takes in zip(names, (answer, versus), (kind.answer, kind.versus), strict=True):
            if value is not None and not takes:
                raise UsageError(f"the metric {metric} takes no {name}", f"leave out {name}, or take logit_diff")
        if metric == "loss" and model.config.head.kind != "lm":
            raise UsageError("this model predicts no next token, so a text has no loss", "take log_prob or kl")
        chosen = None if answer is None else answer_ids(model, kind.answer, answer, names[0])
        return cls(metric, chosen, None if versus is None else (model.find_outcome(_single(versus), names[1]),))

    @property
    def takes(self) -> str:
        """The answer that it takes: "one" token, a "set", a "text"; or "" for none."""
        return METRICS[self.metric].answer if isinstance(self.metric, str) else ""

    @property
    def reads_text(self) -> bool:
        """Whether it reads the logits of the whole text, so that two texts must have as many tokens."""
        return self.metric == "loss" or not isinstance(self.metric, str)

    def require_gradient(self) -> None:
        """Raise UsageError for a metric that no estimate by gradients can be made of."""
        if isinstance(self.metric, str) and not METRICS[self.metric].differentiable:
            raise UsageError(
                f"the metric {self.metric} has no gradient: it moves in steps, so there is nothing to estimate",
                "run the patches: leave out the estimate, or take log_prob",
            )

    def measure(self) -> Measure:
        """What it is over many texts, each with its own answer."""
        if not isinstance(self.metric, str):
            name = _name_of(self.metric)
            return Measure(f"{name}()", "", name, name, name)
        kind = METRICS[self.metric]
        words = {"a": "the answer", "b": "versus", "run": "clean", "text": _TEXTS["clean"]}
        if kind.answer == "set" and self.answer is not None:
            words["a"] = f"{len(self.answer):,} token{'s' * (len(self.answer) != 1)}"
        of = "the answer's lead" if kind.versus else kind.words.format(**words)
        return Measure(self.metric, kind.unit, kind.noun, kind.label.format(**words), of)

    @property
    def continues(self) -> tuple[int, ...]:
        """What a text is continued with: an answer of several tokens but for its last."""
        return self.answer[:-1] if self.metric == "log_prob" and self.answer is not None else ()

    def trace(self, model: TextModel, text: Text) -> Trace:
        """The run of a text, continued with the tokens of the answer that others are predicted from."""
        if not self.continues:
            return model.trace(text)
        trace = text if isinstance(text, Trace) else None
        encoding = model.encode(text) if trace is None else trace.encoding  # type: ignore[arg-type]
        longer = continued(model, encoding, self.continues)
        if trace is None:
            return model.trace_of(longer)
        run = record(trace.model, longer, model.tokenizer.mask_id)
        run.about = trace.about
        return run

    def position(self, predicted: int) -> int:
        """Where the answer's first token is predicted, of the position at which the run predicts."""
        return predicted - len(self.continues)

    def bind(
        self,
        clean: Trace,
        predicted: int,
        versus: int | None = None,
        *,
        shown: Callable[[int], str] = "#{}".format,
        run: str = "clean",
    ) -> Metric:
        """The metric in runs of as many tokens as the ``clean`` one, which predicts at ``predicted``.

        ``shown`` prints a token in its words. ``versus`` stands for the token that the corrupt run predicts; ``run``
        names the clean one in words. Raises UsageError for a text without a loss.
        """
        position = self.position(predicted)
        if not isinstance(self.metric, str):
            return _of_function(self.metric, clean)
        kind = METRICS[self.metric]
        answer: tuple[int, ...] = ()
        other: tuple[int, ...] = ()
        if kind.answer:
            answer = self.answer or (int(clean.logits_at(position).argmax()),)
        if kind.versus:
            other = self.versus or (int(versus or 0),)
        positions = tuple(range(position, position + max(1, len(self.continues) + 1)))
        if self.metric == "loss":
            positions = tuple(range(len(clean.tokens) - 1))
            if not positions:
                raise UsageError("a text of one token has no loss: nothing predicts its token", "take log_prob or kl")
        tokens = "".join(map(shown, answer)) if kind.answer == "text" else _named(shown, answer)
        words = {"a": tokens, "b": "".join(map(shown, other)), "run": run, "text": _TEXTS[run]}
        return Metric(
            name=self.metric,
            unit=kind.unit,
            noun=kind.noun,
            label=kind.label.format(**words),
            words=kind.words.format(**words),
            positions=positions,
            function=kind.make(clean, position, answer, other),
            answer=answer,
            versus=other,
        )


def _named(shown: Callable[[int], str], ids: Sequence[int]) -> str:
    """A few tokens by their text, many by their number."""
    if len(ids) > _NAMED:
        return f"{len(ids):,} tokens"
    *before, last = map(shown, ids) if ids else [""]
    return f"{', '.join(before)} or {last}" if before else last


def _of_function(function: MetricFunction, clean: Trace) -> Metric:
    """A function of the reader's own, of the logits (T, V) of one run, as a metric."""
    takes = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    more = (clean,) if len(takes) > 1 else ()
    name = _name_of(function)

    def of(logits: Tensor) -> Tensor:
        numbers = []
        for row in logits:
            number = function(row, *more)
            if not isinstance(number, Tensor) or number.numel() != 1:
                raise UsageError(f"{name} returned no single number", "a metric makes one number of the logits (T, V)")
            if not bool(number.isfinite().all()):
                raise TinytfError(f"{name} is not finite", "it is NaN or infinite on these logits")
            numbers.append(number.double().reshape(()))
        return torch.stack(numbers)

    rows = clean.recording.logit_rows if clean.config.labels else range(len(clean.tokens))
    return Metric(f"{name}()", "", name, name, name, tuple(rows), of)


def _name_of(function: MetricFunction) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "the metric" if name == "<lambda>" else str(name)


def _single(answer: Answer) -> Any:
    """The only one of a list of one; anything else as it is."""
    return answer[0] if isinstance(answer, list | tuple) and len(answer) == 1 else answer


def continued(model: TextModel, encoding: Encoding, ids: Sequence[int]) -> Encoding:
    """A text followed by more tokens, of which ``added`` tells."""
    shown = "".join(map(model.shown, ids))
    return replace(model.encode_ids([*encoding.ids, *ids]), added=f"{encoding.added}, {shown} appended")


def answer_ids(model: TextModel, takes: str, answer: Answer, option: str) -> tuple[int, ...]:
    """The ids of an answer: of "one" token, of a "set" (a list, words with commas, or @FILE), or of a "text".

    Raises UsageError for what is no token, for an empty set, and like ``find_outcome``.
    """
    if takes == "set":
        if isinstance(answer, str):
            answer = _listed(answer, option)
        several = answer if isinstance(answer, list | tuple) else [answer]
        if not several:
            raise UsageError(f"{option} is an empty set", "such as --answer cat,dog, or --answer @FILE")
        return tuple(dict.fromkeys(model.find_outcome(word, option) for word in several))  # type: ignore[arg-type]
    if takes == "one" or isinstance(answer, int):
        try:
            return (model.find_outcome(_single(answer), option),)
        except UsageError as error:
            if takes == "one" and "tokens: " in error.message and model.config.head.kind == "lm":
                error.hint = f"{error.hint}; or take all of them: the metric log_prob"
            raise
    if isinstance(answer, list | tuple):
        ids = [model.find_outcome(word, option) for word in answer]
    elif isinstance(answer, str):
        ids = _split(model, answer, option)
    else:
        ids = [model.find_outcome(answer, option)]  # type: ignore[arg-type]
    if len(ids) != 1 and not (ids and model.config.head.kind == "lm"):
        raise UsageError(f"{option} {answer!r} is {len(ids)} tokens, and this model fills one", "name a single token")
    return tuple(ids)


def _split(model: TextModel, answer: str, option: str) -> list[int]:
    """The tokens of a text that continues another: after a space, unless it has one or is one token without."""
    try:
        return [model.find_outcome(answer, option)]
    except UsageError:
        if not answer.strip() or answer.startswith("#") or model.config.head.kind != "lm":
            raise
    text = answer if answer[0].isspace() else f" {answer}"
    return [token.id for token in model.tokenizer.encode(text, special=False).tokens]


def _listed(words: str, option: str) -> list[str]:
    """The words of a set: separated by commas, or the lines of @FILE."""
    if not words.startswith("@") or words == "@":
        return [word for word in words.split(",") if word] or [words]
    path = Path(words[1:])
    try:
        with open_bytes(path) as file:
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{option}: cannot read {path}: {reason}", "name a text file with a word a line") from None
    words_of = [line.strip("\r") for line in text.split("\n") if line.strip()]
    if not words_of:
        raise UsageError(f"{option}: {path} holds no words", "write one a line")
    return words_of
