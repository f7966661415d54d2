"""Wrong steps by construction: an input, a parameter or the numbers of a step through a function, by its own operation.

Shapes: T tokens, H heads (G of keys and values), C columns, E experts.
"""

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.compare.altered import Altered, Altering, Change, parameters_of, with_parameter
from tinytf.parts.row import ROUTES, Step
from tinytf.steps.operations import Activate, Decay, ExpertLinear, Linear, Route, Scan, ShortConv, Softplus, Switch
from tinytf.steps.table import StepKey
from tinytf.trace.site import Site

FUNCTIONS: dict[str, Change] = {
    "e^x": torch.exp,
    "−e^x": lambda x: -x.exp(),
    "log|x|": lambda x: x.abs().log(),
    "1/x": torch.reciprocal,
    "√|x|": lambda x: x.abs().sqrt(),
    "|x|": torch.abs,
    "x²": torch.square,
    "softplus": F.softplus,
    "σ": torch.sigmoid,
    "tanh": torch.tanh,
    "SiLU": F.silu,
    "GELU(erf)": F.gelu,
    "GELU(tanh)": lambda x: F.gelu(x, approximate="tanh"),
    "ReLU": F.relu,
    "x·σ(1.702x)": lambda x: x * (1.702 * x).sigmoid(),
}
"""Functions of one number, as a program may apply them where the model does not, or in place of its own."""

_NUMBERS: dict[str, Change] = {
    **{f"{name} of {{}} is taken": function for name, function in FUNCTIONS.items() if name != "x²"},
    "{} is squared": torch.square,
    "{} has the other sign": torch.neg,
    "{} is twice as large": lambda x: 2 * x,
    "{} is half as large": lambda x: x / 2,
    "{} is larger by 1": lambda x: x + 1,
    "{} is smaller by 1": lambda x: x - 1,
    "{} is taken from 1": lambda x: 1 - x,
    "{} is all 1": torch.ones_like,
}
"""Functions of one number, in words about it."""

_ROWS: dict[str, Change] = {
    "the softmax of {} is taken": lambda x: x.softmax(-1),
    "{} is divided by its sum": lambda x: x / x.sum(-1, keepdim=True),
    "{} is scaled to length 1": lambda x: F.normalize(x, dim=-1),
    "{} is divided by its root mean square": lambda x: x * x.square().mean(-1, keepdim=True).rsqrt(),
    "the mean of {} is subtracted": lambda x: x - x.mean(-1, keepdim=True),
    "{} has its columns in the other order": lambda x: x.flip(-1),
}
"""Functions of a row, in words about it."""

_MOST_CHOSEN = 4
"""The most experts of a token whose weights are tried in every order."""


def mapped(site: Site, hidden: Collection[StepKey]) -> Iterator[Altering]:
    """A step with a function of its numbers, of one input or of a parameter; in words.

    An input is tried where another step reads it too, or the other program saved it: it is not ``hidden``.
    """
    for words, change in _changes(site.step, site):
        yield words.format("it"), partial(_of_output, change)
    for number, (name, layer) in enumerate(site.sources):
        source = site.trace.steps.at(name, layer)
        if len(site.sources) == 1 and source.axes == site.step.axes:
            yield f"{name} goes on as it is", Site.input
            yield "it is applied twice", lambda one: _taking(one, 0, one.derive())
        known = (name, layer) in hidden and len(_readers(site, (name, layer))) == 1
        if known or source.axes == ROUTES or isinstance(site.operation, ExpertLinear):
            continue
        called = f"its input {name}" if len(site.sources) > 1 else "its input"  # of queries and keys together
        for words, change in _changes(source, site):
            yield words.format(called), partial(_of_input, number, change)
    yield from _of_parameters(site)
    yield from _inside(site)
    if isinstance(site.operation, Route):
        yield from _of_routes(site)


def _changes(step: Step, site: Site) -> Iterator[tuple[str, Change]]:
    """Functions of a step's numbers: of each, of a row, of tokens and of heads."""
    yield from _NUMBERS.items()
    yield from () if step.is_map else _ROWS.items()
    if step.token_axis is not None and not step.is_map:
        axis = step.token_axis
        for by in (1, -1, 2, -2):
            far = "one token" if abs(by) == 1 else f"{abs(by)} tokens"
            yield f"{{}} is {far} {'late' if by > 0 else 'early'}", partial(_later, axis, by)
        yield "{} has its tokens in the other order", lambda x: x.flip(axis)
        yield "{} is summed over the tokens so far", lambda x: x.cumsum(axis)
    if "kv head" in step.axes:
        heads = site.config.n_heads
        yield "{} is shared by heads in turns, not by neighbours", lambda x: _in_turns(x, heads)
    if step.has_heads:
        yield "{} has its heads in the other order", lambda x: x.flip(0)


def _later(axis: int, by: int, x: Tensor) -> Tensor:
    """Numbers ``by`` tokens later, and 0 where there are none."""
    moved = x.roll(by, axis)
    edge = range(by) if by > 0 else range(x.shape[axis] + by, x.shape[axis])
    return moved.index_fill(axis, torch.tensor([*edge], device=x.device), 0.0)


def _in_turns(x: Tensor, heads: int) -> Tensor:
    """(G, …) -> (H, …): group h mod G for head h."""
    if len(x) == heads:
        raise RuntimeError("every head has its own")
    return x.repeat(heads // len(x), *(1 for _ in x.shape[1:]))


def _of_routes(site: Site) -> Iterator[Altering]:
    """Weights (T, E) of the chosen experts: of other scores, all the same, or each for another of them."""
    count = site.config.experts_per_token
    yield (
        "the weights of the chosen experts are all the same",
        lambda one: one.derive().sum(-1, keepdim=True) * _same(one),
    )
    yield "the mean of the chosen experts' outputs is taken", _same
    for order in itertools.permutations(range(count)) if count <= _MOST_CHOSEN else ([*range(count)][::-1],):
        if [*order] != sorted(order):
            ranks = " ".join(str(rank + 1) for rank in order)
            words = f"the weights of the chosen experts are exchanged: by rank, {ranks}"
            yield words, partial(_of_output, partial(_ranked, torch.tensor(order)))
    for name, scores in _SCORES.items():
        for renormed in (False, True):
            words = f"experts are weighed by {name}" + ", divided by its sum over the chosen" * renormed
            yield words, partial(_weighed, scores, renormed)


def _same(site: Site) -> Tensor:
    """One share for each of the chosen experts."""
    chosen = (site.input(1) != 0).to(site.input().dtype)
    return chosen / chosen.sum(-1, keepdim=True)


def _preference(site: Site) -> Tensor:
    return site.trace.step("ffn.preference", site.layer)


_SCORES: dict[str, Callable[[Site], Tensor]] = {
    "their score with the bias of the choice": _preference,
    "softmax over all": lambda site: site.input().softmax(-1),
    "σ of the router": lambda site: site.input().sigmoid(),
    "the router's own number": Site.input,
}
"""What experts may be weighed by."""


def _weighed(scores: Callable[[Site], Tensor], renormed: bool, site: Site) -> Tensor:
    assert isinstance(site.operation, Route)
    weights = scores(site) * (site.input(1) != 0)
    return (weights / weights.sum(-1, keepdim=True) if renormed else weights) * site.operation.scale


def _ranked(order: Tensor, x: Tensor) -> Tensor:
    """The weights of the chosen experts, each at the expert of another rank."""
    largest = x.topk(len(order), dim=-1)
    return torch.zeros_like(x).scatter(-1, largest.indices, largest.values[..., order.to(x.device)])


def _readers(site: Site, place: StepKey) -> list[StepKey]:
    steps = site.trace.steps
    return [(step.name, place[1]) for step in steps.in_layer(place[1]) if place in steps.sources(step, place[1])] \
        if place[1] is not None else []  # fmt: skip


def _of_output(change: Change, site: Site) -> Tensor:
    return change(site.derive())


def _of_input(number: int, change: Change, site: Site) -> Tensor:
    return _taking(site, number, change(site.input(number)))


def _taking(site: Site, number: int, numbers: Tensor) -> Tensor:
    return Altered(site.trace, site.step, site.layer, taken={number: numbers}).derive()


_RATES = {
    "log|x| of {} is taken": "the rate of decay is −|A|, not −e^A",
    "e^x of {} is taken": "A is exponentiated twice",
    "−e^x of {} is taken": "A is exponentiated twice, as if −e^A were stored",
}
"""What a function of A means for a state that decays by −e^A."""


_VECTORS: dict[str, Change] = {
    "{} has its numbers in the other order": lambda w: w.flip(0),
    "{} is rolled by 1": lambda w: w.roll(1, 0),
    "{} is rolled by -1": lambda w: w.roll(-1, 0),
    "the first of {} is taken for all": lambda w: w[:1].expand_as(w),
    "the mean of {} is taken for all": lambda w: w.mean(0, keepdim=True).expand_as(w),
}
"""Orders and repeats of a parameter's first axis, in words about it."""


def _of_parameters(site: Site) -> Iterator[Altering]:
    if isinstance(site.operation, Linear | ExpertLinear | ShortConv):
        return
    for parameter, _ in parameters_of(site):
        rates = _RATES if isinstance(site.operation, Decay | Scan) and parameter.name.endswith(".A") else {}
        for words, change in _NUMBERS.items():
            yield rates.get(words) or words.format(parameter.name), with_parameter(parameter.attribute, change)
        for words, change in _VECTORS.items():
            yield words.format(parameter.name), with_parameter(parameter.attribute, change)


def _inside(site: Site) -> Iterator[Altering]:
    """Another function in place of that of an operation with one, and a function of what it gives."""
    operation = site.operation
    for name, function in {"x": Tensor.clone, **FUNCTIONS}.items():
        if isinstance(operation, Softplus):
            yield f"{name} in place of the softplus", partial(_of_biased, function)
        elif isinstance(operation, Switch):
            plain = f"{operation.function} of the score is left out"
            words = plain if name == "x" else f"{name} of the score, not {operation.function}"
            yield words, partial(_switched, function)
        elif isinstance(operation, Activate) and len(site.sources) > 1:
            yield f"the activation is {name}", partial(_gated, function)
    if isinstance(operation, Activate) and len(site.sources) > 1:
        for words, change in _NUMBERS.items():
            yield words.format("the activated gate"), partial(_changed_gate, change)


def _of_biased(function: Change, site: Site) -> Tensor:
    x = site.input()
    return function(x + site.module.bias.view(len(x), 1, -1))


def _switched(function: Change, site: Site) -> Tensor:
    return site.input(0) * function(site.input(1))


def _gated(function: Change, site: Site) -> Tensor:
    assert isinstance(site.operation, Activate)
    return site.operation.product(function(site.input(0)), site.input(1))


def _changed_gate(change: Change, site: Site) -> Tensor:
    return change(site.operation.forward(site.input(0))) * site.input(1)
