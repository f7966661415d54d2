"""``tinytf help researcher``: the commands of one kind of reader first, each with a line that runs."""

from collections.abc import Mapping

from tinytf_cli.command import GROUPS

_TEXT = '"The cat sat on the"'
READERS: Mapping[str, Mapping[str, str]] = {
    "researcher": {
        "attribute": _TEXT,
        "ablate": f"{_TEXT} --sweep heads",
        "patch": '"I lost the ball. I lost the" "I lost the hat. I lost the"',
        "circuit": '"I lost the ball. I lost the" "I lost the hat. I lost the" --level nodes',
        "pairs": "agreement -n 20 -o pairs.jsonl",
        "heads": "",
        "weights": "L1H2",
        "lens": f"{_TEXT} --track mat",
        "neurons": _TEXT,
        "train-sae": "book.txt --at L2.out --tokens 20000 --out my-sae",
        "features": f"{_TEXT} --sae my-sae",
        "probe": "--labels labels.jsonl",
        "steer": "moods.jsonl --at L1.out",
        "record": "book.txt --at L2.out --out acts",
        "state": f"{_TEXT} -m preset:mamba-tiny",
        "experts": f"{_TEXT} -m preset:mixtral-tiny",
    },
    "learner": {
        "learn": "softmax",
        "tokens": _TEXT,
        "trace": _TEXT,
        "attention": _TEXT,
        "explain": "'L1H2.scores[sat,cat]' " + _TEXT,
        "generate": f"{_TEXT} --watch --max-tokens 5",
        "neighbours": "cat dog cow",
        "lens": _TEXT,
        "grad": _TEXT,
        "verify": "",
        "explore": _TEXT,
        "repl": "-c 'run The cat sat' -c 'print L1H2.weights'",
    },
    "porter": {
        "check": "my_gpt.py:GPT --like gpt2-tiny",
        "diff": '"The cat sat" -m preset:gpt2-tiny --versus preset:gpt2-tiny',
        "same": _TEXT,
        "info": "preset:gpt2",
        "models": "",
        "export": "tiny exported",
        "certify": "exported",
        "blame": f"{_TEXT} -m preset:gpt2-tiny --versus preset:gpt2-tiny --top 2",
        "config": "",
        "mcp": "",
    },
    "trainer": {
        "train": "book.txt --recipe recipe.toml --out runs/book",
        "runs": "",
        "sweep": "recipe.toml book.txt --lr 1e-3,3e-3",
        "score": '-m runs/book "The cat"',
        "generate": '-m runs/book "The"',
        "grad": '-m runs/book "The cat"',
        "export": "runs/book my-model",
    },
}
"""By kind of reader: the commands that it needs, those that it needs first in front, and what a line of each gives.

The files that the lines name are the reader's own; those that a line makes are read by later ones.
"""
_SHORT = {"research": "researcher", "port": "porter"}  # learn and train are commands


def lines_for(word: str) -> list[tuple[str, str]]:
    """The lines for a kind of reader, each with what its command does; empty for another word."""
    about = {name: summary for summaries in GROUPS.values() for name, summary in summaries.items()}
    commands = READERS.get(_SHORT.get(word, word), {})
    return [(f"{name} {words}".strip(), about[name]) for name, words in commands.items()]
