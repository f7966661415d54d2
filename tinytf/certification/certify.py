"""A model of tinytf beside the same one of transformers: ids, every layer and logits, on the hard texts."""

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from tinytf.api import Model
from tinytf.certification.reference import Ran, Reference, their_tokenizer
from tinytf.certification.sides import Check, Sides
from tinytf.certification.texts import HARD_TEXTS, HardText
from tinytf.errors import TokenizerError, UsageError
from tinytf.loading import DTYPES, load
from tinytf.report import About, Data, Progress, Report, unheard
from tinytf.sources import DirectorySource, GgufSource, find_source

LONGEST = 512
"""The most tokens of a text, unless another number is asked for."""


@dataclass(frozen=True)
class Layer(Data):
    """The worst difference of one layer's output, over all texts of one dtype."""

    step: str
    dtype: str
    difference: float


@dataclass(frozen=True)
class Certificate(Report):
    """Whether a model gives the numbers that transformers gives of the directory ``versus``.

    ``checks`` in the order in which they were made, ``layers`` with what each of them differs by, ``notes`` with what
    was not compared.
    """

    KIND = "certificate"
    EVENTS: ClassVar = {"checks": "check", "layers": "layer"}

    versus: Path
    transformers: str
    torch: str
    checks: tuple[Check, ...]
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> Check:
        """The check that is furthest beyond what is allowed, or nearest to it."""
        return max(self.checks, key=lambda one: (not one.holds, one.difference / (one.tolerance or 1)))

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
    progress: Progress = unheard,
) -> Certificate:
    """Compare a model with what transformers makes of its directory, or of the directory ``versus``.

    In float32, and in ``dtype`` where that is another; ``tolerance`` is in units of a token's largest number, without
    it that of two runs in each dtype. Texts are cut at ``longest`` tokens.

    Raises UsageError for a model that transformers has no directory of, and as ``certified`` does.
    """
    opened = load(model, device=device, adapter=adapter)
    source = find_source(model)
    if versus is None:
        if not isinstance(source, DirectorySource) or isinstance(source, GgufSource) or adapter is not None:
            what = f"{opened.name}, with an adapter," if adapter is not None else f"{opened.name} ({source.family})"
            raise UsageError(f"{what} is no directory that transformers opens", "--versus names what to compare with")
        versus = source.path
    return certified(opened, versus, texts=texts, dtype=dtype, tolerance=tolerance, longest=longest, progress=progress)


def certified(
    model: Model,
    versus: str | Path,
    *,
    texts: Iterable[HardText] = HARD_TEXTS,
    dtype: str = "float32",
    tolerance: float | None = None,
    longest: int = LONGEST,
    progress: Progress = unheard,
) -> Certificate:
    """Compare an open model, in float32, with what transformers makes of the directory ``versus``.

    Raises UsageError where transformers is not installed or the models are of other sizes, CheckpointError where
    transformers cannot open the directory.
    """
    versus, device = Path(versus), next(model.transformer.parameters()).device
    encode, version = their_tokenizer(versus)
    ids, notes, check = _ids(model, encode, tuple(texts), longest)
    checks, layers, kinds = [check], list[Layer](), dict.fromkeys((torch.float32, DTYPES[dtype]))
    if model.config.experts and len(kinds) > 1:
        kinds = {torch.float32: None}
        notes.append(f"{dtype} is not compared: rounding sends tokens to other experts, and their numbers are others")
    count, exact = itertools.count(), dict[str, Ran]()
    for kind in kinds:
        ours = model.transformer if kind == torch.float32 else copy.deepcopy(model.transformer).to(kind)
        sides = Sides(ours, Reference(versus, kind, device), kind, tolerance, exact)
        checks += sides.checks(ids, lambda: progress(next(count), len(kinds) * len(ids)))
        layers += [Layer(step, checks[-1].dtype, difference) for step, difference in sides.layers.items()]
        notes += sides.notes
    return Certificate(
        versus, version, torch.__version__, tuple(checks), tuple(layers), tuple(notes), about=About(model)
    )


def _ids(
    model: Model, encode: Callable[[str], list[int]], texts: Sequence[HardText], longest: int
) -> tuple[dict[str, list[int]], list[str], Check]:
    """The ids of every text that has some, what was not read, and whether they are those of transformers."""
    limit = min(longest, model.config.context)
    found: dict[str, list[int]] = {}
    notes, where, wrong, tokens, read = [], "", 0, 0, 0
    for name, text, repeated in texts:
        whole = text * limit if repeated else text
        try:
            ours, theirs = model.tokenizer.encode(whole).ids, encode(whole)
        except TokenizerError as error:
            notes.append(f"{name}: {error.message}")
            continue
        read, tokens = read + 1, tokens + len(ours)
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            place = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
            wrong, where = wrong + 1, where or f"token {place}, {name}"
        if inside := [number for number in ours if number < model.config.vocab_size][:limit]:
            found[name] = inside
    if not found:
        raise UsageError("no text has a token that the model knows")
    return found, notes, Check("ids", "", read, tokens, wrong, where, 0)
