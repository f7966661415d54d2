"""Importance beside damage: errors summed weight by weight, ranks counted, and matrices of other models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked, config_of, lively
from importance_files import old_format
from torch import Tensor
from whole_runs import TEXTS, near

from tinytf.cause.importance import Importance, TensorImportance
from tinytf.errors import UsageError
from tinytf.estimate import rank_correlation

NAMES = {
    "llama, grouped": {
        "attention.q": "attn_q",
        "attention.k": "attn_k",
        "attention.v": "attn_v",
        "attention.o": "attn_output",
        "ffn.gate": "ffn_gate",
        "ffn.up": "ffn_up",
        "ffn.down": "ffn_down",
    },
    "gpt2": {
        "attention.q": "attn_qkv",
        "attention.k": "attn_qkv",
        "attention.v": "attn_qkv",
        "attention.o": "attn_output",
        "ffn.up": "ffn_up",
        "ffn.down": "ffn_down",
    },
    "experts beside a shared one, after a dense layer": {
        "attention.q": "attn_q",
        "attention.o": "attn_output",
        "ffn.experts.gate": "ffn_gate_exps",
        "ffn.experts.down": "ffn_down_exps",
    },
}
"""The names of some of our matrices in GGUF files, of three kinds of layouts."""


def means_of(kind: str, model: Any) -> dict[str, Tensor]:
    """Something for each matrix that is named: (E·C,) or (C,)."""
    generator, means = torch.Generator().manual_seed(1), {}
    for path, parameter in model.named_parameters():
        _, layer, module = path.removesuffix(".weight").split(".", 2) if "blocks" in path else ("", "", "")
        if name := NAMES[kind].get(module) if path.endswith("weight") else None:
            experts = parameter.shape[0] if parameter.dim() == 3 else 1
            value = torch.rand(experts * parameter.shape[-1], generator=generator)
            means.setdefault(f"blk.{layer}.{name}.weight", value)
    return means


@pytest.mark.parametrize("kind", NAMES)
def test_an_error_is_the_sum_of_what_every_weight_adds(kind: str, tmp_path: Path) -> None:
    first = lively(config_of(kind))
    other, means = near(first), means_of(kind, first)
    report = asked(first).blame(TEXTS, asked(other))
    found = asked(first).importance(asked(other), old_format(tmp_path / "i.dat", means), report.damages)
    seen = {(one.address, one.name): one for one in found.tensors}
    count = 0
    for blamed in report.blamed:
        _, layer, module = (
            blamed.path.removesuffix(".weight").split(".", 2) if "blocks" in blamed.path else ("", "", "")
        )
        name = f"blk.{layer}.{NAMES[kind].get(module)}.weight"
        if name not in means or not blamed.path.endswith("weight"):
            continue
        count += 1
        one, weight = seen[blamed.address, name], first.get_parameter(blamed.path).detach().double().numpy()
        change = other.get_parameter(blamed.path).detach().double().numpy() - weight
        of_inputs = means[name].double().numpy().reshape(-1, weight.shape[-1])  # a row for each expert, else one
        error = size = 0.0
        for expert, rows in enumerate(of_inputs):
            matrix = (change if weight.ndim == 2 else change[expert]), (weight if weight.ndim == 2 else weight[expert])
            error += float((rows * matrix[0] ** 2).sum())
            size += float((rows * matrix[1] ** 2).sum())
        assert one.error == pytest.approx(error, rel=1e-4), blamed.address
        assert one.relative == pytest.approx((error / size) ** 0.5, rel=1e-4)
        assert one.importance == pytest.approx(float(of_inputs.mean()), rel=1e-5)
        largest = sorted(of_inputs.flatten(), reverse=True)[: -(-of_inputs.size // 100)]
        assert one.top_share == pytest.approx(sum(largest) / of_inputs.sum(), rel=1e-5)
        assert one.damage == report.damages[blamed.path]
    assert count == len(found.tensors) == len(seen)
    damages = [one.damage for one in found.tensors]
    assert damages == sorted(damages, reverse=True)
    assert "E" in found.without
    assert not set(found.without) & {one.address for one in found.tensors}
    assert report.importance is None


def spearman(first: list[float], second: list[float]) -> float:
    """By counting: the rank of a value is how many are less, and half of the others that are equal."""
    ranks = [np.array([sum(b < a for b in side) + (side.count(a) + 1) / 2 for a in side]) for side in (first, second)]
    one, two = (rank - rank.mean() for rank in ranks)
    return float((one * two).sum() / np.sqrt((one**2).sum() * (two**2).sum()))


def test_ranks_that_are_equal_are_shared() -> None:
    draw = np.random.default_rng(2)
    for size in (3, 10, 50):
        first, second = (draw.integers(0, 8, size).astype(float).tolist() for _ in range(2))
        assert rank_correlation(first, second) == pytest.approx(spearman(first, second))
    assert rank_correlation([1, 2, 3], [1e-9, 5, 6]) == pytest.approx(1)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([1, 2, 3, 4, 5], "agrees"),
        ([2, 1, 4, 3, 5], "agrees"),  # 0.8
        ([3, 2, 1, 4, 5], "partly agrees"),  # 0.6
        ([1, 3, 5, 2, 4], "partly agrees"),  # 0.5
        ([4, 2, 1, 3, 5], "does not agree"),  # 0.3
        ([3, 4, 1, 2, 5], "does not agree"),  # 0.2
        ([5, 4, 3, 2, 1], "does not agree"),
        ([1, 2], None),
    ],
)
def test_a_verdict_is_a_rank_correlation_in_words(errors: list[int], verdict: str | None) -> None:
    tensors = [TensorImportance("", "", 1.0, 1.0, error, 1.0, damage) for damage, error in enumerate(errors)]
    unmeasured = TensorImportance("", "", 1.0, 1.0, 9.0, 1.0, None)
    found = Importance((), None, None, (*tensors, unmeasured), ())
    assert found.verdict == verdict
    assert found.to_dict()["verdict"] == verdict


def test_the_matrix_of_another_model_is_refused(tmp_path: Path) -> None:
    first = lively(config_of("llama, grouped"))
    other, means, path = near(first), means_of("llama, grouped", first), tmp_path / "i.dat"
    narrow = {name: value[:-1] for name, value in means.items()}
    for wrong, message in (
        (means | {"blk.2.ffn_up.weight": torch.ones(24)}, "it has 'blk.2.ffn_up.weight', and the model does not"),
        ({"blk.x-": torch.ones(3)}, "it has 'blk.x-', and the model does not"),
        ({"blk.": torch.ones(3)}, "it has 'blk.', and the model does not"),
        ({name: value for name, value in means.items() if "blk.0" not in name}, "it has nothing of blk.0"),
        (narrow, "attn_q.weight has 23 inputs there, and 24 here"),
    ):
        with pytest.raises(UsageError, match=f"of another model: .*{message}"):
            asked(first).importance(asked(other), old_format(path, wrong))
    unnamed = lively(config_of("norms of what is added"))
    with pytest.raises(UsageError, match="no GGUF names"):
        asked(unnamed).importance(asked(near(unnamed)), old_format(path, means))
