"""What the words of a user mean: numbers in lists and ranges, positions of a text, and tokens of a vocabulary.

The grammar of every option, verb and address: ``2``, ``-1`` from the end, ``0-3`` both ends included, ``0:3`` as Python
slices, ``0,2-4`` a list, ``*`` all of them; ``cat`` a token by its text, ``cat#2`` the second of that text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinytf.errors import AddressError, UsageError
from tinytf.text.tokenizer import Tokenizer

NUMBERS = r"(?:\*|-?[0-9]+(?:--?[0-9]+)?(?:,-?[0-9]+(?:--?[0-9]+)?)*)"
"""The numbers of layers, heads and experts in an address."""
_DIGITS = 18  # int() refuses thousands of them
_RANGE = re.compile(r"(-?[0-9]+)(?:-(-?[0-9]+))?")
_SLICE = re.compile(r"(-?[0-9]{1,18})?:(-?[0-9]{1,18})?(?::(-?[0-9]{1,18})?)?")
_NTH = re.compile(r"(.+)#([0-9]{1,9})", re.DOTALL)
_MODEL = "tinytf info shows what a model has"
_FORMS = "a number is 2 or -1, several are 0-2, 0:3, or 0,2 with a comma, and * is all"


def several(word: str) -> bool:
    """Whether a word of a cell keeps its axis: a slice, a range, or all of it."""
    return word == "*" or _SLICE.fullmatch(word) is not None or bool((found := _RANGE.fullmatch(word)) and found[2])


def numbers_in(text: str, count: int, what: str) -> tuple[int, ...]:
    """The numbers that a list such as ``2``, ``0-3``, ``0,2``, ``-1``, ``1:`` or ``*`` means, each once, of ``count``.

    ``what`` they are (layers of a model) is for the AddressError of one that is not there, or is no number.
    """
    if text.strip() in ("*", "all"):
        return tuple(range(count))
    found: list[int] = []
    at = 0
    for word in text.split(","):
        part = _numbers(word.strip(), count, what, f"the model has {_counted(count, what)}", _MODEL)
        if part is None:
            said = f"{word.strip()!r} at character {at + 1} is none" if word.strip() else "one is missing"
            raise AddressError(f"{text!r} is not a list of {what}s: {said}", _FORMS)
        found += part
        at += len(word) + 1
    return tuple(dict.fromkeys(found))


def _numbers(word: str, count: int, what: str, there: str, hint: str) -> Sequence[int] | None:
    """The numbers of one item of a list; None for a word that is none."""
    if _SLICE.fullmatch(word):
        return _sliced(word, count, what)
    if not (ends := _RANGE.fullmatch(word)):
        return None
    long = next((end[:_DIGITS] + "…" for end in ends.groups() if end and len(end) > _DIGITS), "")
    first, last = (0, 0) if long else (int(ends[1]), int(ends[2] or ends[1]))
    beyond = long or next((str(end) for end in (last, first) if not -count <= end < count), "")
    if beyond:
        raise AddressError(f"there is no {what} {beyond}: {there}", hint)
    if first % count > last % count:
        raise AddressError(f"{what}s {word} run backwards", f"write them as {ends[2]}-{ends[1]}")
    return range(first % count, last % count + 1)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}s, 0 to {count - 1:,}" if count > 1 else f"one {what}, 0"


def _sliced(word: str, count: int, what: str) -> range:
    """The places that a slice leaves."""
    start, stop, step = ((int(end) if end else None) for end in (*word.split(":"), "")[:3])
    kept = range(0) if step == 0 else range(count)[start:stop:step]
    if not kept:
        raise AddressError(f"[{word}] leaves no {what}: there are {count:,}", "0:3 is the first three, : is all")
    return kept


@dataclass(frozen=True)
class Named:
    """What has a name on some axis: the ``tokens`` of a text as they are shown, the classes, and the vocabulary."""

    tokens: Sequence[str] = ()
    labels: Sequence[str] = ()
    find: Callable[[str], int] | None = None


def pick(word: str, axis: str, size: int, named: Named) -> int | range:
    """The place on an axis that a word of a cell means, or the places where it is a slice or a range.

    A number, on axes of tokens a token's text, on those of classes and of the vocabulary one of their names. Raises
    AddressError for a number out of range, an unknown token, or a token that occurs more than once.
    """
    if not word:
        raise AddressError(f"'' is no {axis}", "a word is a number, 0:3, or a token of the text")
    if word == "*":
        return range(size)
    if _SLICE.fullmatch(word):
        return _sliced(word, size, axis)
    if (ends := _RANGE.fullmatch(word)) and ends[2]:
        first, last = (pick(end, axis, size, named) for end in ends.groups())
        assert isinstance(first, int)
        assert isinstance(last, int)
        if first > last:
            raise AddressError(f"[{word}] runs backwards", f"write it as {ends[2]}-{ends[1]}")
        return range(first, last + 1)
    if re.fullmatch(r"-?[0-9]{1,18}", word):
        number = int(word)
        if not -size <= number < size:
            raise AddressError(
                f"{axis} {number} is out of range: there are {size:,}, 0 to {size - 1:,}",
                "a cell is named by numbers or by tokens of the text, such as [1,0]",
            )
        return number % size
    if axis == "label" and word in named.labels:
        return named.labels.index(word)
    if axis == "vocab" and named.find is not None:
        return named.find(word)
    if axis not in ("token", "query", "key"):
        raise AddressError(f"{axis} takes a number, and {word!r} is not one", "such as [3], [3,7] or [0:3,:]")
    return _token(word, named.tokens)


def _token(word: str, shown: Sequence[str]) -> int:
    """The position of the token of a text that a word means."""
    nth = None if word in shown else _NTH.fullmatch(word)
    loose = _alike(nth[1] if nth else word, shown, whole=nth is None or nth[1].startswith("·"))
    if not loose:
        some = " ".join(shown[:30]) + (" …" if len(shown) > 30 else "")
        raise AddressError(f"no token is {nth[1] if nth else word!r}", f"tokens: {some}")
    places = ", ".join(map(str, loose))
    if nth is not None:
        if not 1 <= int(nth[2]) <= len(loose):
            raise AddressError(f"{nth[1]!r} has no occurrence {int(nth[2])}: it occurs at {places}", "#1 is the first")
        return loose[int(nth[2]) - 1]
    if len(loose) > 1:
        raise AddressError(
            f"{word!r} occurs at {places}", f"choose one by its number, or write {word}#2 for the second"
        )
    return loose[0]


def _alike(word: str, shown: Sequence[str], whole: bool) -> list[int]:
    """The tokens that are this text: with its space and case if any are and ``whole``, else without."""
    bare = word.strip("·")
    same = [i for i, text in enumerate(shown) if text == word] if whole else []
    same = same or [i for i, text in enumerate(shown) if text.strip("·") == bare]
    return same or [i for i, text in enumerate(shown) if text.strip("·").casefold() == bare.casefold()]


def positions_in(words: str, shown: Sequence[str], option: str = "--positions") -> tuple[int, ...]:
    """The positions of a text that ``2``, ``0-3,7``, ``-1``, ``all`` or tokens such as ``cat,cat#2`` mean, each once.

    Raises AddressError, naming ``option``, for what is no position and no token.
    """
    there, hint = f"the text has {_counted(len(shown), 'token')}", "tinytf tokens numbers them"
    if words in shown or words in ("*", "all"):
        return (_token(words, shown),) if words in shown else tuple(range(len(shown)))
    found: list[int] = []
    for word in (one.strip() for one in words.split(",")):
        if not word:
            raise AddressError(f"{option} {words!r} is not a list of positions", "write them as 2, or 0-3,7")
        numbers = _numbers(word, len(shown), "position", there, hint)
        found += [_token(word, shown)] if numbers is None else numbers
    return tuple(dict.fromkeys(found))


def find_token(
    tokenizer: Tokenizer, word: str, *, causal: bool, option: str = "--target", vocabulary: int | None = None
) -> int:
    """The one token for a word that continues a text: with the space before it, if the vocabulary has it so.

    A space may be written as shown, ``·``. Tokens of the model's ``vocabulary`` beyond the tokenizer's have a number
    only. Raises UsageError, naming ``option``, for what is not one token, with how a word of several tokens splits.
    """
    if re.fullmatch(r"#[0-9]{1,9}", word):
        number = int(word[1:])
        count = max(tokenizer.vocab_size, vocabulary or 0)
        if number >= count:
            raise UsageError(f"there is no token {number:,}: the vocabulary has {count:,}, 0 to {count - 1:,}")
        return number
    if not word:
        raise UsageError(f"{option} is empty", "name a token, such as mat or '#514'")
    special = tokenizer.id_of(word)
    if special is not None and special in tokenizer.special_ids:
        return special
    spelled = [word] if word[0].isspace() or not causal else [f" {word}", word]
    splits = [tokenizer.encode(text, special=False).tokens for text in spelled]
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
