"""Files of tensors hold what was asked for, say what it is of, and are read back by the library of the format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import KINDS, config_of, encoding_of, lively, some_ids
from covering import along
from driving import SENTENCE, Tinytf
from safetensors import safe_open
from safetensors.torch import load_file

from tinytf.loading import Model
from tinytf.look.values import array_at, single_addresses
from tinytf.tables import Array
from tinytf.tensor_file import safetensors
from tinytf.trace.address import parse_address
from tinytf.trace.record import record
from tinytf.trace.trace import Trace
from tinytf.version import __version__

Write = Callable[..., tuple[dict[str, torch.Tensor], dict[str, Any]]]


@pytest.fixture(scope="module")
def trace(opened: Model) -> Trace:
    return opened.trace(SENTENCE)


@pytest.fixture
def write(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> Write:
    """The tensors, and what is said of them, of the file that a command writes."""

    def run(*arguments: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        path = tmp_path / "out.safetensors"
        ran = tinytf(*arguments, "-m", decoder, "-o", path)
        assert (ran.status, ran.out) == (0, ""), ran
        with safe_open(path, "np") as file:
            return load_file(path), json.loads(file.metadata()["tinytf"])

    return run


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--at", "L*H*.weights"], ["L0H0-1.weights", "L1H0-1.weights"]),
        (["--at", "L1.weights", "--at", "L0.mid[sat]"], ["L1.weights", "L0.mid[sat]"]),
        (["--at", "logits[-1]"], ["logits[-1]"]),
        (["--step", "weights", "--layer", "1", "--head", "1"], ["L1H1.weights"]),
    ],
)
def test_a_trace_writes_what_was_asked_and_the_ids(
    write: Write, trace: Trace, options: list[str], names: list[str]
) -> None:
    tensors, said = write("trace", SENTENCE, *options)
    assert set(tensors) == {"ids", *names}
    assert tensors["ids"].tolist() == trace.encoding.ids
    for name in names:
        assert torch.allclose(tensors[name], trace[name], rtol=1e-5, atol=1e-6), name  # as memory is aligned otherwise
        assert said["axes"][name] == trace.address(name).axes


@pytest.mark.parametrize("options", [["--block", "L1H1"], ["--layer", "1", "--head", "1"]])
def test_a_block_that_is_named_is_what_is_written(write: Write, trace: Trace, options: list[str]) -> None:
    tensors, _ = write("trace", SENTENCE, *options)
    assert set(tensors) == {"ids"} | {
        f"L1{'H1' if one.has_heads else ''}.{one.name}" for one in trace.steps.layer_steps
    }
    assert torch.equal(tensors["L1H1.scores"], trace["L1H1.scores"])


def test_the_file_says_model_text_tokens_axes_and_version(write: Write, trace: Trace, opened: Model) -> None:
    tensors, said = write("trace", SENTENCE)
    assert (said["version"], said["kind"], said["text"]) == (__version__, "trace", SENTENCE)
    assert said["model"]["config"]["n_layers"] == opened.config.n_layers
    assert [(one["id"], one["shown"]) for one in said["tokens"]] == [(one.id, one.shown) for one in trace.tokens]
    assert set(said["axes"]) == set(tensors)
    for name, axes in said["axes"].items():
        assert len(axes) == tensors[name].dim(), name
    assert (said["axes"]["L0.q"], said["axes"]["ids"]) == (["head", "token", "d_head"], ["token"])
    assert said["logit_rows"] == [len(trace.tokens) - 1]


def test_attention_writes_its_window_and_says_where_it_lies(write: Write, trace: Trace) -> None:
    tensors, said = write("attention", SENTENCE, "--head", "L1H0", "--window", "2:4,1:3")
    assert torch.equal(tensors["L1H0.weights"], trace["L1H0.weights"][2:4, 1:3])
    assert said["places"] == {"L1H0.weights": {"query": [2, 3], "key": [1, 2]}}


def test_a_gradient_is_written_alone_and_parameters_where_they_are_listed(write: Write, opened: Model) -> None:
    expected = opened.grad(SENTENCE)
    alone, said = write("grad", SENTENCE, "--at", "L0H1.weights")
    assert set(alone) == {"L0H1.weights"}
    assert torch.equal(alone["L0H1.weights"], expected.grad["L0H1.weights"])
    assert said["axes"] == {"L0H1.weights": ["query", "key"]}
    steps, _ = write("grad", SENTENCE)
    assert not set(steps) & set(expected.parameters)
    assert torch.equal(steps["L1.out"], expected.grad["L1.out"])
    every, _ = write("grad", SENTENCE, "--by", "parameter")
    assert set(every) == set(steps) | set(expected.parameters)
    for name, gradient in expected.parameters.items():
        assert torch.equal(every[name], gradient), name


def test_several_texts_are_one_file_that_says_what_each_is_of(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    assert tinytf("trace", "The cat\nA dog sat", "--lines", "-m", decoder, "--at", "L0.q", "-o", path).status == 0
    with safe_open(path, "np") as file:
        said = json.loads(file.metadata()["tinytf"])
        assert set(file.keys()) == {"0/ids", "0/L0.q", "1/ids", "1/L0.q"}
    assert [one["text"] for one in said["traces"]] == ["The cat", "A dog sat"]


EVERY = {
    "rollout": [], "attribute": [], "lens": ["--track", "mat"], "neurons": [], "ablate": ["--at", "L0H0"],
    "ablate --sweep": ["--sweep", "heads"], "activations": [],
}  # fmt: skip


@pytest.mark.parametrize(("command", "options"), EVERY.items(), ids=EVERY)
def test_every_tensor_of_every_report_has_axes(write: Write, command: str, options: list[str]) -> None:
    tensors, said = write(command.split()[0], SENTENCE, *options)
    assert tensors
    assert {name: len(axes) for name, axes in said["axes"].items()} == {n: one.dim() for n, one in tensors.items()}


@along({"kind": KINDS, "dtype": [torch.bfloat16, torch.float64]})
def test_the_form_of_every_step_is_known_before_it_is_read(kind: str, dtype: torch.dtype) -> None:
    """The header of the file comes before the tensors."""
    config = config_of(kind)
    trace = record(lively(config).to(dtype), encoding_of(some_ids(config, length=5)[0].tolist()))
    for words in ("L*", *(step.name for step, layer in trace.steps.rows if layer is None and step.is_tensor)):
        for where in single_addresses(trace, parse_address(words, trace.steps)):
            array = array_at(trace, where)
            tensor = array.read()
            assert array.form() == (tuple(tensor.shape), tensor.dtype), array.name


def test_tensors_of_every_width_are_aligned_and_read_one_by_one(tmp_path: Path) -> None:
    given = {
        "half": torch.tensor([1.5, -2.0, 3.25], dtype=torch.bfloat16), "one": torch.tensor(7.0),
        "yes": torch.tensor([True, False, True]), "ids": torch.arange(5), "wide": torch.rand(3, 2, dtype=torch.float64),
        "turned": torch.rand(3, 5).T, "none": torch.zeros(0, 4),
    }  # fmt: skip
    read: list[str] = []

    def reading(name: str) -> torch.Tensor:
        read.append(name)
        return given[name]

    arrays = [Array(name, (), lambda name=name: reading(name)) for name in given]  # type: ignore[misc]
    parts = safetensors(arrays, {"said": "so"})
    header = next(parts)
    read.clear()
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write(header)
        for count, part in enumerate(parts, 1):
            file.write(part)
            assert len(read) == count  # no tensor is read before its turn
    found = load_file(path)
    assert set(found) == set(given)
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    entries = json.loads(bytes(header)[8:])
    assert entries.pop("__metadata__") == {"said": "so"}
    for name, entry in entries.items():
        assert entry["data_offsets"][0] % given[name].itemsize == 0
    assert np.frombuffer(bytes(header)[:8], dtype="<u8")[0] % 8 == 0
