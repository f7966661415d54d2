"""Describe the parameters of a student's module and of a reference, and score how well their names agree."""

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
"""Last words of a parameter's path that say nothing about its module."""
_BIAS = {"bias", "shift", "beta", "b"}
_ATTRIBUTE = r"_(weight|bias|scale|shift|gain|gamma|beta|w|b|g)$"
"""The end of a flat name, ``ln1_weight``, that is read as ``ln1.weight``."""

_HINTS: Mapping[str, tuple[str, str]] = {
    "embed.tokens": ("wte tok token tokens word emb embed embedding embeddings vocab e we", ""),
    "embed.norm": ("norm ln layernorm emb embed embedding embeddings", "emb embed embedding embeddings"),
    "embed.positions": ("wpe pos position positions positional pe p", ""),
    "attention.q": ("q wq query queries qw", "attn attention sa mha self att heads head"),
    "attention.k": ("k wk key keys kw", "attn attention sa mha self att heads head"),
    "attention.v": ("v wv value values vw", "attn attention sa mha self att heads head"),
    "attention.q attention.k attention.v": (
        "qkv wqkv kqv in attn query key value c", "attn attention sa mha self att"
    ),
    "attention.k attention.v": ("kv wkv key value k v", "attn attention sa mha self att"),
    "attention.o": ("o wo out output proj projection dense w0", "attn attention sa mha self att"),
    "cross.q": ("q wq query queries qw", "cross src source memory enc encoder multihead x"),
    "cross.k": ("k wk key keys kw", "cross src source memory enc encoder multihead x"),
    "cross.v": ("v wv value values vw", "cross src source memory enc encoder multihead x"),
    "cross.o": ("o wo out output proj projection dense w0", "cross src source memory enc encoder multihead x"),
    "cross.norm": ("2 ln2 norm2 ln_2 cross src source memory enc mid lnx", "ln2 norm2 cross"),
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
"""Words in files' names for the parameters of each of our modules: in the last part of the path, and before it."""


_INSTEAD = {
    "gated": {"ffn.gate": "gate wg w1 fc1 w g", "ffn.up": "up w3 fc2 v wu", "ffn.down": "down w2 fc3 out wd c"},
    "d_source": {"norm2": "3 ln3 norm3 ffn mlp ff post feed third last"},
}
"""Other words, of models with a setting: the norm after cross-attention is the third."""


@dataclass(frozen=True)
class ReferenceParameter(Data):
    """One or more parameters of the reference that one parameter of the student's holds, side by side if several."""

    LESS: ClassVar = ("steps", "modules", "attribute", "in_layer")

    names: tuple[str, ...]
    steps: tuple[tuple[Step, Parameter], ...]
    modules: str
    attribute: str
    in_layer: bool

    @property
    def is_norm(self) -> bool:
        """Whether it belongs to a norm."""
        return isinstance(self.steps[0][0].operation, Norm)

    @property
    def words(self) -> str:
        return " | ".join(f"L{{n}}.{name}" if self.in_layer else name for name in self.names)


@dataclass(frozen=True)
class StudentParameter:
    """All parameters of the student's that share a name with ``{n}`` for the layer and ``{h}`` for the head."""

    template: str
    paths: Mapping[tuple[int | None, int | None], str]
    shape: tuple[int, ...]
    is_linear: bool
    is_norm: bool
    order: int

    @property
    def in_layer(self) -> bool:
        return "{n}" in self.template

    @property
    def per_head(self) -> bool:
        return "{h}" in self.template

    @cached_property
    def words(self) -> tuple[set[str], set[str]]:
        """The words of the last meaningful part of the name, and the words of the parts before it."""
        parts = [part for part in _with_attribute(self.template).split(".") if part not in ("{n}", "{h}")]
        while len(parts) > 1 and parts[-1].lower() in _PLAIN:
            parts.pop()
        return _split_words(parts[-1]), {word for part in parts[:-1] for word in _split_words(part)}

    @property
    def is_bias(self) -> bool:
        last = _with_attribute(self.template).rpartition(".")[2].lower()
        return last in _BIAS or bool(re.match(r"b(_|\d|ias|$)", last)) or last.endswith("bias")


def _with_attribute(path: str) -> str:
    return re.sub(_ATTRIBUTE, r".\1", path)


def _belongs_to_norm(path: str, named: Mapping[str, nn.Parameter]) -> bool:
    """Whether all parameters of a parameter's module, or of its flat name, are vectors, and not all of them biases."""
    owner = _with_attribute(path).rpartition(".")[0]
    beside = [name for name in named if _with_attribute(name).rpartition(".")[0] == owner]
    return (
        bool(owner)
        and all(named[name].dim() == 1 for name in beside)
        and any(_with_attribute(name).rpartition(".")[2] not in _BIAS for name in beside)
    )


def _split_words(part: str) -> set[str]:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part).lower().split("_")
    lowered = part.lower()
    joined = re.sub(r"_(?=\d)", "", lowered)  # fc_1 is fc1 too, and ln_1
    return {word for word in (*words, lowered, joined, *re.findall(r"\d+", lowered)) if word}


def student_parameters(module: nn.Module, config: ModelConfig) -> list[StudentParameter]:
    """The parameters of a module, folded by layer and head. Raises UsageError if the numbers of layers differ."""
    named = dict(module.named_parameters())
    lists: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for path, parameter in named.items():
        match = re.match(r"(.*?)\.?(?<![\w])(\d+)\.", path)
        if match:
            lists.setdefault(match[1], set()).add(match[2])
            sizes[match[1]] = sizes.get(match[1], 0) + parameter.numel()
    stack = max(sizes, key=lambda name: sizes[name], default=None)
    if named and stack is None:
        raise UsageError(
            "your module has parameters in no layers",
            "name the whole model; its blocks belong in an nn.ModuleList, not in a list",
        )
    if stack is not None and (count := len(lists[stack])) != config.n_layers:
        hint = "let the constructor take their number, or set it with --args"
        if len(list(module.get_submodule(stack).children())) < len(module.get_submodule(stack)):  # type: ignore[arg-type]
            hint = "it is one block repeated, as [Block()] * n makes it: construct each block anew"
        layers = "layer" if count == 1 else "layers"
        raise UsageError(f"{stack} has {count} {layers}, and the reference has {config.n_layers}", hint)
    layer_of = {number: index for index, number in enumerate(sorted(lists.get(stack or "", ()), key=int))}
    grouped: dict[str, dict[tuple[int | None, int | None], str]] = {}
    for path, parameter in named.items():
        template, layer, head = path, None, None
        prefix = f"{stack}." if stack else ""
        if stack is not None and path.startswith(prefix) and (rest := path[len(prefix) :].split(".", 1))[0] in layer_of:
            layer = layer_of[rest[0]]
            template = f"{prefix}{{n}}.{rest[1]}"
            inner = re.search(r"\.(\d+)\.", rest[1])
            if inner and config.d_head in parameter.shape and config.d_head != config.d_model:
                head = int(inner[1])
                template = f"{prefix}{{n}}.{rest[1][: inner.start()]}.{{h}}.{rest[1][inner.end() :]}"
        grouped.setdefault(template, {})[layer, head] = path
    parameters = []
    for order, (template, paths) in enumerate(grouped.items()):
        path = next(iter(paths.values()))
        owner = module.get_submodule(path.rpartition(".")[0])
        is_linear = isinstance(owner, nn.Linear | nn.MultiheadAttention)
        is_norm = _belongs_to_norm(path, named)
        parameters.append(StudentParameter(template, paths, _shape(named[path].shape), is_linear, is_norm, order))
    return parameters


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without the batch axis of 1 that tables of positions have."""
    return tuple(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)


def reference_parameters(config: ModelConfig) -> list[ReferenceParameter]:
    """Every parameter of a reference, and every group that a file may hold side by side."""
    table = table_of(config)
    single = [
        ReferenceParameter((name,), ((step, parameter),), step.module, parameter.attribute, step.in_layer)
        for name, (step, parameter) in table.parameters.items()
        if not parameter.absent
    ]
    by_module = {(parameter.modules, parameter.attribute): parameter for parameter in single}
    if config.tied_head and ("embed.tokens", "weight") in by_module:
        single.append(replace(by_module["embed.tokens", "weight"], modules="head.decoder"))
    fused = []
    for modules in (key for key in _HINTS if " " in key):
        for attribute in ("weight", "bias"):
            parts = [by_module.get((module, attribute)) for module in modules.split()]
            if all(parts):
                names, steps = (
                    tuple(itertools.chain(*(getattr(p, field) for p in parts))) for field in ("names", "steps")
                )
                fused.append(ReferenceParameter(names, steps, modules, attribute, True))
    return single + fused


def _hints(modules: str, config: ModelConfig) -> tuple[set[str], set[str]]:
    last, path = _HINTS.get(modules, ("", ""))
    for setting, words in _INSTEAD.items():
        last = words.get(modules, last) if getattr(config, setting) else last
    return set(last.split()), set(path.split())


def name_score(theirs: StudentParameter, ours: ReferenceParameter, config: ModelConfig) -> float:
    """How well a name fits: words of its last part count double, words of its path once, foreign words against it."""
    (last, path), (last_hints, path_hints) = theirs.words, _hints(ours.modules, config)
    total = (
        2.0 * min(2, len(last & last_hints)) + min(1, len((path | last) & path_hints)) + 0.5 * len(path & last_hints)
    )
    known = [key for key in _HINTS if config.d_source or not key.startswith("cross.")]
    foreign = {word for key in known for word in _hints(key, config)[1]} - path_hints - {"heads", "head", "self"}
    total -= 2.0 * bool(path & foreign)
    if " " in ours.modules:
        total += 1.0
    return total
