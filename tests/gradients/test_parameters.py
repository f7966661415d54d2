"""Norms of gradients and weights, of each parameter and of groups of them."""

import math
from dataclasses import replace

import pytest
from caught_gradients import IDS, MODELS, traced
from covering import along

from tinytf.errors import UsageError
from tinytf.gradients.parameters import ParameterRow, table
from tinytf.gradients.trace import GradientTrace, record_gradients


def backward(name: str) -> GradientTrace:
    forward, targets = traced(name)
    return record_gradients(forward.model, forward.encoding, targets)


def squares(rows: tuple[ParameterRow, ...]) -> float:
    return sum(row.gradient_norm**2 for row in rows)


@pytest.mark.parametrize("name", MODELS)
def test_each_parameter_comes_once_with_its_norms(name: str) -> None:
    trace = backward(name)
    rows = {row.name: row for row in table(trace, lr=0.1)}
    parameters = {key: weight.detach() for key, weight in trace.model.named_parameters()}
    assert list(rows) == list(parameters)
    for key, weight in parameters.items():
        gradient, row = trace.parameters[key], rows[key]
        assert row.shape == tuple(weight.shape)
        assert row.gradient_norm == pytest.approx(math.sqrt(float((gradient * gradient).sum())))
        assert row.ratio == pytest.approx(row.gradient_norm / float(weight.norm()))
        assert row.update_ratio == pytest.approx(float((0.1 * gradient).norm() / weight.norm()))
        assert row.zero_share == pytest.approx(1 - float((gradient != 0).double().mean()))
        of_rows = weight.dim() >= 2 and not key.endswith("bias")
        silent = [not bool(one.any()) for one in gradient.flatten(0, -2)] if of_rows else []
        assert (row.dead_rows, row.rows) == ((sum(silent), len(silent)) if of_rows else (None, None))
    assert ("head.decoder.weight" in rows) != trace.config.tied_head


@along({"name": MODELS, "by": ["layer", "kind"]})
def test_groups_have_all_of_the_gradient(name: str, by: str) -> None:
    trace = backward(name)
    alone, groups = table(trace), table(trace, by=by)
    assert squares(groups) == pytest.approx(squares(alone))
    assert sum(row.entries for row in groups) == sum(row.entries for row in alone)
    assert sum(row.dead_rows or 0 for row in groups) == sum(row.dead_rows or 0 for row in alone)
    values = [getattr(row, by) for row in groups]
    assert len(set(values)) == len(values)
    assert set(values) == {getattr(row, by) for row in alone}


@pytest.mark.parametrize("name", MODELS)
def test_heads_have_all_of_queries_keys_values_and_the_output(name: str) -> None:
    trace = backward(name)
    heads = table(trace, by="head")
    assert [(row.layer, row.head) for row in heads] == [
        (layer, head) for layer in range(trace.config.n_layers) for head in range(trace.config.at(layer).n_heads)
    ]
    parts = ["q", "k", "v", "o", "q_norm", "k_norm", "pos_q", "pos_k", "gate", "q_conv", "k_conv", "v_conv"]
    parts += ["q_content", "q_position", "q_segment", "segments", *["index_q"] * trace.config.index_by_head]
    parts += [
        "out_norm",
        "beta_in",
        "decay_in",
        "decay",
        "gate_in",
        "dt_in",
        "dt",
        "read",
        "dt_low",
        "scan",
        "gate_kept",
        "r",
        "q_adapter",
        "k_adapter",
        "v_adapter",
    ]
    kinds = [
        f"{mixer}.{part}."
        for mixer in ("attention", "cross", "delta", "conv", "mamba", "lightning", "griffin")
        for part in parts
    ]
    kinds += ["mamba.norm.", "lightning.norm."]
    split = {
        path
        for path, parameter in trace.model.named_parameters()
        if any(kind in path for kind in kinds)
        and path.startswith("blocks.")
        and not path.endswith("o.bias")
        and not (trace.config.o_rank and path.endswith("attention.o.weight"))  # after heads are compressed in groups
        and not ("_norm" in path and parameter.numel() == trace.config.at(int(path.split(".")[1])).d_head)
    }
    whole = tuple(row for row in table(trace) if row.name in split)
    assert squares(heads) == pytest.approx(squares(whole))
    assert sum(row.weight_norm**2 for row in heads) == pytest.approx(sum(row.weight_norm**2 for row in whole))
    assert sum(row.entries for row in heads) == pytest.approx(sum(row.entries for row in whole))


def test_query_heads_share_what_they_have_in_common() -> None:
    trace = backward("llama, grouped")
    width, at = trace.config.d_head, "blocks.1.attention."
    third = next(row for row in table(trace, by="head") if row.name == "L1H3")
    own = trace.parameters[at + "q.weight"][3 * width :], trace.parameters[at + "o.weight"][:, 3 * width :]
    shared = [trace.parameters[at + name][width:] for name in ("k.weight", "v.weight")]
    expected = sum(float(part.square().sum()) for part in own) + sum(float(part.square().sum()) / 2 for part in shared)
    assert third.gradient_norm == pytest.approx(math.sqrt(expected))


def test_rows_without_a_gradient_are_dead() -> None:
    trace = backward("llama, grouped")
    rows = {row.name: row for row in table(trace)}
    embeddings = rows["embed.tokens.weight"]
    assert embeddings.kind == "embed.tokens.weight"
    assert embeddings.layer is None
    unused = set(range(31)) - set(IDS[:-1])  # the last token predicts nothing
    assert embeddings.dead_rows == len(unused)
    assert embeddings.dead_share == pytest.approx(len(unused) / 31)
    assert rows["blocks.0.ffn.up.weight"].dead_rows == 0
    assert rows["blocks.1.norm1.weight"].dead_rows is None
    assert rows["blocks.1.norm1.weight"].dead_share is None


def test_weights_that_are_0_have_no_ratio() -> None:
    row = table(backward("gpt2"))[0]
    assert replace(row, weight_norm=0.0).ratio == math.inf
    assert replace(row, weight_norm=0.0, gradient_norm=0.0).update_ratio == 0.0


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(UsageError, match="not grouped by 'heads'"):
        table(backward("gpt2"), by="heads")


def test_the_rows_of_layers_come_after_what_is_outside_them() -> None:
    assert [row.to_dict()["name"] for row in table(backward("gpt2"), by="layer")][:2] == ["outside the layers", "L0"]
