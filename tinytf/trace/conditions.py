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
from tinytf.trace.measures import MEASURES, OUTCOMES, Moment, Term, has_outcome, numbers, range_of
from tinytf.trace.trace import Trace

Measured = Callable[[Term], float]
Meaning = Callable[[Measured], bool]
Value = Callable[[Measured], float]

_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b if b else math.nan,
}  # fmt: skip
_ILLEGAL = re.compile(r"[^\sA-Za-z0-9_.+*/<>=!()-]")
_TERM = re.compile(
    rf"\b(?P<measure>{'|'.join((*MEASURES, *OUTCOMES))})\((?P<of>[^()]*)\)"
    rf"|\bL{NUMBERS}(?:[HE]{NUMBERS})?(?:\.[\w.]+)?(?:\[[^\]]*\])?|\b[a-z]\w*(?:\.\w+)*\[[^\]]*\]"
)
"""Matches a measure of an address or token, or an address."""
_QUOTED = re.compile(r"""^(["'])(.+)\1$""")
_MAX_LENGTH = 1_000
"""The most characters of a condition: Python's parser recurses, and no sensible condition is longer."""

_EXAMPLE = "such as: max > 0.9 and entropy < 0.5"


@dataclass(frozen=True)
class Bound:
    """A comparison of a term with a number, as written."""

    text: str
    term: Term
    sign: Callable[[float, float], bool]
    number: float

    def require_possible(self, step: Step | None) -> None:
        """Raise UsageError if no value that the term can have at ``step`` fulfils it."""
        least, most = range_of(self.term, step)
        within = least <= self.number <= most
        if not (self.sign(least, self.number) or self.sign(most, self.number) or (within and self.sign is operator.eq)):
            ends = f"at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
            of = f" of {step.name}" if step is not None and not self.term.of else ""
            hint = f"{self.term}{of} is {ends} in any text"
            raise UsageError(f"{self.text} can never hold", hint)


@dataclass(frozen=True)
class Condition:
    """A condition as written; ``meaning`` evaluates it from the values of its ``terms``.

    ``bounds`` are comparisons that must all hold; ``is_bound`` says that it is one of these and nothing else.
    """

    text: str
    terms: tuple[Term, ...]
    meaning: Meaning = field(compare=False)
    bounds: tuple[Bound, ...] = field(default=(), compare=False)
    is_bound: bool = field(default=False, compare=False)

    def holds(self, moment: Moment) -> bool:
        """Whether the condition holds at a step; a comparison with a measure that the step lacks is false."""
        return moment.step.is_tensor and self.meaning(moment.value) and self._has_value(moment)

    def _has_value(self, moment: Moment) -> bool:
        """Whether any term has a value; without one, ``not`` must not hold either."""
        return not self.terms or not all(math.isnan(moment.value(term)) for term in self.terms)

    def missed_by(self, moment: Moment) -> float:
        """How far the one term is from its number; infinite without a value, or for another kind of condition."""
        value = moment.value(self.bounds[0].term) if self.is_bound and moment.step.is_tensor else math.nan
        return math.inf if math.isnan(value) else abs(value - self.bounds[0].number)

    def said(self, moment: Moment) -> str:
        """The terms with their values and cells, for the reader."""
        return "; ".join(filter(None, (moment.said(term) for term in self.terms)))

    def require(
        self, table: StepTable, step: Step | None, find: Callable[[str], int], trace: Trace | None = None
    ) -> None:
        """Check the terms against the model and, if given, the trace.

        Raises AddressError or UsageError for a step, token or cell that is missing, for the entropy of a step that has
        none, for a cell of many numbers, and for a bound that lies beyond what the term can be.
        """
        for term in self.terms:
            if term.measure in OUTCOMES:
                find(term.of)
                if step is not None and not has_outcome(table, step):
                    hint = f"{term.measure} can be read from the residual stream on: L*.{table.output}, {table.final}"
                    raise UsageError(f"{step.name} predicts no token", hint)
                self._require_possible(term, step)
                continue
            measured_step, address = step, None
            if term.of:
                measured_step = table.by_name.get(term.of)
                address = parse_address(term.of, table) if measured_step is None or not measured_step.in_layer else None
                measured_step = measured_step if address is None else address.step
                if measured_step is None or not measured_step.is_tensor:
                    raise UsageError(f"{term.of} has no numbers", "such as: max(L0.weights) > 0.9")
                if term.measure == "value" and (address is None or address.axes or ":" in term.of):
                    hint = "name one cell, L1H2.weights[4,1], or a measure, max(L1H2.weights[1:])"
                    raise UsageError(f"{term.of} is many numbers", hint)
            if trace is not None and address is not None and address.step is not None:
                numbers(trace, address.step, address.layers[0] if address.layers else None, address.heads, address.cell)
            if term.measure == "entropy" and measured_step is not None and not measured_step.holds_shares:
                raise UsageError(f"{measured_step.name} has no entropy", "entropy is of weights and probs")
            self._require_possible(term, measured_step)

    def _require_possible(self, term: Term, step: Step | None) -> None:
        for bound in self.bounds:
            if bound.term == term:
                bound.require_possible(step)


def parse_condition(text: str, line: str = "", column: int = 0) -> Condition:
    """Read comparisons such as ``max > 0.9``, joined by ``and``, ``or``, ``not`` and parentheses.

    Each side of a comparison is built from measures of the step, or of another step as in ``max(L0.ffn)``; from cells
    such as ``L1H2.weights[the,ball]``; from ``prob(·ball)`` and ``rank(·ball)``; and from numbers, ``+ - * /``,
    ``abs(…)`` and ``last(…)``, the value in the previous run. ``nan`` alone means ``nan > 0``. The grammar is Python's.
    ``text`` starts at ``column`` of ``line``. Raises PlacedError at the first wrong character.
    """
    start = len(text) - len(text.lstrip())
    terms_at: dict[int, Term] = {}
    terms: dict[Term, None] = {}

    def error_at(at: int, message: str, hint: str = _EXAMPLE) -> PlacedError:
        return PlacedError(message, line or text, column + min(at, len(text)), hint)

    def set_aside(match: re.Match[str]) -> str:
        """Store a term that is not Python, and put a name of equal length in its place."""
        subject = _QUOTED.sub(r"\2", (match["of"] if match["measure"] else match[0]).strip())
        if not subject:
            raise error_at(match.start(), f"{match[0]} measures nothing", "such as: max(L0.ffn) > 9, prob(·ball) > 0.5")
        terms_at[match.start() - start] = Term(match["measure"] or "value", subject)
        return "_" * len(match[0])

    def parse_meaning(node: ast.expr) -> Meaning:
        match node:
            case ast.BoolOp(op=op, values=values):
                combine, parts = all if isinstance(op, ast.And) else any, [parse_meaning(value) for value in values]
                return lambda measured: combine(part(measured) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = parse_meaning(operand)
                return lambda measured: not inner(measured)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for sign, comparator in zip(ops, comparators, strict=True):
                    if type(sign) not in _COMPARE:
                        raise error_at(start + comparator.col_offset, "a comparison is one of < <= > >= == !=")
                signs, sides = (
                    [_COMPARE[type(sign)] for sign in ops],
                    [parse_side(operand) for operand in (left, *comparators)],
                )

                def comparison(measured: Measured) -> bool:
                    values = [value(measured) for value in sides]
                    results = [sign(*pair) for sign, pair in zip(signs, pairwise(values), strict=True)]
                    return all(results) and not any(map(math.isnan, values))

                return comparison
            case ast.Name(id="nan" | "inf"):
                count = parse_side(node)
                return lambda measured: count(measured) > 0
        parse_side(node)
        raise error_at(start + (node.end_col_offset or 0), f"a comparison must follow {_source(node)}")

    def _source(node: ast.expr) -> str:
        return text[start + node.col_offset : start + (node.end_col_offset or 0)]

    def parse_side(node: ast.expr, last: bool = False) -> Value:
        match node:
            case ast.Name(id=name, col_offset=at) if at in terms_at and not name.strip("_"):
                return of_term(Term(terms_at[at].measure, terms_at[at].of, last))
            case ast.Name(id=name) if name in MEASURES:
                return of_term(Term(name, "", last))
            case ast.Name(id=name):
                choices = {**MEASURES, **OUTCOMES}
                raise error_at(start + node.col_offset, f"there is no measure {name!r}", did_you_mean(name, choices))
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return lambda measured: float(number)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                sign, value = -1 if isinstance(node.op, ast.USub) else 1, parse_side(operand, last)
                return lambda measured: sign * value(measured)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                apply, a, b = _ARITHMETIC[type(op)], parse_side(left, last), parse_side(right, last)
                return lambda measured: apply(a(measured), b(measured))
            case ast.Call(func=ast.Name(id="abs"), args=[inner], keywords=[]):
                value = parse_side(inner, last)
                return lambda measured: abs(value(measured))
            case ast.Call(func=ast.Name(id="last"), args=[inner], keywords=[]):
                return parse_side(inner, True)
        raise error_at(start + node.col_offset, "only measures and numbers can be compared")

    def bounds_in(node: ast.expr) -> list[Bound]:
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return [bound for value in values for bound in bounds_in(value)]
            case ast.Compare(left=ast.Name() as name, ops=[sign], comparators=[number]):
                return bound_of(node, name, type(sign), number)
            case ast.Compare(left=number, ops=[sign], comparators=[ast.Name() as name]):
                return bound_of(node, name, _TURNED[type(sign)], number)
        return []

    def bound_of(node: ast.expr, name: ast.Name, sign: type[ast.cmpop], number: ast.expr) -> list[Bound]:
        """The bound of a term by a constant; none if a side is another."""
        try:
            constant = float(ast.literal_eval(number))
        except (ValueError, TypeError):
            return []
        return [Bound(_source(node), terms_at.get(name.col_offset) or Term(name.id), _COMPARE[sign], constant)]

    def of_term(term: Term) -> Value:
        terms[term] = None
        return lambda measured: measured(term)

    if not text.strip():
        raise error_at(len(text), "the condition is missing")
    if len(text) > _MAX_LENGTH:
        raise error_at(_MAX_LENGTH, f"a condition has at most {_MAX_LENGTH:,} characters")
    code = _TERM.sub(set_aside, text)
    if illegal := _ILLEGAL.search(code):
        raise error_at(illegal.start(), f"a condition cannot contain {illegal[0]!r}")
    try:
        with warnings.catch_warnings(action="ignore"):  # SyntaxWarning, as for 1or 2
            tree = ast.parse(re.sub(r"\s", " ", code.strip()), mode="eval").body
        meaning = parse_meaning(tree)
        bounds = tuple(bounds_in(tree))
        is_bound = len(bounds) == 1 and isinstance(tree, ast.Compare)
        return Condition(" ".join(text.split()), tuple(terms), meaning, bounds, is_bound)
    except SyntaxError as error:
        at = start + error.offset - 1 if error.offset else len(text)  # 0 is the end
        raise error_at(at, f"cannot read the condition: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise error_at(start, "the condition is nested too deeply") from None
