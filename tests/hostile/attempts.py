"""A class of cases in a process of its own: one that ends it, or never returns, is counted, and the next goes on."""

import multiprocessing
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from hostile.watchdog import PATIENCE, Tried, tried, watched

Said = tuple[str, tuple[str, ...]]
"""What a case is about, and its words."""


def _work(name: str, count: int, seed: int, first: int, answers: Connection) -> None:
    cases = import_module(f"hostile.{name}").cases(count, seed)
    with watched():
        for case in islice(cases, first, None):
            answers.send((case.about, case.words))
            answers.send(tried(case))
    answers.send(None)


def attempt(name: str, count: int, seed: int) -> list[tuple[Said, Tried]]:
    """Every case of a class with what became of it; a process that ends, or does not return, is a fault of its case."""
    found: list[tuple[Said, Tried]] = []
    while len(found) < count:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        worker = multiprocessing.get_context("spawn").Process(
            target=_work, args=(name, count, seed, len(found), theirs)
        )
        worker.start()
        theirs.close()
        try:
            while (case := _next(ours)) is not None:
                try:
                    if (answer := _next(ours, 2 * PATIENCE)) is None:
                        break
                except TimeoutError:
                    found.append((case, Tried("did not return", True, PATIENCE)))
                    break
                except EOFError:
                    worker.join()
                    found.append((case, Tried(f"the process ended: {worker.exitcode}")))
                    break
                found.append((case, answer))
            else:
                return found
        except EOFError:
            raise SystemExit(f"{name}: its cases cannot be made") from None
        finally:
            worker.kill()
            worker.join()
    return found


def _next(answers: Connection, seconds: float = 600) -> Any:
    if not answers.poll(seconds):
        raise TimeoutError
    return answers.recv()
