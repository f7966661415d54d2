"""Two texts that are read as one."""

from dataclasses import replace

from tinytf.errors import TokenizerError, UsageError
from tinytf.text.chat import Conversation, TextPair, Written
from tinytf.text.library import DEFAULT_LIMIT, Limit, Pieces, library_errors
from tinytf.text.tokenizer import Encoding, Tokenizer


def encode_written(tokenizer: Tokenizer, text: Written, *, special: bool = True) -> Encoding:
    """The tokens of a text, a conversation or a pair. Raises UsageError and TokenizerError as the tokenizer does."""
    if isinstance(text, Conversation):
        return tokenizer.converse(text)
    return encode_pair(tokenizer, text) if isinstance(text, TextPair) else tokenizer.encode(text, special=special)


def encode_pair(tokenizer: Tokenizer, pair: TextPair, *, limit: Limit = DEFAULT_LIMIT) -> Encoding:
    """The tokens of two texts as one, with what the tokenizer puts before, between and after them.

    The text of the encoding is the first, a new line, and the second. Raises UsageError for a tokenizer that puts
    nothing between two texts, and like ``Tokenizer.encode``.
    """
    texts = pair.first, pair.second
    for text in texts:
        tokenizer.encode(text, special=False, limit=limit)
    if tokenizer.is_untrusted:
        raise UsageError("this tokenizer runs in a process of its own, which takes no pairs", "give one text")
    with library_errors(TokenizerError, "the tokenizer cannot take these texts"):
        found = tokenizer.library.encode(*texts)
    of = list(found.sequence_ids)
    if None not in of[of.index(0) : of.index(1)]:
        raise UsageError("this tokenizer puts nothing between two texts", "give one text")
    limit.require(len(of))
    shift = len(pair.first) + 1
    offsets = [(a + shift, b + shift) if which else (a, b) for which, (a, b) in zip(of, found.offsets, strict=True)]
    text = "\n".join(texts)
    tokens = [
        replace(token, type=kind)
        for token, kind in zip(
            tokenizer.tokens_of(text, Pieces(found.ids, offsets, found.special_tokens_mask)),
            found.type_ids,
            strict=True,
        )
    ]
    parts = ["text" if which is not None else token.shown for which, token in zip(of, tokens, strict=True)]
    told = [part for n, part in enumerate(parts) if part != "text" or parts[n - 1] != "text"]
    return Encoding(text, tuple(tokens), f"a pair: {' '.join(told)}")
