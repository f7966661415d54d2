"""The session: one open model, one text and its recorded trace, a place among its steps, and what was done so far.

The interface that a front end uses (``plain.py`` and ``script.py`` are two small ones):

``session.execute(line) -> Outcome``
    Runs one line, and never raises for what a user typed: an error, or Ctrl-C, is an Outcome. A line that fails leaves
    the session as it was. Output goes to ``session.stdout`` while it is made; an error goes nowhere: the front end says
    it, with ``session.say(outcome)``. Raises only ``ReaderGone`` and ``BrokenPipeError``: whoever read stdout has gone.
    An empty line repeats the last movement. It is called in the main thread, where Ctrl-C arrives.
``Outcome``
    ``status`` (0, 1, 2, 130), ``text`` that was written, ``failure`` (message, hint, marked place) or None, ``seconds``
    taken, ``leave`` (the session is over).
``session.names``
    Every word that a line can begin with, aliases too, to the name it stands for.
``session.verbs``, ``session.takes(word)``, ``session.find_command(name)``, ``session.verb_for(words)``
    The table of Verb (``command.params`` are its options); the kinds of the words behind a verb or a command
    (``verbs.KINDS``); click's command of a name; the verb that takes these words, or None where a command does.
``session.redirects(word)``
    Whether ``|`` and ``>`` behind this first word are about the output.
``session.table``, ``session.is_open``, ``session.tokens``, ``session.run``, ``session.place``
    The step table of the open model (``table.rows``, ``table.by_name``; it opens the model where ``is_open`` is false);
    the printable tokens of the text, or (); the present Run (``text``) or None; the index in ``table.rows``, or None.
``session.place_words``, ``session.model_words``, ``session.held_bytes``, ``session.last_seconds``
    For a status bar: ``L3.weights 17/96`` (empty before a run); the model's name, which is not opened for it; bytes
    of the recorded trace and of the weights that are open; seconds of the last line.
``session.state.settings``, ``SETTINGS`` (``settings.py``)
    The settings, and for each what it takes (``choices``).
``session.lines``
    What was typed in this session, in order, as Entry (``line``, ``done``).
``session.page``
    A function from text to nothing that shows a long text a screen at a time; used with ``set pager on``, only where
    stdout is a terminal and the text has more lines than it. ``pager.page`` until a front end sets another.
``keys.KEYS``
    What ``help keys`` lists: (key, what it does); the front end that binds keys replaces its entries.
"""

import contextlib
import functools
import shutil
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from tinytf.errors import UsageError
from tinytf_cli.failing import Failure, explained, say
from tinytf_cli.host import Host
from tinytf_cli.interrupt import current
from tinytf_cli.output import ReaderGone, Result
from tinytf_cli.repl.heard import Ear, Heard, HeardOutput
from tinytf_cli.repl.line import LONGEST, Typed, read_line
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Run, Spec, State
from tinytf_cli.repl.verbs import Verb, find_name

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.trace.steps import StepTable
    from tinytf.trace.trace import Trace
    from tinytf_cli.paint.terminal import Terminal

_KEPT = 2
"""Models and traces that stay at hand: the present one, and the one before."""

_LIVE = ("generate", "train", "watch")
"""Commands whose output is seen while it is made, and is never paged."""


@dataclass(frozen=True)
class Outcome:
    """What came of a line."""

    status: int
    text: str = ""
    failure: Failure | None = None
    seconds: float = 0.0
    leave: bool = False


@dataclass(frozen=True)
class Entry:
    """A line that was executed; ``done`` is false for one that failed, ``verb`` what its first word stands for."""

    line: str
    done: bool
    verb: str


def shell_quoted(word: str) -> str:
    """A word as a line takes it for one."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Leave(Exception):
    """The session is over."""


class Session(Host):
    """See the module's description."""

    def __init__(
        self,
        spec: Spec | None = None,
        settings: Settings | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        from tinytf_cli.repl.pager import page
        from tinytf_cli.repl.table import VERBS

        self.stdout: TextIO = sys.stdout if stdout is None else stdout
        self.stderr: TextIO | None = sys.stderr if stderr is None else stderr
        self.state = State(spec or Spec(), settings=settings or Settings())
        self.place: int | None = None
        self.lines: list[Entry] = []
        self.verbs: dict[str, Verb] = VERBS
        self.page: Callable[[str], None] = page
        self.last_error: BaseException | None = None
        self.last_seconds = 0.0
        self.debug = False
        self.scope: dict[str, Any] = {}
        self.depth = 0
        self.typed = Typed("")
        self._undoable: list[tuple[int, tuple[State, int | None]]] = []
        self._last: Heard | None = None
        self._now: Heard | None = None
        self._movement = ""
        self._models: OrderedDict[Spec, Model] = OrderedDict()
        self._traces: OrderedDict[Run, Trace] = OrderedDict()
        self._threads = 0

    # What there is

    @property
    def model(self) -> "Model":
        """The open model; opened when it is first asked for."""
        return self.model_of(self.state.spec)

    def model_of(self, spec: Spec) -> "Model":
        """The model of a spec, from those that are open or opened now."""
        from tinytf_cli.repl.opening import open_for

        if spec not in self._models:
            self._models[spec] = open_for(self, spec)
        self._models.move_to_end(spec)
        while len(self._models) > _KEPT:
            self._models.popitem(last=False)
        return self._models[spec]

    @property
    def is_open(self) -> bool:
        """Whether the present model is open, so that ``table`` takes no time."""
        return self.state.spec in self._models

    @property
    def table(self) -> "StepTable":
        """The steps of the open model."""
        from tinytf.trace.steps import StepTable

        run = self.run
        return self._traces[run].steps if run is not None and run in self._traces else StepTable(self.model.config)

    @property
    def run(self) -> Run | None:
        """The text that was run last, on the present model."""
        return self.state.runs[-1] if self.state.runs else None

    @property
    def trace(self) -> "Trace":
        """The recorded trace of the present run; UsageError before any."""
        return self.trace_of(self.require_run())

    def trace_of(self, run: Run) -> "Trace":
        """The trace of a run, from those that were recorded or recorded now."""
        from tinytf.loading import Model

        if run not in self._traces:
            model = self.model_of(run.spec)
            self._traces[run] = Model.trace(model, run.text, truncate=run.truncate, force=run.force)
        self._traces.move_to_end(run)
        while len(self._traces) > _KEPT:
            self._traces.popitem(last=False)
        return self._traces[run]

    def require_run(self) -> Run:
        """The present run; UsageError before any."""
        run = self.run
        if run is None:
            raise UsageError("nothing has been run yet", "run a text first, such as: run The cat sat")
        return run

    def require_text(self) -> str:
        """The text of the session."""
        if self.run is None:
            raise UsageError("there is no text", "give one, or run it first, such as: run The cat sat")
        return self.run.text

    def output(self, terminal: "Terminal", form: str, file: Path | None) -> HeardOutput:
        """Where results go: to the session's streams, remembered."""
        return HeardOutput(terminal, form, file, sys.stdout, self.stderr, heard=self._now)

    @property
    def settings(self) -> Settings:
        return self.state.settings

    @property
    def tokens(self) -> tuple[str, ...]:
        """The printable tokens of the present text."""
        run = self.run
        return (
            tuple(token.shown for token in self._traces[run].tokens) if run is not None and run in self._traces else ()
        )

    @property
    def place_words(self) -> str:
        """Where the session stands: ``L3.weights 17/96``."""
        if self.place is None or self.run not in self._traces:
            return ""
        rows = self.table.rows
        step, layer = rows[self.place]
        return f"{step.full_name(layer)} {self.place + 1}/{len(rows)}"

    @property
    def model_words(self) -> str:
        """The model as it was asked for."""
        return self.state.spec.name

    @property
    def held_bytes(self) -> int:
        """Bytes of the weights and traces that are held."""
        weights = sum(
            parameter.nbytes for model in self._models.values() for parameter in model.transformer.parameters()
        )
        return weights + sum(trace.recorded_bytes for trace in self._traces.values())

    # What changes it

    def change(self, **values: Any) -> None:
        """Another state, with some of its fields changed."""
        self.state = replace(self.state, **values)

    def terminal(self) -> "Terminal":
        """What can be shown, as the settings say."""
        from tinytf_cli.paint.terminal import detect

        chosen = self.settings
        return detect(sys.stdout, color=chosen.color, width=chosen.width, ascii=chosen.ascii, plain=chosen.plain)

    def show(self, result: Result) -> None:
        """Write a result as the settings say."""
        self.output(self.terminal(), "text", None).show(result)

    def undo(self) -> str:
        """Bring back what was before the last line that changed something; the answer is that line."""
        if not self._undoable:
            raise UsageError("there is nothing to undo", "undo takes back model, text, settings, stops and displays")
        number, (self.state, self.place) = self._undoable.pop()
        return self.lines[number - 1].line

    @property
    def changes(self) -> list[int]:
        """The numbers, from 1, of the lines that ``undo`` would take back."""
        return [number for number, _ in self._undoable]

    # Lines

    @property
    def names(self) -> dict[str, str]:
        """Every word that a line can begin with, to the name that it stands for."""
        from tinytf_cli.main import COMMANDS

        names = {name: name for name in (*COMMANDS, *self.verbs)}
        for one in self.verbs.values():
            names.update(dict.fromkeys(one.aliases, one.name))
        return names

    def find_command(self, name: str) -> click.Command | None:
        """A command of the command line by its name."""
        from tinytf_cli.main import cli

        return cli.get_command(click.Context(cli), name)

    def verb_for(self, words: Sequence[str]) -> Verb | None:
        """The verb that takes a line of these words; None where a command does.

        Raises UsageError for a first word that is neither.
        """
        name = find_name(words[0], self.names)
        found = self.verbs.get(name)
        if found is None or (not found.claims(self, tuple(words[1:])) and self.find_command(name) is not None):
            return None
        return found

    def takes(self, word: str) -> tuple[str, ...]:
        """The kinds (``verbs.KINDS``) of the words behind a verb or command, the last one's for all that follow."""
        from tinytf_cli.repl.commands import TAKES

        try:
            name = find_name(word, self.names)
        except UsageError:
            return ()
        found = self.verbs.get(name)
        return TAKES.get(name, ("text",)) if found is None else found.takes

    def execute(self, line: str) -> Outcome:
        """Run one line."""
        began, before, outer, leave = time.perf_counter(), (self.state, self.place), self.typed, False
        interrupt = current()
        interrupt.happened = False
        failure, status, heard = None, 0, Heard(Ear())
        self.typed = Typed(line)
        try:
            self.typed = self._read(line)
            with self._hearing() as heard:
                status = self._dispatch()
            self._deliver(heard)
        except (ReaderGone, BrokenPipeError):
            raise
        except Leave:
            leave = True
        except (KeyboardInterrupt, click.Abort):
            status = 130
        except Exception as error:
            self.last_error = error
            failure = explained(error, "!! shows where it happened")
            status = failure.status
        if interrupt.happened or status == 130:
            interrupt.happened, status, failure = False, 130, None
        self._remember(before, done=failure is None and status != 130)
        self.typed = outer
        self.last_seconds = time.perf_counter() - began
        return Outcome(status, heard.ear.text, failure, self.last_seconds, leave)

    def begin(self, text: str = "", *, quiet: bool = True) -> Outcome:
        """Open the model, and run ``text`` where there is one; what is not the default is the first of ``lines``."""
        outcome = Outcome(0)
        spec, usual = self.state.spec, Spec()
        words = [shell_quoted(spec.name) if spec.name != usual.name or spec != usual else ""]
        for name in ("device", "dtype", "seed"):
            if getattr(spec, name) != getattr(usual, name):
                words.append(f"--{name} {getattr(spec, name)}")
        if any(words):
            outcome = self.execute(f"model {' '.join(words)} --quiet")
        if text and outcome.status == 0:
            outcome = self.execute(f"run{' --quiet' if quiet else ''} -- {shell_quoted(text)}")
        return outcome

    def say(self, outcome: Outcome, where: str = "") -> None:
        """Write what failed to stderr; ``where`` is the place of the line in a script."""
        if outcome.status == 130 and self.stderr is not None:
            print("tinytf: interrupted", file=self.stderr, flush=True)
        elif outcome.failure is not None:
            failure = outcome.failure
            if self.debug and self.last_error is not None and self.stderr is not None:
                self.stderr.write("".join(traceback.format_exception(self.last_error)))
            say(where + failure.message, failure.hint, failure.marked, self.stderr)

    def redirects(self, word: str) -> bool:
        """Whether ``|`` and ``>`` behind this first word are about the output; of a condition they are a part."""
        try:
            found = self.verbs.get(find_name(word, self.names))
        except UsageError:
            return True
        return found is None or not found.raw

    def _read(self, line: str) -> Typed:
        return read_line(line if line.strip() else self._movement, self.redirects)

    def _dispatch(self) -> int:
        from tinytf_cli.repl import python
        from tinytf_cli.repl.commands import adjust

        typed = self.typed
        if typed.sign == "!":
            python.run(self, typed.target)
            return 0
        if not typed.words:
            return 0
        first, *words = typed.words
        word, slash, flag = first.partition("/")
        if slash and word and "flag" in self.takes(word):  # as in print/stats
            first, words = word, [f"/{flag}", *words]
        found = self.verb_for([first, *words])
        if found is None:
            name = find_name(first, self.names)
            command = self.find_command(name)
            assert command is not None
            return self.invoke(command, name, words, functools.partial(adjust, self, name))
        if found.moves:
            self._movement = typed.line
        asks = [word for word in words if word in ("-h", "--help")]
        return self.invoke(found.command, found.name, asks if found.raw else words)

    def invoke(
        self,
        command: click.Command,
        name: str,
        words: Sequence[str],
        adjust: Callable[[dict[str, Any]], None] = lambda parameters: None,
    ) -> int:
        """Run a command of click with the session behind it; ``adjust`` may change what was parsed."""
        try:
            context = command.make_context(name, list(words), obj=self, default_map=self._defaults(command))
            with context:
                adjust(context.params)
                status = command.invoke(context)
        except click.exceptions.Exit as end:  # behind --help
            return end.exit_code
        return status if isinstance(status, int) else 0

    def _defaults(self, command: click.Command) -> dict[str, Any]:
        """What the options of a command are where they are not typed."""
        spec, settings = self.state.spec, self.settings
        opened = {"model": spec.name, "device": spec.device, "dtype": spec.dtype, "seed": spec.seed}
        values: dict[str, Any] = {
            name: getattr(settings, name) for name in ("color", "width", "ascii", "plain", "dims", "rows")
        }
        names = {parameter.name for parameter in command.params}
        if opened.keys() <= names:
            values.update(opened)
        elif command.name in ("info", "tokens"):
            values["model"] = spec.name
        if {"layer", "head"} <= names:
            values.update(layer=settings.layer, head=settings.head)
        return {name: value for name, value in values.items() if name in names and value is not None}

    # What becomes of output

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[Heard]:
        """Keep what a line writes; what is redirected or paged is not written yet."""
        from tinytf_cli.numbers import digits
        from tinytf_cli.paint.colour import choose_unit_map

        typed = self.typed
        stream: TextIO = sys.stdout if self.depth else self.stdout
        to = bool(typed.words) and typed.sign in ("|", ">")
        waits = to or self._pages()
        encoding = getattr(stream, "encoding", None) or "utf-8"
        ear = Ear(terminal=not to and stream.isatty(), encoding=encoding) if waits else Ear(stream, encoding=encoding)
        before, self._now = self._now, Heard(ear)
        precision = digits.set(self.settings.precision)
        choose_unit_map(self.settings.colormap)
        try:
            with contextlib.redirect_stdout(ear):
                yield self._now
        finally:
            digits.reset(precision)
            choose_unit_map(Settings().colormap)
            self._now = before

    def _pages(self) -> bool:
        waits = self.settings.pager and not self.depth and self.stdout.isatty()
        return waits and self._typed_name() not in _LIVE

    def _deliver(self, heard: Heard) -> None:
        """Send output where a line says; what a line wrote is the last output."""
        from tinytf_cli.repl.redirect import to_command, to_file

        typed = self.typed
        stream: TextIO = sys.stdout if self.depth else self.stdout
        alone = not typed.words and typed.sign in ("|", ">")
        if alone and self._last is None:
            raise UsageError("there is no output yet", "such as: heat L0H0, then | head -3")
        chosen = self._last if alone and self._last is not None else heard
        if typed.sign == "|":
            to_command(chosen, typed.target, stream, self.stderr, self.settings)
        elif typed.sign == ">":
            to_file(chosen, typed.target, self.stderr, self.settings)
        elif self._pages():
            if heard.ear.text.count("\n") >= shutil.get_terminal_size().lines:
                self.page(heard.ear.text)
            else:
                stream.write(heard.ear.text)
                stream.flush()
        if not alone and (heard.ear.text or heard.results):
            self._last = heard

    def _remember(self, before: "tuple[State, int | None]", *, done: bool) -> None:
        """Write down the line that was executed; one that failed leaves nothing changed."""
        line, name = self.typed.line.strip(), self._typed_name()
        nothing = not self.typed.words and not self.typed.sign and done  # a comment
        if nothing or len(line) > LONGEST or name == "source":  # whose lines were remembered one by one
            return
        if not done:
            self.state, self.place = before
        elif self.state != before[0] and name != "undo":
            self._undoable.append((len(self.lines) + 1, before))
        self.lines.append(Entry(line, done, name))

    def _typed_name(self) -> str:
        """What the first word of the line stands for; empty for none, and for a word that stands for nothing."""
        try:
            return find_name(self.typed.words[0], self.names) if self.typed.words else ""
        except UsageError:
            return ""
