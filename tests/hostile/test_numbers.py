"""Every number that can be typed has bounds that click knows, and whatever is typed for it is no fault of tinytf."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import click
import pytest

import tinytf
from hostile import numbers, surface
from hostile.watchdog import tried, watched
from tinytf.errors import TinytfError
from tinytf.generate.samplers import Sampling
from tinytf.text.corpus import find_files
from tinytf_cli.failing import explained
from tinytf_cli.ranges import Range, bounds
from tinytf_cli.repl.session_verbs import VERBS


def every_number() -> Iterator[tuple[str, click.Parameter]]:
    """Options and arguments that are numbers: of all commands, ``sweep`` too, and of the verbs of a session."""
    commands = {name: surface.command(name) for name in surface.SOUND} | {n: verb.command for n, verb in VERBS.items()}
    for name, command in commands.items():
        yield from ((name, parameter) for parameter in command.params if numbers.is_number(parameter))


def test_every_number_that_can_be_typed_has_a_least_and_a_most_value() -> None:
    without = [
        f"{name}: {parameter.name}"
        for name, parameter in every_number()
        if not isinstance(parameter.type, Range) or parameter.type.min is None or parameter.type.max is None
    ]
    assert without == []


def test_a_number_is_within_its_bounds_or_refused_in_one_line_that_repeats_it() -> None:
    tries = 0
    for name, parameter in every_number():
        kind = parameter.type
        assert isinstance(kind, Range)
        for word in numbers.WORDS:
            tries += 1
            try:
                number = kind.convert(word, parameter, None)
            except click.BadParameter as error:
                failure = explained(error)
                assert failure.status == 2, name
                assert word[:40] in failure.message, name
                assert len(failure.message.splitlines()) == 1, name
                assert len(failure.message) < 200, name
            else:
                assert kind.min <= number <= kind.max, f"{name} {parameter.name} took {word}"
    assert tries > 7_000


def test_help_shows_the_bounds_that_an_option_has_of_its_own() -> None:
    told = 0
    for name, parameter in every_number():
        if not isinstance(parameter, click.Option) or parameter.hidden or name not in surface.SOUND:
            continue
        assert isinstance(parameter.type, Range)
        words = bounds(parameter.type)
        record = parameter.get_help_record(click.Context(surface.command(name)))
        assert record is not None
        assert words in record[1], f"{name} {parameter.name}"
        told += bool(words)
    assert told > 100


FAR_OUT = (float("nan"), float("inf"), -1, 0, 2**31, 2**63, 2**64, 10**30)


@pytest.mark.parametrize("number", FAR_OUT)
def test_the_library_takes_a_number_or_refuses_it_as_its_own_error(number: float, tmp_path: Path) -> None:
    model, corpus = tinytf.load("tiny"), tmp_path / "corpus.txt"
    corpus.write_text("The cat sat.\n")
    whole = int(number) if number - number == 0 else 0
    calls: Mapping[str, Callable[[], object]] = {
        "shards": lambda: model.record(find_files([corpus]), ["L0.out"], tmp_path / "acts", shard_size=number),
        "chunk": lambda: model.generate("The cat", max_tokens=1, chunk=whole),
        "top_k": lambda: model.generate("The cat", max_tokens=1, sampling=Sampling(1.0, top_k=whole)),
        "temperature": lambda: model.generate("The cat", max_tokens=1, sampling=Sampling(number)),
        "ids": lambda: model.trace(ids=[1, whole]),
        "decoded": lambda: model.tokenizer.decode([whole]),
    }
    for name, call in calls.items():
        with suppress(TinytfError):
            assert call() is not None, name


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(surface.SOUND))
def test_every_number_that_is_taken_gives_a_result_or_one_line(name: str) -> None:
    with watched():
        for command, parameter, word in numbers.accepted():
            if command == name:
                case = numbers.trial(command, parameter, word)
                assert not (found := tried(case)).fault, f"{case.words!a}\n{found.fault}"
