"""Python in a session: the end of a statement of several lines, its value, and its traceback."""

import ast
import traceback
from codeop import compile_command
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tinytf.errors import TinytfError, UsageError
from tinytf_cli.repl.line import MORE, MORE_MARK, PYTHON, python_of
from tinytf_cli.screen import Terminated

Location = TypeVar("Location")
_FILENAME = "<session>"


class PythonError(TinytfError):
    """An error that the user's Python raised."""


def statements(lines: Iterable[tuple[Location, str]]) -> Iterator[tuple[Location, str]]:
    """Pairs of location and line, with the lines of one Python statement joined by line ends.

    As at Python's own prompt, codeop decides whether a statement needs more lines. A statement that may end does so at
    the first line that is not indented and does not continue it. An empty line inside a block does not end it.
    """
    source, pushed_back = iter(lines), deque[tuple[Location, str]]()
    while (entry := pushed_back.popleft() if pushed_back else next(source, None)) is not None:
        location, text = entry
        blank_lines = ""
        while PYTHON.match(text) and _may_continue(python_of(text)):
            following = pushed_back.popleft() if pushed_back else next(source, None)
            if following is None:
                break
            if not MORE.sub("", following[1]).strip():
                blank_lines += "\n"
            elif _belongs_to(text, following[1]):
                text, blank_lines = f"{text}\n{blank_lines}{following[1]}", ""
            else:
                pushed_back.append(following)
                break
        yield location, text


def is_unfinished(text: str) -> bool:
    """Whether the typed text ends in Python that needs more lines; an empty line ends a block."""
    lines = text.split("\n")
    *_, (_, last) = statements((number, line) for number, line in enumerate(lines))
    return PYTHON.match(last) is not None and _may_continue(python_of(last) + "\n" * (not lines[-1].strip()))


def script_lines(text: str) -> list[str]:
    """The lines of a statement as in a script: each after the first begins with ``...``."""
    first, *others = text.split("\n")
    return [first, *(line if MORE.match(line) else MORE_MARK + line for line in others)]


def _may_continue(code: str) -> bool:
    """Whether a statement needs or may take more lines; a block written in one line takes none."""
    try:
        if compile_command(code, _FILENAME, "single") is not None:
            return False
        return "\n" in code or compile_command(f"{code}\n", _FILENAME, "single") is None
    except (SyntaxError, ValueError, OverflowError):  # Python will report the error
        return False


def _belongs_to(statement: str, line: str) -> bool:
    """Whether a line belongs to a statement that may continue."""
    code = python_of(statement)
    if _may_continue(f"{code}\n") or line.startswith("...") or line[:1].isspace():
        return True
    try:
        compile_command(f"{code}\n{line}", _FILENAME, "single")
    except (SyntaxError, ValueError, OverflowError):
        return False
    return True


def evaluate(code: str, scope: dict[str, Any]) -> str | None:
    """Execute Python, and return the ``repr`` of its last expression; None if it has none or its value is None.

    Raises PythonError; KeyboardInterrupt, Terminated and SystemExit pass through.
    """
    try:
        tree = ast.parse(code, _FILENAME)
        last = [node for node in tree.body[-1:] if isinstance(node, ast.Expr)]
        tree.body = tree.body[: len(tree.body) - len(last)]
        exec(compile(tree, _FILENAME, "exec"), scope)
        value = eval(compile(ast.Expression(last[0].value), _FILENAME, "eval"), scope) if last else None
        if value is None:
            return None
        scope["_"] = value
        return repr(value)
    except (KeyboardInterrupt, Terminated, SystemExit):
        raise
    except BaseException as error:
        lines = str(error.msg if isinstance(error, SyntaxError) else error).strip()
        message = lines.splitlines()[0] if lines else ""
        raise PythonError(f"{type(error).__name__}: {message}".rstrip(": "), "!! shows the traceback") from error


def format_traceback(error: BaseException | None) -> str:
    """The traceback of the last error; for the user's Python, only its own frames."""
    if error is None:
        raise UsageError("there has been no error yet")
    if isinstance(error, PythonError) and error.__cause__ is not None:
        error = error.__cause__
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        error = error.with_traceback(frames)
    return "".join(traceback.format_exception(error))
