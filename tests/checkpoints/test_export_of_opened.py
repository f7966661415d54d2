"""What can be opened can be exported: every family and every GGUF architecture, to the same logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import facing, furthest
from covering import sample
from gguf_conversion import CONVERSIONS, converted
from reference import FAMILIES, Pair, class_named, last_of, saved

from tinytf.checkpoints.gguf import read_gguf
from tinytf.checkpoints.huggingface.export import export, family_for
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.load import Checkpoint
from tinytf.sources import ASSETS
from tinytf.text.tokenizer import Tokenizer

LEFT = ("contact_head", "pooler", "correct_output_scale", "inv_freq", "_decay", "slope_rate", "embed_positions")
"""What we do not have, what nothing reads, and what is computed again."""
IDS = torch.arange(11)[None] * 7 % 31 + 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(ASSETS / "tiny" / "tokenizer.json")


@torch.no_grad()
def exported_says_the_same(opened: Checkpoint, tokenizer: Tokenizer, folder: Path) -> None:
    model = facing(opened.load().transformer.eval())
    exported = export(model, tokenizer, folder)
    theirs = class_named(exported.architecture)
    said = None if theirs is None else opened_as(theirs, folder)(IDS)
    again = facing(read_directory(folder).load().transformer)
    if said is not None:
        assert furthest(*last_of(Pair(theirs, model), said, model(IDS))) < 2e-5
    # in double precision, as products add up in another order where equal weights lie otherwise in memory
    assert furthest(again.double()(IDS), model.double()(IDS)) < 1e-6


def opened_as(kind: Any, folder: Path) -> Any:
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    missing = [name for name in report["missing_keys"] if not any(word in name for word in LEFT)]
    assert not missing, "transformers would draw them"
    return model.eval()


@sample("family", FAMILIES, every=40)
def test_a_directory_of_every_family_is_written_again(family, tokenizer, tmp_path):
    exported_says_the_same(read_directory(saved(family)), tokenizer, tmp_path / "out")


@sample("name", CONVERSIONS, every=12)
def test_a_gguf_file_of_every_architecture_becomes_a_directory(name, tokenizer, tmp_path):
    parts = converted(CONVERSIONS[name])[1]
    exported_says_the_same(read_gguf(parts.write(tmp_path / "a.gguf")), tokenizer, tmp_path / "out")


@sample("family", FAMILIES, every=15)
def test_a_family_has_the_configuration_of_every_directory(family):
    """Without weights, so quick enough for many."""
    config = read_directory(saved(family)).config
    family_for(config.but(dropout=0.0))
