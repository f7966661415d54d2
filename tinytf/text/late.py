"""What a model of late interaction (ColBERT) reads of a query and of a document."""

from dataclasses import dataclass, replace

from tinytf.errors import UsageError
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Token, Tokenizer


@dataclass(frozen=True)
class Side:
    """How a query or a document is read.

    Its ``marker`` is a token after the start token, or a text where the tokenizer has no such token; its ``prompt`` is
    a text before it. It is cut to ``longest`` tokens (0: to those of any text). A shorter one is filled up to
    ``filled`` tokens, with the token ``filler`` or else the mask; others look at those only if it ``attends``.
    """

    marker: str = ""
    prompt: str = ""
    longest: int = 0
    filled: int = 0
    filler: str | None = None
    attends: bool = False

    def encode(self, tokenizer: Tokenizer, text: str, most: int) -> tuple[Encoding, list[bool]]:
        """The tokens of a text, ``most`` at most, and which of them others look at."""
        names = (self.marker, *self.marker.split()[:1])
        marker = next((name for name in names if tokenizer.id_of(name) is not None), "")
        encoding = tokenizer.encode(self.marker.removeprefix(marker) + self.prompt + text)
        if marker:
            before = next((n for n, token in enumerate(encoding.tokens) if not token.is_added), 0)
            tokens = (*encoding.tokens[:before], _token(tokenizer, marker), *encoding.tokens[before:])
            encoding = replace(encoding, tokens=tokens, added=f"{encoding.added}, {printable(marker)} before the text")
        encoding = encoding.truncated(min(self.longest or most, most))
        real = [True] * len(encoding.tokens)
        missing = min(self.filled, most) - len(real)
        if missing <= 0:
            return encoding, real
        filler = _token(tokenizer, self.filler) if self.filler else _filler(tokenizer)
        filled = replace(
            encoding,
            tokens=(*encoding.tokens, *[filler] * missing),
            added=f"{encoding.added}, {missing:,} {filler.shown} to fill it up",
        )
        return filled, real + [self.attends] * missing


@dataclass(frozen=True)
class LateInteraction:
    """How queries and documents are read; a query finds none of the ``skipped`` pieces of a document."""

    query: Side
    document: Side
    skipped: tuple[str, ...] = ()


def _filler(tokenizer: Tokenizer) -> Token:
    """The mask, or the end token of a decoder."""
    for token_id in (tokenizer.mask_id, *tokenizer.end_ids):
        if token_id is not None:
            return _token_of_id(tokenizer, token_id)
    raise UsageError("a query is filled up with mask tokens, and this tokenizer has no mask and no end token")


def _token(tokenizer: Tokenizer, piece: str) -> Token:
    token_id = tokenizer.id_of(piece)
    return _token_of_id(tokenizer, 0 if token_id is None else token_id)


def _token_of_id(tokenizer: Tokenizer, token_id: int) -> Token:
    """A token that covers no text."""
    return Token(token_id, tokenizer.shown(token_id), 0, 0, b"", special=True)
