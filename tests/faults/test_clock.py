"""A clock that jumps by days, back and forth, changes nothing that is written."""

import time
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from faults.child import needs_fork
from faults.scenarios import ANY, SCENARIOS, Act, Scenario
from faults.trying import trying

DAY = 86_400  # seconds


def jumping(act: Act) -> Act:
    """An act under such a clock."""

    def call() -> int:
        jumps, clocks = Random(3), dict.fromkeys(("time", "monotonic", "perf_counter"), 1e9)

        def tick(name: str) -> float:
            clocks[name] += jumps.choice((0.01, 0.01, DAY, -DAY))
            return clocks[name]

        with patch.multiple(time, **{name: lambda name=name: tick(name) for name in clocks}):
            return act()

    return call


@pytest.mark.share(8)
@needs_fork
@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.then != ANY], ids=str)
def test_under_a_clock_that_jumps_the_same_is_written(scenario: Scenario, tmp_path: Path) -> None:
    tried = trying(replace(scenario, again=jumping(scenario.act)), tmp_path / "there")
    tried.reset()
    tried.make_good(f"{scenario} under a clock that jumps")
