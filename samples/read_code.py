"""What a function of the library returns, read from its code and the annotations that it meets.

``Reader().call(function)`` gives a value: an instance of a declared type, a record with named members, a list … It runs
no code of the function: both branches of a condition are taken, and a loop is gone through once.
"""

import ast
import builtins
import collections.abc
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any, TypeVar, Union

import numpy as np
import torch
from read_builtins import SPECIAL
from read_hints import hints_of, is_of_library, is_vague, kinds_of, resolved
from read_values import (
    ANYTHING,
    MISSING,
    NONE,
    NUMBERS,
    OPEN,
    Code,
    Either,
    Env,
    Fixed,
    Items,
    Known,
    Listed,
    Of,
    Record,
    Starred,
    either,
    falsy,
    options,
    put,
    typed,
    without_none,
)  # fmt: skip

_MOST_UNROLLED = 100
_DEEPEST = 16


class Reader:
    """Reads code. ``seen`` is told of every call of a known function: the function, its arguments and keywords."""

    def __init__(self, seen: Callable[[Any, list[Any], dict[str, Any]], None] | None = None) -> None:
        self.seen = seen or (lambda function, arguments, keywords: None)
        self.variables: dict[Any, Any] = {}
        self.depth = 0
        self.reading: list[Any] = []

    # Types

    def of(self, hint: Any) -> Any:
        """A value of an annotated type."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is None or hint is type(None):
            return NONE
        if isinstance(hint, TypeVar):
            bound = self.variables.get(hint, hint.__bound__)
            return self.of(bound) if bound is not None else ANYTHING
        if origin in (Union, types.UnionType):
            return either([self.of(argument) for argument in arguments])
        if origin is typing.Literal:
            return either([Known(argument) for argument in arguments])
        if origin in (typing.ClassVar, typing.Final, typing.Annotated):
            return self.of(arguments[0])
        if origin is collections.abc.Callable:
            return Code(None, closure={"returned": self.of(arguments[1])})
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            return Fixed(tuple(self.of(argument) for argument in arguments))
        if isinstance(origin, type):
            if issubclass(origin, np.ndarray):
                return NUMBERS
            if issubclass(origin, collections.abc.Mapping):
                return Record(rest=self.of(arguments[1]), key=self.of(arguments[0]))
            if issubclass(origin, collections.abc.Iterable) and arguments and not is_of_library(origin):
                return Items(self.of(arguments[0]))
            self.variables.update(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
            return Of(origin)
        if hint is Any:
            return OPEN
        if not isinstance(hint, type):
            return ANYTHING
        if issubclass(hint, np.ndarray | torch.Tensor):
            return Of(hint)
        if hint in (dict, collections.abc.Mapping):
            return Record(rest=OPEN)
        if hint in (list, tuple):
            return Items(OPEN)
        return Of(hint)

    def bind_variables(self, cls: type) -> None:
        """What the bases of a class put for their type variables."""
        for base in cls.__mro__:
            for generic in base.__dict__.get("__orig_bases__", ()):
                origin = typing.get_origin(generic)
                if isinstance(origin, type) and origin is not typing.Generic:
                    for variable, argument in zip(
                        getattr(origin, "__parameters__", ()), typing.get_args(generic), strict=False
                    ):
                        if not isinstance(argument, TypeVar):
                            self.variables[variable] = argument

    # Members

    def member(self, owner: Any, name: str, base: type | None = None) -> Any:
        """``owner.name``."""
        if isinstance(owner, Known) and isinstance(owner.value, str | int | float | bytes):
            owner = Of(type(owner.value))
        if isinstance(owner, Either):
            found = [self.member(option, name) for option in options(without_none(owner))]
            return either([each for each in found if each != ANYTHING] or found)
        if isinstance(owner, Known) and isinstance(owner.value, Mapping):
            owner = self.record(owner)
        if isinstance(owner, Known):
            value = owner.value
            if value is None:
                return ANYTHING
            if isinstance(value, type | types.ModuleType) or callable(value) or not is_of_library(type(value)):
                found = getattr(value, name, None)
                return ANYTHING if found is None and not hasattr(value, name) else self.known(found)
            return self.member(Of(type(value)), name)
        if not isinstance(owner, Of):
            return Code(name, owner)
        kind = owner.kind
        if kind is Any:
            return OPEN
        if not isinstance(kind, type) or kind is object:
            return ANYTHING
        if kind is torch.device:
            return Of(str)
        if kind in (range, slice) and name in ("start", "stop", "step"):
            return Of(int)
        if issubclass(kind, PurePath) and name in ("name", "stem", "suffix"):
            return Of(str)
        if issubclass(kind, torch.Tensor | np.ndarray | np.generic):
            plain = {
                "shape": Items(Of(int)),
                "device": Of(torch.device),
                "size": Code(name, owner) if kind is torch.Tensor else Of(int),
            }
            return plain.get(name) or Code(name, owner)
        found = []
        for cls in kinds_of(kind) if is_of_library(kind) else (kind,):
            got = self._own(cls, name, owner if cls is kind else Of(cls))
            if got is not None and not any(got == other for other in found):
                found.append(got)
        return either(found) if found else ANYTHING

    def _own(self, cls: type, name: str, owner: Any) -> Any:
        declared = inspect.getattr_static(cls, name, None)
        if isinstance(declared, property):
            return self.result(declared.fget, owner)
        if isinstance(declared, cached_property):
            return self.result(declared.func, owner)
        if isinstance(declared, types.FunctionType):
            return Code(declared, owner)
        if is_of_library(type(declared)) and hasattr(type(declared), "__get__"):
            return Code(getattr(cls, name), owner)
        if isinstance(declared, classmethod | staticmethod):
            return Code(declared.__func__, Known(cls) if isinstance(declared, classmethod) else None)
        hints = hints_of(cls)
        if name in hints:
            hint = hints[name]
            if (hint is typing.ClassVar or typing.get_origin(hint) is typing.ClassVar) and declared is not None:
                return self.known(declared)
            return self.of(hint)
        if declared is not None and not isinstance(declared, types.MemberDescriptorType):
            return self.known(declared) if not callable(declared) else Code(name, owner)
        return self._assigned(cls, name)

    def _assigned(self, cls: type, name: str) -> Any:
        """What ``__init__`` assigns to a name."""
        if (cls, name) in self.reading or len(self.reading) >= _DEEPEST:
            return None
        self.reading.append((cls, name))
        made = [self._assigned_in(base, cls, name) for base in cls.__mro__ if "__init__" in vars(base)]
        self.reading.pop()
        return next((value for value in made if value is not None), None)

    def _assigned_in(self, base: type, cls: type, name: str) -> Any:
        function = vars(base)["__init__"]
        if not isinstance(function, types.FunctionType) or _tree(function) is None:
            return None
        env = self._arguments(Code(function, Of(cls)), [], {}, is_called=False)
        made = None
        for line in ast.walk(_tree(function)):
            if isinstance(line, ast.Assign) and all(isinstance(target, ast.Name) for target in line.targets):
                self.assign(line.targets[0], self.eval(line.value, env), env)
            if isinstance(line, ast.Assign | ast.AnnAssign):
                for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    places = [
                        i for i, each in enumerate(names) if isinstance(each, ast.Attribute) and each.attr == name
                    ]
                    if places and isinstance(line, ast.AnnAssign):
                        return self.of(resolved(ast.unparse(line.annotation), function.__module__))
                    if places:
                        value = self.eval(line.value, env)
                        made = self.unpack(value, len(names))[places[0]] if isinstance(target, ast.Tuple) else value
        return made

    def known(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            return Code(value.__func__, Known(value.__self__))
        return Known(value)

    # Calls

    def result(
        self,
        function: Any,
        owner: Any = None,
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
        base: type | None = None,
    ) -> Any:
        """What a function gives: what its annotation says, or where that is vague, what its code does."""
        function = inspect.unwrap(function)
        hint = resolved(function.__annotations__.get("return", Any), function.__module__)
        if hint is typing.Self and owner is not None:
            return owner
        if not is_vague(hint) or not is_of_library(function):
            return self.of(hint)
        return self.body(Code(function, owner, base=base), list(arguments), dict(keywords or {}))

    def body(self, code: Code, arguments: list[Any], keywords: dict[str, Any], *, is_called: bool = True) -> Any:
        tree = code.function if isinstance(code.function, ast.AST) else _tree(code.function)
        if tree is None or self.reading.count(tree) == 2 or len(self.reading) == _DEEPEST:
            return ANYTHING
        self.reading.append(tree)
        try:
            return self._body(code, tree, arguments, keywords, is_called)
        finally:
            self.reading.pop()

    def _body(self, code: Code, tree: Any, arguments: list[Any], keywords: dict[str, Any], is_called: bool) -> Any:
        env = self._arguments(code, arguments, keywords, is_called=is_called)
        if isinstance(tree, ast.Lambda):
            return self.eval(tree.body, env)
        returned: list[Any] = []
        yielded: list[Any] = []
        self.run(tree.body, {**env, "return ": returned, "yield ": yielded})
        if yielded:
            return Items(either(yielded))
        return either(returned) if returned else NONE

    def _arguments(self, code: Code, arguments: list[Any], keywords: dict[str, Any], *, is_called: bool) -> Env:
        """The names that a function begins with: what it is given, and where it is not called, what it may be given."""
        function = code.function
        tree = function if isinstance(function, ast.AST) else _tree(function)
        names = code.globals or getattr(function, "__globals__", {})
        module = str(names.get("__name__", ""))
        env: Env = {**code.closure, " globals": names, " module": module}
        if not isinstance(function, ast.AST):
            env |= _enclosed(self, function)
            qualified = function.__qualname__.split(".")
            holder = names.get(qualified[0]) if len(qualified) == 2 else None
            if isinstance(holder, type):
                env[" class"] = holder
        given = [*([code.owner] if code.owner is not None else []), *arguments]
        arguments_node = tree.args
        positional = [*arguments_node.posonlyargs, *arguments_node.args]
        defaults = dict(
            zip(
                [a.arg for a in positional][len(positional) - len(arguments_node.defaults) :],
                arguments_node.defaults,
                strict=True,
            )
        )
        defaults |= {
            a.arg: d
            for a, d in zip(arguments_node.kwonlyargs, arguments_node.kw_defaults, strict=True)
            if d is not None
        }
        if code.owner is not None:
            env[" self"] = code.owner
        for place, each in enumerate([*positional, *arguments_node.kwonlyargs]):
            if place < len(given) and each in positional:
                env[each.arg] = given[place]
            elif each.arg in keywords:
                env[each.arg] = keywords[each.arg]
            elif each.arg in defaults and is_called:
                env[each.arg] = self.eval(defaults[each.arg], env)
            elif each.annotation is not None:
                env[each.arg] = self.of(resolved(ast.unparse(each.annotation), module))
            else:
                env[each.arg] = ANYTHING
        if arguments_node.vararg:
            rest = given[len(positional) :]
            annotation = arguments_node.vararg.annotation
            env[arguments_node.vararg.arg] = (
                Fixed(tuple(rest))
                if rest or annotation is None or not code.owner
                else Items(self.of(resolved(ast.unparse(annotation), module)))
            )
        if arguments_node.kwarg:
            env[arguments_node.kwarg.arg] = Record(
                {name: (value, True) for name, value in keywords.items() if name not in env}
            )
        return env

    def call(self, callee: Any, arguments: list[Any] | None = None, keywords: dict[str, Any] | None = None) -> Any:
        """What a call gives."""
        arguments, keywords = arguments or [], keywords or {}
        if isinstance(callee, Either):
            return either([self.call(option, arguments, keywords) for option in callee.options])
        if isinstance(callee, Known):
            function = callee.value
            self.seen(function, arguments, keywords)
            special = SPECIAL.get(function) if isinstance(function, collections.abc.Hashable) else None
            if special is not None:
                return special(self, arguments, keywords)
            if isinstance(function, functools.partial):
                return self.call(Known(function.func), [*map(Known, function.args), *arguments], keywords)
            if isinstance(function, type):
                self.bind_variables(function)
                return Of(function)
            if isinstance(inspect.unwrap(function) if callable(function) else None, types.FunctionType):
                return self.result(function, None, arguments, keywords)
            module = str(getattr(function, "__module__", ""))
            return (
                Of(torch.Tensor)
                if module.startswith("torch") or "torch" in str(type(function))
                else NUMBERS
                if isinstance(function, np.ufunc) or module.startswith("numpy")
                else ANYTHING
            )
        if isinstance(callee, Code):
            if isinstance(callee.function, str):
                return self.method(callee.owner, callee.function, arguments, keywords)
            if callee.function is None:
                return callee.closure["returned"]
            if isinstance(callee.function, ast.AST):
                return self.body(callee, arguments, keywords)
            self.seen(callee.function, [callee.owner, *arguments], keywords)
            special = SPECIAL.get(callee.function)
            if special is not None:
                return special(self, [callee.owner, *arguments], keywords)
            return self.result(callee.function, callee.owner, arguments, keywords)
        return OPEN if callee == OPEN else ANYTHING

    def method(self, owner: Any, name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """A method of a built-in type."""
        if (
            isinstance(owner, Of)
            and isinstance(owner.kind, type)
            and issubclass(owner.kind, torch.Tensor | np.ndarray | np.generic)
        ):
            if name in ("tolist", "item"):
                return Listed()
            return Of(int) if name in ("dim", "numel") else owner
        if isinstance(owner, Record):
            return self._of_record(owner, name, arguments)
        if isinstance(owner, Of) and owner.kind in (str, bytes):
            return (
                Of(bool)
                if name.startswith(("is", "starts", "ends"))
                else Items(Of(str))
                if "split" in name or "partition" in name
                else Of(int)
                if name in ("find", "count", "index")
                else Of(str)
            )
        if isinstance(owner, Fixed | Items):
            return Of(int) if name in ("index", "count") else NONE
        return ANYTHING

    def _of_record(self, owner: Record, name: str, arguments: list[Any]) -> Any:
        values = [value for value, _ in owner.members.values()] + ([owner.rest] if owner.rest is not None else [])
        keys = [Known(each) for each in owner.members]
        if name == "items":
            if owner.rest is None:
                return Fixed(tuple(Fixed((Known(key), value)) for key, (value, _) in owner.members.items()))
            return Items(Fixed((either([*keys, owner.key]), either(values))))
        if name == "keys":
            return Fixed(tuple(keys)) if owner.rest is None else Items(owner.key)
        if name == "values":
            return Fixed(tuple(values)) if owner.rest is None else Items(either(values))
        if name in ("get", "pop", "setdefault"):
            key = arguments[0] if arguments else None
            if isinstance(key, Known) and key.value in owner.members:
                found = owner.members[key.value][0]
                if name == "pop":
                    del owner.members[key.value]
                return found
            return either([*(values or [ANYTHING]), *(arguments[1:] or ([NONE] if name == "get" else []))])
        if name == "copy":
            return Record(dict(owner.members), owner.rest, owner.key)
        if name == "update" and arguments and isinstance(arguments[0], Record):
            self.spread(owner, arguments[0])
        return NONE

    # Iteration

    def entries(self, value: Any) -> tuple[Any, ...] | None:
        """The entries of something whose number is known; otherwise None."""
        if isinstance(value, Fixed):
            return value.entries
        if isinstance(value, Record) and value.rest is None:
            return tuple(Known(name) for name in value.members)
        if isinstance(value, Known) and isinstance(value.value, tuple | list | dict | frozenset | set | str | range):
            listed = sorted(value.value) if isinstance(value.value, set | frozenset) else list(value.value)
            return tuple(self.known(each) for each in listed) if len(listed) <= _MOST_UNROLLED else None
        return None

    def entry(self, value: Any) -> Any:
        """One entry of something, whichever."""
        if isinstance(value, Either):
            return either([self.entry(option) for option in options(without_none(value))])
        if isinstance(value, Items):
            return value.of
        if isinstance(value, Listed):
            return Listed()
        entries = self.entries(value)
        if entries is not None:
            return either(entries) if entries else ANYTHING
        if isinstance(value, Record):
            return value.key
        if isinstance(value, Known) and isinstance(value.value, tuple | list | dict):
            return either(
                [Of(type(each)) if isinstance(each, str | int | float) else Known(each) for each in value.value]
            )
        if isinstance(value, Of):
            if value.kind is Any:
                return OPEN
            if value.kind is str:
                return Of(str)
            if value.kind is bytes:
                return Of(int)
            if isinstance(value.kind, type) and issubclass(value.kind, torch.Tensor | np.ndarray):
                return value
            found = self.member(value, "__iter__") if is_of_library(value.kind) else ANYTHING
            if isinstance(found, Code) and found.function != "__iter__":
                return self.entry(self.call(found))
            fields = getattr(value.kind, "_fields", None)
            if fields:
                return either([self.member(value, name) for name in fields])
        return ANYTHING

    def unpack(self, value: Any, count: int) -> list[Any]:
        if isinstance(value, Either):
            parts = [self.unpack(option, count) for option in options(without_none(value))]
            return [either(list(column)) for column in zip(*parts, strict=True)]
        entries = self.entries(value)
        if entries is not None and len(entries) == count:
            return list(entries)
        if isinstance(value, Of) and getattr(value.kind, "_fields", None):
            return [self.member(value, name) for name in value.kind._fields]
        return [self.entry(value)] * count

    # Statements

    def run(self, lines: Sequence[ast.stmt], env: Env) -> None:
        for line in lines:
            self.statement(line, env)

    def statement(self, line: ast.stmt, env: Env) -> None:
        if isinstance(line, ast.Return):
            env["return "].append(NONE if line.value is None else self.eval(line.value, env))
        elif isinstance(line, ast.Assign):
            value = self.eval(line.value, env)
            for target in line.targets:
                self.assign(target, value, env)
        elif isinstance(line, ast.AnnAssign):
            value = None if line.value is None else self.eval(line.value, env)
            declared = resolved(ast.unparse(line.annotation), env[" module"])
            self.assign(line.target, value if value is not None and is_vague(declared) else self.of(declared), env)
        elif isinstance(line, ast.AugAssign):
            self.assign(
                line.target, self.binary(self.eval(_loaded(line.target), env), self.eval(line.value, env), line.op), env
            )
        elif isinstance(line, ast.Expr):
            self.eval(line.value, env)
        elif isinstance(line, ast.For):
            self.each(line.target, self.eval(line.iter, env), env, lambda inner: self.run(line.body, inner))
        elif isinstance(line, ast.If):
            self.branches(line, env)
        elif isinstance(line, ast.While):
            self.run(line.body, env)
        elif isinstance(line, ast.With):
            for item in line.items:
                context = self.eval(item.context_expr, env)
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, context, env)
            self.run(line.body, env)
        elif isinstance(line, ast.Try):
            self.run([*line.body, *line.orelse, *line.finalbody], env)
            for handler in line.handlers:
                self.run(handler.body, env)
        elif isinstance(line, ast.FunctionDef):
            env[line.name] = Code(line, closure=env, globals=env[" globals"])
        elif isinstance(line, ast.Import | ast.ImportFrom):
            names: dict[str, Any] = {}
            exec(compile(ast.Module([line], []), "import", "exec"), names)
            env.update({name: Known(value) for name, value in names.items() if name != "__builtins__"})
        elif isinstance(line, ast.Delete):
            for target in line.targets:
                if isinstance(target, ast.Subscript):
                    owner, key = self.eval(target.value, env), self.eval(target.slice, env)
                    if isinstance(owner, Record) and isinstance(key, Known):
                        owner.members.pop(key.value, None)

    def branches(self, line: ast.If, env: Env) -> None:
        self.eval(line.test, env)
        taken, other = dict(env), dict(env)
        self.run(line.body, taken)
        self.run(line.orelse, other)
        ends = bool(line.body) and isinstance(line.body[-1], ast.Return | ast.Raise | ast.Continue)
        for name in {**taken, **other}:
            if name in ("return ", "yield ") or name.startswith(" "):
                continue
            ways = [way[name] for way in ((other,) if ends else (taken, other)) if name in way]
            if ways:
                env[name] = either(ways) if any(way is not ways[0] for way in ways) else ways[0]

    def each(self, target: ast.expr, value: Any, env: Env, do: Callable[[Env], None]) -> None:
        """Do something for each entry, or for any of them, where their number is not known."""
        entries = self.entries(value)
        for entry in entries if entries is not None else [self.entry(value)]:
            self.assign(target, entry, env)
            do(env)

    def assign(self, target: ast.expr, value: Any, env: Env) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            if any(isinstance(each, ast.Starred) for each in target.elts):
                parts: list[Any] = [
                    Items(self.entry(value)) if isinstance(each, ast.Starred) else self.entry(value)
                    for each in target.elts
                ]
            else:
                parts = self.unpack(value, len(target.elts))
            for each, part in zip(target.elts, parts, strict=True):
                self.assign(each.value if isinstance(each, ast.Starred) else each, part, env)
        elif isinstance(target, ast.Subscript):
            key = self.eval(target.slice, env)
            for owner in options(self.eval(target.value, env)):
                if isinstance(owner, Record):
                    put(owner, key, value)

    # Expressions

    def eval(self, node: ast.expr, env: Env) -> Any:
        """The value of an expression."""
        do = getattr(self, f"_{type(node).__name__}", None)
        return ANYTHING if do is None else do(node, env)

    def _Constant(self, node: ast.Constant, env: Env) -> Any:
        return Known(node.value)

    def _JoinedStr(self, node: ast.JoinedStr, env: Env) -> Any:
        return Of(str)

    def _Name(self, node: ast.Name, env: Env) -> Any:
        if node.id in env:
            return env[node.id]
        names = env[" globals"]
        if node.id in names:
            hint = names.get("__annotations__", {}).get(node.id)
            value = names[node.id]
            if hint is not None and not isinstance(value, str | int | float | tuple | list | Mapping | set | frozenset):
                return self.of(resolved(hint, env[" module"]))
            return self.known(value)
        return self.known(getattr(builtins, node.id)) if hasattr(builtins, node.id) else ANYTHING

    def _Attribute(self, node: ast.Attribute, env: Env) -> Any:
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "super":
            owner, holder = env.get(" self", ANYTHING), env.get(" class")
            kind = owner.kind if isinstance(owner, Of) else type(owner)
            order = kind.__mro__
            for cls in order[order.index(holder) + 1 :] if holder in order else order[1:]:
                if node.attr in cls.__dict__:
                    got = cls.__dict__[node.attr]
                    return Code(got, owner) if isinstance(got, types.FunctionType) else self._own(cls, node.attr, owner)
            return ANYTHING
        return self.member(self.eval(node.value, env), node.attr)

    def _NamedExpr(self, node: ast.NamedExpr, env: Env) -> Any:
        value = self.eval(node.value, env)
        self.assign(node.target, value, env)
        return value

    def _IfExp(self, node: ast.IfExp, env: Env) -> Any:
        self.eval(node.test, env)
        return either([self.eval(node.body, env), self.eval(node.orelse, env)])

    def _BoolOp(self, node: ast.BoolOp, env: Env) -> Any:
        *first, last = [self.eval(value, env) for value in node.values]
        if isinstance(node.op, ast.Or):
            return either([*map(without_none, first), last])
        return either([*(each for value in first for each in falsy(value)), last])

    def _Compare(self, node: ast.Compare, env: Env) -> Any:
        self.eval(node.left, env)
        sides = [self.eval(node.left, env), *(self.eval(each, env) for each in node.comparators)]
        arrays = [side for side in sides if isinstance(side, Of) and side.kind in (torch.Tensor, np.ndarray)]
        return arrays[0] if arrays else Of(bool)

    def _UnaryOp(self, node: ast.UnaryOp, env: Env) -> Any:
        value = self.eval(node.operand, env)
        if isinstance(node.op, ast.Not):
            return Of(bool)
        return Of(type(value.value)) if isinstance(value, Known) else value

    def _BinOp(self, node: ast.BinOp, env: Env) -> Any:
        return self.binary(self.eval(node.left, env), self.eval(node.right, env), node.op)

    def binary(self, left: Any, right: Any, op: ast.operator) -> Any:
        kinds = [typed(side) for side in (left, right)]
        for side in (left, right):
            if (
                isinstance(side, Of)
                and isinstance(side.kind, type)
                and issubclass(side.kind, torch.Tensor | np.ndarray)
            ):
                return side
        if isinstance(op, ast.BitOr) and isinstance(left, Record):
            made = Record(dict(left.members), left.rest, left.key)
            self.spread(made, right)
            return made
        if str in kinds:
            return Of(str)
        if isinstance(left, Items | Fixed) or isinstance(right, Items | Fixed) or tuple in kinds or list in kinds:
            if isinstance(op, ast.Mult):
                return Items(self.entry(left if isinstance(left, Items | Fixed) else right))
            parts = [self.entries(left), self.entries(right)]
            if None not in parts:
                return Fixed((*parts[0], *parts[1]))  # type: ignore[misc]
            return Items(either([self.entry(left), self.entry(right)]))
        if isinstance(op, ast.Div) and all(kind in (int, float, bool) for kind in kinds):
            return Of(float)
        if all(kind in (int, bool) for kind in kinds):
            return Of(int)
        if all(kind in (int, float, bool) for kind in kinds):
            return Of(float)
        return Of(float) if float in kinds else ANYTHING

    def _Subscript(self, node: ast.Subscript, env: Env) -> Any:
        return self.item(self.eval(node.value, env), node.slice, env)

    def item(self, owner: Any, place: ast.expr, env: Env) -> Any:
        if isinstance(owner, Either):
            return either([self.item(option, place, env) for option in options(without_none(owner))])
        if isinstance(place, ast.Slice):
            return (
                owner
                if not isinstance(owner, Fixed | Known)
                else Items(self.entry(owner))
                if typed(owner) is not str
                else Of(str)
            )
        key = self.eval(place, env)
        if isinstance(owner, Record):
            if isinstance(key, Known) and key.value in owner.members:
                return owner.members[key.value][0]
            return either(
                [value for value, _ in owner.members.values()] + ([owner.rest] if owner.rest is not None else [])
            )
        if isinstance(owner, Known) and isinstance(owner.value, Mapping):
            if isinstance(key, Known) and key.value in owner.value:
                return self.known(owner.value[key.value])
            return either([self.known(value) for value in owner.value.values()])
        entries = self.entries(owner)
        if entries and isinstance(key, Known) and isinstance(key.value, int) and key.value < len(entries):
            return entries[key.value]
        if isinstance(owner, Of) and is_of_library(owner.kind):
            found = self.member(owner, "__getitem__")
            return self.call(found, [key])
        if isinstance(owner, Of) and getattr(owner.kind, "_fields", None) and isinstance(key, Known):
            return self.member(owner, owner.kind._fields[key.value])
        return self.entry(owner)

    def _Tuple(self, node: ast.Tuple | ast.List | ast.Set, env: Env) -> Any:
        parts: list[Any] = []
        rest: list[Any] = []
        for each in node.elts:
            if isinstance(each, ast.Starred):
                value = self.eval(each.value, env)
                entries = self.starred(value)
                if entries is None:
                    rest.append(self.entry(value))
                else:
                    parts += entries
            else:
                parts.append(self.eval(each, env))
        return Items(either([*parts, *rest])) if rest else Fixed(tuple(parts))

    _List = _Set = _Tuple

    def starred(self, value: Any) -> list[Any] | None:
        """``*value``: of several options, entries that are not always there."""
        found = [self.entries(option) for option in options(without_none(value))]
        if None in found:
            return None
        listed = [entry for entries in found for entry in entries or ()]
        return listed if len(found) == 1 else [either([entry, MISSING]) for entry in listed]

    def _Dict(self, node: ast.Dict, env: Env) -> Any:
        made = Record()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self.spread(made, self.eval(value, env))
            else:
                put(made, self.eval(key, env), self.eval(value, env))
        return made

    def spread(self, made: Record, value: Any) -> None:
        """``{**value}``: what not every option has is not always there."""
        choices = [self.record(option) for option in options(without_none(value))]
        names = dict.fromkeys(name for choice in choices for name in choice.members)
        for name in names:
            found = [choice.members[name] for choice in choices if name in choice.members]
            always = len(found) == len(choices) and all(each for _, each in found)
            if not always and name in made.members:
                found, always = [*found, made.members[name]], made.members[name][1]
            made.members[name] = either([each for each, _ in found]), always
        rest = [choice.rest for choice in choices if choice.rest is not None]
        if rest:
            made.rest = either([*rest, *([] if made.rest is None else [made.rest])])

    def record(self, value: Any) -> Record:
        if isinstance(value, Record):
            return value
        if isinstance(value, Known) and isinstance(value.value, Mapping):
            return Record({name: (self.known(each), True) for name, each in value.value.items()})
        return Record(rest=ANYTHING)

    def _comprehended(self, node: Any, env: Env, do: Callable[[Env], None]) -> bool:
        """Go through a comprehension; whether each of its rounds is known."""
        counted = True

        def nested(generators: list[ast.comprehension], inner: Env) -> None:
            nonlocal counted
            if not generators:
                do(inner)
                return
            head = generators[0]
            value = self.eval(head.iter, inner)
            counted = counted and self.entries(value) is not None and not head.ifs

            def further(within: Env) -> None:
                for test in head.ifs:
                    self.eval(test, within)
                nested(generators[1:], within)

            self.each(head.target, value, inner, further)

        nested(node.generators, dict(env))
        return counted

    def _ListComp(self, node: ast.ListComp | ast.GeneratorExp, env: Env) -> Any:
        parts: list[Any] = []
        counted = self._comprehended(node, env, lambda inner: parts.append(self.eval(node.elt, inner)))
        return Fixed(tuple(parts)) if counted else Items(either(parts) if parts else ANYTHING)

    _GeneratorExp = _SetComp = _ListComp

    def _DictComp(self, node: ast.DictComp, env: Env) -> Any:
        made = Record()

        def each(inner: Env) -> None:
            put(made, self.eval(node.key, inner), self.eval(node.value, inner))

        if not self._comprehended(node, env, each):
            made.members = {name: (value, False) for name, (value, _) in made.members.items()}
        return made

    def _Lambda(self, node: ast.Lambda, env: Env) -> Any:
        return Code(node, closure=env, globals=env[" globals"])

    def _Yield(self, node: ast.Yield, env: Env) -> Any:
        env["yield "].append(NONE if node.value is None else self.eval(node.value, env))
        return NONE

    def _YieldFrom(self, node: ast.YieldFrom, env: Env) -> Any:
        env["yield "].append(self.entry(self.eval(node.value, env)))
        return NONE

    def _Starred(self, node: ast.Starred, env: Env) -> Any:
        return self.eval(node.value, env)

    def _Call(self, node: ast.Call, env: Env) -> Any:
        arguments: list[Any] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                arguments += self.starred(self.eval(each.value, env)) or [
                    Starred(self.entry(self.eval(each.value, env)))
                ]
            else:
                arguments.append(self.eval(each, env))
        keywords = {each.arg: self.eval(each.value, env) for each in node.keywords if each.arg is not None}
        return self.call(self.eval(node.func, env), arguments, keywords)


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


@functools.cache
def _tree(function: Any) -> Any:
    """The syntax tree of a function or lambda."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    if function.__name__ == "<lambda>":
        lines, _ = inspect.findsource(function)
        whole = ast.parse("".join(lines))
        at = function.__code__.co_firstlineno
        return next((n for n in ast.walk(whole) if isinstance(n, ast.Lambda) and n.lineno == at), None)
    return ast.parse(source).body[0]


def _enclosed(reader: Reader, function: Any) -> Env:
    """The names that a function takes from the function around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: reader.known(cell.cell_contents) for name, cell in cells if name != "__class__"}
