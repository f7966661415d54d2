"""Ports of many families with one fault each, and sound ones: no cause is false, and nothing sound is accused."""

import broken_ports as ports
from covering import sample

_SMALL = [name for name, port in ports.SECOND.items() if port.model not in ports.REAL]
_SOUND = [name for name, port in ports.SECOND_SOUND.items() if port.model not in ports.REAL]


@sample("name", _SMALL, 24)
def test_a_fault_has_its_first_step_and_no_false_cause(name: str) -> None:
    port = ports.SECOND[name]
    first, cause = ports.verdict(port, ports.compared(port))
    assert first
    assert cause != "wrong"


@sample("name", _SOUND, 12)
def test_a_sound_port_is_not_accused(name: str) -> None:
    assert not ports.accused(ports.compared(ports.SECOND_SOUND[name]))
