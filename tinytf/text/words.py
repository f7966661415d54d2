"""The grammar of indices in options, verbs and addresses: numbers, ranges, positions in a text, tokens.

``2`` is a number, ``-1`` counts from the end, ``0-3`` includes both ends, ``0:3`` is a Python slice, ``0,2-4`` a list,
``*`` everything; ``cat`` is a token by its text, ``cat#2`` the second token with that text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinytf.errors import AddressError, UsageError
from tinytf.parts.row import TEXT_AXES
from tinytf.text.tokenizer import Tokenizer

NUMBERS = r"(?:\*|-?[0-9]+(?:--?[0-9]+)?(?:,-?[0-9]+(?:--?[0-9]+)?)*)"
"""The pattern for numbers of layers, heads and experts in an address."""
_MOST_DIGITS = 18  # int() refuses numbers of thousands of digits
_RANGE = re.compile(r"(-?[0-9]+)(?:-(-?[0-9]+))?")
_SLICE = re.compile(r"(-?[0-9]{1,18})?:(-?[0-9]{1,18})?(?::(-?[0-9]{1,18})?)?")
_NTH = re.compile(r"(.+)#([0-9]{1,9})", re.DOTALL)
_MODEL_HINT = "tinytf info shows what a model has"
_NUMBERS_HINT = "a number is 2 or -1, several are 0-2, 0:3, or 0,2 with a comma, and * is all"


def is_selection(word: str) -> bool:
    """Whether an index of a cell keeps its axis: a slice, a range, or ``*``."""
    return word == "*" or _SLICE.fullmatch(word) is not None or bool((match := _RANGE.fullmatch(word)) and match[2])


def numbers_in(text: str, count: int, noun: str) -> tuple[int, ...]:
    """The numbers below ``count`` in a list such as ``2``, ``0-3``, ``0,2``, ``-1``, ``1:`` or ``*``, each once.

    Raises AddressError for a number out of range or an invalid list; ``noun`` is the name of one, such as layer.
    """
    if text.strip() in ("*", "all"):
        return tuple(range(count))
    numbers: list[int] = []
    offset = 0
    for word in text.split(","):
        matches = _numbers_of_item(word.strip(), count, noun, f"the model has {_count_of(count, noun)}", _MODEL_HINT)
        if matches is None:
            fault = (
                f"{word.strip()!r} at character {offset + 1} is not a number" if word.strip() else "a number is missing"
            )
            raise AddressError(f"{text!r} is not a list of {noun}s: {fault}", _NUMBERS_HINT)
        numbers += matches
        offset += len(word) + 1
    return tuple(dict.fromkeys(numbers))


def _numbers_of_item(word: str, count: int, noun: str, available: str, hint: str) -> Sequence[int] | None:
    """The numbers of one item of a list; None for an item that is not a number, range or slice."""
    if _SLICE.fullmatch(word):
        return _slice_of(word, count, noun)
    if not (match := _RANGE.fullmatch(word)):
        return None
    too_long = next((end[:_MOST_DIGITS] + "…" for end in match.groups() if end and len(end) > _MOST_DIGITS), "")
    first, last = (0, 0) if too_long else (int(match[1]), int(match[2] or match[1]))
    out_of_range = too_long or next((str(end) for end in (last, first) if not -count <= end < count), "")
    if out_of_range:
        raise AddressError(f"there is no {noun} {out_of_range}: {available}", hint)
    if first % count > last % count:
        raise AddressError(f"{noun}s {word} run backwards", f"write them as {match[2]}-{match[1]}")
    return range(first % count, last % count + 1)


def _count_of(count: int, noun: str) -> str:
    return f"{count:,} {noun}s, 0 to {count - 1:,}" if count > 1 else f"one {noun}, 0"


def _slice_of(word: str, count: int, noun: str) -> range:
    """The numbers that a slice selects from ``count``. Raises AddressError for an empty selection."""
    start, stop, step = ((int(end) if end else None) for end in (*word.split(":"), "")[:3])
    numbers = range(0) if step == 0 else range(count)[start:stop:step]
    if not numbers:
        raise AddressError(
            f"[{word}] selects no {noun}: there are {count:,}", "0:3 selects the first three, : selects all"
        )
    return numbers


@dataclass(frozen=True)
class AxisNames:
    """Names on axes: the printable ``tokens`` of a text, the class ``labels``, and ``find`` for the vocabulary."""

    tokens: Sequence[str] = ()
    labels: Sequence[str] = ()
    find: Callable[[str], int] | None = None


def find_index(word: str, axis: str, size: int, named: AxisNames) -> int | range:
    """The index on an axis that ``word`` means, or the indices of a slice or range.

    A word is a number; on a token axis also the text of a token; on a class or vocabulary axis also a name there.
    Raises AddressError for a number out of range, an unknown token, or a token that occurs more than once.
    """
    if not word:
        raise AddressError(f"'' is no {axis}", "an index is a number, 0:3, or a token of the text")
    if word == "*":
        return range(size)
    if _SLICE.fullmatch(word):
        return _slice_of(word, size, axis)
    if (match := _RANGE.fullmatch(word)) and match[2]:
        first, last = (find_index(end, axis, size, named) for end in match.groups())
        assert isinstance(first, int)
        assert isinstance(last, int)
        if first > last:
            raise AddressError(f"[{word}] runs backwards", f"write it as {match[2]}-{match[1]}")
        return range(first, last + 1)
    if re.fullmatch(r"-?[0-9]{1,18}", word):
        number = int(word)
        if not -size <= number < size:
            raise AddressError(
                f"{axis} {number} is out of range: there are {size:,}, 0 to {size - 1:,}",
                "name a cell by numbers or by tokens of the text, such as [1,0]",
            )
        return number % size
    if axis == "label" and word in named.labels:
        return named.labels.index(word)
    if axis == "vocab" and named.find is not None:
        return named.find(word)
    if axis not in TEXT_AXES:
        raise AddressError(f"{axis} takes a number, and {word!r} is not one", "such as [3], [3,7] or [0:3,:]")
    return _position_of_token(word, named.tokens)


def as_slice(picked: int | range) -> int | slice:
    """An index or the indices of ``find_index`` to index an array with, in ascending order."""
    return picked if isinstance(picked, int) else slice(min(picked), max(picked) + 1, abs(picked.step))


def _position_of_token(word: str, shown: Sequence[str]) -> int:
    """The position of the token that ``word`` means in a text."""
    nth = None if word in shown else _NTH.fullmatch(word)
    positions = _positions_of(nth[1] if nth else word, shown, whole=nth is None or nth[1].startswith("·"))
    if not positions:
        examples = " ".join(shown[:30]) + (" …" if len(shown) > 30 else "")
        raise AddressError(f"no token is {nth[1] if nth else word!r}", f"tokens: {examples}")
    listing = ", ".join(map(str, positions))
    if nth is not None:
        if not 1 <= int(nth[2]) <= len(positions):
            raise AddressError(f"{nth[1]!r} has no occurrence {int(nth[2])}: it occurs at {listing}", "#1 is the first")
        return positions[int(nth[2]) - 1]
    if len(positions) > 1:
        raise AddressError(
            f"{word!r} occurs at {listing}", f"choose one by its number, or write {word}#2 for the second"
        )
    return positions[0]


def _positions_of(word: str, shown: Sequence[str], whole: bool) -> list[int]:
    """The positions of a token's text: exact matches if ``whole``, else without spaces, else also without case."""
    stripped = word.strip("·")
    positions = [i for i, text in enumerate(shown) if text == word] if whole else []
    positions = positions or [i for i, text in enumerate(shown) if text.strip("·") == stripped]
    return positions or [i for i, text in enumerate(shown) if text.strip("·").casefold() == stripped.casefold()]


def positions_in(words: str, shown: Sequence[str], option: str = "--positions") -> tuple[int, ...]:
    """The positions in a text that ``2``, ``0-3,7``, ``-1``, ``all`` or tokens such as ``cat,cat#2`` mean, each once.

    Raises AddressError, naming ``option``, for anything that is neither a position nor a token.
    """
    available, hint = f"the text has {_count_of(len(shown), 'token')}", "tinytf tokens numbers them"
    if words in shown or words in ("*", "all"):
        return (_position_of_token(words, shown),) if words in shown else tuple(range(len(shown)))
    positions: list[int] = []
    for word in (item.strip() for item in words.split(",")):
        if not word:
            raise AddressError(f"{option} {words!r} is not a list of positions", "write them as 2, or 0-3,7")
        numbers = _numbers_of_item(word, len(shown), "position", available, hint)
        positions += [_position_of_token(word, shown)] if numbers is None else numbers
    return tuple(dict.fromkeys(positions))


def find_token(
    tokenizer: Tokenizer, word: str, *, causal: bool, option: str = "--target", vocabulary: int | None = None
) -> int:
    """The single token for a word that continues a text: with a leading space, if the vocabulary has that.

    A space may be written as ``·``. Tokens of the model's ``vocabulary`` that the tokenizer lacks are named by number
    only. Raises UsageError, naming ``option`` and the split, for a word that is not a single token.
    """
    if re.fullmatch(r"#[0-9]{1,9}", word):
        number = int(word[1:])
        count = max(tokenizer.vocab_size, vocabulary or 0)
        if number >= count:
            raise UsageError(f"there is no token {number:,}: the vocabulary has {count:,}, 0 to {count - 1:,}")
        return number
    if not word:
        raise UsageError(f"{option} is empty", "name a token, such as cat or '#5'")
    special = tokenizer.id_of(word)
    if special is not None and special in tokenizer.special_ids:
        return special
    spellings = [word] if word[0].isspace() or not causal else [f" {word}", word]
    splits = [tokenizer.encode(text, special=False).tokens for text in spellings]
    for token in (tokens[0] for tokens in splits if len(tokens) == 1):
        if token.id in tokenizer.special_ids:
            raise UsageError(f"{option} {word!r} is not in the vocabulary: it would be {token.shown}")
        return token.id
    if "·" in word:
        return find_token(tokenizer, word.replace("·", " "), causal=causal, option=option)
    pieces = " │ ".join(token.shown for token in splits[0])
    numbers = [f"'#{number}'" for number in dict.fromkeys(token.id for token in splits[0])]
    raise UsageError(
        f"{option} {word!r} is {len(splits[0])} tokens: {pieces}" if splits[0] else f"{option} {word!r} is no token",
        "name one of them, by its text or its number: " + ", ".join(numbers[:4]),
    )
