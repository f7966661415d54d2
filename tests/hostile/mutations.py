"""How a sound file becomes a hostile one: a value of its data, a place of its bytes."""

import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

from hostile.strings import word

DEEP = "a very deep list"
"""Stands for one: JSON of Python's writes none."""


def value(rng: Random) -> Any:
    """A value of some other type or size than the one that is meant."""
    return rng.choice((
        None, True, False, 0, 1, -1, 2, 7, 65_536, 2**31, 2**31 - 1, 2**32, 2**63, 2**64, -(2**63), 10**30, 10**400,
        0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"), "", "x", "1", "true", [], {},
        [[]], [None],
        {"x": {}}, [0], [1] * 100, [-1, "x"], ["a"] * 1_000, {"type": None}, {"type": "x"}, DEEP, DEEP,
        [[[[[[[[]]]]]]]],
        "x" * 100_000, word(rng), word(rng), [word(rng)], {word(rng): word(rng)},
    ))  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in some JSON."""
    if path:
        yield path
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


def mutated(rng: Random, data: Any) -> tuple[str, Any]:
    """Some JSON with one to three values changed, removed, added or doubled; and what was done."""
    data, said = json.loads(json.dumps(data)), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice(list(places(data)) or [()])
        if not path:
            return "nothing left", data
        *above, key = path
        parent = data
        for step in above:
            parent = parent[step]
        match rng.randrange(8):
            case 0:
                del parent[key]
                said.append(f"without {path}")
            case 1 if isinstance(parent, dict):
                parent[word(rng)] = value(rng)
                said.append(f"more in {tuple(above)}")
            case 2 if isinstance(parent, list):
                parent *= rng.choice((0, 2, 50))
                said.append(f"{tuple(above)} again and again")
            case 3 if isinstance(parent[key], (int, float)) and not isinstance(parent[key], bool):
                factor = rng.choice((-1, 0, 2, 3, 1_000, 10**9, 0.5, 10**20))
                with suppress(OverflowError):
                    parent[key] *= factor
                said.append(f"{path} = {parent[key]!r:.60}")
            case _:
                parent[key] = value(rng)
                said.append(f"{path} = {ascii(parent[key]) if path else '':.60}")
    return "; ".join(said), data


def as_json(rng: Random, data: Any) -> bytes:
    """Some JSON as text, now and then with a key twice, cut short, in another encoding, or no JSON any more."""
    made = json.dumps(data, ensure_ascii=bool(rng.randrange(2)))
    depth = rng.choice((100, 400, 900, 3_000))  # some more, some less than what Python's reader takes
    made = made.replace(json.dumps(DEEP), "[" * depth + "]" * depth)
    match rng.randrange(30):
        case 0 if made.startswith("{"):
            made = made[:-1] + "," + made[1:]
        case 1:
            made = made[: rng.randrange(len(made) + 1)]
        case 2:
            made = "[" * 100_000
        case 3:
            made = '{"a":' * 50_000
        case 4:
            return made.encode("utf-16", "surrogatepass")
        case 5:
            return b"\xef\xbb\xbf" + made.encode("utf-8", "surrogatepass")
        case 6:
            return bytes_of(rng, made.encode("utf-8", "surrogatepass"))[1]
        case 7:
            made = "9" * 10_000
    return made.encode("utf-8", "surrogatepass")


_NUMBERS = (0, 1, 0x7F, 0xFF, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def bytes_of(rng: Random, data: bytes, most: int | None = None) -> tuple[str, bytes]:
    """Some bytes with places flipped, cut, repeated or overwritten, all before ``most``; and what was done."""
    data, said = bytearray(data), []
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not data:
            break
        at = rng.randrange(max(1, min(len(data), len(data) if most is None else most)))
        match rng.randrange(8):
            case 0 | 1:
                data[at] ^= 1 << rng.randrange(8)
                said.append(f"bit of byte {at}")
            case 2:
                del data[at:]
                said.append(f"cut at {at}")
            case 3:
                size = rng.choice((1, 4, 8, 100))
                del data[at : at + size]
                said.append(f"{size} bytes out at {at}")
            case 4:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 100)))
                said.append(f"more at {at}")
            case 5 | 6:
                size, number = rng.choice((4, 8)), rng.choice(_NUMBERS)
                data[at : at + size] = (number % 256**size).to_bytes(size, "little")
                said.append(f"{number} at {at}")
            case _:
                data[at : at + 16] = bytes([rng.choice((0, 255, 128))]) * 16
                said.append(f"16 the same at {at}")
    return ", ".join(said), bytes(data)
