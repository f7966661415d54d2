"""What can be opened can be exported: every family and every GGUF architecture, to the same logits."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from architectures import furthest
from gguf_conversion import CONVERSIONS, converted
from reference import FAMILIES, saved
from test_export import opened_by_transformers

from tinytf.checkpoints.gguf import read_gguf
from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.load import Checkpoint
from tinytf.sources import ASSETS
from tinytf.text.tokenizer import Tokenizer

_NO_CLASS = ("GteModel", "GteForMaskedLM", "XLMRobertaLoRA")
IDS = torch.arange(2 * 11).reshape(2, 11) * 7 % 31 + 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(ASSETS / "tiny" / "tokenizer.json")


@torch.no_grad()
def exported_says_the_same(opened: Checkpoint, tokenizer: Tokenizer, folder: Path) -> None:
    model = opened.load().transformer.eval()
    exported = export(model, tokenizer, folder)
    expected = model(IDS) if model.config.head.kind != "none" else model.hidden(IDS)
    again = read_directory(folder).load().transformer
    found = again(IDS) if model.config.head.kind != "none" else again.hidden(IDS)
    assert furthest(found, expected) < 1e-6
    assert not again.config.differences(model.config.but(dropout=0.0))
    if not hasattr(transformers, exported.architecture):
        return
    theirs = opened_by_transformers(folder, exported.architecture)(IDS)
    if model.config.head.kind == "none":
        said = theirs.last_hidden_state
    elif model.config.head.kind == "question":
        said = torch.stack([theirs.start_logits, theirs.end_logits], dim=-1)
    else:
        said = theirs.logits
    read = expected[:, 0 if model.config.head_reads == "first" else -1] if model.config.head.kind == "sequence" else expected
    assert furthest(said.view(read.shape), read) < 2e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_of_every_family_is_written_again(family, tokenizer, tmp_path):
    exported_says_the_same(read_directory(saved(family)), tokenizer, tmp_path / "out")


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_gguf_file_of_every_architecture_becomes_a_directory(name, tokenizer, tmp_path):
    parts = converted(CONVERSIONS[name])[1]
    exported_says_the_same(read_gguf(parts.write(tmp_path / "a.gguf")), tokenizer, tmp_path / "out")
