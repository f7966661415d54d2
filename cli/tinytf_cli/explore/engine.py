"""The work behind the screen: one job at a time in a thread, on the session; superseded jobs are cancelled."""

import copy
import ctypes
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tinytf.loading import Model
from tinytf.trace.trace import Trace
from tinytf_cli.explore.cursor import Cursor
from tinytf_cli.explore.scene import Scene
from tinytf_cli.failing import Failure
from tinytf_cli.repl.line import shell_quoted
from tinytf_cli.repl.log import Entry, Log
from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.repl.state import Run
from tinytf_cli.repl.streams import Capture, Streams


class Superseded(Exception):
    """The work was made pointless by a later key."""


class Engine:
    """Runs texts and lines of a session in one thread, so that the screen never waits.

    A text that is still being typed is not a line of the session yet: ``run_live`` runs it outside the session, and
    ``run_line`` makes it a line before it runs another. ``text_number`` counts the texts; work on an older one is
    cancelled. ``waiting`` counts unfinished jobs.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.text_number = self.waiting = 0
        self._live: tuple[Run, Trace] | None = None
        self._thread = ThreadPoolExecutor(1, "explore")
        self._jobs = 0
        self._busy: tuple[int, int] | None = None  # the thread and the job that it runs
        self._stopped = set[int]()  # jobs that shall not begin
        self._streams = session.streams.stdout, session.streams.stderr
        session.streams.stdout, session.streams.stderr = Capture(), None

    def submit(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> int:
        """Run ``work`` in the thread, then call ``done`` there with its result or exception. Returns its number."""
        self._jobs += 1

        def job(number: int = self._jobs) -> None:
            result: Any = None
            error: Exception | None = None
            try:
                self._busy = threading.get_ident(), number
                if number in self._stopped:
                    raise KeyboardInterrupt
                result = work()
            except KeyboardInterrupt:
                error = Superseded("interrupted")
            except Exception as caught:
                error = caught
            self._busy = None
            done(result, error)
            self.waiting -= 1

        self.waiting += 1
        self._thread.submit(job)
        return self._jobs

    def interrupt(self, job: int) -> None:
        """Stop a job, as Ctrl-C would: it ends, or does not begin. What runs before it is left alone."""
        self._stopped.add(job)
        if self._busy is not None and self._busy[1] == job:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._busy[0]), ctypes.py_object(KeyboardInterrupt)
            )

    def close(self, cursor: Cursor | None = None) -> None:
        """Cancel all jobs, and leave the session at the cursor, if there is one."""
        self.text_number += 1
        for job in range(1, self._jobs + 1):
            self.interrupt(job)
        self._thread.shutdown(wait=True, cancel_futures=True)
        if cursor is not None:
            self.commit_live()
            self._move_to(cursor)
        self.session.streams.stdout, self.session.streams.stderr = self._streams

    def run_live(self, text: str, number: int, *, source: bool = False) -> Scene:
        """The scene of a text that is being typed, or of the present text with that ``source``.

        Raises Superseded, and what ``Model.reading`` and ``Model.trace`` do.
        """
        session = self.session
        spec = replace(session.state.spec, reads=text) if source else session.state.spec
        if source:
            session.model.encoder.encode(text)  # raises for an empty or too long one
        with self._cancellable(number):
            model = session.models.model(spec)
            trace = Model.trace(model, session.require_text() if source else text)
        run = Run(spec, trace.encoding.text)
        self._live = run, trace
        previous = None if session.run is None else session.trace
        return Scene(model, trace, run, previous, session.run)

    def scene(self) -> Scene:
        """The scene of the present run of the session, with the run before it."""
        session = self.session
        previous_run = session.state.runs[-2] if len(session.state.runs) > 1 else None
        previous = None if previous_run is None else session.models.trace(previous_run)
        return Scene(session.model, session.trace, session.require_run(), previous, previous_run)

    def commit_live(self) -> None:
        """Make the live text a line of the session."""
        live, self._live = self._live, None
        session = self.session
        if live is None or (session.run is not None and _texts(live[0]) == _texts(session.run)):
            return
        session.models.add_trace(*live)
        text, source = (shell_quoted(words) for words in _texts(live[0]))
        both = f"--target-text {text} -- {source}"  # of two stacks
        self._execute(f"run --quiet {both if live[0].spec.reads else f'-- {text}'}")

    def run_line(self, line: str, cursor: Cursor, width: int) -> tuple[Outcome, Scene | None]:
        """Run a line of the session at a cursor, drawn ``width`` columns wide: its outcome, and the scene after it."""
        session = self.session
        self.commit_live()
        self._move_to(cursor)
        outcome = self.run_at_width(line, width)
        return outcome, None if session.run is None else self.scene()

    def run_at_width(self, line: str, width: int) -> Outcome:
        """Run a line of the session, drawn ``width`` columns wide."""
        session, settings = self.session, self.session.settings
        session.change(settings=replace(settings, width=max(20, width)))
        outcome = session.execute(line)
        if session.run is None:  # the screen always shows a run
            session.execute("redo")
            outcome = Outcome(1, failure=Failure("there is nothing to undo", "", 1))
        session.change(settings=replace(session.settings, width=settings.width))
        return outcome

    def answers(self, line: str, scene: Scene, comparing: bool, number: int) -> list[Outcome]:
        """The outcome of a line about a scene; when ``comparing``, also about the run before it."""
        outcomes = [self.ask(line, scene, number)]
        if comparing and scene.previous_run is not None:
            model = self.session.models.model(scene.previous_run.spec)
            outcomes.append(self.ask(line, scene.previous_scene(model), number))
        return outcomes

    def ask(self, line: str, scene: Scene, number: int) -> Outcome:
        """The outcome of a line about a scene, without logging it. Raises Superseded."""
        session = self.session
        copied = copy.copy(session)
        copied.streams, copied.log = Streams(Capture()), Log()
        copied.streams.stderr, copied.streams.fence = None, session.streams.fence
        session.models.add_trace(scene.run, scene.trace)
        runs = (scene.run,) if scene.previous_run is None else (scene.previous_run, scene.run)
        copied.change(spec=scene.run.spec, runs=runs)
        with self._cancellable(number):
            outcome = copied.execute(line)
        if isinstance(copied.last_error, Superseded):
            raise copied.last_error
        return outcome

    def log_line(self, line: str, cursor: Cursor) -> None:
        """Log a line that ``ask`` has run."""
        self.commit_live()
        self._move_to(cursor)
        state, (verb, *_) = self.session.state, line.split()
        self.session.log.remember(Entry(line, True, self.session.lexicon.meaning(verb)), state, state)

    def _move_to(self, cursor: Cursor) -> None:
        """Move the session to the cursor, unless it is there."""
        session = self.session
        if session.run is not None and cursor.row != session.row:
            self._execute(f"goto {cursor.address(session.trace)}")

    def _execute(self, line: str) -> None:
        """Run a line that comes before the one that is asked for. Raises KeyboardInterrupt where it is stopped."""
        if self.session.execute(line).status == 130:
            raise KeyboardInterrupt

    def _require_latest(self, number: int) -> None:
        if number != self.text_number:
            raise Superseded

    @contextmanager
    def _cancellable(self, number: int) -> Iterator[None]:
        """Cancel a forward pass before its next layer, once a later text is asked for."""
        self._require_latest(number)

        def check_latest(*_: object) -> None:
            self._require_latest(number)

        handles = [block.register_forward_pre_hook(check_latest) for block in self.session.model.transformer.blocks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._require_latest(number)


def _texts(run: Run) -> tuple[str, str]:
    """The text of a run, and what its model reads."""
    return str(run.text), run.spec.reads
