"""One Tokenizer class over the ``tokenizers`` library, for characters, byte-level and SentencePiece BPE, WordPiece."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import tokenizers

from tinytf.errors import CheckpointError, TokenizerError, UsageError
from tinytf.fields import Field, Fields
from tinytf.files import TOKENIZER, parse_json, read_json
from tinytf.short_repr import ShortRepr, shown
from tinytf.text.chat import ChatTemplate, Conversation, MessageSpan, Rendered, template_of
from tinytf.text.choice import NOTHING, Settings, setting_words
from tinytf.text.library import (
    DEFAULT_LIMIT,
    Limit,
    Pieces,
    UntrustedTokenizer,
    library_errors,
    split,
    untrusted_tokenizer,
)
from tinytf.text.never_produced import never_produced
from tinytf.text.printable import printable

BYTE_LEVEL, SENTENCEPIECE, CHARACTERS = "byte-level BPE", "SentencePiece BPE", "characters"
UNIGRAM, IDS = "SentencePiece Unigram", "ids"

# (type of the model, strings of which one is in the library's description of model or other parts, our name for it)
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
_IDS = 2**32
"""The library stores ids in 32 bits."""
_OWN_KEY = "tinytf"  # the key in a tokenizer.json for data that only we store
_MASKS = ("[MASK]", "<mask>")
_MOST_NAMED = 3
"""The number of entries that a note names."""
_MOST_SHOWN = 12
"""The number of tokens in the ``repr`` of an encoding."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a text. It covers ``text[start:end]``, in characters; one that the tokenizer adds covers nothing.

    ``data`` are its bytes: for a special token and for a byte-level or SentencePiece piece its own, which may be part
    of a character, with a space for ▁; for any other and for an unknown token the bytes of the text that it covers.
    ``shown`` is safe to print. The ``type`` is 1 in the second text of a pair.
    """

    id: int
    shown: str
    start: int
    end: int
    data: bytes
    special: bool
    type: int = 0

    @property
    def is_added(self) -> bool:
        """Whether the tokenizer added it to the text, where a special token that the text spells out covers that."""
        return self.special and self.start == self.end


@dataclass(frozen=True)
class Encoding(ShortRepr):
    """A text with its tokens; ``added`` lists, in words, the special tokens that the tokenizer added.

    ``said`` are the spans of the messages in the text of a conversation; the rest comes from the chat template.
    ``cut`` tokens of the text were left out.
    """

    text: str
    tokens: tuple[Token, ...]
    added: str
    said: tuple[MessageSpan, ...] | None = None
    cut: int = 0

    def repr_members(self) -> dict[str, Any]:
        """The first tokens in printable form."""
        return {"shown": " ".join(token.shown for token in self.tokens[:_MOST_SHOWN])}

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def types(self) -> list[int]:
        """The token type of each token: 0, but in the second text of a pair."""
        return [token.type for token in self.tokens]

    @property
    def roles(self) -> list[str | None] | None:
        """The role that each token of a conversation belongs to, None for the chat template; None for a plain text."""
        if self.said is None:
            return None
        roles: list[str | None] = []
        pending = list(reversed(self.said))
        for token in self.tokens:
            while pending and pending[-1].end <= token.start:
                pending.pop()
            roles.append(pending[-1].role if pending and token.end > pending[-1].start else None)
        return roles

    @property
    def starts_twice(self) -> bool:
        """Whether the text itself begins with the start token that the tokenizer adds."""
        first = self.tokens[:2]
        return len(first) == 2 and first[0].special and first[0].id == first[1].id and first[0].end == 0 < first[1].end

    def truncated(self, limit: int) -> "Encoding":
        """The encoding cut to ``limit`` tokens, keeping added end tokens; ``added`` notes the cut."""
        if len(self.tokens) <= limit:
            return self
        after = tuple(takewhile(lambda token: token.is_added, reversed(self.tokens)))[:limit]
        retained = self.tokens[: limit - len(after)] + after[::-1]
        cut = len(self.tokens) - limit
        return replace(self, tokens=retained, added=f"{self.added}, {cut_in_words(cut, limit)}", cut=cut)

    def open_ended(self, ends: Collection[int]) -> "Encoding":
        """The encoding without an added end token, for a text to continue."""
        last = self.tokens[-1] if len(self.tokens) > 1 else None
        if last is None or not (last.is_added and last.id in ends):
            return self
        return replace(self, tokens=self.tokens[:-1], added=f"{self.added}, {last.shown} removed again")


def cut_in_words(count: int, limit: int) -> str:
    """The note on a text of which ``count`` tokens were cut, so that ``limit`` remain."""
    return f"{count:,} token{'s' if count > 1 else ''} cut from the end, beyond {limit:,}"


@lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """The byte of each letter in byte-level BPE, which writes every byte as one letter (Radford et al. 2019)."""
    direct = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    remaining = [byte for byte in range(256) if byte not in set(direct)]
    return {chr(byte): byte for byte in direct} | {chr(256 + index): byte for index, byte in enumerate(remaining)}


def _byte_level_bytes(piece: str) -> bytes:
    letters = _byte_of_letter()
    return bytes(letters[letter] for letter in piece) if all(c in letters for c in piece) else piece.encode()


def _sentencepiece_bytes(piece: str) -> bytes:
    """SentencePiece writes a space as ▁, and a byte without a piece as ``<0xF0>`` (Kudo and Richardson 2018)."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()


_PIECE_BYTES: dict[str, Callable[[str], bytes]] = {
    BYTE_LEVEL: _byte_level_bytes,
    SENTENCEPIECE: _sentencepiece_bytes,
    UNIGRAM: _sentencepiece_bytes,
}


def _kind_of(library: tokenizers.Tokenizer) -> str:
    """The kind of a tokenizer, from its model and other parts. Raises TokenizerError for an unknown kind."""
    model = type(library.model).__name__
    parts = (library.normalizer, library.pre_tokenizer, library.decoder)
    description = "".join(part.__getstate__().decode("utf-8") for part in parts if part is not None)
    description += f"byte_fallback={getattr(library.model, 'byte_fallback', False)}"
    for name, marks, kind in _KINDS:
        if name == model and any(mark in description for mark in marks):
            return kind
    known = ", ".join(dict.fromkeys(name for name, _, _ in _KINDS))
    raise TokenizerError(f"a tokenizer of type {model} is not one of {known}")


class Tokenizer:
    """Text to ids and back, with offsets. Raises TokenizerError for text that it cannot encode.

    ``ends`` are the ids that end a text, ``mask`` is the name of the mask token, ``start`` the id that begins a
    text, named by ``start_source``; without them the vocabulary is searched for the usual names. ``chat`` renders
    conversations as text. ``untrusted`` does the work in another process if parts of the tokenizer are not known to
    be harmless. ``assumed`` are settings that the files leave open. ``source`` is the tokenizer of the encoder, if this
    one is of the decoder alone.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        ends: Sequence[int] = (),
        mask: str | None = None,
        start: int | None = None,
        chat: ChatTemplate | None = None,
        untrusted: UntrustedTokenizer | None = None,
        assumed: Settings = NOTHING,
        start_source: str = "the tokenizer",
        forced: int | None = None,
        source: "Tokenizer | None" = None,
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self.library = library
        self.kind = _kind_of(library)
        self.dropout = getattr(library.model, "dropout", None) or 0.0
        """The BPE dropout in its file, the share of merges skipped at random; we switch it off."""
        if self.dropout:
            library.model.dropout = None
        self._untrusted = untrusted
        if untrusted:
            untrusted.follow(library)
        self._ends = tuple(ends)
        self._masks = _MASKS if mask is None else (mask,)
        self._start, self._start_source = start, start_source
        self.forced = forced
        """The id of the token that a target is made to begin with, such as a language's."""
        self._source = source
        self.chat = chat
        self.assumed = dict(assumed)

    def __repr__(self) -> str:
        return shown(self, {"kind": self.kind, "tokens": self.vocab_size})

    @classmethod
    def load(cls, path: Path) -> Self:
        """The tokenizer of a ``tokenizer.json``. Raises CheckpointError for a missing or damaged file."""
        data = read_json(path, TOKENIZER)
        own = Fields(data, path).object(_OWN_KEY) or Fields({}, path)
        data.pop(_OWN_KEY, None)
        with library_errors(CheckpointError, f"{path} is not a tokenizer"):
            untrusted = untrusted_tokenizer(data, path)
            return cls(
                tokenizers.Tokenizer.from_str(json.dumps(data)),
                own.array("ends", int, ()),
                own.get(Field("mask", str, None)),
                own.index("start", _IDS),
                template_of(own.data.get("chat_template"), own.get(Field("names", dict, {})), path),
                untrusted,
            )

    def to_json(self, *, whole: bool = False) -> str:
        """The ``tokenizer.json`` for ``load``; if ``whole``, with the data that transformers keeps in other files.

        Raises UsageError for a tokenizer that such a file cannot hold.
        """
        if self._untrusted and not self._untrusted.in_json:
            raise UsageError(
                f"no tokenizer.json can hold the tokenizer of {self._untrusted.path}", "use the folder that it is in"
            )
        data, chat = parse_json(self.library.to_str()), self.chat if whole else None
        if whole and (self._ends or chat is not None):
            mask = None if self._masks is _MASKS else self._masks[0]
            data[_OWN_KEY] = {"ends": self._ends, "mask": mask, "start": self._start}
        if chat is not None:
            data[_OWN_KEY] |= {"chat_template": chat.stored, "names": dict(chat.names)}
        return json.dumps(data, ensure_ascii=False, indent=1)

    @property
    def files(self) -> dict[str, bytes]:
        """The contents of the files that hold it by name, where no tokenizer.json can; else none."""
        return self._untrusted.files if self._untrusted else {}

    @cached_property
    def never_produced(self) -> list[str] | None:
        """The entries that no text can produce, as far as that is proven; None for another kind than BERT's."""
        return None if self._untrusted else never_produced(self.library)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed about the tokenizer, and how many entries can never be produced so; empty if nothing."""
        if not self.assumed:
            return ()
        note = f"the tokenizer is guessed, as no file says: {', '.join(setting_words(self.assumed).split(','))}."
        if entries := self.never_produced:
            such = ", ".join(printable(entry) for entry in entries[:_MOST_NAMED])
            note += f" So read, no text produces {len(entries):,} of its {self.vocab_size:,} entries, such as {such}."
        return (f"{note} --tokenizer KEY=VALUE changes a guess",)

    def to_dict(self, note: str) -> dict[str, Any]:
        """A description as plain JSON data; ``note`` says where the vocabulary comes from."""
        entries = self.never_produced if self.assumed else None
        return {
            "kind": self.kind,
            "vocab_size": self.vocab_size,
            "note": note,
            "assumed": dict(self.assumed),
            "never_produced": None if entries is None else len(entries),
        }

    @property
    def of_source(self) -> "Tokenizer":
        """The tokenizer of what an encoder reads: this one, unless each of two stacks has its own."""
        return self._source or self

    @property
    def is_untrusted(self) -> bool:
        """Whether another process does the work."""
        return self._untrusted is not None

    @cached_property
    def vocab_size(self) -> int:
        return self.library.get_vocab_size()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, whether the tokenizer adds them or a text spells them out."""
        return frozenset(i for i, added in self.library.get_added_tokens_decoder().items() if added.special)

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        """Ids of the added tokens, which are stored as plain text, not in the spelling of pieces."""
        return frozenset(self.library.get_added_tokens_decoder())

    @cached_property
    def _unknown_id(self) -> int | None:
        if self.kind == UNIGRAM:  # the library does not give its name; encode a noncharacter to find it
            with suppress(Exception):
                pieces = self.library.model.tokenize("\U0010fffe")
                return pieces[0].id if len(pieces) == 1 else None
        name = getattr(self.library.model, "unk_token", None)
        return self.id_of(name) if name else None

    def special_id(self, *names: str) -> int | None:
        """The id of the first of ``names`` that is a special token; None if none is."""
        ids = (self.id_of(name) for name in names)
        return next((token_id for token_id in ids if token_id in self.special_ids), None)

    def is_shown(self, token_id: int) -> bool:
        """Whether ``decode`` has text for an id: neither special nor beyond the vocabulary."""
        return token_id not in self.special_ids and self.library.id_to_token(token_id) is not None

    @property
    def mask_id(self) -> int | None:
        return self.special_id(*self._masks)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """All ids that end a text, the usual one first."""
        if self._ends:
            return self._ends
        usual = self.special_id(*_ENDS)
        return () if usual is None else (usual,)

    @property
    def end_id(self) -> int | None:
        return next(iter(self.end_ids), None)

    def start(self) -> Encoding | None:
        """The start token alone, as an empty text to continue; None for a tokenizer without one.

        It is what the tokenizer puts before every text, else the start token that the model names, as transformers
        generates without an input; a token that only ends texts starts none.
        """
        encoding = self.encode("")
        before = encoding.tokens[: self._added_before]
        if before:
            after = " ".join(token.shown for token in encoding.tokens[len(before) :])
            removed = f", {after} removed again" if after else ""
            return replace(encoding, tokens=before, added=encoding.added + removed)
        start, why = self._start, f"{self._start_source} names it as the start of a text"
        if start is None or self.library.id_to_token(start) is None:
            start, why = self.special_id(*_STARTS), "it has the usual name of a start token"
        if start is None:
            return None
        token = Token(start, self.shown(start), 0, 0, self.piece_bytes(start), special=True)
        return Encoding("", (token,), f"{token.shown} added before: {why}")

    def surrounding_ids(self) -> tuple[list[int], list[int]]:
        """The ids that are added before every text, and those added after it."""
        ids = self.encode("").ids
        return ids[: self._added_before], ids[self._added_before :]

    @cached_property
    def largest_id(self) -> int:
        """The largest id that a text or its end can have. Ids may have gaps, so it may exceed the number of entries."""
        before, after = self.surrounding_ids()
        return max((*self.library.get_vocab().values(), *before, *after, *self.end_ids), default=0)

    def _piece(self, token_id: int) -> str | None:
        """A vocabulary entry as it is stored; None for an id that is none."""
        return self.library.id_to_token(token_id) if 0 <= token_id < _IDS else None

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes that a vocabulary entry stands for."""
        piece = self._piece(token_id)
        if piece is None:
            return b""
        plain = token_id in self._added_ids or self.kind not in _PIECE_BYTES
        return piece.encode("utf-8") if plain else _PIECE_BYTES[self.kind](piece)

    def shown(self, token_id: int) -> str:
        """The printable form of a vocabulary entry: ``·cat``, ``##ing``, ``\\xf0``; ``#31`` beyond the vocabulary."""
        if self._piece(token_id) is None:
            return f"#{token_id}"
        return printable(self.piece_bytes(token_id).decode("utf-8", "backslashreplace"))

    def encode(self, text: str, *, special: bool = True, limit: Limit = DEFAULT_LIMIT) -> Encoding:
        """The tokens of ``text``; ``special`` lets the tokenizer add its [CLS], [SEP] or start token, if not Rendered.

        Raises TokenizerError for a text that it cannot encode, UsageError for a text of more tokens than ``limit``.
        """
        limit.require_bytes(len(text.encode("utf-8", "surrogatepass")))
        for position, char in enumerate(text):
            if "\ud800" <= char <= "\udfff":
                raise TokenizerError(
                    f"the text has a lone surrogate (U+{ord(char):04X}) at character {position}",
                    "the text was not valid UTF-8; re-encode it",
                )
        if self.kind == CHARACTERS:
            self._refuse_unknown(text)
        pieces = self._split(text, special and not isinstance(text, Rendered), limit)
        added = self._added(pieces)
        result = Encoding(text, tuple(self.tokens_of(text, pieces)), added)
        return (
            replace(result, added=f"{added}; the text has a start token of its own") if result.starts_twice else result
        )

    def _split(self, text: str, special: bool, limit: Limit = DEFAULT_LIMIT) -> Pieces:
        if self._untrusted:
            return self._untrusted.split(text, special, limit)
        return split(self.library, text, special, limit=limit)

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without added tokens."""
        if self._untrusted:
            return [self._untrusted.split(text, False).ids for text in texts]
        with library_errors(TokenizerError, "the tokenizer cannot take this text"):
            return [encoding.ids for encoding in self.library.encode_batch_fast(texts, add_special_tokens=False)]

    def tokens_of(self, text: str, pieces: Pieces) -> Iterator[Token]:
        entries = {token_id: (self.shown(token_id), self.piece_bytes(token_id)) for token_id in set(pieces.ids)}
        for token_id, (start, end), added in zip(*pieces, strict=True):
            has_own_bytes = self.kind in _PIECE_BYTES or token_id in self.special_ids
            if token_id == self._unknown_id and start < end:
                has_own_bytes = False
            shown, data = entries[token_id]
            if not has_own_bytes:
                data = text[start:end].encode("utf-8")
            yield Token(token_id, shown, start, end, data, bool(added) or token_id in self.special_ids)

    def encode_ids(self, ids: Sequence[int]) -> Encoding:
        """The tokens of these ids, with offsets if encoding their text gives the ids again."""
        text = self.decode(list(ids))
        for special in (False, True):
            with suppress(TokenizerError):
                encoding = self.encode(text, special=special)
                if encoding.ids == list(ids):
                    return replace(encoding, added="ids as given")
        tokens = (Token(i, self.shown(i), 0, 0, self.piece_bytes(i), i in self.special_ids) for i in ids)
        return Encoding(text, tuple(tokens), "ids as given")

    def converse(
        self, conversation: Conversation, *, continued: bool = False, limit: Limit = DEFAULT_LIMIT
    ) -> Encoding:
        """The tokens of a conversation as rendered by the chat template of the model, without added tokens.

        Raises UsageError for a model without a chat template, and as ``ChatTemplate.render`` and ``encode`` do.
        """
        if self.chat is None:
            raise UsageError(
                "this model has no chat template: it continues texts and cannot take conversations",
                "leave out --chat, or open an Instruct model",
            )
        text, spans = self.chat.render(conversation, continued=continued)
        encoding = self.encode(text, special=False, limit=limit)
        return replace(encoding, added=f"chat template: {conversation.summary}", said=spans)

    def _refuse_unknown(self, text: str) -> None:
        for i, char in enumerate(text):
            if self.id_of(char) is None:
                raise TokenizerError(
                    f"the character {printable(char)!r} at {i} is not among the {self.vocab_size} characters known",
                    f"known: {''.join(printable(c) for c in sorted(self.library.get_vocab()))}",
                )

    def _added(self, pieces: Pieces) -> str:
        """The added tokens, in words; special tokens that the text itself spells out do not count."""
        masks = pieces.masks
        if 0 in masks:
            first, last = masks.index(0), len(masks) - masks[::-1].index(0)
        else:
            first = last = min(self._added_before, len(masks)) if masks else 0
        before, after = (
            " ".join(printable(self._piece(token_id) or "") for token_id in ids)
            for ids in (pieces.ids[:first], pieces.ids[last:])
        )
        parts = [f"{names} added {side}" for names, side in ((before, "before"), (after, "after")) if names]
        dropped = f", BPE dropout of {self.dropout:g} off" if self.dropout else ""
        return (", ".join(parts) or "no start or end token added") + dropped

    @cached_property
    def _added_before(self) -> int:
        """The number of tokens added before a text, counted on a text that is itself one added token."""
        for added_token in self.library.get_added_tokens_decoder().values():
            masks = self._split(added_token.content, True).masks
            if 0 in masks:
                return masks.index(0)
        return 0

    def id_of(self, piece: str) -> int | None:
        """The id of a vocabulary entry; None for an unknown piece or invalid Unicode."""
        try:
            return self.library.token_to_id(piece)
        except UnicodeEncodeError:
            return None

    @cached_property
    def _entries(self) -> list[str]:
        """The vocabulary in the library's spelling, by id, without the marks ▁, Ġ and ##."""
        return [(self.library.id_to_token(token_id) or "").lstrip("▁Ġ#") for token_id in range(self.vocab_size)]

    def ids_starting_with(self, text: str) -> Iterator[int]:
        """The ids of the entries that begin with ``text``, with or without a leading space or ##, in order.

        Only the leading ASCII characters are looked up; a text that has none yields nothing.
        """
        bare = text.lstrip("·#")
        ascii_part = bare[: next((index for index, char in enumerate(bare) if not "!" <= char <= "~"), len(bare))]
        for token_id, piece in enumerate(self._entries if ascii_part else ()):
            if piece.startswith(ascii_part) and self.shown(token_id).lstrip("·#").startswith(bare):
                yield token_id

    def decode(self, ids: list[int]) -> str:
        """The text of these ids, without special tokens."""
        if self._untrusted:
            return self._untrusted.decode(ids)
        return str(self.library.decode([i for i in ids if 0 <= i < _IDS], skip_special_tokens=True))
