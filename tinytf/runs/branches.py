"""The tree of runs: which run branched off from which, at which step, with which changes; free of torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytf.files import resolve_links
from tinytf.runs.history import History
from tinytf.runs.runs import RunReport

_BRANCH_FIELDS = ("begun_from", "at_step")


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
    """Where a run branched off, None for a trunk; the fields that differ need the parent among the ``others``."""
    recipe = history.recipe
    run, step = recipe.get("begun_from"), recipe.get("at_step")
    if not isinstance(run, str) or type(step) is not int or step < 1:
        return None
    parent = others.get(resolve_links(Path(run)))
    parent_recipe = {} if parent is None else parent.recipe
    differ = {
        name: value
        for name, value in recipe.items()
        if name in parent_recipe and name not in _BRANCH_FIELDS and value != parent_recipe[name]
    }
    return Parent(Path(run), step, differ)


def tree_of(runs: Sequence[RunReport]) -> list[Node]:
    """The runs that have branches or are branches, each followed by its own branches; in the order of ``runs``."""
    histories = {resolve_links(run.path): run.history for run in runs if run.history is not None}
    parents = {path: parent_of(history, histories) for path, history in histories.items()}
    branches: dict[Path, list[RunReport]] = {}
    for run in runs:
        if (parent := parents.get(resolve_links(run.path))) is not None:
            branches.setdefault(resolve_links(parent.run), []).append(run)
    nodes: list[Node] = []
    pending = [(run, 0) for run in reversed(runs) if _is_top(resolve_links(run.path), parents, branches)]
    while pending:
        run, depth = pending.pop()
        path = resolve_links(run.path)
        if any(node.run is run for node in nodes):
            continue
        nodes.append(Node(run, histories[path], depth, parents[path]))
        pending += [(branch, depth + 1) for branch in reversed(branches.get(path, []))]
    return nodes


def _is_top(path: Path, parents: Mapping[Path, Parent | None], branches: Mapping[Path, Sequence[RunReport]]) -> bool:
    """Whether a tree begins with a run: a trunk with branches, or a branch of a run that is not listed."""
    if path not in parents:
        return False
    parent = parents[path]
    return path in branches if parent is None else resolve_links(parent.run) not in parents
