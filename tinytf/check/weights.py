"""Put a reference's weights into a student's module: guess which parameter is which, from names, shapes and order."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tinytf.check.layouts import Layout, find_layouts
from tinytf.check.parameters import (
    ReferenceParameter,
    StudentParameter,
    name_score,
    reference_parameters,
    student_parameters,
)
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.report import Data
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.parameters import ParameterAddress

IN_PAIRS = "in pairs 2i, 2i+1"
"""The words for rows whose rotary pairs lie side by side."""


@dataclass(frozen=True)
class Pair:
    """A student's parameter, the reference parameters that it holds, and possible ``layouts``; the first is used."""

    theirs: StudentParameter
    ours: ReferenceParameter
    layouts: tuple[Layout, ...]

    def preferring(self, form: str) -> "Pair":
        """This pair, with the layouts of that form first."""
        return replace(self, layouts=tuple(sorted(self.layouts, key=lambda layout: layout.form != form)))


@dataclass(frozen=True)
class NameRow(Data):
    """A line of the names table; ``ours`` is empty where the reference has no such parameter."""

    theirs: str
    shape: tuple[int, ...]
    ours: str
    way: str


def guess_pairs(module: nn.Module, config: ModelConfig, named: Mapping[str, str] | None = None) -> list[Pair]:
    """Pair the parameters of a module with those of the reference; parameters that fit none are left out.

    ``named`` are rows of the names table, from theirs to ours, that are fixed instead of guessed. Raises UsageError
    for an unknown name in it, and for a parameter of another shape.
    """
    theirs, ours = student_parameters(module, config), reference_parameters(config)
    fixed = _fixed(named or {}, theirs, ours)
    fits = []
    for param in theirs:
        for index, target in enumerate(ours):
            names = fixed.get(param.template)
            if (names is None or target.names == names) and param.in_layer == target.in_layer:
                if len(param.shape) == 1 and (param.is_bias, param.is_norm) != (
                    target.attribute == "bias",
                    target.is_norm,
                ):
                    continue
                if layouts := tuple(find_layouts(param, target, config)):
                    fit = 100.0 if names else name_score(param, target, config)
                    fits.append((-fit, param.order, index, Pair(param, target, layouts)))
    used: set[object] = set()
    pairs = []
    for *_, pair in sorted(fits, key=lambda fit: fit[:3]):
        parts = {(module, pair.ours.attribute) for module in pair.ours.modules.split()}
        if pair.theirs.template in used or parts & used:
            continue
        used |= {pair.theirs.template, *parts}
        pairs.append(pair)
    for template in fixed.keys() - used:
        shape = next(param.shape for param in theirs if param.template == template)
        raise UsageError(
            f"{template}, {' × '.join(map(str, shape))}, cannot hold {' | '.join(fixed[template])}",
            "its shape differs, or another parameter holds that already",
        )
    matrices = [param for param in theirs if len(param.shape) > 1]
    if matrices and not any(pair.theirs in matrices for pair in pairs):
        size = " × ".join(map(str, matrices[0].shape))
        message = f"no matrix of your module has the shape of one of the reference: {matrices[0].template} is {size}"
        raise UsageError(message, "let the constructor take the sizes, or set them with --args")
    return sorted(pairs, key=lambda pair: pair.theirs.order)


def alternatives(pairs: Sequence[Pair], config: ModelConfig) -> Iterator[list[Pair]]:
    """Other pairings: one matrix and its bias in another layout; queries and keys with rotary pairs side by side."""
    for modules, form in dict.fromkeys((p.ours.modules, layout.form) for p in pairs for layout in p.layouts[1:]):
        yield [pair.preferring(form) if pair.ours.modules == modules else pair for pair in pairs]
    if config.positions == "rotary":
        query_or_key = {"attention.q", "attention.k"}
        yield [replace(pair, layouts=tuple(_neighbouring(pair, layout, config) for layout in pair.layouts))
               if query_or_key & set(pair.ours.modules.split()) else pair for pair in pairs]  # fmt: skip


def _neighbouring(pair: Pair, layout: Layout, config: ModelConfig) -> Layout:
    """``layout`` with each rotary pair of a head side by side in queries and keys; values unchanged."""

    def rotated(module: str, tensor: Tensor) -> Tensor:
        if module == "attention.v":
            return tensor
        return in_pairs(tensor.unflatten(-1, (-1, config.d_head)), config).flatten(-2)

    modules = [step.module for step, _ in pair.ours.steps]
    words = ", ".join(filter(None, (layout.words, IN_PAIRS)))
    return Layout(words, lambda tensors: layout.make([rotated(*item) for item in zip(modules, tensors, strict=True)]))


def _fixed(
    named: Mapping[str, str], theirs: list[StudentParameter], ours: list[ReferenceParameter]
) -> dict[str, tuple[str, ...]]:
    fixed, templates = {}, {parameter.template for parameter in theirs}
    single = [parameter.names[0] for parameter in ours if len(parameter.names) == 1]
    for template, listed in named.items():
        if template not in templates:
            raise UsageError(f"your module has no parameter {template!r}", did_you_mean(template, templates))
        fixed[template] = tuple(re.sub(r"^L(\{\w\}|\d+)\.", "", name.strip()) for name in listed.split("|"))
        for name in fixed[template]:
            if name not in single:
                raise UsageError(
                    f"the reference has no parameter {name!r}",
                    did_you_mean(name, single, otherwise=f"such as {single[-1]}"),
                )
        if fixed[template] not in [parameter.names for parameter in ours]:
            raise UsageError(f"{listed} cannot lie side by side in one parameter", "W_Q | W_K | W_V do")
    return fixed


@torch.no_grad()
def copy_weights(module: nn.Module, model: Transformer, pairs: Sequence[Pair]) -> None:
    """Copy the weights of a reference into a module; biases that the reference does not have become 0."""
    parameters = dict(module.named_parameters())
    paths = {path for pair in pairs for path in pair.theirs.paths.values()}
    for path, parameter in parameters.items():
        if path not in paths and parameter.dim() == 1 and path.endswith("bias"):
            parameter.zero_()
    for pair in pairs:
        for (layer, head), path in pair.theirs.paths.items():
            layers, heads = None if layer is None else (layer,), None if head is None else (head,)
            tensors = [
                ParameterAddress(step, attribute, layers, heads).tensor(model).float()
                for step, attribute in pair.ours.steps
            ]
            parameters[path].copy_(pair.layouts[0].make(tensors).reshape(parameters[path].shape))


def table(module: nn.Module, config: ModelConfig, pairs: Sequence[Pair]) -> tuple[tuple[NameRow, ...], tuple[str, ...]]:
    """The names table, and the parameters of the reference that no parameter of the module holds."""
    by_template = {pair.theirs.template: pair for pair in pairs}
    rows = []
    for param in student_parameters(module, config):
        pair = by_template.get(param.template)
        if pair is None:
            rows.append(
                NameRow(param.template, param.shape, "", "set to 0" if param.is_bias else "left as it was made")
            )
        else:
            rows.append(NameRow(param.template, param.shape, pair.ours.words, pair.layouts[0].words))
    covered = {name for pair in pairs for name in pair.ours.names}
    return tuple(rows), tuple(
        param.words for param in reference_parameters(config) if len(param.names) == 1 and param.names[0] not in covered
    )
