"""What a dump holds beside the steps: waves, positions, masks, labels and a loss; and a TEXT that is one row of it."""

from pathlib import Path

import pytest
import torch
from test_context import FIRST, MODEL, SECOND, THIRD, batch, ids_of, steps_of
from torch import Tensor

from tinytf.compare.diff import Difference
from tinytf.compare.dumps.beside import BesideSteps
from tinytf.compare.dumps.names import resolve
from tinytf.compare.dumps.read import Dump
from tinytf.errors import UsageError
from tinytf.steps.table import table_of

IDS = torch.tensor(ids_of(FIRST))
LOGITS = MODEL.trace(FIRST)["logits"].double()


def compared(text: str | None = None, **tensors: Tensor) -> Difference:
    shapes = {name: tuple(one.shape) for name, one in tensors.items()}
    return MODEL.diff(text, Dump(Path("port"), shapes, tensors.__getitem__))


def beside(**tensors: Tensor) -> BesideSteps:
    found = compared(input_ids=IDS, **steps_of(FIRST), **tensors)
    assert found.first is None
    (one, *_) = found.beside
    assert one.agrees == (one.in_words[1:] not in found.sentence)
    assert "not compared" not in found.sentence
    return one


def waves(base: float = 10_000.0, first: int = 0) -> dict[str, Tensor]:
    angle = torch.arange(first, first + len(IDS)).float()[:, None] * base ** -(torch.arange(0, 32, 2) / 32)
    angle = torch.cat((angle, angle), dim=-1)
    return {"cos": angle.cos()[None], "sin": angle.sin()[None]}


def causal(number: float) -> Tensor:
    return torch.full((1, 1, len(IDS), len(IDS)), number).triu(1)


@pytest.mark.parametrize(
    "tensors",
    [
        waves(),
        {name: one[0, :, :16] for name, one in waves().items()},
        {"position_ids": torch.arange(len(IDS))[None]},
        {"position_ids": torch.arange(len(IDS))[None] + 3},
        {"model.causal_mask": causal(-torch.inf)},
        {"attn_mask": torch.ones(len(IDS), len(IDS)).tril().bool().long()},
        {"attention_mask": torch.ones(1, len(IDS)).long()},
        {"labels": IDS[None]},
        {"labels": torch.cat((IDS[1:], torch.tensor([-100])))},
        {"loss": torch.nn.functional.cross_entropy(LOGITS[:-1], IDS[1:])},
    ],
)
def test_what_is_the_runs_own_agrees(tensors: dict[str, Tensor]) -> None:
    assert beside(**tensors).agrees


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (waves(12_345.6), "are of a rotary base of 12345.6 instead of 10,000"),
        (waves(first=1), "are of positions from 1 on"),
        ({"cos": waves()["sin"]}, "are the sines"),
        ({"position_ids": torch.arange(len(IDS)) // 2}, "are others from token 1 on: 0 there"),
        ({"mask": causal(-10.0)}, "adds -10 to hidden scores, not −∞: softmax still gives them a share"),
        ({"mask": torch.ones(len(IDS), len(IDS))}, "shows key 1 to query 0, where the model does not"),
        ({"labels": torch.cat((IDS[2:], torch.tensor([-100] * 2)))}, "are those of the token after next"),
        ({"labels": torch.full_like(IDS, -100)}, "leave out every token: all are -100"),
    ],
)
def test_what_is_not_is_said(tensors: dict[str, Tensor], words: str) -> None:
    one = beside(**tensors)
    assert (one.agrees, one.words) == (False, words)


def test_what_a_run_read_without_effect_is_no_fault() -> None:
    found = compared(input_ids=IDS, logits=LOGITS, **steps_of(FIRST), **waves(first=1))
    assert all(one.agrees and one.words.endswith(", and no step differs") for one in found.beside)
    assert found.sentence == "No number differs."


@pytest.mark.parametrize(
    ("further", "words"),
    [(0, "labels are not shifted: "), (2, "labels are shifted twice: "), (3, ""), (-1, "")],
)
def test_a_loss_of_other_tokens_is_told_with_its_numbers(further: int, words: str) -> None:
    rows, wanted = LOGITS[max(0, -further) :], IDS[max(0, further) :]
    count = min(len(rows), len(wanted))
    loss = torch.nn.functional.cross_entropy(rows[:count], wanted[:count])
    right = torch.nn.functional.cross_entropy(LOGITS[:-1], IDS[1:])
    one = beside(loss=loss)
    assert one.words.startswith(f"{words}the loss, {float(loss):.6g}, is that of predicting the t")
    assert one.words.endswith(f"; that of the next token is {float(right):.6g}")


def test_labels_that_the_trainer_shifts_again_are_said_to_be_shifted_twice() -> None:
    labels = torch.cat((IDS[1:], torch.tensor([-100])))
    loss = torch.nn.functional.cross_entropy(LOGITS[:-1], labels[1:], ignore_index=-100)
    found = compared(input_ids=IDS, labels=labels, loss=loss, **steps_of(FIRST))
    assert found.sentence.startswith("Labels are shifted twice: the loss, ")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("past_key_values.1.key", "k_rot"),
        ("past_key_values.1.1", "v"),
        ("present.1.value", "v"),
        ("key_cache.1", "k_rot"),
        ("cache.layers.1.keys", "k_rot"),
        ("model.layers.1.self_attn.v_cache", "v"),
    ],
)
def test_the_names_of_a_cache_mean_keys_and_values(name: str, step: str) -> None:
    assert resolve(name, table_of(MODEL.config), MODEL.table)[-1].place == (step, 1)


@pytest.mark.slow
def test_a_cache_of_the_whole_text_is_compared() -> None:
    trace = MODEL.trace(FIRST)
    cache = {"past_key_values.1.key": trace["L1.k_rot"][None], "past_key_values.1.value": trace["L1.v"][None] * 2}
    found = compared(input_ids=IDS, **steps_of(FIRST), **cache)
    assert found.first is not None
    assert found.first.name == "L1.v"
    assert "L1.k_rot" in {step.name for step in found.steps}


@pytest.mark.share(4)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.slow
def test_a_text_is_found_among_the_rows_of_a_batch(side: str) -> None:
    tensors = batch(FIRST, SECOND, THIRD, side=side)
    found = compared(SECOND, **tensors)
    assert (found.first, found.passage is not None and found.passage.row) == (None, 1)
    assert found.sentence.startswith("Row 2 of 3, tokens ")
    tensors["L0.attn"][0] *= 2
    assert compared(SECOND, **tensors).first is None
    assert compared(FIRST, **tensors).first is not None


def test_a_row_that_ends_with_padding_is_found_without_a_mask() -> None:
    tensors = batch(FIRST, SECOND, side="right")
    del tensors["attention_mask"]
    assert compared(SECOND, **tensors).first is None


def test_a_text_that_no_row_is_has_the_rows_named() -> None:
    with pytest.raises(UsageError, match="port has 2 texts, and none is TEXT: row 1 of 2, tokens 0 to") as raised:
        compared("Something else", **batch(FIRST, SECOND, side="right"))
    assert "\n" not in raised.value.message
    assert "·cat" in raised.value.message
