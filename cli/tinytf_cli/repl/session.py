"""The session: one open model, one text and its recorded trace, a place among its steps, and what was done so far.

The interface that a front end uses (``plain.py`` and ``script.py`` are two small ones):

``Session(VERBS, spec, settings, stdout, stderr)``
    ``table.VERBS`` are the verbs that it knows.
``session.execute(line) -> Outcome``
    Runs one line, and never raises for what a user typed: an error, or Ctrl-C, is an Outcome. A line that fails leaves
    the session as it was. Output goes to ``streams.stdout`` while it is made; an error goes nowhere: the front end says
    it, with ``session.say(outcome)``. Raises only ``ReaderGone`` and ``BrokenPipeError``: whoever read stdout has gone.
    An empty line repeats the last movement. It is called in the main thread, where Ctrl-C arrives.
``Outcome``
    ``status`` (0, 1, 2, 130), ``text`` that was written, ``failure`` (message, hint, marked place) or None, ``seconds``
    taken, ``leave`` (the session is over).
``session.lexicon``
    The words that a line can begin with (``lexicon.py``).
``session.models``, ``session.log``, ``session.streams``
    What is open and recorded (``models.py``), what was done (``log.py``), and where output goes (``streams.py``).
``session.table``, ``session.is_open``, ``session.tokens``, ``session.run``, ``session.place``
    The step table of the open model (``table.rows``, ``table.by_name``; it opens the model where ``is_open`` is false);
    the printable tokens of the text, or (); the present Run (``text``) or None; the index in ``table.rows``, or None.
``session.place_words``, ``session.model_words``, ``session.models.nbytes``, ``session.last_seconds``
    For a status bar: ``L3.weights 17/96`` (empty before a run); the model's name, which is not opened for it, and what
    it runs without; bytes of the recorded trace and of the weights that are open; seconds of the last line.
``session.settings``, ``SETTINGS`` (``settings.py``)
    The settings, and for each what it takes (``choices``).
``keys.KEYS``
    What ``help keys`` lists: (key, what it does); the front end that binds keys replaces its entries.
"""

import builtins
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from tinytf.errors import UsageError
from tinytf.steps.table import StepTable
from tinytf.text.printable import printable
from tinytf_cli.failing import explained, say
from tinytf_cli.host import Host
from tinytf_cli.interrupt import Interrupt
from tinytf_cli.output import Drawing, Output, ReaderGone, Result
from tinytf_cli.repl.commands import adjust
from tinytf_cli.repl.heard import Ear, Heard
from tinytf_cli.repl.lexicon import Lexicon, Verb
from tinytf_cli.repl.line import Typed, read_line, shell_quoted
from tinytf_cli.repl.log import Entry, Log
from tinytf_cli.repl.models import Models
from tinytf_cli.repl.outcome import Leave, Outcome
from tinytf_cli.repl.python import evaluated, traceback_of
from tinytf_cli.repl.results import answer
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Run, Spec, State
from tinytf_cli.repl.streams import Streams
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Line

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.trace.trace import Trace

_LIVE = ("generate", "train", "watch")
"""Commands whose output is seen while it is made, and is never paged."""


class Session(Host):
    """See the module's description."""

    def __init__(
        self,
        verbs: Mapping[str, Verb],
        spec: Spec | None = None,
        settings: Settings | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        interrupt: Interrupt | None = None,
    ) -> None:
        self.state = State(spec or Spec(), settings=settings or Settings())
        self.place: int | None = None
        self.lexicon, self.models, self.log = Lexicon(verbs), Models(), Log()
        self.streams, self.interrupt = Streams(stdout, stderr), interrupt or Interrupt()
        self.typed = Typed("")
        self.last_seconds = 0.0
        self.last_error: BaseException | None = None
        self.debug = False
        self._scope: dict[str, Any] = {}
        self._movement = ""

    @property
    def settings(self) -> Settings:
        """How things are shown."""
        return self.state.settings

    @property
    def model(self) -> "Model":
        """The open model; opened when it is first asked for."""
        return self.models.model(self.state.spec)

    @property
    def is_open(self) -> bool:
        """Whether the present model is open, so that ``table`` takes no time."""
        return self.models.is_open(self.state.spec)

    @property
    def run(self) -> Run | None:
        """The text that was run last, on the present model."""
        return self.state.runs[-1] if self.state.runs else None

    def require_run(self) -> Run:
        """The present run; UsageError before any."""
        if self.run is None:
            raise UsageError("nothing has been run yet", "run a text first, such as: run The cat sat")
        return self.run

    def require_text(self) -> str:
        """The text of the session."""
        if self.run is None:
            raise UsageError("there is no text", "give one, or run it first, such as: run The cat sat")
        return self.run.text

    @property
    def trace(self) -> "Trace":
        """The recorded trace of the present run; UsageError before any."""
        return self.models.trace(self.require_run())

    @property
    def table(self) -> StepTable:
        """The steps of the open model."""
        trace = self.models.recorded(self.run)
        return StepTable(self.model.config) if trace is None else trace.steps

    @property
    def tokens(self) -> tuple[str, ...]:
        """The printable tokens of the present text."""
        trace = self.models.recorded(self.run)
        return () if trace is None else tuple(token.shown for token in trace.tokens)

    def require_place(self) -> int:
        """The index of the present step; UsageError before any run."""
        rows = self.trace.steps.rows
        self.place = self.place or 0
        return min(self.place, len(rows) - 1)

    @property
    def place_words(self) -> str:
        """Where the session stands: ``L3.weights 17/96``."""
        if self.place is None or self.models.recorded(self.run) is None:
            return ""
        rows = self.table.rows
        step, layer = rows[self.place]
        return f"{step.full_name(layer)} {self.place + 1}/{len(rows)}"

    @property
    def model_words(self) -> str:
        """The model as it was asked for, and what it runs without."""
        gone = self.state.spec.without
        return self.state.spec.name + (f" without {gone.words}" if gone else "")

    def change(self, **values: Any) -> None:
        """Another state, with some of its fields changed."""
        self.state = replace(self.state, **values)

    def take(self, spec: Spec) -> None:
        """Go on with another model, or with other steps of it gone; the present text goes through it."""
        runs = self.state.runs
        self.change(spec=spec, runs=(*runs[-1:], replace(runs[-1], spec=spec)) if runs else ())
        if runs:
            self.models.trace(self.state.runs[-1])

    def undo(self) -> str:
        """Bring back what was before the last line that changed something; the answer is that line."""
        line, (self.state, self.place) = self.log.undo()
        return line

    def terminal(self) -> Terminal:
        """What can be shown, as the settings say."""
        return self.settings.terminal(sys.stdout)

    def output(self, terminal: Terminal, form: str, file: Path | None) -> Output:
        """Where results go: to the session's streams, remembered."""
        return self.streams.output(terminal, form, file)

    def show(self, result: Result) -> None:
        """Write a result as the settings say."""
        self.output(self.terminal(), "text", None).show(result)

    def say(self, outcome: Outcome, where: str = "") -> None:
        """Write what failed to stderr; ``where`` is the place of the line in a script."""
        stderr, failure = self.streams.stderr, outcome.failure
        if outcome.status == 130 and stderr is not None:
            print("tinytf: interrupted", file=stderr, flush=True)
        elif failure is not None:
            if self.debug and self.last_error is not None and stderr is not None:
                stderr.write("".join(traceback.format_exception(self.last_error)))
            say(where + failure.message, failure.hint, failure.marked, stderr)

    def execute(self, line: str) -> Outcome:
        """Run one line."""
        began, before, outer, leave = time.perf_counter(), (self.state, self.place), self.typed, False
        interrupt = self.interrupt
        interrupt.happened = False
        failure, status, heard = None, 0, Heard(Ear())
        self.typed = Typed(line)
        try:
            self.typed = read_line(line if line.strip() else self._movement, self.lexicon.redirects)
            live = self._typed_name() in _LIVE
            with self.streams.hearing(self.typed, self.settings, live=live) as heard:
                status = self._dispatch()
            self.streams.deliver(heard, self.typed, self.settings, live=live)
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
        done = failure is None and status != 130
        if self.typed.words or self.typed.sign or not done:  # else it is a comment
            entry = Entry(self.typed.line.strip(), done, self._typed_name())
            self.state, self.place = self.log.remember(entry, before, (self.state, self.place))
        self.typed = outer
        self.last_seconds = time.perf_counter() - began
        return Outcome(status, heard.ear.text, failure, self.last_seconds, leave)

    def begin(self, text: str = "", *, quiet: bool = True) -> Outcome:
        """Open the model, and run ``text`` where there is one; what is not the default is the first line of the log."""
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

    def _typed_name(self) -> str:
        """What the first word of the line stands for; empty for none, and for a word that stands for nothing."""
        return self.lexicon.meaning(self.typed.words[0]) if self.typed.words else ""

    def _dispatch(self) -> int:
        typed = self.typed
        if typed.sign == "!":
            self._python(typed.target)
        if not typed.words:
            return 0
        first, *words = typed.words
        word, slash, flag = first.partition("/")
        if slash and word and "flag" in self.lexicon.takes(word):  # as in print/stats
            first, words = word, [f"/{flag}", *words]
        found = self.lexicon.verb_for([first, *words])
        if found is None:
            name = self.lexicon.find(first)
            command = self.lexicon.command(name)
            assert command is not None
            return self._invoke(command, name, words)
        if found.moves:
            self._movement = typed.line
        asks = [word for word in words if word in ("-h", "--help")]
        return self._invoke(found.command, found.name, asks if found.raw else words)

    def _invoke(self, command: click.Command, name: str, words: Sequence[str]) -> int:
        """Run a command of click with the session behind it."""
        try:
            context = command.make_context(name, list(words), obj=self, default_map=self._defaults(command))
            with context:
                adjust(name, context.params, lambda: self.table)
                status = command.invoke(context)
        except click.exceptions.Exit as end:  # behind --help
            return end.exit_code
        return status if isinstance(status, int) else 0

    def _defaults(self, command: click.Command) -> dict[str, Any]:
        """What the options of a command are where they are not typed."""
        spec, settings = self.state.spec, self.settings
        opened = {"model": spec.name, "device": spec.device, "dtype": spec.dtype, "seed": spec.seed}
        values: dict[str, Any] = {
            name: getattr(settings, name) for name in (*(one.name for one in fields(Drawing)), "dims", "rows")
        }
        names = {parameter.name for parameter in command.params}
        if opened.keys() <= names:
            values.update(opened)
        elif command.name in ("info", "tokens"):
            values["model"] = spec.name
        if {"layer", "head"} <= names:
            values.update(layer=settings.layer, head=settings.head)
        return {name: value for name, value in values.items() if name in names and value is not None}

    def _python(self, code: str) -> None:
        """Evaluate an expression and show its value, or carry out a statement; ``!`` again shows the last traceback."""
        text = traceback_of(self.last_error) if code == "!" else evaluated(code, self._seen_by_python(code))
        if text is not None:
            lines = [Line(printable(line, spaces=False), single=True) for line in text.splitlines() or [""]]
            self.show(answer("python", {"text": text}, *lines))

    def _seen_by_python(self, code: str) -> dict[str, Any]:
        """The names that Python sees; what a user assigned stays."""
        if not code:
            return {}
        import numpy as np
        import torch

        scope = self._scope
        scope.update(torch=torch, np=np, session=self, model=self.model, __builtins__=builtins)
        if self.run is not None:
            scope["trace"] = self.trace
        else:
            scope.pop("trace", None)
        return scope
