"""The gated short convolution of LFM2 against a loop over tokens, and its window while decoding."""

import numpy as np
import pytest
import torch
from architectures import config_of, encoding_of, furthest, lively, some_ids

from tinytf.errors import ConfigError
from tinytf.steps.table import StepTable
from tinytf.trace.record import record

KIND = "lfm2, short convolutions around grouped attention"
ALONE = {"by_layer": (), "mixer": "short_convolution"}
changes = pytest.mark.parametrize("changes", [{}, ALONE], ids=["some layers", "all layers"])


def test_a_short_convolution_is_that_of_a_loop_over_tokens() -> None:
    model = lively(config_of(KIND)).double()
    trace = record(model, encoding_of([3, 14, 15, 9, 2, 6, 5, 3, 3, 14]))
    conv = dict(model.blocks[0].named_parameters())
    gate_in, v, gate, o = (conv[f"conv.{name}.weight"].detach().numpy() for name in ("gate_in", "v", "gate", "o"))
    taps = conv["conv.v_conv.weight"].detach().numpy()  # (C, W)
    window = np.zeros_like(taps)
    for x, attn, mixed in zip(
        trace["L0.norm1"].numpy(), trace["L0.attn"].numpy(), trace["L0.concat"].numpy(), strict=True
    ):
        window = np.concatenate([window[:, 1:], ((gate_in @ x) * (v @ x))[:, None]], axis=1)
        expected = (gate @ x) * (window * taps).sum(axis=1)
        assert np.abs(mixed - expected).max() < 1e-12
        assert np.abs(attn - o @ expected).max() < 1e-12


@torch.no_grad()
@changes
def test_a_window_gives_the_tokens_that_the_whole_text_gives(changes: dict) -> None:
    model = lively(config_of(KIND, **changes))
    ids, cache = some_ids(model.config, 2, 4), model.cache(20, 2)
    expected, logits = ids, model.unembed(model.hidden(ids, cache=cache))
    for _ in range(12):
        token = logits[:, -1:].argmax(dim=-1)
        whole = model(expected)[:, -1:]
        assert furthest(logits[:, -1:], whole) < 1e-5
        assert torch.equal(token, whole.argmax(dim=-1))
        expected = torch.cat((expected, token), dim=1)
        logits = model.unembed(model.hidden(token, cache=cache))


def test_groups_of_channels_change_no_number() -> None:
    whole = lively(config_of(KIND, **ALONE, n_heads=1, n_kv_heads=1, d_head=24))
    groups = lively(config_of(KIND, **ALONE))
    groups.load_state_dict(whole.state_dict())
    ids = some_ids(whole.config)
    assert furthest(groups(ids), whole(ids)) < 1e-6


def test_a_layer_without_a_map_says_so() -> None:
    table = StepTable(config_of(KIND))
    assert table.map_of(0) is None
    assert table.map_of(1) == table.at("weights", 1)
    assert table.why_absent("weights", 0) == "it is a step of attention"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"causal": False}, "reads from left to right, but causal is false"),
        ({"d_head": 4}, "4 groups of 4 channels does not have the 24 channels"),
    ],
)
def test_what_cannot_be_built_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(KIND, **settings)
