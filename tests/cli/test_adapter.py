"""A LoRA adapter on the command line: merged at opening, compared with the model without it, written out."""

import json
from pathlib import Path

import pytest
import torch
from driving import SENTENCE, Tinytf
from safetensors.torch import load_file, save_file

from tinytf_cli.repl.session import Outcome, Session
from tinytf_cli.repl.state import Spec


@pytest.fixture
def adapter(llama: Path, tmp_path: Path) -> Path:
    """What PEFT writes for the queries of the second layer, made by hand."""
    folder = tmp_path / "polite"
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
    rows, columns = matrix(llama).shape
    generator = torch.Generator().manual_seed(5)
    down, up = (torch.randn(shape, generator=generator) * 0.3 for shape in ((2, columns), (rows, 2)))
    name = "base_model.model.model.layers.1.self_attn.q_proj"
    save_file({f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}, folder / "adapter_model.safetensors")
    return folder


def matrix(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]


def test_diff_with_an_adapter_shows_where_it_acts(tinytf: Tinytf, llama: Path, adapter: Path) -> None:
    ran = tinytf("diff", SENTENCE, "-m", llama, "--adapter", adapter, "--json")
    found = json.loads(ran.out)
    assert found["first_difference"] == "L1.q"
    assert [one["name"] for one in found["weights"] if one["change"]] == ["blocks.1.attention.q.weight"]
    assert found["first"]["model"]["name"] == llama.name
    assert found["second"]["model"]["name"] == f"{llama.name} + polite"


def test_export_writes_the_merged_weights(tinytf: Tinytf, llama: Path, adapter: Path, tmp_path: Path) -> None:
    written = tmp_path / "merged"
    assert tinytf("export", llama, written, "--adapter", adapter, "--to", "huggingface").status == 0
    down, up = load_file(adapter / "adapter_model.safetensors").values()
    assert torch.allclose(matrix(written), matrix(llama) + 6 / 2 * (up @ down), atol=1e-6)
    merged = json.loads(tinytf("diff", SENTENCE, "-m", llama, "--adapter", adapter, "--versus", written, "--json").out)
    assert merged["first_difference"] is None, "the merge is the adapter"
    same = json.loads(tinytf("diff", SENTENCE, "-m", written, "--versus", llama, "--json").out)
    assert [one["name"] for one in same["weights"] if one["change"]] == ["blocks.1.attention.q.weight"]


def test_every_command_opens_it_and_a_session_keeps_it(tinytf: Tinytf, llama: Path, adapter: Path) -> None:
    def best(*words: object) -> list[float]:
        return [
            one["logit"] for one in json.loads(tinytf("trace", SENTENCE, *words, "--json").out)["predictions"][0]["top"]
        ]

    plain, merged = best("-m", llama), best("-m", llama, "--adapter", adapter)
    assert plain != merged
    lines = ("-c", f"run {SENTENCE}", "-c", "model", "-c", f"model {llama}", "-c", "model")
    said = tinytf("repl", "-m", llama, "--adapter", adapter, *lines).out
    assert said.count(f"{llama.name} + polite") == 1


def test_a_folder_that_is_no_adapter_is_one_clear_line(tinytf: Tinytf, llama: Path, tmp_path: Path) -> None:
    ran = tinytf("trace", SENTENCE, "-m", llama, "--adapter", tmp_path)
    assert (ran.status, ran.out) == (1, "")
    assert "there is no adapter_config.json" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_the_explorer_opens_the_model_with_its_adapter(
    tinytf: Tinytf, llama: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[Spec] = []

    def begin(session: Session, text: str) -> Outcome:
        specs.append(session.state.spec)
        return Outcome(1)

    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver")  # as where a browser shows it
    monkeypatch.setattr(Session, "begin", begin)
    assert tinytf("explore", SENTENCE, "-m", llama, "--adapter", adapter, "--dtype", "float64").status == 1
    assert [(spec.name, spec.adapter, spec.dtype) for spec in specs] == [(str(llama), adapter, "float64")]
