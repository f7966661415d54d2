"""The text of tokens that arrive one by one: whole characters only, and nothing that may be part of a stop string."""

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"  # what decoding makes of bytes that are no character, or not yet
_CONTEXT = 8


class PieceDecoder:
    """``add`` a token, and get the text that is now certain; ``rest`` is what was still held back.

    Tokens are decoded after a few that come before them, since a piece by itself can lose its leading space.
    """

    def __init__(self, decode: Callable[[list[int]], str] | None, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self.decode = decode
        self.stops = tuple(stops)
        self.stopped = False
        self._known = list(prompt[-_CONTEXT:])
        self._new: list[int] = []
        self._held = ""

    def add(self, token_id: int) -> str:
        if self.decode is None or self.stopped:
            return ""
        self._new.append(token_id)
        text = self._text_of_new()
        if text.endswith(_UNFINISHED):
            return ""
        self._settle()
        return self._certain(text)

    def rest(self) -> str:
        """What is left when no token follows; a character that was never finished is U+FFFD."""
        if self.decode is None or self.stopped:
            return ""
        text = self._certain(self._text_of_new())
        if not self.stopped:
            text += self._held
        self._held, self._new = "", []
        return text

    def _text_of_new(self) -> str:
        assert self.decode is not None
        if not self._new:
            return ""
        return self.decode(self._known + self._new)[len(self.decode(self._known)) :]

    def _settle(self) -> None:
        self._known = (self._known + self._new)[-max(_CONTEXT, len(self._new)) :]
        self._new = []

    def _certain(self, text: str) -> str:
        """The part of the held and the new text that comes before a stop string, and cannot be one's beginning."""
        text = self._held + text
        found = [place for place in (text.find(stop) for stop in self.stops) if place >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.stops):
                self._held = text[-size:]
                return text[:-size]
        self._held = ""
        return text


def text_of(decode: Callable[[list[int]], str], before: Sequence[int], ids: Sequence[int]) -> str:
    """The text of ``ids`` where they follow ``before``: a piece by itself can lose its leading space."""
    pieces = PieceDecoder(decode, before, ())
    return "".join(pieces.add(token_id) for token_id in ids) + pieces.rest()
