"""kill -9 at any system call that writes: what stood before stands, or is whole and new; the next run makes it so."""

from pathlib import Path

import pytest
from failing_disk import KILLED, KILLED_MIDWAY

from faults.child import needs_fork
from faults.scenarios import SCENARIOS, Scenario
from faults.trying import trying


@needs_fork
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_killed_at_any_call_nothing_is_lost_or_half_there(
    pytestconfig: pytest.Config, scenario: Scenario, tmp_path: Path
) -> None:
    tried = trying(scenario, tmp_path / "there")
    for kind, number in tried.faults((KILLED, KILLED_MIDWAY), pytestconfig.getoption("faults")):
        about = f"{scenario} {kind} at {number}"
        ended = tried.with_fault(kind, number)
        assert ended.killed, f"{about}\n{ended.said}"
        tried.make_good(about)
