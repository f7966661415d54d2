"""What the command line takes: each command with sound words, and its parameters as click declares them."""

from collections.abc import Iterator, Mapping
from functools import cache

import click

from hostile import bases
from hostile.bases import Files, within

MODEL = ("-m", "model")
_TRACED = ("the cat sat", *MODEL)

SOUND: Mapping[str, tuple[str, ...]] = {
    "tokens": _TRACED,
    "trace": _TRACED,
    "attention": _TRACED,
    "heads": MODEL,
    "weights": MODEL,
    "neurons": _TRACED,
    "trace --curve": _TRACED,
    "features": ("the cat sat", "--sae", "sae", *MODEL),
    "experts": _TRACED,
    "lens": _TRACED,
    "probe": ("--labels", "labels.csv", *MODEL),
    "neighbours": ("cat", *MODEL),
    "neighbours --texts": ("the cat", "a dog", "--pooling", "mean", *MODEL),
    "explore": _TRACED,
    "repl": ("-f", "session.txt", *MODEL),
    "explain": ("L0H0.scores[1,0]", *_TRACED),
    "trace --code": _TRACED,
    "grad": _TRACED,
    "attribute": _TRACED,
    "attention --rollout": _TRACED,
    "state": ("the cat sat", "-m", "preset:granite4-tiny"),
    "ablate": ("the cat sat", "--at", "L0H0", *MODEL),
    "patch": ("the cat sat", "the dog sat", *MODEL),
    "diff": ("the cat", "a cat", *MODEL),
    "same": _TRACED,
    "record": ("corpus.txt", "--at", "L0.out", "--out", "recorded", *MODEL),
    "diff --logprobs": ("logged.jsonl", "logged.jsonl"),
    "diff --sampling": ("the cat", *MODEL, "--sampling", "vllm", "llama.cpp", "--max-tokens", "2"),
    "diff --recorder": ("torch",),
    "blame": ("the cat", *MODEL, "--versus", "model"),
    "circuit": ("--pairs", "pairs.jsonl", *MODEL),
    "steer": ("pairs.jsonl", "--at", "L0.out", *MODEL),
    "pairs": ("agreement", "-n", "2", "-m", "tiny"),
    "learn": ("3", *MODEL),
    "verify": ("example.toml",),
    "check": ("missing.py:Model", *MODEL),
    "generate": ("the cat", "--max-tokens", "3", *MODEL),
    "score": _TRACED,
    "train": ("corpus.txt", "--recipe", "recipe.toml", "--steps", "1", "--out", "new"),
    "train-sae": (
        "corpus.txt",
        "--at",
        "L0.out",
        "--features",
        "4",
        "--k",
        "1",
        "--tokens",
        "8",
        "--batch",
        "8",
        "--out",
        "new",
        *MODEL,
    ),
    "sweep": ("missing.toml", "corpus.txt"),
    "runs": (".",),
    "runs --follow": ("model", "--once"),
    "runs --film": ("model",),
    "models": (".",),
    "info": MODEL,
    "info --card": ("model", "--context", "8", "--pieces", "1", "--top", "0"),
    "certify": ("missing",),
    "config": (),
    "config --completion": ("bash",),
    "mcp": ("--root", "missing"),
    "config --doctor": ("missing",),
    "export": ("model", "new", "--to", "huggingface"),
}
"""Words with which a command is quick; ``missing`` where it would begin another process."""

RECIPE = b"""
tokenizer = "char"
steps = 1
batch = 1
block = 4
warmup = 0
eval_every = 1
[model]
d_model = 4
n_layers = 1
n_heads = 1
d_ff = 4
context = 8
"""
EXAMPLE = (
    b'[given]\nA = [[1.0, 2.0], [3.0, 4.0]]\n[[step]]\nname = "B"\nvalue = "A @ A.T"\nclaim = [[5, 11], [11, 25]]\n'
)


@cache
def files() -> Files:
    """What the sound words name."""
    return {
        **within("model", bases.ours()),
        **within("sae", bases.sae()),
        "session.txt": b'run "the cat"\nstep\n',
        "labels.csv": b"text,label\nthe cat,1\na cat,1\nthe dog,2\na dog,2\n",
        "pairs.jsonl": b'{"clean": "the cat", "corrupt": "the dog", "answer": "#5", "versus": "#6"}\n' * 4,
        "logged.jsonl": b'{"ids": [5, 6, 7], "logprobs": [-1.0, -0.5]}\n',
        "corpus.txt": b"the cat sat\n\non the mat\n" * 20,
        "recipe.toml": RECIPE,
        "example.toml": EXAMPLE,
    }


@cache
def command(name: str) -> click.Command:
    from tinytf_cli.main import cli

    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@cache
def commands() -> tuple[str, ...]:
    """The commands that are there; one that SOUND does not know fails by its name."""
    from tinytf_cli.main import EVERY

    return tuple(name for name in EVERY if name != "sweep")


def takes_words(parameter: click.Parameter) -> bool:
    """Whether anything may be typed for a parameter: a text, a number, a path, no flag."""
    return not (isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count))


@cache
def parameters() -> tuple[tuple[str, click.Parameter], ...]:
    """Every command with every parameter that takes a word."""
    return tuple(_parameters())


def _parameters() -> Iterator[tuple[str, click.Parameter]]:
    for name in commands():
        for parameter in command(name).params:
            if takes_words(parameter):
                yield name, parameter


def with_word(name: str, parameter: click.Parameter, word: str) -> tuple[str, ...]:
    """The sound words of a command, and another word for one of its parameters."""
    sound = SOUND[name]
    if isinstance(parameter, click.Argument):
        begins = next((n for n, one in enumerate(sound) if one.startswith("-")), len(sound))
        place = [one for one in command(name).params if isinstance(one, click.Argument)].index(parameter)
        given = list(sound[:begins])
        given[place : place + 1] = [word]
        return (*name.split(), *sound[begins:], "--", *given)
    long = max(parameter.opts, key=len)
    return (*name.split(), *sound, f"{long}={word}" if long.startswith("--") else f"{long}{word}")
