"""Mixers with a state: what is cached of a text does not grow with it, and is as large as the mixer says."""

import pytest
import torch
from architectures import KINDS, config_of, lively

from tinytf.parts.ngrams import windows_of

RECURRENT = [kind for kind in KINDS if config_of(kind).at(0).mixer != "attention"]


@torch.no_grad()
@pytest.mark.parametrize("kind", RECURRENT)
def test_what_is_cached_of_a_text_does_not_grow(kind: str) -> None:
    model = lively(config_of(kind).at(0))
    cache, sizes = model.cache(20), set()
    for token in range(5):
        model.hidden(torch.tensor([[token]]), cache=cache)
        sizes.add(sum(layer.used_bytes for layer in cache.use()))
    numbers = model.config.blocks[0].mixer.state_size + windows_of(model.config)
    assert sizes == {model.config.n_layers * 4 * numbers}
