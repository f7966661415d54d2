"""Decoders that transformers lets attend both ways with ``is_causal: false``, against its logits."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import transformers
from architectures import enliven, facing, furthest
from covering import sample
from reference import FAMILIES, Pair, last_of, saved

from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import TinytfError
from tinytf.sources import ASSETS
from tinytf.text.tokenizer import Tokenizer

IDS = torch.tensor([[3, 14, 15, 9, 2, 6, 5, 30, 3, 11, 7]])
PUBLISHED = ("llama", "qwen3", "mistral", "gpt2", "gemma", "gemma 2", "gemma 3", "gpt-oss", "phi 3 with a window")
"""Families whose every layer attends; the windows of some count the tokens to each side."""


def with_sight(family: str, value: object, folder: Path) -> Path:
    """The directory of a family's model with ``is_causal`` in its configuration."""
    for file in saved(family).iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "is_causal": value}), "utf-8")
    return folder


@torch.no_grad()
def attends_as_theirs(family: str, folder: Path) -> None:
    theirs = FAMILIES[family]()
    enliven(theirs, 7)
    theirs.set_attn_implementation("eager")
    theirs.eval().config.is_causal = False
    ours = facing(read_directory(with_sight(family, False, folder)).load().transformer)
    assert not ours.config.causal
    assert furthest(*last_of(Pair(theirs, ours), theirs(IDS), ours(IDS))) < 1e-5


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_decoder_attends_both_ways_as_in_transformers(family, tmp_path):
    attends_as_theirs(family, tmp_path)


@sample("family", [name for name in FAMILIES if not re.match("mpt|decoder modernbert", name)], every=20)
def test_every_family_attends_as_in_transformers_or_says_why_not(family, tmp_path):
    """All but two, whose own code fails without a mask."""
    with suppress_refusals():
        attends_as_theirs(family, tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("pair", ["bert to bert", "bert to gpt-2"])
def test_the_decoder_of_a_pair_attends_both_ways_where_its_own_part_says_so(pair, tmp_path):
    """transformers reads the key in the part of the stack alone; beside the parts it is refused."""
    folder = with_sight(pair, False, tmp_path)
    with pytest.raises(TinytfError, match="is_causal False is not implemented for a pair"):
        read_directory(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    del config["is_causal"]
    config["decoder"]["is_causal"] = False
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    theirs = FAMILIES[pair]()
    enliven(theirs, 7)
    theirs.set_attn_implementation("eager")
    theirs.eval().decoder.config.is_causal = False
    ours = facing(read_directory(folder).load().transformer)
    assert furthest(*last_of(Pair(theirs, ours), theirs(IDS), ours(IDS))) < 1e-5


@contextmanager
def suppress_refusals() -> Iterator[None]:
    """Let pass what is refused because of ``is_causal``."""
    try:
        yield
    except TinytfError as error:
        if "is_causal False is not implemented" not in str(error):
            raise


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma 3, capped and untied"])
def test_it_is_exported(family, tmp_path):
    (tmp_path / "in").mkdir()
    ours = read_directory(with_sight(family, None, tmp_path / "in")).load().transformer  # null is false to transformers
    assert not ours.config.causal
    exported = export(ours, Tokenizer.load(ASSETS / "tiny" / "tokenizer.json"), tmp_path / "out")
    kind = getattr(transformers, exported.architecture)
    theirs = kind.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert furthest(theirs(IDS).logits, ours(IDS)) < 1e-5


def test_a_causal_encoder_is_refused_as_it_depends_on_the_kernel_of_attention(tmp_path):
    with pytest.raises(TinytfError, match="is_causal true is not implemented for a model that attends both ways"):
        read_directory(with_sight("bert with a masked head", True, tmp_path))
