"""The command group. Nothing heavy is imported here: help and completion need neither torch nor numpy."""

import gc
import itertools
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tinytf import __version__
from tinytf.files import command_files
from tinytf.nearest import did_you_mean
from tinytf.text.printable import printable
from tinytf_cli.command import FORMS, GROUPS, OLD_NAMES, WITH_FORMS, Command, load
from tinytf_cli.failing import explained, say
from tinytf_cli.help_page import SHARED_OPTIONS, show_help
from tinytf_cli.interrupt import Interrupt
from tinytf_cli.output import ReaderGone

_QUOTED = 60
"""The most characters of a text that a hint repeats."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
EVERY = tuple(name for names in WITH_FORMS.values() for name in names)
"""The commands, each with its forms, by the words that ask for them."""


class Commands(click.Group):
    """The commands by name. Each is imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:
        name = OLD_NAMES.get(cmd_name, cmd_name)
        return load(name) if name in EVERY else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, summaries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in summaries.items()])

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        flag = super().get_help_option(ctx)
        if flag is not None:
            flag.callback = show_help
        return flag

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and not _is_own(self, ctx, args[0]):
            _say_what_is_meant(args := _command_first(args))
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        asked = args[:1] == ["help"]
        if args[asked:] and (name := OLD_NAMES.get(args[asked])):
            say_the_name(args[asked])
            args[asked : asked + 1] = name.split()
        if args[:2] == ["help", SHARED_OPTIONS]:
            from tinytf_cli.text_options import shared_options

            return "COMMAND", shared_options(), ["--help"]
        if args[:1] == ["help"] and args[1:] and args[1] not in COMMANDS and not args[1].startswith("-"):
            from tinytf_cli.words import help_command

            return "help", help_command, args[1:]
        if asked and len(args) == 3 and " ".join(args[1:]) not in FORMS and args[2] not in ctx.help_option_names:
            return args[1], load(args[1]).about(args[2]), ["--help"]
        if args and args[0] == "help":
            args = [*args[1:], "--help"]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            if not (meant := _meant(args)):
                raise TinytfUsage(f"there is no command {args[0]!r}", _hint(args))
            _say_what_is_meant(meant)
            return self.resolve_command(ctx, meant)
        return super().resolve_command(ctx, args)


def _say_what_is_meant(arguments: list[str]) -> None:
    if sys.stderr is not None:
        print(f"tinytf: that is: {printable(shlex.join(['tinytf', *arguments]), spaces=False)}", file=sys.stderr)


def _is_own(group: click.Group, ctx: click.Context, word: str) -> bool:
    """Whether a word is an option of tinytf itself, or of no command that looks at a text."""
    own = {name for option in group.get_params(ctx) for name in option.opts}
    tracing = {name for option in load("trace").params if isinstance(option, click.Option) for name in option.opts}
    return word in own or word.partition("=")[0] not in tracing


def _command_first(args: list[str]) -> list[str]:
    """Arguments that begin with options, after the command that they name, or that tinytf has without one."""
    if named := next((word for word in args if word in COMMANDS), ""):
        args = list(args)
        args.remove(named)
        return [named, *args]
    trace = load("trace")
    given, _, _ = trace.make_parser(click.Context(trace)).parse_args(list(args))
    has_text = isinstance(given.get("words"), tuple) and given["words"]  # click marks a missing one by a sentinel
    return [*(["trace"] if has_text else _without_arguments("trace")), *args]


def _meant(args: list[str]) -> list[str]:
    """The command line that words without a command mean: a question's answer that needs no text, a text, a model.

    Empty for others.
    """
    from tinytf.glossary import spellings
    from tinytf_cli.asking import is_how, with_text
    from tinytf_cli.how import answered

    words = list(itertools.takewhile(lambda word: not word.startswith("-"), args))
    text, options = " ".join(words), args[len(words) :]
    if line := answered(text, spellings()):
        answer = shlex.split(with_text(line))[1:]
        return [] if "TEXT" in answer else [*answer, *options]
    if is_how(text) and not text[0].isupper():
        raise TinytfUsage("I don't know that", "tinytf --help lists what there is")
    if os.path.exists(args[0]):
        return ["info", *args] if len(words) == 1 and _is_model(args[0]) else []
    return ["trace", *args] if " " in args[0].strip() or (len(words) > 2 and args[0][:1].isupper()) else []


def _is_model(name: str) -> bool:
    from tinytf.errors import TinytfError
    from tinytf.sources import find_source

    try:
        return bool(find_source(name).config())
    except (TinytfError, OSError):
        return False


def _hint(args: list[str]) -> str:
    """What to type instead of words that begin with no command."""
    from tinytf.glossary import said_of, spellings
    from tinytf_cli.asking import answering, command_meant, with_text
    from tinytf_cli.words import verbs

    text = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), args))
    if line := answering(text, spellings()):
        return f"{with_text(line)} answers that"
    explained = f"tinytf help {args[0]} says what it is" if said_of(args[0]) else ""
    if meant := command_meant(args[0]):
        return "; ".join(filter(None, (f"tinytf {meant} does that", explained)))
    if explained:
        return explained
    if os.path.isfile(args[0]):
        return f"tinytf trace - < {shlex.quote(args[0])} traces the text in it"
    if verb := verbs().get(args[0]):
        return f"it is a verb of the session: type tinytf, run a text, then {verb.examples[0]}"
    traced = shlex.join(["tinytf", "trace", text if text.isprintable() and len(text) <= _QUOTED else "TEXT"])
    return did_you_mean(args[0], COMMANDS, otherwise=f"{traced} traces a text; tinytf --help lists the commands")


def say_the_name(old: str) -> None:
    """Say by which name a command goes that was typed by an old one."""
    if sys.stderr is not None:
        print(f"tinytf: {old} is now {OLD_NAMES[old]}", file=sys.stderr)


class TinytfUsage(click.UsageError):
    """A usage error with a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="tinytf")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """See every number inside a transformer.

    \b
    tinytf trace "The cat sat"    every step from the text to the next token
    tinytf                        a session: step through a forward pass
    tinytf help COMMAND           the options of a command
    tinytf help options           the options that commands share
    tinytf help words             what the words on the screens mean
    tinytf help researcher        your commands first; learner, porter, trainer
    """
    from tinytf_cli.config import configure

    configure(context)


def _fail(error: Exception) -> int:
    """Print an error as one line and a hint, and return its exit status."""
    failure = explained(error)
    say(failure.message, failure.hint, failure.marked)
    return failure.status


def run(arguments: list[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0, 1 (failed), 2 (usage) or 130 (interrupted)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if sys.stdout is None:
        say("there is no standard output to write to")
        return 1
    interrupt = Interrupt()
    previous = interrupt.listen()
    try:
        with _libraries_quiet(), command_files():
            status = _run(arguments, interrupt)
    except BaseException:
        if not interrupt.happened:
            raise
        status = 130
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)
    if interrupt.happened or status == 130:
        if sys.stderr is not None:
            print("tinytf: interrupted", file=sys.stderr)
        return 130
    return status


@contextmanager
def _libraries_quiet() -> Iterator[None]:
    """Hide the warnings of libraries, which tell the user nothing. Warnings of typed code are shown."""
    show_warning = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any) -> None:
        if filename.startswith("<"):
            show_warning(message, category, filename, lineno, *more)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = show_warning


def _without_arguments(otherwise: str = "--help") -> list[str]:
    """The arguments for a bare ``tinytf``: a session at a terminal, ``otherwise`` the help."""
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    return ["repl"] if at_a_terminal else [otherwise]


def _run(arguments: list[str], interrupt: Interrupt) -> int:
    try:
        status = cli.main(arguments or _without_arguments(), prog_name="tinytf", standalone_mode=False, obj=interrupt)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (ReaderGone, BrokenPipeError):
        # Python flushes stdout at exit; that must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as leaving:
        # click exits this way after completion, and with status 1 when the reader of its help has gone.
        reader_gone = "PacifyFlush" in type(sys.stdout).__name__
        return 0 if reader_gone or not isinstance(leaving.code, int) else leaving.code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as error:
        if interrupt.happened:
            return 130
        if "--debug" in itertools.takewhile(lambda word: word != "--", arguments):
            raise
        return _fail(error)


def main() -> None:
    """The console script."""
    # Importing torch makes some hundred thousand objects that stay alive. Collecting garbage while they are made, and
    # again at exit, would take a quarter of a short command's time.
    gc.set_threshold(100_000, 20, 20)
    status = run()
    gc.freeze()
    sys.exit(status)
