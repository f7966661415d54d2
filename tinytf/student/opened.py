"""A student's file: imported by its path, its class built in the size of a reference.

Opening a file runs it. That is what the command says it does, and the one place of tinytf that does it.
"""

import ast
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import nn

from tinytf.config import ModelConfig
from tinytf.errors import TinytfError, UsageError
from tinytf.files import SMALL, read_bytes
from tinytf.nearest import did_you_mean
from tinytf.report import Data
from tinytf.student.process import limited
from tinytf.student.sizes import SIZES, Sizes, sizes_of

HOW = "such as my_gpt.py:GPT"


class StudentError(TinytfError):
    """The file that is checked failed by itself."""


@dataclass(frozen=True)
class Line(Data):
    """A line of the student's code."""

    file: str
    number: int
    text: str


@dataclass(frozen=True)
class Student:
    """The module that ``name`` of a file makes; ``call`` is how it was built."""

    file: Path
    name: str
    module: nn.Module
    call: str
    again: "_Call"

    def with_dropout(self, rate: float) -> nn.Module | None:
        """This module, built with dropout; None where its constructor takes none."""
        again = replace(self.again, known={**self.again.known, "dropout": rate})
        with running(self.file):
            made, words = again.made()
            made.load_state_dict(self.module.state_dict())
        return None if f"{self.name}({words})" == self.call else made.eval()


def split_target(target: str) -> tuple[Path, str]:
    """``my_gpt.py:GPT`` as a path and a name; the name may be empty."""
    path, colon, name = target.rpartition(":")
    if not colon or not path or not (name.isidentifier() or not name):
        path, name = target, ""
    return Path(path), name


def parse_args(text: str) -> dict[str, Any]:
    """Keywords such as ``n_layer=4,bias=False``. Raises UsageError for what is not a literal."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args:
            raise ValueError
        return {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
    except (SyntaxError, ValueError, AssertionError, MemoryError, RecursionError):
        raise UsageError(f"--args {text!r} is no list of keywords", "such as --args 'n_layer=4,bias=False'") from None


@contextmanager
def running(file: Path, seed: int = 0) -> Iterator[None]:
    """A stretch in which the student's code runs, within its time; what it draws at random begins with ``seed``.

    Afterwards torch has the defaults of before. Raises StudentError, with file and line, for whatever its code raises,
    and for an exit.
    """
    torch.manual_seed(seed)
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        with limited():
            yield
    except TinytfError:
        raise
    except BaseException as error:
        frames = [(one.filename, one.lineno or 0) for one in reversed(traceback.extract_tb(error.__traceback__))]
        said = " ".join(str(error).split())
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
        if isinstance(error, SyntaxError) and error.filename:
            said = f"SyntaxError: {error.msg}, column {error.offset}"
            frames.insert(0, (error.filename, error.lineno or 0))
        elif isinstance(error, SystemExit):
            said = "it leaves Python (sys.exit) instead of returning"
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's is a RuntimeError
            said = "it takes more memory than is free"
        raise failed(file, said, frames) from error
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_grad_enabled(gradients)


def failed(file: Path, said: str, frames: Sequence[tuple[str, int]]) -> StudentError:
    """That the student's code failed, at the innermost of its lines, in a line and a hint with the line of the code."""
    own = next((line_of(file, *one) for one in frames if is_own(one[0], file.resolve().parent)), None)
    if own is None:
        hint = "nothing of this happened in its lines; --debug shows where" if frames else ""
        return StudentError(f"{file.name}: {said}", hint)
    return StudentError(f"{own.file}, line {own.number}: {said}", f"it says: {own.text}" if own.text else "")


def line_of(file: Path, at: str, number: int) -> Line:
    """A line of ``at``, a file beside that of the student's."""
    return Line(os.path.relpath(at, file.resolve().parent), number, linecache.getline(at, number).strip())


def is_own(filename: str, folder: Path) -> bool:
    """Whether a file is the student's: in the folder of the checked file, and of no installed package."""
    try:
        inside = Path(filename).resolve().relative_to(folder)
    except (ValueError, OSError):
        return False
    return not {"site-packages", "dist-packages"} & set(inside.parts)


def import_file(file: Path) -> ModuleType:
    """Run a file as a module of a private name, so that ``if __name__ == "__main__"`` is not run; of its package.

    Raises UsageError for a file that cannot be read, StudentError where its code fails.
    """
    try:
        source = read_bytes(file, SMALL)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}", HOW) from None
    folder, package = file.resolve().parent, ""
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder, package = folder.parent, f"{folder.name}.{package}"
    name = f"{package}_checked_{file.stem}"
    module = ModuleType(name)
    module.__file__ = str(file.resolve())
    module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
    sys.modules[name] = module  # dataclasses look their module up
    sys.path[:0] = [str(file.resolve().parent), str(folder)]
    with running(file):
        code: CodeType = compile(source, str(file.resolve()), "exec")
        exec(code, vars(module))
    return module


def open_student(target: str, config: ModelConfig, args: Mapping[str, Any]) -> Student:
    """The module that ``FILE:NAME`` makes in the size of ``config``; ``args`` win over what is guessed.

    Raises UsageError for a name that is not there or that needs an argument nobody knows, StudentError where the
    code of the file fails.
    """
    file, name = split_target(target)
    module = import_file(file)
    own = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    }
    if not name and len(own) == 1:
        (name,) = own
    elif not name:
        found = ", ".join(own) or "none"
        raise UsageError(f"{file} names no class", f"say which: {file}:NAME; its modules: {found}")
    made = vars(module).get(name)
    if isinstance(made, nn.Module):
        raise UsageError(
            f"{name} of {file} is built already, in a size of its own", f"name its class: {type(made).__name__}"
        )
    if not callable(made):
        raise UsageError(f"{file} has no class or function {name!r}", did_you_mean(name, own, otherwise=HOW))
    with running(file):
        build = _Call(made, module, sizes_of(config), args)
        result, words = build.made()
    if not isinstance(result, nn.Module):
        raise UsageError(f"{name} of {file} makes no torch module, but one of type {type(result).__name__}", HOW)
    return Student(file, name, result.eval().to("cpu", torch.float32), f"{name}({words})", build)


@dataclass(frozen=True)
class _Call:
    """A call of a constructor or factory of a file, with the sizes that are ``known``, and those that are ``given``."""

    function: Any
    module: ModuleType
    known: Mapping[str, Any]
    given: Mapping[str, Any]

    def made(self) -> tuple[Any, str]:
        """What the call makes, and its arguments in words."""
        parameters = list(inspect.signature(self.function).parameters.values())
        named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        if not named:
            return self._with_globals()
        keywords: dict[str, Any] = {}
        said: list[str] = []
        for one in named:
            value = self._value(one, alone=len([p for p in named if p.default is p.empty]) == 1)
            if value is inspect.Parameter.empty:
                raise UsageError(
                    f"{self.function.__name__} takes {one.name}, which the reference does not say",
                    f"say it with --args {one.name}=…",
                )
            if value is not one.default or one.name in self.given:
                keywords[one.name] = value
                said.append(f"{one.name}={value!r}")
        positional = [keywords.pop(one.name) for one in named if one.kind is one.POSITIONAL_ONLY]
        result = self.function(*positional, **keywords)
        for one in [*positional, *keywords.values()]:
            if isinstance(one, Sizes):
                said = [", ".join(f"{name}={value!r}" for name, value in {**one.asked, **one}.items())]
        return result, ", ".join(said)

    def _value(self, parameter: inspect.Parameter, alone: bool) -> Any:
        name = parameter.name
        if name in self.given:
            return self.given[name]
        if name in SIZES:
            return self.known[SIZES[name]]
        if parameter.default is not parameter.empty and not is_dataclass(parameter.default):
            return parameter.default
        kind = parameter.annotation if parameter.default is parameter.empty else type(parameter.default)
        if isinstance(kind, str):
            kind = vars(self.module).get(kind.strip("'\""), kind)
        if not is_dataclass(kind) and alone:
            kind = self._configuration() or kind
        if isinstance(kind, type) and is_dataclass(kind):
            names = [one.name for one in fields(kind) if one.init]
            known = {one: self.known[SIZES[one]] for one in names if one in SIZES}
            return kind(**{**known, **{one: value for one, value in self.given.items() if one in names}})
        if alone:
            base: dict[str, Any] = next((one for key, one in vars(self.module).items() if self._is_table(key, one)), {})
            return Sizes(self.known, {**{k: v for k, v in base.items() if k not in SIZES}, **self.given})
        return parameter.default

    def _configuration(self) -> type | None:
        """The one dataclass of the file whose fields are sizes."""
        kinds = [one for one in vars(self.module).values() if isinstance(one, type) and is_dataclass(one)]
        return next((one for one in kinds if {field.name for field in fields(one)} & set(SIZES)), None)

    @staticmethod
    def _is_table(name: str, value: Any) -> bool:
        return not name.startswith("__") and isinstance(value, dict) and bool(set(value) & set(SIZES))

    def _with_globals(self) -> tuple[Any, str]:
        """A constructor without parameters reads the sizes from names of the file: they are set first."""
        names = [name for name in vars(self.module) if name in SIZES and name.islower()]
        values = {name: self.known[SIZES[name]] for name in names} | dict(self.given)
        vars(self.module).update(values)
        return self.function(), ", ".join(f"{name} = {value!r} in the file" for name, value in values.items())
