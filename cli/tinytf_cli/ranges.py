"""Numbers that are typed: every numeric option and argument has a least and a most value, which click checks."""

import re
from contextlib import suppress
from typing import Any

import click
from click.core import Context

from tinytf.fields import Limits

MOST = 2**31 - 1
"""The most of what is counted, unless an option says less or more: the product of two such numbers fits in 64 bits."""
LARGEST = 3.4e38
"""The largest real number, unless an option says less: that of float32."""
CORPUS = 10**15
"""The most tokens or numbers of what is read or computed piece by piece, and never held."""
SEEDS = 2**63 - 1
"""The largest random seed of torch."""
_LONGEST = 80
"""The most characters of a typed number that an error repeats."""


class Whole(click.IntRange):  # noqa: TID251
    """Whole numbers from ``least`` to ``most``."""

    def __init__(self, least: int, most: int = MOST) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        return _require(self, _number(self, value, param, ctx), value, param, ctx)


class Real(click.FloatRange):  # noqa: TID251
    """Finite numbers from ``least`` to ``most``: with ``above`` without the least, with ``below`` without the most."""

    def __init__(self, least: float, most: float = LARGEST, *, above: bool = False, below: bool = False) -> None:
        super().__init__(least, most, min_open=above, max_open=below)

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        return _require(self, _number(self, value, param, ctx), value, param, ctx) + 0.0  # without the sign of −0


Range = Whole | Real


_POWERS = {"k": 3, "m": 6, "b": 9, "%": -2}
_WRITTEN = re.compile(r"(?P<digits>[+-]?[\d.]+(?:e[+-]?\d{1,2})?)\s*(?P<unit>%|[a-z]*)", re.IGNORECASE)


def _number(numbers: Range, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
    """Convert like click; the error for a number that is written as people do has a hint."""
    kind = click.INT if isinstance(numbers, Whole) else click.FLOAT
    try:
        return kind.convert(_short(value), param, ctx)
    except click.BadParameter as error:
        with suppress(click.BadParameter, ValueError):
            plain = _plain(str(value), whole=kind is click.INT)
            numbers.convert(plain, param, ctx)
            error.hint = f"did you mean {plain}?"  # type: ignore[attr-defined]
        raise


def _plain(text: str, *, whole: bool) -> str:
    """A number such as 1k, 1,000, 1e3, 10 % or 5 tokens, in plain digits. Raises ValueError for anything else."""
    text = re.sub(r",(?=\d{3}(?:\D|$))", "", text) if whole else text.replace(",", ".", 1)
    found = _WRITTEN.fullmatch(text.strip())
    if found is None or len(text) > _LONGEST:
        raise ValueError(text)
    number = float(found["digits"]) * 10.0 ** _POWERS.get(found["unit"].lower(), 0)
    plain = str(round(number)) if whole and number == round(number) else f"{number:g}"
    if plain == text:  # what was refused already
        raise ValueError(text)
    return plain


def _require(numbers: Range, number: Any, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
    """The number, if it is one of ``numbers``, which NaN never is. Fails as click does, with the typed ``value``."""
    least, most = numbers.min, numbers.max
    is_enough = number > least if numbers.min_open else number >= least
    is_most = number < most if numbers.max_open else number <= most
    if not (is_enough and is_most):
        words = bounds(numbers) or (f"at most {_words(most)}" if is_enough else _at_least(numbers))
        numbers.fail(f"{_short(value)} is not {words}", param, ctx)
    return number


def bounds(numbers: Range) -> str:
    """A range in words: ``from 20 to 1000``; empty for one that only ends where every other does."""
    if numbers.max is None or numbers.max >= (MOST if isinstance(numbers, Whole) else LARGEST):
        return ""
    if numbers.min_open or numbers.max_open:
        return f"{_at_least(numbers)}, {'below' if numbers.max_open else 'at most'} {_words(numbers.max)}"
    return f"from {_words(numbers.min)} to {_words(numbers.max)}"


def _short(value: object) -> Any:  # a str; click says that it takes numbers
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _at_least(numbers: Range) -> str:
    return f"more than {_words(numbers.min)}" if numbers.min_open else f"{_words(numbers.min)} or more"


def _words(number: float | None) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def range_of(kind: type, limits: Limits) -> Range:
    """The range of a field of a recipe or configuration."""
    least = limits.least if limits.above is None else limits.above
    most = limits.most if limits.below is None else limits.below
    if kind is int:
        return Whole(-MOST if least is None else int(least), MOST if most is None else int(most))
    return Real(
        -LARGEST if least is None else least, LARGEST if most is None else most,
        above=limits.above is not None, below=limits.below is not None,
    )  # fmt: skip
