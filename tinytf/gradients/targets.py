"""Read the targets of a loss from words: the text's own next tokens, one named token, or masked tokens."""

import re
from dataclasses import replace

from tinytf.errors import UsageError
from tinytf.gradients.loss import Targets
from tinytf.text.tokenizer import Encoding, Tokenizer

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def choose_targets(
    tokenizer: Tokenizer, encoding: Encoding, *, causal: bool, target: str | None = None, positions: str | None = None
) -> tuple[Encoding, Targets]:
    """The tokens to run, and what to predict from them.

    A decoder predicts the next token at every position, or at ``positions`` (``2``, ``0-3,7``); with a ``target``,
    that token at the last position. An encoder predicts the ``target`` at each [MASK]; without one, the tokens at
    ``positions`` are masked and predicted. A target is a word as the text would continue, or a token's number as
    ``#514``.

    Raises UsageError where there is nothing to predict, for a position beyond the text, and for a target of several
    tokens, with how it splits.
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
            "mask tokens with --positions 2, or write [MASK] and name its token with --target WORD",
        )
    already = [place for place in asked if place in masks]
    if already:
        raise UsageError(f"token {already[0]} is already [MASK] in the text", "name its token with --target WORD")
    return _masked(tokenizer, encoding, asked), Targets(asked, tuple(encoding.tokens[place].id for place in asked))


def _next_tokens(encoding: Encoding, asked: tuple[int, ...] | None, named: int | None) -> Targets:
    last = len(encoding.tokens) - 1
    if named is not None:
        places = (last,) if asked is None else asked
        return Targets(places, (named,) * len(places))
    if not last:
        raise UsageError(
            "the text is one token, and none comes after it", "give more words, or the next token: --target WORD"
        )
    places = tuple(range(last)) if asked is None else asked
    if last in places:
        raise UsageError(
            f"position {last} is the last one, and no token comes after it",
            f"choose from 0 to {last - 1}, or name the next token: --target WORD",
        )
    return Targets(places, tuple(encoding.tokens[place + 1].id for place in places))


def named_positions(words: str, length: int, option: str = "--positions") -> tuple[int, ...]:
    """The positions in ``2`` or ``0-3,7``, each once; UsageError says what is wrong with ``option``."""
    found: list[int] = []
    for word in words.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"{option} {words!r} is not a list of positions", "write them as 2, or 0-3,7")
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
        raise UsageError(f"{option} is empty", f"name a token, such as {option} mat")
    special = tokenizer.library.token_to_id(word)
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


def _masked(tokenizer: Tokenizer, encoding: Encoding, places: tuple[int, ...]) -> Encoding:
    """The same tokens with [MASK] at ``places``."""
    mask = tokenizer.mask_id
    if mask is None:
        raise UsageError("this model's tokenizer has no [MASK]", "use a model trained on masked tokens")
    hidden = {
        place: replace(encoding.tokens[place], id=mask, shown=tokenizer.shown(mask), special=True) for place in places
    }
    tokens = tuple(hidden.get(place, token) for place, token in enumerate(encoding.tokens))
    return replace(encoding, tokens=tokens)
