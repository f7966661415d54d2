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
from tinytf.text.rows import read_table
from tinytf.text.tokenizer import Encoding
from tinytf.text.words import positions_in
from tinytf.text_model import TextModel
from tinytf.trace.address import Address, parse_address
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
        counts = Counter(labels)
        if len(counts) < 2:
            raise UsageError(f"every text of {name} has the label {labels[0]!r}", "a probe tells labels apart")
        rarest = min(counts, key=counts.__getitem__)
        if counts[rarest] < 2:
            raise UsageError(f"only one text of {name} has the label {rarest!r}", "each label needs two texts or more")
        return cls(name, tuple(texts), tuple(labels))


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

    ``words`` is the share that a bag of the tokens that the position can see gets right, ``majority`` that of the most
    frequent label. ``toward`` is the label that directions lead to, empty with several and none chosen. ``of_steps``
    steps were asked for; after Ctrl-C, fewer are there.
    """

    KIND = "probe"
    EVENTS: ClassVar = {"steps": "step"}

    source: str
    texts: int
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

    @property
    def best(self) -> ProbedStep:
        """The step with the highest accuracy; of several, the first."""
        return max(self.steps, key=lambda step: step.accuracy.value)

    def in_a_sentence(self) -> str:
        """Where the label is first readable beyond the baselines, and where best."""
        readable, best = [step for step in self.steps if step.readable], self.best
        words = f"the best baseline {percent(max(self.words.value, self.majority.value))}"
        if not readable:
            share = percent(best.accuracy.value)
            return f"At no step is the label readable beyond the baselines: at best {share} at {best.at}, {words}."
        first = readable[0]
        told = (
            f"The label is readable beyond the baselines first at {first.at} ({percent(first.accuracy.value)}, {words})"
        )
        return f"{told}, and best at {best.at} ({percent(best.accuracy.value)})."

    def fields(self) -> dict[str, Any]:
        return self.members(
            "source", "texts", "labels", "counts", "position", "folds", "seed", "words", "majority", "steps", "toward",
            "of_steps",
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
        steering = {"kind": "steering_vector", "method": "probe", "made_with": self.about.model.name}
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
    labels = tuple(sorted(set(texts.labels)))
    if toward is not None and toward not in labels:
        raise UsageError(f"no text has the label {toward!r}", f"the labels are {', '.join(labels)}")
    chosen = toward or (labels[1] if len(labels) == 2 else "")
    classes = torch.tensor([labels.index(label) for label in texts.labels])
    if recording is None:
        addresses = [parse_address(text, table) for text in at]
        values, bag = activations(model, texts, addresses, where, on_progress)
    else:
        values, bag = recorded_activations(model, texts, at, where, recording)
    counts, count = classes.bincount(), len(labels)
    folds = folds_of(classes.tolist(), min(FOLDS, int(counts.min())), seed)
    shuffled = classes[torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))]
    words = right_when_left_out(bag, classes, folds, count, standardised=False)
    majority = _majority(classes, folds, count)
    steps = list[ProbedStep]()
    try:
        for number, (name, x) in enumerate(values.items()):
            right, control = (right_when_left_out(x, y, folds, count) for y in (classes, shuffled))
            over_words, over_majority, over_shuffled = (
                mean_of(right - other, seed) for other in (words, majority, control)
            )
            direction = _direction(x, classes, count, labels.index(chosen) if chosen else None)
            steps.append(
                ProbedStep(
                    name,
                    mean_of(right, seed),
                    mean_of(control, seed),
                    over_words,
                    over_majority,
                    over_shuffled,
                    direction,
                )
            )
            on_progress(len(texts.texts) + number + 1, len(texts.texts) + len(values))
    except KeyboardInterrupt:
        if not steps:
            raise
    return Probe(
        Path(texts.name).name, len(classes), labels, tuple(counts.tolist()), where, int(folds.max()) + 1, seed,
        mean_of(words, seed), mean_of(majority, seed), tuple(steps), chosen, len(values), about=About(model),
    )  # fmt: skip


@torch.no_grad()
def activations(
    model: TextModel, texts: LabelledTexts, addresses: Sequence[Address], position: str, on_progress: Progress
) -> tuple[dict[str, Tensor], Tensor]:
    """The vectors (N, C) of each step at a position of every text, and how often each token stands there or before it.

    Raises like ``probe``.
    """
    values, seen = dict[str, list[Tensor]](), list[Counter[int]]()
    layers = sorted({layer for address in addresses for layer in address.layers or ()})
    for start in range(0, len(texts.texts), _AT_ONCE):
        traces = model.traces(texts.texts[start : start + _AT_ONCE], layers=layers or None)
        for number, trace in enumerate(traces, start + 1):
            rows = _rows(trace.encoding, position, number, texts.name)
            for address in addresses:
                for single in single_addresses(trace, address):
                    values.setdefault(str(single), []).append(_vector(trace, single, rows, number, texts.name))
            last = rows.stop if trace.config.causal else len(trace.tokens)
            seen.append(Counter(trace.encoding.ids[:last]))
        on_progress(start + len(traces), len(texts.texts) + len(values))
    return {name: torch.stack(vectors) for name, vectors in values.items()}, _bag(seen)


def recorded_activations(
    model: TextModel, texts: LabelledTexts, at: Sequence[str], position: str, corpus: RecordedCorpus
) -> tuple[dict[str, Tensor], Tensor]:
    """The ``activations`` of texts, read from a recording in which each is a document, in the same order."""
    corpus.require_model(model.transformer, model.name)
    steps = {target.at: corpus.at(target.at) for target in targets_of(at, model.config)}
    for name, step in steps.items():
        _require_vectors(name, ("token", *step.axes))
    ids, counts = corpus.tokens[:].tolist(), Counter(corpus.documents[:].tolist())
    seen, spans, start = list[Counter[int]](), list[slice](), 0
    for number, text in enumerate(texts.texts, 1):
        encoding, line = model.encode(text), f"line {number:,} of {texts.name}"
        rows = _rows(encoding, position, number, texts.name)
        held = [i for i, token in enumerate(encoding.tokens) if not (token.special and token.start == token.end)]
        held = held if corpus.every_token else held[-1:]
        if len(encoding.ids) > corpus.index["window"]:
            cut = f"{corpus.folder} is recorded in windows of {corpus.index['window']:,}"
            raise UsageError(f"{line} has {len(encoding.ids):,} tokens, and {cut}", "record it with a longer --window")
        if ids[start : start + counts[number - 1]] != [encoding.ids[i] for i in held]:
            hint = f"tinytf record {texts.name} --field text --out DIR records its texts"
            raise UsageError(f"{line} is not document {number:,} of {corpus.folder}", hint)
        if missing := {*range(rows.start, rows.stop)} - {*held}:
            token = encoding.tokens[min(missing)].shown
            hint = "choose another --position: added tokens have no row, and with record --last only the last has one"
            raise UsageError(f"{corpus.folder} has no row for {token} of {line}", hint)
        first = start + held.index(rows.start)
        spans.append(slice(first, first + rows.stop - rows.start))
        seen.append(Counter(encoding.ids[: rows.stop] if model.config.causal else encoding.ids))
        start += counts[number - 1]
    if start != len(corpus):
        raise UsageError(f"{corpus.folder} has more documents than {texts.name} has lines", "record that file alone")
    return {name: torch.stack([step[s].double().mean(0) for s in spans]) for name, step in steps.items()}, _bag(seen)


def _bag(seen: Sequence[Counter[int]]) -> Tensor:
    """How often each token was seen, (N, tokens that were)."""
    columns = {token: column for column, token in enumerate(sorted(set().union(*seen)))}
    bag = torch.zeros(len(seen), len(columns), dtype=torch.float64)
    for row, counts in enumerate(seen):
        for token, times in counts.items():
            bag[row, columns[token]] = times
    return bag


def _rows(encoding: Encoding, position: str, number: int, name: str) -> slice:
    """The positions of a text that its vector is the mean of."""
    if position == "mean":
        return slice(0, len(encoding.tokens))
    with at_line(number, name):
        found = positions_in(position, [token.shown for token in encoding.tokens], "--position")
    if len(found) > 1:
        raise UsageError(f"--position {position!r} is {len(found)} positions", "name one, or mean")
    return slice(found[0], found[0] + 1)


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


def _majority(classes: Tensor, folds: Tensor, count: int) -> Tensor:
    """Whether each text has the label that is most frequent in all folds but its own, (N,), 1 or 0."""
    right = torch.zeros(len(classes), dtype=torch.float64)
    for fold in folds.unique():
        out = folds == fold
        right[out] = (classes[out] == classes[~out].bincount(minlength=count).argmax()).double()
    return right


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
