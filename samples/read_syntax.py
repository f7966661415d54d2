"""Statements and expressions, as read_code.py goes through them."""

import ast
import builtins
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from read_hints import is_of_library, is_vague, resolved
from read_values import (
    ANYTHING,
    MISSING,
    NONE,
    Code,
    Either,
    Env,
    Fixed,
    Items,
    Known,
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


class Syntax:
    """A statement changes the names ``env``, an expression gives a value. Members and calls are the ``Reader``'s."""

    entries: Any
    entry: Any
    unpack: Any
    member: Any
    call: Any
    known: Any
    of: Any
    _own: Any

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
