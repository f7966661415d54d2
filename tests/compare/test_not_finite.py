"""What is not finite is said first: the first step with NaN or ∞ on either side, whatever else differs."""

from pathlib import Path

import pytest
import torch
from architectures import asked, config_of, lively
from torch import Tensor

import tinytf
from tinytf.cause.model_pair import Texts
from tinytf.check.checked import check
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import Dump
from tinytf.errors import TinytfError, UsageError
from tinytf.text.corpus import find_files
from tinytf.text_model import TextModel
from tinytf.through.same import same

TEXT = "3 14 15 9 2 6 5"
KINDS = ("llama, grouped", "gpt2", "gpt-oss, sinks and windows by layer", "deepseek, latent keys and values")


def steps_of(model: TextModel) -> dict[str, Tensor]:
    """The numbers of every step of a run, in order."""
    trace = model.trace(TEXT)
    rows = [(step, layer) for step, layer in trace.steps.rows if step.is_tensor and not step.is_vocabulary]
    steps = {step.full_name(layer): trace.step(step.name, layer).clone() for step, layer in rows}
    return {**steps, "logits": trace["logits"].clone()}


def compared(model: TextModel, steps: dict[str, Tensor]) -> Difference:
    shapes = {name: tuple(one.shape) for name, one in steps.items()}
    return model.diff(TEXT, Dump(Path("port"), shapes, steps.__getitem__))


@pytest.mark.share(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.slow
def test_a_number_that_is_not_finite_is_named_at_its_step(kind: str, number: float) -> None:
    model = asked(lively(config_of(kind)))
    plain = steps_of(model)
    sound = compared(model, plain)
    assert (sound.not_finite, sound.holds) == (None, True)
    names = [name for name, one in plain.items() if one.dim() > 1]
    for name in names[:: len(names) // 6]:
        steps = {other: one.clone() for other, one in plain.items()}
        reached = False
        for other, one in steps.items():  # from that step on it is NaN
            reached = reached or other == name
            if reached:
                one[-1] = number if other == name else torch.nan
        found = compared(model, steps)
        assert found.not_finite is not None
        assert not found.holds
        assert (found.not_finite.name, found.not_finite.sides) == (name, "B")
        assert found.sentence.startswith(f"B is not finite from {name} on")
        assert ("NaN" if number != number else "∞") in found.sentence


def test_what_is_not_finite_on_both_sides_is_said_too() -> None:
    model = asked(lively(config_of("llama, grouped")))
    with torch.no_grad():
        model.transformer.blocks[1].ffn.down.weight[0, 0] = torch.nan
    steps = steps_of(model)
    found = compared(model, steps)
    assert found.not_finite is not None
    assert found.not_finite.sides == "both"
    assert found.sentence.startswith("A and B are not finite from L1.ffn on, at token 0 ")


def test_scores_that_are_hidden_are_no_fault() -> None:
    found = compared(asked(lively(config_of("llama, grouped"))), steps_of(asked(lively(config_of("llama, grouped")))))
    assert any(step.name == "L0.masked" for step in found.steps)
    assert (found.not_finite, found.first) == (None, None)


def test_a_row_without_a_key_is_told_by_its_scores() -> None:
    model = asked(lively(config_of("llama, grouped")))
    steps = steps_of(model)
    steps["L0.masked"][:, 0] = -torch.inf
    steps["L0.weights"][:, 0] = torch.nan
    found = compared(model, steps)
    begins = "B is not finite from L0.weights on, at token 0 #3: row 0 of L0.weights has no key to look at"
    assert found.sentence.startswith(begins)
    steps["L0.masked"][:, 0] = 1.0
    assert "no key" not in compared(model, steps).sentence


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_passes_float16_is_named_with_its_number() -> None:
    model = tinytf.load("tiny")
    with torch.no_grad():
        model.transformer.blocks[2].ffn.down.weight.mul_(1e5)
    trace = model.trace("The cat sat")
    made = trace["L2.ffn"]
    steps = {"L2.ffn": made.half().float(), "final.norm": torch.full_like(trace["final.norm"], torch.nan)}
    shapes = {name: tuple(one.shape) for name, one in steps.items()}
    found = model.diff("The cat sat", Dump(Path("port"), shapes, steps.__getitem__), fail_over=1e9)
    assert found.not_finite is not None
    assert found.not_finite.name == "L2.ffn"
    assert "65,504" in found.sentence
    assert not found.holds


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_a_model_that_is_not_finite_is_blamed_for_no_tensor_and_recorded_from_no_later_step(
    number: float, tmp_path: Path
) -> None:
    sound, lost = tinytf.load("tiny", device="cpu"), tinytf.load("tiny", device="cpu")
    with torch.no_grad():
        lost.transformer.blocks[1].ffn.down.weight[0, 0] = number
    texts = Texts(["The cat", "The dog sat"])
    said = "tiny is not finite, first at L1.ffn"
    with pytest.raises(TinytfError, match=f"^{said}$"):
        sound.blame(texts, lost)
    with pytest.raises(TinytfError, match=f"^{said}$"):
        lost.blame(texts, sound)
    with pytest.raises(TinytfError, match=f"^{said}$"):
        lost.budget(texts, 3_000_000)
    corpus = tmp_path / "book.txt"
    corpus.write_text("The cat sat on the mat.\n", "utf-8")
    with pytest.raises(TinytfError, match=r"^L3\.out is not finite at token 0 of document 0, first at L1\.ffn$"):
        lost.record(find_files([corpus]), ["L3.out"], tmp_path / "recorded")
    way, *others = same(lost, "The cat sat").ways
    assert (way.holds, way.step, way.position) == (False, "L1.ffn", 0)
    assert {other.holds for other in others} == {None}
    with pytest.raises(TinytfError, match=r"^not every number is finite, first at L1\.ffn$"):
        check(lost, "nobody.py:Net")


def test_a_floor_is_no_measure_where_the_model_itself_overflows() -> None:
    model = tinytf.load("tiny", device="cpu")
    with torch.no_grad():
        model.transformer.blocks[2].ffn.down.weight.mul_(1e5)
    steps = {"L2.ffn": model.trace("The cat sat")["L2.ffn"] * 1.001}
    shapes = {name: tuple(one.shape) for name, one in steps.items()}
    with pytest.raises(UsageError, match=r"^the model's own run in fp16 is not finite from L2\.ffn on"):
        model.diff("The cat sat", Dump(Path("port"), shapes, steps.__getitem__), floor="fp16")
