"""Worked examples that `verify` is given: formulas, given values, claims, fields."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from random import Random

from hostile.case import Case
from hostile.mutations import bytes_of
from hostile.strings import NASTY

_SIZES = ("0", "1", "2", "3", "7", "100", "4096", "100000", "1e9", "10**9", "2**63", "-1", "0.5", "nan", "inf", "'x'")
_GIVEN = (
    "1", "-0.5", "[[1, 2], [3, 4]]", "[1.0, 2.0]", "[]", "[[]]", "[[1], [1, 2]]", "[['a', 'b']]", "'text'", "true",
    "{random = [3, 4]}", "{random = [300, 300]}", "{random = [100000, 100000]}", "{random = []}", "{random = [0]}",
    "{random = [2, 2], scale = 1e308}", "{random = 'x'}", "{random = [2, 2], scale = nan}", "1e400", "nan",
    "-inf", "9" * 30,
    "1979-05-27", "07:32:00", "{size = 3}", "[" * 60 + "]" * 60, "[" * 3000 + "]" * 3000, "{random = [2, 2, 2, 2]}",
    "[" + "1," * 5000 + "]", "0x10", "[[1, 'a']]", "[[true]]", "{random = [1], random2 = 1}",
)  # fmt: skip
_CLAIMS = (
    *_GIVEN, "[[1, 2]]", "0.333", "'…'", "['…', 1]", "[1, '…']", "{cells = 1}", "''", "'1.00'",
    "[[0.1, 0.2], [0.3, 0.4]]",
)  # fmt: skip
_FIELDS = ("title", "note", "rows", "columns", "tolerance", "shown", "name", "value", "claim", "size", "x", "line")


_SOUND = ("[[1, 2], [3, 4]]", "[1.0, 2.0]", "0.5", "3", "{random = [3, 4]}", "[[0.1, 0.2, 0.3]]", "{random = [4, 3]}")
_TOPS = ("seed = 3\n", "seed = -1\n", "seed = 99999999999999999999999\n", "seed = 'x'\n", "title = 7\n",
         "[vocabulary]\nname = 'x'\ntext = 'y'\nids = [1, 'a']\n")  # fmt: skip
_OPERATORS = ("+", "-", "*", "/", "//", "%", "@", "<", "==", "**", "*", "+", "@")
_PLACES = ("0", "0:2", "1:", ":", "::0", ":, 0", "-1", "9", "...", "None", "0.5", ":,:,:", "A")


@cache
def _operations() -> dict[str, int]:
    """The operations with how many arguments they take."""
    from tinytf.verify.operations import OPERATIONS

    return {name: one.usage.count(",") + 1 for name, one in OPERATIONS.items()}


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"examples {seed}")
    for _ in range(count):
        text = _example(rng)
        data = text.encode("utf-8", "surrogatepass")
        if not rng.randrange(12):
            data = bytes_of(rng, data)[1]
        more = rng.choice(((), ("--full",), ("--json",), ("-o", "out.html"), ("--wrong",)))
        yield Case(f"example {text[:300]!a}", ("verify", "example.toml", *more), {"example.toml": data})


def _example(rng: Random) -> str:
    """A file of which every part is hostile now and then, or none but the formulas."""
    odd = partial(_odd, rng, rng.choice((0, 0.01, 0.05, 0.2)))
    top = rng.choice(_TOPS) if odd() else ""
    names, given, steps = list("ABC"), "", ""
    for name in names:
        given += f"{name} = {rng.choice(_GIVEN if odd() else _SOUND)}\n"
    for n in range(rng.choice((1, 1, 2, 3)) if not odd() else 40):
        name = rng.choice(("A", "S0", "pi", "", "a b", _quoted(rng.choice(NASTY)))) if odd() else f"S{n}"
        claim = f"claim = {rng.choice(_CLAIMS if odd() else _SOUND)}\n" if rng.randrange(2) else ""
        more = f"{rng.choice(_FIELDS)} = {rng.choice(_CLAIMS)}\n" if odd() else ""
        formula = _formula(rng, odd, names, rng.choice((1, 2, 3)))
        steps += f'[[step]]\nname = "{name}"\nvalue = "{formula}"\n{claim}{more}'
        names.append(name)
    return f"{top}[given]\n{given}{steps}"


def _odd(rng: Random, share: float) -> bool:
    return rng.random() < share


def _quoted(text: str) -> str:
    """Inside the quotes of TOML; what TOML does not take stays, so that its reader has to say so."""
    return text.replace("\\", "\\\\").replace('"', '\\"') if len(text) % 2 else text


def _formula(rng: Random, odd: Callable[[], bool], names: list[str], depth: int) -> str:
    part = lambda: _formula(rng, odd, names, depth - 1)  # noqa: E731
    name, size = rng.choice(names), rng.choice(_SIZES) if odd() else rng.choice("1223")
    match rng.randrange(18) if depth else rng.randrange(15, 18):
        case 0 | 1 | 2:
            return f"({part()} {rng.choice(_OPERATORS)} {part()})"
        case 3:
            return f"{part()} ** {size}"
        case 4:
            return f"{name}[{rng.choice(_PLACES if odd() else _PLACES[:3])}]"
        case 5:
            return f"{part()}.{'__class__' if odd() else 'T'}"
        case 6:
            return f"[{part()}, {part()}]"
        case 7:
            return f"ones({size}, {rng.choice(_SIZES if odd() else '123')})"
        case 8:
            return f"linspace(0, {size}, {rng.choice(_SIZES if odd() else '234')})"
        case 9:
            return f"gradient({name}, {rng.choice(names)})"
        case 10 | 11 | 12 | 13:
            operation, takes = rng.choice(list(_operations().items()))
            given = [part() if n == 0 or rng.randrange(2) else size for n in range(takes)]
            return f"{operation}({', '.join(given[1:] if odd() else given)})"
        case 14:
            return f"sum({part()})"
        case 15:
            return size
        case 16 if odd():
            return _quoted(rng.choice(NASTY))
        case _:
            return name
