"""Windows of a corpus: consecutive tokens of a document that go through a model together, and their passes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.bulk.folder import RecordedCorpus
from tinytf.errors import TokenizerError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Tokenizer

BATCH = 8
"""Windows in one pass, where nothing else decides."""


@dataclass(frozen=True)
class Window:
    """Consecutive tokens of a document that go through the model together.

    ``own`` are the indices of the text's own tokens, without the added ones; the first of them is token ``start`` of
    document ``document``, which ``ends`` with the window or goes on.
    """

    ids: list[int]
    own: range
    document: int
    start: int
    ends: bool = True


def windows_of(
    tokenizer: Tokenizer, pieces: Iterable[tuple[str, bool]], length: int, vocab_size: int
) -> Iterator[Window]:
    """Cut documents into windows of at most ``length`` tokens; each piece says whether it ends its document.

    The tokens that the tokenizer adds to a text are added to each window. Raises UsageError if they leave no room,
    TokenizerError for a token outside a model's ``vocab_size``.
    """
    document = offset = 0
    for text, is_end in pieces:
        tokens = tokenizer.encode(text).tokens
        ids = [token.id for token in tokens]
        if max(ids, default=0) >= vocab_size:
            raise TokenizerError(f"the text has a token of id {max(ids)}, and the model knows {vocab_size:,} tokens")
        added_flags = [token.special and token.start == token.end for token in tokens]
        own_start = next((i for i, is_added in enumerate(added_flags) if not is_added), len(ids))
        own_stop = max((i + 1 for i, is_added in enumerate(added_flags) if not is_added), default=own_start)
        prefix, own_ids, suffix = ids[:own_start], ids[own_start:own_stop], ids[own_stop:]
        room = length - len(prefix) - len(suffix)
        if room < 1:
            raise UsageError(
                f"a window of {length} tokens has no room for a token of the text", "choose a longer window"
            )
        for start in range(0, len(own_ids), room):
            chunk = own_ids[start : start + room]
            own, ends = range(own_start, own_start + len(chunk)), is_end and start + room >= len(own_ids)
            yield Window([*prefix, *chunk, *suffix], own, document, offset + start, ends)
        offset = 0 if is_end else offset + len(own_ids)
        document += is_end


def recorded_windows(corpus: RecordedCorpus, tokenizer: Tokenizer, first: int) -> Iterator[Window]:
    """The windows of a recorded corpus of every token again, from row ``first`` on."""
    before, after = tokenizer.surrounding_ids()
    room = corpus.index["window"] - len(before) - len(after)
    while first < len(corpus):
        documents = corpus.documents[first : first + room]
        count = int((documents == documents[0]).sum())
        ids = [*before, *corpus.tokens[first : first + count].tolist(), *after]
        own = range(len(before), len(before) + count)
        yield Window(ids, own, int(documents[0]), int(corpus.positions[first]))
        first += count


def padded(batch: Sequence[Window]) -> Tensor:
    """The ids of windows (B, T), padded with −1."""
    length = max(len(window.ids) for window in batch)
    return torch.tensor([window.ids + [-1] * (length - len(window.ids)) for window in batch])


def run_windows(model: Transformer, ids: Tensor, last: int | None) -> None:
    """Run one pass up to layer ``last``, or None for the final norm too; padding is masked."""
    real = ids >= 0
    device = model.embed.tokens.weight.device
    mask = None if not model.config.looks_ahead or bool(real.all()) else real.to(device)
    x = model.embed(ids.clamp(min=0).to(device), None, 0, mask)  # (B, T, C)
    carried = model.carried(ids.clamp(min=0).to(device), x)
    x = model.streams(x)
    for block in model.blocks[: None if last is None else last + 1]:
        x = block(x, 0, mask, None, carried)
    if last is None:
        model.final_norm(x)
