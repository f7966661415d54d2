"""Steps of a run computed from other inputs or with other parameters, by the operation of the step itself.

Whatever a step does with them, a wrong parameter or input gives the numbers of a program that has it. Shapes: T tokens,
C columns (inputs), E experts.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.compare.mistakes.mistake import Wrong
from tinytf.parts.row import Step
from tinytf.sentences import listed
from tinytf.steps.operations import ExpertLinear, Linear, Norm, Prefer, ShortConv
from tinytf.steps.operations.operation import Parameter, into_heads, side_by_side, width_of
from tinytf.trace.site import Site

Change = Callable[[Tensor], Tensor]
Altering = tuple[str, Wrong]
"""A mistake in words, and the formula of the step that makes it."""
_MAPS = (Linear, ExpertLinear, ShortConv)
"""Operations whose steps call their parameters a weight and a bias."""
_BLOCKS = (16, 32, 64, 128)
"""Sizes of blocks in which files store numbers."""


@dataclass(frozen=True)
class Altered(Site):
    """A step whose ``taken`` inputs, by number, and ``parameters``, by attribute, are not those of the run."""

    taken: Mapping[int, Tensor] = field(default_factory=dict)
    parameters: Mapping[str, Tensor] = field(default_factory=dict)

    def input(self, number: int = 0, heads: tuple[int, ...] | None = None) -> Tensor:
        if number not in self.taken:
            return super().input(number, heads)
        return self.taken[number] if heads is None else self.taken[number][list(heads)]

    @property
    def module(self) -> Any:
        own = super().module
        if not self.parameters:
            return own
        made = copy.copy(own)
        made._parameters, made._buffers = dict(own._parameters), dict(own._buffers)
        for name, numbers in self.parameters.items():
            stored = made._buffers if name in made._buffers else made._parameters
            stored[name] = numbers if stored is made._buffers else nn.Parameter(numbers, False)
        return made


def with_parameter(attribute: str, change: Change) -> Wrong:
    """A step with a function of one of its parameters in place of it."""

    def wrong(site: Site) -> Tensor:
        own = getattr(site.module, attribute, None)
        if own is None:
            raise RuntimeError(f"no {attribute}")
        changed = {attribute: change(own.detach())}
        return Altered(site.trace, site.step, site.layer, parameters=changed).derive()

    return wrong


def parameters_of(site: Site) -> Iterator[tuple[Parameter, Tensor]]:
    """The parameters that a step has, with their numbers; not a matrix that is tied to another step's."""
    stored = site.operation.parameters(site.step) if site.step.module else ()
    if isinstance(site.operation, Prefer):  # whose bias is a buffer
        stored = (Parameter("the bias of the choice of experts", "weight", ("expert",)),)
    for parameter in stored:
        numbers = getattr(site.module, parameter.attribute, None)
        if numbers is not None and not parameter.absent:
            yield parameter, numbers.detach()


def altered(site: Site) -> Iterator[Altering]:
    """Every parameter of a step at another value, and its columns or experts in another order; for all layers alike."""
    for parameter, numbers in parameters_of(site):
        attribute = parameter.attribute
        name = f"the {attribute}" if isinstance(site.operation, _MAPS) else parameter.name
        if name.endswith(".b"):
            name = f"the bias of {site.step.name}"
        of_norm = isinstance(site.operation, Norm) and attribute == "weight"
        if numbers.dim() == 1 or isinstance(site.operation, Prefer):
            if not of_norm:
                yield f"{name} is 0, or left out", with_parameter(attribute, torch.zeros_like)
            yield f"{name} is 1", with_parameter(attribute, torch.ones_like)
            yield f"{name} has the other sign", with_parameter(attribute, torch.neg)
            yield (
                f"{name} is added twice" if attribute == "bias" else f"{name} is twice as large",
                with_parameter(attribute, lambda w: 2 * w),
            )
        for words, order in (*_expert_orders(numbers), *_column_orders(site, numbers)):
            yield f"{name} has its {words}", with_parameter(attribute, order)


def _expert_orders(numbers: Tensor) -> Iterator[tuple[str, Change]]:
    if numbers.dim() == 3:
        yield "experts in another order: the other way round", lambda w: w.flip(0)
        for by in (1, -1):
            yield f"experts in another order: rolled by {by}", lambda w, by=by: w.roll(by, 0)  # type: ignore[misc]


def _column_orders(site: Site, numbers: Tensor) -> Iterator[tuple[str, Change]]:
    """Other orders of the columns, by construction: reversed, half before half, two axes of them exchanged."""
    count = numbers.shape[-1]
    if type(site.operation) not in (Linear, ExpertLinear) or numbers.dim() < 2:
        return
    yield "columns in another order: the last first", lambda w: w.flip(-1)
    if count % 2 == 0:
        yield "columns in another order: the second half first", lambda w: w.roll(count // 2, -1)
    heads = site.config.n_heads if site.step.reads.startswith("n_heads") else 1
    sizes = {count: "", count // heads: " of each head", **{size: f" of each block of {size}" for size in _BLOCKS}}
    for size, where in sizes.items():
        if count % size == 0 and size % 2 == 0 and size > 2:
            for words, shape in (("halves in turns", (2, size // 2)), ("turns in halves", (size // 2, 2))):
                yield f"columns in another order: the {words}{where}", _transposed(shape)
    if heads > 1:
        yield "columns in another order: heads and d_head exchanged", _transposed((heads, count // heads))
        yield "columns in another order: d_head and heads exchanged", _transposed((count // heads, heads))


def _transposed(shape: tuple[int, int]) -> Change:
    """Columns seen as blocks of two axes, which are exchanged."""
    return lambda w: w.unflatten(-1, (-1, *shape)).transpose(-1, -2).reshape(w.shape)


def of_other_steps(site: Site) -> Iterator[tuple[str, Wrong, Mapping[str, Wrong]]]:
    """A parameter of another layer, or of another step of this one, in place of the step's own; in words.

    The last are the formulas of other steps of the layer, where two are swapped.
    """
    yield from _other_norms(site)
    for parameter, numbers in parameters_of(site):
        if isinstance(site.operation, Norm) and parameter.attribute == "weight":
            continue  # gains of other norms are tried as such
        for step, layer in site.trace.steps.rows:
            if type(step.operation) is not type(site.operation) or site.name == step.full_name(layer):
                continue
            if layer != site.layer and step.name != site.step.name:
                continue
            other = next((found for found in _like(Site(site.trace, step, layer), parameter, numbers)), None)
            if other is not None:
                its_name, theirs = other
                words = f"{its_name} in place of its own {parameter.name}"
                wrong = with_parameter(parameter.attribute, _always(theirs))
                yield words, wrong, {}
                if layer == site.layer:
                    back = {step.name: with_parameter(parameter.attribute, _always(numbers))}
                    yield f"{words}, so the two are swapped", wrong, back


def _other_norms(site: Site) -> Iterator[tuple[str, Wrong, Mapping[str, Wrong]]]:
    """Gain and bias of another norm in place of a norm's own."""
    own = {parameter.attribute: numbers for parameter, numbers in parameters_of(site)}
    if not isinstance(site.operation, Norm) or "bias" not in own:
        return
    for step, layer in site.trace.steps.rows:
        if type(step.operation) is not type(site.operation) or site.name == step.full_name(layer):
            continue
        theirs = {one.attribute: numbers for one, numbers in parameters_of(Site(site.trace, step, layer))}
        if {name: one.shape for name, one in theirs.items()} == {name: one.shape for name, one in own.items()}:
            words, wrong = f"gain and bias of {step.full_name(layer)}", _with_all(theirs)
            yield words, wrong, {}
            if layer == site.layer:
                yield f"{words}, so two norms are swapped", wrong, {step.name: _with_all(own)}


def _with_all(parameters: Mapping[str, Tensor]) -> Wrong:
    return lambda site: Altered(site.trace, site.step, site.layer, parameters=parameters).derive()


def _always(numbers: Tensor) -> Change:
    return lambda _: numbers


def _like(site: Site, parameter: Parameter, numbers: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The parameter of another step that is stored alike, with its address."""
    for other, theirs in parameters_of(site):
        if other.attribute == parameter.attribute and theirs.shape == numbers.shape:
            yield f"L{site.layer}.{other.name}", theirs


def siblings(site: Site) -> list[Step]:
    """The maps of a layer that may lie in one joint matrix with this one, since they read alike; itself among them."""
    if type(site.operation) not in (Linear, ExpertLinear) or site.layer is None or not site.step.module:
        return []
    home = site.step.module.rpartition(".")[0]
    return [
        step
        for step in site.trace.steps.in_layer(site.layer)
        if type(step.operation) is type(site.operation)
        and step.module.rpartition(".")[0] == home
        and site.trace.steps.sources(step, site.layer) == site.sources
    ]


def cut_otherwise(site: Site) -> Iterator[tuple[str, Mapping[str, Wrong]]]:
    """Other ways to cut the joint matrix of two or three maps: in words, and the formula of each of them by name."""
    others = siblings(site)
    groups = [others] if len(others) == 3 else []
    groups += [[step for step in others if step in (site.step, other)] for other in others if other != site.step]
    for parts in groups:
        yield from _cuts(site, parts)


def _cuts(site: Site, parts: list[Step]) -> Iterator[tuple[str, Mapping[str, Wrong]]]:
    """The ways to cut a joint matrix that holds its parts in one order, in so many blocks, as if it were another."""
    rows, config = [_rows(Site(site.trace, step, site.layer)) for step in parts], site.config
    equal = len({*rows}) == 1
    cuts = {1: {2: "in halves", 3: "in thirds"}[len(parts)] if equal else "one part after the other"}
    if site.step.has_heads:
        cuts = {config.n_kv_heads: "by key head", config.n_heads: "by head", **cuts}
    if equal:
        cuts[rows[0]] = "row by row in turns"
    cuts = {blocks: words for blocks, words in cuts.items() if all(count % blocks == 0 for count in rows)}
    names, orders = [step.name for step in parts], list(itertools.permutations(range(len(parts))))
    seen, pairs = {tuple(range(sum(rows)))}, _in_pairs(parts, rows)
    for stored, order, read, other in itertools.product(cuts, orders[: 4 - len(parts)], cuts, orders):
        if stored != read and order != other:
            continue
        found = pairs[_layout(rows, order, stored)[_layout(rows, other, read).argsort()]][pairs.argsort()]
        if tuple(found.tolist()) not in seen:
            seen.add(tuple(found.tolist()))
            words = f"the joint matrix of {listed(names)} is cut {cuts[read]}, not {cuts[stored]}"
            if stored == read:
                held, taken = (", ".join(names[index] for index in one) for one in (order, other))
                words = f"the joint matrix of {listed(names)} is read as {taken}, where it holds {held}"
                if len(names) == 2:
                    words = f"the joint matrix of {listed(names)} is read with {names[other[0]]} first"
                    words += f", where {names[order[0]]} is first"
                words += f", {cuts[read]}" if read > 1 else ""
            for one, two in itertools.combinations(range(len(parts)), 2):
                places = list(torch.arange(sum(rows)).split(rows))
                places[one], places[two] = places[two], places[one]
                if torch.equal(found, torch.cat(places)):
                    words = f"{names[one]} and {names[two]} are exchanged"
            yield words, {name: _cut(tuple(names), number, found) for number, name in enumerate(names)}


def _rows(site: Site) -> int:
    """How many rows the matrix of a map has."""
    return int(site.module.weight.shape[-2])


def _layout(rows: list[int], order: tuple[int, ...], blocks: int) -> Tensor:
    """Which row each row of a joint matrix is, of those of its parts one after the other."""
    starts = [sum(rows[:number]) for number in range(len(rows))]
    parts = [torch.arange(rows[number]).view(blocks, -1) + starts[number] for number in order]
    return torch.cat(parts, 1).flatten()


def _in_pairs(parts: list[Step], rows: list[int]) -> Tensor:
    """The order in which the rows of the parts are stored: those of the key that all heads share in pairs."""
    order = list(torch.arange(sum(rows)).split(rows))
    for number, step in enumerate(parts):
        if step.axes[-1] == "d_shared_key":
            order[number] = order[number].view(2, -1).T.flatten()
    return torch.cat(order)


def _cut(names: tuple[str, ...], number: int, order: Tensor) -> Wrong:
    """One of the maps that read alike, from the rows of all of them in another order."""

    def wrong(site: Site) -> Tensor:
        parts = [Site(site.trace, site.trace.steps.at(name, site.layer), site.layer) for name in names]
        flat = [side_by_side(part.derive()) if part.step.has_heads else part.derive() for part in parts]  # (…, T, R)
        taken = torch.cat(flat, -1)[..., order].split([_rows(part) for part in parts], -1)[number]
        return into_heads(taken, width_of(site)) if site.step.has_heads else taken

    return wrong
