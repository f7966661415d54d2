"""Two tokenizers over the same texts: where they first split one differently, and how often."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tinytf.report import Data, Report, text_data
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding, Token, Tokenizer

Key = tuple[int, bytes]


@dataclass(frozen=True)
class Split(Data):
    """A text that two tokenizers split differently, or give other ids to: from token ``first`` up to ``stops`` of each.

    ``number`` counts the texts from 1, ``place`` the characters from 0.
    """

    number: int
    place: int
    first: int
    stops: tuple[int, int]
    encodings: tuple[Encoding, Encoding]

    def to_dict(self) -> dict[str, Any]:
        both = [text_data(one) for one in self.encodings]
        return {"number": self.number, "place": self.place, "first": self.first, "stops": self.stops, "texts": both}


@dataclass(frozen=True, kw_only=True)
class Splits(Report):
    """``resplit`` texts have other pieces, ``renumbered`` ones the same pieces with other ids.

    ``tokens`` are those of each tokenizer in all texts, without the ``added`` ones that it puts around each. ``first``
    is the first text with other pieces; where there is none, the first with other ids.
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
        """Whether all texts have the same ids, and the same ones are added."""
        return self.first is None and self.added[0] == self.added[1]

    def fields(self) -> dict[str, Any]:
        both = [
            {"name": name, "kind": one.kind, "vocab_size": one.vocab_size}
            for name, one in zip(self.names, self.tokenizers, strict=True)
        ]
        counts = self.members("texts", "characters", "tokens", "added", "resplit", "renumbered", "first", "holds")
        return {"tokenizers": both, **counts}


def splits(
    names: tuple[str, str],
    tokenizers: tuple[Tokenizer, Tokenizer],
    texts: Iterable[Written],
    on_characters: Callable[[int], None] = lambda done: None,
) -> Splits:
    """Go through ``texts`` with both tokenizers; ``on_characters`` is told how many were read.

    Raises as ``Tokenizer.encode`` and ``Tokenizer.converse`` do.
    """
    found: dict[bool, Split] = {}
    counts, tokens, number, characters = {True: 0, False: 0}, [0, 0], 0, 0
    for number, text in enumerate(texts, 1):
        a, b = (_encoded(one, text) for one in tokenizers)
        tokens = [tokens[0] + len(a.tokens), tokens[1] + len(b.tokens)]
        characters += len(a.text)
        on_characters(characters)
        if a.ids == b.ids and a.text == b.text:
            continue
        keys = [_key(one) for one in a.tokens], [_key(one) for one in b.tokens]
        other_pieces = keys[0] != keys[1]
        counts[other_pieces] += 1
        if other_pieces not in found:
            found[other_pieces] = _first(number, (a, b), *(keys if other_pieces else (a.ids, b.ids)))
    return Splits(
        names=names, tokenizers=tokenizers, texts=number, characters=characters, tokens=(tokens[0], tokens[1]),
        added=(_added(tokenizers[0]), _added(tokenizers[1])),
        resplit=counts[True], renumbered=counts[False], first=found.get(True, found.get(False)),
    )  # fmt: skip


def _encoded(tokenizer: Tokenizer, text: Written) -> Encoding:
    return tokenizer.encode(text, special=False) if isinstance(text, str) else tokenizer.converse(text)


def _added(tokenizer: Tokenizer) -> str:
    """In words, the tokens that are put around every text."""
    sides = zip(tokenizer.around(), ("before", "after"), strict=True)
    said = [f"{' '.join(map(tokenizer.shown, ids))} {where}" for ids, where in sides if ids]
    return ", ".join(said) or "nothing"


def _key(token: Token) -> Key:
    """What a token is in any vocabulary: where it ends, and its bytes without spaces before them."""
    return token.end, token.data.lstrip(b" ") or token.data


def _first(number: int, encodings: tuple[Encoding, Encoding], a: list[Any], b: list[Any]) -> Split:
    """The first difference, and where both have a token that ends at the same character again."""
    first = next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
    ends = [[token.end for token in one.tokens[first:]] for one in encodings]
    common = next((end for end in ends[0] if end in ends[1]), None)
    stops = [first + (len(one) if common is None else one.index(common) + 1) for one in ends]
    place = min((one.tokens[first].start for one in encodings if first < len(one.tokens)), default=0)
    return Split(number, place, first, (stops[0], stops[1]), encodings)
