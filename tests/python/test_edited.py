"""Steps made by functions: against numpy by hand, and against the model that computes the rest of it."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from architectures import KINDS, asked, config_of, lively, some_ids
from torch import Tensor

import tinytf
from tinytf.errors import AddressError, UsageError
from tinytf.generate.runner import Runner
from tinytf.parts.row import Step
from tinytf.steps.table import table_of
from tinytf.trace.check import check

SENTENCE = "The cat sat on the"


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny", dtype="float64")


def last_logits(model: tinytf.Model, text: str = SENTENCE) -> Tensor:
    return model.trace(text).logits_at(-1)


def uniform(weights: Tensor) -> Tensor:
    """Attention to all tokens so far alike."""
    count = weights.shape[-1]
    return (torch.ones(count, count).tril() / torch.arange(1, count + 1)[:, None]).expand(weights.shape)


def test_an_edited_head_gives_what_numpy_makes_of_its_new_weights(model: tinytf.Model) -> None:
    with model.edited({"L1H2.weights": uniform}):
        trace = model.trace(SENTENCE)
    values, count = trace["L1H2.v"].numpy(), len(trace.tokens)
    means = np.array([values[: place + 1].mean(0) for place in range(count)])
    np.testing.assert_allclose(trace["L1H2.head_out"].numpy(), means, atol=1e-6)
    np.testing.assert_allclose(trace["L1H2.weights"].numpy(), uniform(torch.zeros(count, count)).numpy(), atol=1e-7)
    plain = model.trace(SENTENCE)
    assert torch.equal(trace["L1H1.weights"], plain["L1H1.weights"])
    assert not torch.equal(trace["L2.in"], plain["L2.in"])
    found = check(trace)
    assert found.holds
    assert found.exchanged == ("L1H2.weights",)


def test_the_block_gets_the_model_itself(model: tinytf.Model) -> None:
    with model.edited({"L1.ffn": 0.0}) as inside, model.ablated("L2H0") as both:
        assert inside is both is model
        continued = both.generate(SENTENCE, max_tokens=3)
    assert continued == model.without(["L1.ffn", "L2H0"]).generate(SENTENCE, max_tokens=3)


def test_steps_of_all_layers_are_stacked(model: tinytf.Model) -> None:
    trace = model.trace(SENTENCE)
    parts = trace.stack("embed.out", "L*.attn", "L*.ffn")
    assert parts.shape == (9, 5, 128)
    torch.testing.assert_close(parts.sum(0), trace["L3.out"])
    assert torch.equal(trace.stack("L1.out")[0], trace["L1.out"])
    assert torch.equal(trace.stack("L*H2.weights[-1]"), trace["L*H2.weights"][:, -1])
    with pytest.raises(UsageError, match=r"one shape can be stacked, and these are \(4, 5, 32\) and \(5, 128\)"):
        trace.stack("L*.out", "L0.q")


def test_a_head_set_to_zero_is_the_head_ablated(model: tinytf.Model) -> None:
    expected = model.without("L1H2")
    for edit in (0.0, torch.zeros_like, lambda heads: heads.zero_()):
        with model.edited({"L1H2.head_out": edit}):
            torch.testing.assert_close(last_logits(model), last_logits(expected), rtol=1e-9, atol=1e-9)
            assert model.generate(SENTENCE, max_tokens=6) == expected.generate(SENTENCE, max_tokens=6)
            assert model.score(SENTENCE).loss == pytest.approx(expected.score(SENTENCE).loss, abs=1e-6)


def test_the_tensor_of_another_text_is_patched_in(model: tinytf.Model) -> None:
    clean, corrupt = "The cat sat on the mat. The cat", "The dog sat on the mat. The dog"
    given = model.trace(clean)
    with model.edited({"L1.out": given["L1.out"]}):
        patched = model.trace(corrupt)
    torch.testing.assert_close(patched["logits"], given["logits"], rtol=1e-9, atol=1e-9)


def test_every_token_of_a_generation_is_that_of_a_trace_of_the_text_so_far(model: tinytf.Model) -> None:
    """With an edit that knows positions: the third token is not seen by the others."""

    def blind(scores: Tensor) -> Tensor:
        scores[:, 3:, 2] = -math.inf
        return scores

    with model.edited({"L0-3.masked": blind}):
        text, ids = SENTENCE, list(model.encode(SENTENCE).ids)
        for step in model.stream(text, max_tokens=5):
            expected = model.trace(ids=ids).logits_at(-1)
            assert step.id == int(expected.argmax())
            assert step.log_probability == pytest.approx(float(expected.float().log_softmax(-1).max()), abs=1e-5)
            ids.append(step.id)
        edited = model.generate(text, max_tokens=5)
        *_, last = model.beams(text, beams=1, max_tokens=5)
        assert model.text_after(model.encode(text).ids, last.finished[0].ids) == edited
    assert model.generate(text, max_tokens=5) != edited


def test_gradients_go_through_an_edit(model: tinytf.Model) -> None:
    """Against finite differences in the strength of a head."""

    def loss(strength: float) -> float:
        with model.edited({"L1H2.head_out": lambda heads: heads * strength}):
            trace = model.trace(SENTENCE)
            return float(F.cross_entropy(trace["logits"][:-1], trace["ids"][1:]))

    with model.edited({"L1H2.head_out": lambda heads: heads * 0.5}):
        found = model.grad(SENTENCE)
    assert found.loss == pytest.approx(loss(0.5), abs=1e-9)
    by_strength = float((found.grad["L1H2.head_out"] * found["L1H2.head_out"] / 0.5).sum())
    assert by_strength == pytest.approx((loss(0.5 + 1e-5) - loss(0.5 - 1e-5)) / 2e-5, rel=1e-5)
    with pytest.raises(UsageError, match=r"L1\.head_out is edited"):
        model.backward(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_with_gradients_differentiates_what_follows_an_edit(kind: str) -> None:
    """In every kind of model, steps that are derived too: against differences along a vector of the user's."""
    model = asked(lively(config_of(kind)).double())
    text = " ".join(map(str, some_ids(model.config, 1, 7, 3)[0].tolist()))
    plain = model.trace(text)
    assert not plain["embed.out"].requires_grad
    assert not plain.last_hidden.requires_grad
    vector = torch.zeros_like(plain["embed.out"], requires_grad=True)
    along = torch.arange(vector.numel()).cos().view(vector.shape).double()

    def number(added: Tensor, grad: bool = False) -> Tensor:
        with model.edited({"embed.out": lambda x: x + added.view(x.shape)}):
            trace = model.trace(text, grad=grad)
        derived = [step for step, layer in trace.steps.rows if layer == 0 and step.name in ("mid", "norm1", "weights")]
        assert derived
        parts = [trace.last_hidden, *(trace[step.full_name(0)] for step in derived)]
        return torch.stack([(part * torch.arange(part.numel()).sin().view(part.shape)).sum() for part in parts]).sum()

    number(vector, grad=True).backward()
    assert vector.grad is not None
    measured = (number(1e-6 * along) - number(-1e-6 * along)) / 2e-6
    assert float((vector.grad * along).sum()) == pytest.approx(float(measured), rel=1e-4, abs=1e-5)


def test_a_question_about_a_trace_with_gradients_has_none(model: tinytf.Model) -> None:
    with model.edited({"L1.out": torch.zeros_like(model.trace(SENTENCE)["L1.out"]).requires_grad_()}):
        trace = model.trace(SENTENCE, grad=True)
    assert trace["logits"].requires_grad
    assert trace["L2H1.weights"].requires_grad
    answer, without = model.lens(trace), model.trace(trace)
    assert not without["logits"].requires_grad
    assert torch.equal(without["L2H1.weights"], trace["L2H1.weights"])
    assert json.loads(json.dumps(answer.to_dict())) == json.loads(json.dumps(model.lens(without).to_dict()))


def test_edits_are_nested_and_the_inner_one_takes_what_the_outer_one_made(model: tinytf.Model) -> None:
    plain = model.trace(SENTENCE)["L2.ffn"]
    with model.edited({"L2.ffn": lambda x: x + 1}):
        with model.edited({"L2.ffn": lambda x: x * 2, "L0.weights": lambda w: w}):
            torch.testing.assert_close(model.trace(SENTENCE)["L2.ffn"], (plain + 1) * 2)
        torch.testing.assert_close(model.trace(SENTENCE)["L2.ffn"], plain + 1)
    assert torch.equal(model.trace(SENTENCE)["L2.ffn"], plain)


@pytest.mark.parametrize("address", ["L1.weights", "L1.ffn", "L1.in", "L1.ffn.act", "embed.out"])
def test_an_exception_inside_restores_the_model(model: tinytf.Model, address: str) -> None:
    before = last_logits(model)

    def broken(tensor: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), model.edited({"L0.weights": uniform, address: broken}):
        model.trace(SENTENCE)
    assert torch.equal(last_logits(model), before)
    assert model.transformer.edited == model.transformer.exchanged == ()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.transformer.modules())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("L1", "names no step"),
        ("L1.weights[0,1]", "a step is edited whole"),
        ("probs", "not a step that can be edited"),
        ("logits", "not a step that can be edited"),
        ("next", "not a step that can be edited"),
        ("L7.q", "no layer 7"),
        ("nothing", "nothing"),
        (3, "an address is a text"),
    ],
)
def test_what_cannot_be_edited_is_refused(model: tinytf.Model, address: str, said: str) -> None:
    with pytest.raises(AddressError, match=said), model.edited({address: uniform}):
        pass
    with pytest.raises(UsageError, match="edits are functions by address"), model.edited([address]):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("made", [lambda w: w[0, 0], lambda w: "much", "much", torch.zeros(2, 2)])
def test_an_edit_that_gives_another_shape_is_refused(model: tinytf.Model, made: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UsageError, match=r"the edit of L1\.weights gives .*the step is \(4, 5, 5\)"):  # noqa: SIM117
        with model.edited({"L1.weights": made}):
            model.trace(SENTENCE)


def test_a_cache_that_holds_tokens_is_refused_with_a_function(model: tinytf.Model) -> None:
    cache = model.transformer.cache(16)
    with model.edited({"L1.weights": lambda w: w * 0.7}):
        expected = model.generate(SENTENCE, max_tokens=4, use_cache=False)
        assert model.generate(SENTENCE, max_tokens=4, cache=cache) == expected
        with pytest.raises(UsageError, match="does not continue a cache"):
            model.generate(SENTENCE, max_tokens=4, cache=cache)
        with pytest.raises(UsageError, match="read from the cache, but there is none"):
            model.generate(SENTENCE, max_tokens=2, looking=tinytf.Looking())
    with model.edited({"L1.scores": lambda x: x}), pytest.raises(UsageError, match="has no cache"):
        model.transformer.cache(16)


def damped(x: Tensor) -> Tensor:
    """Change every token by itself, and leave masked keys masked and shares of 0 at 0."""
    return x * (1 + 0.3 * torch.arange(x.shape[-1]).cos())


def logits_so_far(model: tinytf.Model, ids: list[int], *, cached: bool) -> tuple[list[Tensor], bool]:
    """The logits of new tokens that are the same in every run, and whether the cache served to the end."""
    runner = Runner(model.transformer, ids[:5], model.transformer.cache(len(ids)) if cached else None)
    logits = [runner.first()]
    for new in ids[5:]:
        logits.append(runner.go_on(list(range(len(runner.texts))), [new] * len(runner.texts)))
    assert runner.note == ""  # which says that the fast decoder was wrong
    return logits, runner.cache is not None


@pytest.mark.parametrize("kind", KINDS)
def test_edits_with_a_cache_give_the_logits_of_whole_texts(kind: str) -> None:
    """In every kind of decoder, for every step that a cache serves."""
    model = asked(lively(config_of(kind)).double())
    table, config = table_of(model.config), model.config
    if not config.causal or config.looks_ahead or config.head.kind != "lm" or config.d_source:
        pytest.skip("no decoder of one stack")
    ids = some_ids(config, 1, 9, 3)[0].tolist()
    served = 0
    for step, layer in {step.name: (step, layer) for step, layer in table.rows}.values():
        name = step.full_name(layer)
        if not _can_be_edited(model, step, layer):
            continue
        with model.edited({name: damped}):
            if model.transformer.needs_whole_text:
                continue
            expected, _ = logits_so_far(model, ids, cached=False)
            found, holds = logits_so_far(model, ids, cached=True)
        served += holds
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=f"{name}: {(one - other).abs().max()}")
    assert served > 5


def newest_off(x: Tensor) -> None:
    x[-1] = 0


@pytest.mark.parametrize("address", ["L1.out", "L2.ffn", "embed.out", "L1H0.q"])
@pytest.mark.parametrize("edit", [lambda x: x - x.mean(0), newest_off])
def test_a_function_that_changes_earlier_tokens_gets_the_whole_text_for_each_new_one(
    model: tinytf.Model, address: str, edit: Callable[[Tensor], Tensor]
) -> None:
    ids = list(model.encode("The cat sat on the mat and the dog").ids)
    with model.edited({address: edit}):
        found, holds = logits_so_far(model, ids, cached=True)
        expected = [model.trace(ids=ids[:end]).logits_at(-1) for end in range(5, len(ids) + 1)]
    assert not holds
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[0], other.float(), rtol=1e-5, atol=1e-5)


def test_beams_and_samples_keep_what_was_edited_of_their_own_tokens(model: tinytf.Model) -> None:
    with model.edited({"L1.weights": lambda w: w * 0.7, "L2.out": lambda x: x * (1 + 0.1 * x.tanh())}):
        *_, last = model.beams(SENTENCE, beams=3, max_tokens=6)
        *_, expected = model.beams(SENTENCE, beams=3, max_tokens=6, use_cache=False)
        sampling = tinytf.Sampling(temperature=1.5)
        runs = [
            [
                (step.sample, step.id)
                for step in model.stream(SENTENCE, max_tokens=6, samples=3, sampling=sampling, use_cache=use)
            ]
            for use in (True, False)
        ]
    assert [one.ids for one in last.finished] == [one.ids for one in expected.finished]
    assert runs[0] == runs[1]
    assert len({tuple(token for number, token in runs[0] if number == sample) for sample in (1, 2, 3)}) > 1


def test_a_name_of_transformer_lens_is_an_address_too(model: tinytf.Model) -> None:
    with model.edited({"blocks.1.attn.hook_pattern": uniform}):
        named = last_logits(model)
    with model.edited({"L1.weights": uniform}):
        assert torch.equal(last_logits(model), named)


def test_an_edit_by_a_name_of_transformer_lens_is_given_its_axes(model: tinytf.Model) -> None:
    shapes = []

    def second_head_off(z: Tensor) -> Tensor:
        shapes.append(tuple(z.shape))
        z[:, 2] = 0
        return z

    def hidden_first(scores: Tensor) -> None:
        assert bool(scores.isfinite().all())
        scores[:, 1:, 0] = torch.finfo(scores.dtype).min

    hooks = {"blocks.1.attn.hook_z": second_head_off, "blocks.0.attn.hook_attn_scores": hidden_first}
    with model.edited(hooks):  # type: ignore[arg-type]
        named = last_logits(model)

    def ours(masked: Tensor) -> None:
        masked[:, 1:, 0] = -math.inf

    with model.edited({"L1H2.head_out": 0.0, "L0.masked": ours}):
        torch.testing.assert_close(last_logits(model), named, rtol=1e-9, atol=1e-9)
    assert shapes == [(5, 4, 32)]
    with model.edited({"blocks.1.attn.hook_z": model.trace(SENTENCE)["blocks.1.attn.hook_z"]}):
        torch.testing.assert_close(last_logits(model), model.trace(SENTENCE).logits_at(-1), rtol=1e-9, atol=1e-9)
    with pytest.raises(AddressError, match="before gain and bias"), model.edited({"blocks.1.ln1.hook_normalized": 0.0}):
        pass


def test_a_sweep_over_heads_sees_the_edit(model: tinytf.Model) -> None:
    first = {
        "L0.masked": lambda scores: F.pad(scores[:, :, :-1], (0, 1), value=-math.inf).index_fill(2, torch.tensor(0), 0)
    }
    with model.edited(first):
        swept = model.ablate_sweep(SENTENCE)
        assert swept.check.holds
        alone = model.ablate(SENTENCE, "L2H1", target=swept.target)
    assert float(swept.kl[2, 1]) == pytest.approx(alone.effect.kl, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_that_can_be_edited_changes_what_comes_after(kind: str) -> None:
    """In every kind of model. The same value changes nothing, and the check of the trace holds with another one."""
    model = asked(lively(config_of(kind)).double())
    text = " ".join(map(str, some_ids(model.config, 1, 9, 3)[0].tolist()))
    plain, table = model.trace(text), table_of(model.config)
    places = {step.name: (step, layer) for step, layer in reversed(table.rows)}.values()
    found = {step.full_name(layer): (step, layer) for step, layer in places if _can_be_edited(model, step, layer)}
    assert len(found) > 10
    with model.edited(dict.fromkeys(found, lambda x: x)):
        same = model.trace(text)
    for name, (step, layer) in found.items():
        torch.testing.assert_close(same[name], plain[name], rtol=1e-9, atol=1e-9)
        with model.edited({name: lambda x: x + 0.3 * torch.arange(x.numel()).cos().view(x.shape)}):
            other = model.trace(text)
        # of a router or an indexer only what is largest counts
        if step.to_loss and not name.endswith("router") and not table.only_through_maps(step, layer):
            assert not torch.allclose(other.last_hidden, plain.last_hidden, atol=1e-6), name
        assert check(other).holds, name


def _can_be_edited(model: tinytf.Model, step: Step, layer: int | None) -> bool:
    try:
        model.edited({step.full_name(layer): 0.0})
    except AddressError:
        return False
    return True
