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

from tinytf.errors import PlacedError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.parts.row import Step
from tinytf.steps.table import StepTable
from tinytf.text.words import NUMBERS
from tinytf.trace.address import parse_address
from tinytf.trace.measures import MEASURES, OUTCOMES, Moment, Term, has_outcome, numbers
from tinytf.trace.trace import Trace

Measured = Callable[[Term], float]
Meaning = Callable[[Measured], bool]
Value = Callable[[Measured], float]

_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_REACHED: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b if b else math.nan,
}  # fmt: skip
_FOREIGN = re.compile(r"[^\sA-Za-z0-9_.+*/<>=!()-]")
_TERM = re.compile(
    rf"\b(?P<measure>{'|'.join((*MEASURES, *OUTCOMES))})\((?P<of>[^()]*)\)"
    rf"|\bL{NUMBERS}(?:[HE]{NUMBERS})?(?:\.[\w.]+)?(?:\[[^\]]*\])?|\b[a-z]\w*(?:\.\w+)*\[[^\]]*\]"
)
"""A measure of an address or of a token, or an address."""
_QUOTED = re.compile(r"""^(["'])(.+)\1$""")
_LONGEST = 1_000
"""Characters of a condition: Python's parser recurses, and none that makes sense is as long."""

_EXAMPLE = "such as: max > 0.9 and entropy < 0.5"


@dataclass(frozen=True)
class Condition:
    """A condition as it was written; ``meaning`` decides it from the values of its ``terms``."""

    text: str
    terms: tuple[Term, ...]
    meaning: Meaning = field(compare=False)

    def holds(self, moment: Moment) -> bool:
        """Whether it holds at a step; a comparison with a measure that the step does not have is false."""
        return moment.step.is_tensor and self.meaning(moment.value) and self._known(moment)

    def _known(self, moment: Moment) -> bool:
        """Whether any of its terms has a value, so that ``not`` does not hold where there are none."""
        return not self.terms or not all(math.isnan(moment.value(term)) for term in self.terms)

    def said(self, moment: Moment) -> str:
        """The values of its terms, and where they are."""
        return "; ".join(filter(None, (moment.said(term) for term in self.terms)))

    def require(
        self, table: StepTable, step: Step | None, find: Callable[[str], int], trace: Trace | None = None
    ) -> None:
        """Raise an error for what the model (or, if there is one, the trace) lacks: a step, a token, a cell.

        Also for the entropy of a step that has none, and for a cell of many numbers.
        """
        for term in self.terms:
            if term.measure in OUTCOMES:
                find(term.of)
                if step is not None and not has_outcome(table, step):
                    hint = f"{term.measure} is of the residual stream and after it: L*.{table.output}, {table.final}"
                    raise UsageError(f"{step.name} predicts no token", hint)
                continue
            of, where = step, None
            if term.of:
                of = table.by_name.get(term.of)
                where = parse_address(term.of, table) if of is None or not of.in_layer else None
                of = of if where is None else where.step
                if of is None or not of.is_tensor:
                    raise UsageError(f"{term.of} has no numbers", "such as: max(L0.weights) > 0.9")
                if term.measure == "value" and (where is None or where.axes or ":" in term.of):
                    hint = "a cell is L1H2.weights[4,1], a measure max(L1H2.weights[1:])"
                    raise UsageError(f"{term.of} is many numbers", hint)
            if trace is not None and where is not None and where.step is not None:
                numbers(trace, where.step, where.layers[0] if where.layers else None, where.heads, where.cell)
            if term.measure == "entropy" and of is not None and not of.is_distribution:
                raise UsageError(f"{of.name} has no entropy", "entropy is of weights and probs")


def parse_condition(text: str, line: str = "", column: int = 0) -> Condition:
    """Read comparisons such as ``max > 0.9``, joined by ``and``, ``or``, ``not`` and round brackets.

    A side is made of measures of the step, or of another as in ``max(L0.ffn)``, of cells such as
    ``L1H2.weights[the,ball]``, of ``prob(·ball)`` and ``rank(·ball)``, of numbers, ``+ - * /``, ``abs(…)`` and
    ``last(…)``, its value in the run before; ``nan`` is ``nan > 0``. The grammar is Python's. ``text`` is at ``column``
    of ``line``. Raises PlacedError at the place that is wrong.
    """
    start = len(text) - len(text.lstrip())
    written: dict[int, Term] = {}
    terms: dict[Term, None] = {}

    def wrong(at: int, message: str, hint: str = _EXAMPLE) -> PlacedError:
        return PlacedError(message, line or text, column + min(at, len(text)), hint)

    def put_aside(found: re.Match[str]) -> str:
        """Keep a term that is no Python, and leave a name as long as it in its place."""
        of = _QUOTED.sub(r"\2", (found["of"] if found["measure"] else found[0]).strip())
        if not of:
            raise wrong(found.start(), f"{found[0]} is of nothing", "such as: max(L0.ffn) > 9, prob(·ball) > 0.5")
        written[found.start() - start] = Term(found["measure"] or "value", of)
        return "_" * len(found[0])

    def meaning(node: ast.expr) -> Meaning:
        match node:
            case ast.BoolOp(op=op, values=values):
                joined, parts = all if isinstance(op, ast.And) else any, [meaning(value) for value in values]
                return lambda measured: joined(part(measured) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                denied = meaning(operand)
                return lambda measured: not denied(measured)
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
            case ast.Name(id="nan" | "inf"):
                counted = side(node)
                return lambda measured: counted(measured) > 0
        side(node)
        raise wrong(start + (node.end_col_offset or 0), f"a comparison must follow {_source(node)}")

    def _source(node: ast.expr) -> str:
        return text[start + node.col_offset : start + (node.end_col_offset or 0)]

    def side(node: ast.expr, last: bool = False) -> Value:
        match node:
            case ast.Name(id=name, col_offset=at) if at in written and not name.strip("_"):
                return of_term(Term(written[at].measure, written[at].of, last))
            case ast.Name(id=name) if name in MEASURES:
                return of_term(Term(name, "", last))
            case ast.Name(id=name):
                known = {**MEASURES, **OUTCOMES}
                raise wrong(start + node.col_offset, f"there is no measure {name!r}", did_you_mean(name, known))
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return lambda measured: float(number)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                sign, value = -1 if isinstance(node.op, ast.USub) else 1, side(operand, last)
                return lambda measured: sign * value(measured)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _REACHED:
                reach, a, b = _REACHED[type(op)], side(left, last), side(right, last)
                return lambda measured: reach(a(measured), b(measured))
            case ast.Call(func=ast.Name(id="abs"), args=[inner], keywords=[]):
                value = side(inner, last)
                return lambda measured: abs(value(measured))
            case ast.Call(func=ast.Name(id="last"), args=[inner], keywords=[]):
                return side(inner, True)
        raise wrong(start + node.col_offset, "only measures and numbers can be compared")

    def of_term(term: Term) -> Value:
        terms[term] = None
        return lambda measured: measured(term)

    if not text.strip():
        raise wrong(len(text), "the condition is missing")
    if len(text) > _LONGEST:
        raise wrong(_LONGEST, f"a condition has at most {_LONGEST:,} characters")
    code = _TERM.sub(put_aside, text)
    if foreign := _FOREIGN.search(code):
        raise wrong(foreign.start(), f"a condition cannot contain {foreign[0]!r}")
    try:
        with warnings.catch_warnings(action="ignore"):  # such as of 1or 2
            tree = ast.parse(re.sub(r"\s", " ", code.strip()), mode="eval").body
        found = meaning(tree)
        return Condition(" ".join(text.split()), tuple(terms), found)
    except SyntaxError as error:
        at = start + error.offset - 1 if error.offset else len(text)  # 0 is the end
        raise wrong(at, f"cannot read the condition: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise wrong(start, "the condition is nested too deeply") from None
