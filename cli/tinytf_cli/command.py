"""How a command is declared: the dataclasses in its signature say which options it takes, and in which groups."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import click
from click.core import Context
from click.formatting import HelpFormatter
from click.types import FloatParamType, IntParamType

from tinytf.errors import TinytfError
from tinytf.files import command_files
from tinytf_cli.host import host
from tinytf_cli.sigbus import tell_of_cut_files
from tinytf_cli.working import working

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Look": {
        "tokens": "Show how TEXT is cut into tokens: pieces, ids, offsets, bytes.",
        "trace": "Show every step from TEXT to the predicted token.",
        "attention": "Show where every head of every layer looks in TEXT.",
        "heads": "Score every head: induction, previous token and other patterns.",
        "neurons": "Show the active feed-forward units and the tokens they promote.",
        "activations": "Show a feed-forward's activation, with TEXT on its curve.",
        "experts": "Show which experts each token goes to, and their load.",
        "lens": "Show what the model would predict after each layer.",
        "neighbours": "Show the tokens nearest to a word, or to the stream in TEXT.",
        "explore": "Look at a forward pass on one screen, and edit the text live.",
        "repl": "Step through a forward pass in an interactive session.",
    },
    "Why": {
        "explain": "Show the arithmetic behind any one number, and prove it.",
        "code": "Show the PyTorch of every step, run and compared.",
        "grad": "Show how the loss flows back through every step, and prove it.",
        "attribute": "Show what each head, feed-forward and bias adds to a logit.",
        "rollout": "Show how much of each token attention brings to a position.",
        "ablate": "Show the prediction without a head, a feed-forward or a layer.",
        "patch": "Show which activations of CLEAN restore its answer in CORRUPT.",
        "diff": "Show where two runs begin to differ, and by how much.",
        "blame": "Show which tensors of another model change its predictions.",
    },
    "Learn": {
        "learn": "Learn the pipeline in 23 lessons on your model and text.",
        "verify": "Recompute worked examples, and check every claimed number.",
        "check": "Find the first wrong step of your own module, and the mistake.",
    },
    "Generate": {
        "generate": "Continue the prompt TEXT.",
        "score": "Show the probability, rank and entropy of every token.",
    },
    "Train": {
        "train": "Train a model on the text files of CORPUS.",
        "sweep": "Train a recipe with several values and seeds, and compare.",
        "runs": "Compare training runs: losses, curves and milestones.",
        "watch": "Follow a training run until it is finished.",
        "replay": "Play a training run as a film: what was learned when.",
    },
    "Models": {
        "models": "List the models that can be opened here.",
        "info": "Show the architecture, parameters and memory of MODEL.",
        "certify": "Compare MODEL with transformers: ids, every layer, logits.",
        "doctor": "Show what works here, and what is missing for what.",
        "export": "Write MODEL to DIRECTORY in the format of Hugging Face.",
    },
}
"""Every command with what it does, in the groups of the help page. Here, so that the page imports none of them."""

UNGROUPED = 10
"""More options than these are shown in groups."""
WIDE = 20
"""Columns that the words of a choice may take beside its option."""


class FloatRange(click.FloatRange):
    """A range that has no NaN in it; click's own lets it through, since no limit is on its wrong side."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail("nan is no limit", param, ctx)
        return found


class Option(click.Option):
    """An option in a group of the help page, where numbers are called N, and many words stand in the text."""

    group = "Options"
    shared = False
    """Whether ``tinytf help options`` explains it, for all commands at once."""

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
        if "default" in extra:
            extra["default"] = extra["default"].strip("()")  # click's, around words that stand for a value
        return extra


SHARED_OPTIONS = "options"
"""The word after ``help`` that explains the options that commands share."""


class Command(click.Command):
    """A command whose options are shown in groups where they are many, and shared ones by name alone."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        shared: dict[str, list[str]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or not isinstance(parameter, click.Option):
                continue
            group = getattr(parameter, "group", "Other")
            if getattr(parameter, "shared", False) and self.name != SHARED_OPTIONS:
                shared.setdefault(group, []).append("/".join(parameter.opts))
            else:
                groups.setdefault(group, []).append(record)
        if sum(map(len, groups.values())) <= UNGROUPED:
            groups = {"Options": [record for records in groups.values() for record in records]}
        wide = max((len(name) for records in groups.values() for name, _ in records), default=0)
        for title, records in groups.items():
            records = [(name.ljust(wide), about) for name, about in records]
            with formatter.section(title):
                formatter.write_dl(records)
        if shared:
            with formatter.section(f"Shared by commands (tinytf help {SHARED_OPTIONS} explains them)"):
                formatter.write_dl([(group, " ".join(names)) for group, names in shared.items()])


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


_SHOWING_THEMSELVES = ("explore", "learn", "train", "watch")
"""Commands that have the screen to themselves, or say how far they are."""

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
            declared.shared = getattr(declaring, "SHARED", Option.shared)
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


def debug_option() -> Option:
    """The option that every command has."""
    debug = Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error.")
    debug.group, debug.shared = "Other", True
    return debug


def _require_folder() -> None:
    """Raise TinytfError in a folder that was deleted: there Intel's oneMKL, which torch uses, ends the process."""
    try:
        os.getcwd()
    except OSError:
        raise TinytfError("the folder you are in is gone", "go to one that exists, such as: cd ~") from None


def command(name: str) -> Callable[[Callable[..., int | None]], Command]:
    """Make a command of a function; each of its parameters is annotated with a dataclass that declares options.

    Its help is its line of GROUPS, then the docstring.
    """
    (summary,) = (summaries[name] for summaries in GROUPS.values() if name in summaries)

    def decorate(function: Callable[..., int | None]) -> Command:
        kinds = {one.name: one.annotation for one in inspect.signature(function).parameters.values()}
        params = [parameter for made in kinds.values() for parameter in parameters_of(made)]

        def run(**values: Any) -> int | None:
            _require_folder()
            tell_of_cut_files()
            with command_files() if host() is None else nullcontext():
                found = {keyword: build(made, values) for keyword, made in kinds.items()}
                if name == "repl":  # each of its lines works by itself
                    return function(**found)
                with working(name, shows_itself=name in _SHOWING_THEMSELVES):
                    return function(**found)

        return Command(
            name, callback=run, params=[*params, debug_option()], help=f"{summary}\n\n{inspect.getdoc(function)}"
        )

    return decorate
