"""The input lines: the text that is edited, a line of the session with its completion, and a search."""

import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widgets import Input

from tinytf_cli.explore.pane import Pane
from tinytf_cli.repl.addressing import Offer
from tinytf_cli.repl.completing import find_offers
from tinytf_cli.repl.session import Session
from tinytf_cli.views.blocks import Column, Span, Table

_MOST = 200
_SHOWN = 10


class BurstInput(Input):
    """An input that acts on each key before it takes the next, so that a burst of keys stays in order."""

    async def _on_key(self, event: Key) -> None:
        # Textual inserts a letter at once, but leaves a key like Backspace to the app, which hears of it later.
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            event.stop()
            event.prevent_default()
            await self.run_action(binding.action)


class CommandLine(BurstInput):
    """A line of the session, or with ``sign`` / a search; what it can become stands in ``offers`` above it.

    Tab takes the chosen offer, the arrows choose one; without offers they go through the lines of the session.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "take", show=False, priority=True),
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
    ]

    def __init__(self, session: Session, offers: Pane, place: Callable[[int, int], None]) -> None:
        super().__init__(id="line", compact=True, select_on_focus=False)
        self.sign = ":"
        self.offers: list[Offer] = []
        self._session, self._pane, self._place = session, offers, place
        self._start = self._choice = self._earlier = 0

    def begin(self, sign: str) -> None:
        """Begin an empty line."""
        self.sign, self.value, self._earlier = sign, "", 0
        self.placeholder = "a line of the session" if sign == ":" else "an address, a step, a token or a number"
        self.complete()

    def complete(self) -> None:
        """Offer what the line can become."""
        before = self.value[: self.cursor_position]
        lead = "" if self.sign == ":" else "goto "
        self._start, offers = find_offers(self._session, lead + before)
        self.offers = list(itertools.islice(offers, _MOST)) if before else []
        self._choice = 0
        self._show()

    def _show(self) -> None:
        words = [Span(one.word, "strong" if at == self._choice else "") for at, one in enumerate(self.offers)]
        about = [Span(one.about, "dim") for one in self.offers]
        signs = ["▶" if at == self._choice else "" for at in range(len(words))]
        columns = [
            Column("", signs),
            Column("", words, shrink=12),
            Column("", about),
        ]
        wide = max((cell_len(one.word) + cell_len(one.about) for one in self.offers), default=0) + 10
        self._place(wide, min(_SHOWN, len(words)))
        self._pane.show([Table(columns, header=False)] if words else [], keep=self._choice)

    def action_take(self) -> None:
        if self.offers:
            one, at = self.offers[self._choice], self.cursor_position
            begun = self.value[: at + self._start] + one.word + (" " if one.complete and self.sign == ":" else "")
            self.value, self.cursor_position = begun + self.value[at:], len(begun)

    def action_choose(self, by: int) -> None:
        if self.offers:
            self._choice = (self._choice + by) % len(self.offers)
            self._show()
        elif self.sign == ":":
            lines: Sequence[str] = [entry.line for entry in self._session.log.lines]
            self._earlier = max(0, min(len(lines), self._earlier - by))
            self.value = lines[-self._earlier] if self._earlier else ""
            self.cursor_position = len(self.value)
