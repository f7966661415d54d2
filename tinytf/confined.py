"""Limits for a process that runs untrusted work, and the protocol of its answer.

An answer is JSON after its length. The untrusted work may control the process, so nothing that it sends is executed or
trusted: an answer is data of the declared type, or the kind, message and hint of an error.
"""

import json
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import IO, Any, Literal, get_args, get_origin, get_type_hints

from tinytf.errors import TinytfError

ANSWER = 128 * 2**20
"""The longest answer, in bytes."""
_LENGTH = 8


class BadAnswer(Exception):
    """The process sent something that is not an answer, or not of the declared type."""


def limit(memory: int, seconds: int | None = None) -> None:
    """Cap this process at ``memory`` more bytes from now on, and end it after ``seconds`` more of processor time.

    Does nothing on systems without ``setrlimit``, such as Windows.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        limits = {resource.RLIMIT_CORE: 0}
        if seconds is not None:
            limits[resource.RLIMIT_CPU] = int(time.process_time()) + 1 + seconds
        for kind, soft in limits.items():
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
        with open("/proc/self/statm") as file:  # pages of the address space
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + memory, resource.getrlimit(resource.RLIMIT_AS)[1]))


def write_answer(stream: IO[bytes], work: Callable[[], object]) -> None:
    """Send the result of ``work``, made of plain data and dataclasses, or the error that it raises."""
    try:
        answer = json.dumps({"value": work()}, default=_members).encode()
    except MemoryError:
        answer = _error("MemoryError", "", "")
    except TinytfError as error:
        kind = next(base for base in type(error).__mro__ if base.__init__ is TinytfError.__init__)  # type: ignore[misc]
        answer = _error(kind.__name__, error.message, error.hint)
    except BaseException as error:  # a bug of tinytf
        answer = _error("RuntimeError", f"{type(error).__name__}: {error}", traceback.format_exc())
    stream.write(len(answer).to_bytes(_LENGTH, "big") + answer)
    stream.flush()


def _members(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _error(kind: str, message: str, hint: str) -> bytes:
    return json.dumps({"error": kind, "message": message, "hint": hint}).encode()


def read_answer(stream: IO[bytes], work: Callable[..., Any]) -> Any:
    """Read the result of ``work`` from the other process, checked against its annotation; plain data without one.

    Raises the error raised there; a bug of tinytf becomes a RuntimeError with the traceback as a note. Raises EOFError
    for no answer at all, and BadAnswer for one that ``write_answer`` would not have sent.
    """
    start = stream.read(_LENGTH)
    if not start:
        raise EOFError
    length = int.from_bytes(start, "big")
    if length > ANSWER:
        raise BadAnswer(f"its answer has {length:,} bytes; the limit is {ANSWER:,}")
    answer = stream.read(length)
    if len(answer) < length:
        raise BadAnswer("its answer is cut short")
    try:
        match json.loads(answer):  # noqa: TID251 - files.py is not below this module
            case {"value": value}:
                return _convert(get_type_hints(work).get("return", object), value)
            case {"error": str(kind), "message": str(message), "hint": str(hint)}:
                error = _rebuild_error(kind, message, hint)
            case _:
                raise ValueError
    except (ValueError, RecursionError):
        raise BadAnswer("it sent something that is not an answer") from None
    raise error


def _rebuild_error(kind: str, message: str, hint: str) -> Exception:
    if kind == "MemoryError":
        return MemoryError()
    if kind == "RuntimeError":
        fault = RuntimeError(message)
        fault.add_note(hint)
        return fault
    kinds = [TinytfError]
    for base in kinds:
        if base.__name__ == kind and base.__init__ is TinytfError.__init__:
            return base(message, hint)
        kinds += base.__subclasses__()
    raise ValueError


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    """The member types of a dataclass or named tuple; empty for any other type."""
    names = {field.name for field in fields(kind)} if is_dataclass(kind) else getattr(kind, "_fields", ())
    return {name: hint for name, hint in get_type_hints(kind).items() if name in names} if names else {}


def _convert(kind: Any, value: Any) -> Any:
    """Convert plain data to a value of a type. Raises ValueError for data of another shape."""
    if kind is object or (type(value) is kind and kind in (str, int, float, bool, NoneType)):
        return value
    if kind is float and type(value) is int:
        return float(value)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal and value in parts:
        return value
    if origin is UnionType:
        kind = NoneType if value is None else next(part for part in parts if part is not NoneType)
        return _convert(kind, value)
    if isinstance(value, list) and (origin is list or (origin is tuple and parts[-1] is Ellipsis)):
        entry = parts[0]
        return origin(value if set(map(type, value)) == {entry} else [_convert(entry, item) for item in value])
    if isinstance(value, list) and origin is tuple:
        if tuple(map(type, value)) == parts:
            return tuple(value)
        return tuple(_convert(part, item) for part, item in zip(parts, value, strict=True))
    hints = _hints(kind)
    if isinstance(value, list) and hints:  # of a named tuple
        value = dict(zip(hints, value, strict=True))
    if isinstance(value, dict) and hints.keys() == value.keys() != set():
        return kind(**{name: _convert(hints[name], member) for name, member in value.items()})
    raise ValueError
