"""What a decoder does with a random sequence that comes twice: previous-token and induction heads.

The measure of Olsson et al. 2022, "In-context Learning and Induction Heads".
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.analysis.heads import induction as induction_of
from tinytf.analysis.heads import previous as previous_of
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer


@dataclass(frozen=True)
class Repeats:
    """``previous`` and ``induction`` are scores of every head (layers, heads), 0…1; losses in nats a token.

    ``previous``: mean weight on the token before. ``induction``: mean weight, in the second copy, on the token that
    followed the query's token in the first. ``first_loss`` and ``second_loss`` are over either copy.
    """

    previous: Tensor
    induction: Tensor
    first_loss: float
    second_loss: float


def repeated_tokens(vocab_size: int, length: int, count: int, seed: int) -> Tensor:
    """``count`` sequences of ``length`` uniformly random ids, each twice in a row: (count, 2 · length)."""
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(0, vocab_size, (count, length), generator=generator)
    return torch.cat((once, once), dim=1)


def copy_losses(logits: Tensor, ids: Tensor, length: int) -> tuple[float, float]:
    """The mean next-token loss, in nats, within the first copy and in the second: logits (B, 2T, V), ids (B, 2T)."""
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    by_position = losses.view(len(ids), -1).mean(dim=0)  # (2T - 1,)
    return float(by_position[: length - 1].mean()), float(by_position[length:].mean())


@torch.no_grad()
def repeat_scores(model: Transformer, *, length: int = 50, count: int = 16, seed: int = 0) -> Repeats:
    """Run repeated random tokens through a decoder and score its heads.

    Raises UsageError for an encoder, or where two copies do not fit the context.
    """
    if not model.config.causal or model.head is None:
        raise UsageError("repeated sequences are scored by next-token loss, and this model predicts no next token")
    if 2 * length > model.config.context:
        raise UsageError(f"two copies of {length} tokens do not fit the context of {model.config.context}")
    ids = repeated_tokens(model.config.vocab_size, length, count, seed).to(next(model.parameters()).device)
    previous, induction = [], []

    def tap(name: str, tensor: Tensor) -> Tensor:
        if name == "weights":  # (B, H, 2T, 2T), once a layer
            previous.append(previous_of(tensor).mean(dim=0))
            induction.append(induction_of(tensor, length).mean(dim=0))
        return tensor

    training = model.training
    try:
        model.eval().use_attention("steps", tap)
        logits = model(ids)  # (B, 2T, V)
    finally:
        model.train(training).use_attention("fused")
    first_loss, second_loss = copy_losses(logits, ids, length)
    return Repeats(torch.stack(previous), torch.stack(induction), first_loss, second_loss)
