"""Two programs' log-probabilities of the same tokens: how far apart they are, and whether rounding explains it.

A trainer and a rollout engine, or two engines, compute the same model in other ways; what differs weighs every sample
by an importance ratio e^(first − second).
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinytf.compare.floor import DTYPES, LIMIT, require_floor
from tinytf.compare.logprob_causes import Explanation, explain_logprobs
from tinytf.compare.logprob_trials import Numbers, Pair
from tinytf.compare.rounding import MEAN, PROBABILITY, SIGNS, SIZE, RoundingTest, is_rounding, rounding_tests
from tinytf.errors import DumpError, UsageError
from tinytf.files import open_bytes, parse_json
from tinytf.report import Data, Report
from tinytf.sentences import sign_of
from tinytf.text.printable import printable
from tinytf.text_model import TextModel

_IDS = ("ids", "token_ids", "input_ids", "tokens")
_QUANTILES = (0.5, 0.9, 0.99, 1.0)
_ENOUGH = 20
"""The fewest tokens on which an experiment tells more than the tests: fewer are explained by chance."""
_ALIKE = 1e-4
"""Nats: log-probabilities that are no further apart are the same."""
_MOST_TEXTS = 32
"""The most texts on which the model's own error is measured."""


@dataclass(frozen=True)
class Logged:
    """One line of a log: the log-probabilities of the last tokens of ``ids``; these may be missing.

    ``absent`` are those that the log leaves out, as null.
    """

    logprobs: Numbers
    ids: tuple[int, ...] | None
    absent: frozenset[int] = frozenset()

    def position(self, place: int, ids: Sequence[int] | None) -> int:
        """The position in the text of the log-probability at ``place``."""
        return place if ids is None else len(ids) - len(self.logprobs) + place


@dataclass(frozen=True)
class Furthest(Data):
    """The token at which the two are furthest apart, or first too far: the text and position, and both numbers."""

    text: int
    position: int
    id: int | None
    first: float
    second: float


@dataclass(frozen=True)
class LostLogprob(Data):
    """The first token whose log-probability is NaN or ∞ in a ``log``, and how ``many`` there are in both logs."""

    log: str
    text: int
    position: int
    id: int | None
    value: float
    many: int

    def in_words(self) -> str:
        token = "" if self.id is None else f" (id {self.id:,})"
        where = f"text {self.text + 1}, position {self.position:,}{token}: {sign_of(self.value)}"
        more = f", the first of {_tokens(self.many)}" if self.many > 1 else ""
        return f"{printable(self.log, spaces=False)} is not finite at {where}{more}"


@dataclass(frozen=True)
class LogprobDifference(Report):
    """The differences Δ = first − second of the log-probabilities, in nats.

    ``rms`` and ``mean`` are over all tokens, ``quantiles`` of |Δ| at 50, 90, 99 and 100 %. ``kl`` estimates the mean
    KL(second ‖ first) a token as e^Δ − 1 − Δ. ``ratios`` are the quantiles of the importance ratio e^Δ at 0, 1, 99 and
    100 %. ``tests`` say whether Δ is like rounding; ``own`` is the model's own root mean square in the numbers
    ``floor``, and ``beyond`` the first token further apart than any explains. Where a test fails, ``explanations``
    give all these numbers, the best first, and ``tried`` lists what was tried.
    """

    KIND = "diff_logprobs"
    ALWAYS_SAID = True

    texts: int
    tokens: int
    rms: float
    mean: float
    kl: float
    quantiles: tuple[float, ...]
    ratios: tuple[float, ...]
    worst: Furthest
    tests: tuple[RoundingTest, ...]
    floor: str | None = None
    own: float | None = None
    beyond: Furthest | None = None
    explanations: tuple[Explanation, ...] = ()
    tried: tuple[str, ...] = ()
    not_finite: LostLogprob | None = None

    @property
    def holds(self) -> bool:
        """Whether rounding explains the difference, where that was asked."""
        is_rounded = is_rounding(self.tests) and not self.explanations and self.not_finite is None
        return self.own is None or is_rounded

    def in_a_sentence(self) -> str:
        """Whether the difference is rounding, and if not, what it is."""
        lost = "" if self.not_finite is None else self.not_finite.in_words()
        apart = f"the log-probabilities are {self.rms:.2g} nats apart (root mean square of {_tokens(self.tokens)})"
        times = "" if self.own is None else f", {self._times:.2g} × the model's own error in {self.floor}"
        if self.own is not None and self.holds:
            return f"Rounding: {apart}{times}, to both sides and whatever the probability."
        why = ", or ".join(f"those of {one.side} {one.words}" for one in self.explanations)
        why = why or " and ".join(_FAILURES[test.name](self) for test in self.tests if not test.holds)
        if lost:
            rest = f": {why}; " if why else ", "
            return f"{lost}; of the others{rest}{apart}{times}."
        if not why:
            return f"{apart[0].upper()}{apart[1:]}; of a token at most {self.quantiles[-1]:.2g}."
        found = f"{why}; {apart}{times}."
        return f"{found[0].upper()}{found[1:]}" if self.own is None else f"No rounding: {found}"

    @property
    def _times(self) -> float:
        """The root mean square in units of the model's own; infinite where the model makes no error."""
        return self.rms / self.own if self.own else math.inf * bool(self.rms)

    def fields(self) -> dict[str, Any]:
        return {
            **self.members("texts", "tokens", "rms", "mean", "kl"),
            "quantiles": dict(zip(map(str, _QUANTILES), self.quantiles, strict=True)),
            **self.members("ratios", "worst", "tests", "floor", "own", "beyond", "explanations", "tried"),
            **self.members("not_finite"),
        }


_FAILURES: dict[str, Callable[[LogprobDifference], str]] = {
    MEAN: lambda found: f"the first are {'higher' if found.mean > 0 else 'lower'} by {abs(found.mean):.2g} on average",
    SIGNS: lambda found: "nearly all tokens differ in one direction",
    PROBABILITY: lambda found: "how far a token is off depends on its probability",
    SIZE: lambda found: "the difference is too large",
}
"""What a test that fails says of the difference."""


def _tokens(count: int) -> str:
    return f"{count:,} token{'s' * (count != 1)}"


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_bytes(path) as file:
            yield from file
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}", "name a file of JSON lines with logprobs") from None


def read_logprobs(path: Path) -> list[Logged]:
    """The log of a file: JSON lines with ``logprobs``, and ``ids`` (or token_ids, input_ids, tokens) of the whole text.

    Raises DumpError, with the line, for anything else.
    """
    logged = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            values = record["logprobs"]
            found = np.array([math.nan if value is None else float(value) for value in values])
            named = next((record[name] for name in _IDS if name in record), None)
            ids = None if named is None else tuple(map(int, named))
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise DumpError(
                f"{path}, line {number}: no logprobs ({type(error).__name__})",
                'a line is {"ids": [1, 2, 3], "logprobs": [-0.1, -2.3]}: of the last tokens of the ids',
            ) from None
        if ids is not None and len(found) > len(ids):
            raise DumpError(f"{path}, line {number}: {len(found)} logprobs of {len(ids)} ids")
        logged.append(Logged(found, ids, frozenset(at for at, value in enumerate(values) if value is None)))
    if not logged:
        raise DumpError(f"{path} is empty", "write a line for each text")
    return logged


def diff_logprobs(
    first: Path, second: Path, model: TextModel | None = None, floor: str | None = None
) -> LogprobDifference:
    """Compare two logs, text by text. With a ``floor``, such as bf16, the ``model``'s own error in it is the measure.

    Raises DumpError for logs of different texts, UsageError for a floor without a model or ids.
    """
    logs = [read_logprobs(path) for path in (first, second)]
    if len(logs[0]) != len(logs[1]):
        raise DumpError(f"{first} has {len(logs[0]):,} texts, and {second} {len(logs[1]):,}")
    pairs = list(zip(*logs, strict=True))
    for number, (a, b) in enumerate(pairs, 1):
        if len(a.logprobs) != len(b.logprobs) or (a.ids and b.ids and a.ids != b.ids):
            raise DumpError(
                f"text {number} is another in {second} than in {first}", "write both logs of the same tokens"
            )
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    parts = [a.logprobs - b.logprobs for a, b in pairs]
    deltas = np.concatenate(parts)
    known = np.isfinite(deltas)
    deltas, lost = deltas[known], _lost(pairs, names)
    if not len(deltas):
        raise DumpError(
            f"{first} and {second} have no token with two log-probabilities" + (f": {lost.in_words()}" if lost else "")
        )
    own = None if floor is None else _own(model, [a.ids or b.ids for a, b in pairs], pairs, floor)
    limit = None if own is None else LIMIT * own[1]
    size = np.abs(deltas)
    means = np.concatenate([(a.logprobs + b.logprobs) / 2 for a, b in pairs])[known]
    tests = rounding_tests(deltas, means, None if own is None else own[0])
    explanations: tuple[Explanation, ...] = ()
    tried: tuple[str, ...] = ()
    if not is_rounding(tests) or (len(deltas) >= _ENOUGH and size.max() > _ALIKE):  # a bias may hide in rounding
        as_pairs = [Pair(a.logprobs, b.logprobs, a.ids or b.ids) for a, b in pairs]
        explanations, tried = explain_logprobs(as_pairs, names, model, None if own is None else own[0])
    return LogprobDifference(
        texts=len(pairs),
        tokens=len(deltas),
        rms=float(np.sqrt((deltas**2).mean())),
        mean=float(deltas.mean()),
        kl=float((np.exp(deltas) - 1 - deltas).mean()),
        quantiles=tuple(float(np.quantile(size, q)) for q in _QUANTILES),
        ratios=tuple(float(np.exp(np.quantile(deltas, q))) for q in (0.0, 0.01, 0.99, 1.0)),
        worst=_furthest(pairs, parts, None),
        tests=tests,
        floor=floor,
        own=None if own is None else own[0],
        not_finite=lost,
        beyond=None if limit is None or float(size.max()) <= limit else _furthest(pairs, parts, limit),
        explanations=explanations,
        tried=tried,
    )


def _lost(pairs: Sequence[tuple[Logged, Logged]], names: tuple[str, str]) -> LostLogprob | None:
    """The first token that a log has and that is not finite."""
    lost = [
        (text, int(place), log)
        for text, pair in enumerate(pairs)
        for place in range(len(pair[0].logprobs))
        for log in (0, 1)
        if place not in pair[log].absent and not np.isfinite(pair[log].logprobs[place])
    ]
    if not lost:
        return None
    text, place, log = lost[0]
    ids, side = pairs[text][0].ids or pairs[text][1].ids, pairs[text][log]
    token = None if ids is None else ids[side.position(place, ids)]
    value = float(side.logprobs[place])
    return LostLogprob(names[log], text, side.position(place, ids), token, value, len(lost))


def _furthest(pairs: Sequence[tuple[Logged, Logged]], parts: Sequence[Numbers], limit: float | None) -> Furthest:
    """The token with the largest difference; with a limit, the first beyond it."""
    places = [(text, int(place)) for text, part in enumerate(parts) for place in np.flatnonzero(np.isfinite(part))]
    if limit is not None:
        text, place = next(at for at in places if abs(parts[at[0]][at[1]]) > limit)
    else:
        text, place = max(places, key=lambda at: abs(parts[at[0]][at[1]]))
    a, b = pairs[text]
    ids = a.ids or b.ids
    position = a.position(place, ids)
    return Furthest(
        text, position, None if ids is None else ids[position], float(a.logprobs[place]), float(b.logprobs[place])
    )


@torch.no_grad()
def _own(
    model: TextModel | None,
    texts: Sequence[tuple[int, ...] | None],
    pairs: Sequence[tuple[Logged, Logged]],
    word: str,
) -> tuple[float, float]:
    """The model's own error of the logged tokens: the root mean square, and the largest."""
    require_floor(word)
    if model is None or any(ids is None for ids in texts) or word not in DTYPES:
        raise UsageError(
            "the model's own error is measured on the ids, in bf16 or fp16",
            'name the model with -m, and write "ids" into the logs',
        )
    exact = copy.deepcopy(model.transformer).float()
    rounded = copy.deepcopy(exact).to(DTYPES[word])
    gaps = []
    for ids, (logged, _) in list(zip(texts, pairs, strict=True))[:_MOST_TEXTS]:
        assert ids is not None
        given = torch.tensor([model.encode_ids(ids).ids])
        both = [one(given)[0, :-1].double().log_softmax(-1) for one in (exact, rounded)]
        targets = given[0, 1:, None]
        gap = (both[0].gather(1, targets) - both[1].gather(1, targets))[:, 0].numpy()
        gaps.append(gap[-len(logged.logprobs) :])
    own = np.concatenate(gaps)
    return float(np.sqrt((own**2).mean())), float(np.abs(own).max())
