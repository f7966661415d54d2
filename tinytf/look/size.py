"""The parameters of a model by the rows of its step table, from its configuration alone, and its size as a report."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.report import Data, Report
from tinytf.steps.table import table_of
from tinytf.steps.work import Work, cache_bytes_per_token, work_per_token


@dataclass(frozen=True)
class Component(Data):
    """One component: how many parameters each copy has, how many copies there are, and the formula."""

    LESS: ClassVar = ("name",)
    ALSO: ClassVar = ("total",)

    name: str
    formula: str
    each: int
    copies: int = 1

    @property
    def total(self) -> int:
        return self.each * self.copies


_GROUPS = {"q": "attention", "k": "attention", "v": "attention", "attention": "attention", "ffn": "feed-forward"}


def parameter_parts(config: ModelConfig) -> list[Component]:
    """The parameters of every step that has some; their totals add up to the model's parameter count."""
    found: Counter[tuple[str, str, int]] = Counter()
    table = table_of(config)
    for step, layer in table.rows:
        if not table.has_own(step, layer):
            continue  # its weights are those of a step before
        parameters = step.operation.parameters(step) if step.operation else ()
        here, sizes = [one.axes for one in parameters if not one.absent], config.at(layer or 0).sizes
        words = " + ".join("·".join(axes) for axes in here)
        numbers = " + ".join("·".join(f"{sizes[axis]:,}" for axis in axes) for axes in here)
        each = sum(math.prod(sizes[axis] for axis in axes) for axes in here)
        if parameters:
            found[_name(step), f"{words} = {numbers}" if here else parameters[0].absent, each] += 1
    return [Component(*one, copies) for one, copies in found.items()]


def _name(step: Step) -> str:
    if not step.in_layer:
        return step.title
    own = step.parameter.removesuffix(".gain").removeprefix("ffn.") or step.name
    group = step.mixer.replace("_", " ") or _GROUPS.get(step.role)
    return f"{group}, {own}" if group else own


def parameter_count(config: ModelConfig) -> int:
    """All parameters; tied weights count once."""
    return sum(part.total for part in parameter_parts(config))


@dataclass(frozen=True)
class Info(Report):
    """``family`` is the kind of the files, ``counted`` the parameters of the opened model, ``notes`` what is worth
    knowing of its files, ``card`` the model card of a built-in model.
    """

    KIND = "info"
    EVENTS: ClassVar = {"parameters": "component"}

    name: str
    config: ModelConfig
    family: str = "preset"
    counted: int | None = None
    notes: tuple[str, ...] = ()
    card: Mapping[str, Any] | None = None

    @cached_property
    def parts(self) -> list[Component]:
        return parameter_parts(self.config)

    @cached_property
    def total(self) -> int:
        return parameter_count(self.config)

    @property
    def holds(self) -> bool:
        """Whether the opened model has as many parameters as its configuration says."""
        return self.counted in (None, self.total)

    @cached_property
    def work(self) -> Work:
        """What one token costs at the full context."""
        return work_per_token(self.config, self.config.context)

    @property
    def memory_bytes(self) -> dict[str, int]:
        return {"fp32": 4 * self.total, "bf16": 2 * self.total}

    @property
    def cache_bytes(self) -> dict[str, int]:
        """Of the key-value cache, for one token; 0 in an encoder, which has none."""
        sizes = {"fp32": 4, "bf16": 2}
        return {name: cache_bytes_per_token(self.config, size) * self.config.causal for name, size in sizes.items()}

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
            "card": self.card,
        }
