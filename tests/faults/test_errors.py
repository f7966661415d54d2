"""A disk that is full, broken, read-only or another one at any call: a result or one line, and no half file."""

from pathlib import Path

import pytest
from failing_disk import ACROSS, BROKEN, DENIED, FULL, STUCK, TORN

from faults.child import needs_fork
from faults.scenarios import SCENARIOS, Scenario
from faults.trying import assert_clean, trying

pytestmark = needs_fork


@pytest.mark.share(12)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.slow
def test_an_error_at_any_call_is_a_line_and_costs_no_file(
    pytestconfig: pytest.Config, scenario: Scenario, tmp_path: Path
) -> None:
    tried = trying(scenario, tmp_path / "there")
    for kind, number in tried.faults((ACROSS, BROKEN, DENIED, FULL, STUCK, TORN), pytestconfig.getoption("faults")):
        about = f"{scenario} {kind} at {number}"
        assert_clean(tried.with_fault(kind, number), tried.folder, about)
        tried.make_good(about)
