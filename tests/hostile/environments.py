"""Variables of the environment that say something else than what is meant."""

from collections.abc import Iterator
from random import Random

from hostile import surface
from hostile.case import Case
from hostile.strings import argument, word

_VARIABLES = (
    "TINYTF_MODEL", "TINYTF_CACHE", "TINYTF_PAGER", "PAGER", "LESS", "COLUMNS", "LINES", "TERM", "COLORTERM",
    "COLORFGBG", "NO_COLOR", "FORCE_COLOR", "CI", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
    "OLLAMA_MODELS", "HOME",
    "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR",
    "MASTER_PORT", "OMP_NUM_THREADS", "TEXTUAL_DRIVER", "CXX", "LANG", "LC_ALL", "TZ", "TMPDIR", "EDITOR",
    "WT_SESSION",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_VALUES = ("", "0", "1", "-1", "2", "abc", "1e9", "9" * 30, "x" * 5_000, "/dev/zero", "/dev/null", "/proc/self",
           "a b c", "'", "~nobody", "~", "localhost", "65536", "dumb", "xterm-256color", "15;0", "truecolor",
           "../..")  # fmt: skip
_COMMANDS = (
    ("tokens", "the cat"), ("tokens", "the cat", "-m", "model"), ("models", "."),
    ("attention", "the cat", "-m", "model"),
    ("info",), ("train", "corpus.txt", "--recipe", "recipe.toml", "--out", "new"), ("runs", "."), ("tokens", "--help"),
    ("repl", "-m", "model", "-c", "run the cat"), ("explore", "x"), ("info", "model"),
)  # fmt: skip


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"environments {seed}")
    for _ in range(count):
        names = rng.sample(_VARIABLES, rng.choice((1, 1, 2, 3)))
        if not rng.randrange(4):
            names += rng.sample(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), 2)
        said = {name: _value(rng, name) for name in names}
        words = rng.choice(_COMMANDS)
        if {"RANK", "WORLD_SIZE"} & said.keys() and rng.randrange(4):
            words = _COMMANDS[5]
        yield Case(f"{said!a:.300}", words, surface.files(), environment=said)


def _value(rng: Random, name: str) -> str:
    if name in ("TZ", "TMPDIR") or rng.randrange(3):
        return rng.choice(_VALUES)
    return argument(rng, word(rng))
