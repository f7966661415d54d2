"""What is tried at a step that differs: settings of its operation, other tensors of the model, and usual mistakes.

Each attempt is a formula, so that the run can be continued with it. Shapes: T tokens, H heads, D head width, C columns.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gguf
import torch
from torch import Tensor

from tinytf.compare.dumps.fit import in_halves, is_turned
from tinytf.compare.mistakes import MISTAKES
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.norms import normed
from tinytf.parts.row import Step
from tinytf.steps.operations import (
    Choose,
    ExpertLinear,
    HeadNorm,
    Linear,
    Lookup,
    Mask,
    Norm,
    Operation,
    Rotate,
    Route,
    Sight,
    Softmax,
)
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.operations.rotate import rotary_frequencies, rotate
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.site import Site

_BASES = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)
_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4)
_SOLVED = ("ε is 1", "ε is 0.0", "RoPE's base is")
"""Mistakes whose number is solved for."""
_MOST_EXPERTS, _MOST_TOKENS = 16, 128
"""The most experts of which every two are exchanged, and the longest text in which positions begin again anywhere."""


@dataclass(frozen=True)
class Attempt:
    """A mistake in ``words``, and the ``wrong`` formula of its step.

    Steps of the operations of ``also`` change with it, and those of its layer in ``beside``, by name. One that is
    ``local`` is of this layer alone, such as the weight of another layer in its place; ``rounding`` gives the same
    numbers only until the next step rounds. A ``vague`` one says how numbers are related, and gives way to one that
    says why.
    """

    words: str
    wrong: Wrong
    also: tuple[tuple[type[Operation], Wrong], ...] = ()
    beside: Mapping[str, Wrong] = field(default_factory=dict)
    local: bool = False
    rounding: bool = False
    vague: bool = False


def attempts(site: Site, theirs: Tensor | None) -> Iterator[Attempt]:
    """Attempts at a step; some are solved for from ``theirs``, its numbers in the other program, if these are known."""
    operation = site.operation
    if isinstance(operation, Norm):
        yield from _of_norm(site, theirs)
    elif isinstance(operation, Rotate):
        yield from _of_rotation(site, theirs)
    elif isinstance(operation, Mask) and operation.sight.window:
        yield from _of_window(operation.sight)
    elif isinstance(operation, Lookup) and theirs is not None:
        yield from _other_tokens(site, theirs)
    for mistake in MISTAKES:
        if mistake.fits(site.step) and not mistake.words.startswith(_SOLVED):
            yield Attempt(mistake.words, mistake.wrong, mistake.also)
    if is_turned(site.step):
        pairs = "the rows of each head in pairs, as in GGUF and in Meta's files, instead of halves"
        halves = "the rows of each head in halves instead of pairs"
        turned = [step.name for step in site.trace.steps.in_layer(site.layer or 0) if step.module and is_turned(step)]
        for words, reordered in ((pairs, in_pairs), (halves, in_halves)):
            wrong: Wrong = lambda s, reordered=reordered: reordered(s.derive(), s.config)  # type: ignore[misc]  # noqa: E731
            yield Attempt(words, wrong)
            beside = {name: wrong for name in turned if name != site.step.name}
            yield Attempt(f"{words}, of queries and keys", wrong, beside=beside)
    yield from _of_other_tensors(site)
    if isinstance(operation, Linear):
        yield from _rounded_weights()
    if isinstance(operation, Softmax | Norm):
        yield from _in_less_precision(operation)
    if isinstance(operation, Choose):
        for count in (operation.count - 1, operation.count + 1):
            if 0 < count <= site.config.experts:
                words = f"{count} expert{'s' * (count > 1)} a token, not {operation.count}"
                yield Attempt(words, lambda s, count=count: replace(s.operation, count=count).derive(s))  # type: ignore[misc,type-var]
    if isinstance(operation, Route):
        yield from _other_routes(operation)
    if isinstance(operation, ExpertLinear) and site.step.name == "expert.out":
        yield from _exchanged_experts(site.config.experts)
    if theirs is not None and theirs.shape == site.value.shape:
        yield from _relations(site, theirs)


def _of_norm(site: Site, theirs: Tensor | None) -> Iterator[Attempt]:
    operation, module = site.operation, site.module
    assert isinstance(operation, Norm)
    if not isinstance(operation, HeadNorm):
        candidates, x = list(_EPS), site.input()
        if theirs is not None and getattr(module, "bias", None) is None:  # y = x·gain / √(mean x² + eps)
            squares = ((x * gain_of(module) / theirs).square() - x.square().mean(-1, keepdim=True)).double()
            solved = float(squares[squares.isfinite()].median()) if squares.isfinite().any() else 0.0
            candidates += [float(f"{solved:.{digits}g}") for digits in (1, 2)]
        for eps in dict.fromkeys(candidates):
            if eps >= 0:
                yield Attempt(f"eps {eps:g} instead of {operation.eps:g}", lambda s, eps=eps: normed(s, eps=eps))  # type: ignore[misc]
        if getattr(module, "weight", None) is not None:
            yield Attempt("the gain is the stored weight, without the 1 that is added to it",
                          lambda s: normed(s, gain=-1.0))  # fmt: skip


def _other_tokens(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """The rows of the table that the other program took."""
    table, ids = site.module.weight * site.operation.scale, torch.tensor(site.ids)  # type: ignore[attr-defined]
    different = (theirs - site.value).abs().amax(-1) > 1e-4 * site.value.abs().amax()
    if theirs.shape[-1] != table.shape[-1] or not different.any() or site.layer is not None:
        return
    taken = ids.clone()
    for token in different.nonzero().flatten().tolist():
        taken[token] = int((table @ theirs[token] - table.square().sum(-1) / 2).argmax())
    at = int(different.nonzero()[0])
    steps = {int(step) for step in taken - ids}
    shifts = {1: "the next id", -1: "the id before"}
    words = (
        f"every token has the embedding of {shifts[steps.pop()]}"
        if len(steps) == 1 and steps <= {*shifts}
        else (f"token {at} has the embedding of id {int(taken[at]):,}, not of {int(ids[at]):,}")
    )
    yield Attempt(words, lambda s: table[taken])


def _at(places: Callable[[int], Tensor]) -> Wrong:
    """Queries or keys at other positions, made from the count of tokens."""

    def turned(site: Site) -> Tensor:
        rope, x = site.operation.rope, site.input()  # type: ignore[attr-defined]
        angle = places(x.shape[-2]).to(x.dtype)[:, None] * rotary_frequencies(rope.of_text(x.shape[-2]))
        angle = torch.cat((angle, angle), dim=-1)
        return rotate(x, *(wave * rope.attention_factor for wave in (angle.cos(), angle.sin())))

    return turned


def _of_rotation(site: Site, theirs: Tensor | None) -> Iterator[Attempt]:
    x, operation = site.input(), site.operation
    assert isinstance(operation, Rotate)
    rope, width, count = operation.rope, operation.rope.width, len(site.ids)
    bases = [*_BASES, rope.theta * 10, rope.theta / 10]
    if theirs is not None and x.shape[1] > 1 and width > 2:  # the angle of pair 1 at position 1 is base^(−2/width)
        (a, b), (c, d) = ([float(heads[0, 1, index]) for index in (1, 1 + width // 2)] for heads in (x, theirs))
        angle = abs(float(torch.atan2(torch.tensor(a * d - b * c), torch.tensor(a * c + b * d))))
        solved = angle ** (-width / 2) if angle else 0.0
        bases += [float(f"{solved:.{digits}g}") for digits in (1, 2, 3)] if 1 < solved < 1e12 else []
    for base in dict.fromkeys(bases):
        yield Attempt(f"a rotary base of {base:,.0f} instead of {rope.theta:,.0f}", lambda s, base=base: Rotate(  # type: ignore[misc]
            s.operation.rope._replace(theta=base)).forward(s.input()))  # fmt: skip
    if rope.scaling != "none":
        yield Attempt(f"no {rope.scaling} scaling of the angles",
                      lambda s: Rotate(s.operation.rope._replace(scaling="none")).forward(s.input()))  # type: ignore[attr-defined] # fmt: skip
    for by in (2, 4, 8):
        yield Attempt(f"positions are divided by {by}", _at(lambda n, by=by: torch.arange(n) / by))  # type: ignore[misc]
        yield Attempt(f"positions are multiplied by {by}", _at(lambda n, by=by: torch.arange(n) * by))  # type: ignore[misc]
    for by in range(1, 9):
        yield Attempt(f"positions skip {by} at token 1, as after padding on the left", _at(
            lambda n, by=by: torch.arange(n) + by * (torch.arange(n) > 0)))  # type: ignore[misc] # fmt: skip
    for start in range(1, count) if count <= _MOST_TOKENS else ():
        yield Attempt(f"positions restart at 0 at token {start}", _at(
            lambda n, start=start: torch.arange(n) - start * (torch.arange(n) >= start)))  # type: ignore[misc] # fmt: skip


def _of_window(sight: Sight) -> Iterator[Attempt]:
    yield Attempt("no window", lambda s: Mask(Sight(s.operation.sight.causal)).forward(s.input()))  # type: ignore[attr-defined]
    for window in (sight.window - 1, sight.window + 1):
        words = f"a window of {window:,} tokens, not {sight.window:,}"
        yield Attempt(words, lambda s, by=window - sight.window: Mask(  # type: ignore[misc]
            replace(s.operation.sight, window=s.operation.sight.window + by)).forward(s.input()))  # fmt: skip


def _laid(site: Site, product: Tensor) -> Tensor:
    """The output of a matrix (T, rows) in the axes of the step."""
    if not site.step.has_heads or product.dim() != 2:
        return product
    heads = site.config.n_kv_heads if "kv head" in site.step.axes else site.config.n_heads
    return product.unflatten(-1, (heads, -1)).transpose(0, 1)


def _of_other_tensors(site: Site) -> Iterator[Attempt]:
    """The weights of other steps and layers in the place of this one's, and the numbers of other steps."""
    steps, operation = site.trace.steps, site.operation
    for step in () if site.layer is None else steps.in_layer(site.layer):
        if step.module and step.axes == site.step.axes and step.name != site.step.name:
            words, numbers = f"the numbers of {step.full_name(site.layer)}", _numbers_of(step)
            yield Attempt(words, numbers, local=True)
            both = {step.name: _numbers_of(site.step)}
            yield Attempt(f"{words}, so two weights are swapped", numbers, beside=both, local=True)
    if not site.step.module or type(operation) not in (Linear, Norm):
        return
    own = getattr(site.module, "weight", None)
    for step, layer in steps.rows if own is not None else ():
        here = (
            step.module
            and type(step.operation) is type(operation)
            and (step.name, layer) != (site.step.name, site.layer)
        )
        if not here or (isinstance(operation, Linear) and step.name != site.step.name):
            continue
        other = Site(site.trace, step, layer).module
        weight = getattr(other, "weight", None)
        if weight is None or weight.shape != own.shape:
            continue
        if isinstance(operation, Norm):
            words = f"the gain of {step.full_name(layer)}"
            yield Attempt(words, _with_gain(weight), local=True)
            if layer == site.layer:
                both = {step.name: _with_gain(own)}
                yield Attempt(f"{words}, so two gains are swapped", _with_gain(weight), beside=both, local=True)
        else:
            yield Attempt(f"the weight of {step.full_name(layer)}", _with_module(other), local=True)


def _numbers_of(step: Step) -> Wrong:
    return lambda site: Site(site.trace, step, site.layer).derive()


def _with_gain(gain: Tensor) -> Wrong:
    return lambda site: normed(site, gain=None, bias=False) * gain


def _with_module(module: Any) -> Wrong:
    return lambda site: _laid(site, module(site.input()))


def _by_row(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(-1, keepdim=True) / 127
    return (weight / scale).round() * scale


def _whole(weight: Tensor) -> Tensor:
    scale = weight.abs().amax() / 127
    return (weight / scale).round() * scale


def _to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda numbers: numbers.to(dtype).to(numbers.dtype)


def _in_blocks(kind: gguf.GGMLQuantizationType) -> Callable[[Tensor], Tensor]:
    def rounded(weight: Tensor) -> Tensor:
        if weight.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            raise RuntimeError("a row is not a whole number of blocks")
        stored = gguf.quants.quantize(weight.detach().float().cpu().numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(stored, kind)).to(weight)

    return rounded


_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: _to(dtype) for name, dtype in _PRECISIONS.items()},
    "float8 (e4m3)": _to(torch.float8_e4m3fn),
    "float8 (e5m2)": _to(torch.float8_e5m2),
    "int8, a scale for each row": _by_row,
    "int8, one scale for the matrix": _whole,
    **{name: _in_blocks(gguf.GGMLQuantizationType[name]) for name in ("Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1")},
}
"""What the numbers of a matrix become when they are stored in a format and read back."""


def _rounded_weights() -> Iterator[Attempt]:
    for name, rounded in FORMATS.items():

        def wrong(site: Site, rounded: Callable[[Tensor], Tensor] = rounded) -> Tensor:
            bias = getattr(site.module, "bias", None)
            product = site.input() @ rounded(site.module.weight).T
            return _laid(site, product if bias is None else product + bias)

        yield Attempt(f"the weights are rounded to {name}", wrong)


def _in_less_precision(operation: Operation) -> Iterator[Attempt]:
    for name, dtype in _PRECISIONS.items():
        if isinstance(operation, Softmax):
            yield Attempt(f"the softmax is computed in {name}",
                          lambda s, dtype=dtype: s.input().to(dtype).softmax(-1).to(s.input().dtype),  # type: ignore[misc]
                          rounding=True)  # fmt: skip
        elif type(operation) is Norm and not operation.centred:

            def wrong(site: Site, dtype: torch.dtype = dtype, wide: bool = True) -> Tensor:
                x = site.input().to(dtype)
                y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + site.operation.eps)  # type: ignore[attr-defined]
                gain = gain_of(site.module)
                return y.to(gain.dtype) * gain if wide else (y * gain.to(dtype)).to(gain.dtype)

            whole: Wrong = lambda s, w=wrong: w(s, wide=False)  # type: ignore[misc]  # noqa: E731
            result: Wrong = lambda s, dtype=dtype: _to(dtype)(s.derive())  # type: ignore[misc]  # noqa: E731
            yield Attempt(f"the norm is computed in {name}", wrong, rounding=True)
            yield Attempt(f"the norm is computed in {name}, and so is its gain", whole, rounding=True)
            yield Attempt(f"the normed numbers are rounded to {name}", result, rounding=True)


def _other_routes(route: Route) -> Iterator[Attempt]:
    """Other settings of a router."""
    sum_of = "do not sum to 1: they are not divided by the sum of the chosen" if route.renormed else "sum to 1"
    other = "sigmoid" if route.score == "softmax" else "softmax"
    settings: dict[str, dict[str, Any]] = {
        f"the weights of the chosen experts {sum_of}": {"renormed": not route.renormed},
        f"the router is a {other}, not a {route.score}": {"score": other},
        **(
            {f"the weights of experts are not multiplied by {route.scale:g}": {"scale": 1.0}}
            if route.scale != 1
            else {}
        ),
    }
    for words, setting in settings.items():
        yield Attempt(words, lambda s, setting=setting: replace(s.operation, **setting).forward(*s.inputs()))  # type: ignore[misc,type-var]


def _exchanged_experts(count: int) -> Iterator[Attempt]:
    for first in range(count) if count <= _MOST_EXPERTS else ():
        for second in range(first + 1, count):

            def wrong(site: Site, a: int = first, b: int = second) -> Tensor:
                """What the experts give in each other's place; they compute only where they are chosen."""
                return _swapped_experts(site, a, b)

            yield Attempt(f"experts {first} and {second} are in each other's place", wrong, local=True)


def _swapped_experts(site: Site, a: int, b: int) -> Tensor:
    """What all experts give, (E, T, C), with the weights of ``a`` and ``b`` exchanged."""
    trace, layer, order = site.trace, site.layer, list(range(site.config.experts))
    order[a], order[b] = b, a
    steps = trace.steps
    x, chosen = (trace.step(*place) for place in steps.sources(steps.at("expert.hidden", layer), layer))
    outputs = site.derive().clone()
    for expert in (a, b):
        sent = chosen[:, expert] != 0
        inputs = (x[expert] if x.dim() > 2 else x)[sent]
        of = {}
        for name in ("expert.hidden", "expert.gate"):
            if steps.has(name, layer):
                one = Site(trace, steps.at(name, layer), layer)
                of[name] = one.operation.for_expert(one.module, order[expert], inputs)  # type: ignore[attr-defined]
        activate = steps.at("expert.act", layer)
        names = [name for name, _ in steps.sources(activate, layer)]
        act = activate.operation.forward(*(of[name] for name in names))
        outputs[expert, sent] = site.operation.for_expert(site.module, order[expert], act)  # type: ignore[attr-defined]
    return outputs


def _relations(site: Site, theirs: Tensor) -> Iterator[Attempt]:
    """What turns our numbers into theirs: nothing, a factor, an addition, another order of rows."""
    ours = site.value
    if not theirs.any():
        yield Attempt("it is all 0", lambda s: torch.zeros_like(s.derive()), vague=True)
        return
    if bool(ours.isfinite().all() & theirs.isfinite().all()):
        size = float(ours.double().square().sum()) or 1.0
        factor = float(f"{float((ours.double() * theirs.double()).sum()) / size:.4g}")
        if abs(factor - 1) > 1e-3:
            yield Attempt(f"it is {factor:g} times as large", lambda s: s.derive() * factor, vague=True)
        yield from _additions(site.step, ours, theirs)
        yield from _orders(site.step, ours, theirs)


def _additions(step: Step, ours: Tensor, theirs: Tensor) -> Iterator[Attempt]:
    """The same vector added to every token: a bias."""
    if step.token_axis is None or step.is_map or ours.shape[step.token_axis] < 3:
        return
    added = theirs.double() - ours.double()
    vector = added.median(step.token_axis, keepdim=True).values
    noise = 1e-5 * theirs.abs().amax(-1, keepdim=True) + 1e-2 * vector.abs().max()
    if bool(((added - vector).abs() > noise).any()) or not vector.any():
        return
    vector = vector.to(ours.dtype)
    constant = float(f"{float(vector.median()):.2g}")
    alike = float((vector - constant).abs().max()) <= 5e-2 * abs(constant)
    words = f"{constant:g} is added to every number" if alike else "a vector is added to every token: a bias too many"
    yield Attempt(words, lambda s: s.derive() + (constant if alike else vector), local=True, vague=True)


def _orders(step: Step, ours: Tensor, theirs: Tensor) -> Iterator[Attempt]:
    """The rows of a matrix in another order: the columns of its output (T, C)."""
    if step.token_axis is None or step.is_map or not step.module:
        return
    heads = ours.shape[0] if step.has_heads and ours.dim() == 3 else 0
    flat = [x.transpose(0, 1).flatten(1) if heads else x for x in (ours, theirs)]
    if flat[0].dim() != 2 or flat[0].shape[0] < 2:
        return
    probe = torch.linspace(1, 2, flat[0].shape[0], dtype=torch.float64).sin() + 1.5
    a, b = ((probe.to(x.device) @ x.double()).argsort() for x in flat)
    order = torch.empty_like(a)
    order[b] = a  # theirs[:, j] is ours[:, order[j]]
    if bool((order == torch.arange(len(order), device=order.device)).all()):
        return
    yield Attempt(_in_words(order, heads), lambda s: _laid(s, _flat(s.derive())[:, order]), local=True, vague=True)


def _flat(x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1) if x.dim() == 3 else x


def _in_words(order: Tensor, heads: int) -> str:
    """What another order of rows is: rolled, by heads, or any."""
    count = len(order)
    if heads > 1 and not count % heads:
        blocks = order.view(heads, -1)
        width = blocks.shape[1]
        if bool((blocks - blocks[:, :1] == torch.arange(width, device=order.device)).all()):
            found = [int(first) // width for first in blocks[:, 0]]
            return f"its heads in another order: {' '.join(map(str, found))}"
    shift = int(-order[0]) % count
    if bool((order == (torch.arange(count, device=order.device) - shift) % count).all()):
        return f"its rows are rolled by {shift if shift <= count // 2 else shift - count}"
    return "its rows in another order"
