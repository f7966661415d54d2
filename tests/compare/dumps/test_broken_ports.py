"""Ports of a mixture of experts and of a hybrid with one fault each: what diff says of them, and of sound ones."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "parity"))

import broken_ports as ports

_SMALL = ("moe", "hybrid")


@pytest.mark.parametrize("name", [name for name, port in ports.BROKEN.items() if port.model in _SMALL])
def test_a_fault_is_named(name: str) -> None:
    port = ports.BROKEN[name]
    first, cause = ports.verdict(port, ports.compared(port))
    assert first
    assert cause == ("right" if port.cause else "none")


@pytest.mark.parametrize("name", [name for name, port in ports.SOUND.items() if port.model in _SMALL])
def test_a_sound_port_has_no_difference(name: str) -> None:
    assert ports.compared(ports.SOUND[name]).first is None


def test_what_only_grows_from_rounding_is_no_fault() -> None:
    port = ports.Port("moe", lambda model, patch: ports.shaken(model), "")
    found = ports.compared(port)
    assert found.first is not None
    assert (found.follows, found.causes) == (True, ())
    assert "no step is wrong by itself" in found.sentence


def test_a_second_fault_is_named_after_the_first() -> None:
    def broken(model: object, patch: ports.Patch) -> None:
        ports.BROKEN["not renormed"].broken(model, patch)
        ports.exchanged("input_layernorm", "post_attention_layernorm", 3)(model, patch)

    found = ports.compared(ports.Port("moe", broken, ""))
    assert [one.words.split(",")[0] for one in found.causes] == [
        "the weights of the chosen experts do not sum to 1: they are not divided by the sum of the chosen",
        "the gain of L3.norm2",
    ]
    first, second = found.causes
    assert first.explained < first.later
    assert second.explained == second.later
