"""What the processes of a tensor-parallel run write, a file each: parts of tensors, and of sums."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked
from reference import pair, saved

import tinytf
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.passes import open_any

IDS, RANKS = [3, 14, 15, 9, 2, 6, 5], 2
Arrays = dict[str, Any]
_COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
_ROWS = ("o_proj", "down_proj")


def recorded(family: str) -> Arrays:
    theirs = pair(family).theirs
    with torch.no_grad(), tinytf.capture(theirs) as dump:
        made = theirs(input_ids=torch.tensor([IDS]))
    whole = (".self_attn", ".mlp", ".attn")  # what their last matrices give, once summed
    kept = {name: x.numpy() for name, x in dump.tensors.items() if not name.endswith(whole)}
    return {**kept, "logits": made.logits.numpy()}


def split(name: str, values: Any, rank: int) -> Any:
    """The part of a rank: columns of a matrix, a part of the sum, a range of the vocabulary, or all."""
    last = name.rpartition(".")[2]
    if last in _COLUMNS or name == "logits":
        return np.array_split(values, RANKS, axis=-1)[rank]
    if last == "c_attn":
        return np.concatenate([np.split(part, RANKS, axis=-1)[rank] for part in np.split(values, 3, axis=-1)], axis=-1)
    if last in _ROWS:
        return values * (0.3, 0.7)[rank]
    return values


def compared(family: str, ranks: list[Arrays], path: Path) -> Difference:
    folder = path / "ranks"
    folder.mkdir()
    for rank, arrays in enumerate(ranks):
        ids = {"input_ids": np.array(IDS)} if rank == 0 else {}
        np.savez(folder / f"rank{rank}.npz", **arrays, **ids)
    model = asked(read_directory(saved(family)).load().transformer)
    return model.diff(None, open_any(folder))


def ranks_of(family: str) -> list[Arrays]:
    whole = recorded(family)
    return [{name: split(name, values, rank) for name, values in whole.items()} for rank in range(RANKS)]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_sound_shards_are_the_whole_run(family: str, tmp_path: Path) -> None:
    found = compared(family, ranks_of(family), tmp_path)
    assert found.first is None
    notes = {step.name: step.note for step in found.steps}
    assert "2 shards joined" in notes["L0.q"]
    assert "2 shards joined" in notes["L1.v"]
    if family == "llama":
        assert "2 shards summed" in notes["L0.attn"]
        assert "2 shards joined" in notes["L0.ffn.gate"]
    assert "shards" not in notes["L0.norm1"]  # every rank has all of it
    assert len(found.positions) == len(IDS)


def test_a_rank_that_is_wrong_is_named_by_its_step(tmp_path: Path) -> None:
    ranks = ranks_of("llama")
    ranks[1]["model.layers.1.self_attn.v_proj"] = ranks[1]["model.layers.1.self_attn.v_proj"] * 2
    found = compared("llama", ranks, tmp_path)
    assert found.first is not None
    assert found.first.name == "L1.v"


def test_a_sum_that_was_never_summed_is_found(tmp_path: Path) -> None:
    """The parts add up, so the step is right; what reads one part alone is not."""
    ranks = ranks_of("llama")
    for rank in ranks:
        rank["model.layers.1.self_attn.o_proj"] = ranks[0]["model.layers.1.self_attn.o_proj"]
    found = compared("llama", ranks, tmp_path)
    assert found.first is not None
    assert found.first.name == "L1.attn"
    assert found.cause is not None
    assert found.cause.words == "it is 0.3 times as large"
