"""Why a step of another program has other numbers: try the usual mistakes of ports on our own inputs.

A mistake that gives the other program's numbers is the cause, as far as these numbers can tell. Shapes: T tokens,
H heads, D head width.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.compare.dumps.fit import distance, in_halves, is_turned
from tinytf.compare.mistakes import MISTAKES
from tinytf.compare.mistakes.norms import normed
from tinytf.report import Data
from tinytf.steps.operations import (
    Activate,
    Add,
    Concat,
    HeadNorm,
    Linear,
    Lookup,
    Mask,
    Mix,
    Norm,
    Operation,
    Positions,
    Rotate,
    Scale,
    Scores,
    Sight,
    Softmax,
)
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.table import StepKey
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.site import Site
from tinytf.trace.trace import Recording, Trace

Attempt = tuple[str, Tensor]
"""A mistake in words, and the step's numbers with it."""

_BASES = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)
_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4)


@dataclass(frozen=True)
class Cause(Data):
    """The mistake at ``step``, in words; ``found`` if it gives the other program's numbers.

    ``unseen`` are the steps between the last equal and the first different one that the dump lacks; the mistake may be
    in any of them.
    """

    step: str
    words: str
    found: bool
    unseen: tuple[str, ...] = ()


def cause_of(trace: Trace, differing: StepKey, theirs: Tensor, unseen: Sequence[StepKey], tolerance: float) -> Cause:
    """Why the step at ``differing`` is ``theirs``; the ``unseen`` steps before it are tried first, in order."""
    limit = min(tolerance, distance(theirs, trace.step(*differing)) / 10)
    candidates = [(trace.steps.at(*place), place) for place in (*unseen, differing)]
    full = [step.full_name(layer) for step, (_, layer) in candidates]
    attempts: dict[
        tuple[type, str], dict[StepKey, Tensor]
    ] = {}  # queries and keys are turned alike, and permuted alike
    for step, place in candidates:
        if place[1] == differing[1] and step.operation is not None:
            for words, numbers in _attempts(Site(trace, step, place[1]), theirs if place == differing else None):
                attempts.setdefault((type(step.operation), words), {})[place] = numbers
    for (_, words), together in attempts.items():
        alone = [{place: numbers} for place, numbers in together.items()] if len(together) > 1 else []
        for replaced in (*alone, together):
            result = replaced.get(differing)
            with suppress(RuntimeError, IndexError):  # the steps after it may not take numbers of such a shape
                result = _recompute(trace, (*unseen, differing), replaced) if result is None else result
            if result is not None and result.shape == theirs.shape and distance(theirs, result) <= limit:
                names = " and ".join(trace.steps.at(*place).full_name(place[1]) for place in replaced)
                return Cause(names, words, True, tuple(full[:-1]))
    usual = (words for kind, words in _USUAL.items() if isinstance(candidates[-1][0].operation, kind))
    return Cause(full[-1], "" if unseen else next(usual, ""), False, tuple(full[:-1]))


def _recompute(trace: Trace, places: Sequence[StepKey], replaced: Mapping[StepKey, Tensor]) -> Tensor:
    """Recompute the steps at ``places``, some of them ``replaced`` by other numbers, and return the last."""
    tensors = dict(trace.recording.tensors)
    for place in places:
        name = trace.steps.at(*place).full_name(place[1])
        tensors.pop(name, None)
        tensors |= {name: replaced[place]} if place in replaced else {}
    recording = Recording(tensors, trace.recording.logit_rows, trace.recording.layers)
    return Trace(trace.model, trace.encoding, recording).step(*places[-1])


def _attempts(site: Site, theirs: Tensor | None) -> Iterator[Attempt]:
    """Attempts at a step: settings of its operation first, some solved for, then the table of mistakes."""
    if isinstance(site.operation, Norm) and not isinstance(site.operation, HeadNorm):
        yield from _eps_attempts(site, theirs)
    elif isinstance(site.operation, Rotate):
        yield from _angle_attempts(site, theirs)
    elif isinstance(site.operation, Mask) and site.operation.sight.window:
        yield "no window", Mask(Sight(site.operation.sight.causal)).forward(site.input())
    elif isinstance(site.operation, Add):
        yield from _missing_summands(site)
    for mistake in MISTAKES:
        if mistake.fits(site.step):
            with suppress(RuntimeError, IndexError):  # the mistake does not fit these shapes
                yield mistake.words, mistake.wrong(site)
    if is_turned(site.step):
        pairs = "the rows of each head in pairs, as in GGUF and in Meta's files, instead of halves"
        yield pairs, in_pairs(site.value, site.config)
        yield "the rows of each head in halves instead of pairs", in_halves(site.value, site.config)
    for step in () if site.layer is None else site.trace.steps.in_layer(site.layer):
        if step.module and step.axes == site.step.axes and step.name != site.step.name:
            other = site.trace.step(step.name, site.layer)
            yield f"the numbers of {step.full_name(site.layer)}, so two weights are swapped", other


def _eps_attempts(site: Site, theirs: Tensor | None) -> Iterator[Attempt]:
    x, operation, module = site.input(), site.operation, site.module
    assert isinstance(operation, Norm)
    candidates = list(_EPS)
    if theirs is not None and getattr(module, "bias", None) is None:  # y = x·gain / √(mean x² + eps), solved for eps
        squares = ((x * gain_of(module) / theirs).square() - x.square().mean(-1, keepdim=True)).double()
        solved = float(squares[squares.isfinite()].median()) if squares.isfinite().any() else 0.0
        candidates += [float(f"{solved:.{digits}g}") for digits in (1, 2)]
    for eps in dict.fromkeys(candidates):
        if eps >= 0:
            yield f"eps {eps:g} instead of {operation.eps:g}", normed(site, eps=eps)


def _angle_attempts(site: Site, theirs: Tensor | None) -> Iterator[Attempt]:
    x, operation = site.input(), site.operation
    assert isinstance(operation, Rotate)
    rope, width = operation.rope, operation.rope.width
    bases = [*_BASES, rope.theta * 10, rope.theta / 10]
    if theirs is not None and x.shape[1] > 1 and width > 2:  # the angle of pair 1 at position 1 is base^(−2/width)
        (a, b), (c, d) = ([float(heads[0, 1, index]) for index in (1, 1 + width // 2)] for heads in (x, theirs))
        angle = abs(float(torch.atan2(torch.tensor(a * d - b * c), torch.tensor(a * c + b * d))))
        solved = angle ** (-width / 2) if angle else 0.0
        bases += [float(f"{solved:.{digits}g}") for digits in (1, 2, 3)] if 1 < solved < 1e12 else []
    for base in dict.fromkeys(bases):
        yield (
            f"a rotary base of {base:,.0f} instead of {rope.theta:,.0f}",
            Rotate(rope._replace(theta=base)).forward(x),
        )
    if rope.scaling != "none":
        yield f"no {rope.scaling} scaling of the angles", Rotate(rope._replace(scaling="none")).forward(x)


def _missing_summands(site: Site) -> Iterator[Attempt]:
    inputs = site.inputs()
    for index, (name, layer) in enumerate(site.sources if len(inputs) > 1 else ()):
        omitted = site.trace.steps.at(name, layer).full_name(layer)
        yield f"{omitted} not added", sum((summand for i, summand in enumerate(inputs) if i != index), torch.zeros(()))


_USUAL: dict[type[Operation], str] = {
    Norm: "the settings of the norm: eps, a gain with 1 added, the mean subtracted or not",
    HeadNorm: "the settings of the norm of queries and keys: in each head, or over all heads",
    Rotate: "the rotary settings: base, scaling, halves or pairs of rows, the first position",
    Linear: "a weight: another matrix, transposed, its rows in another order, without its bias",
    Scores: "which key head serves which query head",
    Mix: "which value head serves which query head",
    Concat: "the order of the heads",
    Mask: "the mask: which keys a query sees, up to itself or in a window",
    Scale: "the divisor of the scores",
    Softmax: "the axis of the softmax",
    Activate: "the activation function, or whether the gate or the hidden units are activated",
    Add: "which tensors are added to the stream",
    Lookup: "the tokens, or the scale of the embeddings",
    Positions: "the first position, or the offset of the table",
}
"""The usual mistakes of each operation, named if none that was tried gives the numbers."""
