"""Two tokenizers over the same texts: where they first split one differently, and how often."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tinytf.report import Data, Report, text_data
from tinytf.text.chat import Written
from tinytf.text.pair import encode_written
from tinytf.text.tokenizer import Encoding, Token, Tokenizer

Key = tuple[int, bytes]


@dataclass(frozen=True)
class Split(Data):
    """A text that two tokenizers split or number differently, from token ``first`` up to ``stops`` of each.

    ``number`` counts the texts from 1, ``place`` the characters from 0.
    """

    number: int
    place: int
    first: int
    stops: tuple[int, int]
    encodings: tuple[Encoding, Encoding]

    def to_dict(self) -> dict[str, Any]:
        texts = [text_data(encoding) for encoding in self.encodings]
        return {"number": self.number, "place": self.place, "first": self.first, "stops": self.stops, "texts": texts}


@dataclass(frozen=True, kw_only=True)
class Splits(Report):
    """The number of texts with other pieces (``resplit``), or with the same pieces and other ids (``renumbered``).

    ``tokens`` counts each tokenizer's tokens in all texts, without the ``added`` ones that it puts around each.
    ``first`` is the first text with other pieces; if there is none, the first with other ids.
    """

    KIND = "tokenizers"

    names: tuple[str, str]
    tokenizers: tuple[Tokenizer, Tokenizer]
    texts: int
    characters: int
    tokens: tuple[int, int]
    added: tuple[str, str]
    resplit: int
    renumbered: int
    first: Split | None

    @property
    def holds(self) -> bool:
        """Whether all texts have the same ids, and both tokenizers add the same tokens."""
        return self.first is None and self.added[0] == self.added[1]

    def fields(self) -> dict[str, Any]:
        tokenizers = [
            {"name": name, "kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size}
            for name, tokenizer in zip(self.names, self.tokenizers, strict=True)
        ]
        counts = self.members("texts", "characters", "tokens", "added", "resplit", "renumbered", "first", "holds")
        return {"tokenizers": tokenizers, **counts}


def splits(
    names: tuple[str, str],
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Iterable[Written],
    on_characters: Callable[[int], None] = lambda done: None,
) -> Splits:
    """Go through ``texts`` with both tokenizers; ``on_characters`` receives the number of characters read.

    Raises the errors of ``Tokenizer.encode`` and ``Tokenizer.converse``.
    """
    first_splits: dict[bool, Split] = {}
    counts, tokens, number, characters = {True: 0, False: 0}, [0, 0], 0, 0
    for number, text in enumerate(texts, 1):
        a, b = (encode_written(tokenizer, text, special=False) for tokenizer in tokenizers)
        tokens = [tokens[0] + len(a.tokens), tokens[1] + len(b.tokens)]
        characters += len(a.text)
        on_characters(characters)
        if a.ids == b.ids and a.text == b.text:
            continue
        keys = [_key(token) for token in a.tokens], [_key(token) for token in b.tokens]
        is_resplit = keys[0] != keys[1]
        counts[is_resplit] += 1
        if is_resplit not in first_splits:
            first_splits[is_resplit] = _first(number, (a, b), *(keys if is_resplit else (a.ids, b.ids)))
    return Splits(
        names=names, tokenizers=tokenizers, texts=number, characters=characters, tokens=(tokens[0], tokens[1]),
        added=(_added(tokenizers[0]), _added(tokenizers[1])),
        resplit=counts[True], renumbered=counts[False], first=first_splits.get(True, first_splits.get(False)),
    )  # fmt: skip


def _added(tokenizer: Tokenizer) -> str:
    """The tokens that are put around every text, in words."""
    around = zip(tokenizer.surrounding_ids(), ("before", "after"), strict=True)
    words = [f"{' '.join(map(tokenizer.shown, ids))} {side}" for ids, side in around if ids]
    return ", ".join(words) or "nothing"


def _key(token: Token) -> Key:
    """A token's identity in any vocabulary: its end, and its bytes without leading spaces."""
    return token.end, token.data.lstrip(b" ") or token.data


def _first(number: int, encodings: tuple[Encoding, Encoding], a: list[Any], b: list[Any]) -> Split:
    """The first difference, up to the next token of both that ends at the same character."""
    first = next((i for i, (own, theirs) in enumerate(zip(a, b, strict=False)) if own != theirs), min(len(a), len(b)))
    ends = [[token.end for token in encoding.tokens[first:]] for encoding in encodings]
    common = next((end for end in ends[0] if end in ends[1]), None)
    stops = [first + (len(side) if common is None else side.index(common) + 1) for side in ends]
    character = min((side.tokens[first].start for side in encodings if first < len(side.tokens)), default=0)
    return Split(number, character, first, (stops[0], stops[1]), encodings)
