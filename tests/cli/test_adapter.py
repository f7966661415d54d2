"""A LoRA adapter on the command line: merged at opening, compared with the model without it, written out."""

import json
import shutil
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
    assert "there is no adapter_config.json" in ran.err.splitlines()[0]
    assert ran.err.splitlines()[1:] == ["hint: is its name right?"]


def test_the_explorer_opens_the_model_with_its_adapter(
    tinytf: Tinytf, llama: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[Spec] = []

    def begin(session: Session, text: str, **target: str | None) -> Outcome:
        specs.append(session.state.spec)
        return Outcome(1)

    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver")  # as where a browser shows it
    monkeypatch.setattr(Session, "begin", begin)
    assert tinytf("explore", SENTENCE, "-m", llama, "--adapter", adapter, "--dtype", "float64").status == 1
    assert [(spec.name, spec.adapter, spec.dtype) for spec in specs] == [(str(llama), adapter, "float64")]


WRONG = {
    "nothing": (0.0, "No, B is not polite, merged: L1.W_Q is without the adapter, up to rounding in {dtype}."),
    "twice": (2.0, "holds the adapter twice"),
    "without its scale": (1 / 3, "holds the adapter without its scale s = 3"),
    "with its scale twice": (3.0, "holds the adapter with its scale s = 3 twice"),
    "taken away": (-1.0, "has the adapter taken away"),
    "in part": (0.5, "holds the adapter 0.5 ×"),
}


def merged_by_hand(llama: Path, adapter: Path, out: Path, times: float, dtype: torch.dtype) -> Path:
    """The directory of the model with the adapter added ``times``, each tensor rounded to ``dtype``."""
    shutil.copytree(llama, out)
    down, up = load_file(adapter / "adapter_model.safetensors").values()
    tensors = load_file(llama / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.weight"] += times * 6 / 2 * (up @ down)
    save_file({name: one.to(dtype) for name, one in tensors.items()}, out / "model.safetensors", {"format": "pt"})
    return out


@pytest.mark.share(6)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_diff_answers_whether_a_merge_is_the_adapter(
    tinytf: Tinytf, llama: Path, adapter: Path, tmp_path: Path, dtype: str
) -> None:
    asked = ("diff", SENTENCE, "-m", llama, "--adapter", adapter, "--json", "--versus")
    right = merged_by_hand(llama, adapter, tmp_path / "right", 1.0, getattr(torch, dtype))
    found = json.loads(tinytf(*asked, right).out)
    said = "Yes, B is polite, merged: 1 weight holds it once, and the others are the base's"
    assert found["sentence"].startswith(f"{said}, up to rounding in {dtype}.")
    assert found["merge"]["is_merge"] is True
    for about, (times, words) in WRONG.items():
        other = merged_by_hand(llama, adapter, tmp_path / about, times, getattr(torch, dtype))
        found = json.loads(tinytf(*asked, other).out)
        assert words.format(dtype=dtype) in found["sentence"], about
        wrong = [one for one in found["merge"]["weights"] if not one["holds"]]
        assert [one["addresses"] for one in wrong] == [["L1.W_Q"]]
        assert wrong[0]["times"] == pytest.approx(times, abs=0.02)


def test_a_scale_of_two_applied_again_is_also_a_second_merge(
    tinytf: Tinytf, llama: Path, adapter: Path, tmp_path: Path
) -> None:
    settings = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    (adapter / "adapter_config.json").write_text(json.dumps({**settings, "lora_alpha": 4}), "utf-8")
    other = merged_by_hand(llama, adapter, tmp_path / "other", 4 / 3, torch.float32)
    found = json.loads(tinytf("diff", SENTENCE, "-m", llama, "--adapter", adapter, "--versus", other, "--json").out)
    assert "holds the adapter twice, or with its scale s = 2 twice" in found["sentence"]


def test_weights_that_the_adapter_does_not_change_are_the_bases(
    tinytf: Tinytf, llama: Path, adapter: Path, tmp_path: Path
) -> None:
    other = merged_by_hand(llama, adapter, tmp_path / "other", 1.0, torch.float32)
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"] *= 1.01
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    ran = tinytf("diff", SENTENCE, "-m", llama, "--adapter", adapter, "--versus", other)
    said = "L0.ffn.W_down differs by 1.0 % from the base's, which the adapter does not change"
    assert said in " ".join(ran.out.split())
    assert "1 of the 1 that it changes" in " ".join(ran.out.split())


def test_another_dtype_of_the_model_has_the_adapter_too(tinytf: Tinytf, llama: Path, adapter: Path) -> None:
    ran = tinytf("diff", SENTENCE, "-m", llama, "--adapter", adapter, "--versus-dtype", "float64", "--json")
    found = json.loads(ran.out)
    assert found["second"]["model"]["name"] == f"{llama.name} + polite"
    assert found["first_difference"] is None
    assert "merge" not in found


def test_an_adapter_smaller_than_the_rounding_of_a_merge_is_told_from_one_without_its_scale(
    tinytf: Tinytf, llama: Path, adapter: Path, tmp_path: Path
) -> None:
    """In bfloat16, W + Δ is mostly W where Δ is small: B − W, projected on Δ, is then far from Δ itself."""
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({name: one * 0.02 for name, one in weights.items()}, adapter / "adapter_model.safetensors")
    down, up = (0.02 * one for one in weights.values())
    for times, words in ((1.0, "Yes, B is polite"), (1 / 3, "without its scale s = 3"), (2.0, "adapter twice")):
        other = merged_by_hand(llama, adapter, tmp_path / f"base-{times:.1f}", 0.0, torch.bfloat16)
        tensors = load_file(other / "model.safetensors")
        tensors["model.layers.1.self_attn.q_proj.weight"] += (times * 3 * (up @ down)).bfloat16()
        save_file(tensors, other / "model.safetensors", {"format": "pt"})
        ran = tinytf("diff", SENTENCE, "-m", llama, "--adapter", adapter, "--versus", other)
        assert words in " ".join(ran.out.split())
