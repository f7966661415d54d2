"""What llama-eval-callback prints of llama.cpp's graph: some numbers of every tensor, and its sum.

Of each axis longer than 6 it prints the first three and the last three. Since August 2025 the sum is that of the whole
tensor, before only of what is printed; the first versions print no sum, and no last numbers. (common/debug.cpp and
examples/eval-callback of llama.cpp; pull requests 6576, 15637 and 19331.)
"""

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from tinytf.compare.dumps.read import Dump
from tinytf.errors import DumpError
from tinytf.files import MEBI, read_bytes

LOGS = (".txt", ".log")
"""How the name of such a log ends."""
_LARGEST = 512 * MEBI
_NODE = re.compile(
    r"(?:ggml_debug|common_debug_cb_eval): +(\S.*?) = \((\w+)\) +(\w+)\((.*)\}\) = \{(\d+), (\d+), (\d+), (\d+)\}"
)
_COUNT = re.compile(r"number of input tokens = (\d+)")
_ID = re.compile(r"(?:^|\s)(\d+)\s*$")
_HINT = "write one with: llama-eval-callback -m MODEL.gguf -p TEXT > eval.log 2>&1"


@dataclass(frozen=True)
class Node:
    """A tensor of the graph: its sizes ``ne``, innermost first, and the printed ``values`` at their flat ``places``.

    ``sources`` is what it was computed from, as printed. ``digits`` are those after the point.
    """

    name: str
    op: str
    sources: str
    ne: tuple[int, int, int, int]
    places: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    digits: list[int] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)

    @property
    def numbers(self) -> int:
        return math.prod(self.ne)

    @property
    def half(self) -> float:
        """Half a unit of the last printed digit."""
        return 0.5 * 10.0 ** -min(self.digits, default=4)


@dataclass(frozen=True)
class PrintedLog:
    """The nodes of the first pass in a log, in order, and the ids of its tokens, if it has them."""

    path: Path
    nodes: tuple[Node, ...]
    ids: list[int] | None

    @cached_property
    def sums_all(self) -> bool:
        """Whether sums are those of whole tensors: then some differ from the sum of what is printed."""
        some = [
            node
            for node in self.nodes
            if len(node.sums) == 1
            and len(node.values) < node.numbers
            and all(map(math.isfinite, (*node.values, *node.sums)))
        ]
        gaps = ((abs(math.fsum(node.values) - node.sums[0]), len(node.values) * node.half, node) for node in some)
        return any(gap > rounding + 1e-5 * abs(node.sums[0]) for gap, rounding, node in gaps)

    def as_dump(self) -> Dump:
        """A dump with the ids alone, whose text is found as that of any other."""
        return Dump(self.path, {}, self._nothing, {} if self.ids is None else {"ids": self.ids})

    def _nothing(self, name: str) -> Tensor:
        raise AssertionError(f"{name} was printed in part")


def read_log(path: str | Path) -> PrintedLog:
    """Read a log. Raises DumpError for a file without such tensors."""
    path = Path(path)
    try:
        lines = read_bytes(path, _LARGEST).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        raise DumpError(f"there is no file {path}", _HINT) from None
    except OSError as error:
        raise DumpError(f"cannot read {path}: {error.strerror or error}", _HINT) from None
    nodes: list[Node] = []
    ids: list[int] = []
    awaited = 0
    at = [0, 0, 0]  # of axes 3, 2 and 1
    depth = 0
    for line in lines:
        if found := _NODE.search(line):
            name, _, op, sources, *sizes = found.groups()
            node = Node(name, op, sources, tuple(map(int, sizes)))  # type: ignore[arg-type]
            if nodes and (node.name, node.op, node.ne[0]) == (nodes[0].name, nodes[0].op, nodes[0].ne[0]):
                break  # the next pass
            nodes.append(node)
            at, depth = [0, 0, 0], 0
        elif nodes:
            depth = _read_line(nodes[-1], line.strip(), at, depth)
        elif found := _COUNT.search(line):
            awaited = int(found[1])
        elif awaited > len(ids) and (found := _ID.search(line)):
            ids.append(int(found[1]))
    if not any(node.values or node.sums for node in nodes):
        raise DumpError(f"{path} holds no tensors that llama-eval-callback printed", _HINT)
    return PrintedLog(path, tuple(nodes), ids if ids and len(ids) == awaited else None)


def _read_line(node: Node, text: str, at: list[int], depth: int) -> int:
    """Take one line of a node's numbers; ``at`` are the indices of axes 3, 2 and 1, moved along. Returns the depth."""
    if text == "[":
        return depth + 1
    if text.startswith("sum ="):
        node.sums.append(_number(text.partition("=")[2].strip()))
    elif text.startswith("..."):  # as many follow as came before
        axis = depth  # inside one bracket axis 2 is cut, inside two axis 1
        at[axis] = max(node.ne[3 - axis] - at[axis], at[axis]) if axis in (1, 2) else at[axis]
    elif text.startswith("]"):
        if depth in (1, 2):
            at[depth - 1] += 1
            at[depth:] = [0] * (3 - depth)
        return depth - 1
    elif text.startswith("[") and depth == 2:
        row = ((at[0] * node.ne[2] + at[1]) * node.ne[1] + at[2]) * node.ne[0]
        place = 0
        for word in (piece.strip() for piece in text.strip("[], ").split(",")):
            if word == "...":
                place = max(node.ne[0] - place, place)
            elif word and place < node.ne[0] and row + place < node.numbers:
                node.places.append(row + place)
                node.values.append(_number(word))
                node.digits.append(len(word.partition(".")[2]) if "." in word else 4)
                place += 1
        at[2] += 1
    return depth


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
