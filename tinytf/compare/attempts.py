"""What is tried at a step that differs: settings of its operation, other tensors of the model, and usual mistakes.

Each attempt is a formula, so that the run can be continued with it. Shapes: T tokens, H heads, D head width, C columns.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gguf
import torch
from torch import Tensor

from tinytf.compare.altered import altered, cut_otherwise, of_other_steps
from tinytf.compare.constants import plain, shown, solved_base, solved_eps
from tinytf.compare.dumps.fit import distance, in_halves, is_turned
from tinytf.compare.masks import mask_numbers, masks, shares
from tinytf.compare.mistakes import MISTAKES
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.norms import normed
from tinytf.compare.positions import positions
from tinytf.compare.settings import Number, Program, linked, numbers, programs
from tinytf.config import ModelConfig
from tinytf.parts.part import worded
from tinytf.parts.row import Step
from tinytf.sentences import listed
from tinytf.steps.operations import (
    Add,
    Concat,
    ExpertLinear,
    HeadNorm,
    Linear,
    Lookup,
    Mask,
    Norm,
    Operation,
    Pool,
    Rotate,
    Scale,
    Softmax,
    Softplus,
    Unembed,
)
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.operations.operation import into_heads, side_by_side
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.site import Site

Change = Callable[[Tensor], Tensor]
_SOLVED = ("ε is 1", "ε is 0.0", "RoPE's base is")
"""Mistakes whose number is solved for."""
_FLOAT16_MAX = 65_504.0
_STEP, _NUMBERS = re.compile(r"\bL\d+\.[\w.]*\w"), re.compile(r"(?<!\w)[−-]?\d[\d,.]*(?:e[+-]?\d+)?(?<![,.])(?!\w)")
_MOST_LATE = 3
"""The most tokens by which a step is tried to be shifted."""
_MOST_EXPERTS = 16
"""The most experts of which every two are exchanged."""


@dataclass(frozen=True)
class Attempt:
    """A mistake in ``words``, and the ``wrong`` formula of its step.

    Steps of the operations of ``also`` change with it, and those of its layer in ``beside``, by name. One that is
    ``local`` is of this layer alone, such as the weight of another layer in its place; ``rounding`` gives the same
    numbers only until the next step rounds; one of a ``setting`` has that at another value. A ``vague`` one says how
    numbers are related, and gives way to one that says why, as one whose solved numbers have many ``digits`` gives way
    to one with few.
    """

    words: str
    wrong: Wrong
    also: tuple[tuple[type[Operation], Wrong], ...] = ()
    beside: Mapping[str, Wrong] = field(default_factory=dict)
    local: bool = False
    rounding: bool = False
    vague: bool = False
    digits: int = 0
    setting: str = ""


def kind_of(words: str) -> str:
    """The words of a mistake without its numbers and the names of steps."""
    return _NUMBERS.sub("…", _STEP.sub("another step", words))


@dataclass(frozen=True)
class Unknown:
    """Mistakes with numbers that are solved for from a later step: the one ``of`` these, and where to begin.

    One of many that differ in the value of another setting says which number is solved for ``beside`` which setting.
    """

    of: Callable[[Sequence[float]], Attempt]
    starts: tuple[tuple[float, ...], ...]
    beside: str = ""


def unknowns(site: Site) -> Iterator[Unknown]:
    """Mistakes with a number at a step that the other program did not save."""
    operation, config = site.operation, site.config
    for of, starts in mask_numbers(site):
        yield Unknown(lambda number, of=of: Attempt(*of(*number)), tuple((start,) for start in starts))  # type: ignore[misc]
    yield from _of_numbers(site, numbers(config))
    if isinstance(operation, Softplus):
        for said, limited in (("most", torch.Tensor.clamp_max), ("least", torch.Tensor.clamp_min)):
            yield Unknown(partial(_limited, said, limited), tuple((start,) for start in (0.05, 0.2, 0.5, 1.0, 2.0)))
    if isinstance(operation, Rotate | Scale):
        yield Unknown(partial(_larger, site), ((1.0,),))


def _larger(site: Site, numbers: Sequence[float]) -> Attempt:
    """What is rotated, or scaled, by a factor: those of both may give the same scores."""
    what = "what RoPE turns is" if isinstance(site.operation, Rotate) else "it is"
    what = "scores are" if site.step.name == "scaled" else what
    digits = len(f"{plain(numbers[0], 1e-4):g}".replace(".", "").strip("0"))
    return Attempt(f"{what} {shown(numbers[0], site.config, 1e-4)} times as large", _times(numbers[0]), digits=digits)


def linked_unknowns(site: Site) -> Iterator[Unknown]:
    """Mistakes with two settings of one part at a step that the other program did not save."""
    return _of_numbers(site, linked(site.config))


def _of_numbers(site: Site, settings: Iterable[Number]) -> Iterator[Unknown]:
    for number in settings:
        if (site.step.name, site.layer) in number.changed:
            beside = " ".join((*number.names, *(name for name, _ in number.set))) if number.set else ""
            yield Unknown(partial(_of_number, site, number), number.starts, beside)


def _limited(said: str, limited: Callable[[Tensor, float], Tensor], numbers: Sequence[float]) -> Attempt:
    number = plain(numbers[0], 1e-4)
    return Attempt(f"steps are at {said} {number:g}", lambda site: limited(site.derive(), number))


def _of_number(site: Site, number: Number, logarithms: Sequence[float]) -> Attempt:
    return _of_program(site, number.program(logarithms))


def attempts(site: Site, theirs: Tensor | None, tokens: range) -> Iterator[Attempt]:
    """Attempts at a step; some are solved for from ``theirs``, its numbers in the other program, if these are known.

    The ``tokens`` reach from the first that differs in the other program to the last. Here a query that sees no key has
    weights of 0; elsewhere they may be NaN, which is tried too.
    """
    for attempt in _attempts(site, theirs, tokens):
        yield attempt
        if isinstance(site.operation, Mask) and _leaves_nothing(attempt, site):
            words = f"{attempt.words}, and the softmax of a query that sees nothing is NaN"
            yield replace(attempt, words=words, also=(*attempt.also, (Softmax, lambda one: one.input().softmax(-1))))


def _leaves_nothing(attempt: Attempt, site: Site) -> bool:
    """Whether a mistake of a mask hides all keys from a query."""
    with suppress(RuntimeError, IndexError):
        return bool(attempt.wrong(site).isneginf().all(-1).any())
    return False


def _attempts(site: Site, theirs: Tensor | None, tokens: range) -> Iterator[Attempt]:
    operation = site.operation
    if isinstance(operation, Norm):
        yield from _of_norm(site, theirs)
    elif isinstance(operation, Rotate):
        yield from _of_rotation(site, theirs)
    elif isinstance(operation, Pool):
        yield from _fewer_pooled(operation)
    elif isinstance(operation, Lookup) and theirs is not None:
        yield from _other_tokens(site, theirs)
    for mistake in MISTAKES:
        if mistake.fits(site.step) and not mistake.words.startswith(_SOLVED):
            yield Attempt(mistake.words, mistake.wrong, mistake.also)
    yield from _of_settings(site)
    places = positions(tokens) if isinstance(operation, Rotate) else ()
    yield from (Attempt(*one) for one in (*places, *masks(site, tokens), *shares(site)))
    if is_turned(site.step, site.config):
        yield from _other_rows(site)
    yield from _other_tensors(site)
    for words, formulas in cut_otherwise(site):
        beside = {name: wrong for name, wrong in formulas.items() if name != site.step.name}
        yield Attempt(words, formulas[site.step.name], beside=beside)
    yield from (Attempt(words, wrong) for words, wrong in altered(site))
    for words, wrong, swapped in of_other_steps(site):
        yield Attempt(words, wrong, beside=swapped, local=True)
    if isinstance(operation, Linear):
        yield from (Attempt(f"the weights are rounded to {name}", _with(change)) for name, change in FORMATS.items())
    if isinstance(operation, Softmax | Norm):
        yield from _less_precise(operation)
    if isinstance(operation, ExpertLinear) and site.step.name == "expert.out" and site.config.experts <= _MOST_EXPERTS:
        yield from _exchanged_experts(site.config.experts)
    if theirs is not None and theirs.shape == site.value.shape:
        yield from _relations(site, theirs)
    elif isinstance(operation, Add):
        for factor in (math.sqrt(0.5), math.sqrt(2), 0.5, 2.0):
            yield Attempt(f"it is {shown(factor, site.config)} times as large", _times(factor))


def _set(operation: Operation, **settings: Any) -> Wrong:
    """The operation of the step with other settings, where it is this one: layers may differ."""

    def wrong(site: Site) -> Tensor:
        if site.operation != operation:
            raise RuntimeError("another operation")
        return replace(operation, **settings).forward(*site.inputs())  # type: ignore[type-var]

    return wrong


def _of_settings(site: Site) -> Iterator[Attempt]:
    """The step as programs compute it in which one setting of a part has another value, with what changes after it."""
    for program in programs(site.trace.config):
        if (site.step.name, site.layer) in program.changed:
            yield _of_program(site, program)


def _of_program(site: Site, program: Program) -> Attempt:
    """The step as a program computes it, and the other rows of its layer that change, but those of its operation."""
    rows = [row for row, layer in site.trace.steps.rows if layer == site.layer]
    names = [row.name for row in rows if type(row.operation) is not type(site.operation)]
    beside = {name: program.wrong for name in names if (name, site.layer) in program.changed}
    return Attempt(program.words, program.wrong, beside=beside, digits=program.digits, setting=program.setting)


def _of_norm(site: Site, theirs: Tensor | None) -> Iterator[Attempt]:
    operation, module = site.operation, site.module
    assert isinstance(operation, Norm)
    if site.step.has_heads and theirs is not None and theirs.shape == site.value.shape:
        yield from _over_groups(site, theirs)
    if isinstance(operation, HeadNorm):
        return
    if theirs is not None:
        bias = getattr(module, "bias", None)
        for centred in (operation.centred, not operation.centred):
            eps = solved_eps(site.input(), theirs, gain_of(module), bias, centred=centred)
            form = "" if centred == operation.centred else "the mean is " + "not " * (not centred) + "subtracted, and "
            if eps >= 0:
                taken, due = worded(float(f"{eps:.4g}")), worded(operation.eps)
                if taken != due:
                    yield Attempt(f"{form}eps {taken} instead of {due}", _normed(eps=eps, centred=centred))
    if getattr(module, "weight", None) is not None:
        yield Attempt("the gain is the stored weight, without the 1 that is added to it", _normed(gain=-1.0))


def _over_groups(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """A norm of heads over each, over all, or over groups of them, with the ε that is solved for."""
    assert isinstance(site.operation, Norm)
    heads, eps = len(theirs), site.operation.eps
    own = (site.operation.groups if isinstance(site.operation, HeadNorm) else 0) or heads  # 0: each by itself
    x, gain, wanted = (side_by_side(site.input()), gain_of(site.module).detach(), side_by_side(theirs))
    gain = gain.repeat(heads) if gain.numel() == theirs.shape[-1] else gain.expand(x.shape[-1])
    names = {1: "over all heads", heads: "over each head"}
    for groups in (count for count in range(1, heads + 1) if heads % count == 0 and count != own):
        cut_x, normed, gains = (one.unflatten(-1, (groups, -1)) for one in (x, wanted, gain))
        solved = solved_eps(cut_x, normed, gains, None, centred=site.operation.centred)
        solved = eps if solved < 0 or abs(solved - eps) < 1e-3 * eps else solved
        words = f"the norm is {names.get(groups, f'over groups of {heads // groups} heads')}"
        words += f", not {names.get(own, f'over groups of {heads // own} heads')}"
        words += "" if solved == eps else f", and eps {worded(float(f'{solved:.4g}'))} instead of {worded(eps)}"
        yield Attempt(words, partial(_normed_in_groups, groups, solved))


def _normed_in_groups(groups: int, eps: float, site: Site) -> Tensor:
    flat, gain = side_by_side(site.input()), gain_of(site.module)
    x = flat.unflatten(-1, (groups, -1))
    x = x - x.mean(-1, keepdim=True) if site.operation.centred else x  # type: ignore[attr-defined]
    scaled = (x / (x.square().mean(-1, keepdim=True) + eps).sqrt()).view_as(flat)
    by_head = gain.numel() == site.input().shape[-1]
    return into_heads(scaled * (gain.repeat(len(site.input())) if by_head else gain), site.input().shape[-1])


def _normed(**settings: Any) -> Wrong:
    return lambda site: normed(site, **settings)


def _of_rotation(site: Site, theirs: Tensor | None) -> Iterator[Attempt]:
    x, operation = site.input(), site.operation
    assert isinstance(operation, Rotate)
    rope = operation.rope
    if theirs is not None and 1 < (base := solved_base(x, theirs, rope)) < 1e12:
        words = f"a rotary base of {worded(base)} instead of {worded(rope.theta)}"
        yield Attempt(words, _set(operation, rope=rope._replace(theta=base)))


def _other_tokens(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """The rows of the table that the other program took."""
    operation = site.operation
    assert isinstance(operation, Lookup)
    table, ids = site.module.weight * site.module.scale, torch.tensor(operation.ids(site))
    different = (theirs - site.value).abs().amax(-1) > 1e-4 * site.value.abs().amax()
    if theirs.shape[-1] != table.shape[-1] or not different.any() or site.layer is not None:
        return
    taken = ids.clone()
    for token in different.nonzero().flatten().tolist():
        taken[token] = int((table @ theirs[token] - table.square().sum(-1) / 2).argmax())
    if torch.equal(taken, ids):
        return
    at, moved = int((taken != ids).nonzero()[0]), {int(step) for step in taken - ids}
    words = f"token {at} has the embedding of id {int(taken[at]):,}, not of {int(ids[at]):,}"
    if operation.types:
        words = f"token {at} has token type {int(taken[at])}, not {int(ids[at])}"
    elif moved in ({1}, {-1}):
        words, by = (
            f"every token has the embedding of {'the next id' if moved == {1} else 'the id before'}",
            moved.pop(),
        )
        yield Attempt(words, lambda site: table[[(number + by) % len(table) for number in operation.ids(site)]])
        return
    yield Attempt(words, lambda site: table[taken])


def _fewer_pooled(operation: Pool) -> Iterator[Attempt]:
    cuts = {"the last": slice(-1), "the first": slice(1, None), "the first and last": slice(1, -1)}
    for left_out, kept in cuts.items():
        yield Attempt(f"{left_out} token is left out of the pooling", _pooled(operation, kept))


def _pooled(operation: Pool, kept: slice) -> Wrong:
    return lambda site: operation.forward(site.input()[kept])


def _other_rows(site: Site) -> Iterator[Attempt]:
    """The rows of queries and keys in pairs or halves: of this step, and of both."""
    both = [
        step.name for step in site.trace.steps.in_layer(site.layer or 0) if step.module and is_turned(step, site.config)
    ]
    orders = {
        "the rows of each head in pairs, as in GGUF and in Meta's files, instead of halves": in_pairs,
        "the rows of each head in halves instead of pairs": in_halves,
    }
    if site.config.rope.width < site.config.d_head:
        for paired in (False, True):
            for words, first in (("the last rows of each head instead of the first", True),
                                 ("the first rows of each head instead of the last", False)):  # fmt: skip
                orders[f"RoPE's part is taken from {words}"] = partial(_part_moved, first, paired)
    for words, order in orders.items():
        wrong = _ordered(order)
        beside = {name: wrong for name in both if name != site.step.name}
        yield Attempt(words, wrong)
        yield Attempt(f"{words}, of queries and keys", wrong, beside=beside)


def _part_moved(is_first: bool, paired: bool, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Heads (H, T, D) whose part for RoPE, the first rows here, is stored first or last, and taken from the other end.

    Where it is ``paired``, its rows are in pairs when it is moved.
    """
    width = config.rope.width
    stored = in_pairs(tensor, config) if paired else tensor
    moved = stored.roll(width if is_first else -width, -1)
    return in_halves(moved, config) if paired else moved


def _ordered(order: Callable[[Tensor, Any], Tensor]) -> Wrong:
    return lambda site: order(site.derive(), site.config)


def _laid(site: Site, product: Tensor) -> Tensor:
    """The output of a matrix, (T, rows), in the axes of the step."""
    if not site.step.has_heads or product.dim() != 2:
        return product
    heads = site.config.n_kv_heads if "kv head" in site.step.axes else site.config.n_heads
    return product.unflatten(-1, (heads, -1)).transpose(0, 1)


def _flat(x: Tensor) -> Tensor:
    """Heads side by side: (H, T, D) -> (T, H·D)."""
    return x.transpose(0, 1).flatten(1) if x.dim() == 3 else x


def _other_tensors(site: Site) -> Iterator[Attempt]:
    """The numbers of other steps of the layer, and weights of other steps and layers in the place of this one's."""
    steps, operation = site.trace.steps, site.operation
    for step in () if site.layer is None else steps.in_layer(site.layer):
        if step.module and step.axes == site.step.axes and step.name != site.step.name:
            words, both = f"the numbers of {step.full_name(site.layer)}", {step.name: _numbers_of(site.step)}
            yield Attempt(words, _numbers_of(step), local=True)
            yield Attempt(f"{words}, so two weights are swapped", _numbers_of(step), beside=both, local=True)
    own: Any = getattr(site.module, "weight", None) if site.step.module and type(operation) in (Linear, Norm) else None
    for step, layer in steps.rows if own is not None else ():
        if not step.module or type(step.operation) is not type(operation) or site.name == step.full_name(layer):
            continue
        other = Site(site.trace, step, layer).module
        if getattr(getattr(other, "weight", None), "shape", None) != own.shape:
            continue
        if isinstance(operation, Linear):
            if step.name == site.step.name:
                yield Attempt(f"the weight of {step.full_name(layer)}", _through(other), local=True)
            continue
        words = f"the gain of {step.full_name(layer)}"
        yield Attempt(words, _with_gain(other.weight), local=True)
        if layer == site.layer:
            both = {step.name: _with_gain(own)}
            yield Attempt(f"{words}, so two gains are swapped", _with_gain(other.weight), beside=both, local=True)


def _numbers_of(step: Step) -> Wrong:
    return lambda site: Site(site.trace, step, site.layer).derive()


def _gained(site: Site, gain: Tensor) -> Tensor:
    return normed(site, gain=None, bias=False) * gain


def _with_gain(gain: Tensor) -> Wrong:
    return lambda site: _gained(site, gain)


def _through(module: Any) -> Wrong:
    return lambda site: _laid(site, module(site.input()))


def _with(change: Change) -> Wrong:
    """A linear map with its matrix changed."""

    def wrong(site: Site) -> Tensor:
        bias, product = getattr(site.module, "bias", None), site.input() @ change(site.weight).T
        return _laid(site, product if bias is None else product + bias)

    return wrong


def _to(dtype: torch.dtype) -> Change:
    return lambda numbers: numbers.to(dtype).to(numbers.dtype)


def _to_int8(of_row: bool) -> Change:
    """Whole numbers from −127 to 127 times a scale: one for each row, or for all."""

    def rounded(weight: Tensor) -> Tensor:
        scale = (weight.abs().amax(-1, keepdim=True) if of_row else weight.abs().amax()) / 127
        return (weight / scale).round() * scale

    return rounded


def _in_blocks(kind: gguf.GGMLQuantizationType) -> Change:
    """A format of GGML, whose rows are whole blocks of numbers with a scale each."""

    def rounded(weight: Tensor) -> Tensor:
        if weight.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            raise RuntimeError("a row is not a whole number of blocks")
        stored = gguf.quants.quantize(weight.detach().float().cpu().numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(stored, kind)).to(weight)

    return rounded


_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FORMATS: dict[str, Change] = {
    **{name: _to(dtype) for name, dtype in _PRECISIONS.items()},
    "float8 (e4m3)": _to(torch.float8_e4m3fn),
    "float8 (e5m2)": _to(torch.float8_e5m2),
    "int8, a scale for each row": _to_int8(of_row=True),
    "int8, one scale for the matrix": _to_int8(of_row=False),
    **{name: _in_blocks(gguf.GGMLQuantizationType[name]) for name in ("Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1")},
}
"""What the numbers of a matrix become when they are stored in a format and read back."""


def _less_precise(operation: Operation) -> Iterator[Attempt]:
    """A softmax or RMSNorm that is computed in fewer bits."""
    for name, dtype in _PRECISIONS.items():
        if isinstance(operation, Softmax):
            yield Attempt(f"the softmax is computed in {name}", _softmax_in(dtype), rounding=True)
        elif type(operation) is Norm and not operation.centred:
            yield Attempt(f"the norm is computed in {name}", _norm_in(dtype, gain=False), rounding=True)
            yield Attempt(f"the norm and its gain are computed in {name}", _norm_in(dtype, gain=True), rounding=True)
            yield Attempt(f"the gain is computed in {name}", _gain_in(dtype))
            for stages in itertools.product((False, True), repeat=4):
                rounded = [part for part, is_rounded in zip(_STAGES, stages, strict=True) if is_rounded]
                if rounded and rounded != ["its gain"]:
                    words = f"the norm has {listed(rounded)} in {name}"
                    yield Attempt(words, partial(_norm_rounding, dtype, stages), rounding=True)


_STAGES = ("its input", "what is normed", "its gain", "their product")
"""What a norm may round."""


def _softmax_in(dtype: torch.dtype) -> Wrong:
    return lambda site: site.input().to(dtype).softmax(-1).to(site.input().dtype)


def _gain_in(dtype: torch.dtype) -> Wrong:
    return lambda site: _gained(site, _to(dtype)(gain_of(site.module)))


def _norm_in(dtype: torch.dtype, *, gain: bool) -> Wrong:
    def wrong(site: Site) -> Tensor:
        x, by = site.input().to(dtype), gain_of(site.module)
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + site.operation.eps)  # type: ignore[attr-defined]
        return (normed * by.to(dtype)).to(by.dtype) if gain else normed.to(by.dtype) * by

    return wrong


def _norm_rounding(dtype: torch.dtype, stages: tuple[bool, ...], site: Site) -> Tensor:
    """An RMSNorm that rounds its input, the normed numbers, its gain or their product."""
    x, scaled, gain, product = (_to(dtype) if rounded else _as_it_is for rounded in stages)
    numbers = x(site.input())
    numbers = scaled(numbers * torch.rsqrt(numbers.square().mean(-1, keepdim=True) + site.operation.eps))  # type: ignore[attr-defined]
    return product(numbers * gain(gain_of(site.module)))


def _as_it_is(numbers: Tensor) -> Tensor:
    return numbers


def _exchanged_experts(count: int) -> Iterator[Attempt]:
    for first in range(count):
        for second in range(first + 1, count):
            words = f"experts {first} and {second} are in each other's place"
            yield Attempt(words, _exchanged(first, second), local=True)


def _exchanged(first: int, second: int) -> Wrong:
    """What all experts give, (E, T, C), with the weights of two exchanged."""

    def wrong(site: Site) -> Tensor:
        trace, layer, outputs = site.trace, site.layer, site.derive().clone()
        up, act = (trace.steps.at(f"expert.{name}", layer) for name in ("hidden", "act"))
        x, chosen = (trace.step(*place) for place in trace.steps.sources(up, layer))
        for expert, other in ((first, second), (second, first)):
            sent = chosen[:, expert] != 0
            inputs, given = (x[expert] if x.dim() > 2 else x)[sent], []
            for name, _ in trace.steps.sources(act, layer):
                linear = Site(trace, trace.steps.at(name, layer), layer)
                given.append(linear.operation.for_expert(linear.module, other, inputs))
            hidden = act.operation.forward(*given)
            outputs[expert, sent] = site.operation.for_expert(site.module, other, hidden)
        return outputs

    return wrong


def _relations(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """What turns our numbers into theirs: nothing, a factor, an addition, another order of rows."""
    ours = site.value
    if not bool(theirs.isfinite().all()) and bool((ours.abs() > _FLOAT16_MAX).any()):
        reaches = f"{float(ours[ours.isfinite()].abs().max()):,.0f}"
        yield Attempt(f"it reaches {reaches} and overflows float16, whose largest number is 65,504", _overflowing)
    if not theirs.any():
        yield Attempt("it is all 0", lambda site: torch.zeros_like(site.derive()), vague=True)
    elif bool(ours.isfinite().all() & theirs.isfinite().all()):
        size = float(ours.double().square().sum()) or 1.0
        factor = plain(float((ours.double() * theirs.double()).sum()) / size)
        if factor != 1:
            words = f"it is {shown(factor, site.config)} times as large"
            yield Attempt(words, _times(factor), vague=True)
        yield from _unlike(site, ours, theirs)
        yield from _other_places(site.step, ours, theirs)
        if isinstance(site.operation, Add):
            yield from _weighted(site, theirs)
        yield from _additions(site.step, ours, theirs)
        yield from _orders(site, theirs)


def _unlike(site: Site, ours: Tensor, theirs: Tensor) -> Iterator[Attempt]:
    """A head whose logits have nothing in common with ours: its matrix was lacking in a file, say, and drawn anew."""
    alike = float(torch.cosine_similarity(ours.double().flatten(), theirs.double().flatten(), 0))
    if isinstance(site.operation, Unembed) and ours.numel() >= _MANY and abs(alike) < _UNLIKE:
        tied = " not the embeddings that it is tied to," * (site.operation.matrix(site.module) is None)
        words = f"its weight is another matrix,{tied} as one drawn anew: nothing is alike (cosine {alike:.2f})"
        numbers = theirs.to(ours.dtype)
        yield Attempt(words, lambda _: numbers, local=True, vague=True)


_MANY, _UNLIKE = 1_000, 0.1
"""Of how many numbers, and up to which cosine, two outputs have nothing in common."""


def _weighted(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """A sum in which one summand is larger or smaller: each by its factor of least squares."""
    inputs = [one.double() for one in site.inputs()]
    for index, (summand, (name, layer)) in enumerate(zip(inputs, site.sources, strict=True)):
        rest = theirs.double() - sum(one for at, one in enumerate(inputs) if at != index)
        factor = plain(float((rest * summand).sum() / (summand.square().sum() or 1.0)))
        if summand.shape == theirs.shape and factor not in (0.0, 1.0):
            words = f"{site.trace.steps.at(name, layer).full_name(layer)} is added {shown(factor, site.config)} times"
            yield Attempt(words, partial(_with_weight, index, factor))


def _with_weight(index: int, factor: float, site: Site) -> Tensor:
    first, *others = (one * factor if at == index else one for at, one in enumerate(site.inputs()))
    return sum(others, first)


def _times(factor: float) -> Wrong:
    return lambda site: site.derive() * factor


def _overflowing(site: Site) -> Tensor:
    """Numbers beyond float16 as infinities."""
    numbers = site.derive()
    return torch.where(numbers.abs() > _FLOAT16_MAX, numbers.sign() * torch.inf, numbers)


def _other_places(step: Step, ours: Tensor, theirs: Tensor) -> Iterator[Attempt]:
    """Tokens that have the numbers of others before or after them; those at the end are as they may be."""
    axis = step.token_axis
    if axis is None or step.is_map:
        return
    count = ours.shape[axis]
    for by in (by for shift in range(1, min(_MOST_LATE, count - 2) + 1) for by in (shift, -shift)):
        moved, own = theirs.narrow(axis, max(0, by), count - abs(by)), ours.narrow(axis, max(0, -by), count - abs(by))
        if distance(moved, own) > 1e-3:
            continue
        far = f"{abs(by)} " if abs(by) > 1 else ""
        words = f"every token has the numbers of the token {far}{'before' if by > 0 else 'after'} it"
        edge = theirs.narrow(axis, 0 if by > 0 else count + by, abs(by))

        def late(site: Site, by: int = by, edge: Tensor = edge) -> Tensor:
            kept = site.derive().narrow(axis, max(0, -by), count - abs(by))
            return torch.cat((edge.to(kept), kept) if by > 0 else (kept, edge.to(kept)), dim=axis)

        yield Attempt(words, late, local=True, vague=True)


def _additions(step: Step, ours: Tensor, theirs: Tensor) -> Iterator[Attempt]:
    """A vector that every token has more: a bias."""
    if step.token_axis is None or step.is_map or ours.shape[step.token_axis] < 3:
        return
    added = theirs.double() - ours.double()
    vector = added.median(step.token_axis, keepdim=True).values
    noise = 1e-5 * theirs.abs().amax(-1, keepdim=True) + 1e-2 * vector.abs().max()
    if bool(((added - vector).abs() > noise).any()) or not vector.any():
        return
    constant = float(f"{float(vector.median()):.2g}")
    alike = float((vector - constant).abs().max()) <= 5e-2 * abs(constant)
    words = f"{constant:g} is added to every number" if alike else "a vector is added to every token: a bias too many"
    by = constant if alike else vector.to(ours.dtype)
    yield Attempt(words, lambda site: site.derive() + by, local=True, vague=True)


def _orders(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """The rows of a matrix in another order, with its bias or without: theirs has the columns of ours in that order."""
    a, b, step = _flat(site.value), _flat(theirs), site.step
    joined = isinstance(step.operation, Concat)
    if step.token_axis is None or step.is_map or not (step.module or joined) or a.dim() != 2 or len(a) < 2:
        return
    probe = torch.linspace(1, 2, len(a), dtype=torch.float64, device=a.device).sin() + 1.5
    bias = None if joined else getattr(site.module, "bias", None)
    for kept in (torch.zeros_like(a[0]), *([bias.detach()] if bias is not None and len(bias) == a.shape[1] else [])):
        order = torch.empty(a.shape[1], dtype=torch.long, device=a.device)
        order[(probe @ (b - kept).double()).argsort()] = (probe @ (a - kept).double()).argsort()
        if bool((order != torch.arange(len(order), device=order.device)).any()):
            heads = site.config.n_heads if joined else len(theirs) if theirs.dim() == 3 else 0
            words = order_in_words(order, heads) + ", but not its bias" * bool(kept.any())
            yield Attempt(words, _with_columns(order, kept), local=not joined, vague=True)


def _with_columns(order: Tensor, kept: Tensor) -> Wrong:
    return lambda site: _laid(site, (_flat(site.derive()) - kept)[:, order] + kept)


def order_in_words(order: Tensor, heads: int) -> str:
    """What another order of rows is: whole heads, rolled, or any."""
    count, places = len(order), torch.arange(len(order), device=order.device)
    if heads > 1 and not count % heads:
        blocks = order.view(heads, -1)
        if bool((blocks - blocks[:, :1] == places[: blocks.shape[1]]).all()):
            return (
                f"its heads in another order: {' '.join(str(int(first) // blocks.shape[1]) for first in blocks[:, 0])}"
            )
    shift = int(-order[0]) % count
    if bool((order == (places - shift) % count).all()):
        return f"its rows are rolled by {shift if shift <= count // 2 else shift - count}"
    return "its rows in another order"
