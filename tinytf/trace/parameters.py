"""Addresses of parameters: ``L0.W_Q``, ``L0H1.W_Q[3,7]``, ``L3.ffn.W_up``, ``L0.norm1.gain``, ``E[cat]``, ``W_U[·on]``.

A matrix is shown as in the formula x·W, so it is (in, out). A head has its columns of W_Q, W_K and W_V and its rows of
W_O. Names in the model (``blocks.0.attention.q.weight``) and in files of transformers and GGML are understood too.
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
from tinytf.steps.operations.expert_linear import LEARNED
from tinytf.steps.table import StepTable
from tinytf.text.words import AxisNames, as_slice, find_index, is_selection
from tinytf.trace.address import (
    PARTS,
    Address,
    RawAddress,
    parse_numbers,
    parse_part_numbers,
    parse_tensor,
    span,
    spell,
)

_NUMBER = re.compile(r"-?[0-9]{1,18}")

FindToken = Callable[[str], int]
"""The id of a token of the vocabulary, from its text."""


@dataclass(frozen=True)
class ParameterAddress:
    """A checked address of a parameter of ``step``: the layers and heads, and a cell.

    ``layers`` and ``heads`` are None if the address names none; ``note`` is for the reader.
    """

    step: Step
    parameter: Parameter
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    cell: tuple[str, ...] = ()
    note: str = ""

    @property
    def uncut_axes(self) -> tuple[str, ...]:
        """The axes of the tensor before the cell is applied."""
        axes = self.parameter.axes
        if self.heads is None:
            return axes
        return tuple(axis.partition("·")[2] if is_split(axis) else axis for axis in axes if axis not in LEARNED)

    @property
    def letter(self) -> str:
        """H if the parameter is split into heads, E if into experts."""
        return "E" if {*LEARNED} & {*self.parameter.axes} else "H"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the tensor of one layer and head at the address."""
        indexed = {i for i, word in zip(self._cell_axes, self.cell, strict=True) if not is_selection(word)}
        return tuple(axis for i, axis in enumerate(self.uncut_axes) if i not in indexed)

    @property
    def _cell_axes(self) -> range:
        """The axes that the words of the cell index; a lone token indexes the vocabulary, even if it is last."""
        axes = self.uncut_axes
        if len(self.cell) == 1 and axes[-1] == "vocab":
            word = self.cell[0]
            if not (_NUMBER.fullmatch(word) or is_selection(word)):
                return range(len(axes) - 1, len(axes))
        return range(len(self.cell))

    def places(self, model: Transformer) -> tuple[Sequence[int], ...]:
        """The indices that the cell selects on each axis that it leaves."""
        layers, heads = self.layers or (None,), self.heads or (None,)
        sizes = replace(self, cell=())._single(model, layers[0], heads[0], None).shape
        words = dict(zip(self._cell_axes, self.cell, strict=True))
        axes = (axis for axis in range(len(sizes)) if axis not in words or is_selection(words[axis]))
        picks = (find_index(words.get(axis, ":"), self.uncut_axes[axis], sizes[axis], AxisNames()) for axis in axes)
        return tuple(indices for indices in picks if not isinstance(indices, int))

    def __str__(self) -> str:
        block = "" if self.layers is None else f"L{span(self.layers)}"
        block += "" if self.heads is None else f"{self.letter}{span(self.heads)}"
        cell = f"[{','.join(self.cell)}]" if self.cell else ""
        return ".".join(part for part in (block, self.parameter.name) if part) + cell

    def singles(self) -> "Iterator[ParameterAddress]":
        """Yield an address for each layer and head."""
        for layer in self.layers or (None,):
            for head in self.heads or (None,):
                layers, heads = None if layer is None else (layer,), None if head is None else (head,)
                yield replace(self, layers=layers, heads=heads)

    def path(self, layer: int | None) -> str:
        """The parameter's name in the PyTorch model."""
        block = "" if layer is None else f"blocks.{0 if self.step.shared else layer}."
        return f"{block}{self.step.module}.{self.parameter.attribute}"

    def tensor(self, model: Transformer, find_token: FindToken | None = None) -> Tensor:
        """The numbers, with a leading axis for several layers and for several heads.

        Raises AddressError for a cell that does not exist, and for a token without ``find_token``; errors of
        ``find_token`` pass through.
        """
        layers, heads = self.layers or (None,), self.heads or (None,)
        tensors = torch.stack([self._single(model, layer, head, find_token) for layer in layers for head in heads])
        tensors = tensors.unflatten(0, (len(layers), len(heads)))
        return tensors[(0 if len(layers) == 1 else slice(None), 0 if len(heads) == 1 else slice(None))]

    def fill(self, model: Transformer, number: float, find_token: FindToken | None = None) -> None:
        """Write ``number`` into every cell at the address. Raises like ``tensor``."""
        for layer in self.layers or (None,):
            for head in self.heads or (None,):
                view = self._uncut(model, layer, head)
                index: list[int | slice] = [slice(None)] * view.dim()
                for axis, word in zip(self._cell_axes, self.cell, strict=True):
                    names = AxisNames(find=find_token)
                    index[axis] = as_slice(find_index(word, self.uncut_axes[axis], view.shape[axis], names))
                view[tuple(index)] = number

    def _uncut(self, model: Transformer, layer: int | None, head: int | None) -> Tensor:
        """A view of the parameter of one layer and head, before the cell is applied."""
        tensor, config = model.get_parameter(self.path(layer)).detach(), model.config.at(layer)
        tensor = tensor.transpose(-2, -1) if self.parameter.transposed else tensor
        if head is not None and self.letter == "E":
            axis = next(i for i, name in enumerate(self.parameter.axes) if name in LEARNED)
            tensor, head = tensor.select(axis, head), None
        for axis, name in enumerate(self.parameter.axes):
            if head is not None and is_split(name):
                part = head // config.heads_per_kv if name.startswith("n_kv_heads") else head
                width = config.sizes[name.partition("·")[2]]
                tensor = tensor.narrow(axis, part * width, width)
        return tensor

    def _single(self, model: Transformer, layer: int | None, head: int | None, find_token: FindToken | None) -> Tensor:
        tensor = self._uncut(model, layer, head)
        # from the last axis, so that earlier axes keep their index
        for axis, word in zip(reversed(self._cell_axes), reversed(self.cell), strict=True):
            picked = find_index(word, self.uncut_axes[axis], tensor.shape[axis], AxisNames(find=find_token))
            if isinstance(picked, int):
                tensor = tensor.select(axis, picked)
            else:
                tensor = tensor.index_select(axis, torch.tensor(picked, device=tensor.device))
        return tensor


def is_split(axis: str) -> bool:
    """Whether an axis holds the heads side by side."""
    return axis.startswith(("n_heads·", "n_kv_heads·"))


@lru_cache(maxsize=64)
def parameter_names(table: StepTable) -> dict[str, str]:
    """Every name of a parameter of this model, also as a path and without subscripts, with its name in addresses."""
    names: dict[str, str] = {}
    for name, (step, parameter) in table.parameters.items():
        without_subscripts = name.translate(str.maketrans("₁₂", "12"))
        tail = step.module.rpartition(".")[2]  # W₁ is called W_up in models with a gate; accept that in all models
        by_module = re.sub(r"(?<=[Wb])[₁₂]$", f"_{tail}", name)
        for alias in (
            name,
            f"{step.module}.{parameter.attribute}",
            without_subscripts,
            re.sub(r"(?<=[Wb])(?=[12]$)", "_", without_subscripts),
            by_module,
        ):
            names.setdefault(alias, name)
    paths = {
        f"{address.step.module}.{address.parameter.attribute}": address.parameter.name
        for address, _ in addresses_of(table)
    }
    of_lens = {"W_E": "E", "W_pos": "P"}  # as TransformerLens calls them
    return {**of_lens, **paths, **names}


def parse_parameter(text: str, table: StepTable) -> ParameterAddress | None:
    """Read the address of a parameter for the model of ``table``; None if no parameter has the name.

    Raises AddressError with the reason if this architecture lacks the parameter, and for a missing layer or head.
    """
    note, names = "", parameter_names(table)
    raw = _split(text)
    if raw is not None and raw.name not in names:
        path, note = _from_checkpoint(text.strip(), table)
        raw = _split(path)
    if raw is None or raw.name not in names:
        return None
    name = names[raw.name]
    step, parameter = table.parameters[name]
    if parameter.same_as:
        note, (step, own) = parameter.absent, table.parameters[parameter.same_as]
        parameter = replace(parameter, attribute=own.attribute, absent="")
    if parameter.absent:
        raise AddressError(f"this model has no {name}: {parameter.absent}")
    config = table.config
    layers = parse_numbers(raw.layers, config.n_layers, "layer")
    letter = raw.letter
    last = config.n_layers - 1
    if step.in_layer and layers is None:
        raise AddressError(f"{name} is a parameter of every layer", f"say which: L0.{name} … L{last}.{name}")
    if not step.in_layer and layers is not None:
        raise AddressError(f"{name!r} is not inside a layer", f"write {name} alone")
    if layers is not None:
        present = tuple(layer for layer in layers if table.has_parameter(name, layer))
        if not present:
            reason = table.why_absent(step.name, layers[0]) or "another layer has it"
            raise AddressError(f"layer {layers[0]} has no {name}: {reason}")
        layers, (step, parameter) = present, table.parameter(name, present[0])
        if len({table.parameter(name, layer)[1] for layer in present}) > 1:
            raise AddressError(f"{name} has different axes in some of these layers", "name layers of one kind")
    heads = parse_part_numbers(raw, layers, config)
    if letter == "E" and (learned := LEARNED[True]) in parameter.axes:
        heads = parse_numbers(raw.parts, config.sizes[learned], learned)
    split = [axis for axis in parameter.axes if is_split(axis) or axis in LEARNED]
    if heads is not None and (not split or (letter == "E") != (split[0] in LEARNED)):
        raise AddressError(f"{name} is not split into {PARTS[letter]}s", f"its axes are {', '.join(parameter.axes)}")
    cell = raw.cell or ()
    if heads is not None and split and split[0].startswith("n_kv_heads"):
        count, kind = config.at(layers[0] if layers else None).heads_per_kv, step.title.split(",")[0].rstrip("s")
        note = f"{count} query heads share one {kind if ' ' not in kind else step.name} head"
    address = ParameterAddress(step, parameter, layers, heads, cell, note)
    if len(cell) > len(axes := address.uncut_axes):
        size = f"has {len(axes)} axes, {', '.join(axes)}" if axes else "is one number"
        raise AddressError(f"{replace(address, cell=())} {size}; {text!r} names {len(cell)}")
    return address


def addresses_of(table: StepTable) -> list[tuple[ParameterAddress, int | None]]:
    """Every parameter of a model, in each layer that has it."""
    addresses = []
    for name, (step, parameter) in table.parameters.items():
        for layer in range(table.config.n_layers) if step.in_layer else (None,):
            if not parameter.absent and (layer is None or table.has_parameter(name, layer)):
                own = table.parameter(name, layer)
                addresses.append((ParameterAddress(*own, None if layer is None else (layer,)), layer))
    return addresses


def _split(text: str) -> RawAddress | None:
    try:
        return spell(text)
    except AddressError:
        return None


def _from_checkpoint(text: str, table: StepTable) -> tuple[str, str]:
    """Our path for a tensor name of a transformers or GGML checkpoint, and a note that says so.

    Raises AddressError for a name of several parameters, in one tensor or in different families. Any other text comes
    back unchanged.
    """
    name, bracket, cell = text.partition("[")
    if not name.endswith((".weight", ".bias")):
        return text, ""
    from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
    from tinytf.checkpoints.huggingface.load import TABLES

    addresses = addresses_of(table)
    paths = {
        address.path(layer): address
        for address, layer in addresses
        if layer is None or table.first_layer_with(address.step.module, layer) == layer
    }
    matches = {
        path: address
        for family in (*TABLES, *ARCHITECTURES.values())
        for path, address in paths.items()
        if family.pairs_as(table.config)
        and family.has(path)
        and family.place(path, table.config)[0] == family.plain(name)
    }
    if len(matches) > 1:
        raise AddressError(
            f"{name} stands for several parameters", f"name one: {', '.join(map(str, matches.values()))}"
        )
    for path, address in matches.items():
        orientation = ", shown from in to out" if address.parameter.transposed else ""
        return path + bracket + cell, f"{name} is {address} here{orientation}"
    return text, ""


def parse_any(text: str, table: StepTable) -> Address | ParameterAddress:
    """Read the address of a parameter or step. Raises AddressError like ``parse_parameter`` and ``parse_tensor``."""
    return parse_parameter(text, table) or parse_tensor(text, table)
