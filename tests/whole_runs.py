"""Two models that differ in their tensors, run whole: what blame and budgets have to find with less work."""

import copy
from collections.abc import Sequence

import torch

from tinytf.model.transformer import Transformer

TEXTS = ["3 14 15 9 2 6 5", "30 1 8"]


def near(model: Transformer, by: float = 0.1, seed: int = 3) -> Transformer:
    """A copy whose every tensor is another one."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += by * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return other


@torch.no_grad()
def with_tensor(scratch: Transformer, model: Transformer, other: Transformer, path: str) -> Transformer:
    """The model with one tensor of the other in it, in the memory of ``scratch``."""
    scratch.load_state_dict(model.state_dict())
    scratch.get_parameter(path).copy_(other.get_parameter(path))
    return scratch


@torch.no_grad()
def apart(first: Transformer, other: Transformer, texts: Sequence[str] = TEXTS) -> tuple[float, float, float]:
    """KL and loss a token and the difference of the margins a text, by whole runs in float64."""
    kl = loss = margin = 0.0
    tokens = targets = 0
    for text in texts:
        ids = torch.tensor([[int(word) for word in text.split()]])
        reads = slice(0, 1) if first.config.head.row_read == 0 else slice(None)
        p, q = (model(ids)[0, reads].double().log_softmax(-1) for model in (first, other))
        kl += float((p.exp() * (p - q)).sum())
        tokens += len(p)
        if first.config.head.kind == "lm":
            loss += sum(float(p[i, j] - q[i, j]) for i, j in enumerate(ids[0, 1:].tolist()))
            targets += ids.shape[1] - 1
        one, two = p[-1].topk(2).indices.tolist()
        margin += float((q[-1, one] - q[-1, two]) - (p[-1, one] - p[-1, two]))
    return kl / tokens, loss / max(1, targets), margin / len(texts)
