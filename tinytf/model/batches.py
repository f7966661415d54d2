"""Texts of several lengths through a model together: which of them, and what fills up the shorter ones."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer

_TOKENS = {"cpu": 1024}
"""Tokens of a batch; more take memory and gain no speed."""
_TOKENS_ELSEWHERE = 16_384


def most_tokens(device: torch.device) -> int:
    """How many tokens to put into one batch."""
    return _TOKENS.get(device.type, _TOKENS_ELSEWHERE)


def batches(lengths: Sequence[int], model: Transformer) -> Iterator[list[int]]:
    """The numbers of the texts of each batch, those of like lengths together.

    Interventions and edits are made for one text, so each goes alone then. LongRoPE turns a long text by other angles
    than a short one, so the two do not go together.
    """
    most, switch = most_tokens(model.embed.tokens.weight.device), model.config.rope_switch
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


def padded(texts: Sequence[Sequence[int]], config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Ids (B, T), filled up on the right, and which of them are real (B, T); None where no token sees what is not."""
    length = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (length - len(text))] for text in texts], device=device)
    if not config.looks_ahead or all(len(text) == length for text in texts):
        return ids, None
    lengths = torch.tensor([len(text) for text in texts], device=device)
    return ids, torch.arange(length, device=device) < lengths[:, None]
