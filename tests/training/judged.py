"""Small runs that are healthy or were broken on purpose, for tests and for the table of what is said of them.

``python tests/training/judged.py --write`` trains them all and writes the table into docs/training.md.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "samples" / "stories"))

from generate import stories
from tokenizers import AddedToken
from training_runs import STORY

import tinytf
from tinytf.model.transformer import Transformer
from tinytf.runs.history import History
from tinytf.runs.reader import read_history
from tinytf.runs.verdict import verdict_of
from tinytf.text.chat import ChatTemplate
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import train_bpe
from tinytf.training.data.examples import IGNORED, Batch, NextToken
from tinytf.training.recipe import Recipe
from tinytf.training.train import train

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "training.md"
USUAL: dict[str, Any] = {
    "model": {"d_model": 32, "n_layers": 2, "n_heads": 2}, "vocab_size": 400, "block": 32, "batch": 8, "steps": 150,
    "eval_every": 50, "probe_every": 50, "sample_tokens": 0, "held_out": 0.1,
}  # fmt: skip
LETTERS = {
    "model": {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 16, "context": 32}, "vocab_size": 0,
    "tokenizer": "char", "block": 16, "batch": 4, "steps": 120, "eval_every": 40, "probe_every": 60, "held_out": 0.2,
    "lr": 1e-2,
}  # fmt: skip
CHATML = (ROOT / "tests" / "text" / "chat_templates" / "chatml.jinja").read_text("utf-8")


@cache
def corpus(name: str) -> Any:
    """A corpus as ``train`` takes it."""
    if name == "docs":
        return "\n\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("[a-m]*.md")))[:200_000]
    if name == "code":
        files = sorted((ROOT / "tinytf" / "steps").rglob("*.py"))
        return "\n\n".join(path.read_text("utf-8") for path in files)[:150_000]
    if name == "stories":
        return "\n\n".join(islice(stories(1), 300))
    if name == "more":
        return "\n\n".join(islice(stories(2), 300))
    if name == "sums":
        draw = np.random.default_rng(0).integers(0, 100, (2000, 2)).tolist()
        return "\n\n".join(f"{a} + {b} = {a + b}" for a, b in draw)
    if name == "pairs":
        words = ("red", "blue", "old", "new", "big", "tall")
        rows = [{"source": f"{one} {two} {n}", "target": f"{n} {two} {one}"}
                for n in range(100, 130) for one in words for two in words]  # fmt: skip
        return [rows[at] for at in np.random.default_rng(0).permutation(len(rows))]
    if name == "talks":
        return [{"messages": [{"role": "user", "content": f"What is {a} and {b}?"},
                              {"role": "assistant", "content": f"It is {a + b}, of course."}]}
                for a in range(12) for b in range(12)]  # fmt: skip
    return {"letters": STORY, "one line": "The cat sat on the mat and looked at the dog. " * 200,
            "a page": (ROOT / "docs" / "why.md").read_text("utf-8")[:3000]}[name]  # fmt: skip


def talker(_: Recipe) -> tuple[Tokenizer, Transformer]:
    """A new model with a chat template."""
    made = train_bpe([json.dumps(corpus("talks"))], 300)
    made.library.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    end = made.library.token_to_id("<|im_end|>")
    tokenizer = Tokenizer(made.library, [end], chat=ChatTemplate({"default": CHATML}))
    model = Recipe(model={**USUAL["model"], "context": 64}, block=64).model_config(tokenizer.vocab_size)
    return tokenizer, Transformer.initialised(model, 0)


def built_in(_: Recipe) -> tuple[Tokenizer, Transformer]:
    opened = tinytf.load("tiny", device="cpu")
    return opened.tokenizer, opened.transformer


def storyteller(_: Recipe) -> tuple[Tokenizer, Transformer]:
    with tempfile.TemporaryDirectory() as folder:
        HEALTHY["stories"].trained(Path(folder) / "run")
        opened = tinytf.load(Path(folder) / "run", device="cpu")
        return opened.tokenizer, opened.transformer


def lame(recipe: Recipe) -> tuple[None, Transformer]:
    """A model in whose first layer no unit can be above 0."""
    model = Transformer.initialised(recipe.model_config(len(set(STORY))), 0)
    with torch.no_grad():
        model.blocks[0].ffn.up.bias.fill_(-100.0)
    return None, model


def _unshifted(windows: np.ndarray) -> Batch:
    ids = torch.from_numpy(windows[:, :-1].astype(np.int64))
    return Batch(ids, ids.clone(), None)


def _shifted_twice(windows: np.ndarray) -> Batch:
    batch = _unshifted(windows)
    batch.targets[:, :-2] = batch.ids[:, 2:]
    batch.targets[:, -2:] = IGNORED
    return batch


_DRAWN = NextToken._drawn


@dataclass(frozen=True)
class Case:
    """A run: its corpus, what its recipe changes, and what it begins from; ``wrong`` is broken in the data."""

    about: str
    corpus: str
    changes: dict[str, Any] = field(default_factory=dict)
    begin: Callable[[Recipe], tuple[Any, Any]] = lambda _: (None, None)
    wrong: tuple[str, Any] | None = None

    def trained(self, folder: Path) -> History:
        base = LETTERS if self.corpus == "letters" else {}
        model = {**base.get("model", USUAL["model"]), **self.changes.get("model", {})}
        begun = {"begun_from": "a model"} if self.begin in (talker, built_in, storyteller, lame) else {}
        model = {} if begun and self.begin is not lame else model
        recipe = Recipe.from_dict({**USUAL, **base, **begun, **self.changes, "model": model})
        tokenizer, first = self.begin(recipe)
        with _patched(self.wrong):
            train(corpus(self.corpus), recipe, folder, tokenizer=tokenizer, model=first)
        return read_history(folder)


@contextmanager
def _patched(wrong: tuple[str, Any] | None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if wrong is not None:
            patch.setattr(NextToken, *wrong)
        yield


GPT2 = {"norm": "layernorm", "activation": "gelu", "gated": False, "positions": "learned", "qkv_bias": True}
BERT = Recipe.given(Path("bert"))
WORDS = {"objective": "masked", "vocab_size": 500, "steps": 300, "lr": 3e-3}
HEALTHY = {
    "letters": Case("24 sentences, letters", "letters"),
    "a smaller rate": Case("the same, lr 3e-3", "letters", {"lr": 3e-3}),
    "linear": Case("the same, a linear schedule, seed 1", "letters", {"schedule": "linear", "seed": 1}),
    "dropout": Case("the same, dropout 0.1, a fifth repeats", "letters", {"model": {"dropout": 0.1}, "repeats": 0.2}),
    "docs": Case("these pages", "docs"),
    "GPT-2": Case("these pages, the parts of GPT-2", "docs", {"model": GPT2, "first_weights": "normal"}),
    "wide": Case("these pages, d_model 96, one layer", "docs", {"model": {"d_model": 96, "n_layers": 1}}),
    "deep": Case("these pages, 6 layers, seed 2", "docs", {"model": {"n_layers": 6}, "seed": 2}),
    "code": Case("Python code", "code"),
    "letters of code": Case("Python code, letters", "code", {"tokenizer": "char", "vocab_size": 0, "block": 64}),
    "stories": Case("stories", "stories", {"schedule": "wsd"}),
    "half": Case("stories, bfloat16, in 2 parts", "stories", {"dtype": "bfloat16", "accumulate": 2}),
    "experts": Case("stories, 4 experts, 2 a token", "stories", {"model": {"experts": 4, "experts_per_token": 2}}),
    "copying": Case("stories after repeated tokens", "stories", {"repeats_first": 50, "repeats": 0.3}),
    "sums": Case("sums of two numbers", "sums", {"document_starts": 0.9}),
    "masked": Case("stories, masked", "stories", WORDS),
    "BERT": Case(
        "these pages, `--recipe bert`", "docs", {**BERT, **WORDS, "model": {**BERT["model"], **USUAL["model"]}}
    ),
    "translate": Case(
        "three words in another order", "pairs", {"objective": "translate", "vocab_size": 0, "steps": 300}
    ),
    "chat": Case("questions and answers", "talks", {"objective": "chat", "block": 64, "lr": 3e-3}, talker),
    "fine-tuning": Case("more stories, from the run above", "more", {"vocab_size": 0}, storyteller),
    "LoRA": Case("more stories, from the run above, LoRA", "more", {"vocab_size": 0, "lora": 8}, storyteller),
}
BROKEN = {
    "diverged": Case("letters, lr 10 without warm-up", "letters", {"lr": 10.0, "warmup": 0, "final_lr": 0.9}),
    "stuck at ln V": Case("letters, lr 1e-8", "letters", {"lr": 1e-8}),
    "labels shifted wrongly": Case(
        "letters, each its own label", "letters", wrong=("_shifted", staticmethod(_unshifted))
    ),
    "labels shifted wrongly, twice": Case(
        "letters, labels of the token after the next", "letters", wrong=("_shifted", staticmethod(_shifted_twice))
    ),
    "data all the same": Case("one sentence, 200 times", "one line", {"vocab_size": 0}),
    "data all the same, a loader": Case(
        "letters, the same batch again and again", "letters",
        wrong=("_drawn", lambda self, _: _DRAWN(self, np.random.default_rng(0))),
    ),
    "below token counts": Case("letters, lr 1e-4", "letters", {"lr": 1e-4}),
    "clipped at every step": Case("letters, gradients clipped to 0.001", "letters", {"clip": 1e-3}),
    "dead units": Case(
        "letters, ReLU with biases of -100 in the first layer", "letters",
        {"model": {"activation": "relu", "gated": False, "ffn_bias": True}}, lame,
    ),
    "learning by heart": Case(
        "a page, 300 steps", "a page",
        {"tokenizer": "char", "vocab_size": 0, "model": {"d_model": 64}, "lr": 1e-2, "steps": 300},
    ),
    "worse again": Case("stories, from `tiny` with lr 0.01", "stories", {"vocab_size": 0, "lr": 1e-2}, built_in),
}  # fmt: skip
"""Runs by the fault that is said of them, before a comma."""


def rows() -> Iterator[str]:
    yield "| run | held-out, first and last | unigrams, bigrams | what is said |\n|---|---|---|---|"
    for name, case in {**HEALTHY, **BROKEN}.items():
        with tempfile.TemporaryDirectory() as folder:
            history = case.trained(Path(folder) / "run")
            verdict = verdict_of(history)
            held_out = ", ".join(f"{history.held_out[at][1]:.2f}" for at in (0, -1))
            counts = ", ".join(f"{loss:.2f}" for loss in history.baselines.values())
        sys.stderr.write(f"{name}: {verdict}\n")
        yield f"| {case.about} | {held_out} | {counts} | {'' if verdict is None else verdict.text} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/training.md")
    options = parser.parse_args()
    table = "\n".join(rows())
    sys.stdout.write(f"{table}\n")
    if options.write:
        page = PAGE.read_text("utf-8")
        block = re.compile(r"(<!-- judged runs -->\n).*?(\n<!-- /judged runs -->)", re.DOTALL)
        PAGE.write_text(block.sub(lambda found: f"{found[1]}{table}{found[2]}", page), "utf-8")


if __name__ == "__main__":
    main()
