"""What heads do while a model is trained: scores against plain numpy, a model left as it was, and milestones."""

import json
import math

import numpy as np
import pytest
import torch
from architectures import KINDS, config_of, encoding_of, lively, some_ids
from torch import Tensor, nn

import tinytf
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.look.heads.census import census
from tinytf.look.heads.measures import repeated_tokens
from tinytf.model.transformer import Transformer
from tinytf.steps.operations import Softmax
from tinytf.steps.table import table_of
from tinytf.trace.record import record
from tinytf.training.data.examples import Batch
from tinytf.training.film.probe import HeadProbe, HeadScores, update_milestones
from tinytf.training.tuning.losses import batch_loss

WINDOWED = "mistral, a window and stretched waves"

# Scores


def recorded_weights(model: Transformer, ids: Tensor) -> list[np.ndarray]:
    """The weights of a batch in each layer, (1, B, H, T, T) in float64, one recorded text after the other."""
    traces = [record(model, encoding_of(row.tolist())) for row in ids]
    layers = table_of(model.config).attention_layers
    return [np.array([[trace.step("weights", layer).numpy() for trace in traces]], np.float64) for layer in layers]


def by_numpy(weights: np.ndarray, config: ModelConfig, length: int) -> dict[str, np.ndarray]:
    """The four scores (layers, H), one query at a time."""
    tokens = weights.shape[-1]
    relative = []
    for query in range(tokens):
        first = query // config.chunk * config.chunk if config.chunk else 0
        first = max(first, query + 1 - config.window) if config.window else first
        last = query + 1 if config.causal else min(tokens, query + (config.window or tokens))
        unseen = config.index_block - 1 - query % config.index_block if config.index_by_head else 0
        chosen = 0 if config.block_size else config.index_keys  # else it chooses blocks, which stand beside the keys
        count = min(last - first, chosen - unseen if chosen else tokens)
        if count > 1:
            seen = weights[..., query, :] / weights[..., query, :].sum(axis=-1, keepdims=True)
            nats = -np.sum(seen * np.log(np.maximum(seen, 1e-300)), axis=-1)
            relative.append(nats / np.log(count))
    found = {
        "entropy": np.mean(relative, axis=0),
        "previous": np.mean([weights[..., query, query - 1] for query in range(1, tokens)], axis=0),
    }
    if length:
        copied = range(length)
        found["duplicate"] = np.mean([weights[..., length + i, i] for i in copied], axis=0)
        found["induction"] = np.mean([weights[..., length + i, i + 1] for i in copied], axis=0)
    return {name: scores.mean(axis=1) for name, scores in found.items()}  # over the batch


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_recorded_weights(kind):
    model = lively(config_of(kind))
    probe = HeadProbe(model.config, block=20)
    scores = probe.measure(model)
    layers = table_of(model.config).attention_layers
    each = zip(layers, recorded_weights(model, probe.ids), strict=True)
    expected = [by_numpy(weights, model.config.at(layer), probe.length) for layer, weights in each]
    assert {name for name, score in vars(scores).items() if score is not None} == set(expected[0])
    for name in expected[0]:
        found, attending = np.array(getattr(scores, name)), list(table_of(model.config).attention_layers)
        for layer, values in zip(attending, expected, strict=True):
            heads = values[name].shape[1]
            assert np.abs(found[layer, :heads] - values[name]).max() < 1e-6, name
            assert np.isnan(found[layer, heads:]).all()
        assert len(found) == model.config.n_layers
        assert np.isnan(np.delete(found, attending, axis=0)).all()


def test_a_model_without_attention_has_no_score():
    sizes = {"by_layer": (), "mixer": "gated_delta", "n_heads": 6, "n_kv_heads": 3, "d_head": 5, "d_value": 7}
    model = lively(config_of("gated delta, and gated heads in one layer", **sizes))
    scores = HeadProbe(model.config, block=20).measure(model)
    assert np.array(scores.previous).shape == (model.config.n_layers, 6)
    assert np.isnan(np.array([score for score in vars(scores).values() if score is not None])).all()
    assert update_milestones({}, scores, 1) == []


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "narrow heads, after the sum"])
def test_scores_agree_with_the_census(kind):
    model = lively(config_of(kind))
    probe = HeadProbe(model.config, block=20, seed=3)
    assert torch.equal(probe.ids, repeated_tokens(31, probe.length, len(probe.ids), 3))
    ours, theirs = probe.measure(model), census(model, length=probe.length, count=len(probe.ids), seed=3)
    assert torch.allclose(torch.tensor(ours.previous), theirs.score("previous").float(), rtol=0, atol=1e-6)
    assert torch.allclose(torch.tensor(ours.induction), theirs.score("induction").float(), rtol=0, atol=1e-6)


def one_hot(keys: Tensor) -> Tensor:
    return nn.functional.one_hot(keys, len(keys)).float()  # (Q, K)


def hand_made(monkeypatch: pytest.MonkeyPatch, rule) -> tuple[HeadScores, int]:
    """The scores of a decoder whose weights (Q, K) are ``rule(tokens, length)`` in every head, and the length."""

    def fake(operation: Softmax, scores: Tensor) -> Tensor:
        return rule(scores.shape[-1], probe.length).expand_as(scores).to(scores)

    monkeypatch.setattr(Softmax, "forward", fake)
    model = lively(config_of("gpt2"))
    probe = HeadProbe(model.config, block=20)
    return probe.measure(model), probe.length


OFFSETS = {
    "previous": lambda length: 1,
    "duplicate": lambda length: length,
    "induction": lambda length: length - 1,
}


@pytest.mark.parametrize("name", OFFSETS)
def test_a_head_that_does_one_thing_alone_has_that_score_and_no_other(name, monkeypatch):
    scores, length = hand_made(
        monkeypatch, lambda tokens, length: one_hot((torch.arange(tokens) - OFFSETS[name](length)).clamp(min=0))
    )
    assert length == 10
    everywhere = ((1.0,) * 4,) * 2
    # A query too early to look so far back looks at the first token, which for query 1 is the one before it.
    once_in_nineteen = pytest.approx(1 / 19)
    for other in OFFSETS:
        if other == name:
            assert getattr(scores, other) == everywhere
        elif other == "previous":
            assert scores.previous[1][3] == once_in_nineteen
        else:
            assert getattr(scores, other) == ((0.0,) * 4,) * 2
    assert scores.entropy == ((0.0,) * 4,) * 2


def test_looking_everywhere_alike_is_all_the_entropy_there_is(monkeypatch):
    scores, _ = hand_made(monkeypatch, lambda tokens, _: (w := torch.ones(tokens, tokens).tril()) / w.sum(1)[:, None])
    assert np.array(scores.entropy) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["gpt2", WINDOWED, "rotary and both ways"])
def test_without_queries_all_keys_are_alike_whatever_can_be_seen(kind):
    model = lively(config_of(kind, qk_norm=False))
    for block in model.blocks:
        nn.init.zeros_(block.attention.q.weight)
        if block.attention.q.bias is not None:
            nn.init.zeros_(block.attention.q.bias)
    assert np.array(HeadProbe(model.config, block=20).measure(model).entropy) == pytest.approx(1.0)


def test_the_built_in_model_has_its_previous_token_and_induction_heads():
    model = tinytf.load("tiny").transformer
    scores = HeadProbe(model.config, block=64).measure(model)
    assert scores.previous[0][1] > 0.5
    assert scores.induction[1][2] > 0.5
    told = update_milestones({}, scores, 0)
    assert f"L0H1 became a previous-token head, score {scores.previous[0][1]:.2f}" in told
    assert f"L1H2 became an induction head, score {scores.induction[1][2]:.2f}" in told


def test_weights_that_are_no_numbers_are_null_and_no_milestone():
    model = lively(config_of("gpt2"))
    nn.init.constant_(model.blocks[1].norm1.weight, math.nan)
    scores = HeadProbe(model.config, block=20).measure(model)
    written = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert written["induction"][1] == [None] * 4
    assert None not in written["induction"][0]
    since = {"induction": {"L1H0": 5}}
    assert not [sentence for sentence in update_milestones(since, scores, 6) if "L1" in sentence]
    assert since["induction"]["L1H0"] == 5


def test_scores_are_written_with_four_digits():
    scores = HeadScores(((0.123456, 1.0),), ((0.5, 0.00004),), ((0.0, 0.25),), ((0.99996, 0.1),))
    data = json.loads(json.dumps(scores.to_dict()))
    assert data == {
        "entropy": [[0.1235, 1.0]], "previous": [[0.5, 0.0]], "duplicate": [[0.0, 0.25]], "induction": [[1.0, 0.1]],
    }  # fmt: skip
    encoder = HeadScores(((0.5,),), ((0.5,),))
    assert encoder.to_dict() == {"entropy": [[0.5]], "previous": [[0.5]]}


# The batch


@pytest.mark.parametrize(
    ("kind", "changes", "block", "length", "tokens"),
    [
        ("gpt2", {"context": 256}, 64, 24, 48),
        ("gpt2", {"context": 256}, 20, 10, 20),
        ("gpt2", {"context": 13}, 64, 6, 12),
        ("gpt2", {"context": 256}, 5, 0, 5),
        ("gpt2", {}, 2, 0, 2),
        (WINDOWED, {}, 20, 3, 6),
        (WINDOWED, {"window": 3}, 20, 0, 20),
        (WINDOWED, {"window": 1}, 20, 0, 20),
        ("bert with a masked head", {"context": 256}, 64, 0, 48),
        ("bert with a masked head", {}, 128, 0, 32),
    ],
)
def test_the_batch_is_as_long_as_block_context_and_window_let_it(kind, changes, block, length, tokens):
    config = config_of(kind, **changes)
    probe = HeadProbe(config, block=block)
    assert probe.length == length
    assert probe.ids.shape == (4, tokens)
    if length:
        assert torch.equal(probe.ids[:, :length], probe.ids[:, length:])
    scores = probe.measure(lively(config))
    assert (scores.induction is None) == (scores.duplicate is None) == (length == 0)
    assert np.isfinite(scores.entropy).all()
    assert np.isfinite(scores.previous).all()


def test_the_batch_follows_from_the_seed_alone():
    config = config_of("gpt2")
    torch.manual_seed(1)
    first = HeadProbe(config, block=20, seed=5)
    torch.manual_seed(2)
    assert torch.equal(first.ids, HeadProbe(config, block=20, seed=5).ids)
    assert not torch.equal(first.ids, HeadProbe(config, block=20, seed=6).ids)


def test_a_single_token_has_none_before_it_and_is_refused():
    with pytest.raises(UsageError, match=r"^a block of 1 and a context of 32 leave no token before another$"):
        HeadProbe(config_of("gpt2"), block=1)


# The model is left as it was


def trained(kind: str, probing: bool, autocast: bool = False) -> tuple[Transformer, Tensor]:
    """A few training steps with dropout, probed in every place of a step or in none, and the random state behind."""
    model = lively(config_of(kind, dropout=0.2)).train()
    probe = HeadProbe(model.config, block=20)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(0)

    def look() -> None:
        if probing:
            probe.measure(model)

    for step in range(4):
        ids = some_ids(model.config, seed=step)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            look()
            loss = batch_loss(model, Batch(ids, ids.roll(-1, 1), None))
        look()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        look()
        optimiser.step()
    return model, torch.get_rng_state()


@pytest.mark.parametrize(
    ("kind", "autocast"),
    [("gpt2", False), ("gpt2", True), ("llama, grouped", False), (WINDOWED, False), ("bert with a masked head", False)],
)
def test_training_with_and_without_probing_gives_the_same_bits(kind, autocast):
    (plain, plain_state), (probed, probed_state) = (trained(kind, probing, autocast) for probing in (False, True))
    assert torch.equal(plain_state, probed_state)
    start = lively(plain.config).state_dict()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, probed.get_parameter(name)), name
        assert (parameter.grad is None) == (probed.get_parameter(name).grad is None)
        assert parameter.grad is None or not torch.equal(parameter, start[name]), name


def prepared(model: Transformer) -> tuple[list[str], list[tuple[str, nn.Module, bool]]]:
    """A model with a hook and mixed training flags; what its hook saw; how it is."""
    seen: list[str] = []
    model.train()
    model.blocks[0].weights.register_forward_hook(lambda module, args, made: seen.append("weights"))
    model.blocks[1].dropout.eval()
    return seen, [(name, module, module.training) for name, module in model.named_modules()]


def same_as_before(model: Transformer, before: list[tuple[str, nn.Module, bool]]) -> bool:
    now = [(name, module, module.training) for name, module in model.named_modules()]
    return len(now) == len(before) and all(
        a == b and one is other and was == flag
        for (a, one, was), (b, other, flag) in zip(now, before, strict=True)
    )  # fmt: skip


def test_hooks_and_training_flags_come_back():
    model = lively(config_of("gpt2"))
    plain = HeadProbe(model.config, block=20).measure(model)
    seen, before = prepared(model)
    assert HeadProbe(model.config, block=20).measure(model) == plain
    assert seen == ["weights"]
    assert same_as_before(model, before)
    model(some_ids(model.config))
    assert seen == ["weights"] * 2


@pytest.mark.parametrize("broken", ["a block", "the score"])
def test_an_exception_inside_leaves_the_model_as_it_was(broken, monkeypatch):
    model = lively(config_of("gpt2"))
    probe = HeadProbe(model.config, block=20)
    _, before = prepared(model)

    def fail(*_):
        raise KeyboardInterrupt

    if broken == "a block":
        model.blocks[1].ffn.down.register_forward_hook(fail)
    else:
        monkeypatch.setattr(probe, "_score", fail)
    with pytest.raises(KeyboardInterrupt):
        probe.measure(model)
    assert same_as_before(model, before)
    assert torch.is_grad_enabled()


@pytest.mark.slow
def test_no_gradient_and_no_weights_outlive_a_measure(monkeypatch):
    """What a layer leaves is its scores alone: no tensor of the size of its weights is alive in the next one."""
    import gc

    model = lively(config_of("gpt2", n_layers=3))
    probe = HeadProbe(model.config, block=20)
    squares: list[int] = []
    score = probe._score

    def count(weights: Tensor, visible: Tensor) -> Tensor:
        assert not weights.requires_grad
        shape = weights.shape
        squares.append(sum(type(thing) is Tensor and thing.shape == shape for thing in gc.get_objects()))
        return score(weights, visible)

    monkeypatch.setattr(probe, "_score", count)
    probe.measure(model)
    assert len(squares) == 3
    assert len(set(squares)) == 1
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_scores_as_the_cpu_does():
    model = lively(config_of("llama, grouped"))
    probe = HeadProbe(model.config, block=20)
    here = probe.measure(model)
    there = probe.measure(model.cuda())
    for name, scores in vars(here).items():
        assert np.array(getattr(there, name)) == pytest.approx(np.array(scores), abs=1e-4)


def test_the_scores_of_half_precision_are_not_rounded_to_it(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20, 20, generator=generator).masked_fill(~torch.ones(20, 20).tril().bool(), -math.inf)
    weights = noise.softmax(-1).bfloat16()
    scores, length = hand_made(monkeypatch, lambda *_: weights)
    expected = by_numpy(weights.double().numpy()[None, None, None], config_of("gpt2"), length)
    for name, values in expected.items():
        assert np.array(getattr(scores, name)) == pytest.approx(values[0, 0], abs=1e-6), name


def test_a_model_in_half_precision_scores_nearly_the_same():
    model = lively(config_of("llama, grouped"))
    probe = HeadProbe(model.config, block=20)
    exact, rough = probe.measure(model), probe.measure(model.bfloat16())
    for name, scores in vars(exact).items():
        assert np.array(getattr(rough, name)) == pytest.approx(np.array(scores), abs=0.02), name


def test_the_scores_are_the_same_inside_autocast():
    model = lively(config_of("gpt2"))
    probe = HeadProbe(model.config, block=20)
    plain = probe.measure(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert probe.measure(model) == plain


# Milestones


def with_score(name: str, score: float) -> HeadScores:
    """Scores of 0.1, but for this one of L2H1."""
    low = ((0.1, 0.1),) * 3
    one = ((0.1, 0.1), (0.1, 0.1), (0.1, score))
    return HeadScores(low, **{other: one if other == name else low for other in ("previous", "duplicate", "induction")})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("previous", "a previous-token head"),
        ("duplicate", "a duplicate-token head"),
        ("induction", "an induction head"),
    ],
)
def test_a_head_becomes_something_at_a_half_and_remains_it_down_to_four_tenths(name, words):
    since: dict = {}
    told = [
        update_milestones(since, with_score(name, score), 10 * step)
        for step, score in enumerate([0.1, 0.49, 0.52, 0.45, 0.55, 0.4, 0.31, 0.45, 0.5, 0.39])
    ]
    became, lost = f"L2H1 became {words}, score", f"L2H1 is no longer {words}, score"
    assert told == [
        [], [], [f"{became} 0.52"], [], [], [], [f"{lost} 0.31"], [], [f"{became} 0.50"], [f"{lost} 0.39"],
    ]  # fmt: skip


def test_every_head_and_every_name_has_a_sentence_of_its_own():
    scores = HeadScores(((0.9, 0.9),), ((0.7, 0.1),), ((0.1, 0.6),), ((0.5, 0.8),))
    assert update_milestones({}, scores, 3) == [
        "L0H0 became a previous-token head, score 0.70",
        "L0H1 became a duplicate-token head, score 0.60",
        "L0H0 became an induction head, score 0.50",
        "L0H1 became an induction head, score 0.80",
    ]


def test_an_encoder_has_previous_token_heads_alone():
    assert update_milestones({}, HeadScores(((0.9,),), ((0.7,),)), 3) == [
        "L0H0 became a previous-token head, score 0.70"
    ]


def test_milestones_continue_from_a_checkpoint():
    since: dict = {}
    update_milestones(since, with_score("induction", 0.6), 7)
    assert since == {"previous": {}, "duplicate": {}, "induction": {"L2H1": 7}}
    stored = json.loads(json.dumps(since))
    for score in (0.45, 0.3, 0.7):
        scores = with_score("induction", score)
        assert update_milestones(stored, scores, 9) == update_milestones(since, scores, 9)
    assert stored == since == {"previous": {}, "duplicate": {}, "induction": {"L2H1": 9}}
