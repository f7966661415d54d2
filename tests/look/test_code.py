"""The code of each step is what the model computes: line by line, and all lines one after another as a program."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from architectures import KINDS, asked, config_of, encoding_of, furthest, lively, some_ids

from tinytf.errors import UsageError
from tinytf.loading import load
from tinytf.look.code import code, code_line
from tinytf.tolerance import Coarse
from tinytf.trace.record import record
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


def traced(kind: str, **changes: Any) -> Trace:
    model = lively(config_of(kind, **changes))
    return record(model, encoding_of(some_ids(model.config, 1, 7, 3)[0].tolist()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_has_code_that_gives_the_step(kind: str) -> None:
    trace = traced(kind)
    found = code(asked(trace.model), trace, range(trace.config.n_layers))
    expected = [step.full_name(layer) for step, layer in trace.steps.rows if step.is_tensor]
    assert [line.step for line in found.lines] == expected
    assert [line.step for line in found.lines if not line.holds] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_are_a_program_that_makes_the_output_of_ids_and_parameters(kind: str) -> None:
    trace = traced(kind)
    names: dict[str, Any] = {"torch": torch, "F": F, "ids": torch.tensor(trace.encoding.ids), "T": 7}
    names["rows"] = list(trace.recording.logit_rows)
    with torch.no_grad():
        for step, layer in trace.steps.rows:
            if step.operation is not None:
                site = Site(trace, step, layer)
                exec(step.operation.code(site), names | {"names": names} | step.operation.operands(site), names)
                names[f"L{layer}_{site.variable}"] = names[site.variable]
    last, expected = trace.steps.rows[-2 if trace.model.head is not None else -1][0], trace.recording.tensors
    if trace.model.head is not None:
        assert last.name == "probs"
        assert furthest(names["logits"], expected["logits"]) < 1e-5
    else:
        output = names[trace.steps.final.replace(".", "_")]
        assert furthest(output, trace.last_hidden) < 1e-5


def test_the_code_is_the_field_s_own_and_knows_nothing_of_this_package() -> None:
    lines = {line.step: line.code for line in load("tiny").code("The cat sat").lines}
    assert lines["L0.q"] == "q = (norm1 @ W_Q.T + b_Q).unflatten(-1, (4, 32)).transpose(0, 1)"
    assert lines["L0.weights"] == "weights = F.softmax(masked, dim=-1)"
    called = {name for text in lines.values() for name in re.findall(r"\b(?:torch|F)\.(\w+)", text)}
    assert all(hasattr(torch, name) or hasattr(F, name) for name in called)


def test_a_step_that_the_code_does_not_make_is_found() -> None:
    trace = traced("gpt2")
    trace.recording.tensors["L0.q"] = trace.recording.tensors["L0.q"] + 0.01
    found = code(asked(trace.model), trace, [0])
    assert [line.step for line in found.lines if not line.holds] == ["L0.q", "L0.head_out"]
    assert found.lines[5].difference == pytest.approx(0.01, rel=1e-3)
    assert not found.holds
    trace.recording.tensors["L1.ffn"][0, 0] = torch.nan
    assert not code_line(trace, trace.steps.by_name["ffn"], 1, Coarse([])).holds


def test_half_precision_and_other_precisions_have_code_too() -> None:
    model = load("tiny", dtype="bfloat16")
    assert model.code("The cat sat", range(4)).holds
    assert load("tiny-encoder", dtype="float64").code("The cat [MASK]", range(3)).holds


def test_a_replaced_step_is_not_compared_and_a_left_out_one_has_no_line() -> None:
    model = load("tiny").without(["L0H1", "scaling", "positions"])
    lines = {line.step: line for line in model.code("The cat sat").lines}
    assert lines["L0.head_out"].difference is None
    assert lines["L0.scores"].code == "scores = q @ k.transpose(-2, -1)"
    assert not {"L0.scaled", "L0.q_rot"} & lines.keys()
    assert all(line.holds for line in lines.values())


def test_only_the_steps_that_are_asked_for_are_shown() -> None:
    model = load("tiny")
    assert [line.step for line in model.code("The cat", at=["L2H1.weights", "logits"]).lines] == [
        "L2.weights",
        "logits",
    ]
    with pytest.raises(UsageError, match="no line of code computes tokens"):
        model.code("The cat", at=["tokens"])
