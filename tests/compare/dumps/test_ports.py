"""Ports with one mistake each: the step that it is in is the first that differs, whatever else differs after it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked

sys.path += [str(Path(__file__).parents[2] / "parity"), str(Path(__file__).parent)]

from ports import MISTAKES, llama
from reference import saved

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import open_dump
from tinytf.errors import DumpError, UsageError
from tinytf.loading import load

IDS = [3, 14, 15, 9, 2, 6, 5]


@pytest.fixture(scope="module")
@torch.no_grad()
def folder() -> Path:
    return saved("llama, biases everywhere")


def against(folder: Path, tensors: dict[str, np.ndarray], path: Path, **settings: Any) -> Difference:
    np.savez(path, **tensors)
    model = asked(read_directory(folder).load().transformer)
    return model.diff(" ".join(map(str, IDS)), open_dump(path), **settings)


def test_a_port_without_a_mistake_has_no_difference(folder: Path, tmp_path: Path) -> None:
    found = against(folder, llama(folder, IDS), tmp_path / "port.npz")
    assert found.first is None
    assert found.missing == ("embed.tokens",)
    assert found.worst is not None
    assert found.worst.relative < 1e-5


@pytest.mark.share(8)
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.slow
def test_a_mistake_is_named_at_its_step_with_its_cause(folder: Path, tmp_path: Path, mistake: str) -> None:
    step, words = MISTAKES[mistake]
    found = against(folder, llama(folder, IDS, mistake), tmp_path / "port.npz")
    assert found.first is not None
    assert found.first.name == step
    assert found.cause is not None
    assert (found.cause.step, found.cause.found, found.cause.unseen) == (step, True, ())
    assert found.cause.words.startswith(words)
    if mistake == "positions from one":  # which no score sees
        assert found.rewritten.startswith(f"L0.q_rot: {found.cause.in_words}")
        assert found.sentence.startswith(f"The same predictions; written differently: {found.rewritten}")
    else:
        assert found.sentence.startswith(f"They differ from {found.first.name} on: {words}")


def test_rows_in_pairs_are_no_mistake_where_attention_comes_out_the_same(folder: Path, tmp_path: Path) -> None:
    found = against(folder, llama(folder, IDS, "no mistake but other rows"), tmp_path / "port.npz")
    assert found.first is None
    notes = {one.name: one.note for one in found.steps}
    assert {notes[f"L1.{name}"] for name in ("q", "k", "q_rot", "k_rot")} == {"pairs of rows put in halves"}
    assert notes["L1.v"] == ""


BLOCK_BY_BLOCK = ("embed.out", "norm1", "v", "weights", "attn", "mid", "out", "final.norm", "logits")


@pytest.mark.share(8)
@pytest.mark.parametrize(
    ("mistake", "first", "step"),
    [
        ("rotary base", "L0.weights", "L0.q_rot and L0.k_rot"),
        ("q and k permuted", "L0.weights", "L0.q and L0.k"),
        ("matrices swapped", "L1.out", "L1.ffn.hidden"),
        ("o_proj transposed", "L0.attn", "L0.attn"),
        ("head order", "L0.weights", "L0.scores"),
        ("bias missing", "L0.weights", "L0.q"),
        ("tanh gelu", "L0.out", "L0.ffn.act"),
    ],
)
def test_the_cause_is_found_where_the_file_lacks_its_step(
    folder: Path, tmp_path: Path, mistake: str, first: str, step: str
) -> None:
    every = llama(folder, IDS, mistake)
    few = {name: one for name, one in every.items() if name.endswith(BLOCK_BY_BLOCK)}
    found = against(folder, few, tmp_path / "port.npz")
    assert found.first is not None
    assert found.first.name == first
    assert found.cause is not None
    assert (found.cause.step, found.cause.found) == (step, True)


@pytest.mark.slow
def test_where_no_mistake_is_recognised_it_is_said_where_it_may_begin(folder: Path, tmp_path: Path) -> None:
    every = llama(folder, IDS)
    shares = every["L0.weights"]
    every["L0.weights"] = shares * np.random.default_rng(0).uniform(0.5, 1.5, shares.shape)
    few = {name: one for name, one in every.items() if name.endswith(BLOCK_BY_BLOCK)}
    found = against(folder, few, tmp_path / "port.npz")
    assert found.cause is not None
    assert not found.cause.found
    assert found.cause.unseen == ("L0.q", "L0.k", "L0.q_rot", "L0.k_rot", "L0.scores", "L0.scaled", "L0.masked")
    whole = against(folder, every, tmp_path / "port.npz").cause
    assert whole is not None
    assert (whole.step, whole.words, whole.found) == ("L0.weights", "the axis of the softmax", False)


@pytest.mark.parametrize("hidden", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_masked_scores_of_any_program_are_masked(folder: Path, tmp_path: Path, hidden: float) -> None:
    every = llama(folder, IDS)
    for name in every:
        if name.endswith("masked"):
            every[name] = np.where(np.isinf(every[name]), hidden, every[name])
    found = against(folder, every, tmp_path / "port.npz")
    assert found.first is None
    assert "read as masked" in next(one for one in found.steps if one.name == "L1.masked").note


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x[None],
        lambda x: x.swapaxes(0, 1)[None] if x.ndim == 3 and x.shape[1:] != (7, 7) else x,  # (1, T, H, D)
        lambda x: x.swapaxes(0, 1).reshape(len(IDS), -1) if x.ndim == 3 and x.shape[1:] != (7, 7) else x,  # (T, H·D)
        lambda x: x.T if x.ndim == 2 and x.shape[0] != x.shape[1] else x,
        lambda x: x[:, None] if x.ndim == 2 else x,  # (T, 1, C)
        lambda x: x.repeat(2, axis=0) if x.shape == (2, 7, 6) else x,  # keys and values for each query head
        lambda x: x.astype(np.float16).astype(np.float32),
    ],
    ids=["batch", "heads after tokens", "heads side by side", "transposed", "batch in the middle", "repeated", "half"],
)
def test_any_layout_of_the_same_numbers_is_read(folder: Path, tmp_path: Path, layout: Any) -> None:
    every = {name: layout(one) for name, one in llama(folder, IDS).items()}
    found = against(folder, every, tmp_path / "port.npz", tolerance=1e-2)
    assert found.first is None
    assert not found.incomparable
    assert found.missing == ("embed.tokens",)


def test_a_file_may_have_the_first_tokens_alone(folder: Path, tmp_path: Path) -> None:
    found = against(folder, llama(folder, IDS[:4]), tmp_path / "port.npz")
    assert found.first is None
    assert found.alignment.note == "port.npz has the first 4 of 7 tokens"
    assert len(found.positions) == 4
    with pytest.raises(DumpError, match="has 9 positions, and the text 7 tokens"):
        against(folder, llama(folder, [*IDS, 1, 2]), tmp_path / "port.npz")


def test_the_ids_of_a_file_are_its_text(folder: Path, tmp_path: Path) -> None:
    other = [1, 2, 3]
    np.savez(tmp_path / "port.npz", input_ids=np.array([other]), **llama(folder, other))
    model = asked(read_directory(folder).load().transformer)
    found = model.diff(None, open_dump(tmp_path / "port.npz"))
    assert found.first is None
    assert [token.id for token in found.sides[0].text.tokens] == other
    with pytest.raises(UsageError, match="of another text"):
        model.diff("1 2 4", open_dump(tmp_path / "port.npz"))
    np.savez(tmp_path / "b.npz", **llama(folder, other))
    with pytest.raises(UsageError, match="does not say which text"):
        model.diff(None, open_dump(tmp_path / "b.npz"))


def test_tensors_that_are_not_finite_or_of_another_size_are_said(folder: Path, tmp_path: Path) -> None:
    every = llama(folder, IDS)
    every["L1.attn"][2, 3] = np.nan
    every["L1.q"] = every["L1.q"][:3]
    found = against(folder, every, tmp_path / "port.npz")
    assert found.first is not None
    assert (found.first.name, found.first.at, found.first.relative) == ("L1.attn", (2, 3), np.inf)
    (step,) = found.incomparable
    assert (step.name, step.why) == ("L1.q", "L1.q has 3 × 7 × 6 numbers, and 4 × 7 × 6 are expected")
    assert found.first.unlike == 1
    assert found.cause is None  # a number that is none says nothing of the formula


def test_a_file_whose_names_match_nothing_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="none of its tensors has a name that this model knows; the first is L0"):
        against(folder, {"L0.qq": np.zeros((7, 24))}, tmp_path / "port.npz")
    found = against(
        folder, {"enc/0/query": llama(folder, IDS)["L0.q"]}, tmp_path / "port.npz", names={"enc/{n}/query": "L{n}.q"}
    )
    assert [one.name for one in found.steps] == ["L0.q"]
    assert found.first is None


def test_a_norm_of_transformer_lens_is_before_its_gain_and_no_mistake(folder: Path, tmp_path: Path) -> None:
    every = llama(folder, IDS)
    x = every["embed.out"]
    normalized = x / np.sqrt((x**2).mean(-1, keepdims=True) + 3e-5)
    found = against(
        folder, {"blocks.0.ln1.hook_normalized": normalized, "blocks.0.attn.hook_q": every["L0.q"].swapaxes(0, 1)},
        tmp_path / "port.npz",
    )  # fmt: skip
    assert found.first is None
    assert [one.name for one in found.steps] == ["L0.q"]
    (norm,) = found.incomparable
    assert (norm.name, "before gain and bias" in norm.why) == ("L0.norm1", True)


@pytest.mark.parametrize("hidden", [-np.inf, -1e30], ids=["-inf", "a large number"])
def test_a_softmax_of_nothing_is_nan_elsewhere(hidden: float, tmp_path: Path) -> None:
    """Where hidden scores are −∞ the first token has NaN, with a large number equal weights: either is explained."""
    model = load("tiny")
    trace = model.trace("The cat sat on the mat.")
    scores = trace["L0.scaled"].double().numpy()
    scores = np.where(np.tri(scores.shape[-1], k=-1) > 0, scores, hidden)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
    own = {name: trace[name].numpy() for name in ("L0.q_rot", "L0.k_rot", "L0.v")}
    numbers = {**own, "L0.weights": weights, "L0.head_out": weights @ own["L0.v"]}
    np.savez(tmp_path / "port.npz", input_ids=np.array(trace.encoding.ids), **numbers)
    found = model.diff("The cat sat on the mat.", open_dump(tmp_path / "port.npz")).cause
    assert found is not None
    assert (found.step, found.explained, found.later) == ("L0.masked", 1, 1)
    ends = (
        "and the softmax of a query that sees nothing is NaN" if np.isinf(hidden) else "by a large number instead of −∞"
    )
    assert found.words == f"the mask hides the token itself, {ends}"
