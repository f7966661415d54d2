"""The table of a family of model files: which keys are our fields and which tensors our parameters, both ways."""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tinytf.config import FIELDS, ModelConfig
from tinytf.fields import REQUIRED, Field, Fields
from tinytf.model.transformer import ENCODER, stack_at

Draft = Mapping[str, Any]
"""Our configuration as read so far, by field name."""
Tensors = Mapping[str, Any]
"""The stored tensors, by their names in the table."""


@dataclass(frozen=True)
class Key:
    """A key of a configuration file, and our field or space-separated fields that it sets.

    ``default`` is the value of a missing or null key, or a function of the draft. ``words`` maps the file's words to
    our values; if several words have the same value, the first is written.
    """

    name: str
    ours: str = ""
    default: Any = REQUIRED
    words: Mapping[str, Any] | None = None

    def read(self, fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        """Our fields that this key sets."""
        default = self.default(draft) if callable(self.default) else self.default
        kind = FIELDS[self._fields[0]].kind
        if self.words is not None:
            value = fields.word(self.name, self.words, default)
        else:
            value = fields.get(Field(self.name, kind, default))
        return dict.fromkeys(self._fields, float(value) if kind is float else value)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """The key and its value for our ``config``; None where no word has that value."""
        value = config.setting(self._fields[0])
        if self.words is not None:
            value = next((word for word, meaning in self.words.items() if meaning == value), None)
        return {self.name: value}

    @property
    def _fields(self) -> list[str]:
        return (self.ours or self.name).split()


class Group(NamedTuple):
    """Our fields that several keys, or the names of the tensors, determine together."""

    read: Callable[[Fields, Draft, Tensors], dict[str, Any]]
    write: Callable[[ModelConfig], dict[str, Any]] = lambda _: {}


@dataclass(frozen=True)
class Stored:
    """Where one of our modules is stored, and how: the name of the module there, and what differs from ours.

    A name has ``{n}`` for the layer, ``{s}`` for the number of our layer among those that are stored as one, and
    ``{e}`` for the expert, or with ``by_row`` the row, where each is stored separately. Flags that count heads, rows or
    taps name a field of the configuration, or are that number. In the order of the fields:

    - A part: ours is number ``part`` of a tensor whose ``axis`` is divided among ``parts``, in proportion to these
      fields; they follow one another, or repeat within every head (``by_head``: head, part, rows).
    - Rows of heads in another order: those that RoPE turns as adjacent pairs (``paired``: (0, W/2), (1, W/2 + 1) …) or
      after the others (``rotary_last``), or such columns (``turned_columns``); query heads that take turns, the first
      of each key-value head before all second ones (``tiled``), or heads h and h + H/2 side by side (``coupled``).
    - Axes: matrices as (in, out) (``transposed``); our vector as a matrix (``by_row``: its rows); the matrices of all
      experts as one, (E·rows, columns) (``stacked``); our matrix as one for each head or expert (``apart``: their
      rows or, along ``axis`` 1, their columns); the last axis as two (``headed``: …, H, columns); all layers side by
      side along ``axis`` (``of_layers``); the weights of a depthwise ``convolution`` as (channels, 1, width), those of
      one of as many ``taps`` as (out, in, taps), ours (out, in·taps); axes of length 1 before and after a vector
      (``among_ones``).
    - Numbers: a stored tensor times ``factor`` is ours, and ``offset`` is added to a weight, ``last_offset`` to its
      last column; that of a ``rate`` is
      −e^A for our A, which is only read; ``unread`` counts rows beyond ours, zeros where we write them.
    - Names: no .weight suffix, and _bias as that of its bias (``bare``); another name of its bias (``bias``); the step
      that the module outputs, if a later one than its own (``gives``); constants written with it, their names, numbers
      (or a function of the layer that gives them) and, of tensors, sizes (``beside``).
    - Whole numbers: ``ids`` of other things, which no precision rounds.
    - One of several: the number of an ``expert``, or its first and last row.
    - Several: those of experts that take every token, the last of them, are stored apart (``always``).
    - Another layout, used if the file has its tensor (``instead``).
    """

    module: str
    part: int = 0
    parts: tuple[str, ...] = ()
    axis: int = 0
    by_head: str = ""
    paired: str = ""
    rotary_last: str = ""
    turned_columns: bool = False
    tiled: bool = False
    coupled: bool = False
    transposed: bool = False
    by_row: str = ""
    stacked: bool = False
    apart: str = ""
    headed: str = ""
    of_layers: bool = False
    convolution: bool = False
    taps: str = ""
    among_ones: tuple[int, int] = (0, 0)
    factor: float = 1.0
    offset: float = 0.0
    last_offset: float = 0.0
    rate: bool = False
    unread: str = ""
    bare: bool = False
    bias: str = ""
    gives: str = ""
    beside: tuple[tuple[Any, ...], ...] = ()
    ids: bool = False
    expert: int | slice | None = None
    always: "Stored | None" = None
    instead: "Stored | None" = None

    def stored_shape(self, shape: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
        """The shape of the stored tensor for our tensor of this ``shape``."""
        shares, axis = self._shares(config), self.axis
        stored = (*shape[:axis], shape[axis] * sum(shares) // shares[self.part], *shape[axis + 1 :])
        if self.unread:
            stored = (stored[0] + _count(config, self.unread), *stored[1:])
        if self.by_row:
            return (_count(config, self.by_row), stored[0] // _count(config, self.by_row))
        if any(self.among_ones):
            return self._among_ones(stored)
        if taps := self._taps(stored, config):
            return (stored[0], stored[1] // taps, taps)
        if self.apart:
            heads = _count(config, self.apart)
            stored = (heads, *(size // heads if number == axis else size for number, size in enumerate(stored)))
        stored = (*stored[:-2], *stored[-2:][::-1]) if self.transposed and len(shape) > 1 else stored
        if self.headed:
            heads = _count(config, self.headed)
            stored = (*stored[:-1], heads, stored[-1] // heads)
        return (stored[0] * stored[1], stored[2]) if self.stacked else stored

    def _is_turned(self, stored: Tensor) -> bool:
        """Whether the stored tensor is a matrix, or one for each head, from in to out."""
        return self.transposed and stored.dim() > 1 + bool(self.apart)

    def part_of(self, ours: Tensor) -> Tensor:
        """A view of what the stored tensor holds of ours: one expert or row of it, or all."""
        if self.expert is None:
            return ours
        return ours[self.expert]

    def _taps(self, shape: tuple[int, ...], config: ModelConfig) -> int:
        """The width of a stored convolution whose weights have this shape here; 0 for anything else."""
        if len(shape) < 2 or not (self.convolution or self.taps):
            return 0
        return _count(config, self.taps) if self.taps else shape[1]

    def _among_ones(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        before, after = self.among_ones
        return (1,) * before + (*shape,) + (1,) * after

    def _shares(self, config: ModelConfig) -> list[int]:
        sizes = config.sizes
        return [sizes[part] if part in sizes else getattr(config, part) for part in self.parts] or [1]

    def _heads(self, config: ModelConfig) -> int:
        return _count(config, self.by_head or "1")

    def read(self, stored: Tensor, config: ModelConfig, kind: str = "weight") -> Tensor:
        """Our tensor from the stored one, a ``weight`` or a ``bias``: a view of it where possible."""
        tensor = stored.unflatten(0, (config.experts, -1)) if self.stacked else stored
        if self.unread:
            tensor = tensor[: len(tensor) - _count(config, self.unread)]
        tensor = tensor.flatten(-2) if self.headed else tensor
        tensor = tensor.transpose(-2, -1) if self._is_turned(tensor) else tensor
        if self.apart:  # (H, rows, C) -> (H·rows, C), or (H, rows, C) -> (rows, H·C)
            tensor = tensor.movedim(0, self.axis).flatten(self.axis, self.axis + 1)
        if self.by_row or any(self.among_ones):  # (H, D) -> (H·D,)
            tensor = tensor.flatten()
        if (self.convolution or self.taps) and tensor.dim() > 1:  # (C, 1, W) -> (C, W), (out, in, W) -> (out, in·W)
            tensor = tensor.flatten(1)
        heads, shares, axis = self._heads(config), self._shares(config), self.axis
        rows = [tensor.shape[axis] * share // sum(shares) // heads for share in shares]
        # (H, rows, …) -> (H·rows, …)
        piece = tensor.unflatten(axis, (heads, -1)).split(rows, dim=axis + 1)[self.part].flatten(axis, axis + 1)
        piece = piece.mT if self.turned_columns else piece
        if self.rotary_last:
            piece = self._roll_heads(piece, config, _turned(config))
        if self.paired:
            piece = self._regroup_rotary(piece, config, lambda pairs: pairs.unflatten(1, (-1, 2)))
        piece = piece.mT.contiguous() if self.turned_columns else piece  # regrouped, so no view of the file anyway
        piece = self._take_turns(piece, config, axis, 1)
        if self.rate and kind == "weight":
            piece = (-piece).log()
        piece = piece * self.factor if self.factor != 1 else piece
        if self.last_offset:
            piece = torch.cat((piece[..., :-1], piece[..., -1:] + self.last_offset), dim=-1)
        return piece + self.offset if self.offset else piece

    def _regroup_rotary(self, piece: Tensor, config: ModelConfig, split: Callable[[Tensor], Tensor]) -> Tensor:
        """Swap the two axes into which ``split`` divides the rotary rows of each head: (pair, 2) or (2, half)."""
        heads, turned = piece.unflatten(0, (_count(config, self.paired), -1)), _turned(config)  # (H, D, …)
        if not turned:
            return piece
        rotated, rest = split(heads[:, :turned]).transpose(1, 2).flatten(1, 2), heads[:, turned:]
        return (torch.cat((rotated, rest), dim=1) if rest.numel() else rotated).flatten(0, 1)

    def _roll_heads(self, piece: Tensor, config: ModelConfig, shift: int) -> Tensor:
        """Roll the rows of each head by ``shift``: its last ``shift`` rows come first."""
        return piece.unflatten(0, (_count(config, self.rotary_last), -1)).roll(shift, 1).flatten(0, 1)

    def laid(self, piece: Tensor, config: ModelConfig) -> Tensor:
        """Our tensor with offset and row order as stored, before it is joined with the other parts."""
        piece = piece - self.offset if self.offset else piece
        if self.last_offset:
            piece = torch.cat((piece[..., :-1], piece[..., -1:] - self.last_offset), dim=-1)
        piece = piece / self.factor if self.factor != 1 else piece
        piece = piece.mT if self.turned_columns else piece
        if self.paired:
            piece = self._regroup_rotary(piece, config, lambda halves: halves.unflatten(1, (2, -1)))
        piece = self._roll_heads(piece, config, -_turned(config)) if self.rotary_last else piece
        piece = piece.mT if self.turned_columns else piece
        return self._take_turns(piece, config, 0, -1)

    def columns(self, tensor: Tensor, config: ModelConfig) -> Tensor:
        """A matrix of ours, or one on its inputs, with its columns in the order as stored."""
        return self._take_turns(tensor, config, 1, -1)

    def _take_turns(self, tensor: Tensor, config: ModelConfig, axis: int, step: int) -> Tensor:
        """Put rows (``axis`` 0) or columns (1) of heads in our order, or with ``step`` −1 in that of the file."""
        if axis != self.axis or not (self.tiled or self.coupled):
            return tensor
        counts = (config.heads_per_kv, config.n_kv_heads) if self.tiled else (config.n_heads // 2, 2)
        return tensor.unflatten(axis, (*counts[::step], -1)).transpose(axis, axis + 1).flatten(axis, axis + 2)

    def write(self, pieces: list[Tensor], config: ModelConfig) -> Tensor:
        """The stored tensor from our tensors, each through ``laid``, in the order of their parts."""
        heads, axis = self._heads(config), self.axis
        by_head = [piece.unflatten(axis, (heads, -1)) for piece in pieces]
        tensor = self.columns(torch.cat(by_head, dim=axis + 1).flatten(axis, axis + 1), config)
        if self.unread:
            tensor = torch.cat((tensor, tensor.new_zeros(_count(config, self.unread), *tensor.shape[1:])))
        if self.by_row:
            tensor = tensor.unflatten(0, (_count(config, self.by_row), -1))
        if any(self.among_ones):
            tensor = tensor.view(self._among_ones(tensor.shape))
        if taps := self._taps(tensor.shape, config):
            tensor = tensor.unflatten(1, (-1, taps))
        if self.apart:
            tensor = tensor.unflatten(axis, (_count(config, self.apart), -1)).movedim(axis, 0)
        tensor = (tensor.transpose(-2, -1) if self._is_turned(tensor) else tensor).contiguous()
        tensor = tensor.unflatten(-1, (_count(config, self.headed), -1)) if self.headed else tensor
        return tensor.flatten(0, 1) if self.stacked else tensor

    def within(self, number: int) -> "Stored":
        """The place in the layer with this ``number`` among those that are stored as one."""
        return replace(self, module=self.module.replace("{s}", str(number)))

    def named(self, layer: str, kind: str) -> str:
        """The stored name of the module's ``weight`` or ``bias`` in one layer."""
        if kind == "bias" and self.bias:
            return self.bias.replace("{n}", layer)
        module = self.module.replace("{n}", layer)
        return f"{module}.{kind}" if not self.bare else module if kind == "weight" else f"{module}_{kind}"


def _count(config: ModelConfig, heads: str) -> int:
    """The number of heads: of the field or axis that counts them, or the number itself."""
    return int(heads) if heads.isdecimal() else config.sizes[heads] if "·" in heads else getattr(config, heads)


def _turned(config: ModelConfig) -> int:
    """How many dimensions of a head RoPE turns; in latent attention 0 where no part of a key is shared."""
    return config.rope_width if config.kv_rank else config.rope.width


def fused(module: str, **layout: Any) -> dict[str, Stored]:
    """Queries, keys and values of a block in one module: all queries, then all keys, then all values.

    With ``by_head="n_kv_heads"`` each key-value head has its queries, then its key, then its value: alternating where
    every query head has its own, all queries first where one key and value head serves them all.
    """
    parts = ("n_heads", "n_kv_heads", "n_kv_heads")
    return {
        f"blocks.{{n}}.attention.{name}": Stored(module, part=part, parts=parts, **layout)
        for part, name in enumerate("qkv")
    }


def stacked_experts(module: str, separate: tuple[str, ...] = ()) -> dict[str, Stored]:
    """The experts of a block stacked as in transformers 5: ``gate_up_proj`` (E, 2F, C) and ``down_proj`` (E, C, F).

    Or each stored separately under the names of its matrices, gate, up and down, if those are given.
    """
    halves: dict[str, Any] = {"parts": ("d_expert", "d_expert"), "axis": 1, "bare": True}
    stacked = {
        "blocks.{n}.ffn.experts.gate": Stored(f"{module}.gate_up_proj", **halves),
        "blocks.{n}.ffn.experts.up": Stored(f"{module}.gate_up_proj", part=1, **halves),
        "blocks.{n}.ffn.experts.down": Stored(f"{module}.down_proj", bare=True),
    }
    others: list[Stored | None] = [Stored(f"{module}.{{e}}.{name}") for name in separate]
    others = others or [None] * len(stacked)
    return {ours: replace(layout, instead=other) for (ours, layout), other in zip(stacked.items(), others, strict=True)}


def experts(module: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> dict[str, Stored]:
    """The experts of a block, each stored separately under the ``names`` of its matrices, or stacked."""
    stacked = stacked_experts(module).items()
    return {
        ours: Stored(f"{module}.{{e}}.{name}", instead=layout)
        for name, (ours, layout) in zip(names, stacked, strict=True)
    }


class Computed(NamedTuple):
    """The ``values`` that a stored tensor must hold; ``error`` is that of float32 arithmetic beyond their rounding."""

    values: Tensor
    error: float = 0.0


class Skip(NamedTuple):
    """Stored tensors that are skipped, and why; ``noted`` ones are reported, since a user could miss them.

    A group ``layer`` of the ``pattern`` matches only numbers beyond the last layer of the model.
    ``computed`` gives what such a tensor must hold, from the configuration of its layer and the tensor itself.
    """

    pattern: str
    why: str
    noted: bool = False
    computed: Callable[[ModelConfig, Tensor], Computed] | None = None


@dataclass(frozen=True, kw_only=True)
class FamilyTable:
    """One family of checkpoints: ``settings`` give our configuration, ``stored`` the place of each of our modules.

    ``fixed`` are our fields that are the same in the whole family. ``only`` are keys that must have one of these
    values, since others change the numbers; ``harmless`` keys never do. Tensor names omit the ``prefix`` that all but
    those ``outside`` have; ``spellings`` replaces older names. ``skipped`` tensors are not read. ``copies`` maps the
    name of a tensor that may be stored twice to its main name. ``split`` consecutive layers of ours are stored as one;
    ``factors`` gives numbers that a file multiplies the weights of our modules by.
    """

    name: str
    settings: tuple[Key | Group, ...]
    stored: Mapping[str, Stored]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    prefix: str = ""
    outside: tuple[str, ...] = ()
    spellings: tuple[tuple[str, str], ...] = ()
    skipped: tuple[Skip, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    split: int = 1
    factors: Callable[[Fields], Mapping[str, float]] = lambda _: {}

    def with_factors(self, fields: Fields) -> Self:
        """The table for one file, with its factors."""
        factors = self.factors(fields)
        return (
            replace(
                self,
                stored={ours: replace(layout, factor=factors.get(ours, 1.0)) for ours, layout in self.stored.items()},
            )
            if factors
            else self
        )

    def pairs_as(self, config: ModelConfig) -> bool:
        """Whether a stored layer is as many of ours as in a model of this configuration."""
        norms, apart = (
            [block.norms for block in config.blocks],
            any(one.memory.memory != "none" for one in config.blocks),
        )
        parts = 1 + any(norm.norm_below for norm in norms) + 2 * any(norm.shortcut for norm in norms)
        return self.split == parts and not apart

    def stored_layer(self, layer: int, config: ModelConfig) -> int:
        """The number under which one of our layers is stored."""
        return config.group_of(layer) // self.split

    def _layer_word(self, layer: str, config: ModelConfig | None) -> str:
        """The number, as a word, under which one of our layers is stored; empty outside the layers."""
        return layer if not layer or config is None else str(self.stored_layer(int(layer), config))

    def read(self, fields: Fields, tensors: Tensors) -> ModelConfig:
        """Our configuration from the keys of a file and the stored tensors."""
        return ModelConfig.of(**self.read_fields(fields, tensors))

    def read_fields(self, fields: Fields, tensors: Tensors) -> dict[str, Any]:
        """Our fields from the keys of a file and the stored tensors."""
        for name, allowed in self.only.items():
            fields.require(name, allowed)
        draft = dict(self.fixed)
        for setting in self.settings:
            values = setting.read(fields, draft, tensors)
            draft |= {**values, "by_layer": (*draft.get("by_layer", ()), *values.get("by_layer", ()))}
        return draft

    def place(self, parameter: str, config: ModelConfig | None = None) -> tuple[str, Stored]:
        """The stored name and layout of one of our parameters. Raises KeyError for one that is not stored.

        Layers that share their weights in ``config`` are stored under the numbers of their groups.
        """
        module, _, kind = parameter.rpartition(".")
        name, ours = _split_layer(module)
        layout = self.stored[name]
        layer = self._layer_word(ours, config)
        if "{s}" in layout.module:
            layout = layout.within(int(ours) % self.split)
        if layout.of_layers and config is not None:
            layout = replace(layout, part=int(layer), parts=("switch",) * config.n_layers)
        if kind == "weight":
            return layout.named(layer, kind), replace(layout, among_ones=(0, 0)) if layout.bias else layout
        if layout.bias and not (layout.of_layers or layout.bare):  # of its own, so not a part of a joint one
            layout = replace(layout, part=0, parts=(), by_head="")
        if layout.axis and (layout.tiled or layout.coupled):  # the columns of heads, of which a bias has none
            layout = replace(layout, axis=0, apart="", tiled=False, coupled=False)
        return layout.named(layer, kind), replace(layout, offset=0.0, transposed=False)

    def locations(
        self, parameter: str, count: int, config: ModelConfig, stored: Container[str] = ()
    ) -> list[tuple[str, Stored]]:
        """Stored names and layouts: of ``instead`` if ``stored``; else one, or one for each of ``count`` experts."""
        name, layout = self.place(parameter, config)
        if (other := layout.instead) is not None:
            module, _, kind = parameter.rpartition(".")
            instead = other.named(self._layer_word(_split_layer(module)[1], config), kind)
            if instead.replace("{e}", "0") in stored:
                name, layout = instead, other
        if layout.always is not None:
            split, layer = config.experts - config.always_experts, _split_layer(parameter)[1]
            last = replace(layout.always, expert=slice(split, None))
            return [
                (name, replace(layout, expert=slice(0, split))),
                (last.named(self._layer_word(layer, config), "weight"), last),
            ]
        if "{e}" not in name:
            return [(name, layout)]
        pieces: Sequence[int | slice] = range(count)
        if layout.by_row:  # the last may have fewer rows, and then there may be fewer pieces
            each = -(-count // _count(config, layout.by_row))
            pieces = [slice(first, first + each) for first in range(0, count, each)]
        layout = replace(layout, by_row="")
        return [(name.replace("{e}", str(n)), replace(layout, expert=one)) for n, one in enumerate(pieces)]

    def has(self, parameter: str) -> bool:
        """Whether the family stores one of our parameters."""
        return _split_layer(parameter.rpartition(".")[0])[0] in self.stored

    def plain(self, stored: str) -> str:
        """A stored name without the family's prefix, in the current spelling."""
        return self.spelled(stored.removeprefix(self.prefix))

    def spelled(self, name: str) -> str:
        """A name in the current spelling."""
        for old, new in self.spellings:
            name = re.sub(old, new, name)
        return name

    def original(self, plain: str, config: ModelConfig) -> str:
        """The main name of a tensor that may be stored twice; empty for any other."""
        return self.copies.get(plain, "")

    def pattern(self, name: str) -> str:
        """The plain name of a module or tensor as ``stored`` spells it, but for the number of its layer."""
        return self.plain(name)

    def prefixed(self, plain: str) -> str:
        """The stored name: with the prefix, except for heads, which are ``outside``."""
        return plain if plain.startswith(self.outside) else self.prefix + plain

    def why_skipped(self, plain: str, n_layers: int) -> Skip | None:
        """The reason to skip a stored tensor of a model of ``n_layers``; None for a tensor that is needed."""
        for skip in self.skipped:
            match = re.fullmatch(skip.pattern, plain)
            if match and int(match.groupdict().get("layer", n_layers)) >= n_layers:
                return skip
        return None


def layer_of(parameter: str, config: ModelConfig) -> ModelConfig:
    """The configuration of the layer that one of our parameters belongs to; the model's for one outside the layers."""
    layer = _split_layer(parameter)[1]
    return config.stacks.get(stack_at(parameter), config).at(int(layer) if layer else None)


def _split_layer(module: str) -> tuple[str, str]:
    """The name of a module with {n} for its layer, and the layer; empty for a module outside the layers."""
    inside = module.removeprefix(ENCODER)
    layer = inside.split(".")[1] if inside.startswith("blocks.") else ""
    return module.replace(f"blocks.{layer}.", "blocks.{n}.", 1) if layer else module, layer
