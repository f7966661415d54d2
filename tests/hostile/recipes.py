"""Recipes of training: fields of other types, absurd sizes, tables where numbers are, and what is no TOML."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from random import Random

from hostile.bases import TEXT
from hostile.case import Case
from hostile.mutations import bytes_of
from hostile.strings import NASTY

_VALUES = (
    "0", "-1", "1", "2", "0.5", "-0.5", "1e-320", "1e308", "nan", "inf", "-inf", "true", "false", "''", "'x'",
    "'char'", "[]",
    "[[]]", "{}", "{a = 1}", "1979-05-27", "07:32:00", "1000000000", "2147483648", "9223372036854775807", "1" * 30,
    "9" * 5000, "'auto'", "['a', 1]", "[0]", "[-1, 'x']", "[" * 2000 + "]" * 2000, "'''\n'''", "'../..'",
)  # fmt: skip
_SOUND = {
    "tokenizer": "'char'", "steps": "1", "batch": "1", "block": "4", "warmup": "0", "eval_every": "1",
}  # fmt: skip
_MODEL = {"d_model": "4", "n_layers": "1", "n_heads": "1", "d_ff": "4", "context": "8"}
_SLOW = {("steps", "1000000000"), ("steps", "2147483648"), ("steps", "9223372036854775807"), ("steps", "1" * 30)}
"""What is not wrong, and takes for ever: many steps are what somebody may want."""


@cache
def _fields() -> tuple[tuple[str, ...], tuple[str, ...]]:
    from tinytf.config import FIELDS
    from tinytf.training.recipe import Recipe

    return tuple(one.name for one in fields(Recipe)), tuple(FIELDS)


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"recipes {seed}")
    for _ in range(count):
        given, model = dict(_SOUND), dict(_MODEL)
        said = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            table = rng.randrange(2)
            field = rng.choice(_fields()[table]) if rng.randrange(15) else _quoted(rng.choice(NASTY))
            value = rng.choice(_VALUES) if rng.randrange(6) else _quoted(rng.choice(NASTY))
            if (field, value) not in _SLOW:
                (given, model)[table][field] = value
                said.append(f"{field} = {value[:60]!a}")
        tables = (given, model) if rng.randrange(20) else (given, {})
        text = "\n[model]\n".join("\n".join(f"{key} = {value}" for key, value in one.items()) for one in tables)
        data = text.encode("utf-8", "surrogatepass")
        if not rng.randrange(10):
            about, data = bytes_of(rng, data)
            said.append(about)
        command = rng.choice((("train", "corpus.txt", "--out", "new"), ("train", "corpus.txt", "--dry-run")))
        yield Case(", ".join(said), (*command, "--recipe", "recipe.toml"),
                   {"recipe.toml": data, "corpus.txt": TEXT.encode()})  # fmt: skip


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
