"""What the words of a user mean: positions of a text, and tokens of a vocabulary."""

import re

from tinytf.errors import UsageError
from tinytf.text.tokenizer import Tokenizer

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


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
