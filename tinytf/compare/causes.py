"""Why a step of another program may have other numbers: the mistakes that ports have, each tried on our own inputs.

A mistake that gives the other program's numbers is the cause, as far as these numbers can tell. Shapes: T tokens,
H heads, D head width.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.compare.dumps.fit import apart, in_halves, is_turned
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
from tinytf.steps.table import Place
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.site import Site
from tinytf.trace.trace import Recording, Trace

Way = tuple[str, Tensor]
"""A mistake in words, and what the step is with it."""

_BASES = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)
_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4)


@dataclass(frozen=True)
class Cause(Data):
    """What is wrong at ``step``, in words; ``found`` where that mistake gives the other program's numbers.

    ``unseen`` are the steps between what is equal and what differs that the dump does not have: it may be in any.
    """

    step: str
    words: str
    found: bool
    unseen: tuple[str, ...] = ()


def cause_of(trace: Trace, place: Place, theirs: Tensor, unseen: Sequence[Place], tolerance: float) -> Cause:
    """Why the step at ``place`` is ``theirs``; ``unseen`` steps before it are tried first, in their order."""
    limit = min(tolerance, apart(theirs, trace.step(*place)) / 10)
    steps = [(trace.steps.at(*one), one) for one in (*unseen, place)]
    full = [step.full_name(layer) for step, (_, layer) in steps]
    together: dict[tuple[type, str], dict[Place, Tensor]] = {}  # queries and keys are turned alike, and permuted alike
    for step, tried in steps:
        if tried[1] == place[1] and step.operation is not None:
            for words, numbers in _ways(Site(trace, step, tried[1]), theirs if tried == place else None):
                together.setdefault((type(step.operation), words), {})[tried] = numbers
    for (_, words), all_of_them in together.items():
        alone = [{tried: one} for tried, one in all_of_them.items()] if len(all_of_them) > 1 else []
        for some in (*alone, all_of_them):
            made = some.get(place)
            with suppress(RuntimeError, IndexError):  # what follows may take no numbers of such a shape
                made = _after(trace, (*unseen, place), some) if made is None else made
            if made is not None and made.shape == theirs.shape and apart(theirs, made) <= limit:
                names = " and ".join(trace.steps.at(*one).full_name(one[1]) for one in some)
                return Cause(names, words, True, tuple(full[:-1]))
    kinds = (words for kind, words in _USUAL.items() if isinstance(steps[-1][0].operation, kind))
    return Cause(full[-1], "" if unseen else next(kinds, ""), False, tuple(full[:-1]))


def _after(trace: Trace, again: Sequence[Place], other: Mapping[Place, Tensor]) -> Tensor:
    """The last of some steps, computed ``again`` with ``other`` numbers at some of them."""
    kept = dict(trace.recording.tensors)
    for place in again:
        name = trace.steps.at(*place).full_name(place[1])
        kept.pop(name, None)
        kept |= {name: other[place]} if place in other else {}
    recording = Recording(kept, trace.recording.logit_rows, trace.recording.layers)
    return Trace(trace.model, trace.encoding, recording).step(*again[-1])


def _ways(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    """The mistakes that an operation invites, settings that are solved for first, and then those of any."""
    if isinstance(site.operation, Norm) and not isinstance(site.operation, HeadNorm):
        yield from _other_eps(site, theirs)
    elif isinstance(site.operation, Rotate):
        yield from _other_angles(site, theirs)
    elif isinstance(site.operation, Mask) and site.operation.sight.window:
        yield "no window", Mask(Sight(site.operation.sight.causal)).forward(site.input())
    elif isinstance(site.operation, Add):
        yield from _one_less(site)
    for mistake in MISTAKES:
        if mistake.fits(site.step):
            with suppress(RuntimeError, IndexError):  # it does not fit these shapes
                yield mistake.words, mistake.wrong(site)
    if is_turned(site.step):
        pairs = "the rows of each head in pairs, as in GGUF and in Meta's files, instead of halves"
        yield pairs, in_pairs(site.value, site.config)
        yield "the rows of each head in halves instead of pairs", in_halves(site.value, site.config)
    for step in () if site.layer is None else site.trace.steps.in_layer(site.layer):
        if step.module and step.axes == site.step.axes and step.name != site.step.name:
            other = site.trace.step(step.name, site.layer)
            yield f"the numbers of {step.full_name(site.layer)}, so two weights are in each other's place", other


def _other_eps(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    x, operation, module = site.input(), site.operation, site.module
    assert isinstance(operation, Norm)
    tried = list(_EPS)
    if theirs is not None and getattr(module, "bias", None) is None:  # y = x·gain / √(mean x² + eps), solved for eps
        squares = ((x * gain_of(module) / theirs).square() - x.square().mean(-1, keepdim=True)).double()
        found = float(squares[squares.isfinite()].median()) if squares.isfinite().any() else 0.0
        tried += [float(f"{found:.{digits}g}") for digits in (1, 2)]
    for eps in dict.fromkeys(tried):
        if eps >= 0:
            yield f"eps {eps:g} instead of {operation.eps:g}", normed(site, eps=eps)


def _other_angles(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    x, operation = site.input(), site.operation
    assert isinstance(operation, Rotate)
    rope, width = operation.rope, operation.rope.width
    bases = [*_BASES, rope.theta * 10, rope.theta / 10]
    if theirs is not None and x.shape[1] > 1 and width > 2:  # the angle of pair 1 at position 1 is base^(−2/width)
        (a, b), (c, d) = ([float(one[0, 1, place]) for place in (1, 1 + width // 2)] for one in (x, theirs))
        angle = abs(float(torch.atan2(torch.tensor(a * d - b * c), torch.tensor(a * c + b * d))))
        found = angle ** (-width / 2) if angle else 0.0
        bases += [float(f"{found:.{digits}g}") for digits in (1, 2, 3)] if 1 < found < 1e12 else []
    for base in dict.fromkeys(bases):
        yield (
            f"a rotary base of {base:,.0f} instead of {rope.theta:,.0f}",
            Rotate(rope._replace(theta=base)).forward(x),
        )
    if rope.scaling != "none":
        yield f"no {rope.scaling} scaling of the angles", Rotate(rope._replace(scaling="none")).forward(x)


def _one_less(site: Site) -> Iterator[Way]:
    inputs = site.inputs()
    for number, (name, layer) in enumerate(site.sources if len(inputs) > 1 else ()):
        left = site.trace.steps.at(name, layer).full_name(layer)
        yield f"{left} not added", sum((one for place, one in enumerate(inputs) if place != number), torch.zeros(()))


_USUAL: dict[type[Operation], str] = {
    Norm: "the settings of the norm: eps, a gain with 1 added, the mean taken off or not",
    HeadNorm: "the settings of the norm of queries and keys: in each head, or over all",
    Rotate: "the rotary settings: base, scaling, halves or pairs of rows, the first position",
    Linear: "a weight: another matrix, transposed, its rows in another order, without its bias",
    Scores: "which key head serves which query head",
    Mix: "which value head serves which query head",
    Concat: "the order of the heads",
    Mask: "which keys a query sees: those up to itself, or of a window",
    Scale: "what scores are divided by",
    Softmax: "the axis of the softmax",
    Activate: "the activation: which, or which of gate and hidden units is activated",
    Add: "which tensors are added to the stream",
    Lookup: "the tokens, or the scale of the embeddings",
    Positions: "the first position, or the offset of the table",
}
"""What is usually wrong in a step of an operation, where no mistake that was tried gives the numbers."""
