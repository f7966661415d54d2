"""One scenario in one folder: acted undisturbed, then again and again with a fault, and made good after it."""

import math
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from random import Random

from failing_disk import Disk, Fault, failing
from hostile.watchdog import fault_in

from faults.child import Ended, in_child, there
from faults.oracle import Undisturbed, contents, is_temporary, lasting
from faults.scenarios import ANY, REFUSED, TIDY, Scenario

ALL = 0
_NUMBER = re.compile(rb"-?\d+\.\d+(?:e-?\d+)?")


@dataclass
class Trying:
    """``tried`` is the disk of the undisturbed act, with its operations."""

    scenario: Scenario
    folder: Path
    template: Path
    undisturbed: Undisturbed
    disk: Disk

    def faults(self, kinds: tuple[Fault, ...], count: int) -> Iterator[tuple[Fault, int]]:
        """Every fault of some kinds at every operation, or so many of them, drawn."""
        every = [(kind, number + 1) for kind in kinds for number in range(self.disk.count(kind))]
        assert every, f"{self.scenario}: nothing was written"
        drawn = every if count == ALL or count >= len(every) else Random(self.scenario.name).sample(every, count)
        yield from drawn

    def reset(self) -> None:
        """Make the folder what it was before the act."""
        shutil.rmtree(self.folder)
        shutil.copytree(self.template, self.folder)

    def with_fault(self, kind: Fault, number: int) -> Ended:
        """Act with a fault on the folder as it was before; what is left then must be whole."""
        self.reset()
        ended = in_child(self.scenario.act, Disk(self.folder, number, kind))
        wrong = self.undisturbed.faults_in(contents(self.folder))
        assert not wrong, f"{self.scenario} {kind} at {number}: {wrong}\n{ended.said}"
        return ended

    def make_good(self, about: str) -> None:
        """Act again without a fault: all is as if there had been none."""
        before = contents(self.folder)
        ended = in_child(self.scenario.again, Disk(self.folder))
        assert_clean(ended, self.folder, about)
        left = contents(self.folder)
        if self.scenario.then == REFUSED and ended.status:
            assert left == before, about
            return
        assert ended.status == 0, f"{about}\n{ended.said}"
        if self.scenario.then == ANY:
            return
        assert not (other := differing(lasting(left), lasting(self.undisturbed.after))), f"{about}: {other}"
        if self.scenario.then == TIDY:
            temporary = [name for name in left if is_temporary(name) and not name.endswith(".lock")]
            assert not temporary, f"{about}: {temporary}"


def differing(left: dict[str, bytes], right: dict[str, bytes]) -> list[str]:
    """The names of files that are not the same in both folders."""
    return sorted(name for name in left.keys() | right.keys() if not _alike(name, left.get(name), right.get(name)))


def _alike(name: str, left: bytes | None, right: bytes | None) -> bool:
    """Whether two files are the same; measured numbers may round otherwise in another process."""
    if left == right or left is None or right is None or not name.endswith(".ndjson"):
        return left == right
    (words, numbers), (others, measured) = ((_NUMBER.sub(b"#", one), _NUMBER.findall(one)) for one in (left, right))
    return words == others and all(
        math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-6) for a, b in zip(numbers, measured, strict=True)
    )


def assert_clean(ended: Ended, folder: Path, about: str) -> None:
    """It ended with a result, or one line and a hint."""
    fault = fault_in(ended.status, b"", ended.said.encode(), folder)
    assert not fault, f"{about}\n{fault}\n{ended.said}"


def trying(scenario: Scenario, folder: Path) -> Trying:
    """Prepare a folder, and act there in this process without a fault, so that no child has anything to import."""
    template = folder.with_name("template")
    folder.mkdir()
    with there(folder):
        scenario.prepare()
        shutil.copytree(folder, template)
        undisturbed = Undisturbed(folder, contents(folder), scenario.removes)
        said = TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True)
        with redirect_stdout(said), redirect_stderr(said), failing(Disk(folder, log=undisturbed.saw)) as disk:
            status = scenario.act()
    assert status == 0, said.buffer.getvalue()
    undisturbed.after = contents(folder)
    return Trying(scenario, folder, template, undisturbed, disk)
