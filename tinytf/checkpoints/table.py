"""The table of a family of model files: which keys are our fields and which tensors our parameters, both ways."""

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tinytf.config import FIELDS, ModelConfig
from tinytf.fields import REQUIRED, Field, Fields

Found = Mapping[str, Any]
"""What was read of a configuration so far, by the names of our fields."""
Tensors = Mapping[str, Any]
"""What is stored, by its name in the table."""


@dataclass(frozen=True)
class Key:
    """A key of a configuration file, and the field of ours that it sets, or several with spaces between.

    ``default`` is the value of a key that is missing or null, or a function of what was found before. ``words`` maps
    the file's words to our values; of several for one value, the first is written.
    """

    name: str
    ours: str = ""
    default: Any = REQUIRED
    words: Mapping[str, Any] | None = None

    def read(self, fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
        """Our fields of this key."""
        default = self.default(found) if callable(self.default) else self.default
        kind = FIELDS[self._fields[0]].kind
        if self.words is not None:
            value = fields.word(self.name, self.words, default)
        else:
            value = fields.get(Field(self.name, kind, default))
        return dict.fromkeys(self._fields, float(value) if kind is float else value)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """The key for a configuration of ours; null where there is no word for its value."""
        value = config.setting(self._fields[0])
        if self.words is not None:
            value = next((word for word, meaning in self.words.items() if meaning == value), None)
        return {self.name: value}

    @property
    def _fields(self) -> list[str]:
        return (self.ours or self.name).split()


class Group(NamedTuple):
    """Fields of ours that several keys, or the names of the tensors, set together."""

    read: Callable[[Fields, Found, Tensors], dict[str, Any]]
    write: Callable[[ModelConfig], dict[str, Any]] = lambda _: {}


@dataclass(frozen=True)
class Stored:
    """Where a module of ours is stored, ``{n}`` standing for the layer, and how its tensors lie there.

    They are part ``part`` along the ``axis`` of a tensor whose rows are shared out among ``parts`` in proportion to
    these fields of the configuration: one part after the other, or, with ``by_head``, one after the other in every
    head: (head, part, rows). With ``paired`` the rows of a head that RoPE turns are its pairs (0, W/2), (1, W/2 + 1) …
    and come after the others where ``turned_last``. Both name the field of the configuration that counts those heads,
    or are a number of them. ``transposed`` matrices are (in, out); ``by_row`` a vector of ours has a row for each head.
    ``offset`` is added to a stored weight to make ours.

    With {e} in the name each expert is stored by itself, one of which is ``expert``. ``instead`` is where the module is
    if a tensor is found there: experts in one tensor, parts each by itself. A ``bare`` name has no .weight behind it;
    ``bias`` is where its bias is then. ``gives`` is the step that the stored module gives where it is a later one. The
    weights of a ``convolution`` of each number by itself have an axis of 1.
    """

    module: str
    transposed: bool = False
    part: int = 0
    parts: tuple[str, ...] = ()
    by_head: str = ""
    paired: str = ""
    turned_last: bool = False
    by_row: bool = False
    offset: float = 0.0
    axis: int = 0
    bare: bool = False
    bias: str = ""
    gives: str = ""
    convolution: bool = False
    expert: int | None = None
    instead: "Stored | None" = None

    def stored_shape(self, ours: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
        """The shape of the stored tensor where ours has this one."""
        shares, axis = self._shares(config), self.axis
        whole = (*ours[:axis], ours[axis] * sum(shares) // shares[self.part], *ours[axis + 1 :])
        if self.by_row:
            return (whole[0] // config.d_head, config.d_head)
        if self.convolution:
            return (whole[0], 1, whole[1])
        return (*whole[:-2], *whole[-2:][::-1]) if self.transposed else whole

    def _shares(self, config: ModelConfig) -> list[int]:
        sizes = config.sizes
        return [sizes[part] if part in sizes else getattr(config, part) for part in self.parts] or [1]

    def _heads(self, config: ModelConfig) -> int:
        return _count(config, self.by_head or "1")

    def read(self, stored: Tensor, config: ModelConfig) -> Tensor:
        """The stored tensor as ours: a view of it wherever that is possible."""
        whole = stored.transpose(-2, -1) if self.transposed and stored.dim() > 1 else stored
        if self.by_row:  # (H, D) -> (H·D,)
            whole = whole.flatten()
        if self.convolution:  # (C, 1, W) -> (C, W)
            whole = whole.flatten(1)
        heads, shares, axis = self._heads(config), self._shares(config), self.axis
        rows = [whole.shape[axis] * share // sum(shares) // heads for share in shares]
        # (H, rows, …) -> (H·rows, …)
        piece = whole.unflatten(axis, (heads, -1)).split(rows, dim=axis + 1)[self.part].flatten(axis, axis + 1)
        if self.turned_last:
            piece = self._rolled(piece, config, config.rope.width)
        if self.paired:
            piece = self._turned(piece, config, lambda pairs: pairs.unflatten(1, (-1, 2)))
        return piece + self.offset if self.offset else piece

    def _turned(self, piece: Tensor, config: ModelConfig, split: Callable[[Tensor], Tensor]) -> Tensor:
        """The rows that RoPE turns, ``split`` in every head into pairs or halves, with these two axes exchanged."""
        heads = piece.unflatten(0, (_count(config, self.paired), -1))  # (H, D, …)
        turned = split(heads[:, : config.rope.width]).transpose(1, 2).flatten(1, 2)
        rest = heads[:, config.rope.width :]
        return (torch.cat((turned, rest), dim=1) if rest.numel() else turned).flatten(0, 1)

    def _rolled(self, piece: Tensor, config: ModelConfig, by: int) -> Tensor:
        """The rows of every head, the last ``by`` of them first."""
        return piece.unflatten(0, (getattr(config, self.paired), -1)).roll(by, 1).flatten(0, 1)

    def laid(self, piece: Tensor, config: ModelConfig) -> Tensor:
        """A tensor of ours with its numbers and rows as they are stored, before it is joined with others."""
        piece = piece - self.offset if self.offset else piece
        if self.paired:
            piece = self._turned(piece, config, lambda halves: halves.unflatten(1, (2, -1)))
        return self._rolled(piece, config, -config.rope.width) if self.turned_last else piece

    def write(self, pieces: list[Tensor], config: ModelConfig) -> Tensor:
        """The stored tensor from ours as they are ``laid``, which are given in the order of their parts."""
        heads, axis = self._heads(config), self.axis
        apart = [piece.unflatten(axis, (heads, -1)) for piece in pieces]
        whole = torch.cat(apart, dim=axis + 1).flatten(axis, axis + 1)
        if self.by_row:
            whole = whole.unflatten(0, (-1, config.d_head))
        if self.convolution:
            whole = whole[:, None]
        return (whole.transpose(-2, -1) if self.transposed and whole.dim() > 1 else whole).contiguous()

    def named(self, layer: str, kind: str) -> str:
        """The name of its ``weight`` or ``bias`` in one layer."""
        module = self.module.replace("{n}", layer)
        if kind == "bias" and self.bias:
            return self.bias.replace("{n}", layer)
        return f"{module}.{kind}" if not self.bare else module if kind == "weight" else f"{module}_{kind}"


def _count(config: ModelConfig, heads: str) -> int:
    """How many heads there are, by the field that counts them or as a number."""
    return int(heads) if heads.isdecimal() else getattr(config, heads)


def fused(module: str, **how: Any) -> dict[str, Stored]:
    """Queries, keys and values of a block in one module: all of a kind together, or ``by_head="n_kv_heads"``.

    The latter has for each key-value head its queries, its key and its value: in turns where no heads are shared,
    all queries first where one key and value serves them all.
    """
    parts = ("n_heads", "n_kv_heads", "n_kv_heads")
    return {
        f"blocks.{{n}}.attention.{name}": Stored(module, part=part, parts=parts, **how)
        for part, name in enumerate("qkv")
    }


def experts(module: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> dict[str, Stored]:
    """The experts of a block, each by itself under the ``names`` of its matrices, or stacked as transformers 5 has it.

    There ``gate_up_proj`` is (E, 2F, C) and ``down_proj`` (E, C, F).
    """
    gate, up, down = names

    def half(part: int) -> Stored:
        return Stored(f"{module}.gate_up_proj", part=part, parts=("d_expert", "d_expert"), axis=1, bare=True)

    each = {
        "gate": Stored(f"{module}.{{e}}.{gate}", instead=half(0)),
        "up": Stored(f"{module}.{{e}}.{up}", instead=half(1)),
        "down": Stored(f"{module}.{{e}}.{down}", instead=Stored(f"{module}.down_proj", bare=True)),
    }
    return {f"blocks.{{n}}.ffn.experts.{name}": how for name, how in each.items()}


class Left(NamedTuple):
    """Stored tensors that are skipped, and why; ``said`` is for what a user would miss.

    One that is ``computed`` here, from the configuration and its shape, has to hold just that.
    """

    pattern: str
    why: str
    said: bool = False
    computed: Callable[[ModelConfig, tuple[int, ...]], Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class FamilyTable:
    """One family of checkpoints: ``settings`` make our configuration, ``stored`` says where each module of ours is.

    ``fixed`` are fields of ours that are the same in all of them. ``only`` are keys that need one of these values,
    since others change the numbers; ``harmless`` keys change none. Names of tensors are without the ``prefix`` that all
    but those ``outside`` have; ``spellings`` replaces older names. ``left`` are tensors that are skipped, ``copies``
    tensors that can be stored a second time under another name.
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
    left: tuple[Left, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)

    def read(self, fields: Fields, tensors: Tensors) -> ModelConfig:
        """Our configuration from that of a file and from the stored tensors."""
        return ModelConfig.of(**self.find(fields, tensors))

    def find(self, fields: Fields, tensors: Tensors) -> dict[str, Any]:
        """The fields of that configuration."""
        for name, allowed in self.only.items():
            fields.require(name, allowed)
        found = dict(self.fixed)
        for setting in self.settings:
            said = setting.read(fields, found, tensors)
            found |= {**said, "by_layer": (*found.get("by_layer", ()), *said.get("by_layer", ()))}
        return found

    def place(self, ours: str, config: ModelConfig | None = None) -> tuple[str, Stored]:
        """Where a parameter of ours is stored: its name there, and how it lies. Raises KeyError where it is not.

        Layers that share their weights in ``config`` are stored by the numbers of their groups.
        """
        module, _, kind = ours.rpartition(".")
        name, layer = _without_layer(module)
        if layer and config is not None:
            layer = str(config.group_of(int(layer)))
        how = self.stored[name]
        return how.named(layer, kind), how if kind == "weight" else replace(how, offset=0.0, transposed=False)

    def places(
        self, ours: str, count: int, config: ModelConfig, there: Container[str] = ()
    ) -> list[tuple[str, Stored]]:
        """Where a tensor is: at its own name, at ``instead`` if that is ``there``, or at those of ``count`` experts."""
        name, how = self.place(ours, config)
        module, _, kind = ours.rpartition(".")
        if how.instead is not None and (other := how.instead.named(_without_layer(module)[1], kind)) in there:
            return [(other, how.instead)]
        if "{e}" not in name:
            return [(name, how)]
        return [(name.replace("{e}", str(number)), replace(how, expert=number)) for number in range(count)]

    def has(self, ours: str) -> bool:
        """Whether a parameter of ours is stored."""
        return _without_layer(ours.rpartition(".")[0])[0] in self.stored

    def plain(self, stored: str) -> str:
        """A stored name without the family's prefix and in today's spelling."""
        name = stored.removeprefix(self.prefix)
        for old, new in self.spellings:
            name = re.sub(old, new, name)
        return name

    def prefixed(self, plain: str) -> str:
        """The name that is stored today: heads stand ``outside`` of the prefix."""
        return plain if plain.startswith(self.outside) else self.prefix + plain

    def why_left(self, plain: str) -> Left | None:
        """Why a stored tensor is skipped, if the table says so."""
        return next((left for left in self.left if re.fullmatch(left.pattern, plain)), None)


def layer_of(ours: str, config: ModelConfig) -> ModelConfig:
    """The configuration of the layer that a parameter of ours is in; of the model where it is in none."""
    layer = _without_layer(ours)[1]
    return config.at(int(layer) if layer else None)


def _without_layer(module: str) -> tuple[str, str]:
    """The name of a module with {n} for its layer, and the layer, empty where it is in none."""
    layer = module.split(".")[1] if module.startswith("blocks.") else ""
    return module.replace(f"blocks.{layer}.", "blocks.{n}.", 1) if layer else module, layer
