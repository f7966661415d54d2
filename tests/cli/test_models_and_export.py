"""Models of other programs: listed, opened, exported, and refused in one clear line."""

import json
import shutil
from pathlib import Path

import pytest
from driving import SENTENCE, Tinytf

import tinytf as library
from tinytf.loading import load
from tinytf.trace import record as recording


def test_trace_attention_info_and_tokens_open_it(tinytf: Tinytf, llama: Path) -> None:
    traced = tinytf("trace", SENTENCE, "-m", llama, "--json")
    data = json.loads(traced.out)
    assert traced.status == 0
    assert data["check"]["holds"]
    assert data["model"]["config"]["n_kv_heads"] == 2
    assert tinytf("attention", SENTENCE, "-m", llama).status == 0
    told = json.loads(tinytf("info", llama, "--json").out)
    assert (told["family"], told["counted_parameters"]) == ("Llama", told["total_parameters"])
    assert json.loads(tinytf("tokens", SENTENCE, "-m", llama, "--json").out)["tokens"] == data["tokens"]


def test_what_is_wrong_with_the_weights_is_said_first(tinytf: Tinytf, llama: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "poisoned"
    shutil.copytree(llama, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    ran = tinytf("trace", SENTENCE, "-m", folder, "--pipeline")
    assert "note: the weights hold NaN or infinities: blocks.1.ffn.up.weight" in ran.out
    assert ran.status == 1
    assert ran.lines[-1].startswith("check failed")
    assert json.loads(tinytf("info", folder, "--json").out)["notes"]


def test_models_lists_what_is_here_and_why_something_is_not_opened(
    tinytf: Tinytf, llama: Path, decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, cache = tmp_path / "here", tmp_path / "cache"
    shutil.copytree(llama, here / "my-llama")
    shutil.copytree(decoder, here / "my-run")
    (here / "odd").mkdir()
    (here / "odd" / "config.json").write_text('{"model_type": "rwkv7"}', "utf-8")
    snapshot = cache / "models--some--llama" / "snapshots" / "abc"
    shutil.copytree(llama, snapshot)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.chdir(here)
    listed = json.loads(tinytf("models", "--json").out)["models"]
    found = {entry["name"]: entry for entry in listed if entry["place"] not in ("built in", "preset")}
    assert list(found) == ["my-llama", "my-run", "odd", "some/llama"]
    assert [entry["family"] for entry in found.values()] == ["Llama", "tinytf run", "", "Llama"]
    assert "'rwkv7' is not one that tinytf opens" in found["odd"]["problem"]
    assert found["my-llama"]["parameters"] == load(str(llama)).n_parameters
    assert found["my-llama"]["bytes"] == (llama / "model.safetensors").stat().st_size
    assert {entry["name"] for entry in listed} > {"tiny", "tiny-encoder", "preset:gpt2"}
    text = tinytf("models").out
    assert "my-llama" in text
    assert "no: " in text
    events = [json.loads(line) for line in tinytf("models", "--format", "ndjson").lines]
    assert [event["name"] for event in events] == [entry["name"] for entry in listed]


def test_every_listed_name_can_be_opened(tinytf: Tinytf, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(llama.parent)
    for entry in json.loads(tinytf("models", "--json").out)["models"]:
        if entry["place"] == "folder":
            assert tinytf("tokens", SENTENCE, "-m", entry["name"]).status == 0


def test_export_writes_what_load_reads_back(tinytf: Tinytf, llama: Path, tmp_path: Path) -> None:
    ran = tinytf("export", llama, "--to", "huggingface", tmp_path / "again")
    assert ran.status == 0
    assert "written as Llama (LlamaForCausalLM)" in ran.out
    assert f"transformers.AutoModelForCausalLM.from_pretrained('{tmp_path / 'again'}')" in ran.out
    for file in llama.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_export_says_what_stands_in_the_way(tinytf: Tinytf, tmp_path: Path) -> None:
    ran = tinytf("export", "tiny-encoder", "--to", "huggingface", tmp_path / "out")
    assert ran.status == 2
    assert ran.err.startswith("tinytf: error: this architecture is none of the ")
    assert "hint: the nearest is" in ran.err
    assert "it differs in" in ran.err
    assert not (tmp_path / "out").exists()


def test_a_recording_that_does_not_fit_is_refused_and_forced(
    tinytf: Tinytf, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "UNASKED", 0)
    config = load(str(llama)).config
    tokens = len(library.load(str(llama)).encode(SENTENCE).tokens)
    one = recording.recording_bytes(config, tokens, 1, 4, (0,))
    monkeypatch.setattr(recording, "free_bytes", lambda device: one)
    for command in ("trace", "attention"):
        ran = tinytf(command, SENTENCE, "-m", llama)
        assert ran.status == 1
        assert f"recording {tokens} tokens through 3 layers needs" in ran.err
        assert "--force records anyway" in ran.err
        assert not ran.out
        assert tinytf(command, SENTENCE, "-m", llama, "--force").status == 0
    assert tinytf("trace", SENTENCE, "-m", llama, "--step", "weights").status == 0
    assert tinytf("trace", SENTENCE, "-m", llama, "--at", "L0-1.q").status == 1


def test_a_model_in_the_cache_is_opened_without_the_network(
    tinytf: Tinytf, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    repository = tmp_path / "models--some--llama"
    shutil.copytree(llama, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc", "utf-8")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    ran = tinytf("trace", SENTENCE, "-m", "hub:some/llama", "--json")
    assert ran.status == 0
    told = json.loads(ran.out)["model"]
    assert (told["name"], told["source"]) == ("some/llama", str(repository / "snapshots" / "abc"))


@pytest.mark.parametrize("name", ["hub:a/b/c", "hub:", "hub:/x"])
def test_a_name_that_is_none_of_the_hub(tinytf: Tinytf, name: str) -> None:
    ran = tinytf("trace", SENTENCE, "-m", name)
    assert ran.status == 2
    assert "is not the name of a model" in ran.err


def test_the_hub_out_of_reach_is_one_line(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    ran = tinytf("trace", SENTENCE, "-m", "hub:nobody/nothing")
    assert ran.status == 1
    assert ran.err.startswith("tinytf: error: cannot fetch hub:nobody/nothing: ")
    assert len(ran.err.splitlines()) == 2


def test_without_the_extra_the_remedy_is_named(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    ran = tinytf("trace", SENTENCE, "-m", "hub:nobody/nothing")
    assert ran.status == 1
    assert 'hint: pip install "tinytf[hub]"' in ran.err
