"""Every name of TransformerLens' cache is answered with its tensor, values and axes, or refused."""

from collections.abc import Sequence

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
WITHIN = 1e-4


def compared(family: str) -> tuple[Sequence[str], Sequence[str]]:
    """The names of a cache that agree, and those that are refused; AssertionError for any other."""
    both = pair(family)
    theirs = bridged(both.theirs)
    trace = record(both.ours, encoding_of(IDS))
    with torch.no_grad():
        _, cache = theirs.run_with_cache(torch.tensor([IDS]), remove_batch_dim=True)
    agree, refused = [], []
    for name, tensor in cache.items():
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
    assert len(refused) == FAMILIES[family], refused
