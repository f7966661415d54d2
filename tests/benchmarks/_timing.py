"""What the benchmarks share: runs taken in turns, ratios pair by pair, and one way to print them."""

import argparse
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

Run = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of the table. ``value`` is held against ``goal`` (at most) where there is one, both in ``unit``."""

    what: str
    value: float
    unit: str = "x"
    goal: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.goal is None or self.value <= self.goal


def in_turns(runs: Mapping[str, Run], repeat: int, warm: int = 1) -> dict[str, list[float]]:
    """Seconds of each run, ``repeat`` times: one round runs them all, and each round starts with another.

    A slow minute of the machine so falls on all alike. What a run returns is freed outside its time.
    """
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warm, repeat):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            start = time.perf_counter()
            result = runs[name]()
            taken = time.perf_counter() - start
            del result
            if turn >= 0:
                seconds[name].append(taken)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], name: str, other: str) -> float:
    """The median over the rounds of ``name`` / ``other``, each pair from one round."""
    return median(mine / theirs for mine, theirs in zip(seconds[name], seconds[other], strict=True))


def milliseconds(seconds: Mapping[str, Sequence[float]], name: str) -> float:
    """The median of a run, in ms."""
    return median(seconds[name]) * 1000


def spread(seconds: Mapping[str, Sequence[float]], *names: str) -> str:
    """Median and extremes of some runs, in ms, as a note."""
    notes = []
    for name in names:
        least, most = min(seconds[name]) * 1000, max(seconds[name]) * 1000
        notes.append(f"{name} {milliseconds(seconds, name):,.0f} ms ({least:,.0f}–{most:,.0f})")
    return ", ".join(notes)


class Results:
    """What a script has measured so far, written to ``file`` after every table if there is one."""

    file: ClassVar[Path | None] = None
    data: ClassVar[dict[str, Any]] = {"machine": "", "tables": []}

    @classmethod
    def add(cls, title: str, rows: Sequence[Row]) -> None:
        """Add a table, and write all of them."""
        cls.data["tables"].append({"title": title, "rows": [{**asdict(row), "holds": row.holds} for row in rows]})
        if cls.file is not None:
            cls.file.write_text(json.dumps(cls.data, ensure_ascii=False, indent=1) + "\n", "utf-8")


class _SetFile(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        Results.file = Path(values)


def options(about: str, repeat: int) -> argparse.ArgumentParser:
    """A parser with --repeat, the number of measured rounds, and --json, a file for the figures."""
    parser = argparse.ArgumentParser(description=about.strip().splitlines()[0])
    parser.add_argument("--repeat", type=int, default=repeat, help=f"measured rounds (default {repeat})")
    parser.add_argument("--json", action=_SetFile, metavar="FILE", help="write the figures to FILE too")
    return parser


def show_machine(*packages: str) -> None:
    """One line about where this runs, with the versions of some packages; ``torch`` also tells its threads."""
    words = [f"Python {platform.python_version()}", f"{os.cpu_count()} CPUs", f"load {os.getloadavg()[0]:.1f}"]
    words += [f"{package} {version(package)}" for package in packages]
    if "torch" in packages:
        import torch

        words.append(f"{torch.get_num_threads()} torch threads")
    Results.data["machine"] = " · ".join(words)
    print(Results.data["machine"])


def show(title: str, rows: Sequence[Row]) -> int:
    """Print the rows as a table; the answer is the number of goals that were missed."""
    print(f"\n{title}")
    width = max(len(row.what) for row in rows)
    for row in rows:
        goal = "" if row.goal is None else f"goal ≤ {row.goal:.4g} {row.unit}"
        verdict = "" if row.goal is None else ("met" if row.holds else "MISSED")
        print(f"  {row.what:<{width}}  {row.value:>10,.3f} {row.unit:<3}  {goal:<16} {verdict:<6}  {row.note}".rstrip())
    Results.add(title, rows)
    return sum(not row.holds for row in rows)
