"""What runs behind the screen: one job at a time in a thread, the latest of a kind; and the session that keeps it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tinytf.loading import Model
from tinytf.model.transformer import Transformer
from tinytf.trace.trace import Trace
from tinytf_cli.explore.panes import Scene
from tinytf_cli.explore.place import Place
from tinytf_cli.repl.line import shell_quoted
from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.repl.state import Run
from tinytf_cli.repl.streams import Capture


class Superseded(Exception):
    """A later keystroke made this run pointless."""


class Engine:
    """Runs texts and lines of a session in one thread, so that the screen never waits.

    A text that is still being typed is no line of the session yet: ``live`` runs it beside the session, and ``line``
    makes it one before it runs anything else. ``asked`` counts the texts; a run of an older one is given up.
    ``waiting`` counts what is not done yet.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.asked = self.waiting = 0
        self._typed: Trace | None = None
        self._thread = ThreadPoolExecutor(1, "explore")
        self._streams = session.streams.stdout, session.streams.stderr
        session.streams.stdout, session.streams.stderr = Capture(), None

    def submit(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Do some work in the thread, then call ``done`` there with its result or its exception."""

        def job() -> None:
            try:
                found, error = work(), None
            except Exception as failed:
                found, error = None, failed
            done(found, error)
            self.waiting -= 1

        self.waiting += 1
        self._thread.submit(job)

    def close(self) -> None:
        """Give up what waits, and wait for what runs."""
        self.asked += 1
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.settle()
        self.session.streams.stdout, self.session.streams.stderr = self._streams

    def live(self, text: str, number: int) -> Scene:
        """The scene of a text that is being typed. Raises Superseded, and whatever ``Model.trace`` does."""
        self._require_latest(number)
        session = self.session
        model = session.model
        with self._cancellable(model.transformer, number):
            trace = Model.trace(model, text)
        self._require_latest(number)
        self._typed = trace
        return Scene(model, trace, session.trace if session.run is not None else None)

    def scene(self) -> Scene:
        """The present run of the session, with the one before."""
        session = self.session
        earlier = session.state.runs[-2] if len(session.state.runs) > 1 else None
        trace = session.trace
        return Scene(session.model, trace, None if earlier is None else session.models.trace(earlier))

    def settle(self) -> None:
        """Make the text that was typed a line of the session."""
        trace, self._typed = self._typed, None
        session = self.session
        if trace is not None and (session.run is None or trace.encoding.text != session.run.text):
            session.models.keep_trace(Run(session.state.spec, trace.encoding.text), trace)
            session.execute(f"run --quiet -- {shell_quoted(trace.encoding.text)}")

    def line(self, line: str, place: Place | None, width: int) -> tuple[Outcome, Scene | None]:
        """Run a line of the session at a place, drawn ``width`` columns wide: its outcome, and the scene after it."""
        session = self.session
        self.settle()
        if place is not None and session.run is not None and place.row != session.place:
            session.execute(f"goto {place.row + 1}")
        settings = session.settings
        session.change(settings=replace(settings, width=max(20, width)))
        outcome = session.execute(line)
        session.change(settings=replace(session.settings, width=settings.width))
        return outcome, None if session.run is None else self.scene()

    def _require_latest(self, number: int) -> None:
        if number != self.asked:
            raise Superseded

    @contextmanager
    def _cancellable(self, transformer: Transformer, number: int) -> Iterator[None]:
        """Give up a forward pass before its next layer, once a later text was asked for."""

        def look(*_: object) -> None:
            self._require_latest(number)

        handles = [block.register_forward_pre_hook(look) for block in transformer.blocks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
