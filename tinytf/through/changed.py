"""Change what a module returns, and see what the model predicts then: ablation and patching of any module."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.look.prediction import Prediction
from tinytf.report import About, Report
from tinytf.sentences import changed
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import in_turn_of_all
from tinytf.through.model import ThroughModel
from tinytf.through.recording import Recording, tensors_in
from tinytf.through.traced import matching, predicted


@dataclass(frozen=True)
class Changed(Report):
    """The prediction ``before`` and ``after`` the outputs of ``modules`` were replaced; ``how`` says by what.

    ``divergence`` is KL(before ‖ after) in nats, at the place that is predicted; ``followed`` is the probability of the
    first token of ``before`` in ``after``.
    """

    KIND = "changed"
    EVENTS: ClassVar = {"tokens": "token"}

    modules: tuple[str, ...]
    how: str
    before: Prediction
    after: Prediction
    divergence: float
    followed: float

    def in_a_sentence(self) -> str:
        """What the probability of the first prediction does."""
        best, share = self.before.top[0], self.before.top[0].probability or 0.0
        then = "" if self.after.top[0].id == best.id else f", and {self.after.top[0].shown} is first"
        return f"With {self.how}, {best.shown} {changed(share, self.followed)}{then}."

    def fields(self) -> dict[str, Any]:
        return self.members("modules", "how", "before", "after", "divergence", "followed")


@in_turn_of_all
def ablate_through(
    model: ThroughModel, text: Written, at: Sequence[str], *, top: int = 5, truncate: bool = False
) -> Changed:
    """The prediction with zeros for the outputs of the modules ``at``: paths, or patterns.

    Raises UsageError for a path that no call has, and for a model that predicts nothing for this text.
    """
    encoding = model.encode(text, truncate=truncate)
    recording, _ = model.record(encoding)
    paths = _paths(recording, at)
    zeros = {path: [None] for path in paths}
    return _compared(model, encoding, recording, zeros, f"zeros for {_named(paths)}", top)


@in_turn_of_all
def patch_through(
    model: ThroughModel, clean: Written, corrupt: Written, at: Sequence[str], *, top: int = 5, truncate: bool = False
) -> Changed:
    """The prediction for ``corrupt`` with the outputs of the modules ``at`` in the run on ``clean``.

    Raises UsageError like ``ablate_through``, and for texts of different lengths.
    """
    encodings = [model.encode(text, truncate=truncate) for text in (clean, corrupt)]
    counts = [len(encoding.tokens) for encoding in encodings]
    if counts[0] != counts[1]:
        raise UsageError(f"the texts have {counts[0]:,} and {counts[1]:,} tokens", "give two of equal length")
    source, target = (model.record(encoding)[0] for encoding in encodings)
    paths = _paths(target, at)
    outputs = {path: [call.output for call in source.calls if call.name == path] for path in paths}
    return _compared(model, encodings[1], target, outputs, f"{_named(paths)} of the clean text", top)


def _paths(recording: Recording, at: Sequence[str]) -> tuple[str, ...]:
    names = list(dict.fromkeys(call.name for call in recording.calls if call.name))
    return tuple(dict.fromkeys(path for name in at for path in matching(names, name)))


def _named(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths):,} modules"


def _compared(
    model: ThroughModel,
    encoding: Encoding,
    recording: Recording,
    outputs: dict[str, list[Any]],
    how: str,
    top: int,
) -> Changed:
    """Run again with other outputs: for each path those of its calls in order, None for zeros."""
    with _replaced(model.transformer, outputs):
        logits = model.logits(encoding.ids)
    pair = [predicted(model, encoding, values, top) for values in (recording.logits, logits)]
    if pair[0] is None or pair[1] is None or recording.logits is None or logits is None:
        raise UsageError(f"{model.name} predicts nothing for this text", "try trace, which says why")
    row = pair[0].position if len(recording.logits) == len(encoding.tokens) else -1
    first, second = (
        values.double().log_softmax(-1) if values.dim() == 1 else values[row].double().log_softmax(-1)
        for values in (recording.logits, logits)
    )
    divergence = float((first.exp() * (first - second)).sum().clamp_min(0.0))
    followed = float(second[pair[0].top[0].id].exp())
    return Changed(
        tuple(outputs), how, pair[0], pair[1], divergence, followed, about=About(model, encoding)
    )  # fmt: skip


@contextmanager
def _replaced(module: Any, outputs: dict[str, list[Any]]) -> Iterator[None]:
    """Hooks that replace the first floating tensor that each module returns; removed afterwards."""
    handles = []
    try:
        for path, own in outputs.items():
            queue = list(own)

            def hook(part: Any, args: Any, result: Any, queue: list[Any] = queue) -> Any:
                other = queue.pop(0) if len(queue) > 1 else queue[0]
                found = next(tensor for tensor in tensors_in(result) if tensor.is_floating_point())
                return _with(result, found, torch.zeros_like(found) if other is None else other)

            handles.append(module.get_submodule(path).register_forward_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _with(result: Any, found: Tensor, other: Tensor) -> Any:
    """A result with ``other`` in the place of the tensor ``found``."""
    if result is found:
        return other
    if isinstance(result, tuple | list):
        members = [_with(member, found, other) for member in result]
        return type(result)(members) if type(result) in (tuple, list) else result
    if isinstance(result, dict):
        for name in list(result):
            result[name] = _with(result[name], found, other)
    return result
