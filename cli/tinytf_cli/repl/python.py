"""``! expression``: Python with the trace and the model in scope."""

import builtins
import traceback
from typing import TYPE_CHECKING, Any

from tinytf.errors import TinytfError, UsageError
from tinytf.text.printable import printable
from tinytf_cli.repl.verbs import answer
from tinytf_cli.views.blocks import Line

if TYPE_CHECKING:
    from tinytf_cli.repl.session import Session

_NAME = "<session>"


class PythonError(TinytfError):
    """What was raised by Python that a user typed."""


def run(session: "Session", code: str) -> None:
    """Evaluate an expression and show its value, or carry out a statement; ``!`` again shows the last traceback."""
    if not code:
        raise UsageError("behind ! comes Python", "such as: ! trace['L0H0.weights'].sum(-1)")
    if code == "!":
        _show(session, _traceback(session))
        return
    scope = _scope(session)
    try:
        value = _value(code, scope)
        if value is not None:
            scope["_"] = value
            _show(session, repr(value))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        words = str(error) if not isinstance(error, SyntaxError) else str(error.msg)
        first = words.strip().splitlines()[0] if words.strip() else ""
        hint = "quit leaves the session" if isinstance(error, SystemExit) else "!! shows the traceback"
        raise PythonError(f"{type(error).__name__}: {first}".rstrip(": "), hint) from error


def _value(code: str, scope: dict[str, Any]) -> Any:
    """The value of an expression; None of a statement, which is carried out."""
    try:
        compiled = compile(code, _NAME, "eval")
    except SyntaxError:
        pass
    else:
        return eval(compiled, scope)
    exec(compile(code, _NAME, "exec"), scope)
    return None


def _scope(session: "Session") -> dict[str, Any]:
    """The names that Python sees; what a user assigned stays."""
    import numpy as np
    import torch

    scope = session.scope
    scope.update(torch=torch, np=np, session=session, model=session.model, __builtins__=builtins)
    if session.run is not None:
        scope["trace"] = session.trace
    else:
        scope.pop("trace", None)
    return scope


def _traceback(session: "Session") -> str:
    error = session.last_error
    if error is None:
        raise UsageError("nothing has gone wrong yet")
    if isinstance(error, PythonError) and error.__cause__ is not None:
        cause = error.__cause__
        frames = cause.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        return "".join(traceback.format_exception(type(cause), cause, frames))
    return "".join(traceback.format_exception(error))


def _show(session: "Session", text: str) -> None:
    lines = [Line(printable(line, spaces=False), single=True) for line in text.splitlines() or [""]]
    session.show(answer("python", {"text": text}, *lines))
