"""Models, traces and answers come back from a pickle as they were."""

import contextlib
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from answers import ANSWERS, TEXT
from architectures import HEADS_OF_CLASSES, KINDS, config_of, lively, some_ids
from covering import sample

import tinytf
from tinytf.errors import UsageError
from tinytf.steps.table import STEPS, table_of


def again(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.mark.parametrize("kind", [*KINDS, *HEADS_OF_CLASSES])
def test_a_transformer_computes_the_same_afterwards(kind: str) -> None:
    before = lively(config_of(kind))
    after, ids = again(before), some_ids(before.config)
    assert torch.equal(after(ids), before(ids))
    assert not after.training
    assert table_of(after.config).rows == table_of(before.config).rows
    shapes = [{name: one.shape for name, one in model.named_parameters()} for model in (before, after)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", ["tiny", "tiny-encoder"])
def test_a_model_answers_the_same_afterwards(name: str, tmp_path: Path) -> None:
    models = [tinytf.load(name)]
    if name == "tiny":
        models[0].export(tmp_path / name)
        models.append(tinytf.load(str(tmp_path / name)))
    for before in models:
        after = again(before)
        assert repr(after) == repr(before)
        assert torch.equal(after.trace(TEXT)["logits"], before.trace(TEXT)["logits"])
        assert after.encode(TEXT) == before.encode(TEXT)
        assert len(pickle.dumps(before)) < 1.3 * sum(one.nbytes for one in before.transformer.parameters())


def test_a_trace_and_its_gradients_are_the_same_afterwards(model: tinytf.Model) -> None:
    for before in (model.trace(TEXT), model.grad(TEXT)):
        after = again(before)
        assert list(after) == list(before)
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert after.predictions == before.predictions
        assert after.address("L0H1.weights") == again(before.address("L0H1.weights"))
    assert after.loss == before.loss
    assert all(torch.equal(after.grad[name], before.grad[name]) for name in before)


@pytest.mark.share(4)
@sample("name", ANSWERS, every=2)
def test_an_answer_is_the_same_afterwards(name: str, model: tinytf.Model) -> None:
    before = ANSWERS[name](model)
    after = again(before)
    assert repr(after) == repr(before)
    assert json.dumps(after.to_dict(), default=str) == json.dumps(before.to_dict(), default=str)
    assert drawn(after) == drawn(before)


def drawn(report: tinytf.Report) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        report.show()
    return printed.getvalue()


@sample("name", ANSWERS, every=2)
def test_an_answer_leaves_the_weights_unless_it_holds_a_trace(name: str, model: tinytf.Model) -> None:
    answer, whole = ANSWERS[name](model), pickle.dumps(model)
    members = [value for field in vars(answer).values() for value in (field if isinstance(field, tuple) else (field,))]
    if not any(isinstance(value, tinytf.Trace) for value in members):
        assert len(pickle.dumps(answer)) < len(whole) / 8


def test_a_model_without_its_weights_says_so(model: tinytf.Model, tmp_path: Path) -> None:
    """Whatever is asked of it: what reads weights alone too, and after another pickle."""
    of_report = again(again(model.lens(TEXT))).about.model
    assert of_report.to_dict() == model.to_dict()
    for ask in (
        lambda: of_report.trace(TEXT),
        lambda: of_report.generate(TEXT),
        lambda: of_report.neighbours(["cat"]),
        lambda: of_report.weights(),
        lambda: of_report.export(tmp_path / "exported"),
        lambda: of_report.diff(TEXT, model),
    ):
        with pytest.raises(UsageError, match="a report that was pickled, without its weights"):
            ask()


def test_every_row_of_the_step_table_comes_back() -> None:
    assert [again(step) for step in STEPS] == list(STEPS)
    for kind in KINDS:
        for step, _ in table_of(config_of(kind)).rows:
            assert again(step) == step


def test_what_functions_of_this_process_replace_is_refused(model: tinytf.Model) -> None:
    with pytest.raises(UsageError, match=r"L1H2\.head_out is replaced cannot be pickled"):
        pickle.dumps(model.without("L1H2"))
    with model.edited({"L0.ffn": 0.0}), pytest.raises(UsageError, match=r"L0\.ffn is replaced"):
        pickle.dumps(model)
