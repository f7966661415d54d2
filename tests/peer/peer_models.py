"""The same tiny random GPT-2 and Llama weights in tinytf and in TransformerLens 4, through transformers' own model."""

import os
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from architectures import encoding_of
from reference import FAMILIES, pair
from torch import Tensor, nn

from tinytf.model.transformer import Transformer
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

PEERS = ("gpt2", "llama", "llama, biases everywhere", "llama, linear scaling and tied")
"""Names of models of ``reference.FAMILIES``: learned positions and LayerNorm, rotary and RMSNorm, grouped heads."""
IDS = (3, 14, 15, 9, 2, 6, 5, 3, 5, 8)


@dataclass(frozen=True)
class Peers:
    """One model in both libraries; ``theirs`` is TransformerLens' bridge around transformers' model."""

    ours: Transformer
    theirs: Any

    def trace(self) -> Trace:
        return record(self.ours, encoding_of(IDS))

    def cached(self) -> tuple[Tensor, Any]:
        """Their logits (T, V) and their ActivationCache, without its batch axis."""
        with torch.no_grad():
            logits, cache = self.theirs.run_with_cache(torch.tensor([IDS]), remove_batch_dim=True)
        return logits[0] if logits.dim() == 3 else logits, cache


@cache
def peers(family: str) -> Peers:
    """Both models of ``family``, whose logits have been compared."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    both = pair(family)
    found = Peers(both.ours, bridged(both.theirs))
    ids = torch.tensor([IDS])
    with torch.no_grad():
        apart = float((found.theirs(ids) - found.ours(ids)).abs().max())
    assert apart < 1e-4, f"{family}: the logits of the two libraries differ by {apart:.1e}"
    return found


def bridged(model: Any) -> nn.Module:
    """TransformerLens' bridge around a model of transformers, as TransformerBridge.boot_transformers builds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

        kind = type(model).__name__
        model.config.architectures = [kind]
        return build_bridge_from_module(model.eval().requires_grad_(False), kind, hf_config=model.config)


assert set(PEERS) <= set(FAMILIES)
