"""Several threads ask one model: each gets what it would have got alone, or is refused by name."""

import copy
import dataclasses
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from answers import ANSWERS, MOODS, OTHER, TEXT

import tinytf
from tinytf.errors import UsageError
from tinytf.model.turn import Turn, using
from tinytf.report import Report

Ask = Callable[[tinytf.Model], Any]

WITHOUT_A_PASS = ("Catalogue", "Checkup", "Grammar", "HeadWeights", "Info", "LessonList", "Neighbours", "Parameters",
                  "Positions", "Tokenized", "Weights", "Composition")  # fmt: skip
TIMED = ("CacheComparison",)
SLOW = ("Budget", "Card", "Probe", "SaeTraining", "TunedLens", "AblationSweep")


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


def numbers(trace: Any) -> dict[str, float]:
    """A sum for each step of a trace, recorded or derived."""
    return {name: float(tensor.double().sum()) for name, tensor in trace.items()}


def looks(model: tinytf.Model) -> list[float]:
    steps = model.stream(TEXT, max_tokens=3, looking=tinytf.Looking())
    return [float(step.attention.sum()) for step in steps if step.attention is not None]


DIRECT: dict[str, Ask] = {
    "trace": lambda model: numbers(model.trace(OTHER)),
    "traces": lambda model: [numbers(trace) for trace in model.traces([TEXT, "The dog"])],
    "grad": lambda model: numbers(model.grad(TEXT).grad),
    "forward": lambda model: float(model.transformer(torch.tensor([[464, 305, 1]])).detach().double().sum()),
    "stream": lambda model: [(step.id, step.rank) for step in model.stream(TEXT, max_tokens=4)],
    "samples": lambda model: model.samples(TEXT, 2, sampling=tinytf.Sampling(temperature=1.0), max_tokens=3),
    "looks": looks,
    "beams": lambda model: [step.running[0].score for step in model.beams(TEXT, beams=2, max_tokens=3) if step.running],
    "without": lambda model: numbers(model.without("L1H2").trace(TEXT)),
    "other numbers": lambda model: numbers(model.with_numbers({"L0.W_Q[0,3]": 0}).trace(TEXT)),
    "another name": lambda model: numbers(dataclasses.replace(model, name="another").trace(TEXT)),
    "a copy": lambda model: numbers(copy.deepcopy(model).trace(TEXT)),
}
QUESTIONS = {**{name: ask for name, ask in ANSWERS.items() if name not in (*WITHOUT_A_PASS, *TIMED, *SLOW)}, **DIRECT}


def answer(ask: Ask, model: tinytf.Model) -> str:
    found = ask(model)
    return json.dumps(found.to_dict() if isinstance(found, Report) else found, default=str)


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads that take turns a hundred times as often as usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("questions", "rounds"),
    [(QUESTIONS, 1), pytest.param({**ANSWERS, **QUESTIONS}, 3, marks=pytest.mark.exhaustive)],
    ids=["once", "all, more often"],
)
@pytest.mark.slow
def test_eight_threads_get_what_one_gets(model: tinytf.Model, questions: dict[str, Ask], rounds: int) -> None:
    chosen = {name: ask for name, ask in questions.items() if name not in (*WITHOUT_A_PASS, *TIMED)}
    alone = {name: answer(ask, model) for name, ask in chosen.items()}
    names = [*chosen] * rounds
    random.Random(0).shuffle(names)
    with ThreadPoolExecutor(8) as threads:
        together = [*threads.map(lambda name: answer(chosen[name], model), names)]
    assert [name for name, found in zip(names, together, strict=True) if found != alone[name]] == []


@pytest.mark.usefixtures("impatient")
def test_one_trace_is_read_by_eight_threads(model: tinytf.Model) -> None:
    alone, trace = numbers(model.trace(TEXT)), model.trace(TEXT)
    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(lambda _: numbers(trace), range(8))] == [alone] * 8


@pytest.mark.usefixtures("impatient")
def test_questions_about_two_models_do_not_wait_for_each_other(model: tinytf.Model) -> None:
    other = model.with_numbers({"L0.W_Q[0,3]": 1})
    other = dataclasses.replace(other, transformer=copy.deepcopy(other.transformer))
    pairs = [(model, other), (other, model)]
    alone = [first.diff(TEXT, second).to_dict() for first, second in pairs]
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda pair: pair[0].diff(TEXT, pair[1]).to_dict(), pairs * 2)] == alone * 2


BLOCKS: dict[str, Callable[[tinytf.Model], AbstractContextManager[Any]]] = {
    "edited": lambda model: model.edited({"L1.attn": 0.0}),
    "ablated": lambda model: model.ablated("L1H2"),
    "steered": lambda model: model.steered(add=model.steer(MOODS, at="L1.out")),
}
REFUSED = {**{name: DIRECT[name] for name in ("trace", "grad", "forward", "stream", "without", "a copy")},
           "score": lambda model: model.score(TEXT), "edited": lambda model: model.edited({"L0.attn": 0.0}).__enter__(),
           "lens": lambda model: model.lens(TEXT)}  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_one_thread_edits_for_it_alone_and_refuses_the_others(model: tinytf.Model, block: str) -> None:
    plain, steps, clone = numbers(model.trace(TEXT)), model.stream(TEXT, max_tokens=9), model.without("L0H0")
    trace, first = model.trace(TEXT), next(steps)
    with ThreadPoolExecutor(1) as other:
        of_clone = numbers(clone.trace(TEXT))
        with BLOCKS[block](model):
            edited = numbers(model.trace(TEXT))
            assert edited != plain
            for name, ask in REFUSED.items():
                error = other.submit(ask, model).exception()
                assert isinstance(error, UsageError), name
                assert "another thread edits this model" in str(error), name
            with pytest.raises(UsageError, match="another thread edits this model"):
                other.submit(lambda: trace["L0H3.scores"]).result()
            assert other.submit(lambda: numbers(clone.trace(TEXT))).result() == of_clone
            assert numbers(model.trace(TEXT)) == edited
        assert other.submit(lambda: numbers(model.trace(TEXT))).result() == plain
        rest = other.submit(lambda: [step.id for step in model.stream(TEXT, max_tokens=9)]).result()
        assert [first.id, *(step.id for step in steps)] == rest  # a generator goes from thread to thread


def test_a_block_that_another_thread_ends_is_over(model: tinytf.Model) -> None:
    plain, block = numbers(model.trace(TEXT)), model.ablated("L1H2")
    block.__enter__()
    with ThreadPoolExecutor(1) as other:
        other.submit(block.__exit__, None, None, None).result()
        assert other.submit(lambda: numbers(model.trace(TEXT))).result() == numbers(model.trace(TEXT)) == plain


def test_two_threads_that_would_wait_for_each_other_are_refused(model: tinytf.Model) -> None:
    second, both = copy.deepcopy(model), threading.Barrier(2, timeout=60)

    def inside(mine: tinytf.Model, other: tinytf.Model) -> Any:
        def metric(logits: torch.Tensor) -> torch.Tensor:
            both.wait()  # now each thread is at work on one model
            with pytest.raises(UsageError, match="another thread is using this model"):
                other.trace(TEXT)
            both.wait()
            return logits[-1, 0]

        return mine.grad(TEXT, metric=metric)

    with ThreadPoolExecutor(2) as threads:
        asked: list[Future[Any]] = [threads.submit(inside, *pair) for pair in ((model, second), (second, model))]
        assert numbers(asked[0].result().grad) == numbers(asked[1].result().grad)


def test_models_that_share_weights_take_turns_and_copies_do_not(model: tinytf.Model) -> None:
    sharing = (
        model.without("L1H2"), model.without("mask"), model.with_numbers({"L0.W_Q[0,3]": 0}),
        model.with_numbers({"√d": 1}), dataclasses.replace(model, name="another"),
    )  # fmt: skip
    assert all(one.transformer.turn.lock is model.transformer.turn.lock for one in sharing)
    assert copy.deepcopy(model).transformer.turn.lock is not model.transformer.turn.lock


def test_a_turn_that_ctrl_c_interrupts_is_over(model: tinytf.Model) -> None:
    class Interrupted:
        """A lock that is taken, and Ctrl-C comes before anybody knows."""

        def __init__(self) -> None:
            self.lock = threading.RLock()
            self.release = self.lock.release

        def acquire(self, *, blocking: bool) -> bool:
            self.lock.acquire(blocking=blocking)
            raise KeyboardInterrupt

    clone = copy.deepcopy(model)
    clone.transformer.turn = Turn(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        clone.trace(TEXT)
    lock = clone.transformer.turn.lock.lock
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: lock.acquire(blocking=False)).result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_that_is_forked_while_another_thread_asks_is_refused_and_does_not_wait(model: tinytf.Model) -> None:
    at_work, forked = threading.Event(), threading.Event()
    another = copy.deepcopy(model)  # which would wait for its turn below

    def metric(logits: torch.Tensor) -> torch.Tensor:
        at_work.set()
        assert forked.wait(60)
        return logits[-1, 0]

    def in_child(ask: Callable[[], Any]) -> int:
        child = os.fork()
        if not child:
            try:
                ask()
                os._exit(0)
            except UsageError as error:
                os._exit(2 if "was forked while another thread was using this model" in str(error) else 3)
            finally:
                os._exit(4)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with ThreadPoolExecutor(1) as other:
        asked = other.submit(lambda: model.grad(TEXT, metric=metric))
        assert at_work.wait(60)
        refused = in_child(lambda: model.trace(TEXT))
        with using(another.transformer):
            own = in_child(lambda: another.tokens(TEXT))  # of the thread that forks
        forked.set()
        asked.result()
    assert (refused, own, in_child(lambda: model.tokens(TEXT))) == (2, 0, 0)
    assert numbers(model.trace(TEXT))
