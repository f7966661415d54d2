"""Conditions on a step's numbers, for breakpoints: ``max > 0.9 and entropy < 0.5``."""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from tinytf.errors import PlacedError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.steps.table import Step
from tinytf.trace.summary import visible
from tinytf.trace.trace import Trace

Measured = Callable[[str], float]
Meaning = Callable[[Measured], bool]
_Heads = tuple[int, ...] | None


def _finite(values: Tensor) -> Tensor:
    return values[torch.isfinite(values)]


def _of_finite(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], float]:
    def measure(values: Tensor) -> float:
        finite = _finite(values).double()
        return float(function(finite)) if finite.numel() else math.nan

    return measure


def _entropy(rows: Tensor) -> float:
    """Of the shares of each row's sum, which is 1 but for weights beside a sink."""
    rows = rows.double()
    return float(torch.special.entr(rows / rows.sum(dim=-1, keepdim=True).clamp(min=1e-300)).sum(dim=-1).mean())


MEASURES: dict[str, tuple[Callable[[Tensor], float], str]] = {
    "mean": (_of_finite(torch.mean), "the mean"),
    "max": (_of_finite(torch.max), "the largest"),
    "min": (_of_finite(torch.min), "the smallest"),
    "std": (_of_finite(lambda values: values.std(correction=0)), "the standard deviation"),
    "norm": (_of_finite(torch.linalg.vector_norm), "the length: the root of the sum of squares"),
    "entropy": (_entropy, "of weights and probs: the mean entropy of a row, in nats"),
    "nan": (lambda values: float(torch.isnan(values).sum()), "how many are NaN"),
    "inf": (lambda values: float(torch.isinf(values).sum()), "how many are infinite"),
}
"""The measures of a step's finite and unmasked numbers."""

_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_FOREIGN = re.compile(r"[^\sA-Za-z0-9_.+<>=!()-]")
_LONGEST = 1_000
"""Characters of a condition: Python's parser recurses, and none that makes sense is as long."""

_EXAMPLE = "such as: max > 0.9 and entropy < 0.5"


def measure(trace: Trace, name: str, step: Step, layer: int | None, heads: _Heads = None) -> float:
    """One measure of a step, of all its heads or of some; NaN where the step has no such measure."""
    if not step.is_tensor or (name == "entropy" and not step.is_distribution):
        return math.nan
    found = trace.at_logit_rows(step) if step.is_vocabulary else trace.step(step.name, layer, heads)
    allowed = visible(trace, step, layer)
    if allowed is not None and name != "entropy":
        found = found[..., allowed]
    return MEASURES[name][0](found)


@dataclass(frozen=True)
class Condition:
    """A condition as it was written; ``meaning`` decides it from measures by name, of which it uses ``names``."""

    text: str
    names: frozenset[str]
    meaning: Meaning = field(compare=False)

    def holds(self, trace: Trace, step: Step, layer: int | None, heads: _Heads = None) -> bool:
        """Whether it holds at a step; a comparison with a measure that the step does not have is false."""
        return step.is_tensor and self.meaning(lambda name: measure(trace, name, step, layer, heads))

    def require_entropy(self, step: Step) -> None:
        """Raise UsageError where it asks for the entropy of a step whose rows are no distributions."""
        if "entropy" in self.names and not step.is_distribution:
            raise UsageError(f"{step.name} has no entropy", "entropy is of weights and probs")


def parse_condition(text: str, line: str = "", column: int = 0) -> Condition:
    """Read comparisons such as ``max > 0.9``, joined by ``and``, ``or`` and round brackets; ``nan`` is ``nan > 0``.

    The grammar is Python's. ``text`` is at ``column`` of ``line``. Raises PlacedError at the place that is wrong.
    """
    start = len(text) - len(text.lstrip())

    def wrong(at: int, message: str, hint: str = _EXAMPLE) -> PlacedError:
        return PlacedError(message, line or text, column + min(at, len(text)), hint)

    def meaning(node: ast.expr) -> Meaning:
        match node:
            case ast.BoolOp(op=op, values=values):
                joined, parts = all if isinstance(op, ast.And) else any, [meaning(value) for value in values]
                return lambda measured: joined(part(measured) for part in parts)
            case ast.Compare(left=left, ops=ops, comparators=others):
                for sign, other in zip(ops, others, strict=True):
                    if type(sign) not in _COMPARE:
                        raise wrong(start + other.col_offset, "a comparison is one of < <= > >= == !=")
                signs, sides = [_COMPARE[type(sign)] for sign in ops], [side(one) for one in (left, *others)]

                def compared(measured: Measured) -> bool:
                    values = [value(measured) for value in sides]
                    holds = [sign(*pair) for sign, pair in zip(signs, pairwise(values), strict=True)]
                    return all(holds) and not any(map(math.isnan, values))

                return compared
            case ast.Name(id="nan" | "inf" as name):
                return lambda measured: measured(name) > 0
        side(node)
        raise wrong(start + (node.end_col_offset or 0), f"a comparison must follow {ast.unparse(node)}")

    def side(node: ast.expr) -> Callable[[Measured], float]:
        match node:
            case ast.Name(id=name) if name in MEASURES:
                return lambda measured: measured(name)
            case ast.Name(id=name):
                raise wrong(start + node.col_offset, f"there is no measure {name!r}", did_you_mean(name, MEASURES))
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return lambda measured: float(number)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                sign, value = -1 if isinstance(node.op, ast.USub) else 1, side(operand)
                return lambda measured: sign * value(measured)
        raise wrong(start + node.col_offset, "only measures and numbers can be compared")

    if foreign := _FOREIGN.search(text):
        raise wrong(foreign.start(), f"a condition cannot contain {foreign[0]!r}")
    if not text.strip():
        raise wrong(len(text), "the condition is missing")
    if len(text) > _LONGEST:
        raise wrong(_LONGEST, f"a condition has at most {_LONGEST:,} characters")
    try:
        with warnings.catch_warnings(action="ignore"):  # such as of 1or 2
            tree = ast.parse(re.sub(r"\s", " ", text.strip()), mode="eval").body
        names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        return Condition(" ".join(text.split()), names, meaning(tree))
    except SyntaxError as error:
        at = start + error.offset - 1 if error.offset else len(text)  # 0 is the end
        raise wrong(at, f"cannot read the condition: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise wrong(start, "the condition is nested too deeply") from None
