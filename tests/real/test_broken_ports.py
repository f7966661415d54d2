"""Ports of SmolLM2 and Gemma 3 with one fault each: its first step and its cause are named, and no wrong cause."""

import os
import sys
from pathlib import Path

import pytest
from covering import sample

sys.path.append(str(Path(__file__).parents[1] / "parity"))

import broken_ports as ports

pytestmark = pytest.mark.real
_REAL = ("smollm2", "gemma3")
if not os.environ.get("TINYTF_REAL_WEIGHTS"):
    pytest.skip("TINYTF_REAL_WEIGHTS names no folder with real models", allow_module_level=True)


_TRIED = (
    "rotary base",
    "gain of the next layer",
    "no mask",
    "generation, stale values, smollm2",
)
"""A fault of each sort; those of Gemma 3 take 5 to 25 seconds."""
_FAULTS = [name for name, port in ports.first_hand.BROKEN.items() if port.model in _REAL and port.text == ports.TEXT]


@pytest.mark.share(12)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _TRIED else pytest.mark.exhaustive) for name in _FAULTS]
)
def test_a_fault_is_named(name: str) -> None:
    port = ports.BROKEN[name]
    first, cause = ports.verdict(port, ports.compared(port))
    assert first
    assert cause == ("right" if port.cause else "none")


@pytest.mark.share(6)
@sample("name", [name for name, port in ports.first_hand.SOUND.items() if port.model in _REAL], 4)
def test_a_sound_port_has_no_difference(name: str) -> None:
    found = ports.compared(ports.SOUND[name])
    assert found.first is None
    assert found.worst is not None
    assert len(found.steps) > 200
