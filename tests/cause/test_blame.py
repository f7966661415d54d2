"""What each tensor of another model does, against a copy of the model with that one tensor in it, run whole."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from architectures import asked, config_of, encoding_of, lively
from caught_gradients import model_of
from whole_runs import TEXTS, apart, near, with_tensor

from tinytf.cause import restoring
from tinytf.cause.blame import Blame
from tinytf.cause.damage import MeasuredText, expected
from tinytf.cause.model_pair import ModelPair, Texts
from tinytf.errors import UsageError
from tinytf.estimate import Estimate, estimates
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.steps.table import table_of
from tinytf.trace.record import record
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


def blamed(first: Transformer, other: Transformer, texts: Sequence[str] = TEXTS, **settings: object) -> Blame:
    settings = {"restore": 1000, **settings}
    return asked(first).blame(list(texts), asked(other), **settings)  # type: ignore[arg-type]


KINDS = (
    "gpt2",
    "bert with a masked head",
    "llama, grouped",
    "deepseek, latent keys and values",
    "opt 350m, narrow embeddings after the sum",
    "mpnet, a bias of distance",
    "experts beside a shared one, after a dense layer",
    "gpt-j, a norm for both",
)
"""Tied and untied heads, parameters that layers share, both norms, experts, what stands beside the blocks."""


def check_every_tensor(first: Transformer) -> Blame:
    other, scratch = near(first), copy.deepcopy(first)
    found, whole = blamed(first, other), apart(first, other)
    for one in found.blamed:
        assert one.damage
        assert one.recovered
        into_first = apart(first, with_tensor(scratch, first, other, one.path))
        into_other = apart(first, with_tensor(scratch, other, first, one.path))
        for effect, true in (
            (one.damage, into_first),
            (one.recovered, tuple(a - b for a, b in zip(whole, into_other, strict=True))),
            (found.whole, whole),
        ):
            numbers = [0.0 if part is None else part.value for part in (effect.kl, effect.loss, effect.margin)]
            assert numbers == pytest.approx(true, abs=1e-9), one.address
    return found


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_alone_does_what_a_whole_run_with_it_does(kind: str) -> None:
    first = model_of(kind)
    found = check_every_tensor(first)
    assert {one.path for one in found.blamed} == {path for path, _ in first.named_parameters()}
    assert [one.address for one in found.blamed] == [
        one.address for one in sorted(found.blamed, key=lambda one: -one.damage.kl.value if one.damage else 0)
    ]


def test_layers_that_share_their_weights_are_swapped_together() -> None:
    found = check_every_tensor(lively(config_of("gpt2", n_layers=4, layer_groups=2)).double())
    assert {one.layer for one in found.blamed} == {None, 0, 2}


def test_a_head_of_classes_is_asked_at_the_one_token_that_it_reads() -> None:
    found = check_every_tensor(lively(config_of("bert with classes of the text")).double())
    assert found.positions == len(TEXTS)
    assert found.whole.loss is None


def test_a_small_divergence_is_not_lost_to_rounding_nor_a_large_one_to_overflow() -> None:
    first = model_of("llama, grouped", torch.float32)
    for by in (1e-5, 30.0):
        other = near(first, by)
        true, _, _ = apart(copy.deepcopy(first).double(), copy.deepcopy(other).double())
        assert blamed(first, other).whole.kl.value == pytest.approx(true, rel=0.02)


def test_a_gradient_expects_half_the_variance_of_the_change_of_the_logits() -> None:
    first = model_of("llama, grouped")
    other, ids = near(first, 0.01), [3, 14, 15, 9]
    differences = {path: one.detach() - first.get_parameter(path).detach() for path, one in other.named_parameters()}
    found = expected(first, MeasuredText.of(first, ids, None), differences, 400, torch.Generator().manual_seed(0))
    for (path, difference), value in zip(differences.items(), found.tolist(), strict=True):
        changed = copy.deepcopy(first)
        with torch.no_grad():
            p = first(torch.tensor([ids]))[0].softmax(-1)
            changed.get_parameter(path).add_(1e-4 * difference)
            change = (changed(torch.tensor([ids])) - first(torch.tensor([ids])))[0] / 1e-4  # a directional derivative
        variance = (p * change.square()).sum(-1) - (p * change).sum(-1).square()
        assert value == pytest.approx(float(variance.sum() / 2), rel=0.35), path  # the mean of 400 squares: 7 % alone


def test_the_expected_ones_are_measured_first_and_the_others_not_at_all() -> None:
    first = model_of("gpt2")
    other = near(first)
    whole, some = blamed(first, other), blamed(first, other, top=5)
    assert [one.damage is not None for one in some.blamed] == [True] * 5 + [False] * (len(whole.blamed) - 5)
    known = {one.path: one for one in whole.blamed}
    for one in some.measured:
        assert one.damage
        assert one.damage.kl.value == pytest.approx(known[one.path].damage.kl.value)  # type: ignore[union-attr]
    assert min(one.expected for one in some.measured) >= max(one.expected for one in some.blamed[5:])


def test_tensors_that_are_equal_are_not_measured() -> None:
    first = model_of("gpt2")
    assert blamed(first, copy.deepcopy(first)).blamed == ()
    other = with_tensor(copy.deepcopy(first), first, near(first), "blocks.1.ffn.down.weight")
    found = blamed(first, other)
    assert [one.address for one in found.blamed] == ["L1.ffn.W₂"]
    assert found.same == len(list(first.parameters())) - 1
    for effect in (found.blamed[0].damage, found.blamed[0].recovered):
        assert effect
        assert effect.kl.value == pytest.approx(found.whole.kl.value)


def test_the_pair_that_is_asked_for_is_compared() -> None:
    first = model_of("gpt2")
    other = near(first)
    found = asked(first).blame(Texts(TEXTS, token=4, versus_token=7), asked(other))
    ends = [torch.tensor([[int(word) for word in text.split()]]) for text in TEXTS]
    with torch.no_grad():
        changes = [(other(ids) - first(ids))[0, -1] for ids in ends]
    true = [float(change[4] - change[7]) for change in changes]
    assert found.whole.margin.value == pytest.approx(sum(true) / len(true))


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    sums = torch.randn(400, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 5
    counts = torch.ones(400, dtype=torch.float64)
    for column, found in enumerate(estimates(sums, counts, 0)):
        mean, error = sums[:, column].mean(), sums[:, column].std() / 20
        assert found.value == pytest.approx(float(mean))
        assert [found.low, found.high] == pytest.approx(
            [float(mean - 1.96 * error), float(mean + 1.96 * error)], abs=0.02
        )
    assert estimates(sums[:1], counts[:1], 0)[0].low is None


def test_texts_of_many_tokens_count_more() -> None:
    sums, counts = torch.tensor([30.0, 1.0] * 3, dtype=torch.float64)[:, None], torch.tensor([10.0, 1.0] * 3).double()
    assert estimates(sums, counts, 0)[0] == Estimate(31 / 11, 1.0, 3.0)


def test_an_interrupt_keeps_the_texts_that_are_done() -> None:
    def interrupted(done: int, of: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    first = model_of("gpt2")
    other = near(first)
    found = blamed(first, other, on_progress=interrupted)
    assert (found.texts, found.asked, found.interrupted) == (1, 2, True)
    assert found.whole.kl.value == pytest.approx(apart(first, other, TEXTS[:1])[0])
    assert found.blamed[0].recovered is None


def test_models_that_differ_in_more_than_tensors_are_refused() -> None:
    first = lively(config_of("gpt2"))
    with pytest.raises(UsageError, match="n_layers is 2 and 3"):
        blamed(first, lively(config_of("gpt2", n_layers=3)))
    with pytest.raises(UsageError, match="and one is named"):
        asked(first).blame(Texts("3 5", token=3), asked(near(first)))
    with pytest.raises(UsageError, match="no language-model head"):
        blamed(lively(config_of("bert with a pooler")), lively(config_of("bert with a pooler")))


def test_sets_explain_what_a_model_with_them_restored_explains() -> None:
    first = model_of("llama, grouped")
    other = near(first)
    found = blamed(first, other)
    sets = asked(first).restoring(TEXTS, asked(other), found.gains)
    scratch, whole = copy.deepcopy(other), apart(first, other)[0]
    paths = {one.address: one.path for one in found.blamed}
    count = 0
    for one in sets:
        for address in one.added:
            with torch.no_grad():
                scratch.get_parameter(paths[address]).copy_(first.get_parameter(paths[address]))
        count += len(one.added)
        assert one.count == count
        assert one.share.value == pytest.approx(1 - apart(first, scratch)[0] / whole, abs=1e-9)
    assert sets[0].added == (max(found.blamed, key=lambda one: found.gains[one.path]).address,)
    assert sets[-1].share.value >= 0.9 > sets[-2].share.value


def test_an_interrupt_keeps_the_sets_that_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    first = model_of("llama, grouped")
    other = near(first)
    gains = blamed(first, other).gains

    def interrupted(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    alone = asked(first).restoring(TEXTS[:1], asked(other), gains)
    monkeypatch.setattr(restoring, "_CHOSEN_ON", 1)
    assert asked(first).restoring(TEXTS, asked(other), gains, on_progress=interrupted) == alone[:2]


def test_an_interrupt_keeps_the_texts_that_sets_are_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first = model_of("llama, grouped")
    other = near(first)
    gains, left = blamed(first, other).gains, restoring._left

    def interrupted(both: ModelPair, text: MeasuredText, *more: Any) -> torch.Tensor:
        if text.ids.shape[1] == len(TEXTS[1].split()):
            raise KeyboardInterrupt
        return left(both, text, *more)

    alone = asked(first).restoring(TEXTS[:1], asked(other), gains)
    monkeypatch.setattr(restoring, "_left", interrupted)
    monkeypatch.setattr(restoring, "_CHOSEN_ON", 1)
    assert asked(first).restoring(TEXTS, asked(other), gains) == alone
    assert {one.texts for one in alone} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_own_errors_are_those_of_one_module_and_actual_ones_those_of_all(kind: str) -> None:
    first = model_of(kind)
    other, scratch = near(first), copy.deepcopy(first)
    ids = [int(word) for word in TEXTS[0].split()]
    found = {one.name: one for one in asked(first).step_errors(TEXTS[:1], asked(other))}
    table = table_of(first.config)
    true, actual = (record(model, encoding_of(ids)) for model in (first, other))

    def error(trace: Trace, step: Step, layer: int | None) -> float:
        axis = next(i for i, axis in enumerate(step.axes) if axis in ("token", "query"))
        a, b = (one.step(step.name, layer).movedim(axis, 0).flatten(1) for one in (true, trace))
        return float(((a - b).norm(dim=-1) / a.norm(dim=-1)).mean())

    made = [(step, layer) for step, layer in table.rows if step.module and not step.is_vocabulary]
    assert {step.full_name(layer) for step, layer in made} == set(found)
    for step, layer in made:
        one, own = found[step.full_name(layer)], Site(true, step, layer).path + "."
        assert one.actual == pytest.approx(error(actual, step, layer)), one.name
        if not step.shared:  # its parameters change what came before
            theirs = {path: value for path, value in other.state_dict().items() if path.startswith(own)}
            scratch.load_state_dict(first.state_dict() | theirs)
            assert one.own == pytest.approx(error(record(scratch, encoding_of(ids)), step, layer)), one.name


def test_equal_models_are_blamed_for_nothing_on_many_texts() -> None:
    first = model_of("gpt2")
    found = blamed(first, copy.deepcopy(first))
    assert found.blamed == ()
    assert found.whole.kl.value == 0
