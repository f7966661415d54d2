"""Ports of a mixture of experts and of a hybrid with one fault each: what diff says of them, and of sound ones."""

import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "parity"))

import broken_ports as ports
from covering import sample

import tinytf
from tinytf.compare.dumps.read import Dump
from tinytf.errors import UsageError

_SMALL = ("moe", "hybrid")


@pytest.mark.share(36)
@pytest.mark.parametrize("name", [name for name, port in ports.first_hand.BROKEN.items() if port.model in _SMALL])
@pytest.mark.slow
def test_a_fault_is_named(name: str) -> None:
    port = ports.BROKEN[name]
    first, cause = ports.verdict(port, ports.compared(port))
    assert first
    assert cause == ("right" if port.cause else "none")


@pytest.mark.parametrize("name", [name for name, port in ports.first_hand.SOUND.items() if port.model in _SMALL])
def test_a_sound_port_has_no_difference(name: str) -> None:
    found = ports.compared(ports.SOUND[name])
    assert found.first is None or found.follows  # rounding adds up, more or less of it by the processor


_BUGS = [
    name for name, port in ports.first_hand.BROKEN.items() if port.model in _SMALL and not ports.ROUNDED.search(name)
]


@pytest.mark.share(8)
@sample("name", _BUGS)
def test_a_fault_in_bfloat16_is_no_rounding(name: str) -> None:
    found = ports.compared(ports.BROKEN[name], torch.bfloat16, floor="bf16")
    assert found.floor is not None
    assert found.floor.bug is not None
    assert not found.holds
    assert found.sentence.startswith(f"No rounding: {found.floor.bug.name} is ")


@pytest.mark.share(8)
@pytest.mark.parametrize("name", _SMALL)
@pytest.mark.parametrize(("dtype", "word"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_a_sound_port_in_few_bits_is_rounding(name: str, dtype: torch.dtype, word: str) -> None:
    found = ports.compared(ports.Port(name, lambda model, patch: None, ""), dtype, floor=word)
    assert found.floor is not None
    assert (found.floor.bug, found.causes) == (None, ())
    assert found.sentence.startswith("Rounding: at most ")
    assert found.holds


@pytest.mark.share(24)
@pytest.mark.parametrize("model", ["llama", "qwen3"])
@pytest.mark.parametrize("name", ports.leaning.FAULTS)
def test_a_fault_smaller_than_rounding_is_said_with_its_number(name: str, model: str) -> None:
    broken, step, words = ports.leaning.FAULTS[name]
    found = ports.compared(ports.Port(model, broken, ""), torch.bfloat16, floor="bf16")
    assert found.floor is not None
    assert found.floor.bug is not None
    assert found.floor.bug.name == step
    assert re.search(f"^No rounding: {words}", found.sentence)
    assert not found.holds


def test_a_constant_rounded_to_the_type_is_rounding() -> None:
    """Gemma's programs keep √d_model in bfloat16: every embedding is then 1.0012 times as large."""
    found = ports.compared(ports.Port("gemma2", lambda model, patch: None, ""), torch.bfloat16, floor="bf16")
    assert found.floor is not None
    assert found.floor.bug is None


def test_logits_of_a_tied_head_that_differ_are_explained() -> None:
    model = tinytf.load("tiny")
    trace = model.trace("The cat sat")
    steps = {"final.norm": trace["final.norm"], "logits": trace["logits"] * 0.5}
    shapes = {name: tuple(one.shape) for name, one in steps.items()}
    found = model.diff("The cat sat", Dump(Path("port"), shapes, steps.__getitem__))
    assert found.cause is not None
    assert (found.cause.step, found.cause.words) == ("logits", "it is 0.5 times as large")


def test_a_floor_is_of_one_text_and_of_known_numbers() -> None:
    model = ports.both("moe").ours
    with pytest.raises(UsageError, match="a floor is the model's own error on the whole text of both"):
        model.diff("1 2 3", "1 2 4", floor="bf16")
    with pytest.raises(UsageError, match="the floor 'int3' is not one of bf16, fp16, q8_0"):
        model.diff("1 2 3", "1 2 4", floor="int3")


def test_what_only_grows_from_rounding_is_no_fault() -> None:
    port = ports.Port("moe", lambda model, patch: ports.shaken(model), "")
    found = ports.compared(port)
    assert found.first is not None
    assert (found.follows, found.causes) == (True, ())
    assert found.sentence.startswith("No step is wrong by itself: rounding adds up, to ")


def test_a_second_fault_is_named_after_the_first() -> None:
    def broken(model: object, patch: ports.Patch) -> None:
        ports.BROKEN["not renormed"].broken(model, patch)
        ports.exchanged("input_layernorm", "post_attention_layernorm", 3)(model, patch)

    found = ports.compared(ports.Port("moe", broken, ""))
    assert [one.words.split(",")[0] for one in found.causes] == [
        "the division of experts' weights by the sum of the chosen left out",
        "the gain of L3.norm2",
    ]
    first, second = found.causes
    assert first.explained < first.later
    assert second.explained == second.later


def test_a_fault_after_numbers_that_only_grew_is_said_to_be_where_it_is() -> None:
    """The first step that differs is none that is wrong."""

    def broken(model: object, patch: ports.Patch) -> None:
        ports.shaken(model)
        ports.exchanged("input_layernorm", "post_attention_layernorm", 3)(model, patch)

    found = ports.compared(ports.Port("moe", broken, ""))
    assert found.first is not None
    assert found.cause is not None
    assert found.first.name != "L3.norm1"
    assert found.sentence.startswith("L3.norm1 is wrong: the gain of L3.norm2")
    assert f"what differs from {found.first.name} on is rounding until there" in found.sentence
