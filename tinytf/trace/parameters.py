"""Addresses of parameters: ``L0.W_Q``, ``L0H1.W_Q[3,7]``, ``L3.ffn.W_up``, ``L0.norm1.gain``, ``E[cat]``, ``W_U[·on]``.

A matrix is shown as formulas read it, x·W, so it is (in, out). A head has its columns of W_Q, W_K and W_V and its rows
of W_O. Names in the model (``blocks.0.attention.q.weight``) and in files of transformers and GGML are understood too.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from tinytf.errors import AddressError
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.steps.operations import Parameter
from tinytf.steps.table import StepTable
from tinytf.text.words import Named, pick, several
from tinytf.trace.address import PARTS, Address, Spelled, parse_tensor, parts_named, read_numbers, span, spell

_NUMBER = re.compile(r"-?[0-9]{1,18}")

FindToken = Callable[[str], int]
"""The id of a token of the vocabulary, from its text."""


@dataclass(frozen=True)
class ParameterAddress:
    """A checked address of a parameter of ``step``, in which layers and heads, and which cell of it.

    ``layers`` and ``heads`` are None where the address names none; ``note`` is for the reader.
    """

    step: Step
    parameter: Parameter
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    cell: tuple[str, ...] = ()
    note: str = ""

    @property
    def whole_axes(self) -> tuple[str, ...]:
        """The axes without the cell."""
        axes = self.parameter.axes
        if self.heads is None:
            return axes
        return tuple(axis.partition("·")[2] if is_split(axis) else axis for axis in axes if axis != "expert")

    @property
    def letter(self) -> str:
        """H where its parts are of heads, E of experts."""
        return "E" if "expert" in self.parameter.axes else "H"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of one of its tensors."""
        taken = {place for place, word in zip(self._taken, self.cell, strict=True) if not several(word)}
        return tuple(axis for place, axis in enumerate(self.whole_axes) if place not in taken)

    @property
    def _taken(self) -> range:
        """The axes that the words of the cell are of; a token alone is of the vocabulary's, wherever that is."""
        axes = self.whole_axes
        if len(self.cell) == 1 and axes[-1] == "vocab":
            word = self.cell[0]
            if not (_NUMBER.fullmatch(word) or several(word)):
                return range(len(axes) - 1, len(axes))
        return range(len(self.cell))

    def places(self, model: Transformer) -> tuple[Sequence[int], ...]:
        """The places on each of its axes that the cell leaves."""
        layers, heads = self.layers or (None,), self.heads or (None,)
        sizes = replace(self, cell=())._single(model, layers[0], heads[0], None).shape
        words = dict(zip(self._taken, self.cell, strict=True))
        kept = (at for at in range(len(sizes)) if at not in words or several(words[at]))
        found = (pick(words.get(at, ":"), self.whole_axes[at], sizes[at], Named()) for at in kept)
        return tuple(one for one in found if not isinstance(one, int))

    def __str__(self) -> str:
        place = "" if self.layers is None else f"L{span(self.layers)}"
        place += "" if self.heads is None else f"{self.letter}{span(self.heads)}"
        cell = f"[{','.join(self.cell)}]" if self.cell else ""
        return ".".join(part for part in (place, self.parameter.name) if part) + cell

    def singles(self) -> "Iterator[ParameterAddress]":
        """An address for each layer and head."""
        for layer in self.layers or (None,):
            for head in self.heads or (None,):
                layers, heads = None if layer is None else (layer,), None if head is None else (head,)
                yield replace(self, layers=layers, heads=heads)

    def path(self, layer: int | None) -> str:
        """Its name among the model's parameters."""
        block = "" if layer is None else f"blocks.{0 if self.step.shared else layer}."
        return f"{block}{self.step.module}.{self.parameter.attribute}"

    def tensor(self, model: Transformer, find_token: FindToken | None = None) -> Tensor:
        """The numbers, with a leading axis of the layers and of the heads where there are several.

        Raises AddressError for a cell that is not there, and for a token without ``find_token``, which may raise too.
        """
        layers, heads = self.layers or (None,), self.heads or (None,)
        found = torch.stack([self._single(model, layer, head, find_token) for layer in layers for head in heads])
        found = found.unflatten(0, (len(layers), len(heads)))
        return found[(0 if len(layers) == 1 else slice(None), 0 if len(heads) == 1 else slice(None))]

    def _single(self, model: Transformer, layer: int | None, head: int | None, find_token: FindToken | None) -> Tensor:
        tensor, config = model.get_parameter(self.path(layer)).detach(), model.config.at(layer)
        tensor = tensor.transpose(-2, -1) if self.parameter.transposed else tensor
        if head is not None and self.letter == "E":
            tensor, head = tensor.select(self.parameter.axes.index("expert"), head), None
        for axis, name in enumerate(self.parameter.axes):
            if head is not None and is_split(name):
                own = head // config.heads_per_kv if name.startswith("n_kv_heads") else head
                width = config.sizes[name.partition("·")[2]]
                tensor = tensor.narrow(axis, own * width, width)
        # from the last axis, so that the first ones keep their numbers
        for axis, word in zip(reversed(self._taken), reversed(self.cell), strict=True):
            at = pick(word, self.whole_axes[axis], tensor.shape[axis], Named(find=find_token))
            if isinstance(at, int):
                tensor = tensor.select(axis, at)
            else:
                tensor = tensor.index_select(axis, torch.tensor(at, device=tensor.device))
        return tensor


def is_split(axis: str) -> bool:
    """Whether an axis holds heads side by side."""
    return axis.startswith(("n_heads·", "n_kv_heads·"))


@lru_cache(maxsize=64)
def parameter_names(table: StepTable) -> dict[str, str]:
    """Every name of a parameter that this model has, also as a path and without subscripts, to the one of addresses."""
    found: dict[str, str] = {}
    for name, (step, one) in table.parameters.items():
        plain = name.translate(str.maketrans("₁₂", "12"))
        tail = step.module.rpartition(".")[2]  # W₁ is W_up where there is a gate, and is understood without one
        other = re.sub(r"(?<=[Wb])[₁₂]$", f"_{tail}", name)
        for known in (name, f"{step.module}.{one.attribute}", plain, re.sub(r"(?<=[Wb])(?=[12]$)", "_", plain), other):
            found.setdefault(known, name)
    paths = {f"{one.step.module}.{one.parameter.attribute}": one.parameter.name for one, _ in addresses_of(table)}
    return {**paths, **found}


def parse_parameter(text: str, table: StepTable) -> ParameterAddress | None:
    """Read an address of a parameter for the model of ``table``; None for a name that no parameter has.

    Raises AddressError with why this architecture lacks the parameter, and for a layer or head that is not there.
    """
    said, names = "", parameter_names(table)
    spelled = _spelled(text)
    if spelled is not None and spelled.name not in names:
        written, said = _from_checkpoint(text.strip(), table)
        spelled = _spelled(written)
    if spelled is None or spelled.name not in names:
        return None
    name = names[spelled.name]
    step, one = table.parameters[name]
    if one.absent:
        raise AddressError(f"this model has no {name}: {one.absent}")
    config = table.config
    layers = read_numbers(spelled.layers, config.n_layers, "layer")
    letter = spelled.letter
    last = config.n_layers - 1
    if step.in_layer and layers is None:
        raise AddressError(f"{name} is a parameter of every layer", f"say which: L0.{name} … L{last}.{name}")
    if not step.in_layer and layers is not None:
        raise AddressError(f"{name!r} is not inside a layer", f"write {name} alone")
    if layers is not None:
        there = tuple(layer for layer in layers if table.has_parameter(name, layer))
        if not there:
            why = table.why_absent(step.name, layers[0]) or "another layer has it"
            raise AddressError(f"layer {layers[0]} has no {name}: {why}")
        layers, (step, one) = there, table.parameter(name, there[0])
        if len({table.parameter(name, layer)[1] for layer in there}) > 1:
            raise AddressError(f"{name} has other axes in some of these layers", "name layers of one kind")
    heads = parts_named(spelled, layers, config)
    split = [axis for axis in one.axes if is_split(axis) or axis == "expert"]
    if heads is not None and (not split or (letter == "E") != (split == ["expert"])):
        raise AddressError(f"{name} is not split into {PARTS[letter]}s", f"its axes are {', '.join(one.axes)}")
    cell = spelled.cell or ()
    if heads is not None and split and split[0].startswith("n_kv_heads"):
        count, kind = config.at(layers[0] if layers else None).heads_per_kv, step.title.split(",")[0].rstrip("s")
        said = f"{count} query heads share one {kind if ' ' not in kind else step.name} head"
    where = ParameterAddress(step, one, layers, heads, cell, said)
    if len(cell) > len(axes := where.whole_axes):
        has = f"has {len(axes)} axes, {', '.join(axes)}" if axes else "is one number"
        raise AddressError(f"{replace(where, cell=())} {has}; {text!r} names {len(cell)}")
    return where


def addresses_of(table: StepTable) -> list[tuple[ParameterAddress, int | None]]:
    """Every parameter of a model, in each layer that has it."""
    found = []
    for name, (step, one) in table.parameters.items():
        for layer in range(table.config.n_layers) if step.in_layer else (None,):
            if not one.absent and (layer is None or table.has_parameter(name, layer)):
                there = table.parameter(name, layer)
                found.append((ParameterAddress(*there, None if layer is None else (layer,)), layer))
    return found


def _spelled(text: str) -> Spelled | None:
    try:
        return spell(text)
    except AddressError:
        return None


def _from_checkpoint(text: str, table: StepTable) -> tuple[str, str]:
    """A name that a checkpoint of transformers or GGML gives a tensor as our path, and a note that says so.

    Raises AddressError for a name of several parameters, in one tensor or in different families.
    """
    name, bracket, cell = text.partition("[")
    if not name.endswith((".weight", ".bias")):
        return text, ""
    from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
    from tinytf.checkpoints.huggingface.load import FAMILIES

    own = addresses_of(table)
    paths = {one.path(i): one for one, i in own if i is None or table.first_with(one.step.module, i) == i}
    found = {
        path: where
        for kind in (*FAMILIES.values(), *ARCHITECTURES.values())
        for path, where in paths.items()
        if kind.has(path) and kind.place(path, table.config)[0] == kind.plain(name)
    }
    if len(found) > 1:
        raise AddressError(f"{name} is several parameters", f"name one: {', '.join(map(str, found.values()))}")
    for path, where in found.items():
        way = ", shown from in to out" if where.parameter.transposed else ""
        return path + bracket + cell, f"{name} is {where} here{way}"
    return text, ""


def parse_any(text: str, table: StepTable) -> Address | ParameterAddress:
    """Read an address of a parameter or of a step. Raises AddressError as ``parse_parameter`` and ``parse_tensor``."""
    return parse_parameter(text, table) or parse_tensor(text, table)
