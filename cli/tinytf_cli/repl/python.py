"""Python in a session: where a statement of several lines ends, what it gives, and where it failed."""

import ast
import traceback
from codeop import compile_command
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tinytf.errors import TinytfError, UsageError
from tinytf_cli.repl.line import MORE, MORE_MARK, PYTHON, python_of
from tinytf_cli.screen import Terminated

Where = TypeVar("Where")
_FILE = "<session>"


class PythonError(TinytfError):
    """An error that the user's Python raised."""


def statements(lines: Iterable[tuple[Where, str]]) -> Iterator[tuple[Where, str]]:
    """Lines after their places, those of one statement of Python joined by line ends.

    As at Python's own prompt, codeop says whether more belongs to a statement; one that could end does so at the first
    line that neither is indented nor goes on with it. An empty line inside a block does not end it.
    """
    source, held = iter(lines), deque[tuple[Where, str]]()
    while (one := held.popleft() if held else next(source, None)) is not None:
        where, text = one
        gap = ""
        while PYTHON.match(text) and _goes_on(python_of(text)):
            after = held.popleft() if held else next(source, None)
            if after is None:
                break
            if not MORE.sub("", after[1]).strip():
                gap += "\n"
            elif _joins(text, after[1]):
                text, gap = f"{text}\n{gap}{after[1]}", ""
            else:
                held.append(after)
                break
        yield where, text


def unfinished(text: str) -> bool:
    """Whether what is being typed ends in Python that needs more lines; an empty line ends a block."""
    lines = text.split("\n")
    *_, (_, last) = statements((number, line) for number, line in enumerate(lines))
    return PYTHON.match(last) is not None and _goes_on(python_of(last) + "\n" * (not lines[-1].strip()))


def spelled(text: str) -> list[str]:
    """The lines of a statement as a script has them: those after the first with a mark."""
    first, *others = text.split("\n")
    return [first, *(line if MORE.match(line) else MORE_MARK + line for line in others)]


def _goes_on(code: str) -> bool:
    """Whether more lines belong to a statement, or may belong to it; not to a block that stands in one line."""
    try:
        if compile_command(code, _FILE, "single") is not None:
            return False
        return "\n" in code or compile_command(f"{code}\n", _FILE, "single") is None
    except (SyntaxError, ValueError, OverflowError):  # Python will say what is wrong
        return False


def _joins(text: str, line: str) -> bool:
    """Whether a line belongs to a statement that goes on."""
    code = python_of(text)
    if _goes_on(f"{code}\n") or line.startswith("...") or line[:1].isspace():
        return True
    try:
        compile_command(f"{code}\n{line}", _FILE, "single")
    except (SyntaxError, ValueError, OverflowError):
        return False
    return True


def evaluated(code: str, scope: dict[str, Any]) -> str | None:
    """Execute Python: the ``repr`` of the expression that it ends in, None where there is none or it is None.

    Raises PythonError; KeyboardInterrupt, Terminated and SystemExit pass.
    """
    try:
        tree = ast.parse(code, _FILE)
        last = [one for one in tree.body[-1:] if isinstance(one, ast.Expr)]
        tree.body = tree.body[: len(tree.body) - len(last)]
        exec(compile(tree, _FILE, "exec"), scope)
        value = eval(compile(ast.Expression(last[0].value), _FILE, "eval"), scope) if last else None
        if value is None:
            return None
        scope["_"] = value
        return repr(value)
    except (KeyboardInterrupt, Terminated, SystemExit):
        raise
    except BaseException as error:
        words = str(error.msg if isinstance(error, SyntaxError) else error).strip()
        first = words.splitlines()[0] if words else ""
        raise PythonError(f"{type(error).__name__}: {first}".rstrip(": "), "!! shows the traceback") from error


def traceback_of(error: BaseException | None) -> str:
    """The traceback of the last error; of the user's Python, only its own frames."""
    if error is None:
        raise UsageError("nothing has gone wrong yet")
    if isinstance(error, PythonError) and error.__cause__ is not None:
        error = error.__cause__
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        error = error.with_traceback(frames)
    return "".join(traceback.format_exception(error))
