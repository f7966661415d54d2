"""A corpus as consecutive windows of token ids."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tinytf.errors import TokenizerError, UsageError
from tinytf.text.corpus import find_files
from tinytf.text.stream import cut_anywhere
from tinytf.text.tokenizer import Tokenizer


def text_windows(
    source: Sequence[Path] | str,
    tokenizer: Tokenizer,
    vocab_size: int,
    length: int,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
) -> Iterator[Tensor]:
    """Windows of ``length`` tokens of a text, or of files and folders, each between ``before`` and ``after``: ids (T,).

    An incomplete last window is dropped, unless it is the only one. One piece of a file is in memory at a time; a word
    may be cut between two pieces. Raises UsageError as ``find_files`` does and for a text of a single token,
    TokenizerError for a text that the tokenizer or a model of ``vocab_size`` does not know.
    """
    pieces = find_files(source).whole_files().documents().texts(cut_anywhere)

    def windows() -> Iterator[Tensor]:
        pending: list[int] = []
        is_only = True
        for piece in pieces:
            pending += known_ids(tokenizer, piece, vocab_size)
            while len(pending) >= length:
                yield torch.tensor([*before, *pending[:length], *after])
                pending, is_only = pending[length:], False
        if is_only and len(before) + len(pending) + len(after) < 2:
            raise UsageError("the text is a single token, which can only attend to itself", "give a longer text")
        if is_only:
            yield torch.tensor([*before, *pending, *after])

    return windows()


def known_ids(tokenizer: Tokenizer, text: str, vocab_size: int) -> list[int]:
    """The ids of a text, without added tokens. Raises TokenizerError for one that a model of ``vocab_size`` lacks."""
    ids = tokenizer.encode(text, special=False).ids
    if (largest := max(ids, default=0)) >= vocab_size:
        token = tokenizer.shown(largest)
        raise TokenizerError(f"token {token} has id {largest}, and the model knows {vocab_size:,} tokens")
    return ids
