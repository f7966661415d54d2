"""Linear probes: whether a label of a text can be read off a step, beyond what its words alone give away.

Alain and Bengio 2016; the control of shuffled labels is that of Hewitt and Liang 2019. Shapes: N texts, C features.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tinytf.bulk.folder import RecordedCorpus
from tinytf.bulk.passes import targets_of
from tinytf.errors import AddressError, TinytfError, UsageError, at_line
from tinytf.estimate import Estimate, mean_of
from tinytf.look.logistic import fitted, folds_of, right_when_left_out
from tinytf.look.values import single_addresses
from tinytf.report import About, Data, Progress, Report, ignore_progress, plain
from tinytf.sentences import percent
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text.library import Limit
from tinytf.text.rows import read_table
from tinytf.text.tokenizer import Encoding
from tinytf.text.words import positions_in
from tinytf.text_model import TextModel
from tinytf.trace.address import Address, parse_address
from tinytf.trace.record import record_all
from tinytf.trace.trace import Trace

FOLDS = 5
"""The folds of cross-validation, or as many as the rarest label has texts."""
_AT_ONCE = 16  # texts whose traces are in memory
_EXAMPLE = '{"text": "The dogs bark", "label": "plural"}'


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with a label each, in the order of a file; ``name`` is what reports call it."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The columns ``text`` and ``label`` of a .jsonl, .csv, .tsv or .parquet file. Raises UsageError as ``of``."""
        name, rows = read_table(path, "texts", f"a row is {_EXAMPLE}")
        return cls.of((row for _, row in rows), name)

    @classmethod
    def of(cls, rows: Any, name: str = "texts") -> Self:
        """The texts of ``rows``, mappings with ``text`` and ``label``, a text, a number or a truth value.

        Raises UsageError, with the line, for a row without them; for a single label, and a label of a single text.
        """
        texts, labels = list[str](), list[str]()
        for number, row in enumerate(rows, 1):
            text, label = row.get("text"), row.get("label")
            if not isinstance(text, str) or not text.strip():
                raise UsageError(f"line {number:,} of {name} has no text", f"a row is {_EXAMPLE}")
            if not isinstance(label, str | int) or label == "":
                raise UsageError(f"line {number:,} of {name} has no label", f"a row is {_EXAMPLE}")
            texts.append(text)
            labels.append(str(label))
        if not texts:
            raise UsageError(f"{name} holds no texts", f"a row is {_EXAMPLE}")
        labelled = cls(name, tuple(texts), tuple(labels))
        counts = Counter(labels[index] for index in labelled.distinct)
        if len(counts) < 2:
            raise UsageError(f"every text of {name} has the label {labels[0]!r}", "a probe tells labels apart")
        rarest = min(counts, key=counts.__getitem__)
        if counts[rarest] < 2:
            raise UsageError(f"only one text of {name} has the label {rarest!r}", "each label needs two texts or more")
        return labelled

    @property
    def distinct(self) -> list[int]:
        """The indices of the texts that do not repeat an earlier one."""
        return list({text: index for index, text in reversed([*enumerate(self.texts)])}.values())[::-1]


@dataclass(frozen=True, eq=False)
class ProbedStep(Data):
    """One step: the share of texts left out that the probe gets right, and that of a probe of shuffled labels.

    ``over_words``, ``over_majority`` and ``over_shuffled`` are how much more the probe gets right than each baseline on
    the same texts. ``direction`` (C,) leads to a label: it points along the weights of a probe of all texts, and is as
    long as the means of both sides are apart along it; with several labels and none chosen, (K, C), one for each.
    """

    LESS: ClassVar = ("direction",)
    ALSO: ClassVar = ("selectivity", "readable")

    at: str
    accuracy: Estimate
    shuffled: Estimate
    over_words: Estimate
    over_majority: Estimate
    over_shuffled: Estimate
    direction: Tensor = field(repr=False)

    @property
    def selectivity(self) -> float:
        """How much more the probe gets right than one of shuffled labels."""
        return self.over_shuffled.value

    @property
    def readable(self) -> bool:
        """Whether the label is readable beyond all baselines: the 95 % interval of each difference is above 0."""
        return all(
            more.low is not None and more.low > 0 for more in (self.over_words, self.over_majority, self.over_shuffled)
        )


@dataclass(frozen=True, eq=False)
class Probe(Report):
    """Probes of a label at one step after another, with baselines on the same ``folds``.

    ``texts`` are read; ``repeats`` of earlier ones are not, since a copy would be both learned from and left out.
    ``words`` is the share that a bag of the tokens that the position can see gets right, ``majority`` that of the most
    frequent label. ``toward`` is the label that directions lead to, empty with several and none chosen. ``of_steps``
    steps were asked for; after Ctrl-C, fewer are there.
    """

    KIND = "probe"
    EVENTS: ClassVar = {"steps": "step"}

    source: str
    texts: int
    repeats: int
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    position: str
    folds: int
    seed: int
    words: Estimate
    majority: Estimate
    steps: tuple[ProbedStep, ...]
    toward: str
    of_steps: int

    @property
    def interrupted(self) -> bool:
        return len(self.steps) < self.of_steps

    def in_a_sentence(self) -> str:
        """Where the label is first readable beyond the baselines, and where best; of equals, the first."""
        readable = [step for step in self.steps if step.readable]
        best = max(readable or self.steps, key=lambda step: step.accuracy.value)
        words = f"the best baseline {percent(self._baseline((readable or [best])[0]))}"
        share = percent(best.accuracy.value)
        if not readable:
            return f"At no step is the label readable beyond the baselines: at best {share} at {best.at}, {words}."
        first = readable[0]
        if first is best:
            return f"The label is readable beyond the baselines first and best at {best.at} ({share}, {words})."
        first_share = f"first at {first.at} ({percent(first.accuracy.value)}, {words})"
        return f"The label is readable beyond the baselines {first_share}, and best at {best.at} ({share})."

    def _baseline(self, step: ProbedStep) -> float:
        """The share that the best baseline gets right beside a step."""
        return max(self.words.value, self.majority.value, step.shuffled.value)

    def fields(self) -> dict[str, Any]:
        return self.members(
            "source", "texts", "repeats", "labels", "counts", "position", "folds", "seed", "words", "majority", "steps",
            "toward", "of_steps",
        )  # fmt: skip

    def stored(self) -> list[Array]:
        """The direction of each step under its address: (C,), or (K, C) with several labels and none chosen."""
        axes = ["d_model"] if self.toward else ["label", "d_model"]
        return [Array.of(step.at, axes, step.direction) for step in self.steps]

    def metadata(self) -> dict[str, Any]:
        """The metadata of the report; with one direction a step, also what makes the file one of steering vectors."""
        if not self.toward:
            return super().metadata()
        assert self.about is not None
        vectors = [{"at": step.at, "accuracy": plain(step.accuracy)} for step in self.steps]
        steering = {"kind": "steer", "method": "probe", "made_with": self.about.model.name}
        return {**super().metadata(), **steering, **self.members("source", "position", "toward"), "vectors": vectors}


def probe(
    model: TextModel,
    labelled: str | Path | LabelledTexts,
    *,
    at: str | Sequence[str] = "L*.out",
    position: str | None = None,
    toward: str | None = None,
    seed: int = 0,
    recording: RecordedCorpus | None = None,
    on_progress: Progress = ignore_progress,
) -> Probe:
    """Train a linear probe of a label at each of the steps ``at``, and measure it on texts left out of its training.

    ``labelled`` is a table of rows with ``text`` and ``label``, or the texts themselves. ``position`` is such as
    ``-1``, a token that every text has, or ``mean``, over all tokens; by default the last token of a decoder, the mean
    in an encoder. ``toward`` is the label that directions lead to, by default the second of two. ``seed`` deals the
    texts to folds and shuffles labels. A ``recording`` of the texts, each a document, is read instead of run. Ctrl-C
    ends it with the steps that are measured.

    Raises AddressError for steps without a vector for each token, UsageError for a position that a text lacks and
    another label, and a recording of other texts, other weights or without the step, TinytfError for activations that
    are not finite.
    """
    texts = labelled if isinstance(labelled, LabelledTexts) else LabelledTexts.read(labelled)
    table = table_of(model.config)
    at = [at] if isinstance(at, str) else at
    where = position or ("-1" if model.config.causal else "mean")
    kept = texts.distinct
    labels = tuple(sorted({texts.labels[index] for index in kept}))
    if toward is not None and toward not in labels:
        raise UsageError(f"no text has the label {toward!r}", f"the labels are {', '.join(labels)}")
    chosen = toward or (labels[1] if len(labels) == 2 else "")
    classes = torch.tensor([labels.index(texts.labels[index]) for index in kept])
    encoded = [_encoded(model, text, where, number, texts.name) for number, text in enumerate(texts.texts, 1)]
    if recording is None:
        addresses = [parse_address(text, table) for text in at]
        values = activations(model, texts.name, encoded, addresses, on_progress)
    else:
        values = recorded_activations(model, texts.name, encoded, at, recording)
    seen = [encoding.ids[: rows.stop] if model.config.causal else encoding.ids for encoding, rows in encoded]
    bag = _bag([seen[index] for index in kept])
    counts, count = classes.bincount(), len(labels)
    folds = folds_of(classes.tolist(), min(FOLDS, int(counts.min())), seed)
    shuffled = classes[torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))]
    words = right_when_left_out(bag, classes, folds, count, standardised=False)
    majority = (classes == counts.argmax()).double()
    steps = list[ProbedStep]()
    try:
        for number, (name, rows) in enumerate(values.items()):
            x = rows[kept]
            right, control = (right_when_left_out(x, y, folds, count) for y in (classes, shuffled))
            over_words, over_majority, over_shuffled = (
                mean_of(right - other, seed) for other in (words, majority, control)
            )
            direction = _direction(x, classes, count, labels.index(chosen) if chosen else None)
            steps.append(
                ProbedStep(
                    name, mean_of(right, seed), mean_of(control, seed), over_words, over_majority, over_shuffled,
                    direction,
                )
            )  # fmt: skip
            on_progress(len(texts.texts) + number + 1, len(texts.texts) + len(values))
    except KeyboardInterrupt:
        if not steps:
            raise
    return Probe(
        Path(texts.name).name, len(kept), len(texts.texts) - len(kept), labels, tuple(counts.tolist()), where,
        int(folds.max()) + 1, seed, mean_of(words, seed), mean_of(majority, seed), tuple(steps), chosen, len(values),
        about=About(model),
    )  # fmt: skip


Encoded = tuple[Encoding, slice]
"""A text, and the positions whose mean is its vector."""


@torch.no_grad()
def activations(
    model: TextModel, source: str, encoded: Sequence[Encoded], addresses: Sequence[Address], on_progress: Progress
) -> dict[str, Tensor]:
    """The vectors (N, C) of texts at each step. Raises like ``probe``."""
    values = dict[str, list[Tensor]]()
    layers = sorted({layer for address in addresses for layer in address.layers or ()})
    for start in range(0, len(encoded), _AT_ONCE):
        some = encoded[start : start + _AT_ONCE]
        traces = record_all(
            model.transformer, [encoding for encoding, _ in some], model.tokenizer.mask_id, layers=layers or None
        )
        for number, (trace, (_, rows)) in enumerate(zip(traces, some, strict=True), start + 1):
            for address in addresses:
                for single in single_addresses(trace, address):
                    values.setdefault(str(single), []).append(_vector(trace, single, rows, number, source))
        on_progress(start + len(some), len(encoded) + len(values))
    return {name: torch.stack(vectors) for name, vectors in values.items()}


def recorded_activations(
    model: TextModel, source: str, encoded: Sequence[Encoded], at: Sequence[str], corpus: RecordedCorpus
) -> dict[str, Tensor]:
    """The ``activations`` of texts, read from a recording in which each is a document, in the same order."""
    corpus.require_model(model.transformer, model.name)
    steps = {target.at: corpus.at(target.at) for target in targets_of(at, model.config)}
    for name, step in steps.items():
        _require_vectors(name, ("token", *step.axes))
    ids, counts = corpus.tokens[:].tolist(), Counter(corpus.documents[:].tolist())
    spans, start = list[slice](), 0
    for number, (encoding, rows) in enumerate(encoded, 1):
        line, count = f"line {number:,} of {source}", counts[number - 1]
        held = [i for i, token in enumerate(encoding.tokens) if not token.is_added]
        held = held if corpus.every_token else held[-1:]
        if len(encoding.ids) > corpus.index["window"]:
            cut = f"{corpus.folder} is recorded in windows of {corpus.index['window']:,}"
            raise UsageError(f"{line} has {len(encoding.ids):,} tokens, and {cut}", "record it with a longer --window")
        if ids[start : start + count] != [encoding.ids[i] for i in held]:
            hint = f"tinytf record {source} --field text --out DIR records its texts"
            raise UsageError(f"{line} is not document {number:,} of {corpus.folder}", hint)
        if missing := {*range(rows.start, rows.stop)} - {*held}:
            token = encoding.tokens[min(missing)].shown
            hint = "choose another --position: added tokens have no row, and with record --last only the last has one"
            raise UsageError(f"{corpus.folder} has no row for {token} of {line}", hint)
        first = start + held.index(rows.start)
        spans.append(slice(first, first + rows.stop - rows.start))
        start += count
    if start != len(corpus):
        raise UsageError(f"{corpus.folder} has more documents than {source} has lines", "record that file alone")
    return {name: torch.stack([step[span].double().mean(0) for span in spans]) for name, step in steps.items()}


def _bag(seen: Sequence[Sequence[int]]) -> Tensor:
    """How often each text has each token, (N, tokens that any has)."""
    columns = {token: column for column, token in enumerate(sorted(set().union(*seen)))}
    rows = [torch.tensor([columns[token] for token in ids]).bincount(minlength=len(columns)) for ids in seen]
    return torch.stack(rows).double()


def _encoded(model: TextModel, text: str, position: str, number: int, source: str) -> Encoded:
    """A text with the positions that ``position`` names in it. Raises UsageError, with the line."""
    with at_line(number, source):
        encoding = model.encode(text, limit=Limit(model.config.context, model.name, "shorten it, or leave it out"))
        if position == "mean":
            return encoding, slice(0, len(encoding.tokens))
        matches = positions_in(position, [token.shown for token in encoding.tokens], "--position")
        if len(matches) > 1:
            raise UsageError(f"--position {position!r} is {len(matches)} positions", "name one, or mean")
        return encoding, slice(matches[0], matches[0] + 1)


def _vector(trace: Trace, single: Address, rows: slice, number: int, name: str) -> Tensor:
    _require_vectors(str(single), single.axes, bool(single.cell))
    vector = trace[single][rows].double().mean(dim=0).cpu()
    if not vector.isfinite().all():
        raise TinytfError(
            f"line {number:,} of {name}: {single} is not finite", "tinytf trace names the first such step"
        )
    return vector


def _require_vectors(name: str, axes: Sequence[str], is_cell: bool = False) -> None:
    if is_cell or len(axes) != 2 or axes[0] != "token":
        hint = "such as L2.out or L2H1.head_out"
        raise AddressError(f"{name} is {' × '.join(axes)}, and a probe reads a vector for each token", hint)


def _direction(x: Tensor, classes: Tensor, count: int, toward: int | None) -> Tensor:
    """The direction to a class (C,), or to each (K, C), from a probe of all rows (N, C)."""
    weights = fitted(x, classes, count).weights
    directions = []
    for label in range(count) if toward is None else [toward]:
        others = [other for other in range(count) if other != label]
        unit = torch.nn.functional.normalize(weights[label] - weights[others].mean(dim=0), dim=0)
        apart = (x[classes == label].mean(dim=0) - x[classes != label].mean(dim=0)) @ unit
        directions.append(unit * apart)
    return torch.stack(directions).float() if toward is None else directions[0].float()
