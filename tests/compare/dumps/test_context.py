"""A run's own context in a dump: rows of a batch, padding, and packed documents, each beside the model on it alone."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import tinytf
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import Dump
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.compare.positions import at_positions
from tinytf.steps.operations import Rotate

MODEL = tinytf.load("tiny")
NAMES = ("embed.out", "L0.norm1", "L0.q", "L0.k", "L0.v", "L0.attn", "L1.attn", "L3.ffn", "final.norm")
FIRST, SECOND, THIRD = "The cat sat on the mat.", "A dog ran.", "The red ball was lost"


def ids_of(text: str) -> list[int]:
    return list(MODEL.trace(text).encoding.ids)


def by_token(x: Tensor) -> Tensor:
    """(H, T, D) -> (T, H, D)."""
    return x.transpose(0, 1) if x.dim() == 3 else x


def steps_of(text: str) -> dict[str, Tensor]:
    trace = MODEL.trace(text)
    return {name: by_token(trace[name]) for name in NAMES}


def compared(tensors: dict[str, Tensor]) -> Difference:
    shapes = {name: tuple(one.shape) for name, one in tensors.items()}
    return MODEL.diff(None, Dump(Path("port"), shapes, tensors.__getitem__))


def packed(*texts: str) -> dict[str, Tensor]:
    """Texts side by side in one row, each as the model computes it alone."""
    steps = [steps_of(text) for text in texts]
    found = {name: torch.cat([one[name] for one in steps])[None] for name in NAMES}
    return {"input_ids": torch.tensor([[i for text in texts for i in ids_of(text)]]), **found}


def batch(*texts: str, side: str) -> dict[str, Tensor]:
    """Texts in rows, padded on a side with numbers that mean nothing."""
    longest = max(len(ids_of(text)) for text in texts)
    found: dict[str, list[Tensor]] = {}
    for text in texts:
        ids = torch.tensor(ids_of(text))
        tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **steps_of(text)}
        for name, one in tensors.items():
            filled = torch.full((longest - len(ids), *one.shape[1:]), 7 * (one.is_floating_point()), dtype=one.dtype)
            found.setdefault(name, []).append(torch.cat((filled, one) if side == "left" else (one, filled)))
    return {name: torch.stack(rows) for name, rows in found.items()}


def contexts(*texts: str) -> dict[str, dict[str, Tensor]]:
    """Ways in which programs say what belongs together."""
    counts = [len(ids_of(text)) for text in texts]
    numbers = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    starts = torch.tensor([0, *counts]).cumsum(0)
    block = (numbers[:, None] == numbers) & torch.ones(len(numbers), len(numbers)).tril().bool()
    return {
        "positions": {"position_ids": torch.cat([torch.arange(count) for count in counts])[None]},
        "lengths": {"cu_seqlens": starts},
        "numbers": {"seq_idx": numbers[None]},
        "numbers in the mask": {"attention_mask": numbers[None] + 1},
        "a block mask": {"attention_mask": block[None, None].long()},
        "a block mask that is added": {"attention_mask": (~block[None, None]).float() * -1e9},
    }


@pytest.mark.parametrize("kind", list(contexts(FIRST)))
def test_a_sound_packed_run_has_no_difference(kind: str) -> None:
    texts = (FIRST, SECOND, THIRD)
    found = compared(packed(*texts) | contexts(*texts)[kind])
    assert found.first is None, found.sentence
    assert found.sentence.startswith("Each of 3 texts, compared alone: ")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("texts", [(FIRST, SECOND, THIRD), (SECOND, FIRST), (THIRD, THIRD)])
def test_a_sound_batch_has_no_difference(texts: tuple[str, ...], side: str) -> None:
    found = compared(batch(*texts, side=side))
    assert found.first is None, found.sentence
    assert found.passages == len(texts)


def leaking(*texts: str) -> dict[str, Tensor]:
    """A packed run whose positions restart, and whose documents see those before them."""
    ids = [i for text in texts for i in ids_of(text)]
    encoding = MODEL.trace(MODEL.tokenizer.decode(ids))
    assert list(encoding.encoding.ids) == ids
    places = contexts(*texts)["positions"]["position_ids"][0]
    turned = at_positions(lambda _: places)
    rows = [(step.name, layer) for step, layer in encoding.steps.rows if isinstance(step.operation, Rotate)]
    run = WrongTrace(encoding, dict.fromkeys(rows, turned))
    return {"input_ids": torch.tensor([ids]), **{name: by_token(run[name])[None] for name in NAMES}}


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", ["positions", "a block mask"])
@pytest.mark.slow
def test_a_document_that_reads_another_is_told_so(kind: str) -> None:
    texts = (FIRST, " A dog ran.")
    context = contexts(*texts)
    found = compared(leaking(*texts) | context["positions"] | context[kind])
    assert found.first is not None
    assert found.first.name == "L0.attn"
    assert found.leak == "document 2 reads those before it: there is no mask between them"
    assert found.sentence.startswith("Document 2 of 2, tokens 7 to ")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_padding_that_is_read_is_told_so() -> None:
    padding = ids_of(" A dog ran.")
    ids = [*padding, *ids_of(FIRST)]
    trace = MODEL.trace(MODEL.tokenizer.decode(ids))
    assert list(trace.encoding.ids) == ids
    mask = torch.arange(len(ids))[None] >= len(padding)
    written = {"input_ids": torch.tensor([ids]), "attention_mask": mask.long()}
    found = compared(written | {name: by_token(trace[name])[None] for name in NAMES})
    assert found.leak == "the padding before it is read: its attention_mask is not used"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_row_that_is_wrong_is_named() -> None:
    tensors = batch(FIRST, SECOND, THIRD, side="left")
    tensors["L1.attn"][1] *= 1.5
    found = compared(tensors)
    assert found.first is not None
    assert (found.first.name, found.leak) == ("L1.attn", "")
    assert found.sentence.startswith("Row 2 of 3, tokens ")
