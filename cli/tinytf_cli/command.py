"""How a command is declared: the dataclasses in its signature declare its options and their groups."""

import copy
import dataclasses
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import click
from click.core import Context
from click.formatting import HelpFormatter
from click.types import FloatParamType, IntParamType

from tinytf.errors import TinytfError
from tinytf.files import command_files
from tinytf_cli.help_page import BESIDE, group_named, show_help, write_group, write_options
from tinytf_cli.host import host
from tinytf_cli.ranges import Range, bounds
from tinytf_cli.sigbus import report_truncated_files
from tinytf_cli.working import working

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Look": {
        "tokens": "Show how TEXT is cut into tokens: pieces, ids, offsets, bytes.",
        "trace": "Show every step from TEXT to the predicted token.",
        "attention": "Show where every head of every layer looks in TEXT.",
        "heads": "Score every head: induction, previous token and other patterns.",
        "weights": "Show what every head copies and reads, by its weights alone.",
        "record": "Write the activations of a corpus to a folder.",
        "neurons": "Show the active feed-forward units and the tokens they promote.",
        "features": "Show the features of a sparse autoencoder in TEXT.",
        "experts": "Show which experts each token goes to, and how busy they are.",
        "lens": "Show what the model would predict after each layer.",
        "probe": "Show at which layer a label of texts can be read off.",
        "neighbours": "Show the tokens nearest to a word, or to a vector in TEXT.",
        "explore": "Look at a forward pass on one screen, and edit the text live.",
        "repl": "Step through a forward pass in an interactive session.",
    },
    "Why": {
        "explain": "Show the arithmetic behind any one number, and check it.",
        "grad": "Show how the loss flows back through every step, and check it.",
        "attribute": "Show what each head, feed-forward and bias adds to a logit.",
        "state": "Show what a recurrent layer holds, and which tokens wrote it.",
        "ablate": "Show the prediction without a head, a feed-forward or a layer.",
        "patch": "Show which activations of CLEAN restore its answer in CORRUPT.",
        "circuit": "Find the few edges that a task needs, and run them alone.",
        "diff": "Show where two runs begin to differ, and by how much.",
        "same": "Show whether padding, batch or cache changes the numbers.",
        "blame": "Show which tensors of another model change its predictions.",
        "pairs": "Make pairs of prompts for a task, clean and corrupt.",
        "steer": "Make a steering vector from pairs of texts, and try it.",
    },
    "Learn": {
        "learn": "Learn the pipeline in 24 lessons on your text, two stacks in 27.",
        "verify": "Recompute worked examples and papers, claim by claim.",
        "check": "Find the first wrong step in your own module, and the mistake.",
    },
    "Generate": {
        "generate": "Continue the prompt TEXT.",
        "score": "Show the probability, rank and entropy of every token.",
    },
    "Train": {
        "train": "Train a model on the text files of CORPUS.",
        "train-sae": "Train a sparse autoencoder on a step of MODEL.",
        "sweep": "Train a recipe with several values and seeds, and compare.",
        "runs": "Compare training runs: losses, curves and milestones.",
    },
    "Models": {
        "models": "List the models that can be opened here.",
        "info": "Show the architecture, parameters and memory of MODEL.",
        "certify": "Compare MODEL with transformers: ids, every layer, logits.",
        "mcp": "Answer the questions of an assistant, over MCP.",
        "config": "Show your defaults for options, and where each comes from.",
        "export": "Write MODEL to DIRECTORY in the format of Hugging Face.",
    },
}
"""Every command and its summary, by help group. Kept here so that the help page imports no command."""

FORMS: Mapping[str, str] = {
    "trace --code": "Show PyTorch code for every step, run and compared.",
    "trace --curve": "Show a feed-forward's activation, with TEXT on its curve.",
    "attention --rollout": "Show how much of each token attention carries to a position.",
    "neighbours --texts": "Show how alike two texts are, and which words make them so.",
    "diff --logprobs": "Show whether two logs of log-probabilities differ by rounding, or how.",
    "diff --sampling": "Show where two programs choose other tokens, and by which setting.",
    "diff --recorder": "Print a file that records the steps of another program.",
    "runs --follow": "Follow a training run until it finishes.",
    "runs --film": "Play a training run as a film: what it learned, and when.",
    "info --card": "Describe a .gguf file on one page, beside its original.",
    "config --doctor": "Show what works here, and which features need an extra package.",
    "config --completion": "Print or install the completion of a shell.",
}
"""The forms of a command, each a command with options of its own that a flag asks for, and their summaries."""

WITH_FORMS: Mapping[str, Mapping[str, str]] = {
    title: {
        form: about
        for name, summary in summaries.items()
        for form, about in ((name, summary), *((one, FORMS[one]) for one in FORMS if one.startswith(f"{name} ")))
    }
    for title, summaries in GROUPS.items()
}
"""The groups with every form after its command."""

OLD_NAMES: Mapping[str, str] = {
    "code": "trace --code",
    "activations": "trace --curve",
    "rollout": "attention --rollout",
    "similar": "neighbours --texts",
    "recorder": "diff --recorder",
    "watch": "runs --follow",
    "replay": "runs --film",
    "card": "info --card",
    "doctor": "config --doctor",
    "completion": "config --completion",
}
"""Names that commands had until 0.1, which work for one release more."""


class Option(click.Option):
    """An option in a help group. Numbers are shown as N, and long lists of choices go into the help text."""

    group = "Options"
    shared = False
    """Whether ``tinytf help options`` explains it, for all commands at once."""

    def make_metavar(self, ctx: Context) -> str:
        if self.metavar is None and isinstance(self.type, (IntParamType, FloatParamType)):
            return "N"
        return "WORD" if self._words else super().make_metavar(ctx)

    @property
    def _words(self) -> str:
        """The choices, if they are too long to stand beside the name; otherwise empty."""
        words = ", ".join(map(str, self.type.choices)) if isinstance(self.type, click.Choice) else ""
        return words if len(max(self.opts, key=len)) + len(words) + 3 > BESIDE else ""

    def get_help_record(self, ctx: Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None or not self._words:
            return record
        about, bracket, rest = record[1].partition("  [")
        return record[0], f"{about.removesuffix('.')}: {self._words}.{bracket}{rest}"

    def get_help_extra(self, ctx: Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        if isinstance(self.type, Range) and (words := bounds(self.type)):
            extra["range"] = words
        if "default" in extra:
            extra["default"] = extra["default"].strip(
                "()"
            )  # click puts them around a default that is described in words
        return extra


_STACKED = re.compile(r"(?P<option>(?:--[a-z-]+=)?)(?P<stack>enc|dec)\.(?=L[0-9*-]|embed\.|final\.norm)")
"""An address of a model of two stacks, such as enc.L0H3.weights, or an option with one."""


_OF_BOTH_STACKS = ("ablate", "patch", "train")
"""Commands that replace a step of either stack and look at the target, or train both."""


def _of_one_stack(args: list[str]) -> list[str]:
    """The arguments with addresses such as enc.L0H3 as addresses of that stack, which --stack then names.

    Raises UsageError for addresses of both stacks.
    """
    named = {match["stack"] for word in args if (match := _STACKED.match(word))}
    if len(named) > 1:
        raise click.UsageError("enc. and dec. name steps of two stacks: ask about one at a time")
    plain = [_STACKED.sub(r"\g<option>", word) for word in args]
    return [*plain, "--stack", "encoder"] if named == {"enc"} else plain


class Command(click.Command):
    """A command whose help lists shared options by name only, and groups its own if there are many.

    With the flag of one of its forms it is that form. ``first`` are the options that help explains of very many.
    """

    first: Sequence[str] = ()
    group = ""
    """The only group on the help page; empty for all."""

    def in_form(self, args: Sequence[str]) -> tuple["Command", list[str]]:
        """The form that some arguments ask for, itself if they ask for none, and the arguments without its flag."""
        for place, word in enumerate(itertools.takewhile("--".__ne__, args)):
            if (name := f"{self.name} {word}") in FORMS:
                form = load(name)
                takes_more = any(word in parameter.opts for parameter in form.params)  # such as --sampling A B
                if not takes_more or {"-h", "--help"} & {*args}:
                    args = [*args[:place], *args[place + 1 :]]
                return form, [*args]
        return self, [*args]

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        form, rest = self.in_form(args)
        if form is self:
            return super().make_context(info_name, rest, parent, **extra)
        return form.make_context(form.name, rest, parent, **extra)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args if self.name in _OF_BOTH_STACKS else _of_one_stack(args))
        except click.UsageError as error:  # click leaves it out where an option lacks its value
            error.ctx = error.ctx or ctx
            raise

    def about(self, word: str) -> "Command":
        """The command with a help page about one group of its options, which a word names."""
        page = copy.copy(self)
        page.group = group_named(self, Context(self), word)
        return page

    def get_help_option(self, ctx: Context) -> click.Option | None:
        flag = super().get_help_option(ctx)
        if flag is not None:
            flag.callback = show_help
        return flag

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        if self.group:
            write_group(self, ctx, formatter, self.group)
        else:
            super().format_help(ctx, formatter)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write what the name of the command means as a word."""
        from tinytf.glossary import said_of

        if said := said_of(str(self.name)):
            with formatter.section(f"The word {self.name} (tinytf help what is {self.name} says more)"):
                formatter.write_text(said)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        write_options(self, ctx, formatter, () if ctx.params.get(_HELP_ALL) else self.first)


_HELP_ALL = "help_all"


def _help_all() -> Option:
    """--help-all, of a command whose --help explains only its first options."""

    def show(ctx: Context, parameter: click.Parameter, asked: bool) -> None:
        ctx.params[_HELP_ALL] = asked
        show_help(ctx, parameter, asked)

    flag = Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show,
                  help="Show every option.")  # fmt: skip
    flag.group = "Other"
    return flag


def option(*names: str, shown: Any = None, **attributes: Any) -> Any:
    """Declare a dataclass field as an option with these names, or named after the field.

    ``shown`` is the default, displayed in --help.
    """
    if shown is not None:
        attributes |= {"default": shown, "show_default": True}
    return dataclasses.field(metadata={"declared": (Option, names, attributes)})


def argument(**attributes: Any) -> Any:
    """Declare a dataclass field as a positional argument."""
    return dataclasses.field(metadata={"declared": (click.Argument, (), attributes)})


_SHOW_PROGRESS = ("explore", "learn", "train", "runs --follow")
"""Commands that take over the screen, or show their own progress."""

DECLARED_BY: dict[type, type] = {}
"""For a class without declared options: the class that declares them, whose ``resolved`` method makes it."""


def parameters_of(options_type: Any) -> Iterator[click.Parameter]:
    """The click parameters declared by the fields of a dataclass. Nested dataclasses are included."""
    declaring = DECLARED_BY.get(options_type, options_type)
    for field in dataclasses.fields(declaring):
        if "declared" not in field.metadata:
            yield from parameters_of(field.type)
            continue
        parameter_type, names, attributes = field.metadata["declared"]
        if parameter_type is click.Argument:
            yield click.Argument([field.name], **attributes)
        else:
            declared = Option([*(names or (f"--{field.name.replace('_', '-')}",)), field.name], **attributes)
            declared.group = getattr(declaring, "GROUP", Option.group)
            declared.shared = getattr(declaring, "SHARED", Option.shared)
            yield declared


def build(options_type: Any, values: Mapping[str, Any]) -> Any:
    """Build a dataclass from the values that click parsed for its options."""
    declaring = DECLARED_BY.get(options_type, options_type)
    options = declaring(
        **{
            field.name: values[field.name] if "declared" in field.metadata else build(field.type, values)
            for field in dataclasses.fields(declaring)
        }
    )
    return options if declaring is options_type else options.resolved()


def debug_option() -> Option:
    """--debug, which every command has."""
    debug = Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error.")
    debug.group, debug.shared = "Other", True
    return debug


def _flag_of(form: str) -> Option:
    """The flag that asks for a form of a command, which takes the place of the command before the flag is read."""
    flag = Option([form.split()[-1]], is_flag=True, expose_value=False, help=FORMS[form])
    flag.group = "Instead, each with options of its own"
    return flag


def load(name: str) -> "Command":
    """A command or a form of one, by its name. Imported on first use."""
    name = name.replace(" --", "_").replace("-", "_")
    loaded: Command = vars(import_module(f"tinytf_cli.commands.{name}"))[name]
    return loaded


def _require_folder() -> None:
    """Raise TinytfError in a deleted folder, where Intel's oneMKL, which torch uses, would end the process."""
    try:
        os.getcwd()
    except OSError:
        raise TinytfError("the folder you are in is gone", "go to one that exists, such as: cd ~") from None


def command(
    name: str, summary: str = "", *, first: Sequence[str] = ()
) -> Callable[[Callable[..., int | None]], Command]:
    """Make a function a command. Each parameter is annotated with a dataclass that declares options.

    The help page shows the summary, from GROUPS unless given, then the docstring. Of very many options it explains
    those that matter ``first``, and names the others.
    """
    if not summary:
        (summary,) = (summaries[name] for summaries in (*GROUPS.values(), FORMS) if name in summaries)

    def decorate(function: Callable[..., int | None]) -> Command:
        option_types = {
            parameter.name: parameter.annotation for parameter in inspect.signature(function).parameters.values()
        }
        params = [parameter for options_type in option_types.values() for parameter in parameters_of(options_type)]

        def run(**values: Any) -> int | None:
            _require_folder()
            report_truncated_files()
            with command_files() if host() is None else nullcontext():
                arguments = {keyword: build(options_type, values) for keyword, options_type in option_types.items()}
                if name == "repl":  # each line of a session shows its own progress
                    return function(**arguments)
                with working(name, shows_itself=name in _SHOW_PROGRESS):
                    return function(**arguments)

        params += [_flag_of(form) for form in FORMS if form.startswith(f"{name} ")]
        params += [_help_all()] if first else []
        made = Command(
            name, callback=run, params=[*params, debug_option()], help=f"{summary}\n\n{inspect.getdoc(function)}"
        )
        made.first = first
        return made

    return decorate
