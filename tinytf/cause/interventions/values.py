"""The value that replaces a step: zeros, its mean over texts, or its value in another text."""

import codecs
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tinytf.cause.interventions.hooks import HookPoint, Intervention
from tinytf.errors import UsageError
from tinytf.files import open_bytes
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.report import Progress, ignore_progress
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.record import record

ABLATIONS = ("zero", "mean", "resample")

BLOCKED = "by a score of −∞"
"""The source of the zeros of cells of attention weights."""
TOKENS = 4096
"""The most tokens of a reference that are run."""
_BYTES = 1 << 20  # longer texts have more than TOKENS tokens in any tokenizer


@dataclass(frozen=True)
class Reference:
    """One or more tokenized texts, and their name."""

    name: str
    texts: tuple[Encoding, ...]

    @property
    def n_tokens(self) -> int:
        return sum(len(text.tokens) for text in self.texts)

    def __str__(self) -> str:
        texts = f"{len(self.texts):,} text{'s' if len(self.texts) > 1 else ''}"
        return f"{texts}, {self.n_tokens:,} tokens of {self.name}"


def reference(model: TextModel, texts: str | Path | Sequence[str] | None = None) -> Reference:
    """Texts for means and for drawing another text: a list, those of a file, or by default the model's own corpus.

    Raises UsageError if there is neither, and for a file that is not text.
    """
    encode = partial(model.encode, truncate=True)
    if not isinstance(texts, str | Path | None):
        return reference_of("the list", texts, encode)
    file = texts
    if file is not None:
        return read_reference(Path(file), str(file), encode)
    if model.corpus is None:
        raise UsageError(
            f"{model.name} has no texts of its own for a mean or a draw",
            "name a file of texts, separated by empty lines: --reference FILE",
        )
    return read_reference(model.corpus, f"{model.name}'s {model.corpus.name}", encode)


def read_reference(path: Path, name: str, encode: Callable[[str], Encoding]) -> Reference:
    """The first paragraphs of a text file, up to TOKENS tokens.

    ``encode`` tokenizes a text, truncated to the context. Raises UsageError for a file that cannot be read, is not
    text, or has no word in it.
    """
    try:
        with open_bytes(path) as file:
            data = file.read(_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a text file") from None
    try:  # a character cut at the end of the bytes read is dropped
        text, _ = codecs.utf_8_decode(data, "strict", len(data) < _BYTES)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start:,}") from None
    if "\0" in text:
        raise UsageError(f"{path} is a binary file", "name a text file")
    text = text.replace("\r\n", "\n")
    return reference_of(name, (part for part in re.split(r"\n\s*\n", text) if part.strip()), encode)


def reference_of(name: str, texts: Iterable[str], encode: Callable[[str], Encoding]) -> Reference:
    """A reference of the first texts, up to TOKENS tokens."""
    encodings: list[Encoding] = []
    for text in texts:
        encoding = encode(text.strip())
        if encodings and sum(len(encoding.tokens) for encoding in encodings) + len(encoding.tokens) > TOKENS:
            break
        encodings.append(encoding)
    if not encodings:
        raise UsageError(f"{name} has no text with a word in it", "give texts separated by empty lines")
    return Reference(name, tuple(encodings))


@dataclass(frozen=True)
class HookValues:
    """The value of each hook point.

    ``source`` says where they come from, in words (empty for zeros); ``texts`` is the number of texts of a mean. Points
    that are ``blocked`` get their value at another step: cells of attention weights, at the scores below them.
    """

    of: dict[HookPoint, Tensor]
    source: str = ""
    texts: int = 0
    blocked: dict[HookPoint, HookPoint] = field(default_factory=dict)

    def intervention(self, point: HookPoint) -> Intervention:
        """The intervention that gives a point its value."""
        return Intervention(self.blocked.get(point, point), self.of[point])


def values_for(
    model: TextModel,
    points: Sequence[HookPoint],
    how: str,
    of: Reference | str | Path | None,
    *,
    text: Encoding | None = None,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> HookValues:
    """The replacement value of each hook point in an ablation.

    ``zero``: zeros. A cell of attention weights becomes 0 by a score of −∞ (attention knockout, Geva et al. 2023), so
    that the other weights of its row still sum to 1. ``mean``: the mean over all positions of the texts ``of`` a
    reference, a file, or the model's own corpus. ``resample``: the values at the same positions of one of these texts,
    drawn by ``seed``, which is not the ablated ``text`` and not shorter. Raises UsageError for another ``how``, if
    there is no such text, and for a mean or a draw of a map, which is as wide as its text.
    """
    if how not in ABLATIONS:
        raise UsageError(f"there is no way to ablate {how!r}", did_you_mean(how, ABLATIONS))
    if how == "zero":
        weight = next(model.transformer.parameters())
        blocked = {point: below for point in points if (below := _scores_below(point, model)) is not None}
        numbers = {point: -math.inf if point in blocked else 0.0 for point in points}
        zeros = {point: weight.new_tensor(number) for point, number in numbers.items()}
        some = f"(cells of attention weights {BLOCKED})" if blocked else ""
        return HookValues(zeros, BLOCKED if len(blocked) == len(zeros) else some, blocked=blocked)
    if read := [point for point in points if point.stack]:
        raise UsageError(f"{read[0]} is of what the model reads, and takes only --how zero", "or patch it")
    table = table_of(model.config)
    a_map = next((point for point in points if table.at(point.step, point.layer).is_map), None)
    if a_map is not None:
        raise UsageError(
            f"{a_map} has no {how} over texts: each text has a map as wide as itself", "use --how zero, or patch it"
        )
    texts = of if isinstance(of, Reference) else reference(model, of)
    if how == "mean":
        means = _means(model.transformer, points, texts, on_progress)
        return HookValues(means, f"mean over {texts}", len(texts.texts))
    if text is None:
        raise UsageError("resample takes values of one text for another, and no text is given", "use zero or mean")
    number = _draw_other_text(text, texts, seed)
    drawn_trace = record(model.transformer, texts.texts[number], layers={point.layer for point in points})
    length = len(text.tokens)
    source = f"from text {number + 1} of the {len(texts.texts):,} of {texts.name}, drawn by seed {seed}"
    return HookValues({point: point.value(drawn_trace)[:length] for point in points}, source)


def _scores_below(point: HookPoint, model: TextModel) -> HookPoint | None:
    """The scores that the softmax of a cell of attention weights takes; None for any other point."""
    step = table_of(point.own_stack(model.transformer).config).at(point.step, point.layer)
    if not (step.is_map and step.holds_shares and point.columns):
        return None
    return replace(point, step=step.inputs[0])


def _means(
    model: Transformer, points: Sequence[HookPoint], reference: Reference, on_progress: Progress
) -> dict[HookPoint, Tensor]:
    layers = {point.layer for point in points}
    sums: dict[HookPoint, Tensor] = {}
    for number, text in enumerate(reference.texts):
        trace = record(model, text, layers=layers)
        for point in points:
            total = point.value(trace).double().sum(dim=0)
            sums[point] = sums[point] + total if number else total
        on_progress(number + 1, len(reference.texts))
    dtype = next(model.parameters()).dtype
    return {point: (total / reference.n_tokens).to(dtype) for point, total in sums.items()}


def _draw_other_text(own: Encoding, reference: Reference, seed: int) -> int:
    """The number of a text, drawn from the other texts that are long enough."""
    ids = own.ids
    candidates = [
        number for number, text in enumerate(reference.texts) if len(text.ids) >= len(ids) and text.ids != ids
    ]
    if not candidates:
        longest = max(len(text.ids) for text in reference.texts)
        raise UsageError(
            f"no other text of {reference.name} has the {len(ids):,} tokens of this one; the longest has {longest:,}",
            "give longer texts, or a shorter one to ablate",
        )
    index = torch.randint(len(candidates), (), generator=torch.Generator().manual_seed(seed))
    return candidates[int(index)]
