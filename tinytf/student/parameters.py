"""Parameters of a student's module and of a reference, by the words of their names."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from torch import nn

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations import Norm, Parameter
from tinytf.steps.table import table_of

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
"""Names of the matrices of a feed-forward with a gate."""


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
        return " | ".join(f"L{{n}}.{name}" if self.in_layer else name for name in self.names)


@dataclass(frozen=True)
class Theirs:
    """A parameter of the student's, with ``{n}`` for the layer and ``{h}`` for the head: all that share a name."""

    template: str
    paths: Mapping[tuple[int | None, int | None], str]
    shape: tuple[int, ...]
    linear: bool
    norm: bool
    order: int

    @property
    def in_layer(self) -> bool:
        return "{n}" in self.template

    @property
    def per_head(self) -> bool:
        return "{h}" in self.template

    @cached_property
    def words(self) -> tuple[set[str], set[str]]:
        """The words of the last part that says something, and those before it."""
        parts = [part for part in self.template.split(".") if part not in ("{n}", "{h}")]
        while len(parts) > 1 and parts[-1].lower() in _PLAIN:
            parts.pop()
        return _split(parts[-1]), {word for part in parts[:-1] for word in _split(part)}

    @property
    def is_bias(self) -> bool:
        last = self.template.rpartition(".")[2].lower()
        return last in _BIAS or bool(re.match(r"b(_|\d|ias|$)", last)) or last.endswith("bias")


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
    if named and stack is None:
        raise UsageError(
            "your module has parameters in no layers",
            "name the whole model; its blocks belong in an nn.ModuleList, not in a list",
        )
    if stack is not None and (count := len(lists[stack])) != config.n_layers:
        hint = "let the constructor take their number, or say it with --args"
        if len(list(module.get_submodule(stack).children())) < len(module.get_submodule(stack)):  # type: ignore[arg-type]
            hint = "it is one block many times, as [Block()] * n makes it: make each anew"
        layers = "layer" if count == 1 else "layers"
        raise UsageError(f"{stack} has {count} {layers}, and the reference has {config.n_layers}", hint)
    order = {number: place for place, number in enumerate(sorted(lists.get(stack or "", ()), key=int))}
    grouped: dict[str, dict[tuple[int | None, int | None], str]] = {}
    for path, parameter in named.items():
        template, layer, head = path, None, None
        prefix = f"{stack}." if stack else ""
        if stack is not None and path.startswith(prefix) and (rest := path[len(prefix) :].split(".", 1))[0] in order:
            layer = order[rest[0]]
            template = f"{prefix}{{n}}.{rest[1]}"
            inner = re.search(r"\.(\d+)\.", rest[1])
            if inner and config.d_head in parameter.shape and config.d_head != config.d_model:
                head = int(inner[1])
                template = f"{prefix}{{n}}.{rest[1][: inner.start()]}.{{h}}.{rest[1][inner.end() :]}"
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


def score(theirs: Theirs, ours: Ours, gated: bool) -> float:
    """How well a name suits: words of its last part count twice, those of its path once; foreign ones against it."""
    (last, before), (wanted, around) = theirs.words, _hints(ours.modules, gated)
    score = 2.0 * min(2, len(last & wanted)) + min(1, len((before | last) & around)) + 0.5 * len(before & wanted)
    foreign = {word for key in _HINTS for word in _hints(key, gated)[1]} - around - {"heads", "head", "self"}
    score -= 2.0 * bool(before & foreign)
    if " " in ours.modules:
        score += 1.0
    return score
