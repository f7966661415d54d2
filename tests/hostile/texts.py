"""Texts: control characters, bidi marks, surrogates, markup, huge words, in every form of output."""

from collections.abc import Iterator
from random import Random

from hostile.bases import ours, within
from hostile.case import Case
from hostile.strings import argument, text

_COMMANDS = (
    ("tokens",), ("tokens",), ("tokens",), ("tokens",), ("attention",), ("attention",), ("trace", "--pipeline"),
    ("lens",), ("score",), ("generate", "--max-tokens", "2"), ("trace",), ("attention", "--rollout"), ("neurons",),
    ("attribute",),
    ("grad",), ("tokens", "--lines"), ("neighbours",),
)  # fmt: skip
_FORMS = (
    (), (), ("--ascii",), ("--plain",), ("--json",), ("--format", "ndjson"), ("--color", "always"), ("-o", "out.html"),
    ("-o", "out.json"), ("-o", "out.txt"), ("-o", "out.svg"), ("--format", "csv"), ("--width", "20"),
)  # fmt: skip


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"texts {seed}")
    for _ in range(count):
        given, command, form = text(rng), rng.choice(_COMMANDS), rng.choice(_FORMS)
        if rng.randrange(4):
            word, stdin = argument(rng, given), b""
        else:
            word, stdin = "-", given.encode("utf-8", rng.choice(("surrogatepass", "replace")))
        cut = ("--truncate",) if command[0] not in ("generate", "neighbours", "score") else ()
        words = (*command, *form, *cut, "-m", "model", "--", word)
        yield Case(f"text {given[:80]!a}", words, within("model", ours()), stdin)
