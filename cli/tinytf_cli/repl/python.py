"""``! expression``: Python that a user typed."""

import traceback
from typing import Any

from tinytf.errors import TinytfError, UsageError

_NAME = "<session>"


class PythonError(TinytfError):
    """What was raised by Python that a user typed."""


def evaluated(code: str, scope: dict[str, Any]) -> str | None:
    """The value of an expression, as Python writes it; None of a statement, which is carried out, and of None."""
    if not code:
        raise UsageError("behind ! comes Python", "such as: ! trace['L0H0.weights'].sum(-1)")
    try:
        value = _value(code, scope)
        if value is None:
            return None
        scope["_"] = value
        return repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        words = str(error) if not isinstance(error, SyntaxError) else str(error.msg)
        first = words.strip().splitlines()[0] if words.strip() else ""
        hint = "quit leaves the session" if isinstance(error, SystemExit) else "!! shows the traceback"
        raise PythonError(f"{type(error).__name__}: {first}".rstrip(": "), hint) from error


def _value(code: str, scope: dict[str, Any]) -> Any:
    try:
        compiled = compile(code, _NAME, "eval")
    except SyntaxError:
        pass
    else:
        return eval(compiled, scope)
    exec(compile(code, _NAME, "exec"), scope)
    return None


def traceback_of(error: BaseException | None) -> str:
    """The traceback of the last error; of Python that a user typed, from that Python on."""
    if error is None:
        raise UsageError("nothing has gone wrong yet")
    if isinstance(error, PythonError) and error.__cause__ is not None:
        error = error.__cause__
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        error = error.with_traceback(frames)
    return "".join(traceback.format_exception(error))
