"""A pair of prompts, clean and corrupt, with the answer of each; and a set of them, read from a table."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from tinytf.errors import UnevenError, UsageError, at_line
from tinytf.estimate import Estimate, mean_of
from tinytf.metric import Answer, Asked, MetricFunction, answer_ids, continued
from tinytf.report import Data, Report
from tinytf.sentences import first_of, percent
from tinytf.short_repr import brief
from tinytf.tables import Sheet, of_records
from tinytf.text.rows import read_table
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.faults import require_finite

REQUIRED = ("clean", "corrupt", "answer", "versus")
"""The columns of a table of pairs; any others are kept, to choose rows by."""
_EXAMPLE = '{"clean": "The dogs", "corrupt": "The dog", "answer": "are", "versus": "is"}'
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Pair(Data):
    """Two prompts: ``answer`` continues the clean one, ``versus`` the corrupt one, each a single token.

    ``number`` is the line of the file that it comes from, from 1; ``labels`` are the further columns of its row.
    """

    clean: str
    corrupt: str
    answer: str
    versus: str
    number: int = 0
    labels: Mapping[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The row of a table that it is read from."""
        return {**{column: getattr(self, column) for column in REQUIRED}, **self.labels}


@dataclass(frozen=True)
class EncodedPair:
    """A pair as the tokens of a model, and what is ``asked`` of its runs.

    Both texts are continued with the tokens of a longer answer, but for its last. ``answer`` and ``versus`` are ids.
    """

    pair: Pair
    clean: Encoding
    corrupt: Encoding
    asked: Asked

    @property
    def answer(self) -> int:
        return (self.asked.answer or (0,))[0]

    @property
    def versus(self) -> int:
        return (self.asked.versus or (0,))[0]


@dataclass(frozen=True)
class Misfits(Data):
    """How many words or pairs (``noun``) a generator left out, ``why``, and the first of them."""

    count: int
    noun: str
    why: str
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = f": {first_of(self.examples, 4)}" if self.examples else ""
        return f"{self.count:,} {self.noun}{'s' * (self.count != 1)} {self.why}{named}"


@dataclass(frozen=True)
class PairScores(Data):
    """logit(answer) − logit(versus) of each pair, after its ``clean`` and its ``corrupt`` text.

    A pair is right if that is above 0 after the clean text, and reversed if it is below 0 after the corrupt one.
    """

    LESS: ClassVar = ("clean", "corrupt")
    ALSO: ClassVar = ("right", "reversed", "difference")

    clean: tuple[float, ...]
    corrupt: tuple[float, ...]

    @property
    def right(self) -> float:
        """The share of pairs whose answer leads after the clean text."""
        return sum(difference > 0 for difference in self.clean) / len(self.clean)

    @property
    def reversed(self) -> float:
        """The share of pairs whose ``versus`` leads after the corrupt text."""
        return sum(difference < 0 for difference in self.corrupt) / len(self.corrupt)

    @property
    def difference(self) -> Estimate:
        """The mean difference after the clean texts, in nats."""
        return mean_of(self.clean)


@dataclass(frozen=True)
class PairSet(Report):
    """Pairs of one task, and the name that reports give them.

    Of generated ones, ``about`` is the model whose tokenizer they fit, ``asked`` how many were asked for (0 if these
    were chosen from them), ``left_out`` what does not fit, and ``reverses`` whether ``versus`` is right after the
    corrupt text. ``scores`` are the model's answers, None if it was not asked; ``stopped`` says that an interrupt left
    out the other pairs.
    """

    KIND = "pairs"
    EVENTS: ClassVar = {"pairs": "pair"}

    name: str
    pairs: tuple[Pair, ...]
    seed: int | None = None
    asked: int = 0
    left_out: tuple[Misfits, ...] = ()
    reverses: bool = True
    scores: PairScores | None = None
    stopped: bool = False

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The pairs of a .jsonl, .csv, .tsv or .parquet file.

        Raises UsageError, with the line, for a row that lacks a column or holds no text there.
        """
        name, rows = read_table(path, "pairs", "tinytf pairs TASK -o FILE makes one")
        return cls._of_numbered(rows, name)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], name: str = "pairs") -> Self:
        """The pairs of ``rows``, mappings with the columns REQUIRED. Raises UsageError like ``read``."""
        return cls._of_numbered(enumerate(rows, 1), name)

    @classmethod
    def _of_numbered(cls, rows: Iterable[tuple[int, Mapping[str, Any]]], name: str) -> Self:
        pairs = tuple(_pair(row, number, name) for number, row in rows)
        if not pairs:
            raise UsageError(f"{name} holds no pairs", f"a row is {_EXAMPLE}")
        return cls(name, pairs)

    def where(self, conditions: Sequence[str]) -> Self:
        """The pairs whose labels have the values of all ``conditions``, each ``column=value``.

        Raises UsageError for a column that no pair has, and if none is left.
        """
        indices = list(range(len(self.pairs)))
        columns = sorted({name for pair in self.pairs for name in pair.labels})
        for condition in conditions:
            column, separator, value = condition.partition("=")
            if not separator or column not in columns:
                known = f"its columns are {', '.join(columns)}" if columns else "its rows have no further columns"
                raise UsageError(f"{condition!r} is not a column of {self.name} with a value", known)
            labels = {index: self.pairs[index].labels.get(column) for index in indices}
            words = {index: _as_word(label) for index, label in labels.items() if label is not None}
            indices = [index for index, word in words.items() if word == value]
            if not indices:
                known = f"{column} is {first_of(sorted(set(words.values())), 8) or 'in none of them'}"
                raise UsageError(f"no pair of {self.name} has {' and '.join(conditions)}", known)
        scores = self.scores and PairScores(
            *(tuple(side[index] for index in indices) for side in (self.scores.clean, self.scores.corrupt))
        )
        return replace(self, pairs=tuple(self.pairs[index] for index in indices), scores=scores, asked=0)

    def encoded(
        self,
        model: TextModel,
        *,
        even: bool = True,
        metric: str | MetricFunction | None = None,
        answer: Answer = None,
    ) -> tuple[EncodedPair, ...]:
        """The pairs as tokens of the model; with ``even``, without those that cannot be compared token by token.

        Those are the pairs whose texts differ in their number of tokens, and those whose texts are the same.
        ``metric`` is what is asked of them, by default ``logit_diff``, and ``answer`` stands for the answers of all
        pairs, such as a set of words.

        An answer is a word as it would continue its text: with a space before it where the vocabulary has such a
        token, and without one where a digit follows a digit. ``#ID`` names any other token.

        Raises UsageError, with the line, for an answer that is not one token, and if no pair is even.
        """
        wanted, encoded, errors = Asked.of(model, metric, answer), [], []
        for pair in self.pairs:
            try:
                encoded.append(self._encoded(model, pair, even, wanted))
            except UnevenError as error:
                errors.append(error)
        if not encoded:
            raise errors[0]
        return tuple(encoded)

    def left_out_of(self, encoded: Sequence[EncodedPair]) -> tuple[int, ...]:
        """The lines of the pairs that are not among ``encoded``, as their texts are uneven or the same."""
        kept = {id(each.pair) for each in encoded}
        return tuple(pair.number for pair in self.pairs if id(pair) not in kept)

    def _encoded(self, model: TextModel, pair: Pair, even: bool, wanted: Asked) -> EncodedPair:
        with at_line(pair.number, self.name):
            try:
                clean, corrupt = model.encode(pair.clean), model.encode(pair.corrupt)
            except UsageError as error:  # a text cut short may lose what decides the answer, so none is
                raise UsageError(error.message, error.hint.removesuffix(", or add --truncate")) from None
            asked = _asked_of(model, pair, wanted)
            if asked.answer is not None and asked.answer == asked.versus:
                raise UsageError("answer and versus are one token")
            if even and len(clean.tokens) != len(corrupt.tokens):
                raise UnevenError(
                    f"the texts have {len(clean.tokens):,} and {len(corrupt.tokens):,} tokens, clean and corrupt",
                    "change words so that both have the same number of tokens",
                )
            if even and clean.ids == corrupt.ids:
                raise UnevenError("both texts have the same tokens", "change a word of one")
            if asked.continues:
                clean, corrupt = (continued(model, text, asked.continues) for text in (clean, corrupt))
        return EncodedPair(pair, clean, corrupt, asked)

    def in_a_sentence(self) -> str:
        """How often the model is right; of a set that was not scored, how many pairs fit its tokenizer."""
        assert self.about is not None
        name, count = self.about.model.name, len(self.pairs)
        counted = f"{count:,} pair{'s' * (count != 1)} of {self.name}"
        if self.scores is None:
            first = self.pairs[0]
            return f"{counted} for {name}; the first asks for {first.answer}, not {first.versus}."
        right = f"{name} is right in {percent(self.scores.right)} of {counted}"
        if not self.reverses:
            return f"{right}."
        return f"{right}, and answers the other way round after {percent(self.scores.reversed)} of the corrupt texts."

    def fields(self) -> dict[str, Any]:
        scores = self.scores
        each = (
            [{}] * len(self.pairs)
            if scores is None
            else [
                {"scores": {"clean": clean, "corrupt": corrupt}}
                for clean, corrupt in zip(scores.clean, scores.corrupt, strict=True)
            ]
        )
        return {
            **self.members("name", "seed", "asked", "interrupted", "left_out", "reverses"),
            "scores": scores and scores.to_dict(),
            "pairs": [{**pair.to_dict(), **more} for pair, more in zip(self.pairs, each, strict=True)],
        }

    def sheet(self, *, long: bool = False) -> Sheet | None:
        """A row for each pair, with the columns of a table that ``read`` takes."""
        return of_records([pair.row() for pair in self.pairs])

    def as_table(self, extension: str) -> str | None:
        """The text of a .jsonl, .csv or .tsv file that ``read`` takes; None for another extension."""
        if extension == ".jsonl":
            return "".join(json.dumps(pair.row(), ensure_ascii=False) + "\n" for pair in self.pairs)
        if extension not in _DELIMITERS:
            return None
        table, sheet = io.StringIO(), self.sheet()
        assert sheet is not None, "there are pairs"
        csv.writer(table, delimiter=_DELIMITERS[extension], lineterminator="\n").writerows([sheet.columns, *sheet.rows])
        return table.getvalue()


Pairs: TypeAlias = PairSet | str | Path | Sequence[Mapping[str, Any]]
"""Pairs as a set, as a file, or as rows with the columns clean, corrupt, answer and versus."""


def pair_set(pairs: Pairs, where: Sequence[str] = ()) -> PairSet:
    """The pairs, only those with all labels of ``where`` (each ``column=value``). Raises UsageError like PairSet."""
    if not isinstance(pairs, PairSet):
        pairs = PairSet.read(pairs) if isinstance(pairs, str | Path) else PairSet.of(pairs)
    return pairs.where(where) if where else pairs


def one_pair(model: TextModel, clean: str, corrupt: str, *, answer: str | None = None) -> PairSet:
    """Two texts as a pair: each is answered by the token that the model predicts for it, CLEAN by ``answer`` if given.

    Raises UsageError if both have one answer, or other numbers of tokens, and like ``PairSet.of``; TinytfError, naming
    the first step, for numbers that are not finite.
    """
    texts = (clean, corrupt)
    counts = [len(model.encode(text).ids) for text in texts]
    if counts[0] != counts[1]:
        raise UsageError(
            f"the texts have {counts[0]:,} and {counts[1]:,} tokens", "change words so that both have as many"
        )
    best = []
    for text in texts:
        trace = model.trace(text)
        logits = trace["logits"][-1]
        require_finite(trace, logits)
        best.append(int(logits.argmax()))
    answers = [model.tokenizer.decode([token_id]) for token_id in best]
    answers[0] = answers[0] if answer is None else answer
    if answers[0].strip() == answers[1].strip():
        raise UsageError(
            f"both texts are answered by {answers[0].strip()!r}, so there is no difference to follow",
            "take texts with other answers, or name the one after CLEAN: --answer A",
        )
    return PairSet.of([dict(zip(REQUIRED, (*texts, *answers), strict=True))], "the two texts")


def _asked_of(model: TextModel, pair: Pair, wanted: Asked) -> Asked:
    """What is asked of one pair: with its own answer, and its own versus, where the metric takes them."""
    takes = wanted.takes
    if not takes or wanted.answer is not None:
        return wanted
    if takes == "one":
        answer = (find_answer(model, pair.clean, pair.answer),)
        versus = (find_answer(model, pair.clean, pair.versus, "versus"),) if wanted.metric == "logit_diff" else None
        return Asked(wanted.metric, answer, versus)
    try:
        return Asked(wanted.metric, (find_answer(model, pair.clean, pair.answer),))
    except UsageError:
        return Asked(wanted.metric, answer_ids(model, takes, pair.answer, "answer"))


def find_answer(model: TextModel, text: str, answer: str, option: str = "answer") -> int:
    """The id of the token ``answer`` as it continues ``text``: see ``PairSet.encoded``.

    Raises UsageError like ``TextModel.find_outcome``.
    """
    if not (text[-1:].isdigit() and answer[:1].isdigit()):
        return model.find_outcome(answer, option)
    *before, last = plain_ids(model, text + answer)
    if before != plain_ids(model, text):
        pieces = " │ ".join(model.tokenizer.shown(token_id) for token_id in (*before[-2:], last))
        raise UsageError(f"{option} {answer!r} is not one token after {text[-12:]!r}: it ends in {pieces}")
    return last


def plain_ids(model: TextModel, text: str) -> list[int]:
    """The ids of a text without what the tokenizer puts around it."""
    return list(model.tokenizer.encode(text, special=False).ids)


def _as_word(value: Any) -> str:
    """A label as a condition writes it: JSON's true is ``true``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pair(row: Mapping[str, Any], number: int, name: str) -> Pair:
    where, hint = f"line {number:,} of {name}", f"a row is {_EXAMPLE}"
    if None in row:  # of the csv reader
        raise UsageError(f"{where} has more cells than the table has columns", "put a text with a comma into quotes")
    for column in REQUIRED:
        value = row.get(column)
        if value is None or (isinstance(value, float) and math.isnan(value)):  # as pandas has it
            raise UsageError(f"{where} has no {column}", hint)
        if not isinstance(value, str):
            raise UsageError(f"{where}: {column} is {brief(value):.40}, and must be a text", hint)
        if not value.strip():
            raise UsageError(f"{where}: {column} is empty", hint)
    labels = {str(column): value for column, value in row.items() if column not in REQUIRED}
    for column, value in labels.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{where}: {column} is {value}", "leave it out, or name what it means")
    return Pair(**{column: row[column] for column in REQUIRED}, number=number, labels=labels)
