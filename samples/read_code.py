"""What a function of the library returns, read from its code and the annotations that it meets.

``Reader().call(function)`` gives a value: an instance of a declared type, a record with named members, a list … It runs
no code of the function: both branches of a condition are taken, and a loop is gone through once.
"""

import ast
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
from read_syntax import Syntax
from read_values import (
    ANYTHING,
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
    either,
    options,
    without_none,
)  # fmt: skip

_MOST_UNROLLED = 100
_DEEPEST = 16


class Reader(Syntax):
    """Reads code. ``seen`` is told of every call of a known function: the function, its arguments and keywords."""

    def __init__(self, seen: Callable[[Any, list[Any], dict[str, Any]], None] | None = None) -> None:
        self.seen = seen or (lambda function, arguments, keywords: None)
        self.variables: dict[Any, Any] = {}
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
                of_values = int if origin is collections.Counter else arguments[1]
                return Record(rest=self.of(of_values), key=self.of(arguments[0]))
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

    def member(self, owner: Any, name: str) -> Any:
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
    ) -> Any:
        """What a function gives: what its annotation says, or where that is vague, what its code does."""
        function = inspect.unwrap(function)
        hint = resolved(function.__annotations__.get("return", Any), function.__module__)
        if hint is typing.Self and owner is not None:
            return owner
        if not is_vague(hint) or not is_of_library(function):
            return self.of(hint)
        return self.body(Code(function, owner), list(arguments), dict(keywords or {}))

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
