"""How a report says its answer in one sentence: shares as a person says them, lists, and from where on something holds.

A sentence is a claim: what it says of a number has a definition here or in its report, and a test.
"""

import math
from collections.abc import Sequence

NOT_FINITE = "not finite"
"""How a difference that is NaN or ∞ is written."""


def percent(share: float) -> str:
    """A share of 1 as a person says it: ``77 %``, ``6.5 %``, ``under 0.1 %``, ``over 99 %``."""
    if 0 < share < 0.0005:
        return "under 0.1 %"
    if 0.995 <= share < 1:
        return "over 99 %"
    return f"{100 * share:.{0 if share >= 0.0995 or not share else 1}f} %"


def apart(difference: float, form: str) -> str:
    """A difference in a printf format; ``not finite`` for one of NaN or ∞."""
    return form % difference if math.isfinite(difference) else NOT_FINITE


def sign_of(number: float) -> str:
    """A number that is not finite: ``NaN``, ``∞`` or ``−∞``."""
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "−∞"


def choices(loss: float) -> str:
    """A mean loss in nats as a number of equally likely tokens, the perplexity: ``12``, ``3.4``, ``10^151``."""
    if loss > math.log(1e9):
        return f"10^{loss / math.log(10):.0f}"
    perplexity = math.exp(loss)
    return f"{perplexity:,.{0 if perplexity >= 9.95 else 1}f}"


def listed(phrases: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = phrases
    return f"{', '.join(others)} and {last}" if others else last


def first_of(names: Sequence[object], most: int) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(map(str, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def plural(number: int, noun: str) -> str:
    """``1 token``, ``2,048 tokens``, ``2 biases``."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


_SINGULAR = {"have": "has", "are": "is"}


def several(count: int, does: str) -> str:
    """How many do what is said of several: ``3 look at it``, ``1 looks at it``."""
    verb, *rest = does.split(" ", 1)
    return " ".join((f"{count:,}", verb if count != 1 else _SINGULAR.get(verb, f"{verb}s"), *rest))


def from_where_on(holds: Sequence[bool]) -> int | None:
    """The first index from which on all hold; None if the last does not."""
    failing = [index for index, held in enumerate(holds) if not held]
    first = failing[-1] + 1 if failing else 0
    return first if first < len(holds) else None


def changed(before: float, after: float) -> str:
    """What a probability did, in words: ``falls from 77 % to 14 %``; ``stays at 77 %`` where both read the same."""
    shares = percent(before), percent(after)
    if shares[0] == shares[1]:
        return f"stays at {shares[0]}"
    return f"{'falls' if after < before else 'rises'} from {shares[0]} to {shares[1]}"
