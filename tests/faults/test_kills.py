"""kill -9 at any system call that writes: what stood before stands, or is whole and new; the next run makes it so."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from failing_disk import KILLED, KILLED_MIDWAY

from faults.child import needs_fork
from faults.scenarios import SAME, SCENARIOS, Scenario
from faults.trying import ALL, trying

pytestmark = needs_fork


@pytest.mark.share(12)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.slow
def test_killed_at_any_call_nothing_is_lost_or_half_there(
    pytestconfig: pytest.Config, scenario: Scenario, tmp_path: Path
) -> None:
    tried = trying(scenario, tmp_path / "there")
    killed = []
    for kind, number in tried.faults((KILLED, KILLED_MIDWAY), pytestconfig.getoption("faults")):
        about = f"{scenario} {kind} at {number}"
        ended = tried.with_fault(kind, number)
        assert ended.killed or ended.status == 0, f"{about}\n{ended.said}"
        killed.append(ended.killed)
        tried.make_good(about)
    assert killed.count(False) <= len(killed) // 10  # how often a run writes its speed goes by the clock


def _writes_in_place() -> None:
    Path("file").write_bytes(b"new" * 100)


def _writes_in_parts() -> None:
    with open("beside", "wb", buffering=0) as file:
        file.write(b"new")
        os.replace("beside", "file")
        file.write(b"er")


def _removes_first() -> None:
    Path(".beside").write_bytes(b"new")
    os.unlink("file")
    os.rename(".beside", "file")


def _is_not_the_same_again() -> None:
    descriptor = os.open(".beside", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"1" + Path("file").read_bytes())
    os.close(descriptor)
    os.replace(".beside", "file")


@pytest.mark.share(8)
@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (_writes_in_place, "file is neither what stood before nor whole"),
        (_writes_in_parts, "beside is neither what stood before nor whole"),
        (_removes_first, "file is gone"),
        (_is_not_the_same_again, r"\['file'\]"),
    ],
)
@pytest.mark.slow
def test_what_is_not_written_whole_is_found(act: Callable[[], None], fault: str, tmp_path: Path) -> None:
    def before() -> None:
        Path("file").write_bytes(b"what stood before")

    def again() -> int:
        return int(bool(act()))

    tried = trying(Scenario("", before, again, again, SAME), tmp_path / "there")

    def try_all() -> None:
        for kind, number in tried.faults((KILLED, KILLED_MIDWAY), ALL):
            assert tried.with_fault(kind, number).killed
            tried.make_good("")
            assert tried.with_fault(KILLED, 99).status == 0  # beyond its last call
            tried.make_good("again")

    with pytest.raises(AssertionError, match=fault):
        try_all()
