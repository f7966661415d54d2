"""Two runs in step: every figure beside float64 numpy on two whole traces, and what cannot be compared."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively
from caught_gradients import model_of

from tinytf.compare.diff import Difference, parse_head
from tinytf.compare.dumps.read import Dump, open_dump
from tinytf.compare.measures import moved_weights
from tinytf.errors import AddressError, UsageError
from tinytf.loading import Model, load
from tinytf.model.transformer import Transformer
from tinytf.steps.table import StepTable
from tinytf.trace.record import record, walk

IDS = [3, 14, 15, 9, 2, 6, 5]
OTHERS = [3, 14, 15, 11, 2, 6, 5]  # one token is another
MASK = 2


def side(model: Transformer, ids: list[int] = IDS) -> tuple[Model, str]:
    return asked(model, MASK), " ".join(map(str, ids))


def difference(first: tuple[Model, str], second: tuple[Model, str], **settings: Any) -> Difference:
    model, text = first
    return model.diff(text, second, **settings)


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_gives_every_step_that_a_recording_gives(kind: str) -> None:
    model = model_of(kind, torch.float32)
    whole = record(model, encoding_of(IDS))
    first, *layers, last = walk(model, encoding_of(IDS))
    for step, layer in StepTable(model.config).rows:
        if not step.is_tensor:
            continue
        part = layers[layer] if layer is not None else first if step.name.startswith("embed.") else last
        assert torch.equal(part.step(step.name, layer), whole.step(step.name, layer)), step.full_name(layer)
    assert all(part.recorded_bytes < whole.recorded_bytes for part in layers)


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_that_of_float64_numpy(kind: str) -> None:
    model = model_of(kind, torch.float32)
    found = difference(side(model), side(model, OTHERS))
    starts = [model.config.start_id] * (model.encoder is not None)
    traces = [record(model, encoding_of([*starts, *ids])) for ids in (IDS, OTHERS)]
    stacks = model.config.stacks.items()
    names = [at + step.full_name(n) for at, of in stacks for step, n in StepTable(of).rows if step.is_tensor]
    assert [one.name for one in found.steps] == names
    for one in found.steps:
        a, b = (numbers(trace.stacks[one.stack].step(one.step.name, one.layer)) for trace in traces)
        with np.errstate(invalid="ignore"):
            apart = np.where(a == b, 0.0, np.abs(a - b))
        seen = np.isfinite(a) & np.isfinite(b)
        assert one.shape == a.shape
        assert one.largest == pytest.approx(apart.max(), rel=1e-6, abs=1e-9), one.name
        assert apart[one.at] == pytest.approx(apart.max(), rel=1e-6, abs=1e-9)
        axis = next((i for i, axis in enumerate(one.step.axes) if axis in ("token", "query")), None)
        relative, cosines = [], []
        for token in range(1 if axis is None else a.shape[axis]):
            own = np.ones_like(seen) if axis is None else (np.indices(a.shape)[axis] == token)
            x, y = a[own & seen], b[own & seen]
            gap = apart[own].max()
            if len(x) == 0 and gap:  # each has numbers where the other has −∞
                relative.append(math.inf)
                cosines.append(0.0)
                continue
            x_seen, y_seen = (a[seen], b[seen]) if own.sum() == 1 else (x, y)  # one number: held to the largest of all
            relative.append(gap / max(np.abs(x_seen).max(), np.abs(y_seen).max()) if gap else 0.0)
            cosines.append((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()) if gap else 1.0)
        assert one.relative == pytest.approx(max(relative), rel=1e-5, abs=1e-9), one.name
        assert one.cosine == pytest.approx(np.mean(cosines), abs=1e-8), one.name
        assert one.token is None or relative[one.token] == pytest.approx(max(relative), rel=1e-5, abs=1e-9)
        if one.largest:
            assert one.values == pytest.approx((a[one.at], b[one.at]), rel=1e-5, abs=1e-6)
    if model.head is not None:
        p, q = (softmax(numbers(trace.step("logits"))) for trace in traces)
        expected = (p * (np.log(p) - np.log(q))).sum(axis=-1)
        assert [one.kl for one in found.positions] == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-6)
        assert [one.first[0] for one in found.positions] == p.argmax(axis=-1).tolist()
        assert next(one.kl for one in found.steps if one.name == "logits") == pytest.approx(expected.mean(), rel=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "bert with a pooler"])
def test_the_heads_are_apart_by_half_the_absolute_difference_of_their_rows(kind: str) -> None:
    model = model_of(kind, torch.float32)
    found = difference(side(model), side(model, OTHERS)).attention
    assert found is not None
    traces = [record(model, encoding_of(ids)) for ids in (IDS, OTHERS)]
    expected = []
    for layer in range(model.config.n_layers):
        a, b = (numbers(trace.step("weights", layer)) for trace in traces)
        expected.append(np.abs(a - b).sum(axis=-1).mean(axis=-1) / 2)
    assert np.array(found.apart) == pytest.approx(np.array(expected), abs=1e-7)
    layer, head = np.unravel_index(np.argmax(expected), np.shape(expected))
    assert (found.layer, found.head) == (layer, head)
    assert torch.equal(found.first, traces[0][f"L{layer}H{head}.weights"])
    assert torch.equal(found.second, traces[1][f"L{layer}H{head}.weights"])
    chosen = difference(side(model), side(model, OTHERS), head="L1H2").attention
    assert chosen is not None
    assert torch.equal(chosen.second, traces[1]["L1H2.weights"])


def test_of_two_equal_runs_nothing_differs() -> None:
    model = model_of("gpt2", torch.float32)
    found = difference(side(model), side(model))
    assert found.equal
    assert found.first is None
    assert {one.cosine for one in found.steps} == {1.0}
    assert {one.kl for one in found.positions} == {0.0}


def test_the_first_difference_is_the_step_that_was_changed() -> None:
    """Of two models that differ in W₂ of the second layer alone, all before that is equal."""
    a, b = (lively(config_of("gpt2")) for _ in range(2))
    with torch.no_grad():
        b.blocks[1].ffn.down.weight[3, 5] += 0.5
    found = difference(side(a), side(b))
    assert found.first is not None
    assert found.first.name == "L1.ffn"
    assert found.first.at[1] == 3
    assert all(not one.largest for one in found.steps[: found.steps.index(found.first)])
    moved = found.moved[0]
    assert moved.name == "blocks.1.ffn.down.weight"
    assert moved.change == pytest.approx(0.5)
    assert moved.norm == pytest.approx(float(np.linalg.norm(numbers(a.blocks[1].ffn.down.weight))))
    assert all(not one.change for one in found.moved[1:])


def test_a_token_is_measured_by_its_own_numbers_and_not_by_those_of_a_larger_one() -> None:
    """A first token of numbers a thousand times as large does not hide what is different in the others."""
    model = model_of("gpt2", torch.float32)
    with torch.no_grad():
        model.embed.tokens.weight[IDS[0]] *= 1000
    found = difference(side(model), side(model, OTHERS)).steps[0]
    a, b = (numbers(model.embed.tokens.weight)[ids] for ids in (IDS, OTHERS))
    assert found.name == "embed.tokens"
    assert found.token == 3
    assert found.relative == pytest.approx(np.abs(a[3] - b[3]).max() / max(np.abs(a[3]).max(), np.abs(b[3]).max()))
    assert found.relative > 100 * found.largest / np.abs(a).max()
    cosine = a[3] @ b[3] / np.linalg.norm(a[3]) / np.linalg.norm(b[3])
    assert found.cosine == pytest.approx((len(IDS) - 1 + cosine) / len(IDS))


def test_an_infinity_on_one_side_alone_is_infinitely_far() -> None:
    a, b = (lively(config_of("gpt2")) for _ in range(2))
    with torch.no_grad():
        b.blocks[0].ffn.up.bias[2] = math.inf
    found = next(one for one in difference(side(a), side(b)).steps if one.name == "L0.ffn.hidden")
    assert (found.largest, found.relative) == (math.inf, math.inf)


def test_a_tolerance_decides_what_is_the_first_difference() -> None:
    model = model_of("gpt2", torch.float32)
    found = difference(side(model), side(model, OTHERS), tolerance=0.0)
    assert found.first is not None
    assert found.first.name == "embed.tokens"
    assert difference(side(model), side(model, OTHERS), tolerance=10.0).first is None


def test_losses_are_those_of_the_text_in_either_model() -> None:
    models = [lively(config_of("llama, grouped"), seed) for seed in (0, 1)]
    found = difference(*(side(model) for model in models))
    assert found.losses is not None
    for loss, model in zip(found.losses, models, strict=True):
        p = softmax(numbers(model(torch.tensor([IDS]))[0]))
        expected = -np.log(p[np.arange(len(IDS) - 1), IDS[1:]]).mean()
        assert loss == pytest.approx(expected, rel=1e-5)
    one = models[0]
    assert difference(side(one), side(one, OTHERS)).losses is None


def test_another_dtype_differs_by_its_rounding() -> None:
    model, other = (lively(config_of("gpt2")) for _ in range(2))
    found = difference(side(model), side(other.to(torch.bfloat16)))
    assert found.tolerance == 1e-1
    table, rounded = model.embed.tokens.weight, other.embed.tokens.weight
    expected = (table[IDS].detach().double() - rounded[IDS].detach().double()).abs().max()
    assert found.steps[0].largest == pytest.approx(float(expected))
    assert 0 < found.moved[0].ratio < 2**-8


def test_texts_of_different_lengths_are_compared_as_far_as_both_go() -> None:
    model = model_of("mistral, a window and stretched waves", torch.float32)
    longer = [*OTHERS, 7, 8]
    found = difference(side(model), side(model, longer))
    assert found.alignment.positions == len(IDS)
    assert found.alignment.changed == (3,)
    assert "7 and 9 tokens: the first 7 are compared" in found.alignment.note
    traces = [record(model, encoding_of(ids)) for ids in (IDS, longer)]
    weights = next(one for one in found.steps if one.name == "L1.weights")
    a, b = (numbers(trace.step("weights", 1))[:, :7, :7] for trace in traces)
    assert weights.largest == pytest.approx(np.abs(a - b).max(), abs=1e-6)
    (last,) = found.predictions
    assert (last.position, last.other_position) == (6, 8)
    p, q = (softmax(numbers(trace.logits_at(at))) for trace, at in zip(traces, (6, 8), strict=True))
    assert last.kl == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-4)
    assert last.first == pytest.approx([p[i] for i in last.ids], abs=1e-6)


def test_a_text_that_goes_on_is_not_the_same_text() -> None:
    model = model_of("gpt2", torch.float32)
    found = difference(side(model), side(model, [*IDS, 7]))
    assert found.first is None
    assert not found.equal
    assert found.predictions[0].kl > 0


def test_an_encoder_with_texts_of_different_lengths_is_refused() -> None:
    model = model_of("bert with a masked head", torch.float32)
    with pytest.raises(UsageError, match="7 and 8 tokens, and this model looks both ways"):
        difference(side(model), side(model, [*IDS, 4]))


def test_an_encoder_is_asked_at_the_masks_that_both_texts_have() -> None:
    model = model_of("bert with a masked head", torch.float32)
    found = difference(side(model), side(model, OTHERS))
    assert [one.position for one in found.predictions] == [IDS.index(MASK)]


def test_of_two_architectures_the_steps_of_one_shape_are_compared_and_the_others_named() -> None:
    a = lively(config_of("gpt2"))
    b = lively(config_of("llama, grouped", n_layers=3))
    found = difference(side(a), side(b))
    compared = {one.name for one in found.steps}
    why = {one.name: one.why for one in found.incomparable}
    assert {"L0.in", "L1.q", "L0.weights", "logits"} <= compared
    assert not compared & set(why)
    assert why["embed.positions"] == "the second model has no such step"
    assert why["L0.ffn.gate"] == "the first model has no such step"
    assert why["L0.k"] == "4 × 7 × 6 and 2 × 7 × 6 numbers"
    assert why["L2"] == "the first model has no layer 2"


def test_a_model_without_a_head_has_no_logits_to_compare() -> None:
    a, b = (
        lively(config_of("bert with a masked head")),
        lively(config_of("bert with a masked head", head="none", head_bias=False)),
    )
    found = difference(side(a), side(b))
    assert {one.name: one.why for one in found.incomparable}["logits"] == (
        "only one of the models has a language-model head"
    )
    assert not found.predictions


def test_other_vocabularies_are_no_logits_to_compare() -> None:
    a, b = lively(config_of("gpt2")), lively(config_of("gpt2", vocab_size=40))
    found: Difference = difference(side(a), side(b))
    assert "differ, with 31 and 40 tokens" in {one.name: one.why for one in found.incomparable}["logits"]


def test_what_is_no_number_is_the_largest_difference() -> None:
    a, b = (lively(config_of("gpt2")) for _ in range(2))
    with torch.no_grad():
        b.blocks[0].ffn.up.bias[2] = math.nan
    found = difference(side(a), side(b))
    assert found.first is not None
    assert found.first.name == "L0.ffn.hidden"
    assert found.first.relative == math.inf


def test_the_model_is_left_as_it_was() -> None:
    model = model_of("gpt2", torch.float32).train()
    difference(side(model), side(model, OTHERS))
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("text", ["L0", "L9H0", "L0H9", "L0H*", "L0H1.q", "L0H0.weights[1,1]", "weights", ""])
def test_what_is_not_one_head_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_head(text, StepTable(config_of("gpt2")))


def test_moved_weights_pass_over_what_only_one_model_has() -> None:
    a, b = lively(config_of("gpt2")), lively(config_of("llama, grouped"))
    names = {one.name for one in moved_weights(a, b)}
    assert "blocks.0.attention.q.weight" in names
    assert "blocks.0.attention.k.weight" not in names
    assert "blocks.0.ffn.gate.weight" not in names


def test_the_method_of_a_model_compares_texts_and_models() -> None:
    model = load("tiny", device="cpu")
    assert model.diff("The cat sat", "The cat sat").equal
    found = model.diff("The cat sat", "The dog sat", head="L1H2")
    assert found.attention is not None
    assert (found.attention.layer, found.attention.head) == (1, 2)
    with pytest.raises(UsageError, match="split the text differently"):
        model.diff("The cat sat", load("tiny-encoder", device="cpu"))


@pytest.mark.share(4)
@pytest.mark.parametrize(("share", "first"), [(0.9, None), (1.5, "logits")])
@pytest.mark.slow
def test_probabilities_differ_only_where_logits_do(share: float, first: str | None, tmp_path: Path) -> None:
    """They multiply the error of the logits by as much as these are large, which is no difference of its own."""
    model = load("tiny")
    trace = model.trace("The cat sat")
    logits = np.stack([trace.logits_at(at).numpy() for at in range(3)])
    row = min(logits, key=lambda one: softmax(one).max())  # the least certain
    row[row.argmax()] -= share * 1e-4 * np.abs(row).max()
    np.savez(tmp_path / "a.npz", input_ids=np.array(trace.encoding.ids), logits=logits)
    found = model.diff("The cat sat", open_dump(tmp_path / "a.npz"))
    probabilities = found.steps[-1]
    assert (probabilities.name, probabilities.relative > 1e-4) == ("probs", True)
    assert (found.first and found.first.name, found.worst and found.worst.name) == (
        (None, "logits") if first is None else (first, "probs")
    )


@pytest.mark.share(8)
@pytest.mark.parametrize("limit", [None, 1e-12, 1e9])
@pytest.mark.parametrize("bug", [0.0, 1e-4, 1.0])
def test_the_sentence_the_check_and_the_floor_agree(limit: float | None, bug: float) -> None:
    """A numpy dump of tiny that a little noise, or much, was added to from one step on."""
    model = load("tiny", device="cpu")
    trace = model.trace("The cat sat")
    noise = np.random.default_rng(3)
    steps = {name: trace[name].numpy() for name in ("embed.out", "L0.norm1", "L0.attn", "L0.out", "logits")}
    steps = {name: one + bug * (name != "embed.out") * noise.standard_normal(one.shape) for name, one in steps.items()}
    dump = {name: torch.from_numpy(one).float() for name, one in steps.items()}
    shapes = {name: tuple(one.shape) for name, one in dump.items()}
    for floor in (None, "bf16"):
        found = model.diff("The cat sat", Dump(Path("port"), shapes, dump.__getitem__), fail_over=limit, floor=floor)
        over = [step for step in found.steps if limit is not None and step.relative > limit and not step.follows]
        shares = found.floor.steps if found.floor else ()
        first_bug = next((step for step in shares if step.error > 6 * step.own), None)
        assert found.holds is (not over and first_bug is None)
        assert not (re.match("All|No number|Rounding: [^;]*$", found.sentence) and not found.holds), found.sentence
        if first_bug is not None:
            assert f"{first_bug.name} is " in found.sentence
            assert max(shares, key=lambda step: step.times).name in found.sentence
        elif over:
            assert f"{over[0].name} is the first to differ by more than" in found.sentence or "from" in found.sentence
