"""What a loss asks for, read from words: the text's own next tokens, one token that is named, masked ones."""

import re
from dataclasses import replace

from tinytf.errors import UsageError
from tinytf.gradients.loss import Targets
from tinytf.text.tokenizer import Encoding, Token, Tokenizer

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def choose_targets(
    tokenizer: Tokenizer, encoding: Encoding, *, causal: bool, target: str | None = None, positions: str | None = None
) -> tuple[Encoding, Targets]:
    """The tokens to run and what they are to predict.

    A decoder predicts, at every position or at those of ``positions`` (``2``, ``0-3,7``), the token that comes next;
    with a ``target`` that token, at the last position. An encoder predicts the token ``target`` at each [MASK]; without
    one, the tokens at ``positions`` are masked and are to be found again. A target is a word as it would go on, or the
    number of a token as ``#514``.

    Raises UsageError where there is nothing to predict, for a position beyond the text, and for a target that is
    several tokens long, saying how it splits.
    """
    length = len(encoding.tokens)
    asked = None if positions is None else named_positions(positions, length)
    named = None if target is None else find_token(tokenizer, target, causal=causal)
    if causal:
        return encoding, _next_tokens(encoding, asked, named)
    masks = tuple(place for place, token in enumerate(encoding.tokens) if token.id == tokenizer.mask_id)
    if named is not None:
        places = asked or masks
        if not places:
            raise UsageError("the text has no [MASK] for the target", "write [MASK] where it belongs, or --positions 2")
        return _masked(tokenizer, encoding, places), Targets(places, (named,) * len(places))
    if asked is None:
        raise UsageError(
            "an encoder predicts masked tokens, and nothing says which",
            "mask some of the text by --positions 2, or write [MASK] and what belongs there: --target WORD",
        )
    already = [place for place in asked if place in masks]
    if already:
        raise UsageError(f"token {already[0]} is [MASK] in the text", "say what belongs there by --target WORD")
    return _masked(tokenizer, encoding, asked), Targets(asked, tuple(encoding.tokens[place].id for place in asked))


def _next_tokens(encoding: Encoding, asked: tuple[int, ...] | None, named: int | None) -> Targets:
    last = len(encoding.tokens) - 1
    if named is not None:
        places = (last,) if asked is None else asked
        return Targets(places, (named,) * len(places))
    if not last:
        raise UsageError(
            "the text is one token, and no other comes after it", "give more words, or what is to come: --target WORD"
        )
    places = tuple(range(last)) if asked is None else asked
    if last in places:
        raise UsageError(
            f"position {last} is the last one, and nothing in the text comes after it",
            f"the text's own positions are 0 to {last - 1}; or say what is to come there: --target WORD",
        )
    return Targets(places, tuple(encoding.tokens[place + 1].id for place in places))


def named_positions(words: str, length: int, option: str = "--positions") -> tuple[int, ...]:
    """The positions that ``2`` or ``0-3,7`` are, each once; UsageError says what of ``option`` is wrong."""
    found: list[int] = []
    for word in words.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"{option} {words!r} is no list of positions", "write them as 2, or 0-3,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= length:
            raise UsageError(
                f"there is no position {last}: the text has {length} tokens, 0 to {length - 1}",
                "tinytf tokens numbers them",
            )
        if first > last:
            raise UsageError(f"positions {word.strip()} run backwards")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def find_token(
    tokenizer: Tokenizer, word: str, *, causal: bool, option: str = "--target", vocabulary: int | None = None
) -> int:
    """The one token that a word is, where a text goes on: with the space before it, if that is how it is written.

    A space may be written as it is shown, ``·``. ``vocabulary`` is the model's: tokens beyond the tokenizer's, of which
    a model may have some, go by their number. UsageError says what of ``option`` is wrong, and how a word of several
    tokens splits.
    """
    if re.fullmatch(r"#[0-9]{1,9}", word):
        number = int(word[1:])
        count = max(tokenizer.vocab_size, vocabulary or 0)
        if number >= count:
            raise UsageError(f"there is no token {number:,}: the vocabulary has {count:,}, 0 to {count - 1:,}")
        return number
    if not word:
        raise UsageError(f"{option} is empty", f"name a token, such as {option} mat")
    special = tokenizer.library.token_to_id(word)
    if special is not None and special in tokenizer.special_ids:
        return special
    spelled = [word] if word[0].isspace() or not causal else [f" {word}", word]
    splits = [tokenizer.encode(text, special=False).tokens for text in spelled]
    for tokens in splits:
        if len(tokens) == 1:
            return _known(tokenizer, word, tokens[0], option)
    if "·" in word:
        return find_token(tokenizer, word.replace("·", " "), causal=causal, option=option)
    pieces = " │ ".join(token.shown for token in splits[0])
    numbers = [f"'#{number}'" for number in dict.fromkeys(token.id for token in splits[0])]
    raise UsageError(
        f"{option} {word!r} is {len(splits[0])} tokens: {pieces}" if splits[0] else f"{option} {word!r} is no token",
        "name one of them, by its text or its number: " + ", ".join(numbers[:4]),
    )


def _known(tokenizer: Tokenizer, word: str, token: Token, option: str) -> int:
    if token.id in tokenizer.special_ids:
        raise UsageError(f"{option} {word!r} is not in the vocabulary: it would be {token.shown}")
    return token.id


def _masked(tokenizer: Tokenizer, encoding: Encoding, places: tuple[int, ...]) -> Encoding:
    """The same tokens with [MASK] at ``places``."""
    mask = tokenizer.mask_id
    if mask is None:
        raise UsageError("this model's tokenizer has no [MASK]", "use a model that was trained by masking")
    hidden = {
        place: replace(encoding.tokens[place], id=mask, shown=tokenizer.shown(mask), special=True) for place in places
    }
    tokens = tuple(hidden.get(place, token) for place, token in enumerate(encoding.tokens))
    return replace(encoding, tokens=tokens)
