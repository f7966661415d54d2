"""The input lines: the edited text, a line of the session with completion, and a search for anything."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widgets import Input

from tinytf_cli.explore.palette import everything, ranked
from tinytf_cli.explore.pane import Pane
from tinytf_cli.repl.addressing import Offer, addresses, parameters, tokens, with_prefix
from tinytf_cli.repl.completing import find_offers
from tinytf_cli.repl.session import Session
from tinytf_cli.views.blocks import Column, Span, Table

_MOST_OFFERS = 200
_OFFERS_SHOWN = 10
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]*(e[-+]?[0-9]*)?")


class BurstInput(Input):
    """An input that handles each key before the next, so that a burst of keys stays in order."""

    async def _on_key(self, event: Key) -> None:
        # Textual inserts a letter at once, but passes a key like Backspace to the app, which handles it later.
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            event.stop()
            event.prevent_default()
            await self.run_action(binding.action)


class CommandLine(BurstInput):
    """A line of the session, or a search if ``sign`` is /. ``offers`` are its completions, shown above it.

    Tab takes the chosen offer and the arrows choose one; without offers, the arrows go through the session's lines.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "take", show=False, priority=True),
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
    ]

    def __init__(
        self,
        session: Session,
        offers: Pane,
        place_offers: Callable[[int, int], None],
        keys: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(id="line", compact=True, select_on_focus=False)
        self._keys, self._everything = keys or {}, list[Offer]()
        self.sign = ":"
        self.offers: list[Offer] = []
        self._session, self._pane, self._place_offers = session, offers, place_offers
        self._start = self._choice = self._history_index = self._layer = 0
        self._completed = ""

    def begin(self, sign: str, layer: int, value: str = "") -> None:
        """Start with an empty line or a ``value``, in a layer."""
        self.sign, self.value, self._history_index, self._layer = sign, value, 0, layer
        self.placeholder = "a line of the session" if sign == ":" else "a few letters of anything here, or a number"
        self._everything = list(everything(self._session, layer, self._keys)) if sign == "/" else []
        self.complete()

    def complete(self) -> None:
        """Update the completions of the line."""
        typed = self.value[: self.cursor_position]
        if self.sign == ":":
            self._start, offers = find_offers(self._session, typed)
        else:
            self._start, offers = -len(typed), self._findable(typed)
        self._completed = self.value
        self.offers = list(itertools.islice(offers, _MOST_OFFERS)) if typed else []
        self._choice = 0
        self.show_offers()

    def _findable(self, typed: str) -> Iterator[Offer]:
        """What a search can find: first by its beginning, in the present layer and the text; then by a few letters."""
        session, layer = self._session, f"L{self._layer}."
        steps = [] if session.known_table is None else session.known_table.in_layer(self._layer)
        begun = [*addresses(session, typed), *with_prefix(typed, ((step.name, step.title) for step in steps))]
        begun += [*parameters(session, f"{layer}{typed}"), *parameters(session, typed)]
        begun += [] if typed[:1].isdecimal() else tokens(session, typed)
        known = {offer.word for offer in begun}
        yield from begun
        if not _NUMBER.fullmatch(typed):
            yield from (offer for offer in ranked(typed, self._everything) if offer.word not in known)

    def take_offer(self) -> None:
        """Take the chosen offer of the present line, if there is one."""
        if self._completed != self.value:  # after a burst of keys, the change event has not arrived yet
            self.complete()
        self.action_take()

    def show_offers(self) -> None:
        """Show the completions above the line, as many as there is room for."""
        words = [Span(offer.word, "strong" if index == self._choice else "") for index, offer in enumerate(self.offers)]
        about = [Span(offer.about, "dim") for offer in self.offers]
        signs = ["▶" if index == self._choice else "" for index in range(len(words))]
        columns = [
            Column("", signs),
            Column("", words, shrink=12),
            Column("", about),
        ]
        width = max((cell_len(offer.word) + cell_len(offer.about) for offer in self.offers), default=0) + 10
        self._place_offers(width, min(_OFFERS_SHOWN, len(words)))
        self._pane.show([Table(columns, header=False)] if words else [], keep=(self._choice, self._choice))

    def action_take(self) -> None:
        if self.offers:
            offer, at = self.offers[self._choice], self.cursor_position
            taken = self.value[: at + self._start] + offer.word + (" " if offer.complete and self.sign == ":" else "")
            self.value, self.cursor_position = taken + self.value[at:], len(taken)

    def action_choose(self, by: int) -> None:
        if self.offers:
            self._choice = (self._choice + by) % len(self.offers)
            self.show_offers()
        elif self.sign == ":":
            lines: Sequence[str] = [entry.line for entry in self._session.log.lines]
            self._history_index = max(0, min(len(lines), self._history_index - by))
            self.value = lines[-self._history_index] if self._history_index else ""
            self.cursor_position = len(self.value)
