"""Gradients of a number that a function makes of the logits, against torch's own and finite differences."""

import pytest
import torch
from torch import Tensor

import tinytf
from tinytf.errors import UsageError

SENTENCE = "The cat sat on the"


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny", dtype="float64")


def entropy(logits: Tensor) -> Tensor:
    return -(logits[-1].softmax(-1) * logits[-1].log_softmax(-1)).sum()


def by_torch(model: tinytf.Model, metric: "tinytf.gradients.trace.Metric", name: str) -> tuple[float, Tensor]:
    parameter = dict(model.transformer.named_parameters())[name]
    value = metric(model.transformer(torch.tensor([model.encode(SENTENCE).ids]))[0])
    return float(value.detach()), torch.autograd.grad(value, parameter)[0]


def test_gradients_of_a_metric_are_those_of_torch(model: tinytf.Model) -> None:
    found = model.grad(SENTENCE, metric=entropy)
    for name in ("blocks.1.attention.q.weight", "blocks.3.ffn.down.weight", "final_norm.weight"):
        value, expected = by_torch(model, entropy, name)
        assert found.loss == pytest.approx(value, abs=1e-10)
        torch.testing.assert_close(found.parameters[name], expected, rtol=1e-8, atol=1e-10)


def test_gradients_of_a_metric_are_those_of_finite_differences(model: tinytf.Model) -> None:
    found, moved = model.grad(SENTENCE, metric=entropy), torch.zeros(5, 5, dtype=torch.float64)
    moved[4, 1] = 1e-6
    ends = []
    for sign in (1, -1):
        with model.edited({"L1H2.weights": lambda weights, sign=sign: weights + sign * moved}):
            ends.append(float(entropy(model.trace(SENTENCE)["logits"])))
    assert float(found.grad["L1H2.weights[4,1]"]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_versus_is_the_difference_of_two_logits(model: tinytf.Model) -> None:
    mat, rug = model.find_token("mat"), model.find_token("rug")
    for target in ("mat", None):  # which is predicted
        found = model.grad(SENTENCE, target=target, versus="rug")
        value, expected = by_torch(model, lambda logits: logits[-1, mat] - logits[-1, rug], "blocks.0.ffn.up.weight")
        assert found.loss == pytest.approx(value, abs=1e-10)
        torch.testing.assert_close(found.parameters["blocks.0.ffn.up.weight"], expected, rtol=1e-8, atol=1e-10)
    gradient = found.grad["logits"]
    assert gradient[-1, mat] == 1
    assert gradient[-1, rug] == -1
    assert int(gradient.abs().sum()) == 2
    assert not found.grad["probs"].any()


def test_a_metric_by_name_is_the_logit_or_the_lead_over_the_runner_up(model: tinytf.Model) -> None:
    row = model.trace(SENTENCE).logits_at(-1)
    (first, second), (best, next_best) = row.topk(2).indices.tolist(), row.topk(2).values.tolist()
    lead = model.grad(SENTENCE, metric="logit_diff")
    assert lead.loss == pytest.approx(best - next_best)
    gradient = lead.grad["logits"][-1]
    assert (float(gradient[first]), float(gradient[second])) == (1, -1)
    other = model.grad(SENTENCE, metric="logit_diff", target="rug")
    assert other.loss == pytest.approx(float(row[model.find_token("rug")]) - best)
    logit = model.grad(SENTENCE, metric="logit", target="rug")
    assert logit.loss == pytest.approx(float(row[model.find_token("rug")]))
    name = "blocks.1.attention.v.weight"
    rug = model.find_token("rug")
    torch.testing.assert_close(logit.parameters[name], by_torch(model, lambda logits: logits[-1, rug], name)[1])
    assert model.grad(SENTENCE, metric="loss", target="rug").loss == model.grad(SENTENCE, target="rug").loss


def test_an_encoder_has_them_at_its_mask() -> None:
    model = tinytf.load("tiny-encoder")
    text = "the cat sat on the [MASK] ."
    found = model.grad(text, target="mat", versus="dog")
    trace = model.trace(text)
    row = trace.logits_at(trace.recording.logit_rows[0])
    assert found.loss == pytest.approx(float(row[model.find_token("mat")] - row[model.find_token("dog")]), abs=1e-4)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"metric": lambda logits: logits[-1]}, "one number that depends on the logits"),
        ({"metric": lambda logits: 3.0}, "one number that depends on the logits"),
        ({"metric": lambda logits: torch.zeros(())}, "one number that depends on the logits"),
        ({"metric": entropy, "versus": "mat"}, "takes no target, positions or versus"),
        ({"metric": "logit_dif"}, "no metric 'logit_dif'"),
        ({"metric": "loss", "versus": "mat"}, "the metric loss takes no versus"),
        ({"metric": "logit", "versus": "mat"}, "the metric logit takes no versus"),
        ({"target": "mat", "versus": "mat"}, "target and versus are the same token"),
        ({"versus": "not one token"}, "versus"),
    ],
)
def test_what_has_no_gradient_is_refused(model: tinytf.Model, asked: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        model.grad(SENTENCE, **asked)


def test_the_report_of_a_backward_pass_is_of_a_cross_entropy(model: tinytf.Model) -> None:
    with pytest.raises(UsageError, match="of a metric, not of a cross-entropy"):
        model.backward(model.grad(SENTENCE, metric=entropy))
