"""The formulas of worked examples: arithmetic, ``@``, slices and calls of named operations; nothing else of Python."""

import ast
import itertools
import math
import operator
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tinytf.errors import TinytfError
from tinytf.nearest import did_you_mean

LONGEST = 2_000
"""The most characters of a formula."""
DEEPEST = 150
"""The deepest nesting of a formula."""
_LONGEST_SHOWN = 60
"""The most characters of a formula that an error shows."""
LARGEST = 20_000_000
"""The most numbers that one operation may make, and that all steps together may keep."""
BUDGET = 2_000_000_000
"""The most numbers that all operations of an example may make together, in both computations and all differences."""
_LEAST = 1_000
"""Every operation counts as at least this many numbers, since it takes as much time."""
_WORK = 500
"""This many multiplications of a matrix product count as one number."""
_MOST_BITS = 1_024
"""The most bits of a power of whole numbers."""


class LanguageError(TinytfError):
    """A text that is not a formula, or a formula that cannot be computed."""


class NeedsTokenizer(LanguageError):
    """A formula needs token ids, but there is no tokenizer."""


class Namespace(Protocol):
    """The values of names, and the arithmetic on them: operations, and tensors from lists."""

    def __getitem__(self, name: str) -> Any: ...

    def call(self, name: str, arguments: list[Any]) -> Any: ...

    def tensor(self, parts: list[Any]) -> Any: ...

    def transposed(self, value: Any) -> Any: ...

    def spend(self, numbers: int) -> None: ...


BY_NAME = frozenset({"gradient", "learns"})
"""Operations that take names, not values, as a gradient does: it is taken by a name."""


def _power(a: Any, b: Any) -> Any:
    """A power; whole numbers stay exact while they fit a float, since larger ones could take all time and memory."""
    is_exact = isinstance(a, int) and isinstance(b, int) and b >= 0 and a.bit_length() * b <= _MOST_BITS
    return a**b if is_exact or not isinstance(a, int) else float(a) ** b


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.MatMult: operator.matmul,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: lambda a: a}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ALLOWED_NODES = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.Attribute, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Load,
    *_BINARY, *_UNARY, *_COMPARE,
)  # fmt: skip
"""The nodes that a formula may have besides calls, names and constants."""


@dataclass(frozen=True)
class Formula:
    """A checked formula; ``calls`` are the operations that it uses."""

    text: str
    tree: ast.expr
    calls: frozenset[str]

    @classmethod
    def parse(cls, text: str, known: Collection[str], operations: Collection[str]) -> "Formula":
        """Read a formula. Raises LanguageError for a text that is not one, and for unknown names and operations."""
        if len(text) > LONGEST:
            raise LanguageError(f"the formula has {len(text):,} characters, more than {LONGEST:,}")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            position = f" at character {error.offset}" if error.offset else ""
            raise LanguageError(f"{text!r} is not a formula{position}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise LanguageError(f"the formula cannot be read: {error}") from None
        calls = set[str]()
        _check_nodes(tree, known, operations, calls)
        shown = " ".join((ast.get_source_segment(text.strip(), tree) or text).split())
        if "\n" in text.strip():
            shown = re.sub(r"(?<=[\[(]) |,? (?=[\])])", "", shown)  # spaces left over from line ends
        return cls(shown, tree, frozenset(calls))

    @property
    def names(self) -> frozenset[str]:
        """The given values and steps that the formula names."""
        return frozenset(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)) - self.calls

    def compute(self, values: Namespace) -> Any:
        """The value of the formula. Raises LanguageError if it has none."""
        try:
            return _value(self.tree, values)
        except RecursionError:
            raise LanguageError("depends on too long a chain of steps") from None


def _check_nodes(
    node: ast.AST, known: Collection[str], operations: Collection[str], calls: set[str], depth: int = 1
) -> None:
    """Check every node of the tree and collect its ``calls``, so that only the language is ever computed."""
    if depth > DEEPEST:
        raise LanguageError("the formula is nested too deeply")
    parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
    match node:
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
            if name not in operations:
                raise LanguageError(f"there is no operation {name!r}", did_you_mean(name, operations))
            if name in BY_NAME and not all(isinstance(part, ast.Name) for part in parts):
                raise LanguageError(f"{name} takes two names: {name}(loss, W)")
            calls.add(name)
        case ast.Call():
            raise LanguageError("an operation is called by its name, with its arguments in order: softmax(x, -1)")
        case ast.Name(id=name) if name not in known:
            hint = f"{name} is an operation: {name}(…)" if name in operations else ""
            raise LanguageError(f"there is no {name!r} before this step", hint or did_you_mean(name, known))
        case ast.Name() | ast.Constant(value=int() | float() | str()):
            return
        case ast.Constant(value=value):
            raise LanguageError(f"{value!r} is not allowed in a formula")
        case ast.Attribute(attr=attribute) if attribute != "T":
            raise LanguageError(f"there is no .{attribute}", "the one attribute is .T, which swaps the last two axes")
        case ast.Compare(ops=[_, _, *_]):
            raise LanguageError("one comparison at a time")
        case _ if not isinstance(node, _ALLOWED_NODES):
            kind = type(node).__name__
            raise LanguageError(f"{kind} is not allowed in a formula", "use arithmetic, @, slices, .T and calls")
    for part in parts:
        _check_nodes(part, known, operations, calls, depth + 1)


def _value(node: ast.AST, values: Namespace) -> Any:
    """The value of a checked node."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _value(left, values), _value(right, values)
            if isinstance(first, str) or isinstance(second, str):
                raise LanguageError("cannot compute with words")
            return _apply(node, values, _BINARY[type(op)], first, second)
        case ast.UnaryOp(op=op, operand=operand):
            return _apply(node, values, _UNARY[type(op)], _value(operand, values))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _apply(node, values, _COMPARE[type(op)], _value(left, values), _value(right, values))
        case ast.Attribute(value=operand):
            return _apply(node, values, values.transposed, _value(operand, values))
        case ast.Subscript(value=operand, slice=index):
            position = _index(index, values)
            return _apply(node, values, lambda tensor: tensor[position], _value(operand, values))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return _apply(
                node,
                values,
                lambda *arguments: values.tensor(list(arguments)),
                *(_value(part, values) for part in parts),
            )
        case ast.Call(func=ast.Name(id=name), args=parts):
            by_name = name in BY_NAME
            arguments = [part.id if by_name and isinstance(part, ast.Name) else _value(part, values) for part in parts]
            return _apply(node, values, lambda *computed: values.call(name, list(computed)), *arguments)
    raise LanguageError(f"{type(node).__name__} has no value")


def require_room(numbers: int) -> None:
    """Raise LanguageError if an operation would make more numbers than LARGEST, before it makes them."""
    if numbers > LARGEST:
        raise LanguageError(f"this would make {numbers:,} numbers, more than {LARGEST:,}")


@dataclass
class Budget:
    """The remaining budget of an example: so many ``numbers``, and time until ``until`` (of ``time.monotonic``)."""

    numbers: int = BUDGET
    until: float = math.inf

    def spend(self, numbers: int) -> None:
        """Charge some numbers. Raises LanguageError if too few are left, or the time is up."""
        require_room(numbers)
        self.numbers -= max(numbers, _LEAST)
        if self.numbers < 0:
            raise LanguageError("has no numbers left to compute with", "--budget gives more")
        if time.monotonic() > self.until:
            raise LanguageError("ran out of time", "--seconds gives more")


def _count_numbers(node: ast.AST, shapes: list[tuple[int, ...]]) -> int:
    """An upper bound on the numbers that a node makes from these ``shapes``; for matrix products, on the work too."""
    match node, shapes:
        case ((ast.BinOp(op=ast.MatMult()) | ast.Call(func=ast.Name(id="scores"))), [[*_, k] as a, [*_] as b]) if k:
            columns = math.prod(b if len(a) < 3 else b[-2:]) // k  # columns that every row of a is multiplied by
            return max(math.prod(a[:-1]) * columns, math.prod(a) * columns // _WORK)
        case ast.List() | ast.Tuple(), _:
            return sum(map(math.prod, shapes))
    by_axis = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return math.prod(max(sizes) for sizes in by_axis)


def _apply(node: ast.AST, values: Namespace, function: Callable[..., Any], *operands: Any) -> Any:
    """The value of a node. Raises LanguageError, with a message of ours, for errors of torch and numpy."""
    values.spend(_count_numbers(node, [tuple(operand.shape) for operand in operands if hasattr(operand, "shape")]))
    try:
        return function(*operands)
    except ZeroDivisionError:
        raise LanguageError("divides by 0") from None
    except OverflowError:
        raise LanguageError("gives a number that is too large") from None
    except RecursionError:
        raise
    except (ArithmeticError, AttributeError, IndexError, MemoryError, RuntimeError, TypeError, ValueError):
        formula, inputs = ast.unparse(node), " and ".join(map(_describe, operands)) or "nothing"
        shown = formula if len(formula) <= _LONGEST_SHOWN else f"{formula[:_LONGEST_SHOWN]}…"
        raise LanguageError(f"{shown} cannot be computed from {inputs}") from None


def _describe(value: Any) -> str:
    """The shape of a tensor, or the number or text itself."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return repr(value)[:40]
    if len(shape) < 2:
        return f"{shape[0]} number{'s' * (shape[0] != 1)}" if shape else "a number"
    return " × ".join(map(str, shape))


def _index(node: ast.AST, values: Namespace) -> Any:
    match node:
        case ast.Tuple(elts=parts):
            return tuple(_index(part, values) for part in parts)
        case ast.List(elts=parts):
            return [_whole(_value(part, values)) for part in parts]
        case ast.Slice(lower=lower, upper=upper, step=stride):
            ends = (None if end is None else _whole(_value(end, values)) for end in (lower, upper, stride))
            start, stop, step = ends
            if step is not None and step < 1:
                raise LanguageError("a slice must go forward")
            return slice(start, stop, step)
    return _whole(_value(node, values))


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise LanguageError("an index is a whole number")
    return value
