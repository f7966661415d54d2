"""The weights of a reference in a student's module: whose parameter is which, guessed from names, shapes and order."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.report import Data
from tinytf.student.layouts import Way, tensor_ways
from tinytf.student.parameters import Ours, Theirs, parameters_of, score, targets_of
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.parameters import ParameterAddress


@dataclass(frozen=True)
class Pair:
    """A parameter of the student's and what it holds; ``ways`` in which it may lie there, the one taken first."""

    theirs: Theirs
    ours: Ours
    ways: tuple[Way, ...]

    def lying(self, form: str) -> "Pair":
        """This pair with the first way of that form, where it has one, before the others."""
        return replace(self, ways=tuple(sorted(self.ways, key=lambda way: way.form != form)))


@dataclass(frozen=True)
class NameRow(Data):
    """A line of the names table; ``ours`` is empty where the reference has no such parameter."""

    theirs: str
    shape: tuple[int, ...]
    ours: str
    way: str


def guess(module: nn.Module, config: ModelConfig, named: Mapping[str, str] | None = None) -> list[Pair]:
    """Which parameter of a module is which of the reference's; those that none fits are left out.

    ``named`` are rows of the names table, theirs and ours as that shows them: they are not guessed. Raises UsageError
    for a name in it that is not there, and for a parameter of another shape.
    """
    theirs, ours = parameters_of(module, config), targets_of(config)
    fixed = _fixed(named or {}, theirs, ours)
    gated = config.gated
    fits = []
    for one in theirs:
        for place, target in enumerate(ours):
            wanted = fixed.get(one.template)
            if (wanted is None or target.names == wanted) and one.in_layer == target.in_layer:
                if len(one.shape) == 1 and (one.is_bias, one.norm) != (target.attribute == "bias", target.norm):
                    continue
                if ways := tuple(tensor_ways(one, target, config)):
                    suits = 100.0 if wanted else score(one, target, gated)
                    fits.append((-suits, one.order, place, Pair(one, target, ways)))
    taken: set[object] = set()
    found = []
    for *_, pair in sorted(fits, key=lambda fit: fit[:3]):
        parts = {(module, pair.ours.attribute) for module in pair.ours.modules.split()}
        if pair.theirs.template in taken or parts & taken:
            continue
        taken |= {pair.theirs.template, *parts}
        found.append(pair)
    for lost in fixed.keys() - taken:
        shape = next(one.shape for one in theirs if one.template == lost)
        raise UsageError(
            f"{lost}, {' × '.join(map(str, shape))}, cannot hold {' | '.join(fixed[lost])}",
            "it has another shape, or another holds that",
        )
    matrices = [one for one in theirs if len(one.shape) > 1]
    if matrices and not any(pair.theirs in matrices for pair in found):
        size = " × ".join(map(str, matrices[0].shape))
        said = f"no matrix of your module has a shape of the reference's: {matrices[0].template} is {size}"
        raise UsageError(said, "let the constructor take the sizes, or say them with --args")
    return sorted(found, key=lambda pair: pair.theirs.order)


def others(pairs: Sequence[Pair], config: ModelConfig) -> Iterator[list[Pair]]:
    """Other pairs: with a matrix, and its bias, that lies in another way; and with each rotary pair side by side."""
    for modules, way in dict.fromkeys((pair.ours.modules, way.form) for pair in pairs for way in pair.ways[1:]):
        yield [pair.lying(way) if pair.ours.modules == modules else pair for pair in pairs]
    if config.positions == "rotary":
        turned = {"attention.q", "attention.k"}
        yield [replace(p, ways=tuple(_neighbouring(p, w, config) for w in p.ways))
               if turned & set(p.ours.modules.split()) else p for p in pairs]  # fmt: skip


def _neighbouring(pair: Pair, way: Way, config: ModelConfig) -> Way:
    """Queries and keys with each rotary pair of a head side by side; values as they are."""

    def turned(module: str, tensor: Tensor) -> Tensor:
        if module == "attention.v":
            return tensor
        return in_pairs(tensor.unflatten(-1, (-1, config.d_head)), config).flatten(-2)

    modules = [step.module for step, _ in pair.ours.steps]
    words = ", ".join(filter(None, (way.words, "in pairs 2i, 2i+1")))
    return Way(words, lambda tensors: way.make([turned(*each) for each in zip(modules, tensors, strict=True)]))


def _fixed(named: Mapping[str, str], theirs: list[Theirs], ours: list[Ours]) -> dict[str, tuple[str, ...]]:
    found, known = {}, {one.template for one in theirs}
    single = [one.names[0] for one in ours if len(one.names) == 1]
    for template, words in named.items():
        if template not in known:
            raise UsageError(f"your module has no parameter {template!r}", did_you_mean(template, known))
        found[template] = tuple(re.sub(r"^L(\{\w\}|\d+)\.", "", name.strip()) for name in words.split("|"))
        for name in found[template]:
            if name not in single:
                raise UsageError(
                    f"the reference has no parameter {name!r}",
                    did_you_mean(name, single, otherwise=f"such as {single[-1]}"),
                )
        if found[template] not in [one.names for one in ours]:
            raise UsageError(f"{words} do not lie side by side in one parameter", "W_Q | W_K | W_V do")
    return found


@torch.no_grad()
def give(module: nn.Module, model: Transformer, pairs: Sequence[Pair]) -> None:
    """Copy the weights of a reference into a module; biases that the reference does not have become 0."""
    own = dict(module.named_parameters())
    held = {path for pair in pairs for path in pair.theirs.paths.values()}
    for path, parameter in own.items():
        if path not in held and parameter.dim() == 1 and path.endswith("bias"):
            parameter.zero_()
    for pair in pairs:
        for (layer, head), path in pair.theirs.paths.items():
            layers, heads = None if layer is None else (layer,), None if head is None else (head,)
            tensors = [
                ParameterAddress(step, one, layers, heads).tensor(model).float() for step, one in pair.ours.steps
            ]
            own[path].copy_(pair.ways[0].make(tensors).reshape(own[path].shape))


def table(module: nn.Module, config: ModelConfig, pairs: Sequence[Pair]) -> tuple[tuple[NameRow, ...], tuple[str, ...]]:
    """The names table, and the parameters of the reference that nothing holds."""
    by_template = {pair.theirs.template: pair for pair in pairs}
    rows = []
    for one in parameters_of(module, config):
        pair = by_template.get(one.template)
        if pair is None:
            rows.append(NameRow(one.template, one.shape, "", "set to 0" if one.is_bias else "left as it was made"))
        else:
            rows.append(NameRow(one.template, one.shape, pair.ours.words, pair.ways[0].words))
    held = {name for pair in pairs for name in pair.ours.names}
    return tuple(rows), tuple(
        one.words for one in targets_of(config) if len(one.names) == 1 and one.names[0] not in held
    )
