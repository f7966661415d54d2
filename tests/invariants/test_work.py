"""The operations of a pass by formula are those that torch counts while it runs."""

import re

import pytest
import torch
from architectures import KINDS, SOURCE, config_of, facing, lively, some_ids
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.steps.work import step_work, work_per_token

LENGTH = 11
OTHERWISE = re.compile("deberta|xlnet|longcat|inkling|decays that are bounded")
"""Tables of distance go through matrices once a text, experts that have none are counted by their share, and torch
counts no convolutions of columns, nor pools of keys."""


def has_a_formula(kind: str) -> bool:
    """Whether all layers attend to all tokens: a window is counted by what it sees, and computed whole."""
    config = config_of(kind)
    layers = [config.at(layer) for layer in range(config.n_layers)]
    seen = all(not (layer.window or layer.chunk) for layer in layers)
    return seen and len(table_of(config).attention_layers) == config.n_layers and not OTHERWISE.search(kind)


COUNTED = [kind for kind in KINDS if has_a_formula(kind)]


def counted(model: Transformer, ids: torch.Tensor) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(ids)
    return int(counter.get_total_flops())


def test_most_kinds_are_counted() -> None:
    assert len(COUNTED) > 60
    assert sum(config_of(kind).d_source > 0 for kind in COUNTED) == 4


@pytest.mark.parametrize("kind", COUNTED)
def test_the_work_of_a_pass_is_what_torch_counts(kind: str) -> None:
    model = lively(config_of(kind)).train()
    source = len(SOURCE) if model.config.d_source else 0
    work = work_per_token(model.config, LENGTH, source)
    if source:
        assert model.encoder is not None
        assert counted(model.encoder, torch.tensor([SOURCE])) == source * work.encoder
        model = facing(model)
    else:
        assert (work.encoder, work.source) == (0, 0)
    assert counted(model, some_ids(model.config, 2, LENGTH)) == 2 * (LENGTH * work.total + source * work.source)
    whole, new = (step_work(model.config, LENGTH, source, cached=cached) for cached in (False, True))
    assert whole.whole == (LENGTH * (work.total - work.head) + source * work.source + work.head) // 2
    assert new.whole == work.total // 2
