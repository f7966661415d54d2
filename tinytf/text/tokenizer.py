"""One Tokenizer over the ``tokenizers`` library: characters, byte-level and SentencePiece BPE, WordPiece alike."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import tokenizers

from tinytf.errors import CheckpointError, TokenizerError, UsageError
from tinytf.files import TOKENIZER, read_bytes
from tinytf.short_repr import ShortRepr, shown
from tinytf.text.chat import ChatTemplate, Conversation, Said, template_of
from tinytf.text.library import MOST, Limit, Pieces, Stranger, library_errors, split, stranger_in
from tinytf.text.printable import printable

BYTE_LEVEL, SENTENCEPIECE, CHARACTERS = "byte-level BPE", "SentencePiece BPE", "characters"
UNIGRAM, IDS = "SentencePiece Unigram", "ids"

# (type of the model, any of these in the library's own description of it and of the parts around it, what we call it)
_KINDS = (
    ("BPE", ('"ByteLevel"',), BYTE_LEVEL),
    ("BPE", ('"Metaspace"', "▁", '"ByteFallback"', "byte_fallback=True"), SENTENCEPIECE),
    ("BPE", ("",), "BPE"),
    ("Unigram", ("",), UNIGRAM),
    ("WordPiece", ("",), "WordPiece"),
    ("WordLevel", (r'"Regex":"[\\s\\S]"',), CHARACTERS),
    ("WordLevel", ("",), "words"),
)
_ENDS = ("<|endoftext|>", "</s>", "[SEP]")
_STARTS = ("<|begin_of_text|>", "<bos>", "<s>", "<|endoftext|>")
_OWN = "tinytf"  # the key of what only we store in a tokenizer.json
_MASKS = ("[MASK]", "<mask>")
_NAMED = 12
"""So many tokens are named in the ``repr`` of a text."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a text. ``text[start:end]`` is what it covers, in characters; a special token covers nothing.

    ``data`` are its bytes: for a special token and for a byte-level or SentencePiece piece, exactly its own, which can
    be a part of a character, with a space for ▁; for any other token and for an unknown one, those of the text it
    covers. ``shown`` is safe to print.
    """

    id: int
    shown: str
    start: int
    end: int
    data: bytes
    special: bool


@dataclass(frozen=True)
class Encoding(ShortRepr):
    """A text with its tokens; ``added`` says in words which special tokens the tokenizer put in.

    ``said`` is what of a conversation's text each message says; the rest is of the chat template.
    """

    text: str
    tokens: tuple[Token, ...]
    added: str
    said: tuple[Said, ...] | None = None

    def repr_members(self) -> dict[str, Any]:
        """The first tokens as they are shown."""
        return {"shown": " ".join(token.shown for token in self.tokens[:_NAMED])}

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def roles(self) -> list[str | None] | None:
        """Of each token of a conversation, who says it, None for the chat template; None where it is a plain text."""
        if self.said is None:
            return None
        roles: list[str | None] = []
        left = list(reversed(self.said))
        for token in self.tokens:
            while left and left[-1].end <= token.start:
                left.pop()
            roles.append(left[-1].role if left and token.end > left[-1].start else None)
        return roles

    @property
    def starts_twice(self) -> bool:
        """Whether the text spells out the start token that the tokenizer puts before it."""
        first = self.tokens[:2]
        return len(first) == 2 and first[0].special and first[0].id == first[1].id and first[0].end == 0 < first[1].end

    def truncated(self, limit: int) -> "Encoding":
        """At most ``limit`` tokens, cut from the end, before an added end token; ``added`` says what was cut."""
        if len(self.tokens) <= limit:
            return self
        tail = tuple(token for token in self.tokens[-1:] if token.special and token.start == token.end)
        kept = self.tokens[: limit - len(tail)] + tail
        cut = len(self.tokens) - len(kept)
        said = f"{cut:,} token{'s' if cut > 1 else ''} cut from the end"
        return replace(self, tokens=kept, added=f"{self.added}, {said}")

    def open_ended(self, ends: Collection[int]) -> "Encoding":
        """Without the end token that a tokenizer adds: a text that is continued has not ended."""
        last = self.tokens[-1] if len(self.tokens) > 1 else None
        if last is None or not (last.special and last.start == last.end and last.id in ends):
            return self
        return replace(self, tokens=self.tokens[:-1], added=f"{self.added}, {last.shown} left out again")


@lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """Byte-level BPE writes each byte as one letter (Radford et al. 2019); this is the way back."""
    direct = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(direct)]
    return {chr(byte): byte for byte in direct} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _byte_level_bytes(piece: str) -> bytes:
    letters = _byte_of_letter()
    return bytes(letters[letter] for letter in piece) if all(c in letters for c in piece) else piece.encode()


def _sentencepiece_bytes(piece: str) -> bytes:
    """SentencePiece writes a space as ▁, and a byte that no piece has as ``<0xF0>`` (Kudo and Richardson 2018)."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()


_PIECE_BYTES: dict[str, Callable[[str], bytes]] = {
    BYTE_LEVEL: _byte_level_bytes,
    SENTENCEPIECE: _sentencepiece_bytes,
    UNIGRAM: _sentencepiece_bytes,
}


def _kind_of(library: tokenizers.Tokenizer) -> str:
    """What kind of tokenizer it is, from its model and other parts. Raises TokenizerError for an unknown kind."""
    model = type(library.model).__name__
    parts = (library.normalizer, library.pre_tokenizer, library.decoder)
    said = "".join(part.__getstate__().decode("utf-8") for part in parts if part is not None)
    said += f"byte_fallback={getattr(library.model, 'byte_fallback', False)}"
    for name, marks, kind in _KINDS:
        if name == model and any(mark in said for mark in marks):
            return kind
    known = ", ".join(dict.fromkeys(name for name, _, _ in _KINDS))
    raise TokenizerError(f"a tokenizer of type {model} is not one of {known}")


class Tokenizer:
    """Text to ids and back, with offsets. Raises TokenizerError for text that it cannot take.

    ``ends`` are the ids that end a text, ``mask`` is the name of the mask token, ``start`` the id that a text begins
    with; without them the vocabulary is searched for the usual names. ``chat`` makes a text of a conversation. A
    ``stranger`` does the work for one with parts that are not known to be harmless.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        ends: Sequence[int] = (),
        mask: str | None = None,
        start: int | None = None,
        chat: ChatTemplate | None = None,
        stranger: Stranger | None = None,
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self.library = library
        self.kind = _kind_of(library)
        self.dropout = getattr(library.model, "dropout", None) or 0.0
        """The share of merges that its file leaves out at random; here all are made."""
        if self.dropout:
            library.model.dropout = None
        self._stranger = stranger
        if stranger:
            stranger.follow(library)
        self._ends = tuple(ends)
        self._masks = _MASKS if mask is None else (mask,)
        self._start = start
        self.chat = chat

    def __repr__(self) -> str:
        return shown(self, {"kind": self.kind, "tokens": self.vocab_size})

    @classmethod
    def load(cls, path: Path) -> Self:
        """The tokenizer of a ``tokenizer.json``; CheckpointError when it is missing or damaged."""
        if not path.exists():
            raise CheckpointError(f"there is no {path.name} in {path.parent}")
        with library_errors(CheckpointError, f"{path} is not a tokenizer"):
            data = json.loads(read_bytes(path, TOKENIZER))
            own = data.pop(_OWN, {})
            chat = own.get("chat_template")
            stranger = stranger_in(data, path)
            return cls(
                tokenizers.Tokenizer.from_str(json.dumps(data)),
                [int(one) for one in own.get("ends", ())],
                own.get("mask"),
                own.get("start"),
                template_of(chat, dict(own.get("names", {})), path),
                stranger,
            )

    def to_json(self, *, whole: bool = False) -> str:
        """The ``tokenizer.json`` that ``load`` reads; the ``whole`` one has what transformers keeps in other files."""
        data, chat = json.loads(self.library.to_str()), self.chat if whole else None
        if whole and (self._ends or chat is not None):
            mask = None if self._masks is _MASKS else self._masks[0]
            data[_OWN] = {"ends": self._ends, "mask": mask, "start": self._start}
        if chat is not None:
            data[_OWN] |= {"chat_template": chat.stored, "names": dict(chat.names)}
        return json.dumps(data, ensure_ascii=False, indent=1)

    @cached_property
    def vocab_size(self) -> int:
        return self.library.get_vocab_size()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens that are no text, whether the tokenizer adds them or a text spells them out."""
        return frozenset(i for i, added in self.library.get_added_tokens_decoder().items() if added.special)

    @cached_property
    def _written_out(self) -> frozenset[int]:
        """Ids of the entries that were added to the vocabulary as plain text, not in the spelling of its pieces."""
        return frozenset(self.library.get_added_tokens_decoder())

    @cached_property
    def _unknown_id(self) -> int | None:
        if self.kind == UNIGRAM:  # it does not tell the name: a character that no text has shows it
            with suppress(Exception):
                pieces = self.library.model.tokenize("\U0010fffe")
                return pieces[0].id if len(pieces) == 1 else None
        name = getattr(self.library.model, "unk_token", None)
        return self.id_of(name) if name else None

    def special_id(self, *names: str) -> int | None:
        """The id of the first of these names that is a special token here."""
        ids = (self.id_of(name) for name in names)
        return next((token_id for token_id in ids if token_id in self.special_ids), None)

    @property
    def mask_id(self) -> int | None:
        return self.special_id(*self._masks)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Every id that ends a text, the usual one first."""
        if self._ends:
            return self._ends
        usual = self.special_id(*_ENDS)
        return () if usual is None else (usual,)

    @property
    def end_id(self) -> int | None:
        return next(iter(self.end_ids), None)

    def start(self) -> Encoding | None:
        """The start token alone, as an empty text to continue; None where there is none."""
        encoding = self.encode("").open_ended(self.end_ids)
        if encoding.tokens:
            return encoding
        start = self.special_id(*_STARTS) if self._start is None else self._start
        if start is None:
            return None
        token = Token(start, self.shown(start), 0, 0, self.piece_bytes(start), special=True)
        return Encoding("", (token,), f"{token.shown} added before")

    def around(self) -> tuple[list[int], list[int]]:
        """The ids that are put before every text, and those that are put after it."""
        ids = self.encode("").ids
        return ids[: self._added_before], ids[self._added_before :]

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes that a vocabulary entry stands for by itself."""
        piece = self.library.id_to_token(token_id)
        if piece is None:
            return b""
        plain = token_id in self._written_out or self.kind not in _PIECE_BYTES
        return piece.encode("utf-8") if plain else _PIECE_BYTES[self.kind](piece)

    def shown(self, token_id: int) -> str:
        """The printable form of a vocabulary entry: ``·cat``, ``##ing``, ``\\xf0``; ``#31`` beyond the vocabulary."""
        if self.library.id_to_token(token_id) is None:
            return f"#{token_id}"
        return printable(self.piece_bytes(token_id).decode("utf-8", "backslashreplace"))

    def encode(self, text: str, *, special: bool = True, limit: Limit = MOST) -> Encoding:
        """Tokens of ``text``; ``special`` lets the tokenizer add its [CLS], [SEP] or start token.

        Raises TokenizerError for a text that it cannot take, UsageError for one of more tokens than the ``limit``.
        """
        limit.require_bytes(len(text.encode("utf-8", "surrogatepass")))
        for place, char in enumerate(text):
            if "\ud800" <= char <= "\udfff":
                raise TokenizerError(
                    f"the text has a lone surrogate (U+{ord(char):04X}) at character {place}",
                    "the text was not valid UTF-8; encode it again",
                )
        if self.kind == CHARACTERS:
            self._refuse_unknown(text)
        pieces = self._split(text, special, limit)
        said = self._added(pieces)
        found = Encoding(text, tuple(self._tokens(text, pieces)), said)
        return replace(found, added=f"{said}; the text has a start token of its own") if found.starts_twice else found

    def _split(self, text: str, special: bool, limit: Limit = MOST) -> Pieces:
        if self._stranger:
            return self._stranger.split(text, special, limit)
        return split(self.library, text, special, limit=limit)

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without added tokens."""
        if self._stranger:
            return [self._stranger.split(text, False).ids for text in texts]
        with library_errors(TokenizerError, "the tokenizer cannot take this text"):
            return [found.ids for found in self.library.encode_batch_fast(texts, add_special_tokens=False)]

    def _tokens(self, text: str, pieces: Pieces) -> Iterator[Token]:
        entries = {token_id: (self.shown(token_id), self.piece_bytes(token_id)) for token_id in set(pieces.ids)}
        for token_id, (start, end), added in zip(*pieces, strict=True):
            own_bytes = self.kind in _PIECE_BYTES or token_id in self.special_ids
            if token_id == self._unknown_id and start < end:
                own_bytes = False
            shown, data = entries[token_id]
            if not own_bytes:
                data = text[start:end].encode("utf-8")
            yield Token(token_id, shown, start, end, data, bool(added) or token_id in self.special_ids)

    def of_ids(self, ids: Sequence[int]) -> Encoding:
        """The tokens of these ids; with their places in the text where that is made of these very tokens."""
        text = self.decode(list(ids))
        for special in (False, True):
            with suppress(TokenizerError):
                again = self.encode(text, special=special)
                if again.ids == list(ids):
                    return replace(again, added="ids as given")
        tokens = (Token(i, self.shown(i), 0, 0, self.piece_bytes(i), i in self.special_ids) for i in ids)
        return Encoding(text, tuple(tokens), "ids as given")

    def converse(self, conversation: Conversation, *, continued: bool = False, limit: Limit = MOST) -> Encoding:
        """Tokens of a conversation, as the chat template of the model writes it, and none that it does not write.

        Raises UsageError where there is no template, and as ``ChatTemplate.render`` and ``encode`` do.
        """
        if self.chat is None:
            raise UsageError(
                "this model has no chat template: it continues texts, and takes no conversations",
                "leave out --chat, or open an Instruct model",
            )
        text, said = self.chat.render(conversation, continued=continued)
        found = self.encode(text, special=False, limit=limit)
        return replace(found, added=f"chat template: {conversation.in_words}", said=said)

    def _refuse_unknown(self, text: str) -> None:
        for place, char in enumerate(text):
            if self.id_of(char) is None:
                raise TokenizerError(
                    f"the character {printable(char)!r} at {place} is not among the {self.vocab_size} characters known",
                    f"known: {''.join(printable(c) for c in sorted(self.library.get_vocab()))}",
                )

    def _added(self, pieces: Pieces) -> str:
        """In words, the tokens that were added; special tokens that the text itself spells out were not."""
        masks = pieces.masks
        if 0 in masks:
            first, last = masks.index(0), len(masks) - masks[::-1].index(0)
        else:
            first = last = min(self._added_before, len(masks)) if masks else 0
        before, after = (
            " ".join(printable(self.library.id_to_token(one) or "") for one in ids)
            for ids in (pieces.ids[:first], pieces.ids[last:])
        )
        said = [f"{names} added {where}" for names, where in ((before, "before"), (after, "after")) if names]
        dropped = f", BPE dropout of {self.dropout:g} off" if self.dropout else ""
        return (", ".join(said) or "no start or end token added") + dropped

    @cached_property
    def _added_before(self) -> int:
        """How many tokens are put before a text, counted in a text that surely has a token of its own."""
        for written_out in self.library.get_added_tokens_decoder().values():
            masks = self._split(written_out.content, True).masks
            if 0 in masks:
                return masks.index(0)
        return 0

    def id_of(self, piece: str) -> int | None:
        """The id of a vocabulary entry; None where there is none, as for a word that is no Unicode."""
        try:
            return self.library.token_to_id(piece)
        except UnicodeEncodeError:
            return None

    @cached_property
    def _entries(self) -> list[str]:
        """The vocabulary as the library spells it, by id, without the mark of a word's beginning or inside."""
        return [(self.library.id_to_token(token_id) or "").lstrip("▁Ġ#") for token_id in range(self.vocab_size)]

    def beginning(self, text: str) -> Iterator[int]:
        """The ids of the entries that begin with a text, whether or not a space or ## comes before it, in their order.

        Only the ASCII characters that the text begins with are looked up: without any, none is found.
        """
        bare = text.lstrip("·#")
        ascii_part = bare[: next((place for place, char in enumerate(bare) if not "!" <= char <= "~"), len(bare))]
        for token_id, piece in enumerate(self._entries if ascii_part else ()):
            if piece.startswith(ascii_part) and self.shown(token_id).lstrip("·#").startswith(bare):
                yield token_id

    def decode(self, ids: list[int]) -> str:
        """The text of these ids, special tokens left out."""
        if self._stranger:
            return self._stranger.decode(ids)
        return str(self.library.decode(ids, skip_special_tokens=True))
