"""Folders of sentence-transformers: the vector of a text is the one that its modules say, worked out here by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import config_of, lively
from reference import saved
from safetensors.torch import save_file
from torch import Tensor

from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.huggingface.sentence import read_prompts
from tinytf.errors import CheckpointError, UsageError
from tinytf.sources import ASSETS
from tinytf.text.prompts import Prompts
from tinytf.text.tokenizer import Tokenizer

_SIZES = {"in_features": 24, "out_features": 9}
IDS = torch.tensor([[2, 7, 9, 4, 7, 3]])
BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: sum(x) / 6,
    "mean_sqrt_len_tokens": lambda x: sum(x) / 6**0.5,
    "weightedmean": lambda x: (1 * x[0] + 2 * x[1] + 3 * x[2] + 4 * x[3] + 5 * x[4] + 6 * x[5]) / 21,
    "cls": lambda x: x[0],
    "lasttoken": lambda x: x[5],
    "max": lambda x: torch.stack([max(column) for column in x.T]),
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """The folder of a small BERT with a pooler, and its last hidden states (T, C) in float64."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=40, vocab_size=31, max_position_embeddings=32)
    model = transformers.BertModel(config).eval()
    folder = tmp_path_factory.mktemp("bert")
    model.save_pretrained(folder)
    with torch.no_grad():
        return folder, model(IDS).last_hidden_state[0].double()


def write(folder: Path, bert: Path, *modules: tuple[str, dict[str, Any]], old: bool = False) -> Path:
    """A copy of the BERT with these modules after it, each a type and its config.json; a dense layer has weights."""
    for file in bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    home = "sentence_transformers.models" if old else "sentence_transformers.base.modules.some_file"
    entries = [{"idx": 0, "name": "0", "path": "", "type": f"{home}.Transformer"}]
    for number, (kind, config) in enumerate(modules, 1):
        path = folder / f"{number}_{kind}"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        if kind == "Dense":
            generator = torch.Generator().manual_seed(number)
            weights = {"linear.weight": torch.randn(config["out_features"], config["in_features"], generator=generator)}
            if config.get("bias", True):
                weights["linear.bias"] = torch.randn(config["out_features"], generator=generator)
            save_file(weights, path / "model.safetensors")
        entries.append({"idx": number, "name": str(number), "path": path.name, "type": f"{home}.{kind}"})
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


@torch.no_grad()
def vector_of(folder: Path) -> Tensor:
    model = read_directory(folder).load().transformer
    assert model.pooling is not None
    found: Tensor = model.pooling(model.hidden(IDS))[0]
    return found


@pytest.mark.parametrize("mode", BY_HAND)
def test_each_way_of_pooling(tmp_path: Path, bert: tuple[Path, Tensor], mode: str) -> None:
    folder = write(tmp_path, bert[0], ("Pooling", {"embedding_dimension": 24, "pooling_mode": mode}))
    assert (vector_of(folder) - BY_HAND[mode](bert[1])).abs().max() < 1e-6


def test_an_older_folder_says_it_by_flags(tmp_path: Path, bert: tuple[Path, Tensor]) -> None:
    flags = {"word_embedding_dimension": 24, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    folder = write(tmp_path, bert[0], ("Pooling", flags), ("Normalize", {}), old=True)
    expected = BY_HAND["max"](bert[1])
    assert (vector_of(folder) - expected / expected.square().sum().sqrt()).abs().max() < 1e-6
    assert any("pooler" in note for note in read_directory(folder).load().notes)


@pytest.mark.parametrize(
    ("activation", "act"),
    [("linear.Identity", lambda x: x), ("activation.Tanh", lambda x: 1 - 2 / (1 + (2 * x).exp()))],
)
def test_dense_layers_follow_with_their_activation(
    tmp_path: Path, bert: tuple[Path, Tensor], activation: str, act: Callable[[Tensor], Tensor]
) -> None:
    settings = {"bias": True, "activation_function": f"torch.nn.modules.{activation}"}
    layers = [("Dense", {"in_features": a, "out_features": b, **settings}) for a, b in ((24, 9), (9, 5))]
    folder = write(tmp_path, bert[0], ("Pooling", {"pooling_mode": "mean"}), *layers, ("Normalize", {}))
    x = BY_HAND["mean"](bert[1])
    for number in (2, 3):
        generator = torch.Generator().manual_seed(number)
        weight = torch.randn({2: 9, 3: 5}[number], len(x), generator=generator)
        x = act(weight.double() @ x + torch.randn(len(weight), generator=generator).double())
    assert (vector_of(folder) - x / x.norm()).abs().max() < 1e-6


@torch.no_grad()
def test_a_sentence_t5_is_the_encoder_of_a_t5_with_a_dense_layer(tmp_path: Path) -> None:
    linear = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    dense = ("Dense", {**_SIZES, **linear})
    folder = write(tmp_path, saved("t5, its encoder"), ("Pooling", {"pooling_mode": "mean"}), dense, ("Normalize", {}))
    theirs = transformers.T5EncoderModel.from_pretrained(saved("t5, its encoder")).eval()
    mean = BY_HAND["mean"](theirs(IDS).last_hidden_state[0].double())
    x = torch.randn(9, 24, generator=torch.Generator().manual_seed(2)).double() @ mean
    assert (vector_of(folder) - x / x.norm()).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ([("Pooling", {"pooling_mode": ["cls", "mean"]})], "several kinds of pooling side by side (cls, mean)"),
        ([("Pooling", {"pooling_mode": "mean", "include_prompt": False})], "without the tokens of the prompt"),
        ([("SpladePooling", {})], "the module 'SpladePooling'"),
        ([("Normalize", {}), ("Pooling", {"pooling_mode": "mean"})], "the module 'Normalize'"),
        ([("Pooling", {"pooling_mode": "mean"}), ("Dense", {**_SIZES, "use_residual": True})], "use_residual"),
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_named_and_the_transformer_opens_alone(
    tmp_path: Path, bert: tuple[Path, Tensor], modules: list[tuple[str, dict[str, Any]]], said: str
) -> None:
    loaded = read_directory(write(tmp_path, bert[0], *modules)).load()
    assert loaded.transformer.config.pooling == "none"
    assert loaded.transformer.config.pooler
    assert any(said in note for note in loaded.notes)


@pytest.mark.parametrize("mode", [7, [["mean"]], {"mean": True}])
def test_a_mode_that_is_no_word_is_refused(tmp_path: Path, bert: tuple[Path, Tensor], mode: Any) -> None:
    folder = write(tmp_path, bert[0], ("Pooling", {"pooling_mode": mode}))
    with pytest.raises(CheckpointError, match="pooling_mode is"):
        read_directory(folder)


def test_a_module_outside_the_folder_is_refused(tmp_path: Path, bert: tuple[Path, Tensor]) -> None:
    folder = write(tmp_path, bert[0], ("Pooling", {"pooling_mode": "mean"}))
    text = (folder / "modules.json").read_text().replace("1_Pooling", "../1_Pooling")
    (folder / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        read_directory(folder)


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", ["minilm, the mean of the tokens at length 1", "labse, the first token through a dense layer"]
)
def test_an_exported_model_makes_the_same_vectors_of_the_same_prompts(tmp_path: Path, kind: str) -> None:
    model, prompts = lively(config_of(kind, head="none")), Prompts({"query": "ask: "}, "query")
    export(model, Tokenizer.load(ASSETS / "tiny-encoder" / "tokenizer.json"), tmp_path / "out", prompts)
    again = read_directory(tmp_path / "out").load().transformer
    assert again.config == model.config
    assert again.pooling is not None
    assert model.pooling is not None
    assert torch.equal(again.pooling(again.hidden(IDS)), model.pooling(model.hidden(IDS)))
    assert read_prompts(tmp_path / "out") == prompts


def test_prompts_are_read_by_name(tmp_path: Path) -> None:
    assert read_prompts(tmp_path).of() == ""
    data = {"prompts": {"query": "ask: ", "passage": "say: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(data))
    prompts = read_prompts(tmp_path)
    assert (prompts.of(), prompts.of("passage"), prompts.first(("document", "passage"))) == (
        "ask: ",
        "say: ",
        "passage",
    )
    with pytest.raises(UsageError, match="no prompt 'pasage'"):
        prompts.of("pasage")
