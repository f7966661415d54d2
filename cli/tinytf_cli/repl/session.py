"""The session: a model, a text and its recorded trace, the present step, and the lines executed so far.

A prompt or a script calls ``Session.execute(line)`` in the main thread, where Ctrl-C arrives, and reports failures
with ``Session.say(outcome)``.
"""

import builtins
import functools
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from tinytf.errors import TinytfError, UsageError
from tinytf.files import command_files
from tinytf.outputs import fenced
from tinytf.steps.table import StepTable
from tinytf.text.printable import printable
from tinytf.trace.address import Address
from tinytf_cli.failing import Failure, explained, say, usage_message
from tinytf_cli.interrupt import Interrupt
from tinytf_cli.output import Outlet, Output, ReaderGone
from tinytf_cli.repl.line import Typed, read_line, shell_quoted
from tinytf_cli.repl.log import Entry, Log
from tinytf_cli.repl.python import evaluate, format_traceback
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Movement, Run, Spec, State, find_row
from tinytf_cli.repl.streams import Capture, Streams
from tinytf_cli.repl.verbs import Lexicon, Verb, adjust, answer
from tinytf_cli.screen import Terminated
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Line
from tinytf_cli.views.draw import Shown

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf.text.chat import Written
    from tinytf.through.model import ThroughModel
    from tinytf.through.traced import ThroughTrace
    from tinytf.trace.trace import Trace
    from tinytf_cli.repl.models import Models

_LIVE = ("generate", "train", "runs --follow")
"""Commands whose output is shown as it is produced, and never paged."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a line: its exit status (0, 1, 2, 130), the ``text`` that it wrote, and its failure.

    ``leave`` ends the session. ``results`` are what the text was drawn from.
    """

    status: int
    text: str = ""
    failure: Failure | None = None
    leave: bool = False
    results: tuple[Shown, ...] = ()


class Leave(Exception):
    """The session is over."""


class Session(Outlet):
    """A session (see the module). ``keys`` are the lines of ``help keys``; the prompt replaces them by its own."""

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
        self.lexicon, self.log = Lexicon(verbs, self, lambda: self.aliases), Log()
        self.streams, self.interrupt = Streams(stdout, stderr), interrupt or Interrupt()
        self.typed = Typed("")
        self.last_seconds = 0.0
        self.last_error: BaseException | None = None
        self.debug = False
        self.keys = [
            ("Enter", "run the line; an empty one repeats the last movement"),
            ("Ctrl-C", "give up the line, or stop the command that is running"),
            ("Ctrl-D", "leave"),
        ]
        self._models: Models | None = None
        self._scope: dict[str, Any] = {}
        self._last_movement = Movement()

    @property
    def settings(self) -> Settings:
        """How things are shown."""
        return self.state.settings

    @property
    def aliases(self) -> dict[str, str]:
        """The aliases that have a meaning now, by name: the user's, and those of the file that is running."""
        return {alias.name: alias.line for alias in self.state.aliases if alias.fence in (None, self.streams.fence)}

    @property
    def models(self) -> "Models":
        """The open models and recorded traces; the first access imports torch."""
        if self._models is None:
            from tinytf_cli.repl.models import Models

            self._models = Models()
        return self._models

    @property
    def opened(self) -> "Model | ThroughModel":
        """The present model, opened on first access."""
        return self.models.opened(self.state.spec)

    @property
    def is_open(self) -> bool:
        """Whether the present model is open, so that ``table`` takes no time."""
        return self._models is not None and self._models.is_open(self.state.spec)

    @property
    def run(self) -> Run | None:
        """The last run on the present model."""
        return self.state.runs[-1] if self.state.runs else None

    def require_run(self) -> Run:
        """The present run; UsageError before any."""
        if self.run is None:
            raise UsageError("nothing has been run yet", "run a text first, such as: run The cat sat")
        return self.run

    def require_text(self) -> "Written":
        """The present text; UsageError before any run."""
        if self.run is None:
            raise UsageError("there is no text", "give one, or run it first, such as: run The cat sat")
        return self.run.text

    @property
    def trace(self) -> "Trace":
        """The trace of the present run; UsageError before any."""
        return self.models.trace(self.require_run())

    @property
    def cached_trace(self) -> "Trace | None":
        """The trace of the present run, if it is cached."""
        return None if self.run is None else self.models.cached_trace(self.run)

    @property
    def through_trace(self) -> "ThroughTrace":
        """The trace of the present run through transformers; UsageError before any."""
        return self.models.through_trace(self.require_run())

    @property
    def cached_through(self) -> "ThroughTrace | None":
        """The trace of the present run through transformers, if it is cached."""
        return None if self.run is None else self.models.cached_through(self.run)

    @property
    def table(self) -> StepTable:
        """The steps of the present model."""
        return StepTable(self.model.config) if self.cached_trace is None else self.cached_trace.steps

    @property
    def known_table(self) -> StepTable | None:
        """The steps of the present model; None if it has none, or if finding them would open it or import torch."""
        if self.is_open:
            return self.table if self.through is None else None
        return _table_of(self.state.spec.name) if "safetensors.torch" in sys.modules else None

    @property
    def tokens(self) -> tuple[str, ...]:
        """The printable tokens of the present text."""
        recorded = self.cached_through if self.cached_trace is None else self.cached_trace
        return () if recorded is None else tuple(token.shown for token in recorded.encoding.tokens)

    @property
    def row(self) -> int | None:
        """The index of the present step in ``table.rows``; None before any run."""
        return self.state.row

    def require_row(self) -> int:
        """The index of the present step in ``table.rows``; UsageError before any run, and without steps."""
        self.require_run()
        self.model  # noqa: B018 - refuses a model without steps
        return self.row or 0

    @property
    def step_words(self) -> str:
        """The present step and its number, as in ``L3.weights 17/96``; empty before any run."""
        if self.row is None or self.cached_trace is None:
            return ""
        rows = self.table.rows
        step, layer = rows[self.row]
        heads = (self.state.head,) if step.letter == "H" and step.is_split and self.state.head is not None else None
        address = Address(step, None if layer is None else (layer,), heads)
        return f"{address} {self.row + 1}/{len(rows)}"

    def change(self, **values: Any) -> None:
        """Change some fields of the state."""
        self.state = replace(self.state, **values)

    def set_spec(self, spec: Spec) -> None:
        """Switch to another model or ablation, and run the present text through it."""
        if self.run is None:
            self.change(spec=spec)
        else:
            source = "" if spec.reads else self.run.spec.reads  # what another model read is the text of this one
            self.set_run(replace(self.run, spec=spec, text=source or self.run.text))

    def _facing(self, run: Run, target: str | None) -> Run:
        """The run of a target; the text of the run, where that is one, is what the model reads."""
        from tinytf.through.model import ThroughModel
        from tinytf_cli.text_options import asked_of

        if run.spec.reads or (target is None and isinstance(self.models.opened(run.spec), ThroughModel)):
            return run
        model = self.models.model(run.spec)
        (bound,), (text,) = asked_of(model, [run.text], target, truncate=run.truncate)
        return replace(run, spec=replace(run.spec, reads=str(run.text) if bound is not model else ""), text=text)

    def set_run(self, run: Run, target: str | None = None) -> None:
        """Make a run the present one, at the same step if its model has it; record it if it is not cached.

        In a model of two stacks that reads nothing yet its text is the source; the ``target`` is generated if not
        given.
        """
        from tinytf.through.model import ThroughModel

        run = self._facing(run, target)

        index = self.row
        if isinstance(self.models.opened(run.spec), ThroughModel):
            self.models.through_trace(run)
            self.change(spec=run.spec, runs=(*self.state.runs[-1:], run), row=None, head=None)
            return
        previous_rows = () if index is None else self.table.rows
        rows = self.models.trace(run).steps.rows
        if index is not None:
            step, layer = previous_rows[index]
            same_step = find_row(rows, step.name, layer)
            index = min(index, len(rows) - 1) if same_step is None else same_step
        self.change(spec=run.spec, runs=(*self.state.runs[-1:], run), row=index)

    def go_to_first(self) -> None:
        """Go to the first step of the present run, if it has steps."""
        self.change(row=0 if self.run is not None and self.through is None else None, head=None)

    def undo(self) -> str:
        """Return to the state before the last line that changed something, and return that line."""
        entry = self.log.last_change()
        assert entry.before is not None
        self.state = entry.before
        return entry.line

    def redo(self) -> str:
        """Return to the state after the line that was undone last, and return that line."""
        entry = self.log.last_undone()
        assert entry.after is not None
        self.state = entry.after
        return entry.line

    def require_own(self, what: str) -> None:
        self.streams.require_own(what)

    def terminal(self) -> Terminal:
        """What stdout can show under the settings."""
        return self.settings.terminal(sys.stdout)

    def output(self, terminal: Terminal, form: str, file: Path | None) -> Output:
        """An output to the session's streams."""
        return self.streams.output(terminal, form, file)

    def say(self, outcome: Outcome, location: str = "") -> None:
        """Write the failure to stderr; ``location`` says where the line stands in a script."""
        stderr, failure = self.streams.stderr, outcome.failure
        if outcome.status == 130 and stderr is not None:
            print("tinytf: interrupted", file=stderr, flush=True)
        elif failure is not None:
            if self.debug and self.last_error is not None and stderr is not None:
                stderr.write("".join(traceback.format_exception(self.last_error)))
            say(location + failure.message, failure.hint, failure.marked, stderr)
        elif outcome.status and location and stderr is not None:
            print(f"tinytf: {location}a check did not hold", file=stderr, flush=True)

    def execute(self, line: str) -> Outcome:
        """Run one line; a blank line repeats the last movement. A line that fails leaves the session unchanged.

        Errors and Ctrl-C are part of the outcome. Raises only ``ReaderGone`` and ``BrokenPipeError``, when stdout has
        no reader any more.
        """
        start, state_before, outer_typed, leave = time.perf_counter(), self.state, self.typed, False
        interrupt = self.interrupt
        interrupt.happened = False
        failure, status, capture, is_last_output = None, 0, Capture(), False
        self.typed = Typed(line)
        movement = Movement() if line.strip() else self._last_movement
        try:
            line = self.lexicon.expanded(movement.line or line)
            asked = self.lexicon.answering(line)
            line = asked or line
            self.typed = read_line(line, self.lexicon.redirects)
            live = self._typed_name() in _LIVE
            with command_files(), fenced(self.streams.fence), fenced(movement.fence):
                with self.streams.capturing(self.typed, self.settings, live=live) as capture:
                    if asked:
                        sys.stdout.write(f"that is: {printable(asked, spaces=False)}\n")
                    status = self._dispatch()
                is_last_output = self.streams.deliver(capture, self.typed, self.settings, live=live)
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
        succeeded = status == 0
        if self.typed.words or self.typed.sign or not succeeded:  # else the line is blank or a comment
            entry = Entry(self.typed.line.strip(), succeeded, self._typed_name(), is_last_output)
            entry.fence = self.streams.fence
            self.state = self.log.remember(entry, state_before, self.state)
        self.typed = outer_typed
        self.last_seconds = time.perf_counter() - start
        return Outcome(status, capture.text, failure, leave, tuple(result for result, _ in capture.results))

    def begin(
        self, text: str = "", spec: Spec | None = None, *, target: str | None = None, quiet: bool = True
    ) -> Outcome:
        """Open the model of ``spec`` and run ``text``, where given, as logged lines; two stacks read it."""
        outcome, spec, default = Outcome(0), spec or self.state.spec, Spec()
        if spec != default or spec != self.state.spec:
            non_default = {name: value for name, value in spec.options.items() if value != default.options[name]}
            words = [f"--{name.replace('_', '-')}{_worded(value)}" for name, value in non_default.items()]
            outcome = self.execute(" ".join(["model", shell_quoted(spec.name), *words, "--quiet"]))
        if text and outcome.status == 0:
            given = "" if target is None else f" --target-text={shell_quoted(target)}"
            outcome = self.execute(f"run{' --quiet' if quiet else ''}{given} -- {shell_quoted(text)}")
        return outcome

    def _typed_name(self) -> str:
        """The verb or command that the first word means; empty for none."""
        return self.lexicon.meaning(self.typed.words[0]) if self.typed.words else ""

    def _dispatch(self) -> int:
        typed = self.typed
        if typed.sign == "!":
            self._python(typed.target)
        if not typed.words:
            return 0
        if self.lexicon.is_sentence(typed.words):
            typed = replace(typed, words=("run", "--", *typed.words))
        name, *words = self.lexicon.split(typed.words)
        verb = self.lexicon.verb_for([name, *words])
        if verb is None:
            command = self.lexicon.command(name)
            assert command is not None
            form, words = command.in_form(words)
            return self._invoke(form, name if form is command else str(form.name), words)
        try:
            return self._invoke(verb.command, name, [] if verb.raw else words, moves=verb.moves)
        except click.UsageError as error:
            hint = getattr(error, "hint", "") or f"such as: {', '.join(verb.examples)}"
            raise UsageError(usage_message(error), hint) from None

    def _invoke(self, command: click.Command, name: str, words: Sequence[str], *, moves: bool = False) -> int:
        """Run a click command with the session as its host; Enter repeats one that ``moves``."""
        try:
            context = command.make_context(name, list(words), obj=self, default_map=self._defaults(command))
            if moves:
                self._last_movement = Movement(line=_repeated(context))
            if (outer := click.get_current_context(silent=True)) is not None:
                context.meta.update(outer.meta)
            with context:
                adjust(name, context.params, lambda: self.table)
                status = command.invoke(context)
        except click.exceptions.Exit as help_exit:  # --help was asked for
            return help_exit.exit_code
        return status if isinstance(status, int) else 0

    def _defaults(self, command: click.Command) -> dict[str, Any]:
        """The session's values for the options of a command."""
        spec, names = self.state.spec, {parameter.name for parameter in command.params}
        opening = {"model": spec.name, **spec.options}
        if spec.fence is not None:  # a name without hub: is that of the cache, and is never fetched
            for name in ("model", "tokenizer"):
                opening[name] = opening[name] and opening[name].removeprefix("hub:")
        values = dict(vars(self.settings))
        if opening.keys() <= names or command.name in ("info", "tokens"):
            values |= opening
        if not {"layer", "head"} <= names:
            del values["layer"], values["head"]
        return {name: value for name, value in values.items() if name in names and value is not None}

    def _python(self, code: str) -> None:
        """Show the value of an expression, or execute a statement; ``!!`` shows the traceback of the last error."""
        if code == "!":
            text: str | None = format_traceback(self.last_error)
        elif code:
            self.require_own("run Python")
            scope = self._python_scope()
            scope_before = dict(scope)
            try:
                text = evaluate(code, scope)
            except Terminated:
                raise
            except SystemExit:
                raise Leave from None
            except BaseException:  # a failed line is not in the transcript, so it leaves no names behind
                scope.clear()
                scope.update(scope_before)
                raise
        else:
            raise UsageError("! needs Python after it", "such as: ! trace['L0H0.weights'].sum(-1)")
        if text is not None:
            lines = [Line(printable(line, spaces=False), single=True) for line in text.splitlines() or [""]]
            self.output(self.terminal(), "text", None).show(answer("python", {"text": text}, *lines))

    @property
    def python_names(self) -> dict[str, Any]:
        """The names in the scope of Python, without opening or recording anything."""
        modules = {"torch": "torch", "np": "numpy"}
        loaded = {name: sys.modules[module] for name, module in modules.items() if module in sys.modules}
        present = {**loaded, "session": self, **({"model": self.opened} if self.is_open else {})}
        trace = self.cached_through if self.cached_trace is None else self.cached_trace
        return {**self._scope, **present, **({} if trace is None else {"trace": trace})}

    def _python_scope(self) -> dict[str, Any]:
        """The scope of Python, with the names that the user assigned."""
        import numpy as np
        import torch

        scope = self._scope
        scope.update(torch=torch, np=np, session=self, model=self.opened, __builtins__=builtins)
        if self.run is not None:
            scope["trace"] = self.trace if self.through is None else self.through_trace
        else:
            scope.pop("trace", None)
        return scope


def _worded(value: object) -> str:
    """The value of an option behind its name in a line; nothing for a flag."""
    word = str(value)
    return "" if value is True else f" {word if word.isalnum() else shell_quoted(word)}"


def _repeated(context: click.Context) -> str:
    """The line of a movement with only its arguments: a repetition writes no file and runs no program."""
    counts = [
        str(context.params[parameter.name])
        for parameter in context.command.params
        if isinstance(parameter, click.Argument) and parameter.name is not None
        if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    return " ".join([str(context.info_name), *counts])


@functools.cache
def _table_of(name: str) -> StepTable | None:
    """The steps of a model, from its configuration alone; None if that cannot be read from disk."""
    from tinytf.sources import find_source

    try:
        return None if name.startswith("hub:") else StepTable(find_source(name).config())
    except (TinytfError, OSError):
        return None
