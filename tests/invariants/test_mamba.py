"""The selective scan of Mamba against Gu and Dao 2023 written out token by token, and its state while decoding."""

import numpy as np
import pytest
import torch
from architectures import asked, config_of, encoding_of, furthest, lively, some_ids

from tinytf.errors import ConfigError
from tinytf.look.trace import traced
from tinytf.trace.record import record

KIND = "mamba, a selective state space before a layer of attention"
ALONE = {"by_layer": (), "mixer": "mamba", "n_heads": 6, "n_kv_heads": 0, "d_head": 5, "d_value": 8}
IDS = [3, 14, 15, 9, 2, 6, 5, 3, 3, 14]


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def test_what_is_read_is_that_of_a_loop_over_tokens() -> None:
    model = lively(config_of(KIND)).double()
    trace = record(model, encoding_of(IDS))
    own = {name.removeprefix("mamba."): one.detach().numpy() for name, one in model.blocks[0].named_parameters()}
    window, state = np.zeros((48, 3)), np.zeros((48, 5))
    for t, x in enumerate(trace["L0.norm1"].numpy()):
        window = np.concatenate([window[:, 1:], (own["v.weight"] @ x)[:, None]], axis=1)
        value = silu((window * own["v_conv.weight"]).sum(axis=1) + own["v_conv.bias"])
        step = np.log1p(np.exp(own["dt_in.weight"] @ own["dt_low.weight"] @ value + own["dt.bias"]))
        key, query = own["k.weight"] @ value, own["q.weight"] @ value
        state = np.exp(-np.exp(own["scan.weight"]) * step[:, None]) * state + np.outer(step * value, key)
        read = state @ query + own["scan.bias"] * value
        assert np.abs(trace["L0.head_out"][:, t].flatten().numpy() - read).max() < 1e-12
        expected = own["o.weight"] @ (read * silu(own["gate.weight"] @ x))
        assert np.abs(trace["L0.attn"][t].numpy() - expected).max() < 1e-12


def test_the_terms_of_a_cell_are_what_each_token_still_contributes() -> None:
    """Without the values of one earlier token, what is read is less by its term."""
    model = asked(lively(config_of(KIND)).double())
    trace = model.trace(" ".join(map(str, IDS)))
    found = model.explain(trace, "L0H2.head_out[7,3]", top=20)[0]
    site = trace["L0.q"], trace["L0.k"], trace["L0.dt"], trace["L0.v_act"].clone()
    scan = model.transformer.blocks[0].mamba.scan
    site[3][:, 4] = 0.0
    without = scan.operation.compute(scan, site)[0].detach()[2, 7, 3]
    term = next(term for term in found.terms if term.label.startswith("4 "))
    assert found.holds
    assert term.contribution == pytest.approx(float(trace["L0H2.head_out[7,3]"] - without), abs=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, ALONE], ids=["some layers", "all layers"])
def test_a_state_gives_the_tokens_that_the_whole_text_gives(changes: dict) -> None:
    model = lively(config_of(KIND, **changes))
    ids, cache = some_ids(model.config, 2, 12), model.cache(20, 2)
    found = [model.unembed(model.hidden(ids[:, :4], cache=cache))]
    for t in range(4, 12):
        found.append(model.unembed(model.hidden(ids[:, t : t + 1], cache=cache)))
    assert furthest(torch.cat(found, dim=1), model(ids)) < 1e-5


def test_a_model_without_any_map_is_traced() -> None:
    model = asked(lively(config_of(KIND, **ALONE)))
    assert model.trace("3 14 15").steps.map_of(0) is None
    assert traced(model, "3 14 15").sentence.startswith("The model expects")


def test_without_a_rank_of_its_steps_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="computes its steps through dt_rank dimensions, and that is 0"):
        config_of(KIND, dt_rank=0)
