"""Folders of training runs: metrics, samples, states, checksums and checkpoints that are damaged or somebody else's."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from random import Random

from hostile.bases import TEXT, Files
from hostile.case import Case
from hostile.mutations import as_json, bytes_of, mutated, value
from hostile.strings import NASTY
from hostile.surface import RECIPE

_COMMANDS = (("runs", "."), ("runs", "run", "--json"), ("runs", "--follow", "run", "--once"), ("runs", "--film", "run"),
             ("models", "."),
             ("runs", "--film", "run", "--json"), ("info", "run"), ("runs", "--follow", "run", "--once", "--json"),
             ("runs", "--film", "run", "-o", "out.svg"), ("runs", "run", "-o", "out.html"))  # fmt: skip
_RESUMED = ("train", "--resume", "--out", "run", "--steps", "5")


@cache
def _run() -> Files:
    """What four steps leave."""
    from hostile.watchdog import left

    words = ("train", "corpus.txt", "--recipe", "recipe.toml", "--out", "run", "--steps", "4", "--eval-every", "2")
    files = left(Case("a run", words, {"corpus.txt": TEXT.encode(), "recipe.toml": RECIPE}))
    return {name: data for name, data in files.items() if name.startswith("run/")}


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"runs {seed}")
    for _ in range(count):
        files = {**_run(), "corpus.txt": TEXT.encode()}
        said = []
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice([name for name in files if name.startswith("run/")])
            about, made = _damaged(rng, name, files[name])
            said.append(f"{name}: {about}")
            files.pop(name)
            if made is not None:
                files[name] = made
        if not rng.randrange(12):
            name = rng.choice(("run/x", "run/checkpoints/step-9", "run/checkpoints/step--1/x", "run/frames/x",
                               "run/checkpoints/step-99999999999999999999/config.json", "run/.lock/x"))  # fmt: skip
            files[name] = b"x"
        files = {name: data for name, data in files.items() if name != "run/.lock" or "run/.lock/x" not in files}
        words = _RESUMED if not rng.randrange(4) else rng.choice(_COMMANDS)
        yield Case(", ".join(said), words, files)


def _damaged(rng: Random, name: str, data: bytes) -> tuple[str, bytes | None]:
    """A file of a run in another state; None where it is gone."""
    if not rng.randrange(10):
        return "gone", None
    if not rng.randrange(10) or not data:
        return "other bytes", rng.choice((b"", b"\0", b"\n\n", b"[]", b"{}", b"\xff\xfe", b"null\n", data * 2))
    with suppress(ValueError):  # of a file that is damaged already
        if name.endswith(".jsonl") and rng.randrange(4):
            return _lines(rng, data)
        if name.endswith(".json") and rng.randrange(4):
            about, changed = mutated(rng, json.loads(data))
            return about, as_json(rng, changed)
    if name.endswith("SHA256SUMS"):
        lines = data.decode("latin-1").splitlines() or [""]
        lines[rng.randrange(len(lines))] = rng.choice(("", "x", "../../x  y", rng.choice(NASTY), lines[0]))
        return "a sum", "\n".join(lines).encode("utf-8", "surrogatepass")
    return bytes_of(rng, data)


def _lines(rng: Random, data: bytes) -> tuple[str, bytes]:
    """A line changed, twice, elsewhere, or lost."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            lines.insert(rng.randrange(len(lines)), lines[at])
            about = f"line {at} twice"
        case 1:
            del lines[at]
            about = f"line {at} lost"
        case 2:
            lines[at] = json.dumps(value(rng)).encode()
            about = f"line {at} is something else"
        case _:
            about, changed = mutated(rng, json.loads(lines[at]))
            lines[at] = as_json(rng, changed).replace(b"\n", b"")
            about = f"line {at}: {about}"
    return about, b"\n".join(lines) + b"\n"
