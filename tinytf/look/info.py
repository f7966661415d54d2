"""The parameter counts of a model, by the rows of its step table and from its configuration alone, as a report."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tinytf.config import ENC, ModelConfig
from tinytf.errors import UsageError
from tinytf.parts.row import TEXT_AXES, Step
from tinytf.report import Data, Report, derived, plain
from tinytf.sentences import listed, several
from tinytf.steps.table import table_of
from tinytf.steps.work import Work, cache_bytes_per_token, work_per_token
from tinytf.tables import count, in_bytes
from tinytf.trace.record import recording_bytes


@dataclass(frozen=True)
class Component(Data):
    """One component: the parameters of ``each`` copy, the number of ``copies``, and the formula."""

    LESS: ClassVar = ("name",)
    ALSO: ClassVar = ("total",)

    name: str
    formula: str
    each: int
    copies: int = 1

    @property
    def total(self) -> int:
        return self.each * self.copies


@dataclass(frozen=True)
class StepShape:
    """The tensor of a step for a whole batch of texts."""

    step: str
    role: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]


_OF_TEXTS = ("embed.tokens", "embed.types")
"""The steps that read the ids of a text; what comes from one of them differs from text to text."""
_NUMBERS = {"fp32": 4, "bf16": 2}
"""Bytes of a number."""
_TRACED = 512
"""Tokens of the text whose trace is measured, if the context has as many."""
_GROUPS = {
    "q": "attention",
    "k": "attention",
    "v": "attention",
    "attention": "attention",
    "cross": "cross-attention",
    "ffn": "feed-forward",
}


def parameter_parts(config: ModelConfig) -> list[Component]:
    """The components of every step with parameters; their totals add up to the model's parameter count."""
    return [
        replace(part, name=_OF_STACK[at] + part.name)
        for at, stack in reversed(config.stacks.items())
        for part in _own_parts(stack)
        if not (at and config.shares_embeddings and part.name == _TABLE)
    ]


_TABLE = "token embeddings"
_OF_STACK = {"": "", ENC: "encoder, "}


def _own_parts(config: ModelConfig) -> list[Component]:
    """Those of one stack."""
    counts: Counter[tuple[str, str, int]] = Counter()
    table = table_of(config)
    for step, layer in table.rows:
        if not table.has_own(step, layer):
            continue  # it shares the weights of an earlier step
        parameters = step.operation.parameters(step) if step.operation else ()
        shapes, sizes = [p.axes for p in parameters if not p.absent], config.at(layer or 0).sizes
        words = " + ".join("·".join(axes) for axes in shapes)
        numbers = " + ".join("·".join(f"{sizes[axis]:,}" for axis in axes) for axes in shapes)
        size = sum(math.prod(sizes[axis] for axis in axes) for axes in shapes)
        if parameters:
            counts[_name(step), f"{words} = {numbers}" if shapes else parameters[0].absent, size] += 1
    return [Component(*component, copies) for component, copies in counts.items()]


def _name(step: Step) -> str:
    if not step.in_layer:
        return step.title
    part = step.parameter.removesuffix(".gain").removeprefix("ffn.").removeprefix("cross.") or step.name
    of_cross = step.path.startswith("cross.")
    group = step.mixer.replace("_", " ") or _GROUPS.get("cross" if of_cross else step.role)
    return f"{group}, {part}" if group else part


def parameter_count(config: ModelConfig) -> int:
    """The number of all parameters; tied weights count once."""
    return sum(part.total for part in parameter_parts(config))


@dataclass(frozen=True)
class Info(Report):
    """The size of a model: ``family`` is the kind of its files, ``counted`` the parameters of the opened model,
    ``notes`` are about its files, ``card`` is the model card of a built-in model. ``batch`` is a number of texts and of
    tokens in each, for ``shapes``. Raises UsageError for a batch that the model does not take.
    """

    KIND = "info"
    EVENTS: ClassVar = {"parameters": "component"}
    ALWAYS_SAID = True

    name: str
    config: ModelConfig
    family: str = "preset"
    counted: int | None = None
    notes: tuple[str, ...] = ()
    card: Mapping[str, Any] | None = None
    batch: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and not (min(self.batch) > 0 and self.batch[1] <= self.config.context):
            raise UsageError(
                f"this model takes no batch of {self.batch[0]:,} × {self.batch[1]:,} tokens",
                f"at least 1 text, of 1 to {self.config.context:,} tokens",
            )

    def in_a_sentence(self) -> str:
        """What the model does, its size, and what sets some of its layers or its head apart; empty for shapes."""
        if self.batch is not None:
            return ""
        config = self.config
        layers = [config.at(layer) for layer in range(config.n_layers)]
        does = (
            f"sorts a text into {len(config.labels)} classes" if config.labels
            else "makes a vector of every token" if not config.predicts_tokens
            else "predicts the next token" if config.causal else "fills in masked tokens"
        )  # fmt: skip
        apart = {
            "see a window of the text only": [bool(own.window) for own in layers],
            "have experts": [bool(own.experts) for own in layers],
            "lack attention": [own.mixer != "attention" for own in layers],
        }
        every = [does_so for does_so, has in apart.items() if all(has)]
        some = [several(sum(has), does_so) for does_so, has in apart.items() if any(has) and not all(has)]
        size = f"{config.n_layers:,} layers, {count(self.total)} parameters"
        words = [f"The {config.kind} {does}: {size}, {in_bytes(self.memory_bytes['fp32'])} in float32"]
        words += [f"all its layers {listed(every)}"] if every else []
        words += [f"of its layers {listed(some)}"] if some else []
        words += ["it predicts with its token embeddings"] if config.tied_head and config.predicts_tokens else []
        return f"{'; '.join(words)}."

    @property
    def shapes(self) -> list[StepShape]:
        """The tensors of a batch, outside the layers and in the first; all texts share positions."""
        if self.batch is None:
            return []
        texts, tokens = self.batch
        sizes = {"batch": texts, **dict.fromkeys(TEXT_AXES, tokens), **self.config.at(0).sizes}
        table, shapes = table_of(self.config), []
        of_texts: set[tuple[str, int | None]] = set()
        for step, layer in table.rows:
            if step.name in _OF_TEXTS or not of_texts.isdisjoint(table.sources(step, layer)):
                of_texts.add((step.name, layer))
            if step.axes and not layer:
                axes = (*["batch"] * ((step.name, layer) in of_texts), *step.axes)
                shape = tuple(sizes[axis] for axis in axes)
                shapes.append(StepShape(step.full_name(layer), step.role, axes, shape))
        return shapes

    @derived
    def parts(self) -> list[Component]:
        return parameter_parts(self.config)

    @derived
    def total(self) -> int:
        return parameter_count(self.config)

    @property
    def holds(self) -> bool:
        """Whether the opened model has the number of parameters that its configuration implies."""
        return self.counted in (None, self.total)

    @derived
    def work(self) -> Work:
        """The work of one token at the full context."""
        return work_per_token(self.config, self.config.context)

    @property
    def memory_bytes(self) -> dict[str, int]:
        return {name: size * self.total for name, size in _NUMBERS.items()}

    @property
    def cache_bytes(self) -> dict[str, int]:
        """The bytes of the key-value cache for one token; 0 for an encoder, which has none."""
        return {name: cache_bytes_per_token(self.config, size) * self.config.causal for name, size in _NUMBERS.items()}

    @property
    def trace_bytes(self) -> dict[str, int]:
        """The bytes that the trace of a text of ``tokens`` keeps, with all layers and a row of logits."""
        tokens = min(_TRACED, self.config.context)
        layers = range(self.config.n_layers)
        kept = {name: recording_bytes(self.config, tokens, 1, size, layers) for name, size in _NUMBERS.items()}
        return {"tokens": tokens, **kept}

    def fields(self) -> dict[str, Any]:
        return {
            "model": self.name,
            **self.members("family", "notes"),
            **self.members("config"),
            "parameters": [{"component": part.name, **part.to_dict()} for part in self.parts],
            "total_parameters": self.total,
            "counted_parameters": self.counted,
            **self.members("memory_bytes"),
            "flops_per_token": {**vars(self.work), "total": self.work.total},
            "kv_cache_bytes_per_token": self.cache_bytes,
            "trace_bytes": self.trace_bytes,
            "card": self.card,
            **({"shapes": plain(self.shapes)} if self.batch else {}),
        }
