"""The card of a model file: what it shares with its original, how it is stored, and how well it keeps the predictions.

Shapes: N predicted tokens.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

from torch import Tensor

from tinytf.api import Model
from tinytf.cause.blame import Blamed
from tinytf.cause.model_pair import Texts, addresses_by_path
from tinytf.certification.contents import Shared, compare_contents, differing_settings
from tinytf.certification.kept import Kept, Mean, cut, losses, perplexity
from tinytf.checkpoints.gguf.header import StoredTensor
from tinytf.checkpoints.gguf.load import settings_in
from tinytf.compare.alignment import same_vocabulary
from tinytf.compare.measures import Moved, moved_weights
from tinytf.compare.weights import WeightsCompared, compare_weights
from tinytf.config import FIELDS
from tinytf.errors import UsageError
from tinytf.loading import load, open_source
from tinytf.report import About, Data, Progress, Report, ignore_progress, plain
from tinytf.sentences import apart, choices, listed, percent
from tinytf.sources import GgufSource, find_source
from tinytf.tables import ColumnStyle
from tinytf.text.printable import printable
from tinytf.trace.faults import where_not_finite

CONTEXT = 512
"""The default length of a piece of the text, as in llama.cpp's perplexity tool."""
_LINES, _TOKENS, _DRAWS = 8, 16, 16
"""The lines on which single tensors are measured, the tokens of each, and the backward passes that choose tensors."""
_NAMED = ("ids", "template", "special tokens")
"""What the sentence says of a file that differs in nothing."""


def _percent(error: float) -> str:
    return apart(100 * error, "%.3g %%")


@dataclass(frozen=True)
class TypeOfTensors(Data):
    """The tensors of one type (``kind``) in a file: their numbers and bytes, and ‖Δ‖ ÷ ‖W‖ of all of them together."""

    COLUMNS: ClassVar = {
        "kind": ColumnStyle("type", role="strong"),
        "tensors": ColumnStyle("tensors", "{:,}".format),
        "numbers": ColumnStyle("numbers", "{:,}".format, drop=1),
        "bits": ColumnStyle("bits each", "%.2f"),
        "error": ColumnStyle("error", _percent, align="right"),
    }
    ALSO: ClassVar = ("bits",)

    kind: str
    tensors: int
    numbers: int
    n_bytes: int
    error: float | None = None

    @property
    def bits(self) -> float:
        return 8 * self.n_bytes / self.numbers


@dataclass(frozen=True)
class TensorOfFile(Data):
    """One parameter: the ``name`` and type (``kind``) of its tensor, if the file is a GGUF file, and its address.

    ``error`` is ‖Δ‖ ÷ ‖W‖. ``expected``, ``damage`` and ``recovered`` are KL in nats a token, as ``blame`` measures it:
    what a gradient predicts, what the tensor does alone in the original, and what restoring it alone takes back.
    """

    COLUMNS: ClassVar = {
        "name": ColumnStyle("tensor", role="strong", shrink=16),
        "kind": ColumnStyle("type", drop=2),
        "error": ColumnStyle("error", _percent, align="right"),
        "damage": ColumnStyle("KL alone", "%.5f", align="right"),
        "recovered": ColumnStyle("restored", "%+.5f", align="right", drop=1),
        "address": ColumnStyle("address", drop=3),
    }

    name: str
    kind: str
    address: str
    numbers: int
    error: float | None = None
    expected: float | None = None
    damage: float | None = None
    recovered: float | None = None


@dataclass(frozen=True)
class Card(Report):
    """All that a file has to have from its original ``versus``, if there is one.

    ``checks`` are what both should share exactly. ``weights`` are its parameters: first the measured ones by their
    damage, then the others by their error. ``perplexity`` is the model's own on ``tokens`` tokens of ``pieces`` pieces
    of a text, None where it predicts no next token. ``parameters`` says how the file's weights are made of the
    original's. ``notes`` say what was not measured, and why. ``fail_over`` is the largest mean KL that passes, in nats
    a token. ``not_finite`` says which of the two gives NaN or ∞ and where first; then nothing is measured.
    """

    KIND = "card"
    EVENTS: ClassVar = {"checks": "check", "types": "type", "tensors": "tensor"}
    ALWAYS_SAID = True
    PAGE = True

    checks: tuple[Shared, ...]
    types: tuple[TypeOfTensors, ...]
    weights: tuple[TensorOfFile, ...]
    context: int
    pieces: int
    tokens: int
    perplexity: Mean | None
    kept: Kept | None
    notes: tuple[str, ...] = ()
    parameters: WeightsCompared | None = None
    versus: About | None = None
    fail_over: float | None = None
    not_finite: str = ""

    @property
    def holds(self) -> bool:
        """Whether each of the ``checks`` holds, all is finite, and the mean KL is not above ``fail_over``."""
        return super().holds and not self.is_destroyed and not self.not_finite

    @property
    def is_destroyed(self) -> bool:
        """Whether the mean KL is above ``fail_over``."""
        return self.fail_over is not None and self.kept is not None and not self.kept.kl.value <= self.fail_over

    @property
    def bits(self) -> float | None:
        """The bits of a number, over all tensors; None for another file than GGUF."""
        numbers = sum(kind.numbers for kind in self.types)
        return 8 * sum(kind.n_bytes for kind in self.types) / numbers if numbers else None

    @property
    def worst(self) -> TensorOfFile | None:
        """The measured tensor that damages the predictions most alone; None if none was measured or none does."""
        first = self.weights[0] if self.weights else None
        return first if first is not None and first.damage else None

    def in_a_sentence(self) -> str:
        """How often the original's prediction is kept, what differs, and the worst tensor; or what the file has."""
        assert self.about is not None
        name = printable(self.about.model.name, spaces=False)
        if self.versus is None:
            return f"{self.not_finite}." if self.not_finite else f"{name} {self._alone()}."
        other = printable(self.versus.model.name, spaces=False)
        differing = [check.name for check in self.checks if check.differing]
        agreeing = [check.name for check in self.checks if check.name in _NAMED and check.items]
        verb, what = ("differ", listed(differing)) if differing else ("agree", listed(agreeing))
        parts = [f"{name} and {other} {verb} in {what}"]
        if self.kept is not None:
            above = f", above {self.fail_over:g}" if self.is_destroyed else ""
            kl = f"mean KL {self.kept.kl.value:.2g}{above}"
            kept = f"{percent(self.kept.same_top.value)} of {self.tokens:,} tokens ({kl})"
            parts = [f"{name} keeps the prediction of {other} at {kept}", f"{what} {verb}"]
        if self.not_finite:
            parts = [self.not_finite, *parts]
        if self.parameters is not None and self.parameters.faults:
            parts.append(self.parameters.in_words("the file", "the original"))
        parts += [f"worst tensor {printable(self.worst.name, spaces=False)}"] if self.worst else []
        return "; ".join(parts) + "."

    def _alone(self) -> str:
        template = next(check for check in self.checks if check.name == "template")
        parts = [f"stores a number in {self.bits:.1f} bits"] if self.bits else []
        parts += [f"its chat template {template.says}" if template.items else "it has no chat template"]
        if self.perplexity is not None:
            parts += [f"its perplexity on a text is {choices(math.log(self.perplexity.value))}"]
        return "; ".join(parts) if self.bits else f"is no GGUF file; {'; '.join(parts)}"

    def fields(self) -> dict[str, Any]:
        return {
            "versus": self.versus and self.versus.to_dict(),
            **self.members("holds", "bits", "context", "pieces", "tokens", "perplexity", "kept", "fail_over"),
            **self.members("parameters", "not_finite"),
            **self.members("notes", "checks", "types"),
            "tensors": plain(self.weights),
        }


def card(
    model: str,
    *,
    versus: str | None = None,
    text: str | None = None,
    context: int = CONTEXT,
    pieces: int | None = None,
    top: int = 6,
    fail_over: float | None = None,
    device: str = "auto",
    dtype: str = "float32",
    progress: Progress = ignore_progress,
) -> Card:
    """Describe a model file, and compare it with its original ``versus``: any model that tinytf opens.

    ``text`` is predicted instead of the built-in one, in at most ``pieces`` pieces of ``context`` tokens. The ``top``
    tensors with the largest expected damage are measured alone, as ``blame`` does; 0 measures none. Raises as ``load``
    does, and UsageError for a text of fewer than 4 tokens, or for a ``fail_over`` where no KL can be measured.
    """
    source = find_source(model)
    opened = open_source(source, device=device, dtype=dtype)
    if opened.config.encoder is not None:
        raise UsageError(
            f"{opened.name} has two stacks, and a card predicts a text of one: a text has no target",
            f"tinytf certify {model} --versus FOLDER compares both with the original",
        )
    original = None if versus is None else load(versus, device=device, dtype=dtype)
    text = (files("tinytf") / "assets" / "card.txt").read_text("utf-8") if text is None else text
    notes: list[str] = []
    cuts, numbers = _predictions(opened, original, text, context, pieces, notes, progress)
    not_finite = _not_finite(opened, original, text, cuts, numbers)
    if not_finite:
        notes.append("perplexity and KL are not measured: not every number is finite")
        numbers = ()
    loss, kept = (numbers[-3], Kept.of(*numbers)) if len(numbers) > 1 else (next(iter(numbers), None), None)
    if fail_over is not None and kept is None and not not_finite:
        raise UsageError(
            "fail_over limits the mean KL, which is not measured here", notes[-1] if notes else "name an original"
        )
    blamed: dict[str, Blamed] = {}
    if original is not None and top and not not_finite:
        blamed = _blamed(opened, original, text, top, notes, progress)
    moved = {} if original is None else {m.name: m for m in moved_weights(original.transformer, opened.transformer)}
    stored = _stored(source) if isinstance(source, GgufSource) else {}
    said = settings_in(source.header) if isinstance(source, GgufSource) else (*FIELDS,)
    if original is not None:
        unsaid = [f"{name} {pair}" for name, pair in differing_settings(opened, original).items() if name not in said]
        notes += [f"not compared, since such a file has no place for them: {'; '.join(unsaid)}"] if unsaid else []
    return Card(
        checks=compare_contents(opened, original, said),
        types=_types(source.header.tensors, stored, moved) if isinstance(source, GgufSource) else (),
        weights=_weights(opened, stored, moved, blamed),
        context=len(cuts[0]) if cuts else context,
        pieces=len(cuts),
        tokens=0 if loss is None else len(loss),
        perplexity=None if loss is None else perplexity(loss),
        kept=kept,
        notes=tuple(notes),
        parameters=None if original is None else compare_weights(original.transformer, opened.transformer),
        versus=None if original is None else About(original),
        fail_over=fail_over,
        not_finite=not_finite,
        about=About(opened),
    )


def _not_finite(
    model: Model, original: Model | None, text: str, cuts: list[list[int]], numbers: tuple[Tensor, ...]
) -> str:
    """Which of the two is not finite and where first, on the pieces or, without any, on the text; else empty."""
    if numbers and all(bool(x.isfinite().all()) for x in numbers):
        return ""
    pieces = cuts or [model.encode(text, truncate=True).ids]
    for side in (model, original):
        if side is not None and (where := where_not_finite(side.transformer, pieces)):
            return f"{printable(side.name, spaces=False)} is not finite, {where}"
    return ""


def _predictions(
    model: Model,
    original: Model | None,
    text: str,
    context: int,
    pieces: int | None,
    notes: list[str],
    progress: Progress,
) -> tuple[list[list[int]], tuple[Tensor, ...]]:
    """The pieces of the text, and what ``losses`` measures on them; the model alone if the two cannot be compared."""
    if model.config.head.kind != "lm":
        notes.append("perplexity and KL are not measured: the model does not predict the next token")
        return [], ()
    other = original
    if other is not None and not (other.config.head.kind == "lm" and same_vocabulary(model.tokenizer, other.tokenizer)):
        notes.append("KL is not measured: the models have different vocabularies")
        other = None
    cuts = cut(other or model, text, context, pieces)
    return cuts, losses(model, other, cuts, progress)


def _blamed(
    model: Model, original: Model, text: str, top: int, notes: list[str], progress: Progress
) -> dict[str, Blamed]:
    """The tensors with the largest expected damage, each alone, on the first lines of the text; by their paths."""
    lines = [line for line in text.splitlines() if line.strip()][:_LINES]
    try:
        texts = Texts(lines, tokens=_TOKENS, truncate=True)
        found = original.blame(texts, model, top=top, restore=top, draws=_DRAWS, on_progress=progress)
    except UsageError as error:
        notes.append(f"no tensor is measured alone: {error.message}")
        return {}
    return {tensor.path: tensor for tensor in found.blamed}


def _stored(source: GgufSource) -> dict[str, StoredTensor]:
    """The tensor of a file from which each parameter comes, by the path of the parameter; the first of several."""
    stored: dict[str, StoredTensor] = {}
    for name, targets in source.checkpoint.plan().targets.items():
        for path, _ in targets if name in source.header.tensors else ():
            stored.setdefault(path, source.header.tensors[name])
    return stored


def _types(
    tensors: Mapping[str, StoredTensor], stored: Mapping[str, StoredTensor], moved: Mapping[str, Moved]
) -> tuple[TypeOfTensors, ...]:
    """The types of a file, those with the most bytes first."""
    types = []
    for kind in dict.fromkeys(tensor.kind for tensor in tensors.values()):
        own = [tensor for tensor in tensors.values() if tensor.kind == kind]
        differences = [moved[path] for path, tensor in stored.items() if tensor.kind == kind and path in moved]
        change, norm = (math.hypot(*(getattr(m, of) for m in differences)) for of in ("change", "norm"))
        numbers, n_bytes = sum(math.prod(tensor.shape) for tensor in own), sum(tensor.n_bytes for tensor in own)
        error = Moved("", (), change, norm).ratio if differences else None
        types.append(TypeOfTensors(kind.name, len(own), numbers, n_bytes, error))
    return tuple(sorted(types, key=lambda kind: -kind.n_bytes))


def _weights(
    model: Model, stored: Mapping[str, StoredTensor], moved: Mapping[str, Moved], blamed: Mapping[str, Blamed]
) -> tuple[TensorOfFile, ...]:
    """The parameters: first those that were measured, by their damage, then the others, by their error."""
    tensors = []
    addresses = addresses_by_path(model.transformer)
    for path, parameter in model.transformer.named_parameters():
        tensor, effect = stored.get(path), blamed.get(path)
        address = str(addresses[path][0]) if path in addresses else path
        tensors.append(
            TensorOfFile(
                tensor.name.removesuffix(".weight") if tensor else address,
                tensor.kind.name if tensor else "",
                address,
                parameter.numel(),
                moved[path].ratio if path in moved else None,
                effect.expected if effect else None,
                effect.damage.kl.value if effect and effect.damage else None,
                effect.recovered.kl.value if effect and effect.recovered else None,
            )
        )
    return tuple(sorted(tensors, key=lambda t: (t.damage is None, -_size(t.damage), -_size(t.error))))


def _size(number: float | None) -> float:
    """A number to sort by: what is NaN is the largest."""
    return math.inf if number is not None and math.isnan(number) else number or 0.0
