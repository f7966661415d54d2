"""A corpus as windows of token ids, one after the other, for who wants to look at some of it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tinytf.errors import TokenizerError, UsageError
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.corpus import find_files
from tinytf.training.stream import anywhere


def text_windows(
    source: Sequence[Path] | str,
    tokenizer: Tokenizer,
    vocab_size: int,
    length: int,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
) -> Iterator[Tensor]:
    """Windows of ``length`` tokens of a text, or of files and folders, each between ``before`` and ``after``: ids (T,).

    What is left at the end is left out, but where it is all there is. A piece of a file is held at a time; between two
    a word may be cut. Errors as of ``find_files`` and of the tokenizer, and UsageError for a text of a single token.
    """
    pieces = find_files(source).whole_files().documents().texts(anywhere)
    return _windows(pieces, tokenizer, vocab_size, length, before, after)


def _windows(
    pieces: Iterable[str],
    tokenizer: Tokenizer,
    vocab_size: int,
    length: int,
    before: Sequence[int],
    after: Sequence[int],
) -> Iterator[Tensor]:
    held: list[int] = []
    none = True
    for piece in pieces:
        held += _known(tokenizer.encode(piece, special=False).ids, tokenizer, vocab_size)
        while len(held) >= length:
            yield torch.tensor([*before, *held[:length], *after])
            held, none = held[length:], False
    if none and len(before) + len(held) + len(after) < 2:
        raise UsageError("the text is a single token, which can look at nothing but itself", "give a longer one")
    if none:
        yield torch.tensor([*before, *held, *after])


def _known(ids: list[int], tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    for token_id in ids:
        if token_id >= vocab_size:
            raise TokenizerError(
                f"token {tokenizer.shown(token_id)} has id {token_id}, and the model knows {vocab_size} tokens"
            )
    return ids
