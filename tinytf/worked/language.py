"""The formulas of worked examples: arithmetic, ``@``, slices and calls of named operations; nothing else of Python."""

import ast
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tinytf.nearest import did_you_mean

LONGEST = 2_000
"""Characters of a formula."""
DEEPEST = 150
"""How deeply a formula may be nested."""
_MOST_BITS = 1_024
"""Of a power of whole numbers."""


class LanguageError(Exception):
    """A formula that is none, or that cannot be computed."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class NeedsTokenizer(LanguageError):
    """A formula that asks for token ids, and there is no tokenizer."""


class Dialect(Protocol):
    """What numbers are made of: each operation of the language, and how a list becomes a tensor."""

    def call(self, name: str, arguments: list[Any]) -> Any: ...

    def tensor(self, parts: list[Any]) -> Any: ...

    def transposed(self, value: Any) -> Any: ...


BY_NAME = frozenset({"gradient", "learns"})
"""Operations that take names, not values: a gradient is with respect to something."""

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: _power(a, b),
    ast.MatMult: lambda a, b: a @ b,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def _power(a: Any, b: Any) -> Any:
    """Whole numbers stay exact while they fit a float; beyond that a power would take all time and memory."""
    small = isinstance(a, int) and isinstance(b, int) and b >= 0 and a.bit_length() * b <= _MOST_BITS
    return a**b if small or not isinstance(a, int) else float(a) ** b


@dataclass(frozen=True)
class Formula:
    """A formula that was found to be sound: ``names`` are what it uses, ``calls`` its operations."""

    text: str
    tree: ast.expr
    names: frozenset[str]
    calls: frozenset[str]

    @classmethod
    def parse(cls, text: str, known: Collection[str], operations: Collection[str]) -> "Formula":
        """Raises LanguageError for what is no formula, and for names and operations that are not there."""
        if len(text) > LONGEST:
            raise LanguageError(f"the formula has {len(text):,} characters; {LONGEST:,} are the most")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            place = f" at character {error.offset}" if error.offset else ""
            raise LanguageError(f"{text!r} is no formula{place}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise LanguageError(f"the formula cannot be read: {error}") from None
        names, calls = set[str](), set[str]()
        _require_shallow(tree)
        _check(tree, known, operations, names, calls)
        return cls(_on_one_line(text), tree, frozenset(names), frozenset(calls))

    def compute(self, value_of: Callable[[str], Any], dialect: Dialect) -> Any:
        """The value, where names have those that ``value_of`` gives. Raises LanguageError where there is none."""
        try:
            return _value(self.tree, value_of, dialect)
        except LanguageError:
            raise
        except ZeroDivisionError:
            raise LanguageError("divides by 0") from None
        except OverflowError:
            raise LanguageError("gives a number that is too large") from None
        except (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError) as error:
            said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise LanguageError(f"cannot be computed: {said[:160]}") from None


def _on_one_line(text: str) -> str:
    """A formula as it is shown: what stands over several lines, without the space that this takes."""
    joined = " ".join(text.split())
    if "\n" not in text.strip():
        return joined
    joined = re.sub(r",? ([\])])", r"\1", re.sub(r"([\[(]) ", r"\1", joined))
    whole = re.fullmatch(r"\((.*)\)", joined)
    return whole[1] if whole and _is_formula(whole[1]) else joined


def _is_formula(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def _require_shallow(tree: ast.AST) -> None:
    """Level by level, so that no depth is too much for this itself."""
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise LanguageError("the formula is nested too deeply")
        level = [child for node in level for child in ast.iter_child_nodes(node)]


def _check(
    node: ast.AST, known: Collection[str], operations: Collection[str], names: set[str], calls: set[str]
) -> None:
    """Walk the whole tree, so that nothing but the language below is ever computed."""
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise LanguageError("an operation is called by its name, with its arguments in order: softmax(x, -1)")
        if node.func.id not in operations:
            raise LanguageError(f"there is no operation {node.func.id!r}", did_you_mean(node.func.id, operations))
        if node.func.id in BY_NAME and not all(isinstance(one, ast.Name) for one in node.args):
            raise LanguageError(f"{node.func.id} takes two names: {node.func.id}(loss, W)")
        calls.add(node.func.id)
        for argument in node.args:
            _check(argument, known, operations, names, calls)
        return
    if isinstance(node, ast.Name):
        if node.id not in known:
            called = f"{node.id} is an operation: {node.id}(…)" if node.id in operations else ""
            raise LanguageError(f"there is no {node.id!r} before this step", called or did_you_mean(node.id, known))
        names.add(node.id)
        return
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, (int, float, str)):
            raise LanguageError(f"{node.value!r} has no place in a formula")
        return
    if isinstance(node, ast.Attribute) and node.attr != "T":
        raise LanguageError(f"there is no .{node.attr}", "the one attribute is .T, which swaps the last two axes")
    if not isinstance(node, _NODES):
        raise LanguageError(f"{type(node).__name__} has no place in a formula", "arithmetic, @, slices, .T and calls")
    for part in ast.iter_child_nodes(node):
        _check(part, known, operations, names, calls)


_NODES = (
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Attribute,
    ast.Subscript,
    ast.Slice,
    ast.List,
    ast.Tuple,
    ast.Load,
    ast.USub,
    ast.UAdd,
    *_BINARY,
    *_COMPARED,
)


def _value(node: ast.AST, value_of: Callable[[str], Any], dialect: Dialect) -> Any:
    """The value of a node that ``_check`` let pass."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return value_of(node.id)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, value_of, dialect), _value(node.right, value_of, dialect)
        if isinstance(left, str) or isinstance(right, str):
            raise LanguageError("words cannot be computed with")
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, value_of, dialect)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Compare):
        if len(node.ops) != 1:
            raise LanguageError("one comparison at a time")
        left, right = (_value(side, value_of, dialect) for side in (node.left, node.comparators[0]))
        return _COMPARED[type(node.ops[0])](left, right)
    if isinstance(node, ast.Attribute):
        return dialect.transposed(_value(node.value, value_of, dialect))
    if isinstance(node, ast.Subscript):
        return _value(node.value, value_of, dialect)[_index(node.slice, value_of, dialect)]
    if isinstance(node, (ast.List, ast.Tuple)):
        return dialect.tensor([_value(part, value_of, dialect) for part in node.elts])
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    if node.func.id in BY_NAME:
        return dialect.call(node.func.id, [part.id for part in node.args if isinstance(part, ast.Name)])
    return dialect.call(node.func.id, [_value(part, value_of, dialect) for part in node.args])


def _index(node: ast.AST, value_of: Callable[[str], Any], dialect: Dialect) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_index(part, value_of, dialect) for part in node.elts)
    if isinstance(node, ast.List):
        return [_whole(_value(part, value_of, dialect)) for part in node.elts]
    if isinstance(node, ast.Slice):
        ends = [node.lower, node.upper, node.step]
        start, stop, step = (None if end is None else _whole(_value(end, value_of, dialect)) for end in ends)
        if step is not None and step < 1:
            raise LanguageError("a slice goes forwards")
        return slice(start, stop, step)
    return _whole(_value(node, value_of, dialect))


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise LanguageError("an index is a whole number")
    return value
