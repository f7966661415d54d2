"""Wrong programs by construction: the step table of a model with one setting of a part at another value.

Each setting left out, off by one, at its default, at that of another layer, or at a value usual in other families; a
number is solved for too. The rows of that table that differ are the mistake: they are computed from the run's own
numbers by its operations.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.compare.constants import plain
from tinytf.config import LEAVES, LEFT_OUT, ModelConfig
from tinytf.errors import ConfigError
from tinytf.fields import REQUIRED
from tinytf.parts.part import Leaf
from tinytf.parts.row import WIDE
from tinytf.sentences import listed
from tinytf.steps.operations import Norm
from tinytf.steps.table import StepKey, StepTable, table_of
from tinytf.trace.site import Recorded, Site


@dataclass(frozen=True)
class Program:
    """A wrong program: the mistake in ``words``, its ``table``, and the rows of the right one that differ in it.

    It is wrong in these ``layers``, which have the ``setting`` at the value that is right; None for all. Its numbers
    have so many ``digits`` if they were solved for, else 0.
    """

    words: str
    table: StepTable
    changed: frozenset[StepKey]
    layers: frozenset[int] | None = None
    setting: str = ""
    digits: int = 0

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
        given = _module_at(self) or _norm_instead(self)
        for name in made._buffers:
            made._buffers[name] = getattr(given, name)
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


def _norm_instead(site: _OtherSite) -> Any:
    """The norm of the model that a norm which it lacks may be: one that the other program lacks, else the first."""
    norms = [
        [step for step in steps.in_layer(site.layer or 0) if type(step.operation) is Norm and step.axes == WIDE]
        for steps in (site.trace.base.steps, site.trace.steps)  # type: ignore[attr-defined]
    ]
    names = [[step.name for step in one] for one in norms]
    if site.layer is None or site.step.name not in names[1] or not names[0]:
        return None
    lost = [step for step in norms[0] if step.name not in names[1]]
    new = [name for name in names[1] if name not in names[0]].index(site.step.name)
    return _module_at(Site(site.trace, lost[new] if new < len(lost) else norms[0][0], site.layer))


@dataclass(frozen=True)
class Number:
    """Settings that are numbers, which decide the rows ``changed``: wrong ones can be solved for from their numbers.

    The logarithms of the settings called ``names`` are sought near one of ``starts``; beside them, those of ``set``
    have other values.
    """

    config: ModelConfig
    names: tuple[str, ...]
    changed: frozenset[StepKey]
    set: tuple[tuple[str, Any], ...] = ()

    @property
    def starts(self) -> tuple[tuple[float, ...], ...]:
        """Where to begin: a number alone at any usual one, linked ones at those of the model."""
        if len(self.names) > 1 or self.set:
            return (tuple(math.log(self.config.setting(name)) for name in self.names),)
        (name,) = self.names
        setting, right = LEAVES[name], self.config.setting(name)
        values = [*((right or 8) * 2.0**power for power in range(-6, 7)), *setting.usual, setting.field.default]
        if setting.field.kind is int:
            values += range(1, min(2 * (right or _MOST_COUNTED), _MOST_COUNTED) + 1)
        return tuple((math.log(value),) for value in dict.fromkeys(values) if value > 0)

    def program(self, logarithms: Sequence[float]) -> Program:
        """The program with other numbers; raises LookupError where the model cannot have them."""
        values = dict(self.set)
        for name, logarithm in zip(self.names, logarithms, strict=True):
            value = plain(math.exp(max(-40.0, min(40.0, logarithm))))
            values[name] = round(value) if LEAVES[name].field.kind is int else value
        program = _program(self.config, values)
        if program is None:
            raise LookupError(f"{listed(self.names)} cannot be {values}")
        shown = (f"{values[name]:g}".partition("e")[0].strip("0").lstrip(".0") for name in self.names)
        return replace(program, digits=sum(len(one.replace(".", "")) for one in shown))


_MOST_COUNTED = 32
"""Up to which a setting that is a whole number is tried at every value."""


@lru_cache(maxsize=4)
def numbers(config: ModelConfig) -> tuple[Number, ...]:
    """The settings whose wrong numbers can be solved for, one alone; cached."""
    found = []
    for name, setting in LEAVES.items():
        is_solved = setting.field.kind in (int, float) and not name.startswith(_WIDTHS)
        if is_solved and setting.field.default is not REQUIRED and name not in _OF_WEIGHTS:
            right = config.setting(name)
            for value in _beside(setting, right):
                program = _program(config, {name: value})
                if program is not None and program.changed:
                    found.append(Number(config, (name,), program.changed))
                    break
    return tuple(found)


def _beside(setting: Leaf, right: Any) -> tuple[Any, ...]:
    """Other values of a number, to see whether it matters."""
    if setting.field.kind is int:
        return (right * 2, right // 2, right + 2) if right else ()
    return (right * 1.25, right * 0.75) if right else setting.usual or (1.0,)


@lru_cache(maxsize=4)
def linked(config: ModelConfig) -> tuple[Number, ...]:
    """Two settings of one part that may be wrong together: numbers, or one beside another value; cached."""
    found = []
    alone = {one.names[0]: one for one in numbers(config) if LEAVES[one.names[0]].field.kind is float}
    alone = {name: one for name, one in alone.items() if config.setting(name) > 0}
    for name, number in alone.items():
        path = LEAVES[name].path[:-1]
        part = {other: one for other, one in LEAVES.items() if one.path[:-1] == path and other != name}
        pairs = [(name, other) for other in part if other in alone and name < other]
        changed = ((names, number.changed & alone[names[1]].changed) for names in pairs)
        found += [Number(config, names, both) for names, both in changed if both]
        for other, setting in part.items():
            for value in _values(config, setting) if other not in alone else ():
                program = _program(config, {other: value})
                if program is not None and (both := program.changed & number.changed):
                    found.append(Number(config, (name,), both, ((other, value),)))
    return (*found, *_counts(config))


def _counts(config: ModelConfig) -> Iterator[Number]:
    """Two settings of one part that are whole numbers, at other values."""
    counted = {name: one for name, one in LEAVES.items() if not name.startswith(_WIDTHS)}
    whole = {name: one for name, one in counted.items() if one.field.kind is int and name not in _OF_WEIGHTS}
    alone = {
        name: [(value, program) for value in _values(config, setting) if (program := _program(config, {name: value}))]
        for name, setting in whole.items()
        if setting.field.default is not REQUIRED and config.setting(name)
    }
    for (name, ours), (other, theirs) in itertools.combinations(alone.items(), 2):
        if whole[name].path[:-1] == whole[other].path[:-1]:
            for (value, program), (beside, another) in itertools.product(ours, theirs):
                if both := program.changed & another.changed:
                    yield Number(config, (), both, ((name, value), (other, beside)))


def _values(config: ModelConfig, setting: Leaf) -> Iterator[Any]:
    """Other values of a setting; a width at every value up to that of a head."""
    right = config.setting(setting.field.name)
    found = setting.others(*(right,) if setting.field.kind is int else ())
    widths = range(2, config.d_head + 1, 2) if "width" in setting.field.name else ()
    yield from (value for value in dict.fromkeys((*widths, *found)) if value != right)


def _program(config: ModelConfig, values: Mapping[str, Any]) -> Program | None:
    return _program_of(config, tuple(values.items()))


@lru_cache(maxsize=1_024)
def _program_of(config: ModelConfig, settings: tuple[tuple[str, Any], ...]) -> Program | None:
    """The program with settings at these values; None where the model cannot have it; cached."""
    values = dict(settings)
    with suppress(ConfigError, TypeError, LookupError, StopIteration):  # layers that take what no layer has
        if len(values) == 1:
            ((name, value),) = values.items()
            other = _with(config, LEAVES[name], name, value)
        else:
            other = config.but(**values)
        if other is not None:
            right, table = table_of(config), StepTable(other)
            changed = frozenset(key for key in right.by_key if _change(right, table, key) is not None)
            words = [LEAVES[name].mistaken(value, config.setting(name)) for name, value in values.items()]
            return Program(listed(words), table, changed, setting=next(iter(values)) if len(values) == 1 else "")
    return None


_WIDTHS = "d_"
"""How the names of settings begin that are widths of weights: what gives the numbers of another is no such mistake."""
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
        for value, words in _siblings(config, setting).items():
            if (sibling := _with(config, setting, name, value)) is not None:
                yield name, words, sibling, None
    for name, setting in LEAVES.items():
        ours = [layer.setting(name) for layer in layers]
        if setting.field.default is REQUIRED or setting.path[-1] == "called" or name in _OF_WEIGHTS:
            continue
        values = dict.fromkeys(setting.others(*dict.fromkeys(ours)))
        for value in sorted(values, key=lambda value: bool(value) and value != "none"):  # what is left out says most
            if {*ours} == {value}:
                continue
            rights = dict.fromkeys(one for one in ours if one != value)
            if (other := _with(config, setting, name, value)) is not None:
                for right in rights:
                    alike = frozenset(layer for layer, one in enumerate(ours) if one == right)
                    yield name, setting.mistaken(value, right), other, alike if len(alike) < len(layers) else None
            words = setting.mistaken(value, next(filter(None, rights), next(iter(rights))))
            for more, fewer in _with_fewer(config, setting, name, value):
                yield name, words + more, fewer, None
    for name, settings in LEFT_OUT.items():
        with suppress(ConfigError):
            yield name, f"{_LEFT_OUT[name]} left out", config.but(**settings), None
    yield from _kinds(config)


def _kinds(config: ModelConfig) -> Iterator[tuple[str, str, ModelConfig, frozenset[int]]]:
    """Configurations whose layers are all of one kind, where layers differ in several settings at once."""
    differing = dict(config.by_layer)
    of_layers = [*zip(*differing.values(), strict=True)]
    for kind, other in itertools.permutations(dict.fromkeys(of_layers), 2) if len(differing) > 1 else ():
        changed = {name: (new, old) for name, new, old in zip(differing, kind, other, strict=True) if new != old}
        with suppress(ConfigError):
            words = listed([LEAVES[name].mistaken(*values) for name, values in changed.items()])
            alike = frozenset(layer for layer, one in enumerate(of_layers) if one == other)
            yield "", words, config.but(**{name: new for name, (new, _) in changed.items()}), alike


_LEFT_OUT = {"scaling": "the division of the scores", "mask": "the mask", "positions": "positions"}
"""What can be left out of attention, in words."""


def _siblings(config: ModelConfig, setting: Leaf) -> dict[Any, str]:
    """The values of settings of the same part that are lists as long: the short factors where the long ones belong."""
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


_MOST_FEWER = 9
"""The most of something that is tried at every smaller number, where another setting needs that."""


def _with_fewer(config: ModelConfig, setting: Leaf, name: str, value: Any) -> Iterator[tuple[str, ModelConfig]]:
    """Configurations with a number that needs a smaller one of the part beside it; what is added to its words."""
    with suppress(ConfigError, TypeError):
        config.but(**{name: value})
        return  # it needs none
    for other, one in LEAVES.items() if setting.field.kind is int else ():
        if one.field.kind is not int or one.path[:-1] != setting.path[:-1] or other == name:
            continue
        for count in range(min(config.setting(other), _MOST_FEWER) - 1, 0, -1):
            with suppress(ConfigError, TypeError):
                yield f", and {one.mistaken(count, config.setting(other))}", config.but(**{name: value, other: count})


def _with(config: ModelConfig, setting: Leaf, name: str, value: Any) -> ModelConfig | None:
    """The configuration with a setting at a value, and, if it needs that, another or a switch at its default.

    A feature is not added in place of another.
    """
    near = [other for other, one in LEAVES.items() if one.path[:-1] == setting.path[:-1] and other != name]
    switches = [other for other, one in LEAVES.items() if one.field.kind is bool and other not in (*near, name)]
    free = (other for other in (*near, *switches) if other not in _OF_WEIGHTS)
    unusual = [other for other in free if config.setting(other) != LEAVES[other].field.default]
    is_added = bool(value) and not config.setting(name)
    for changes in ({}, *({other: LEAVES[other].field.default} for other in unusual if not is_added)):
        with suppress(ConfigError, TypeError):
            return config.but(**{name: value}, **changes)
    return None
