"""How a command is declared: the dataclasses in its signature say which options it takes, and in which groups."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
from click.core import Context
from click.formatting import HelpFormatter
from click.types import FloatParamType, IntParamType

UNGROUPED = 10
"""More options than these are shown in groups."""
WIDE = 20
"""Columns that the words of a choice may take beside its option."""


class Option(click.Option):
    """An option in a group of the help page, where numbers are called N, and many words stand in the text."""

    group = "Options"

    def make_metavar(self, ctx: Context) -> str:
        if self.metavar is None and isinstance(self.type, (IntParamType, FloatParamType)):
            return "N"
        return "WORD" if self._words else super().make_metavar(ctx)

    @property
    def _words(self) -> str:
        """The words that it takes, where they are too many to stand beside its name."""
        words = ", ".join(map(str, self.type.choices)) if isinstance(self.type, click.Choice) else ""
        return words if len(words) > WIDE else ""

    def get_help_record(self, ctx: Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None or not self._words:
            return record
        about, bracket, rest = record[1].partition("  [")
        return record[0], f"{about.removesuffix('.')}: {self._words}.{bracket}{rest}"

    def get_help_extra(self, ctx: Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Command(click.Command):
    """A command whose options are shown in groups where they are many."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(record)
        if sum(map(len, groups.values())) <= UNGROUPED:
            groups = {"Options": [record for records in groups.values() for record in records]}
        wide = max(len(name) for records in groups.values() for name, _ in records)
        for title, records in groups.items():
            records = [(name.ljust(wide), about) for name, about in records]
            with formatter.section(title):
                formatter.write_dl(records)


def option(*names: str, shown: Any = None, **attributes: Any) -> Any:
    """A field of a dataclass that is an option of these names, or of the field's own.

    ``shown`` is a default that --help shows.
    """
    if shown is not None:
        attributes |= {"default": shown, "show_default": True}
    return dataclasses.field(metadata={"declared": (Option, names, attributes)})


def argument(**attributes: Any) -> Any:
    """A field of a dataclass that is a positional argument."""
    return dataclasses.field(metadata={"declared": (click.Argument, (), attributes)})


DECLARED_BY: dict[type, type] = {}
"""Classes that the ``resolved`` method of another class makes, whose fields declare the options."""


def parameters_of(made: Any) -> Iterator[click.Parameter]:
    """The click parameters that the fields of a dataclass declare; one that is a dataclass itself declares its own."""
    declaring = DECLARED_BY.get(made, made)
    for field in dataclasses.fields(declaring):
        if "declared" not in field.metadata:
            yield from parameters_of(field.type)
            continue
        kind, names, attributes = field.metadata["declared"]
        if kind is click.Argument:
            yield click.Argument([field.name], **attributes)
        else:
            declared = Option([*(names or (f"--{field.name.replace('_', '-')}",)), field.name], **attributes)
            declared.group = getattr(declaring, "GROUP", Option.group)
            yield declared


def build(made: Any, values: Mapping[str, Any]) -> Any:
    """The object that the options of a dataclass make, from the values that click parsed."""
    declaring = DECLARED_BY.get(made, made)
    found = declaring(
        **{
            field.name: values[field.name] if "declared" in field.metadata else build(field.type, values)
            for field in dataclasses.fields(declaring)
        }
    )
    return found if declaring is made else found.resolved()


def command(name: str) -> Callable[[Callable[..., int | None]], Command]:
    """Make a command of a function; each of its parameters is annotated with a dataclass that declares options."""

    def decorate(function: Callable[..., int | None]) -> Command:
        kinds = {one.name: one.annotation for one in inspect.signature(function).parameters.values()}
        params = [parameter for made in kinds.values() for parameter in parameters_of(made)]
        debug = Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error.")
        debug.group = "Other"

        def run(**values: Any) -> int | None:
            return function(**{keyword: build(made, values) for keyword, made in kinds.items()})

        return Command(name, callback=run, params=[*params, debug], help=inspect.getdoc(function))

    return decorate
