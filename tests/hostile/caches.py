"""What a cache of tokens holds, cut, swapped or somebody else's: the run on the same text is what it is without one."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

from hostile.bases import TEXT, Files
from hostile.case import Case, Made
from hostile.mutations import bytes_of
from hostile.strange import MADE
from hostile.surface import RECIPE
from tinytf.training.data import cache as tokens_cache

_HERE = {"TINYTF_CACHE": "cache"}
_WORDS = ("train", "corpus.txt", "--recipe", "recipe.toml", "--steps", "2", "--out", "new")
_TEXTS: Files = {"corpus.txt": TEXT.encode(), "recipe.toml": RECIPE}
_KEPT_BY_OTHERS: dict[str, Made] = {
    "cache/photo.jpg": b"\xff\xd8 a photo", "cache/tinytf-tokens/notes.txt": b"a note",
    f"cache/tinytf-tokens/{'0' * 64}/letter.txt": b"a letter",
}  # fmt: skip
_MODEL = "new/model.safetensors"


@cache
def _filled() -> tuple[Files, bytes]:
    """The files of a cache after two runs on different texts, and the model that the second run makes."""
    from hostile.watchdog import left

    with patch.object(tokens_cache, "MIN_TEXT_BYTES", 1):
        other = left(Case("", _WORDS, {**_TEXTS, "corpus.txt": TEXT.upper().encode()}, environment=_HERE))
        first = {name: data for name, data in other.items() if name.startswith("cache/")}
        files = left(Case("", _WORDS, {**_TEXTS, **first}, environment=_HERE))
    cached = {name: data for name, data in files.items() if name.startswith("cache/") and not name.endswith(".lock")}
    assert len(cached) > len(first)
    return cached, files[_MODEL]


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"caches {seed}")
    cached, model = _filled()
    for _ in range(count):
        files: dict[str, Made] = {**_TEXTS, **cached}
        said = [_damaged(rng, files) for _ in range(rng.choice((1, 1, 2, 3)))]
        foreign = rng.sample(sorted(_KEPT_BY_OTHERS), rng.randrange(len(_KEPT_BY_OTHERS) + 1))
        files |= {name: _KEPT_BY_OTHERS[name] for name in foreign}
        yield Case("; ".join(said), _WORDS, files, environment=_HERE, unchanged=tuple(foreign),
                   leaves={_MODEL: model})  # fmt: skip


def _damaged(rng: Random, files: dict[str, Made]) -> str:
    """Do something to a file of the cache; what."""
    names = sorted(name for name in files if name.startswith("cache/"))
    if not names:
        return "nothing left"
    name, other = rng.choice(names), rng.choice(names)
    about = f"{Path(name).parent.name[:12]}/{Path(name).name}"
    data = files[name]
    match rng.randrange(6):
        case 0:
            del files[name]
            return f"without {about}"
        case 1:
            files[name], files[other] = files[other], files[name]
            return f"{about} and {Path(other).parent.name[:12]}/{Path(other).name} swapped"
        case 2:
            kind = rng.choice(sorted(MADE))
            files[name] = MADE[kind]
            return f"{kind} as {about}"
        case 3 if isinstance(data, bytes):
            files[name] = data[: rng.randrange(len(data) + 1)]
            return f"{about} cut"
        case 4:
            same = [one for one in names if Path(one).name == Path(name).name]
            files[name] = files[rng.choice(same)]
            return f"{about} of another text"
    if isinstance(data, bytes):
        what, files[name] = bytes_of(rng, data)
        return f"{about}: {what}"
    return f"{about} as it is"
