"""One Tokenizer over the ``tokenizers`` library: characters, byte-level BPE and WordPiece alike."""

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

import tokenizers

from tinytf.errors import CheckpointError, TokenizerError
from tinytf.text.printable import printable

_KINDS = {"WordLevel": "characters", "BPE": "byte-level BPE", "WordPiece": "WordPiece"}


@dataclass(frozen=True)
class Token:
    """One token of a text. ``text[start:end]`` is what it covers, in characters; a special token covers nothing.

    ``data`` are the bytes that it stands for: of a byte-level token exactly its own, which can be a part of a
    character; of any other token those of the text it covers. ``shown`` is safe to print.
    """

    id: int
    shown: str
    start: int
    end: int
    data: bytes
    special: bool


@dataclass(frozen=True)
class Encoding:
    """A text with its tokens; ``added`` says in words which special tokens the tokenizer put in."""

    text: str
    tokens: tuple[Token, ...]
    added: str

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    def truncated(self, limit: int) -> "Encoding":
        """At most ``limit`` tokens, cut from the end, before an added end token; ``added`` says what was cut."""
        if len(self.tokens) <= limit:
            return self
        tail = tuple(token for token in self.tokens[-1:] if token.special and token.start == token.end)
        kept = self.tokens[: limit - len(tail)] + tail
        cut = len(self.tokens) - len(kept)
        said = f"{cut:,} token{'s' if cut > 1 else ''} cut from the end"
        return Encoding(self.text, kept, f"{self.added}, {said}")


@lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """Byte-level BPE writes each byte as one letter (Radford et al. 2019); this is the way back."""
    direct = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(direct)]
    return {chr(byte): byte for byte in direct} | {chr(256 + place): byte for place, byte in enumerate(others)}


class Tokenizer:
    """Text to ids and back, with offsets. Raises TokenizerError for text that it cannot take."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self.library = library
        name = type(library.model).__name__
        if name not in _KINDS:
            raise TokenizerError(f"a tokenizer of type {name} is not one of {', '.join(_KINDS)}")
        self.kind = _KINDS[name]

    @classmethod
    def load(cls, path: Path) -> Self:
        """The tokenizer of a ``tokenizer.json``; CheckpointError when it is missing or damaged."""
        try:
            return cls(tokenizers.Tokenizer.from_str(path.read_text("utf-8")))
        except FileNotFoundError:
            raise CheckpointError(f"there is no {path.name} in {path.parent}") from None
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path} is not a tokenizer: {error}") from None

    def to_json(self) -> str:
        """The ``tokenizer.json`` that ``load`` reads."""
        return json.dumps(json.loads(self.library.to_str()), ensure_ascii=False, indent=1)

    @cached_property
    def vocab_size(self) -> int:
        return self.library.get_vocab_size()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of [CLS], <|endoftext|> and their like, which stand for no text."""
        return frozenset(i for i, added in self.library.get_added_tokens_decoder().items() if added.special)

    @cached_property
    def _byte_level(self) -> bool:
        return self.kind == "byte-level BPE"

    def special_id(self, *names: str) -> int | None:
        """The id of the first of these special tokens that the vocabulary has."""
        for name in names:
            token_id = self.library.token_to_id(name)
            if token_id is not None:
                return int(token_id)
        return None

    @property
    def mask_id(self) -> int | None:
        return self.special_id("[MASK]", "<mask>")

    @property
    def end_id(self) -> int | None:
        return self.special_id("<|endoftext|>", "</s>", "[SEP]")

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes that a vocabulary entry stands for by itself."""
        piece = self.library.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_level and token_id not in self.special_ids:
            letters = _byte_of_letter()
            return bytes(letters[letter] for letter in piece) if all(c in letters for c in piece) else piece.encode()
        return piece.encode("utf-8")

    def shown(self, token_id: int) -> str:
        """The printable form of a vocabulary entry: ``·cat``, ``##ing``, ``\\xf0``; ``#31`` beyond the vocabulary."""
        if self.library.id_to_token(token_id) is None:
            return f"#{token_id}"
        return printable(self.piece_bytes(token_id).decode("utf-8", "backslashreplace"))

    def encode(self, text: str, *, special: bool = True) -> Encoding:
        """Tokens of ``text``; ``special`` lets the tokenizer add its [CLS], [SEP] or start token."""
        for place, char in enumerate(text):
            if "\ud800" <= char <= "\udfff":
                raise TokenizerError(
                    f"the text has a lone surrogate (U+{ord(char):04X}) at character {place}",
                    "the text was not valid UTF-8 before it came here; re-encode it",
                )
        if self.kind == "characters":
            self._refuse_unknown(text)
        encoded = self.library.encode(text, add_special_tokens=special)
        tokens = []
        for token_id, (start, end), added in zip(
            encoded.ids, encoded.offsets, encoded.special_tokens_mask, strict=True
        ):
            own_bytes = self._byte_level or token_id in self.special_ids
            data = self.piece_bytes(token_id) if own_bytes else text[start:end].encode("utf-8")
            is_special = bool(added) or token_id in self.special_ids
            tokens.append(Token(token_id, self.shown(token_id), start, end, data, is_special))
        return Encoding(text, tuple(tokens), self._added(encoded))

    def _refuse_unknown(self, text: str) -> None:
        for place, char in enumerate(text):
            if self.library.token_to_id(char) is None:
                raise TokenizerError(
                    f"the character {printable(char)!r} at {place} is not among the {self.vocab_size} characters known",
                    f"known: {''.join(printable(c) for c in sorted(self.library.get_vocab()))}",
                )

    @staticmethod
    def _added(encoded: tokenizers.Encoding) -> str:
        names, masks = [printable(name) for name in encoded.tokens], encoded.special_tokens_mask
        own = [place for place, mask in enumerate(masks) if not mask]
        first, last = (own[0], own[-1] + 1) if own else ((len(masks) + 1) // 2,) * 2
        said = [f"{' '.join(names[:first])} added before"] if first else []
        said += [f"{' '.join(names[last:])} added after"] if last < len(names) else []
        return ", ".join(said) or "no start or end token added"

    def decode(self, ids: list[int]) -> str:
        """The text of these ids, special tokens left out."""
        return str(self.library.decode(ids, skip_special_tokens=True))
