"""A rotary base that grows with the text: every family turns texts of each length as transformers does."""

import copy
from pathlib import Path

import pytest
import torch
from architectures import enliven
from reference import DYNAMIC, FAMILIES, as_if_first
from torch import nn

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import CheckpointError

CONTEXT = 8
LENGTHS = (3, 8, 9, 20)
TOLERANCE = 2e-4
"""What the long states of recurrent layers round; another base is 1e-2 off."""


def growing(family: str) -> nn.Module:
    """Their model of a family with a growing base; skipped where it has no RoPE, or transformers refuses it."""
    plain = FAMILIES[family]()
    config = copy.deepcopy(plain.config)
    given = getattr(config, "rope_parameters", None)
    if not isinstance(given, dict) or given.get("rope_type") != "default":
        pytest.skip("it has no plain rotary settings")
    try:
        config.rope_parameters = {**given, **DYNAMIC}
        config.max_position_embeddings = CONTEXT
        theirs = as_if_first(type(plain)(config)).eval()
        theirs(torch.zeros(1, CONTEXT + 1, dtype=torch.long))
        config.validate()
    except Exception as refusal:
        pytest.skip(f"transformers takes none: {refusal}")
    enliven(theirs, 7)
    return theirs


@pytest.mark.share(16)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_texts_within_and_beyond_the_context_of_training(tmp_path: Path, family: str) -> None:
    if family.startswith("zamba2, adapters"):
        pytest.skip("its plain base is as far off: its states are too sensitive to rounding")
    theirs = growing(family)
    try:
        theirs.save_pretrained(tmp_path)
        ours = read_directory(tmp_path).load().transformer
    except (CheckpointError, ValueError) as refusal:
        pytest.skip(f"it is refused: {refusal}")
    ours.averaged = None  # hidden states of tokens are compared, not the mean that a head reads
    if ours.config.positions != "rotary":
        pytest.skip("it has no RoPE")
    for length in LENGTHS:
        ids = torch.randint(3, ours.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(length))
        expected = theirs(ids, output_hidden_states=True).hidden_states[-1]
        assert float((ours.hidden(ids) - expected).abs().max()) < TOLERANCE
