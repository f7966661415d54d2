"""Every number that can be typed has bounds that click knows, and whatever is typed for it is no fault of tinytf."""

from collections.abc import Iterator

import click
import pytest

from hostile import numbers, surface
from hostile.watchdog import tried, watched
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(surface.SOUND))
def test_every_number_that_is_taken_gives_a_result_or_one_line(name: str) -> None:
    with watched():
        for command, parameter, word in numbers.accepted():
            if command == name:
                case = numbers.trial(command, parameter, word)
                assert not (found := tried(case)).fault, f"{case.words!a}\n{found.fault}"
