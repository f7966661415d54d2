"""Every name of TransformerLens' cache is answered with its tensor, values and axes, or refused."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
import torch
from peer_models import IDS, bridged
from reference import pair

from tinytf.errors import AddressError
from tinytf.trace.record import record

from architectures import encoding_of  # isort: skip

FAMILIES = {
    "gpt2": 1, "llama": 8, "llama, biases everywhere": 8, "llama, linear scaling and tied": 8, "llama 3": 8,
    "mistral": 8,
    "qwen2": 8, "qwen3": 8, "gemma 2": 8, "gemma 3": 8, "phi": 8, "pythia": 8, "olmo 2": 38, "opt": 4,
    "bert with a masked head": 5, "roberta": 5, "mixtral": 14,
}  # fmt: skip
"""With how many names of three layers are refused: positions by number, cosines and sines, chosen experts by number."""
NOT_BY_HEAD = ("opt", "bert with a masked head", "roberta")
"""Families whose attention TransformerLens does not split by heads."""
WITHIN = 1e-4


def compared(family: str) -> tuple[Sequence[str], Sequence[str]]:
    """The names of a cache that agree, and those that are refused; AssertionError for any other."""
    both = pair(family)
    theirs = bridged(both.theirs)
    trace = record(both.ours, encoding_of(IDS))
    with torch.no_grad():
        _, cache = theirs.run_with_cache(torch.tensor([IDS]), remove_batch_dim=True)
        found = dict(cache.items())
        for kind in ("hook_mlp_in", "attn_result", "split_qkv_input", "attn_in"):  # hooks that are off unless asked for
            asked = bridged(both.theirs)
            with suppress(NotImplementedError):
                getattr(asked, f"set_use_{kind}")(True)
            _, cache = asked.run_with_cache(torch.tensor([IDS]), remove_batch_dim=True)
            found |= {name: tensor for name, tensor in cache.items() if name not in found}
    agree, refused = [], []
    for name, tensor in found.items():
        try:
            ours = trace[name]
        except AddressError:
            refused.append(name)
            continue
        assert ours.shape == tensor.shape, name
        assert torch.allclose(ours.float(), tensor.float(), atol=WITHIN, rtol=WITHIN), name
        agree.append(name)
    return agree, refused


@pytest.mark.parametrize("family", FAMILIES)
def test_every_name_of_the_cache_is_answered_with_its_tensor_or_refused(family: str) -> None:
    agree, refused = compared(family)
    assert len(agree) > 100
    for_each_head = [name for name in agree if name.endswith(("hook_result", "_input", "hook_attn_in"))]
    assert len(for_each_head) == (0 if family in NOT_BY_HEAD else 27)  # nine in each of three layers
    assert len(refused) == FAMILIES[family], refused


@pytest.mark.parametrize("family", FAMILIES)
def test_the_unembedding_is_theirs_tied_or_not(family: str) -> None:
    both = pair(family)
    theirs = bridged(both.theirs).unembed.W_U
    assert torch.equal(record(both.ours, encoding_of(IDS))["W_U"], theirs.detach())
