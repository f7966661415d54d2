"""Experts in training: how busy each is, and a loss that evens that out."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tinytf.look.experts import chosen_experts, expert_layers, routers
from tinytf.model.transformer import Transformer, evaluating
from tinytf.training.data.examples import Batch


def _loads(model: Transformer, routed: Mapping[int, Tensor], mask: Tensor | None) -> dict[int, tuple[Tensor, Tensor]]:
    """Of each layer, the share of choices (E,) and the mean probability (E,) of each expert, over the real tokens."""
    loads = {}
    for layer, said in routed.items():
        chosen, probable = chosen_experts(model, layer, said).float(), said.float().softmax(-1)
        if mask is not None:
            chosen, probable = chosen[mask.bool()], probable[mask.bool()]
        chosen, probable = chosen.flatten(0, -2), probable.flatten(0, -2)  # (N, E)
        loads[layer] = chosen.mean(0) / model.config.at(layer).experts_per_token, probable.mean(0)
    return loads


def imbalance(model: Transformer, routed: Mapping[int, Tensor], mask: Tensor | None) -> Tensor:
    """E · Σ share · probability of the experts, summed over layers: 1 a layer if all are equally busy.

    Fedus et al. 2022, "Switch Transformers", equation 4; the gradient goes through the probabilities.
    """
    return torch.stack([len(share) * (share * probable).sum()
                        for share, probable in _loads(model, routed, mask).values()]).sum()  # fmt: skip


@torch.no_grad()
def expert_shares(model: Transformer, batch: Batch) -> list[list[float]] | None:
    """The share of the choices of each layer that each expert gets on a batch; None without experts."""
    if not (layers := expert_layers(model.config)):
        return None
    batch = batch.to(model.embed.tokens.weight.device)
    with evaluating(model), routers(model, layers) as routed:
        read = model.read(batch.source, batch.source_mask)
        model.hidden(batch.ids, padding_mask=batch.padding_mask, source=read)
    loads = _loads(model, routed, batch.padding_mask).values()
    return [[float(f"{share:.4g}") for share in shares.tolist()] for shares, _ in loads]
