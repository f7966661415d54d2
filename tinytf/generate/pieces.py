"""The text of tokens that arrive one by one: complete characters only, and no beginning of a stop string."""

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"  # the decoding of bytes that are no character, or not yet a complete one
_CONTEXT = 8


class PieceDecoder:
    """``add`` takes a token and returns the text that is now certain; ``rest`` returns what was held back at the end.

    Tokens are decoded together with a few earlier ones, since a piece decoded alone can lose its leading space.
    """

    def __init__(self, decode: Callable[[list[int]], str] | None, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self.decode = decode
        self.stops = tuple(stops)
        self.stopped = False
        self._context = list(prompt[-_CONTEXT:])
        self._new: list[int] = []
        self._held_back = ""

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
        """The text held back when no more tokens follow; an incomplete character becomes U+FFFD."""
        if self.decode is None or self.stopped:
            return ""
        text = self._certain(self._text_of_new())
        if not self.stopped:
            text += self._held_back
        self._held_back, self._new = "", []
        return text

    def _text_of_new(self) -> str:
        assert self.decode is not None
        if not self._new:
            return ""
        return self.decode(self._context + self._new)[len(self.decode(self._context)) :]

    def _settle(self) -> None:
        self._context = (self._context + self._new)[-max(_CONTEXT, len(self._new)) :]
        self._new = []

    def _certain(self, text: str) -> str:
        """The part of the held-back and new text that precedes any stop string and cannot begin one."""
        text = self._held_back + text
        hits = [position for position in (text.find(stop) for stop in self.stops) if position >= 0]
        if hits:
            self.stopped, self._held_back = True, ""
            return text[: min(hits)]
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.stops):
                self._held_back = text[-size:]
                return text[:-size]
        self._held_back = ""
        return text


def text_of(decode: Callable[[list[int]], str], before: Sequence[int], ids: Sequence[int]) -> str:
    """The text of ``ids`` after the ids ``before``; decoded alone, a piece can lose its leading space."""
    pieces = PieceDecoder(decode, before, ())
    return "".join(pieces.add(token_id) for token_id in ids) + pieces.rest()
