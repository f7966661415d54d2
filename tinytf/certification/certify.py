"""Compare a model in tinytf with the same model in transformers: ids, every layer and logits, on hard texts."""

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from tinytf.api import Model
from tinytf.certification.reference import Outputs, Reference, open_tokenizer
from tinytf.certification.sides import Check, Sides
from tinytf.certification.texts import HARD_TEXTS, HardText
from tinytf.errors import TokenizerError, UsageError
from tinytf.loading import DTYPES, load
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.sentences import listed, plural, several
from tinytf.sources import DirectorySource, GgufSource, find_source
from tinytf.text.printable import printable

LONGEST = 512
"""The default limit for tokens of a text."""


@dataclass(frozen=True)
class Layer(Data):
    """The worst difference of one layer's output, over all texts of one dtype."""

    step: str
    dtype: str
    difference: float


@dataclass(frozen=True)
class Certificate(Report):
    """Whether a model gives the same numbers as transformers with the directory ``versus``.

    ``checks`` are in the order in which they were made; ``layers`` have the difference of each layer; ``notes`` say
    what was not compared.
    """

    KIND = "certify"
    EVENTS: ClassVar = {"checks": "check", "layers": "layer"}
    ALWAYS_SAID = True

    versus: Path
    transformers: str
    torch: str
    checks: tuple[Check, ...]
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> Check:
        """The check with the largest difference relative to its tolerance."""
        return max(self.checks, key=lambda check: (not check.holds, check.difference / (check.tolerance or 1)))

    def in_a_sentence(self) -> str:
        """How far the numbers of all texts are apart in each dtype; or the worst check that fails."""
        ids, *measured = self.checks
        worst, failing = self.worst, next((check for check in measured if check.not_finite is not None), None)
        if failing is not None and (bad := failing.not_finite) is not None:
            who, at = bad.who("the model", "transformers"), printable(failing.first, spaces=False)
            return f"{who[0].upper()}{who[1:]} not finite in {failing.dtype}, first at {at}: {bad.why}."
        if worst is ids and not ids.holds:
            others = several(int(ids.difference), "have")
            return f"Of {plural(ids.texts, 'text')}, {others} other tokens in transformers."
        if not worst.holds:
            failing = next(check for check in self.checks if not check.holds)
            first, where = (printable(place, spaces=False) for place in (failing.first or failing.where, worst.where))
            by = f"{worst.difference:.0e} of a token's largest number where {worst.tolerance:.0e} is allowed"
            most = f", by {by}" if first == where else f"; most at {where}, by {by}"
            return f"The model and transformers differ {'' if first == where else 'first '}at {first}{most}."
        largest: dict[str, float] = {}
        for check in measured:
            largest[check.dtype] = max(largest.get(check.dtype, 0.0), check.difference)
        apart = listed([f"{most:.0e} in {dtype}" for dtype, most in largest.items()])
        same = f"On {plural(ids.texts, 'text')} the model has the tokens and numbers of transformers"
        return f"{same}; relative to a token's largest number they are apart by at most {apart}."

    def fields(self) -> dict[str, Any]:
        return {
            "versus": str(self.versus),
            **self.members("transformers", "torch", "holds", "checks", "layers", "notes"),
        }


def certify(
    model: str,
    *,
    versus: str | Path | None = None,
    texts: Iterable[HardText] = HARD_TEXTS,
    dtype: str = "float32",
    device: str = "auto",
    tolerance: float | None = None,
    longest: int = LONGEST,
    adapter: Path | None = None,
    progress: Progress = ignore_progress,
) -> Certificate:
    """Compare a model with what transformers makes of its directory, or of the directory ``versus``.

    Compares in float32, and also in ``dtype`` if that differs. ``tolerance`` is relative to a token's largest number,
    by default the tolerance of two runs in each dtype. Texts are cut at ``longest`` tokens.

    Raises UsageError for a model without a directory that transformers can open, and what ``certify_model`` raises.
    """
    opened = load(model, device=device, adapter=adapter)
    source = find_source(model)
    if versus is None:
        if not isinstance(source, DirectorySource) or isinstance(source, GgufSource) or adapter is not None:
            subject = f"{opened.name}, with an adapter," if adapter is not None else f"{opened.name} ({source.family})"
            raise UsageError(
                f"{subject} is not a directory that transformers can open",
                f"name its original with --versus FOLDER; tinytf info --card {model} says what the file holds",
            )
        versus = source.path
    return certify_model(
        opened, versus, texts=texts, dtype=dtype, tolerance=tolerance, longest=longest, progress=progress
    )


def certify_model(
    model: Model,
    versus: str | Path,
    *,
    texts: Iterable[HardText] = HARD_TEXTS,
    dtype: str = "float32",
    tolerance: float | None = None,
    longest: int = LONGEST,
    progress: Progress = ignore_progress,
) -> Certificate:
    """Compare an open model, in float32, with what transformers makes of the directory ``versus``.

    Raises UsageError if transformers is not installed or the models have different sizes, CheckpointError if
    transformers cannot open the directory.
    """
    versus, device = Path(versus), next(model.transformer.parameters()).device
    encode, version = open_tokenizer(versus)
    ids, notes, check = _compare_ids(model, encode, tuple(texts), longest)
    if model.config.encoder is not None:
        start = model.tokenizer.encode_ids([model.config.start_id]).tokens[0].shown
        notes.append(f"the decoder is given each text as well, behind {start}")
    checks, layers, kinds = [check], list[Layer](), dict.fromkeys((torch.float32, DTYPES[dtype]))
    if model.config.experts and len(kinds) > 1:
        kinds = {torch.float32: None}
        notes.append(f"{dtype} is not compared: rounding sends tokens to other experts, and their numbers are others")
    count, exact = itertools.count(), dict[str, Outputs]()
    for kind in kinds:
        ours = model.transformer if kind == torch.float32 else copy.deepcopy(model.transformer).to(kind)
        sides = Sides(ours, Reference(versus, kind, device), kind, tolerance, exact)
        checks += sides.checks(ids, lambda: progress(next(count), len(kinds) * len(ids)))
        layers += [Layer(step, checks[-1].dtype, difference) for step, difference in sides.layers.items()]
        notes += sides.notes
    return Certificate(
        versus, version, torch.__version__, tuple(checks), tuple(layers), tuple(notes), about=About(model)
    )


def _compare_ids(
    model: Model, encode: Callable[[str], list[int]], texts: Sequence[HardText], longest: int
) -> tuple[dict[str, list[int]], list[str], Check]:
    """The ids of every text that has any, notes on texts that were not read, and the check of ids."""
    limit = min(longest, *(config.context for config in (model.config, model.config.encoder) if config))
    ids_by_text: dict[str, list[int]] = {}
    notes, where, differing, tokens, texts_read = [], "", 0, 0, 0
    for name, text, repeated in texts:
        full_text = text * limit if repeated else text
        try:
            ours, theirs = model.tokenizer.of_source.encode(full_text).ids, encode(full_text)
        except TokenizerError as error:
            notes.append(f"{name}: {error.message}")
            continue
        texts_read, tokens = texts_read + 1, tokens + len(ours)
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            index = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
            differing, where = differing + 1, where or f"token {index}, {name}"
        if known_ids := [token_id for token_id in ours if token_id < model.config.common_vocabulary][:limit]:
            ids_by_text[name] = known_ids
    if not ids_by_text:
        raise UsageError("no text has a token that the model knows")
    return ids_by_text, notes, Check("ids", "", texts_read, tokens, differing, where, 0, where)
