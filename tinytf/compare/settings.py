"""Wrong programs by construction: the step table of a model with one setting of a part at another value.

Each setting left out, off by one, at its default, at that of another layer, or at a value usual in other families; a
number is solved for too. The rows of that table that differ are the mistake: they are computed from the run's own
numbers by its operations.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.compare.constants import plain
from tinytf.config import LEAVES, LEFT_OUT, ModelConfig
from tinytf.errors import ConfigError
from tinytf.fields import REQUIRED
from tinytf.parts.part import Leaf
from tinytf.steps.table import StepKey, StepTable, table_of
from tinytf.trace.site import Recorded, Site


@dataclass(frozen=True)
class Program:
    """A wrong program: the mistake in ``words``, its ``table``, and the rows of the right one that differ in it.

    It is wrong in these ``layers``, which have the ``setting`` at the value that is right; None for all.
    """

    words: str
    table: StepTable
    changed: frozenset[StepKey]
    layers: frozenset[int] | None = None
    setting: str = ""

    def wrong(self, site: Site) -> Tensor:
        """A step as this program computes it; what a step that it lacks would take goes on as it is."""
        if self.layers is not None and site.layer is not None and site.layer not in self.layers:
            return site.derive()
        if self.table.has(site.step.name, site.layer):
            return _Run(site.trace, self.table).derived(site.step.name, site.layer)
        return site.input()


class _Run:
    """A run of another table: steps that the model has too come from its run, the others are derived."""

    def __init__(self, base: Recorded, table: StepTable) -> None:
        self.base, self.steps, self.config = base, table, table.config
        self.model, self.about, self.encoding = base.model, base.about, base.encoding

    def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.base.step(name, layer, heads) if self.base.steps.has(name, layer) else self.derived(name, layer)

    def derived(self, name: str, layer: int | None) -> Tensor:
        return _OtherSite(self, self.steps.by_key[name, layer], layer).derive()

    def is_exchanged(self, name: str, layer: int | None, head: int | None = None) -> bool:
        return False


@dataclass(frozen=True)
class _OtherSite(Site):
    """A step of another table: its module has the settings of that table, and the parameters of the model."""

    @property
    def module(self) -> Any:
        own = self.trace.base.steps.by_key.get((self.step.name, self.layer))  # type: ignore[attr-defined]
        if own is not None and own.operation == self.operation:
            return super().module
        with torch.device("meta"):
            made = self.operation.make_module(self.config, self.step)
        given = _module_at(self)
        for name, parameter in made._parameters.items():
            if parameter is not None:
                stored = getattr(given, name, None)
                if stored is None and parameter.dim() != 1:
                    raise RuntimeError(f"the model has no {name} for it")
                neutral = torch.full(parameter.shape, float(name == "weight"))
                made._parameters[name] = nn.Parameter((neutral if stored is None else stored).detach(), False)
        return made


def _module_at(site: Site) -> Any:
    try:
        return Site.module.fget(site)  # type: ignore[attr-defined]
    except AttributeError:
        return None


@dataclass(frozen=True)
class Number:
    """A setting that is a number, which decides the rows ``changed``: a wrong one can be solved for from their numbers.

    Its logarithm is sought near one of ``starts``.
    """

    config: ModelConfig
    name: str
    changed: frozenset[StepKey]

    @property
    def starts(self) -> tuple[float, ...]:
        setting, right = LEAVES[self.name], self.config.setting(self.name)
        values = (*((right or 8) * 2.0**power for power in range(-6, 7)), *setting.usual, setting.field.default)
        return tuple(math.log(value) for value in values if value > 0)

    def program(self, logarithm: float) -> Program:
        """The program with another number; raises LookupError where the model cannot have it."""
        value = plain(math.exp(max(-40.0, min(40.0, logarithm))))
        program = _program(self.config, LEAVES[self.name], value)
        if program is None:
            raise LookupError(f"{self.name} cannot be {value}")
        return program


@lru_cache(maxsize=4)
def numbers(config: ModelConfig) -> tuple[Number, ...]:
    """The settings whose wrong numbers can be solved for; cached."""
    found = []
    for name, setting in LEAVES.items():
        if setting.field.kind is float and setting.field.default is not REQUIRED:
            right = config.setting(name)
            for value in (right * 1.25, right * 0.75) if right else setting.usual or (1.0,):
                program = _program(config, setting, value)
                if program is not None and program.changed:
                    found.append(Number(config, name, program.changed))
                    break
    return tuple(found)


def _program(config: ModelConfig, setting: Leaf, value: Any) -> Program | None:
    """The program with a setting at a value; None where the model cannot have it."""
    other = _with(config, setting, setting.field.name, value)
    with suppress(ConfigError, LookupError, StopIteration):  # layers that take what no layer has
        if other is not None:
            right, table = table_of(config), StepTable(other)
            changed = frozenset(key for key in right.by_key if _change(right, table, key) is not None)
            return Program(
                setting.mistaken(value, config.setting(setting.field.name)), table, changed, setting=setting.field.name
            )
    return None


_OF_WEIGHTS = ("head", "experts")
"""Settings that the weights decide, so that no port of a model has another."""


@lru_cache(maxsize=4)
def programs(config: ModelConfig) -> tuple[Program, ...]:
    """Every wrong program of a model, once each; cached."""
    right, found = StepTable(config), dict[Any, Program]()
    for name, words, other, layers in _others(config):
        with suppress(ConfigError, LookupError, StopIteration):  # layers that take what no layer has
            table = StepTable(other)
            keys = (key for key in right.by_key if layers is None or key[1] is None or key[1] in layers)
            changed = {key: row for key in keys if (row := _change(right, table, key)) is not None}
            if not changed:
                continue
            found.setdefault(tuple(changed.items()), Program(words, table, frozenset(changed), layers, name))
    return tuple(found.values())


def _change(right: StepTable, other: StepTable, key: StepKey) -> Any:
    """The operation and inputs of a row that differs in another table; None where it is as in the right one."""
    row, changed = right.by_key[key], other.by_key.get(key)
    if changed is None:
        return "left out" if row.is_tensor else None
    made = (changed.operation, () if changed.from_stream else other.sources(changed, key[1]))
    taken = () if row.from_stream else tuple(_passed(right, other, source) for source in right.sources(row, key[1]))
    return None if row.operation is None or made == (row.operation, taken) else made


def _passed(right: StepTable, other: StepTable, source: StepKey) -> StepKey:
    """A step, or what it would take where the ``other`` table lacks it."""
    while source not in other.by_key and (above := right.sources(right.by_key[source], source[1])):
        source = above[0]
    return source


def _others(config: ModelConfig) -> Iterator[tuple[str, str, ModelConfig, frozenset[int] | None]]:
    """The settings at other values, in words, with the configuration and the layers where it is one: None for all."""
    layers = [config.at(layer) for layer in range(config.n_layers)]
    for name, setting in LEAVES.items():
        ours = [layer.setting(name) for layer in layers]
        siblings = _siblings(config, setting)
        if setting.field.default is REQUIRED or setting.path[-1] == "called" or name in _OF_WEIGHTS:
            continue
        for value in dict.fromkeys((*setting.others(*dict.fromkeys(ours)), *siblings)):
            other = None if {*ours} == {value} else _with(config, setting, name, value)
            for right in dict.fromkeys(one for one in ours if one != value) if other is not None else ():
                alike = frozenset(layer for layer, one in enumerate(ours) if one == right)
                words = siblings.get(value) or setting.mistaken(value, right)
                yield name, words, other, alike if len(alike) < len(layers) else None  # type: ignore[misc]
    for name, settings in LEFT_OUT.items():
        with suppress(ConfigError):
            yield name, f"{_LEFT_OUT[name]} left out", config.but(**settings), None


_LEFT_OUT = {"scaling": "the division of the scores", "mask": "the mask", "positions": "positions"}
"""What can be left out of attention, in words."""


def _siblings(config: ModelConfig, setting: Leaf) -> dict[Any, str]:
    """The values of settings of the same part that are lists as long: the long factors where the short ones belong."""
    value, found = config.setting(setting.field.name), dict[Any, str]()
    for name, other in LEAVES.items() if isinstance(value, tuple) and value else ():
        taken = config.setting(name)
        if (
            other.path[:-1] == setting.path[:-1]
            and isinstance(taken, tuple)
            and len(taken) == len(value)
            and taken != value
        ):
            names = [one.said.removesuffix(" {}") for one in (other, setting)]
            found[taken] = " instead of ".join(names)
    return found


def _with(config: ModelConfig, setting: Leaf, name: str, value: Any) -> ModelConfig | None:
    """The configuration with a setting at a value, and, if it needs that, another of the part at its default.

    A feature is not added in place of another.
    """
    part = [other for other, one in LEAVES.items() if one.path[:-1] == setting.path[:-1] and other != name]
    unusual = [other for other in part if config.setting(other) != LEAVES[other].field.default]
    is_added = bool(value) and not config.setting(name)
    for changes in ({}, *({other: LEAVES[other].field.default} for other in unusual if not is_added)):
        with suppress(ConfigError, TypeError):
            return config.but(**{name: value}, **changes)
    return None
