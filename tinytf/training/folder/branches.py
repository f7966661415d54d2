"""The tree of runs: which run branched off from which, at which step, and what it does otherwise; free of torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytf.files import resolved
from tinytf.training.folder.history import History
from tinytf.training.folder.run_report import RunReport

_OF_BRANCHES = ("begun_from", "at_step")


@dataclass(frozen=True)
class Parent:
    """The ``run`` that another branched off from after ``step`` steps, and the fields that ``differ``."""

    run: Path
    step: int
    differ: Mapping[str, Any]


@dataclass(frozen=True)
class Node:
    """A run in the tree, ``depth`` branches below its trunk; ``parent`` is None for a trunk."""

    run: RunReport
    history: History
    depth: int
    parent: Parent | None


def parent_of(history: History, others: Mapping[Path, History]) -> Parent | None:
    """Where a run branched off; the fields that differ are known where the parent is among the ``others``."""
    recipe = history.recipe
    run, step = recipe.get("begun_from"), recipe.get("at_step")
    if not isinstance(run, str) or type(step) is not int or step < 1:
        return None
    before = others.get(resolved(Path(run)))
    known = {} if before is None else before.recipe
    differ = {
        name: value
        for name, value in recipe.items()
        if name in known and name not in _OF_BRANCHES and value != known[name]
    }
    return Parent(Path(run), step, differ)


def tree_of(runs: Sequence[RunReport]) -> list[Node]:
    """The runs that have branches or are some, each followed by its own branches; in the order of ``runs``."""
    known = {resolved(run.path): run.history for run in runs if run.history is not None}
    parents = {path: parent_of(history, known) for path, history in known.items()}
    below: dict[Path, list[RunReport]] = {}
    for run in runs:
        if (parent := parents.get(resolved(run.path))) is not None:
            below.setdefault(resolved(parent.run), []).append(run)
    found: list[Node] = []
    waiting = [(run, 0) for run in reversed(runs) if _is_top(resolved(run.path), parents, below)]
    while waiting:
        run, depth = waiting.pop()
        path = resolved(run.path)
        if any(node.run is run for node in found):
            continue
        found.append(Node(run, known[path], depth, parents[path]))
        waiting += [(one, depth + 1) for one in reversed(below.get(path, []))]
    return found


def _is_top(path: Path, parents: Mapping[Path, Parent | None], below: Mapping[Path, Sequence[RunReport]]) -> bool:
    """Whether a run is where a tree begins: a trunk with branches, or a branch of a run that is not here."""
    if path not in parents:
        return False
    parent = parents[path]
    return path in below if parent is None else resolved(parent.run) not in parents
