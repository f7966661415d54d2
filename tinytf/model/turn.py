"""Whose turn it is on a model: one thread at a time runs its modules and hooks them.

Hooks, the mode of a module and the choice of its kernels belong to the module, not to a thread: hooks would see, and
change, the passes of other threads. So whoever hooks or runs a Transformer does it inside ``using``. A thread waits for
another one that is at work, which comes to an end. It is refused where the wait might have none: while a ``with`` block
of a user edits the model in another thread, and where it would wait for one model with another in hand.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

import torch

from tinytf.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")


class _Held(threading.local):
    """The locks that a thread holds, each as often as it uses a model of it."""

    def __init__(self) -> None:
        self.locks: list[Any] = []


_held = _Held()
_locks: WeakSet[Any] = WeakSet()
_lost: WeakSet[Any] = WeakSet()
"""All locks, and in a forked process those that threads of its parent held, which nobody will release there."""


class Turn:
    """The ``lock`` of a model, the same one for all models that share weights.

    ``editor`` is the thread in which a block of a user edits this model.
    """

    def __init__(self, lock: Any = None) -> None:
        self.lock = threading.RLock() if lock is None else lock
        _locks.add(self.lock)
        self.editor: int | None = None


_elsewhere = Turn()
"""Modules that are no Transformer share one turn: their seed and their switches belong to the process."""


def _turn_of(model: Any) -> Turn:
    turn = getattr(model, "turn", None)
    return turn if isinstance(turn, Turn) else _elsewhere


@contextmanager
def using(model: Any, *, patient: bool = False) -> Iterator[None]:
    """Context in which no other thread uses the model: a Transformer or, all as one, whatever runs elsewhere.

    Raises UsageError while a block of another thread edits the model, and for a model without weights. A thread that
    uses another model does not wait, unless it is ``patient``, but raises UsageError.
    """
    if getattr(model, "outlines", ()):
        raise UsageError("this model describes a report that was pickled, without its weights", "open the model again")
    turn, held = _turn_of(model), _held.locks
    depth, has_it = len(held), turn.lock in held
    if turn.lock in _lost:
        raise UsageError(
            "this process was forked while another thread was using this model", "open the model in this process"
        )
    try:
        if not has_it and not turn.lock.acquire(blocking=patient or not held):
            raise UsageError(
                "another thread is using this model, and two that wait for each other would wait for ever",
                "ask one question after the other, or pass both models to one question",
            )
        held.append(turn.lock)
        if turn.editor not in (None, threading.get_ident()):
            raise UsageError(
                "another thread edits this model, in a with block that is still open",
                "ask inside that block, after it, or another model, such as model.without(…)",
            )
        yield
    finally:
        del held[depth:]
        if not has_it:
            with suppress(RuntimeError):  # whether it was taken, an interrupt may have kept from being said
                turn.lock.release()


@contextmanager
def using_all(models: Iterable[Any]) -> Iterator[None]:
    """Context in which no other thread uses any of the models. All threads take them in one order."""
    patient = not _held.locks
    with ExitStack() as stack:
        for model in sorted(models, key=lambda model: id(_turn_of(model).lock)):
            stack.enter_context(using(model, patient=patient))
        yield


def in_turn(function: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """The function of a model, its first argument, that runs inside ``using``; compiled, it runs alone."""

    @wraps(function)
    def run(model: M, *args: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(model, *args, **options)
        with using(model):
            return function(model, *args, **options)

    return run  # type: ignore[return-value]  # which it is, called by position


def _after_fork() -> None:
    """Note which locks belong to threads that the forked process does not have."""
    for lock in list(_locks):
        if lock.acquire(blocking=False):
            lock.release()
        else:
            _lost.add(lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
