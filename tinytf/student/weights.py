"""The weights of a reference in a student's module: whose parameter is which, guessed from names, shapes and order."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.report import Data
from tinytf.steps.operations import Norm, Parameter
from tinytf.steps.table import Step, table_of
from tinytf.student.steps import in_neighbours
from tinytf.trace.parameters import ParameterAddress, is_split

_PLAIN = {"weight", "bias", "scale", "shift", "gain", "gamma", "beta", "g", "b", "w", "parametrizations"}
"""Last words of a parameter's name that do not say what it is of."""
_BIAS = {"bias", "shift", "beta", "b"}

_HINTS: Mapping[str, tuple[str, str]] = {
    "embed.tokens": ("wte tok token tokens word emb embed embedding embeddings vocab e we", ""),
    "embed.positions": ("wpe pos position positions positional pe p", ""),
    "attention.q": ("q wq query queries qw", "attn attention sa mha self att heads head"),
    "attention.k": ("k wk key keys kw", "attn attention sa mha self att heads head"),
    "attention.v": ("v wv value values vw", "attn attention sa mha self att heads head"),
    "attention.q attention.k attention.v": (
        "qkv wqkv kqv in attn query key value c", "attn attention sa mha self att"
    ),
    "attention.k attention.v": ("kv wkv key value k v", "attn attention sa mha self att"),
    "attention.o": ("o wo out output proj projection dense w0", "attn attention sa mha self att"),
    "ffn.gate": ("gate wg w1 g fc1 1", "mlp ffn ff ffwd feed feedforward forward"),
    "ffn.up": ("up fc fc1 w1 lin1 linear1 expand hidden in 0 1 w3 fc2 v", "mlp ffn ff ffwd feed feedforward forward"),
    "ffn.down": (
        "down fc2 w2 lin2 linear2 out proj contract 2 3 4 fc3", "mlp ffn ff ffwd feed feedforward forward"
    ),
    "ffn.gate ffn.up": ("w12 gate up gateup wi in", "mlp ffn ff ffwd feed feedforward forward"),
    "norm1": ("1 ln1 norm1 attn attention input pre before sa first", "ln1 norm1"),
    "norm2": ("2 ln2 norm2 ffn mlp ff post feed second mid", "ln2 norm2"),
    "final_norm": ("f final last norm ln end", ""),
    "head.decoder": ("head lm out output unembed decoder logits fc classifier u wu proj linear vocab", ""),
}  # fmt: skip
"""Words that files call the parameters of each of our modules: in the last part of their path, and before it."""

_GATED = {"ffn.gate": "gate wg w1 fc1 w g", "ffn.up": "up w3 fc2 v wu", "ffn.down": "down w2 fc3 out wd c"}
"""The same where the feed-forward has a gate."""


@dataclass(frozen=True)
class Ours(Data):
    """Parameters of the reference that one parameter of the student's holds, side by side where they are several."""

    LESS: ClassVar = ("steps", "modules", "attribute", "in_layer")

    names: tuple[str, ...]
    steps: tuple[tuple[Step, Parameter], ...]
    modules: str
    attribute: str
    in_layer: bool

    @property
    def norm(self) -> bool:
        """Whether it is of a norm."""
        return isinstance(self.steps[0][0].operation, Norm)

    @property
    def words(self) -> str:
        return " | ".join(f"L{{i}}.{name}" if self.in_layer else name for name in self.names)


@dataclass(frozen=True)
class Way:
    """How our tensors, as formulas read them, (in, out), lie in the student's parameter."""

    words: str
    make: Callable[[Sequence[Tensor]], Tensor]

    @property
    def form(self) -> str:
        """What a matrix has in common with its bias: how several lie in one."""
        return self.words.removesuffix(", transposed")


@dataclass(frozen=True)
class Theirs:
    """A parameter of the student's, with ``{i}`` for the layer and ``{h}`` for the head: all that share a name."""

    template: str
    paths: Mapping[tuple[int | None, int | None], str]
    shape: tuple[int, ...]
    linear: bool
    norm: bool
    order: int

    @property
    def in_layer(self) -> bool:
        return "{i}" in self.template

    @property
    def per_head(self) -> bool:
        return "{h}" in self.template

    @cached_property
    def words(self) -> tuple[set[str], set[str]]:
        """The words of the last part that says something, and those before it."""
        parts = [part for part in self.template.split(".") if part not in ("{i}", "{h}")]
        while len(parts) > 1 and parts[-1].lower() in _PLAIN:
            parts.pop()
        return _split(parts[-1]), {word for part in parts[:-1] for word in _split(part)}

    @property
    def is_bias(self) -> bool:
        last = self.template.rpartition(".")[2].lower()
        return last in _BIAS or bool(re.match(r"b(_|\d|ias|$)", last)) or last.endswith("bias")


@dataclass(frozen=True)
class Pair:
    """A parameter of the student's and what it holds; ``ways`` in which it may lie there, the one taken first."""

    theirs: Theirs
    ours: Ours
    ways: tuple[Way, ...]

    def lying(self, form: str) -> "Pair":
        """The same with the first way of that form, where it has one, before the others."""
        return replace(self, ways=tuple(sorted(self.ways, key=lambda way: way.form != form)))


@dataclass(frozen=True)
class NameRow(Data):
    """A line of the names table; ``ours`` is empty where the reference has no such parameter."""

    theirs: str
    shape: tuple[int, ...]
    ours: str
    way: str


def _split(part: str) -> set[str]:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part).lower().split("_")
    whole = part.lower()
    joined = re.sub(r"_(?=\d)", "", whole)  # fc_1 is fc1 too, and ln_1
    return {word for word in (*words, whole, joined, *re.findall(r"\d+", whole)) if word}


def parameters_of(module: nn.Module, config: ModelConfig) -> list[Theirs]:
    """The parameters of a module, folded by layer and head. Raises UsageError for another number of layers."""
    named = dict(module.named_parameters())
    lists: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for path, parameter in named.items():
        found = re.match(r"(.*?)\.?(?<![\w])(\d+)\.", path)
        if found:
            lists.setdefault(found[1], set()).add(found[2])
            sizes[found[1]] = sizes.get(found[1], 0) + parameter.numel()
    stack = max(sizes, key=lambda name: sizes[name], default=None)
    if stack is not None and len(lists[stack]) != config.n_layers:
        raise UsageError(
            f"{stack} has {len(lists[stack])} layers, and the reference has {config.n_layers}",
            "let the constructor take their number, or say it with --args",
        )
    order = {number: place for place, number in enumerate(sorted(lists.get(stack or "", ()), key=int))}
    grouped: dict[str, dict[tuple[int | None, int | None], str]] = {}
    for path, parameter in named.items():
        template, layer, head = path, None, None
        prefix = f"{stack}." if stack else ""
        if stack is not None and path.startswith(prefix) and (rest := path[len(prefix) :].split(".", 1))[0] in order:
            layer = order[rest[0]]
            template = f"{prefix}{{i}}.{rest[1]}"
            inner = re.search(r"\.(\d+)\.", rest[1])
            if inner and config.d_head in parameter.shape and config.d_head != config.d_model:
                head = int(inner[1])
                template = f"{prefix}{{i}}.{rest[1][: inner.start()]}.{{h}}.{rest[1][inner.end() :]}"
        grouped.setdefault(template, {})[layer, head] = path
    found_ones = []
    for place, (template, paths) in enumerate(grouped.items()):
        path = next(iter(paths.values()))
        owner = module.get_submodule(path.rpartition(".")[0])
        linear = isinstance(owner, nn.Linear | nn.MultiheadAttention)
        norm = owner is not module and all(one.dim() == 1 for one in owner.parameters())
        found_ones.append(Theirs(template, paths, _shape(named[path].shape), linear, norm, place))
    return found_ones


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without a batch axis of 1, which tables of positions have."""
    return tuple(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)


def targets_of(config: ModelConfig) -> list[Ours]:
    """Every parameter of a reference, and those that a file may hold side by side."""
    table = table_of(config)
    single = [
        Ours((name,), ((step, one),), step.module, one.attribute, step.in_layer)
        for name, (step, one) in table.parameters.items()
        if not one.absent
    ]
    by_place = {(one.modules, one.attribute): one for one in single}
    if config.tied_head and ("embed.tokens", "weight") in by_place:
        single.append(replace(by_place["embed.tokens", "weight"], modules="head.decoder"))
    fused = []
    for modules in (key for key in _HINTS if " " in key):
        for attribute in ("weight", "bias"):
            parts = [by_place.get((module, attribute)) for module in modules.split()]
            if all(parts):
                names, steps = (
                    tuple(itertools.chain(*(getattr(p, what) for p in parts))) for what in ("names", "steps")
                )
                fused.append(Ours(names, steps, modules, attribute, True))
    return single + fused


def _hints(modules: str, gated: bool) -> tuple[set[str], set[str]]:
    last, before = _HINTS.get(modules, ("", ""))
    return set((_GATED.get(modules, last) if gated else last).split()), set(before.split())


def _score(theirs: Theirs, ours: Ours, gated: bool) -> float:
    """How well a name suits: words of its last part count twice, those of its path once; foreign ones against it."""
    (last, before), (wanted, around) = theirs.words, _hints(ours.modules, gated)
    score = 2.0 * min(2, len(last & wanted)) + min(1, len((before | last) & around)) + 0.5 * len(before & wanted)
    foreign = {word for key in _HINTS for word in _hints(key, gated)[1]} - around - {"heads", "head", "self"}
    score -= 2.0 * bool(before & foreign)
    if " " in ours.modules:
        score += 1.0
    return score


def _tensor_ways(theirs: Theirs, ours: Ours, config: ModelConfig) -> Iterator[Way]:
    """The ways in which our tensors fit the student's shape, the likeliest first."""
    sizes, count = config.sizes, len(ours.steps)
    axes = [one.axes for _, one in ours.steps]
    shapes = [tuple(sizes[axis] for axis in each) for each in axes]
    split = next((place for place, axis in enumerate(axes[0]) if is_split(axis)), None)
    if len(shapes[0]) == 1:
        total = sum(shape[0] for shape in shapes)
        if theirs.per_head and count == 1 and split is not None and theirs.shape == (config.d_head,):
            yield Way("by head", lambda tensors: tensors[0])
        elif theirs.shape == (total,):
            if count > 1 and split is not None and len(set(shapes)) == 1:
                yield Way("side by side", lambda tensors: torch.cat(list(tensors)))
                yield Way("head by head", lambda tensors: _interleaved(tensors, config.n_heads))
            else:
                yield Way("side by side" if count > 1 else "", lambda tensors: torch.cat(list(tensors)))
        elif count == 1 and split is not None and theirs.shape == (total // config.d_head, config.d_head):
            yield Way("by head", lambda tensors: tensors[0].view(theirs.shape))
        return
    (rows, _), columns = shapes[0], sum(shape[-1] for shape in shapes)
    if theirs.per_head:
        if count == 1 and split == 1 and {theirs.shape} & {(rows, config.d_head), (config.d_head, rows)}:
            yield from _matrix_ways(theirs, (rows, config.d_head), "by head", lambda tensors: tensors[0])
        return
    if len(theirs.shape) == 3 and count == 1 and split is not None:
        heads = shapes[0][split] // config.d_head
        for order in itertools.permutations(range(3)):
            parts = [rows, heads, config.d_head] if split == 1 else [heads, config.d_head, shapes[0][1]]
            if tuple(parts[place] for place in order) == theirs.shape:
                yield Way("by head", lambda t, parts=parts, order=order: t[0].reshape(parts).permute(order))  # type: ignore[misc]
        return
    if len(theirs.shape) != 2:
        return
    said = "side by side" if count > 1 else ""
    if ours.modules.startswith(("embed.", "head.decoder")) and ours.names == ("E",) and theirs.shape == (rows, columns):
        yield Way("", lambda tensors: tensors[0])
        return
    yield from _matrix_ways(theirs, (rows, columns), said, lambda tensors: torch.cat(list(tensors), dim=1))
    if count > 1 and split is not None and len(set(shapes)) == 1:
        made = lambda tensors: _interleaved([t.T for t in tensors], config.n_heads).T  # noqa: E731
        yield from _matrix_ways(theirs, (rows, columns), "head by head", made)
    elif count > 1 and split is None:
        back = lambda tensors: torch.cat(list(reversed(tensors)), dim=1)  # noqa: E731
        yield from _matrix_ways(theirs, (rows, columns), "the second before the first", back)


def _matrix_ways(
    theirs: Theirs, shape: tuple[int, int], said: str, made: Callable[[Sequence[Tensor]], Tensor]
) -> Iterator[Way]:
    """A matrix (in, out) as nn.Linear keeps it, (out, in), or as it is multiplied, x @ W."""
    turned = Way(", ".join(filter(None, (said, "transposed"))), lambda tensors: made(tensors).T)
    straight = Way(said, made)
    first, second = (turned, straight) if theirs.linear else (straight, turned)
    for way in (first, second):
        if theirs.shape == (shape if way is straight else shape[::-1]) and (not theirs.linear or way is turned):
            yield way


def _interleaved(tensors: Sequence[Tensor], heads: int) -> Tensor:
    """Several (H·D, …) as (H, 3, D, …) in one axis."""
    return torch.stack([one.unflatten(0, (heads, -1)) for one in tensors], dim=1).flatten(0, 2)


def guess(module: nn.Module, config: ModelConfig, named: Mapping[str, Sequence[str]] | None = None) -> list[Pair]:
    """Which parameter of a module is which of the reference's; those that none fits are left out.

    ``named`` are names of the student's parameters, with {i} for the layer, to names of ours: they are not guessed.
    Raises UsageError for a name in it that is not there.
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
                if ways := tuple(_tensor_ways(one, target, config)):
                    score = 100.0 if wanted else _score(one, target, gated)
                    fits.append((-score, one.order, place, Pair(one, target, ways)))
    taken: set[object] = set()
    found = []
    for *_, pair in sorted(fits, key=lambda fit: fit[:3]):
        parts = {(module, pair.ours.attribute) for module in pair.ours.modules.split()}
        if pair.theirs.template in taken or parts & taken:
            continue
        taken |= {pair.theirs.template, *parts}
        found.append(pair)
    return sorted(found, key=lambda pair: pair.theirs.order)


def others(pairs: Sequence[Pair], config: ModelConfig) -> Iterator[list[Pair]]:
    """The same with a matrix, and its bias, that lies in another way; and with each rotary pair side by side."""
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
        return in_neighbours(tensor.unflatten(-1, (-1, config.d_head)), config.rope.width).flatten(-2)

    modules = [step.module for step, _ in pair.ours.steps]
    words = ", ".join(filter(None, (way.words, "in pairs 2i, 2i+1")))
    return Way(words, lambda tensors: way.make([turned(*each) for each in zip(modules, tensors, strict=True)]))


def _fixed(named: Mapping[str, Sequence[str]], theirs: list[Theirs], ours: list[Ours]) -> dict[str, tuple[str, ...]]:
    found = {}
    for template, names in named.items():
        known = [one.template for one in theirs]
        if template not in known:
            raise UsageError(f"your module has no parameter {template!r}", did_you_mean(template, known))
        wanted = tuple(re.sub(r"^L\{i\}\.", "", name) for name in names)
        if wanted not in [one.names for one in ours]:
            raise UsageError(
                f"the reference has no {' | '.join(wanted)}",
                did_you_mean(wanted[0], [one.names[0] for one in ours]),
            )
        found[template] = wanted
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
