"""The head census: hand-built heads, a recomputation in float64, labels, and how it goes through sequences."""

import math
from itertools import count
from pathlib import Path
from typing import Any

import heads_by_hand as by_hand
import numpy as np
import pytest
import torch
from architectures import KINDS, config_of, encoding_of, lively, some_ids
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.loading import load
from tinytf.look.heads.census import SCORES, Census, CensusScores, census, copy_length
from tinytf.look.heads.kinds import LABELS
from tinytf.look.heads.measures import named, overlap, repeated_tokens
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.text.windows import text_windows
from tinytf.trace.record import record
from tinytf.training.film.probe import HeadProbe


@pytest.fixture(scope="module")
def hand_made() -> Census:
    """A census on sequences in which no copy has a token twice."""
    length, sequences = 6, 3

    def distinct(seed: int) -> bool:
        once = repeated_tokens(by_hand.VOCABULARY, length, sequences, seed)[:, :length]
        return all(len(set(row)) == length for row in once.tolist())

    seed = next(seed for seed in count() if distinct(seed))
    return census(by_hand.heads_by_hand(), length=length, count=sequences, seed=seed)


@pytest.mark.parametrize(
    ("head", "score", "label"),
    [
        (by_hand.PREVIOUS, "previous", "previous"),
        (by_hand.DUPLICATE, "duplicate", "duplicate"),
        (by_hand.SELF, "self", "self"),
        (by_hand.FIRST, "first", "first"),
        (by_hand.INDUCTION, "induction", "induction"),
        (by_hand.EVEN, "entropy_share", "broad"),
        (by_hand.THREE_BACK, "offset_weight", "offset"),
    ],
)
def test_a_head_built_by_hand_scores_one_for_what_it_does(
    hand_made: Census, head: tuple[int, int], score: str, label: str
) -> None:
    assert float(hand_made.score(score)[head]) == pytest.approx(1, abs=1e-6)
    assert hand_made.labels[head[0]][head[1]].name == label


def test_heads_built_by_hand_score_nothing_for_what_they_do_not_do(hand_made: Census) -> None:
    assert float(hand_made.score("induction")[by_hand.PREVIOUS]) == pytest.approx(0, abs=1e-6)
    assert float(hand_made.score("previous")[by_hand.INDUCTION]) < 0.5
    assert float(hand_made.score("duplicate")[by_hand.INDUCTION]) == pytest.approx(0, abs=1e-6)
    assert float(hand_made.score("offset")[by_hand.THREE_BACK]) == -3
    assert float(hand_made.score("offset")[by_hand.PREVIOUS]) == -1
    assert float(hand_made.score("entropy")[by_hand.SELF]) == pytest.approx(0, abs=1e-6)
    assert float(hand_made.score("distance")[by_hand.PREVIOUS]) == pytest.approx(
        11 / 12, abs=1e-6
    )  # the first has none


def test_heads_agree_wholly_where_they_look_alike_and_not_at_all_where_they_share_no_token() -> None:
    even, own = torch.full((4, 4), 0.25), torch.eye(4)
    visible = torch.full((4,), 4)
    assert overlap(torch.stack((even, even)), visible).tolist() == pytest.approx([1, 1])
    assert overlap(torch.stack((own, own.roll(1, 0))), visible).tolist() == [0, 0]
    assert overlap(torch.stack((even, own)), visible).tolist() == pytest.approx([0.5, 0.5])  # Σ√(p·q) = √¼


def weights_of(model: Transformer, ids: Tensor) -> list[np.ndarray]:
    """Of every layer that has them, the weights of each sequence's trace: (B, 1, H, T, T)."""
    traces = [record(model, encoding_of(row)) for row in ids.tolist()]
    found = (
        torch.stack([trace.step("weights", layer) for trace in traces])
        for layer in table_of(model.config).attention_layers
    )
    return [weights[:, None].detach().double().numpy() for weights in found]


def keys_seen(weights: np.ndarray) -> list[int]:
    """To how many keys a query of a layer gives weight, from weights (…, T, T)."""
    return [int(keys) for keys in (weights > 0).sum(axis=-1).reshape(-1, weights.shape[-1]).max(axis=0)]


def of_layers(weights: list[np.ndarray], *given: Any) -> dict[str, np.ndarray]:
    """Every score of (layers, H), NaN for heads that a layer lacks."""
    most = max(one.shape[2] for one in weights)
    each = [by_numpy(one, *given) for one in weights]

    def wide(row: np.ndarray) -> np.ndarray:
        return np.pad(row.astype(float), ((0, 0), (0, most - row.shape[1])), constant_values=np.nan)

    return {name: np.concatenate([wide(scores[name]) for scores in each]) for name in each[0]}


def by_numpy(weights: np.ndarray, copies: tuple[int, int] | None = None) -> dict[str, np.ndarray]:
    """Every score of (layers, H) from weights (B, layers, H, T, T), query by query."""
    tokens = weights.shape[-1]

    seen = keys_seen(weights)
    many = [query for query in range(tokens) if seen[query] > 1]
    shares = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    nats = -np.sum(shares * np.log(np.maximum(shares, 1e-300)), axis=-1)  # (B, layers, H, T)
    roots = np.sqrt(shares)
    n_heads = weights.shape[2]
    alike = [
        [
            np.mean([np.sum(roots[:, :, a, query] * roots[:, :, b, query], axis=-1) for query in many], axis=0)
            for b in range(n_heads)
            if b != a
        ]
        for a in range(n_heads)
    ]  # H × (H − 1) of (B, layers)
    where = np.abs(np.arange(tokens)[:, None] - np.arange(tokens))
    found = {
        "previous": np.mean([weights[..., query, query - 1] for query in range(1, tokens)], axis=0),
        "first": np.mean([weights[..., query, 0] for query in range(1, tokens)], axis=0),
        "self": np.mean([weights[..., query, query] for query in range(tokens)], axis=0),
        "entropy": nats.mean(axis=-1),
        "entropy_share": np.mean([nats[..., query] / math.log(seen[query]) for query in many], axis=0),
        "distance": np.sum(weights * where, axis=-1).mean(axis=-1),
        "agreement": np.mean(alike, axis=1).transpose(1, 2, 0),
    }
    if copies is not None:
        behind, length = copies
        second = [(behind + length + i, behind + i) for i in range(length)]
        found["duplicate"] = np.mean([weights[..., query, same] for query, same in second], axis=0)
        found["induction"] = np.mean([weights[..., query, same + 1] for query, same in second], axis=0)
    scores = {name: score.mean(axis=0) for name, score in found.items()}
    offsets = [offset for offset in range(1 - tokens, tokens) if 2 * (tokens - abs(offset)) >= tokens]
    share = np.stack([
        np.mean([weights[..., query, query + o] for query in range(tokens) if 0 <= query + o < tokens], axis=0)
        for o in offsets
    ]).mean(axis=1)  # (offsets, layers, H)  # fmt: skip
    return scores | {"offset_weight": share.max(axis=0), "offset": np.array(offsets)[share.argmax(axis=0)]}


def assert_same(found: CensusScores, expected: dict[str, np.ndarray], layers: tuple[int, ...]) -> None:
    assert set(found.values) == set(expected)
    assert list(found.values) == [name for name in SCORES if name in found.values]
    for name, values in expected.items():
        scores = found.values[name]
        error = 1e-6 * max(1.0, np.nanmax(np.abs(values)))
        np.testing.assert_allclose(scores[list(layers)].numpy(), values, rtol=0, atol=error, err_msg=name)
        assert all(scores[layer].isnan().all() for layer in range(len(scores)) if layer not in layers)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_weights_of_traces_in_float64(kind: str) -> None:
    config = config_of(kind)
    if config.window == 3:  # the copy that a token must see is of three tokens or more
        config = config.but(window=4)
    model = lively(config)
    windows = some_ids(model.config, batch=4, length=13)
    length, layers = 3 if model.config.window else 7, table_of(model.config).attention_layers
    found = census(
        model, windows, length=length, count=3, seed=2, before=(5,), after=() if model.config.causal else (6,)
    )
    twice = repeated_tokens(31, length, 3, 2)
    around = [
        torch.cat((torch.tensor([5]), row, torch.tensor([6] * (not model.config.causal), dtype=torch.long)))
        for row in twice
    ]
    assert_same(found.repeats, of_layers(weights_of(model, torch.stack(around)), (1, length)), layers)
    assert found.text is not None
    assert found.text.sequences == 3
    assert_same(found.text, of_layers(weights_of(model, windows[:3])), layers)


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "narrow heads, after the sum"])
def test_one_score_has_one_value_in_the_census_and_the_probe(kind: str) -> None:
    model = lively(config_of(kind))
    probe = HeadProbe(model.config, block=20, seed=3)
    found = census(model, length=probe.length, count=len(probe.ids), seed=3)
    probed = probe.measure(model)
    for name in ("previous", "duplicate", "induction"):
        assert torch.allclose(found.score(name), torch.tensor(getattr(probed, name)).double(), rtol=0, atol=1e-6)
    assert torch.allclose(found.score("entropy_share"), torch.tensor(probed.entropy).double(), rtol=0, atol=1e-6)


def test_batches_of_any_size_give_the_same_means(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(config_of("gpt2"))
    windows = some_ids(model.config, batch=5, length=9)
    whole = census(model, windows, length=4, count=5)
    monkeypatch.setattr("tinytf.look.heads.census._ROOM", 1)
    steps: list[tuple[int, int]] = []
    single = census(model, iter(windows), length=4, count=5, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(done, 10) for done in range(1, 11)]
    for name, score in whole.repeats.values.items():
        assert torch.allclose(score, single.repeats.values[name], rtol=0, atol=1e-6)
    assert single.first_loss == pytest.approx(whole.first_loss, rel=1e-5)


def test_one_window_more_is_taken_than_is_read_and_no_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus without an end goes through; what is held at once is bounded by the room of a batch."""
    model = lively(config_of("gpt2"))
    taken = 0

    def endless() -> Tensor:
        nonlocal taken
        while True:
            taken += 1
            yield torch.arange(20) % 31

    largest: list[int] = []
    monkeypatch.setattr("tinytf.look.heads.census._ROOM", 4 * 8 * 4 * 20**2 * 2)  # two sequences of 20 tokens, 4 heads
    add = census.__globals__["_Tally"].add

    def watched(self: object, weights: Tensor) -> None:
        largest.append(weights.numel())
        add(self, weights)

    monkeypatch.setattr(census.__globals__["_Tally"], "add", watched)
    found = census(model, endless(), length=10, count=7)
    assert (taken, found.text.sequences) == (8, 7), "the last one only to know that there are more"
    assert max(largest) <= 2 * 4 * 20**2


def test_the_model_is_left_as_it_was() -> None:
    model = lively(config_of("gpt2")).train()
    ids, state = some_ids(model.config), torch.get_rng_state()
    before = model(ids)
    census(model, length=4, count=2)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model(ids), before)


def test_one_head_in_a_layer_agrees_with_nobody() -> None:
    model = lively(config_of("gpt2", n_heads=1))
    found = census(model, length=4, count=2)
    assert found.repeats.values["agreement"].isnan().all()
    assert all(head["repeats"]["agreement"] is None for head in found.to_dict()["heads"])


def test_encoders_and_headless_models_have_scores_and_no_loss() -> None:
    for kind in ("bert with a masked head", "bert with a pooler", "the paper's encoder"):
        found = census(lively(config_of(kind)), length=5, count=2)
        assert (found.first_loss, found.second_loss) == (None, None)
        assert set(found.repeats.values) == set(SCORES)


def test_an_encoder_head_can_look_ahead() -> None:
    model = lively(config_of("rotary and both ways"))
    offsets = census(model, length=8, count=4).score("offset")
    assert (offsets > 0).any()


@pytest.mark.parametrize(
    ("changes", "length", "said"),
    [
        ({}, 17, "a copy of 17 tokens does not fit a context of 32 twice"),
        ({}, 2, "a copy of 2 tokens is too short"),
        ({"context": 5}, None, "not even 3 tokens fit a context of 5 twice"),
        ({"window": 5}, 5, "a context of 32 with a window of 5 twice"),
        ({"window": 3}, None, "not even 3 tokens"),
    ],
)
def test_a_length_that_does_not_fit_is_refused(changes: dict[str, int], length: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        census(lively(config_of("gpt2", **changes)), length=length)


def test_the_usual_length_is_fifty_or_what_fits() -> None:
    assert copy_length(config_of("gpt2", context=1000)) == 50
    assert copy_length(config_of("gpt2", context=32)) == 16
    assert copy_length(config_of("gpt2", context=32), added=1) == 15
    assert copy_length(config_of("gpt2", context=1000, window=20)) == 19


def scores(**given: float) -> dict[str, float]:
    return dict.fromkeys(SCORES, 0.0) | given


def test_a_head_is_called_by_the_first_label_that_it_reaches_and_all_are_said() -> None:
    both = named(scores(induction=0.89, duplicate=0.51), scores(first=0.9))
    assert both.name == "induction"
    assert (
        both.evidence
        == "induction 0.89 on repeated tokens, duplicate token 0.51 on repeated tokens, first token 0.90 on text"
    )
    assert named(scores(previous=0.5), scores(offset=-1, offset_weight=0.7)).evidence == (
        "previous token 0.50 on repeated tokens"
    )
    assert named(scores(), scores(offset=-1, offset_weight=0.7)).evidence == "offset -1 0.70 on text"
    assert named(scores(), scores(offset=2, offset_weight=0.7)).evidence == "offset +2 0.70 on text"
    assert named(scores(self=0.6, offset_weight=0.6), None).evidence == "own token 0.60 on random tokens"
    assert (
        named(scores(induction=0.9, offset=-49, offset_weight=0.9), None).evidence
        == "induction 0.90 on repeated tokens"
    )
    assert named(scores(), scores(entropy_share=0.95)).evidence == "entropy 0.95 of the most possible on text"


def test_a_head_below_every_threshold_has_no_label_and_says_its_highest() -> None:
    found = named(scores(induction=0.3), scores(first=0.49, entropy_share=0.8))
    assert (found.label, found.name) == (None, "–")
    assert found.evidence == "at most first token 0.49 on text"


def test_a_score_that_is_no_number_gives_no_label() -> None:
    assert named(scores(induction=math.nan), scores(first=math.nan)).label is None


def test_every_label_has_a_score_a_threshold_and_a_meaning() -> None:
    assert {label.score for label in LABELS} <= set(SCORES)
    assert all(0.5 <= label.least < 1 and label.meaning for label in LABELS)
    assert len({label.name[0] for label in LABELS}) == len(LABELS)  # the letters of the map


@pytest.mark.parametrize(("count", "unread"), [(2, True), (3, False), (4, False)])
def test_what_of_a_text_was_not_read_is_said(count: int, unread: bool) -> None:
    model = load("tiny")
    text = " ".join(["The cat sat on the mat."] * 40)
    tokens = len(model.tokenizer.encode(text, special=False).ids)
    length = tokens // 6
    found = model.heads(text=text, length=length, count=count)
    assert found.text.sequences == min(count, 3)
    assert found.unread == found.to_dict()["text"]["unread"] == unread
    assert (f"Only the first {2 * 2 * length:,} tokens of the text were read." in found.sentence) == unread


def test_windows_are_the_tokens_of_a_text_one_after_the_other(tmp_path: Path) -> None:
    tokenizer = load("tiny", device="cpu").tokenizer
    text = "The cat sat on the mat.\n\nThe dog saw the cat, and ran away from it. " * 20
    path = tmp_path / "corpus.txt"
    path.write_text(text, "utf-8")
    ids = tokenizer.encode(text, special=False).ids
    for source in ([path], text):
        found = list(text_windows(source, tokenizer, 2048, 10, before=(1,), after=(2,)))
        assert len(found) == len(ids) // 10
        assert torch.cat([window[1:-1] for window in found]).tolist() == ids[: len(found) * 10]
        assert all(window[0] == 1 and window[-1] == 2 and len(window) == 12 for window in found)


def test_a_short_text_is_one_window_and_a_single_token_is_refused() -> None:
    tokenizer = load("tiny", device="cpu").tokenizer
    (window,) = text_windows("The cat sat", tokenizer, 2048, 100)
    assert window.tolist() == tokenizer.encode("The cat sat").ids
    with pytest.raises(UsageError, match="a single token"):
        list(text_windows("The", tokenizer, 2048, 100))


def test_a_model_reads_a_file_a_text_or_nothing(tmp_path: Path) -> None:
    model = load("tiny-encoder", device="cpu")
    path = tmp_path / "corpus.txt"
    path.write_text("The cat sat on the mat. " * 30, "utf-8")
    from_file, from_text = (
        model.heads(path, length=8, count=3),
        model.heads(text=path.read_text("utf-8"), length=8, count=3),
    )
    assert from_file.text is not None
    assert from_text.text is not None
    assert from_file.text.tokens == 2 * 8 + 2  # [CLS] and [SEP] are around each
    assert torch.equal(from_file.score("distance"), from_text.score("distance"))
    assert model.corpus is not None
    own, named = model.heads(length=8, count=3), model.heads(model.corpus, length=8, count=3)
    assert torch.equal(own.score("distance"), named.score("distance"))
    assert model.heads(random_only=True, length=8, count=3).text is None
