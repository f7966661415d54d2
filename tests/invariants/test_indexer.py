"""What an indexer chooses is the mask: of the model, of every screen, and of a text that grows."""

from typing import Any

import pytest
import torch
import transformers
from architectures import config_of, encoding_of, furthest, lively

from tinytf.checkpoints.huggingface.deepseek import GLM_MOE_DSA
from tinytf.config import ModelConfig
from tinytf.errors import TinytfError
from tinytf.fields import Fields
from tinytf.steps.operations import ChooseKeys, Sight
from tinytf.trace.record import record

IDS = [3, 14, 15, 9, 2, 6, 5, 11, 4]
INDEXED = lively(config_of("deepseek v3.2, keys that an indexer chooses")).double()


def chosen_by_sorting(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` largest numbers up to the diagonal, the earlier of equal ones: row by row, in Python."""
    chosen = torch.zeros_like(scores)
    for query, row in enumerate(scores.tolist()):
        for key in sorted(range(query + 1), key=lambda key: (-row[key], key))[:count]:
            chosen[query, key] = 1.0
    return chosen


@pytest.mark.parametrize("count", [1, 3, 9, 40])
def test_of_equal_scores_the_earlier_key_is_chosen(count: int) -> None:
    scores = torch.randint(0, 3, (9, 9), generator=torch.Generator().manual_seed(4)).float()
    expected = chosen_by_sorting(scores, count)
    choose = ChooseKeys(Sight(causal=True, chosen=count))
    assert torch.equal(choose.forward(scores), expected)
    for length in range(1, 10):  # as with a cache: the last query alone
        assert torch.equal(choose.forward(scores[length - 1 : length, :length]), expected[length - 1 : length, :length])


def test_only_what_is_chosen_has_weight_and_layers_share_it() -> None:
    trace = record(INDEXED, encoding_of(IDS))
    first = trace["L0.index.chosen"]
    assert torch.equal(first, chosen_by_sorting(trace["L0.index.scores"], 3))
    for layer in (0, 1):
        assert torch.equal(trace[f"L{layer}.index.chosen"], first)
        assert torch.equal(trace[f"L{layer}.weights"] > 0, (first > 0).expand(4, 9, 9))
        assert torch.equal(trace.allowed(layer), first > 0)
    assert not trace.steps.has("index.scores", 1)


def test_the_scores_are_those_of_the_paper_head_by_head() -> None:
    trace = record(INDEXED, encoding_of(IDS))
    q, k, weights = (trace[f"L0.index.{name}"] for name in ("q_rot", "k_rot", "weights"))
    total = torch.zeros(9, 9, dtype=torch.float64)
    for head, of_head in enumerate(q.split(6, dim=-1)):
        total += weights[:, head, None] / 3 * (of_head @ k.T / 6**0.5).relu()
    assert furthest(trace["L0.index.scores"], total) < 1e-12


PATTERNS = [
    {}, {"index_topk_freq": 3}, {"index_topk_freq": 2, "index_skip_topk_offset": 1}, {"index_topk_pattern": "FSSFS"},
    {"index_topk_pattern": ["full", "full", "shared", "full", "shared"]}, {"index_topk_freq": 0},
]  # fmt: skip
WRONG = [
    ({"index_topk_pattern": "FXSFS"}, "indexer_types 'X' is not implemented"),
    ({"index_topk_pattern": "FS"}, "2 layers have an indexer of their own or share one, of 5"),
    ({"indexer_types": ["shared"] * 5}, "the first layer shares the choice of an indexer, and there is none"),
    ({"index_head_dim": 4}, "index_width 4 is below rope_width 6"),
    ({"index_topk": 0}, "index_topk 0 chooses no key"),
]


SIZES = {
    "hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 4,
    "qk_rope_head_dim": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "vocab_size": 31,
}  # fmt: skip


def read(keys: dict[str, Any]) -> ModelConfig:
    stored = transformers.GlmMoeDsaConfig(**SIZES).to_dict()
    return GLM_MOE_DSA.read(Fields({**stored, "indexer_types": None, **keys}, "config.json"), {})


@pytest.mark.parametrize("keys", PATTERNS, ids=str)
def test_layers_share_as_transformers_reads_it(keys: dict[str, Any]) -> None:
    config = read(keys)
    found = ["shared" if config.at(layer).shares_index else "full" for layer in range(5)]
    assert found == transformers.GlmMoeDsaConfig(**SIZES, **keys).indexer_types


@pytest.mark.parametrize(("keys", "message"), WRONG, ids=str)
def test_what_no_model_can_share_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(TinytfError, match=message):
        read(keys)
