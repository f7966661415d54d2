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
    For a status bar: ``L3.weights 17/96`` (empty before a run); the model's name, which is not opened for it, and what
    it runs without; bytes of the recorded trace and of the weights that are open; seconds of the last line.
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

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import click

from tinytf.errors import UsageError
from tinytf_cli.failing import explained
from tinytf_cli.interrupt import current
from tinytf_cli.output import ReaderGone
from tinytf_cli.repl.changing import Entry as Entry
from tinytf_cli.repl.heard import Ear, Heard
from tinytf_cli.repl.line import Typed, read_line
from tinytf_cli.repl.outcome import Leave as Leave
from tinytf_cli.repl.outcome import Outcome as Outcome
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Spec, State
from tinytf_cli.repl.verbs import Verb, find_name
from tinytf_cli.repl.writing import Writing


def shell_quoted(word: str) -> str:
    """A word as a line takes it for one."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Session(Writing):
    """See the module's description."""

    def __init__(
        self,
        spec: Spec | None = None,
        settings: Settings | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        from tinytf_cli.repl.table import VERBS

        super().__init__(State(spec or Spec(), settings=settings or Settings()), stdout, stderr)
        self.verbs: dict[str, Verb] = VERBS
        self.last_seconds = 0.0
        self.scope: dict[str, Any] = {}
        self._movement = ""

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
        done = failure is None and status != 130
        if self.typed.words or self.typed.sign or not done:  # else it is a comment
            self._remember(self.typed.line.strip(), self._typed_name(), before, done=done)
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

    def _typed_name(self) -> str:
        """What the first word of the line stands for; empty for none, and for a word that stands for nothing."""
        try:
            return find_name(self.typed.words[0], self.names) if self.typed.words else ""
        except UsageError:
            return ""
