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
"""Characters of a formula."""
DEEPEST = 150
"""How deeply a formula may be nested."""
_LONGEST_SHOWN = 60
"""Characters of a formula that an error shows."""
LARGEST = 20_000_000
"""Numbers that an operation may make, and that all steps together may keep."""
BUDGET = 2_000_000_000
"""Numbers that all operations of an example may make together, both computations and all finite differences."""
_LEAST = 1_000
"""An operation counts as this many numbers at least: it takes their time."""
_WORK = 500
"""Multiplications of a product for each number that it may make at most."""
_MOST_BITS = 1_024
"""Of a power of whole numbers."""


class LanguageError(TinytfError):
    """A text that is no formula, or a formula that cannot be computed."""


class NeedsTokenizer(LanguageError):
    """A formula asks for token ids, and there is no tokenizer."""


class Namespace(Protocol):
    """The values of names, and what numbers are made of: each operation, and how a list becomes a tensor."""

    def __getitem__(self, name: str) -> Any: ...

    def call(self, name: str, arguments: list[Any]) -> Any: ...

    def tensor(self, parts: list[Any]) -> Any: ...

    def transposed(self, value: Any) -> Any: ...

    def spend(self, numbers: int) -> None: ...


BY_NAME = frozenset({"gradient", "learns"})
"""Operations that take names, not values: a gradient is with respect to something."""


def _power(a: Any, b: Any) -> Any:
    """Whole numbers stay exact while they fit a float; beyond that a power would take all time and memory."""
    small = isinstance(a, int) and isinstance(b, int) and b >= 0 and a.bit_length() * b <= _MOST_BITS
    return a**b if small or not isinstance(a, int) else float(a) ** b


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
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SOUND = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.Attribute, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Load,
    *_BINARY, *_UNARY, *_COMPARED,
)  # fmt: skip
"""What a formula may consist of, besides calls, names and constants."""


@dataclass(frozen=True)
class Formula:
    """A formula that was found to be sound; ``calls`` are the operations that it uses."""

    text: str
    tree: ast.expr
    calls: frozenset[str]

    @classmethod
    def parse(cls, text: str, known: Collection[str], operations: Collection[str]) -> "Formula":
        """Raises LanguageError for a text that is no formula, and for unknown names and operations."""
        if len(text) > LONGEST:
            raise LanguageError(f"the formula has {len(text):,} characters, more than {LONGEST:,}")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            place = f" at character {error.offset}" if error.offset else ""
            raise LanguageError(f"{text!r} is not a formula{place}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise LanguageError(f"the formula cannot be read: {error}") from None
        calls = set[str]()
        _require_sound(tree, known, operations, calls)
        shown = " ".join((ast.get_source_segment(text.strip(), tree) or text).split())
        if "\n" in text.strip():
            shown = re.sub(r"(?<=[\[(]) |,? (?=[\])])", "", shown)  # what only the line ends had needed
        return cls(shown, tree, frozenset(calls))

    def compute(self, values: Namespace) -> Any:
        """The value of the formula. Raises LanguageError where there is none."""
        try:
            return _value(self.tree, values)
        except RecursionError:
            raise LanguageError("rests on too long a chain of steps") from None


def _require_sound(
    node: ast.AST, known: Collection[str], operations: Collection[str], calls: set[str], depth: int = 1
) -> None:
    """Walk the whole tree and note its ``calls``, so that nothing but the language is ever computed."""
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
            called = f"{name} is an operation: {name}(…)" if name in operations else ""
            raise LanguageError(f"there is no {name!r} before this step", called or did_you_mean(name, known))
        case ast.Name() | ast.Constant(value=int() | float() | str()):
            return
        case ast.Constant(value=value):
            raise LanguageError(f"{value!r} has no place in a formula")
        case ast.Attribute(attr=attribute) if attribute != "T":
            raise LanguageError(f"there is no .{attribute}", "the one attribute is .T, which swaps the last two axes")
        case ast.Compare(ops=[_, _, *_]):
            raise LanguageError("one comparison at a time")
        case _ if not isinstance(node, _SOUND):
            kind = type(node).__name__
            raise LanguageError(f"{kind} has no place in a formula", "arithmetic, @, slices, .T and calls")
    for part in parts:
        _require_sound(part, known, operations, calls, depth + 1)


def _value(node: ast.AST, values: Namespace) -> Any:
    """The value of a node that is sound."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _value(left, values), _value(right, values)
            if isinstance(first, str) or isinstance(second, str):
                raise LanguageError("cannot compute with words")
            return _applied(node, values, _BINARY[type(op)], first, second)
        case ast.UnaryOp(op=op, operand=operand):
            return _applied(node, values, _UNARY[type(op)], _value(operand, values))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _applied(node, values, _COMPARED[type(op)], _value(left, values), _value(right, values))
        case ast.Attribute(value=of):
            return _applied(node, values, values.transposed, _value(of, values))
        case ast.Subscript(value=of, slice=index):
            place = _index(index, values)
            return _applied(node, values, lambda whole: whole[place], _value(of, values))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return _applied(
                node, values, lambda *made: values.tensor(list(made)), *(_value(part, values) for part in parts)
            )
        case ast.Call(func=ast.Name(id=name), args=parts):
            by_name = name in BY_NAME
            arguments = [part.id if by_name and isinstance(part, ast.Name) else _value(part, values) for part in parts]
            return _applied(node, values, lambda *made: values.call(name, list(made)), *arguments)
    raise LanguageError(f"{type(node).__name__} has no value")


def require_room(numbers: int) -> None:
    """Raise LanguageError where so many numbers would be made, before they are."""
    if numbers > LARGEST:
        raise LanguageError(f"this would make {numbers:,} numbers, more than {LARGEST:,}")


@dataclass
class Budget:
    """What an example may still take: so many ``numbers``, and the time until ``until`` of ``time.monotonic``."""

    numbers: int = BUDGET
    until: float = math.inf

    def spend(self, numbers: int) -> None:
        """Take some numbers off. Raises LanguageError where there are not so many left, or no time."""
        require_room(numbers)
        self.numbers -= max(numbers, _LEAST)
        if self.numbers < 0:
            raise LanguageError("has no numbers left to compute with", "--budget gives more")
        if time.monotonic() > self.until:
            raise LanguageError("ran out of time", "--seconds gives more")


def _made(node: ast.AST, shapes: list[tuple[int, ...]]) -> int:
    """How many numbers a part of a formula makes at most of tensors of these ``shapes``, and of products the work."""
    match node, shapes:
        case ((ast.BinOp(op=ast.MatMult()) | ast.Call(func=ast.Name(id="scores"))), [[*_, k] as a, [*_] as b]) if k:
            each = math.prod(b if len(a) < 3 else b[-2:]) // k  # columns that every row of a is multiplied with
            return max(math.prod(a[:-1]) * each, math.prod(a) * each // _WORK)
        case ast.List() | ast.Tuple(), _:
            return sum(map(math.prod, shapes))
    by_axis = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return math.prod(max(sizes) for sizes in by_axis)


def _applied(node: ast.AST, values: Namespace, function: Callable[..., Any], *taken: Any) -> Any:
    """What a part of a formula gives. Raises LanguageError, in our own words, where torch or numpy raise theirs."""
    values.spend(_made(node, [tuple(one.shape) for one in taken if hasattr(one, "shape")]))
    try:
        return function(*taken)
    except ZeroDivisionError:
        raise LanguageError("divides by 0") from None
    except OverflowError:
        raise LanguageError("gives a number that is too large") from None
    except RecursionError:
        raise
    except (ArithmeticError, AttributeError, IndexError, MemoryError, RuntimeError, TypeError, ValueError):
        formula, given = ast.unparse(node), " and ".join(map(_in_words, taken)) or "nothing"
        shown = formula if len(formula) <= _LONGEST_SHOWN else f"{formula[:_LONGEST_SHOWN]}…"
        raise LanguageError(f"{shown} cannot be computed: it is given {given}") from None


def _in_words(value: Any) -> str:
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
        case ast.Slice(lower=lower, upper=upper, step=by):
            ends = (None if end is None else _whole(_value(end, values)) for end in (lower, upper, by))
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
