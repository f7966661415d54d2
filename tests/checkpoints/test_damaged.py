"""Broken and hostile directories: one clear error, and nothing runs that should not."""

import json
import pickle

import pytest
import torch
from checkpoint_directories import refused, shard
from safetensors.torch import load_file, save_file

from tinytf.checkpoints.huggingface.load import has_table
from tinytf.errors import CheckpointError
from tinytf.sources import find_source


def test_wrong_json(gpt2):
    (gpt2 / "config.json").write_text('{"model_type": "gpt2",', "utf-8")
    assert "config.json is not JSON" in refused(gpt2).message
    (gpt2 / "config.json").write_text("[1, 2]", "utf-8")
    assert "config.json holds a list, not a JSON object" in refused(gpt2).message
    (gpt2 / "config.json").write_bytes(b"\xff\xfe{}")
    assert "config.json is not UTF-8 text" in refused(gpt2).message


@pytest.mark.parametrize("size", [0, 4, 100, 3000])
def test_a_truncated_weight_file(gpt2, size):
    path = gpt2 / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert f"{path} is damaged" in refused(gpt2).message


def test_no_weight_file(gpt2):
    (gpt2 / "model.safetensors").unlink()
    assert "there is no model.safetensors" in refused(gpt2).message


@pytest.fixture
def sharded(gpt2):
    tensors = load_file(gpt2 / "model.safetensors")
    (gpt2 / "model.safetensors").unlink()
    shard(gpt2, tensors)
    return gpt2


def point_to(directory, file) -> None:
    index = directory / "model.safetensors.index.json"
    data = json.loads(index.read_text("utf-8"))
    name = next(iter(data["weight_map"]))
    data["weight_map"][name] = file
    index.write_text(json.dumps(data), "utf-8")


def test_an_index_that_names_an_absent_shard(sharded):
    point_to(sharded, "model-00003-of-00002.safetensors")
    assert "names model-00003-of-00002.safetensors, but there is no such file beside it" in refused(sharded).message


@pytest.mark.parametrize(
    "file", ["../model.safetensors", "/etc/passwd", "..\\model.safetensors", "a/b.safetensors", "C:\\x.bin", "..", ""]
)
def test_an_index_may_not_leave_its_folder(sharded, file):
    save_file({"a": torch.ones(1)}, sharded.parent / "model.safetensors")
    point_to(sharded, file)
    message = refused(sharded).message
    assert "index.json names" in message
    assert "is not a" in message


@pytest.mark.parametrize("places", [None, {}, [], {"a": 3}])
def test_an_index_without_places(sharded, places):
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), "utf-8")
    assert "has no weight_map" in refused(sharded).message


def test_a_truncated_shard(sharded):
    path = sharded / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:2000])
    assert f"{path} is damaged" in refused(sharded).message


def test_a_tensor_in_two_shards(sharded):
    tensors = load_file(sharded / "model-00001-of-00002.safetensors")
    other = load_file(sharded / "model-00002-of-00002.safetensors")
    name = next(iter(tensors))
    save_file({**other, name: tensors[name]}, sharded / "model-00002-of-00002.safetensors")
    assert f"holds {name} twice" in refused(sharded).message


class Runs:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("how", ["torch", "plain"])
def test_a_pickle_that_tries_to_run_code_is_refused(gpt2, how):
    (gpt2 / "model.safetensors").unlink()
    victim, path = gpt2 / "owned", gpt2 / "pytorch_model.bin"
    if how == "torch":
        torch.save({"a": Runs(victim)}, path)
    else:
        path.write_bytes(pickle.dumps({"a": Runs(victim)}))
    error = refused(gpt2)
    assert "is refused" in error.message
    assert "safetensors" in error.hint
    assert not victim.exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x02}q\x00.", b"nonsense"])
def test_a_pickled_file_that_is_none(gpt2, data):
    (gpt2 / "model.safetensors").unlink()
    (gpt2 / "pytorch_model.bin").write_bytes(data)
    assert "pytorch_model.bin" in refused(gpt2).message


def test_a_pickle_of_something_else(gpt2):
    (gpt2 / "model.safetensors").unlink()
    torch.save([torch.ones(1)], gpt2 / "pytorch_model.bin")
    assert "is not a table of tensors by name" in refused(gpt2).message


def test_a_file_or_folder_that_is_no_model(tmp_path):
    (tmp_path / "notes.txt").write_text("hello", "utf-8")
    with pytest.raises(CheckpointError, match="is a file"):
        find_source(str(tmp_path / "notes.txt"))
    with pytest.raises(CheckpointError, match=r"there is no config\.json"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_damaged_file_comes_with_what_to_do(gpt2, name):
    (gpt2 / "model.safetensors").unlink()
    (gpt2 / name).write_bytes(b"PK\x03\x04")
    assert refused(gpt2).hint == "the file may be incomplete: download or copy it again"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": torch.eye(3).to_sparse()}, "'a' is a sparse coo tensor"),
        ({"a": torch.eye(3).to_sparse_csr()}, "'a' is a sparse csr tensor"),
        ({"a": torch.empty(3, device="meta")}, "'a' is a meta tensor"),
        ({7: torch.eye(3)}, "one is called 7"),
    ],
    ids=["sparse", "csr", "meta", "number"],
)
def test_pickled_tensors_that_are_no_plain_arrays_are_refused_by_kind(gpt2, table, said):
    (gpt2 / "model.safetensors").unlink()
    torch.save(table, gpt2 / "pytorch_model.bin")
    assert said in refused(gpt2).message


@pytest.mark.parametrize("value", [["gpt2"], {"x": {}}, 5, None, True])
@pytest.mark.parametrize("part", [False, True], ids=["whole", "text part"])
def test_a_model_type_that_is_no_text(gpt2, value, part):
    kind = {"model_type": value}
    (gpt2 / "config.json").write_text(json.dumps({"model_type": "x", "text_config": kind} if part else kind), "utf-8")
    assert not has_table(gpt2)
    assert "no table" in refused(gpt2).message or "model_type" in refused(gpt2).message
