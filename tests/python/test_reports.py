"""Every report by name in ``tinytf``, short where its name is typed, and as data."""

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from answers import ANSWERS, TEXT
from schemas import FOLDER, hold

import tinytf
from tinytf.checkpoints.huggingface.export import Exported
from tinytf.errors import UsageError
from tinytf.report import Report, text_data
from tinytf.text.tokenizer import Token

for _module in pkgutil.walk_packages(tinytf.__path__, "tinytf."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)


def reports(kind: type[Report] = Report) -> Iterator[type[Report]]:
    """Every kind of answer that some module of the library declares, abstract ones left out."""
    for one in kind.__subclasses__():
        yield from (one, *reports(one)) if "KIND" in vars(one) else reports(one)


KINDS = {one.__name__: one for one in reports() if one.__module__.startswith("tinytf.")}


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.mark.parametrize("name", KINDS)
def test_a_report_has_its_name_in_tinytf_and_its_fields_as_data(name: str) -> None:
    assert getattr(tinytf, name) is KINDS[name]
    assert name in tinytf.__all__
    assert name in dir(tinytf)
    assert KINDS[name].fields is not Report.fields
    assert KINDS[name].__repr__ is Report.__repr__


def test_every_kind_of_report_has_a_schema() -> None:
    assert {kind.KIND for kind in KINDS.values()} - {file.stem for file in FOLDER.glob("*.json")} == set()


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_report_is_short_where_its_name_is_typed_and_whole_as_data(name: str, model: tinytf.Model) -> None:
    found = ANSWERS[name](model)
    assert type(found).__name__ == name
    assert repr(found).startswith(f"{name}(")
    assert len(repr(found)) <= 300
    data = json.loads(json.dumps(found.to_dict(), default=str))
    assert data["kind"] == KINDS[name].KIND
    assert set(data) > {"schema_version", "kind"}
    hold(found.to_dict())
    if KINDS[name].events is Report.events:  # no member of an event hides what kind of event it is
        assert {event["type"] for event in found.events()} <= {KINDS[name].KIND, *KINDS[name].EVENTS.values()}


class Counted(tuple[Token, ...]):
    """Tokens that count how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Token]:
        Counted.passes += 1
        return super().__iter__()


def test_the_tokens_of_a_text_are_gone_through_as_often_in_a_long_text_as_in_a_short_one(model: tinytf.Model) -> None:
    def passes(count: int) -> int:
        encoding = model.tokenizer.encode("\u200d".join("🐈👩" * count))
        Counted.passes = 0
        text_data(replace(encoding, tokens=Counted(encoding.tokens)))
        return Counted.passes

    assert passes(3) == passes(30)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_report_as_a_data_frame_is_its_table_and_as_arrays_its_tensors(name: str, model: tinytf.Model) -> None:
    found = ANSWERS[name](model)
    table = found.sheet()
    if table is None:
        with pytest.raises(UsageError, match=f"kind {found.KIND} has no table"):
            found.to_pandas()
        return
    frame = found.to_pandas()
    assert list(frame.columns) == list(table.columns)
    assert len(frame) == len(list(table.rows))
    arrays, tensors = found.to_numpy(), found.tensors()
    assert set(arrays) == (set(tensors) or set(table.columns))
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(arrays[key], tensor.detach().numpy())


def test_what_types_see_is_what_there_is() -> None:
    tree = ast.parse(Path(tinytf.__file__).read_text("utf-8"))
    (typed,) = (one for one in tree.body if isinstance(one, ast.If))
    assert {one.names[0].name: one.module for one in typed.body if isinstance(one, ast.ImportFrom)} == tinytf._LAZY
    assert [name for name in tinytf.__all__ if not hasattr(tinytf, name)] == []


def test_the_library_is_imported_without_torch_or_numpy() -> None:
    heavy = ["torch", "numpy", "tokenizers", "click", "rich", "importlib.metadata"]
    heavy = f"import sys, tinytf; print([one for one in {heavy} if one in sys.modules])"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_other_things_are_short_too(model: tinytf.Model) -> None:
    long = "The cat sat on the mat. " * 20
    gradients = model.grad(TEXT)
    for thing in (model, model.tokenizer, model.encode(long), model.trace(long), gradients, gradients.grad):
        assert repr(thing).startswith(f"{type(thing).__name__}(")
        assert len(repr(thing)) <= 300
    count = sum(one.numel() for one in model.transformer.parameters())
    assert repr(model) == f"Model(name='tiny', parameters={count}, layers=4, heads=4, d_model=128, tokens=2048)"
    for one in model.lens(TEXT).stages + model.trace(TEXT).predictions:
        assert len(repr(one)) <= 300


def test_a_repr_says_which_model_which_text_and_the_answer(model: tinytf.Model) -> None:
    found = model.score(TEXT)
    loss = torch.nn.functional.cross_entropy(model.trace(TEXT)["logits"][:-1], model.trace(TEXT)["ids"][1:])
    assert repr(found).startswith(f"Score(model='tiny', text='{TEXT}', loss={float(loss):.3f}"[:-1])
    assert "equal=False, first=StepComparison 'embed.tokens'" in repr(model.diff(TEXT, "The dog sat on the mat."))
    assert "equal=True" in repr(model.diff(TEXT, TEXT))


def test_an_export_has_a_name_too(model: tinytf.Model, tmp_path: Path) -> None:
    found = model.export(tmp_path / "tiny")
    assert isinstance(found, Exported)
    assert len(repr(found)) <= 300
