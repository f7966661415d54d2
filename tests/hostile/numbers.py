"""Numbers far out for everything that takes one: options, arguments, ranges, sizes, lists, verbs, settings, recipes."""

from collections.abc import Iterator
from functools import cache
from random import Random

import click

from hostile import surface
from hostile.case import Case

WORDS = (
    "nan", "inf", "-inf", "1e400", "-1e400", "-0.0", "0", "-1", "1e-320", "2147483647", "2147483648",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 30, "9" * 5000, "1_000", "１",
    " 5", "0x10", "1e3", "1e300", "",
)  # fmt: skip
_FORMS = ("{}", "{},1", "1,{}", "0-{}", "{}-1", "{}:{}", "-{}", "#{}", "L{}", "L0H{}", "L0-{}", "L0H0.scores[{},0]",
          "logits[-1,#{}]", "{}GB", "{}*{}", "17*{}", "cat#{}", "x=={}", "bpe:{}", "0..{}")  # fmt: skip
"""How a number stands in an option that is a text: a list, a range, an address, a size."""
_LONG = {("grad", "check"), ("train", "steps"), ("train", "threads"), ("train-sae", "tokens")}
"""Numbers that may be as large as a user has patience, or processors."""
_LINES = ("step {}", "back {}", "list {}", "history {}", "top {}", "goto {}", "print L0.q[{}]", "heat L0H{} --rows {}",
          "set dims {}", "set width {}", "set precision {}", "set rows {}", "set layer {}", "set head {}",
          "delete {}", "ignore 1 {}", "break L{}.scores", "break L0.q if max > {}", "L0.q[0,0] = {}", "!{}", "!!{}",
          "set L0.q[0,{}] = 1", "diff --tolerance {}", "model preset:gpt2-tiny --seed {}", "predict {}", "undo {}",
          "watch L0.q[{},0]", "print L{}")  # fmt: skip
_SETTINGS = ("width", "precision", "model", "device")
_KEYS = ("steps", "batch", "block", "warmup", "lr", "seed", "eval_every", "d_model", "n_layers", "n_heads", "dropout",
         "weight_decay", "save_minutes", "rope_theta", "vocab_size", "keep", "clip")  # fmt: skip


def is_number(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, (click.types.IntParamType, click.types.FloatParamType))


@cache
def numeric() -> tuple[tuple[str, click.Parameter], ...]:
    """Every command with every parameter of its own that is a number."""
    return tuple(pair for pair in surface.parameters() if is_number(pair[1]))


@cache
def accepted() -> tuple[tuple[str, click.Parameter, str], ...]:
    """The words that click takes for a numeric parameter, so that the command runs with them."""
    return tuple(
        (name, parameter, word)
        for name, parameter in numeric()
        for word in WORDS
        if (name, parameter.name) not in _LONG and _takes(parameter, word)
    )


def _takes(parameter: click.Parameter, word: str) -> bool:
    try:
        parameter.type.convert(word, parameter, None)
    except click.BadParameter:
        return False
    return True


@cache
def _texts() -> tuple[tuple[str, click.Parameter], ...]:
    return tuple(
        (name, parameter)
        for name, parameter in surface.parameters()
        if not is_number(parameter) and not isinstance(parameter.type, (click.Path, click.Choice))
    )


def trial(name: str, parameter: click.Parameter, word: str) -> Case:
    return Case(f"{name}: {parameter.name} = {word[:80]!a}", surface.with_word(name, parameter, word), surface.files())


def _session(rng: Random, word: str) -> Case:
    lines = "".join(f"{rng.choice(_LINES).format(word, word)}\n" for _ in range(4))
    words = ("repl", "-m", "model", "--on-error", "continue", "-f", "x.session")
    made = f"run the cat sat\n{lines}".encode()
    return Case(f"lines {lines!a:.300}", words, {**surface.files(), "x.session": made}, lines=100)


def _setting(rng: Random, word: str) -> Case:
    name = rng.choice(_SETTINGS)
    line = f"{name} = {rng.choice((word, repr(word)))}\n"
    said = rng.choice(({f"TINYTF_{name.upper()}": word}, {"TINYTF_CONFIG": "config.toml"}, {"COLUMNS": word}))
    files = {**surface.files(), "config.toml": line.encode()}
    return Case(f"{said!a:.200} {line[:60]}", ("trace", "the cat sat", "-m", "model"), files, environment=said)


def _recipe(rng: Random, word: str) -> Case:
    key = rng.choice(_KEYS)
    lines = [line for line in surface.RECIPE.decode().splitlines() if not line.startswith(f"{key} ")]
    at = lines.index("[model]") if rng.randrange(2) else len(lines)
    given = "1" if key == "steps" and word in ("2147483647", "1_000") else word  # what somebody may want to wait for
    recipe = "\n".join([*lines[:at], f"{key} = {given}", *lines[at:]]).encode()
    words = ("train", "corpus.txt", "--recipe", "recipe.toml", "--out", "new")
    return Case(f"recipe {key} = {word[:40]}", words, {**surface.files(), "recipe.toml": recipe})


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"numbers {seed}")
    for _ in range(count):
        word = rng.choice(WORDS)
        match rng.randrange(8):
            case 0 | 1 | 2:
                yield trial(*rng.choice(accepted()))
            case 3 | 4:
                yield trial(*rng.choice(_texts()), rng.choice(_FORMS).format(word, word))
            case 5:
                yield _session(rng, word)
            case 6:
                yield _setting(rng, word)
            case _:
                yield _recipe(rng, word)
