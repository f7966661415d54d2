"""Ports of many families with one fault each, and sound ones: no cause is false, and nothing sound is accused."""

import broken_ports as ports
import pytest
from broken import checks
from covering import sample

_OPEN = {
    "longrope: short factors for a long text": "told as another context, of which the short factors follow",
}
"""What is known to be wrong, and how; each fails here until it is right, and then too until its line is taken out."""
_BROKEN = [name for name, port in ports.SECOND.items() if port.model not in ports.REAL]
_SOUND = [name for name, port in ports.SECOND_SOUND.items() if port.model not in ports.REAL]


_UNSAID = {"llama: one key head", "llama: swiglu with beta"}
"""Modules with a fault whose cause no search finds yet."""


@pytest.fixture(autouse=True)
def _open(request: pytest.FixtureRequest, name: str) -> None:
    if name in _OPEN:
        request.applymarker(pytest.mark.xfail(reason=_OPEN[name], strict=True, raises=AssertionError))


@pytest.mark.share(3)
@sample("name", _BROKEN, 24)
def test_a_fault_has_its_first_step_and_no_false_cause(name: str) -> None:
    port = ports.SECOND[name]
    first, cause = ports.verdict(port, ports.compared(port))
    assert first
    assert cause != "wrong"


@pytest.mark.share(2)
@sample("name", _SOUND, 12)
def test_a_sound_port_is_not_accused(name: str) -> None:
    assert not ports.accused(ports.compared(ports.SECOND_SOUND[name]))


@sample("name", list(ports.context.BROKEN), 8)
def test_a_wrong_mask_position_cache_or_label_has_its_cause(name: str) -> None:
    port = ports.context.BROKEN[name]
    assert ports.verdict(port, ports.compared(port)) == (True, "right")


@pytest.mark.parametrize("name", list(ports.context.SOUND))
def test_what_is_beside_the_steps_of_a_sound_port_is_not_accused(name: str) -> None:
    assert not ports.accused(ports.compared(ports.context.SOUND[name]))


@sample("name", [*checks.BROKEN], 20)
def test_check_names_the_first_step_of_a_module_and_no_false_cause(name: str) -> None:
    fault = checks.BROKEN[name]
    found = checks.said(fault.source, (fault.right, fault.wrong), fault.beside)
    step, _, cause = checks.verdict(fault, found)
    assert step
    assert not checks.contradictions(found)
    assert cause == "right" or (cause == "none" and (not fault.cause or name in _UNSAID))


@sample("name", [*checks.SOUND], 8)
def test_check_accuses_no_sound_module(name: str) -> None:
    assert not checks.accused(checks.said(*checks.SOUND[name]))
