"""Why a step of another program may have other numbers: the mistakes that ports have, each tried on our own inputs.

A mistake that gives the other program's numbers is the cause, as far as these numbers can tell. Shapes: T tokens,
H heads, D head width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.dumps.fit import apart, in_halves, in_pairs, is_turned
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
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.steps.table import ACTIVATION_NAMES, Place
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
            made = _after(trace, (*unseen, place), some) if made is None else made
            if made.shape == theirs.shape and apart(theirs, made) <= limit:
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
    """The mistakes that an operation invites, and then those of any."""
    for kind, ways in _WAYS.items():
        if isinstance(site.operation, kind):
            yield from ways(site, theirs)
    if is_turned(site.step):
        ours = site.value
        yield (
            "the rows of each head in pairs (0, 1), (2, 3) … as in GGUF and Meta's files, not in halves",
            in_pairs(ours, site.config),
        )
        yield "the rows of each head in halves, where the file has pairs", in_halves(ours, site.config)
    for step in () if site.layer is None else site.trace.steps.in_layer(site.layer):
        if step.module and step.axes == site.step.axes and step.name != site.step.name:
            other = site.trace.step(step.name, site.layer)
            yield f"the numbers of {step.full_name(site.layer)}, so two weights are in each other's place", other


def _norm(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    x, operation = site.input(), site.operation
    assert isinstance(operation, Norm)
    gain, bias = getattr(site.module, "weight", None), getattr(site.module, "bias", None)
    gain = torch.ones(()) if gain is None else gain

    def normed(eps: float, centred: bool, scale: Tensor) -> Tensor:
        moved = x - x.mean(-1, keepdim=True) if centred else x
        made = moved / (moved.square().mean(-1, keepdim=True) + eps).sqrt() * scale
        return made if bias is None else made + bias

    if isinstance(operation, HeadNorm):
        return
    tried = list(_EPS)
    if theirs is not None and bias is None:  # y = x·gain / √(mean x² + eps), solved for eps
        squares = ((x * gain / theirs).square() - x.square().mean(-1, keepdim=True)).double()
        found = float(squares[squares.isfinite()].median()) if squares.isfinite().any() else 0.0
        tried += [float(f"{found:.{digits}g}") for digits in (1, 2)]
    for eps in dict.fromkeys(tried):
        if eps >= 0:
            yield f"eps {eps:g}, where it is {operation.eps:g}", normed(eps, operation.centred, gain)
    other = "LayerNorm, where it is RMSNorm" if not operation.centred else "RMSNorm, where it is LayerNorm"
    yield other, normed(operation.eps, not operation.centred, gain)
    yield "1 added to the gain", normed(operation.eps, operation.centred, gain + 1)
    yield "1 not added to the gain", normed(operation.eps, operation.centred, gain - 1)
    yield "no gain", normed(operation.eps, operation.centred, torch.ones(()))


def _rotate(site: Site, theirs: Tensor | None) -> Iterator[Way]:
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
            f"a rotary base of {base:,.0f}, where it is {rope.theta:,.0f}",
            Rotate(rope._replace(theta=base)).forward(x),
        )
    shifted = operation.forward(torch.cat((x[:, :1], x), dim=1))[:, 1:]
    yield "positions counted from 1", shifted
    config = site.config
    yield (
        "pairs (0, 1), (2, 3) … turned, where the halves are",
        in_pairs(operation.forward(in_halves(x, config)), config),
    )
    yield "nothing turned", x
    yield "turned the other way", _turned_back(operation, x)
    if rope.scaling != "none":
        yield f"no {rope.scaling} scaling of the angles", Rotate(rope._replace(scaling="none")).forward(x)


def _turned_back(operation: Rotate, x: Tensor) -> Tensor:
    """Turned by the opposite angles, as the transposed rotation does."""
    half, width = operation.rope.width // 2, operation.rope.width
    flipped = torch.cat((x[..., :half], -x[..., half:width], x[..., width:]), dim=-1)
    made = operation.forward(flipped)
    return torch.cat((made[..., :half], -made[..., half:width], made[..., width:]), dim=-1)


def _linear(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    if site.step.is_vocabulary:
        return
    ours, bias, weight = site.value, site.module.bias, site.weight
    if bias is not None:
        yield "no bias", ours - (bias.unflatten(0, (-1, ours.shape[-1]))[:, None] if site.step.has_heads else bias)
    if weight.shape[0] == weight.shape[1]:
        made = site.input() @ weight + (0 if bias is None else bias)
        heads = site.step.has_heads
        yield "the matrix transposed", made.unflatten(-1, (-1, ours.shape[-1])).transpose(0, 1) if heads else made


def _scores(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    shared = site.config.heads_per_kv
    if shared > 1:
        q, k = site.inputs()
        yield _ORDER.format("key"), q @ k.repeat(shared, 1, 1).transpose(-1, -2)


def _mix(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    shared = site.config.heads_per_kv
    if shared > 1:
        weights, v = site.inputs()
        yield _ORDER.format("value"), weights @ v.repeat(shared, 1, 1)


def _mask(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    x, operation = site.input(), site.operation
    assert isinstance(operation, Mask)
    keys = torch.arange(x.shape[-1], device=x.device)
    yield (
        "only keys before the query are seen, where it sees itself too",
        x.masked_fill(keys[None, :] >= keys[:, None], float("-inf")),
    )
    yield "nothing masked", x
    yield (
        "keys after the query are seen, and none before it",
        x.masked_fill(keys[None, :] < keys[:, None], float("-inf")),
    )
    if operation.sight.window:
        yield "no window", Mask(Sight(operation.sight.causal)).forward(x)


def _scale(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    x, config = site.input(), site.config
    for words, divisor in (
        ("no division", 1.0),
        (f"divided by d_head, {config.d_head}", float(config.d_head)),
        (f"divided by √d_model, √{config.d_model}", config.d_model**0.5),
        (f"divided by √d_head, √{config.d_head}", config.d_head**0.5),
    ):
        yield words, x / divisor


def _activate(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    x, operation = site.inputs(), site.operation
    assert isinstance(operation, Activate)
    for name in ACTIVATIONS:
        if name != operation.name:
            said = f"{ACTIVATION_NAMES[name]}, where it is {ACTIVATION_NAMES[operation.name]}"
            yield said, Activate(name).forward(*x)
    if len(x) > 1:
        yield "the hidden units activated, where the gate is", operation.forward(*reversed(x))
        yield "no gate", operation.forward(x[0])


def _softmax(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    yield "softmax over the queries, where it is over the keys", site.input().softmax(dim=-2)


def _add(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    inputs = site.inputs()
    for number, (name, layer) in enumerate(site.sources if len(inputs) > 1 else ()):
        left = site.trace.steps.at(name, layer).full_name(layer)
        yield f"{left} not added", sum((one for place, one in enumerate(inputs) if place != number), torch.zeros(()))


def _lookup(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    if site.config.embed_scale != 1:
        yield f"not multiplied by {site.config.embed_scale:.4g}", site.value / site.config.embed_scale


def _positions(site: Site, theirs: Tensor | None) -> Iterator[Way]:
    ours = site.value
    table: Tensor | None = getattr(site.module, "weight", None)
    offset = site.config.position_offset
    for start in (0, 1, 2):
        if table is not None and start != offset and start + len(ours) <= len(table):
            yield f"positions counted from {start}, where it is from {offset}", table[start : start + len(ours)]


_ORDER = "{} heads in turns (0, 1, 0, 1) over the query heads, where each serves neighbours (0, 0, 1, 1)"

_WAYS: dict[type[Operation], Callable[[Site, Tensor | None], Iterator[Way]]] = {
    Norm: _norm,
    Rotate: _rotate,
    Linear: _linear,
    Scores: _scores,
    Mix: _mix,
    Mask: _mask,
    Scale: _scale,
    Activate: _activate,
    Softmax: _softmax,
    Add: _add,
    Lookup: _lookup,
    Positions: _positions,
}

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
