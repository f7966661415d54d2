"""Ports of many families with one fault each, and sound ones: no cause is false, and nothing sound is accused."""

import broken_ports as ports
import pytest
from broken import attended, checks
from covering import sample

from tinytf.compare.settings import programs
from tinytf.errors import ConfigError
from tinytf.trace.site import Site

_BROKEN = [name for name, port in ports.SECOND.items() if port.model not in ports.REAL]
_SOUND = [name for name, port in ports.SECOND_SOUND.items() if port.model not in ports.REAL]


_UNSAID = {"llama: one key head", "llama: swiglu with beta"}
"""Modules with a fault whose cause no search finds yet."""


@pytest.mark.share(24)
@sample("name", _BROKEN, 24)
@pytest.mark.slow
def test_a_fault_has_its_first_step_and_no_false_cause(name: str) -> None:
    port = ports.SECOND[name]
    first, cause = ports.verdict(port, ports.compared(port))
    assert first
    assert cause != "wrong"


@pytest.mark.share(8)
@sample("name", _SOUND, 12)
def test_a_sound_port_is_not_accused(name: str) -> None:
    assert not ports.accused(ports.compared(ports.SECOND_SOUND[name]))


@pytest.mark.share(6)
@sample("name", [*ports.context.BROKEN, *attended.BROKEN], 8)
@pytest.mark.slow
def test_a_wrong_mask_position_cache_or_label_has_its_cause(name: str) -> None:
    port = ports.BROKEN[name]
    assert ports.verdict(port, ports.compared(port)) == (True, "right")


@pytest.mark.share(16)
@sample("name", list(ports.constructed.BROKEN), 4)
@pytest.mark.slow
def test_a_fault_that_no_table_names_has_its_cause(name: str) -> None:
    port = ports.constructed.BROKEN[name]
    assert ports.verdict(port, ports.compared(port)) == (True, "right")


@pytest.mark.parametrize("name", ["deepseek3", "mamba2"])
@pytest.mark.slow
def test_a_program_with_another_setting_runs_with_the_weights_of_the_model(name: str) -> None:
    pair = ports.both(name)
    trace = pair.ours.trace(" ".join(map(str, pair.ids)))
    refused = set()
    for program in programs(trace.config):
        for step, layer in program.changed:
            try:
                program.wrong(Site(trace, trace.steps.at(step, layer), layer))
            except (ConfigError, LookupError, RuntimeError, ValueError, TypeError, AttributeError) as error:
                refused.add(str(error))
    assert not [message for message in refused if "meta" in message]


@pytest.mark.parametrize("name", list(ports.context.SOUND))
def test_what_is_beside_the_steps_of_a_sound_port_is_not_accused(name: str) -> None:
    assert not ports.accused(ports.compared(ports.context.SOUND[name]))


@pytest.mark.share(4)
@pytest.mark.usefixtures("checks_here")
@sample("name", [*checks.BROKEN], 20)
@pytest.mark.slow
def test_check_names_the_first_step_of_a_module_and_no_false_cause(name: str) -> None:
    fault = checks.BROKEN[name]
    found = checks.said(fault.source, (fault.right, fault.wrong), fault.beside)
    step, _, cause = checks.verdict(fault, found)
    assert step
    assert not checks.contradictions(found)
    assert cause == "right" or (cause == "none" and (not fault.cause or name in _UNSAID))


@pytest.mark.usefixtures("checks_here")
@sample("name", [*checks.SOUND], 8)
def test_check_accuses_no_sound_module(name: str) -> None:
    assert not checks.accused(checks.said(*checks.SOUND[name]))
