"""Import a student's file by its path, and build its class in the size of a reference.

Opening a file runs its code, which nothing else in tinytf does, and which the command announces.
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

from tinytf.check.process import time_limit
from tinytf.check.sizes import SIZES, Sizes, sizes_of
from tinytf.config import ModelConfig
from tinytf.errors import TinytfError, UsageError
from tinytf.files import SMALL, read_bytes
from tinytf.nearest import did_you_mean
from tinytf.report import Data

EXAMPLE = "such as my_gpt.py:GPT"


class StudentError(TinytfError):
    """The student's code failed."""


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
    builder: "_Builder"

    def with_dropout(self, rate: float) -> nn.Module | None:
        """The module built again with dropout, same weights; None where its constructor takes no dropout."""
        builder = replace(self.builder, sizes={**self.builder.sizes, "dropout": rate})
        with running(self.file):
            module, words = builder.build()
            module.load_state_dict(self.module.state_dict())
        return None if f"{self.name}({words})" == self.call else module.eval()


def split_target(target: str) -> tuple[Path, str]:
    """``my_gpt.py:GPT`` as a path and a name; the name may be empty."""
    path, colon, name = target.rpartition(":")
    if not colon or not path or not (name.isidentifier() or not name):
        path, name = target, ""
    return Path(path), name


def parse_args(text: str) -> dict[str, Any]:
    """Keywords such as ``n_layer=4,bias=False``. Raises UsageError for values that are not literals."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args:
            raise ValueError
        return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    except (SyntaxError, ValueError, AssertionError, MemoryError, RecursionError):
        raise UsageError(
            f"--args {text!r} is not a list of keywords", "such as --args 'n_layer=4,bias=False'"
        ) from None


@contextmanager
def running(file: Path, seed: int = 0) -> Iterator[None]:
    """Run the student's code in this context, within its time limit and from the random ``seed``.

    Restores torch's defaults afterwards. Raises StudentError, with file and line, for whatever the code raises, and
    for an exit.
    """
    torch.manual_seed(seed)
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        with time_limit():
            yield
    except TinytfError:
        raise
    except BaseException as error:
        frames = [(frame.filename, frame.lineno or 0) for frame in reversed(traceback.extract_tb(error.__traceback__))]
        message = " ".join(str(error).split())
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
        if isinstance(error, SyntaxError) and error.filename:
            message = f"SyntaxError: {error.msg}, column {error.offset}"
            frames.insert(0, (error.filename, error.lineno or 0))
        elif isinstance(error, SystemExit):
            message = "it exits Python (sys.exit) instead of returning"
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's is a RuntimeError
            message = "it needs more memory than is free"
        raise student_error(file, message, frames) from error
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_grad_enabled(gradients)


def student_error(file: Path, message: str, frames: Sequence[tuple[str, int]]) -> StudentError:
    """The error for a failure of the student's code: names its innermost line, and quotes it in the hint."""
    line = next((line_of(file, *frame) for frame in frames if is_own(frame[0], file.resolve().parent)), None)
    if line is None:
        hint = "none of its lines was running; --debug shows where it failed" if frames else ""
        return StudentError(f"{file.name}: {message}", hint)
    return StudentError(f"{line.file}, line {line.number}: {message}", f"it says: {line.text}" if line.text else "")


def line_of(file: Path, path: str, number: int) -> Line:
    """Line ``number`` of the file at ``path``, which is named relative to the student's file."""
    return Line(os.path.relpath(path, file.resolve().parent), number, linecache.getline(path, number).strip())


def is_own(filename: str, folder: Path) -> bool:
    """Whether a file is the student's own: in the folder of the checked file, and not of an installed package."""
    try:
        inside = Path(filename).resolve().relative_to(folder)
    except (ValueError, OSError):
        return False
    return not {"site-packages", "dist-packages"} & set(inside.parts)


def import_file(file: Path) -> ModuleType:
    """Run a file as a module of its package, under a private name, so that ``if __name__ == "__main__"`` is skipped.

    Raises UsageError for a file that cannot be read, StudentError where its code fails.
    """
    try:
        source = read_bytes(file, SMALL)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}", EXAMPLE) from None
    folder, package = file.resolve().parent, ""
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder, package = folder.parent, f"{folder.name}.{package}"
    name = f"{package}_checked_{file.stem}"
    module = ModuleType(name)
    module.__file__ = str(file.resolve())
    module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
    sys.modules[name] = module  # dataclasses look up their module
    sys.path[:0] = [str(file.resolve().parent), str(folder)]
    with running(file):
        code: CodeType = compile(source, str(file.resolve()), "exec")
        exec(code, vars(module))
    return module


def open_student(target: str, config: ModelConfig, args: Mapping[str, Any]) -> Student:
    """Build ``FILE:NAME`` in the size of ``config``; ``args`` override what is guessed.

    Raises UsageError for a name that does not exist or needs an argument that cannot be guessed, StudentError where
    the code of the file fails.
    """
    file, name = split_target(target)
    source = import_file(file)
    modules = {
        key: value
        for key, value in vars(source).items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == source.__name__
    }
    if not name and len(modules) == 1:
        (name,) = modules
    elif not name:
        listed = ", ".join(modules) or "none"
        raise UsageError(f"{file} names no class", f"say which: {file}:NAME; its modules: {listed}")
    constructor = vars(source).get(name)
    if isinstance(constructor, nn.Module):
        raise UsageError(
            f"{name} of {file} is already an instance, with sizes of its own",
            f"name its class: {type(constructor).__name__}",
        )
    if not callable(constructor):
        raise UsageError(f"{file} has no class or function {name!r}", did_you_mean(name, modules, otherwise=EXAMPLE))
    with running(file):
        builder = _Builder(constructor, source, sizes_of(config), args)
        module, words = builder.build()
    if not isinstance(module, nn.Module):
        raise UsageError(f"{name} of {file} makes no torch module but a value of type {type(module).__name__}", EXAMPLE)
    return Student(file, name, module.eval().to("cpu", torch.float32), f"{name}({words})", builder)


@dataclass(frozen=True)
class _Builder:
    """Calls a constructor or factory of a file with ``sizes`` of the reference; ``arguments`` override them."""

    function: Any
    module: ModuleType
    sizes: Mapping[str, Any]
    arguments: Mapping[str, Any]

    def build(self) -> tuple[Any, str]:
        """The object that the call makes, and its arguments as text."""
        parameters = list(inspect.signature(self.function).parameters.values())
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if not named:
            return self._with_globals()
        keywords: dict[str, Any] = {}
        described: list[str] = []
        for parameter in named:
            value = self._value(parameter, is_only_required=len([p for p in named if p.default is p.empty]) == 1)
            if value is inspect.Parameter.empty:
                raise UsageError(
                    f"{self.function.__name__} takes {parameter.name}, which the reference does not have",
                    f"set it with --args {parameter.name}=…",
                )
            if value is not parameter.default or parameter.name in self.arguments:
                keywords[parameter.name] = value
                described.append(f"{parameter.name}={value!r}")
        positional = [keywords.pop(p.name) for p in named if p.kind is p.POSITIONAL_ONLY]
        built = self.function(*positional, **keywords)
        for value in [*positional, *keywords.values()]:
            if isinstance(value, Sizes):
                described = [", ".join(f"{name}={value!r}" for name, value in {**value.used, **value}.items())]
        return built, ", ".join(described)

    def _value(self, parameter: inspect.Parameter, is_only_required: bool) -> Any:
        name = parameter.name
        if name in self.arguments:
            return self.arguments[name]
        if name in SIZES:
            return self.sizes[SIZES[name]]
        if parameter.default is not parameter.empty and not is_dataclass(parameter.default):
            return parameter.default
        kind = parameter.annotation if parameter.default is parameter.empty else type(parameter.default)
        if isinstance(kind, str):
            kind = vars(self.module).get(kind.strip("'\""), kind)
        if not is_dataclass(kind) and is_only_required:
            kind = self._configuration() or kind
        if isinstance(kind, type) and is_dataclass(kind):
            names = [field.name for field in fields(kind) if field.init]
            sizes = {name: self.sizes[SIZES[name]] for name in names if name in SIZES}
            return kind(**{**sizes, **{name: value for name, value in self.arguments.items() if name in names}})
        if is_only_required:
            base: dict[str, Any] = next((v for key, v in vars(self.module).items() if self._is_table(key, v)), {})
            return Sizes(self.sizes, {**{k: v for k, v in base.items() if k not in SIZES}, **self.arguments})
        return parameter.default

    def _configuration(self) -> type | None:
        """The first dataclass of the file with fields that are sizes."""
        kinds = [kind for kind in vars(self.module).values() if isinstance(kind, type) and is_dataclass(kind)]
        return next((kind for kind in kinds if {field.name for field in fields(kind)} & set(SIZES)), None)

    @staticmethod
    def _is_table(name: str, value: Any) -> bool:
        return not name.startswith("__") and isinstance(value, dict) and bool(set(value) & set(SIZES))

    def _with_globals(self) -> tuple[Any, str]:
        """Set the file's global sizes, then call its constructor, which takes no parameters and reads them."""
        names = [name for name in vars(self.module) if name in SIZES and name.islower()]
        values = {name: self.sizes[SIZES[name]] for name in names} | dict(self.arguments)
        vars(self.module).update(values)
        return self.function(), ", ".join(f"{name} = {value!r} in the file" for name, value in values.items())
