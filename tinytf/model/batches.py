"""Batches of texts of several lengths: which texts go together, and the padding of the shorter ones."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer

_TOKENS = {"cpu": 1024}
"""Tokens in a batch by kind of device; more take memory and gain no speed."""
_TOKENS_ELSEWHERE = 16_384


def most_tokens(device: torch.device) -> int:
    """The most tokens to put into one batch."""
    return _TOKENS.get(device.type, _TOKENS_ELSEWHERE)


def batches(lengths: Sequence[int], model: Transformer, most: int | None = None) -> Iterator[list[int]]:
    """Yield batches as indices of texts, with texts of similar lengths together, and at most ``most`` tokens in each.

    With interventions or edits, which are made for one text, every text goes alone. Texts that LongRoPE turns by
    different angles, below and above its switch, do not go together.
    """
    usual, switch = most_tokens(model.embed.tokens.weight.device), model.config.rope_switch
    most = usual if most is None else min(most, usual)
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[number]
        turned = batch and lengths[batch[-1]] <= switch < length
        if batch and (model.exchanged or turned or (len(batch) + 1) * length > most):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def typed(texts: Sequence[Sequence[int]], device: torch.device) -> Tensor | None:
    """Token types (B, T) of some texts, 0 on the right of the shorter ones; None where all are 0."""
    if not any(map(any, texts)):
        return None
    length = max(map(len, texts))
    return torch.tensor([[*types, *[0] * (length - len(types))] for types in texts], device=device)


def padded(texts: Sequence[Sequence[int]], config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Ids (B, T), padded on the right, and the padding mask (B, T); None if no token sees padding."""
    length = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (length - len(text))] for text in texts], device=device)
    if not config.looks_ahead or all(len(text) == length for text in texts):
        return ids, None
    lengths = torch.tensor([len(text) for text in texts], device=device)
    return ids, torch.arange(length, device=device) < lengths[:, None]
