"""What runs behind the screen: one job at a time in a thread, the latest of a kind; and the session that keeps it."""

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
from tinytf_cli.explore.place import Place
from tinytf_cli.explore.scene import Scene
from tinytf_cli.repl.line import shell_quoted
from tinytf_cli.repl.log import Entry, Log
from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.repl.state import Run
from tinytf_cli.repl.streams import Capture, Streams


class Superseded(Exception):
    """What a later key made pointless."""


class Engine:
    """Runs texts and lines of a session in one thread, so that the screen never waits.

    A text that is still being typed is no line of the session yet: ``live`` runs it beside the session, and ``line``
    makes it one before it runs anything else. ``asked`` counts the texts; what is about an older one is given up.
    ``waiting`` counts what is not done yet.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.asked = self.waiting = 0
        self._typed: Trace | None = None
        self._thread = ThreadPoolExecutor(1, "explore")
        self._at_work: int | None = None
        self._streams = session.streams.stdout, session.streams.stderr
        session.streams.stdout, session.streams.stderr = Capture(), None

    def submit(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Do some work in the thread, then call ``done`` there with its result or its exception."""

        def job() -> None:
            self._at_work = threading.get_ident()
            found: Any = None
            error: Exception | None = None
            try:
                found = work()
            except KeyboardInterrupt:
                error = Superseded("interrupted")
            except Exception as failed:
                error = failed
            self._at_work = None
            done(found, error)
            self.waiting -= 1

        self.waiting += 1
        self._thread.submit(job)

    def interrupt(self) -> None:
        """Stop what runs, as Ctrl-C would."""
        if self._at_work is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._at_work), ctypes.py_object(KeyboardInterrupt)
            )

    def close(self, place: Place) -> None:
        """Give up what waits and what runs, and leave the session at a place."""
        self.asked += 1
        self.interrupt()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.settle()
        self._go(place)
        self.session.streams.stdout, self.session.streams.stderr = self._streams

    def live(self, text: str, number: int) -> Scene:
        """The scene of a text that is being typed. Raises Superseded, and whatever ``Model.trace`` does."""
        session = self.session
        with self._cancellable(number):
            model = session.model
            trace = Model.trace(model, text)
        self._typed = trace
        run = Run(session.state.spec, trace.encoding.text)
        before = None if session.run is None else session.trace
        return Scene(model, trace, run, before, session.run)

    def scene(self) -> Scene:
        """The present run of the session, with the one before."""
        session = self.session
        earlier = session.state.runs[-2] if len(session.state.runs) > 1 else None
        before = None if earlier is None else session.models.trace(earlier)
        return Scene(session.model, session.trace, session.require_run(), before, earlier)

    def settle(self) -> None:
        """Make the text that was typed a line of the session."""
        trace, self._typed = self._typed, None
        session = self.session
        if trace is not None and (session.run is None or trace.encoding.text != session.run.text):
            session.models.add_trace(Run(session.state.spec, trace.encoding.text), trace)
            session.execute(f"run --quiet -- {shell_quoted(trace.encoding.text)}")

    def line(self, line: str, place: Place, width: int) -> tuple[Outcome, Scene | None]:
        """Run a line of the session at a place, drawn ``width`` columns wide: its outcome, and the scene after it."""
        session = self.session
        self.settle()
        self._go(place)
        settings = session.settings
        session.change(settings=replace(settings, width=max(20, width)))
        outcome = session.execute(line)
        session.change(settings=replace(session.settings, width=settings.width))
        return outcome, None if session.run is None else self.scene()

    def answers(self, line: str, scene: Scene, against: bool, number: int) -> list[Outcome]:
        """What a line of the session answers about a scene, and ``against`` the run before about that too."""
        found = [self.ask(line, scene, number)]
        if against and scene.earlier is not None:
            model = self.session.models.model(scene.earlier.spec)
            found.append(self.ask(line, scene.earlier_scene(model), number))
        return found

    def ask(self, line: str, scene: Scene, number: int) -> Outcome:
        """What a line of the session answers about a scene; no line of its log. Raises Superseded."""
        session = self.session
        beside = copy.copy(session)
        beside.streams, beside.log = Streams(Capture()), Log()
        beside.streams.stderr = None
        session.models.add_trace(scene.run, scene.trace)
        runs = (scene.run,) if scene.earlier is None else (scene.earlier, scene.run)
        beside.change(spec=scene.run.spec, runs=runs)
        with self._cancellable(number):
            outcome = beside.execute(line)
        if isinstance(beside.last_error, Superseded):
            raise beside.last_error
        return outcome

    def note(self, line: str, place: Place) -> None:
        """Make a question that was asked beside the session a line of its log."""
        self.settle()
        self._go(place)
        state, (verb, *_) = self.session.state, line.split()
        self.session.log.remember(Entry(line, True, self.session.lexicon.meaning(verb)), state, state)

    def _go(self, place: Place) -> None:
        """Move the session to a place, where it is not there yet."""
        session = self.session
        if session.run is not None and place.row != session.row:
            session.execute(f"goto {place.address(session.trace)}")

    def _require_latest(self, number: int) -> None:
        if number != self.asked:
            raise Superseded

    @contextmanager
    def _cancellable(self, number: int) -> Iterator[None]:
        """Give up a forward pass before its next layer, once a later text was asked for."""
        self._require_latest(number)

        def look(*_: object) -> None:
            self._require_latest(number)

        handles = [block.register_forward_pre_hook(look) for block in self.session.model.transformer.blocks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._require_latest(number)
