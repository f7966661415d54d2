"""Numbers that are set: the rest of the pass against numpy, changed weights and other divisors; and nothing stays."""

import copy
import math

import numpy as np
import pytest
import torch
from architectures import config_of, lively, some_ids
from numpy.typing import NDArray

import tinytf
from tinytf.errors import AddressError, UsageError
from tinytf.model.without import with_config
from tinytf.trace.check import check
from tinytf.trace.trace import Trace

TEXT = "The cat sat on the"
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny", dtype="float64")


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain
    return normed


def logits_after(trace: Trace, layer: int, weights: Array) -> Array:
    """The last logits, from the attention weights (H, T, T) of the last layer on."""

    def number(address: str) -> Array:
        return trace[address].numpy()

    at, eps = f"L{layer}", trace.config.norm_eps
    mixed = np.concatenate(list(weights @ number(f"{at}.v")), axis=-1)  # (T, H·D)
    mid = number(f"{at}.in") + mixed @ number(f"{at}.W_O")
    normed = rms_norm(mid, number(f"{at}.norm2.gain"), eps)
    gate = normed @ number(f"{at}.ffn.W_gate")
    act = gate / (1 + np.exp(-gate)) * (normed @ number(f"{at}.ffn.W_up"))
    last = (mid + act @ number(f"{at}.ffn.W_down"))[-1]
    logits: Array = rms_norm(last, number("final.norm.gain"), eps) @ number("E").T
    return logits


def test_what_follows_a_set_weight_is_what_numpy_computes_from_it(model: tinytf.Model) -> None:
    trace = model.trace(TEXT)
    weights = trace["L3.weights"].numpy().copy()
    np.testing.assert_allclose(logits_after(trace, 3, weights), trace.logits_at(-1), rtol=1e-9, atol=1e-9)
    weights[1, 4, 2] = 0.75
    changed = model.with_numbers({"L3H1.weights[-1,sat]": 0.75}, text=TEXT).trace(TEXT)
    np.testing.assert_allclose(changed["L3.weights"], weights)
    np.testing.assert_allclose(changed.logits_at(-1), logits_after(trace, 3, weights), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(changed.logits_at(-1), trace.logits_at(-1), atol=1e-3)
    assert check(changed).holds
    assert check(changed).exchanged == ("L3H1.weights",)


def test_a_row_is_filled_except_where_the_mask_hides_it(model: tinytf.Model) -> None:
    plain = model.trace(TEXT)["L1.weights"]
    changed = model.with_numbers({"L1H2.weights[sat,:]": 0.25, "L1H2.weights[sat,0]": 1}, text=TEXT)
    weights = changed.trace(TEXT)["L1.weights"]
    assert weights[2, 2].tolist() == [1, 0.25, 0.25, 0, 0]
    others = torch.ones(weights.shape, dtype=torch.bool)
    others[2, 2] = False
    assert torch.equal(weights[others], plain[others])


@pytest.mark.parametrize(
    ("address", "name", "index"),
    [
        ("L1H2.W_Q[5,3]", "blocks.1.attention.q.weight", (2 * 32 + 3, 5)),
        ("E[464,1:3]", "embed.tokens.weight", (464, slice(1, 3))),
        ("L2.ffn.W_down[0:4,-1]", "blocks.2.ffn.down.weight", (-1, slice(4))),
    ],
)
def test_a_set_parameter_is_that_of_a_model_whose_weight_was_changed(
    model: tinytf.Model, address: str, name: str, index: tuple[int | slice, ...]
) -> None:
    other = copy.deepcopy(model.transformer)
    with torch.no_grad():
        other.get_parameter(name)[index] = 0.5
    before = {key: tensor.clone() for key, tensor in model.transformer.state_dict().items()}
    changed = model.with_numbers({address: 0.5})
    ids = torch.tensor([model.encode(TEXT).ids])
    with torch.no_grad():
        assert torch.equal(changed.transformer(ids), other(ids))
        assert not torch.equal(changed.transformer(ids), model.transformer(ids))
    for key, tensor in model.transformer.state_dict().items():
        assert torch.equal(tensor, before[key])
        shared = changed.transformer.state_dict()[key].data_ptr() == tensor.data_ptr()
        assert shared == (key != name)


def test_a_divisor_divides_the_scores_of_its_layers(model: tinytf.Model) -> None:
    plain = model.trace(TEXT)
    scores = plain["L1.scores"].numpy()
    hidden = np.where(np.tri(len(plain.tokens), dtype=bool), scores / 2, -np.inf)
    shares = np.exp(hidden - hidden.max(-1, keepdims=True))
    expected = shares / shares.sum(-1, keepdims=True)
    one = model.with_numbers({"L1.√d": 2}).trace(TEXT)
    np.testing.assert_allclose(one["L1.weights"], expected, atol=1e-12)
    assert torch.equal(one["L0.weights"], plain["L0.weights"])
    root = math.sqrt(model.config.d_head)
    with model.edited({"L*.scaled": lambda scaled: scaled * root}):
        undivided = model.trace(TEXT).logits_at(-1)
    for name in ("√d", "scale", "√d_head"):
        torch.testing.assert_close(model.with_numbers({name: 1}).trace(TEXT).logits_at(-1), undivided)


def test_generation_and_scores_go_through_the_set_numbers(model: tinytf.Model) -> None:
    changed = model.with_numbers({"L3H1.weights[2,0]": 3, "L0.W_Q[0,3]": 2, "√d": 4})
    ids = list(model.encode(TEXT).ids)
    for step in changed.stream(TEXT, max_tokens=2):
        assert step.id == int(changed.trace(ids=ids).logits_at(-1).argmax())
        ids.append(step.id)
    assert changed.notes == ("with L3H1.weights[2,0] = 3, L0.W_Q[0,3] = 2, √d = 4",)
    without = model.without("L1H2").with_numbers({"L3H1.weights[2,0]": 3})
    assert without.transformer.exchanged == ("L1H2.head_out", "L3H1.weights")


def test_a_sliding_window_stays_closed_in_its_layer() -> None:
    transformer = lively(config_of("mistral, a window and stretched waves")).eval()
    config = transformer.config
    assert 0 < config.window < 8
    model = tinytf.Model("small", transformer, tinytf.load("tiny").tokenizer, "")
    ids = [number % config.vocab_size for number in range(8)]
    weights = model.with_numbers({"L0H0.weights[7,:]": 0.5}).trace(ids=ids)["L0H0.weights"]
    assert weights[7].tolist() == [0.0] * (8 - config.window) + [0.5] * config.window


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"L1H2.weights[2,1]": math.nan}, "nan is not a finite number of float64"),
        ({"L1H2.weights[2,1]": math.inf}, "inf is not a finite number"),
        ({"L1H2.weights[2,1]": "0"}, "'0' is not a number"),
        ({}, "numbers are set by address"),
        ({"√d": 0}, "√d divides the scores, and 0 is not above 0"),
        ({"L9.√d": 1}, "there is no layer 9"),
        ({"logits[0,0]": 1}, r"logits\[0,0\] is not a step that can be edited"),
        ({"L1H2[0,0]": 1}, "has a cell but no step"),
        ({"L0.W_Q[999,0]": 1}, "d_model 999 is out of range"),
        ({"L0.W_Q[0,0,0]": 1}, "has 2 axes"),
        ({"L1.wieghts[0,0]": 1}, "there is no step 'wieghts'"),
    ],
)
def test_what_cannot_be_set_says_why(model: tinytf.Model, numbers: dict[str, float], message: str) -> None:
    with pytest.raises((AddressError, UsageError), match=message) as told:
        model.with_numbers(numbers)
    assert "\n" not in told.value.message


def test_a_tied_unembedding_is_not_set_apart_from_the_embeddings(model: tinytf.Model) -> None:
    with pytest.raises(AddressError, match=r"W_U\[0,3\] cannot be set alone: the head is tied to the embeddings"):
        model.with_numbers({"W_U[0,3]": 0.0})


def test_a_text_without_the_cell_is_refused(model: tinytf.Model) -> None:
    changed = model.with_numbers({"L1H2.weights[the,cat]": 0}, text="The cat sat on the")
    with pytest.raises(
        AddressError, match=r"L1H2.weights\[4,1\] is set to 0, and in this text query 4 is out of range"
    ):
        changed.trace("The cat")
    assert changed.trace("The dog lay on a mat")["L1H2.weights[4,1]"] == 0


def test_the_divisor_comes_before_ablated_steps(model: tinytf.Model) -> None:
    with pytest.raises(UsageError, match="ablated steps already"):
        model.without("L1H2").with_numbers({"√d": 1})
    same = with_config(model.transformer, model.config)
    assert torch.equal(same(some_ids(model.config)), model.transformer(some_ids(model.config)))


def test_a_step_that_only_one_layer_lacks_is_not_compared_there(model: tinytf.Model) -> None:
    difference = model.diff(TEXT, model.with_numbers({"L1.√d": 1}))
    assert [step.name for step in difference.incomparable] == ["L1.scaled"]
    assert difference.first is not None
    assert difference.first.name == "L1.masked"


def test_a_set_query_is_not_set_in_the_distances_that_share_its_matrix() -> None:
    transformer = lively(config_of("deberta v3, distances through the matrices of tokens")).eval()
    model = tinytf.Model("small", transformer, tinytf.load("tiny").tokenizer, "")
    changed = model.with_numbers({"L0.q[5,0]": 0.3}).trace(ids=range(6))
    assert check(changed).holds
    assert torch.equal(changed["L0.pos_q"], model.trace(ids=range(6))["L0.pos_q"])
