"""Greedy generation beside transformers' generate, at the size of GPT-2 small and with the built-in tiny.

Batch 1, a prompt of 32 tokens; 128 new ones by GPT-2, 90 by tiny (its context is 128). Weights are random, and the
same in both; that the tokens are the same is checked first. A token takes at least the time that reading every
weight once takes: the bound is measured here too.

    python tests/benchmarks/generate.py --repeat 5
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from _timing import Row, in_turns, options, ratio, show, show_machine
from loading import write_gpt2

PROMPT, NEW, NEW_TINY = 32, 128, 90


def reading(weights: Any) -> Callable[[], object]:
    """Adds up every weight, in as many threads as torch has."""
    return lambda: [weight.detach().sum() for weight in weights]


def edited_rows(model: Any, ids: list[int], repeat: int) -> list[Row]:
    """Generation with a vector at one step, at one step of each layer, and by a function, beside the plain one.

    A vector takes each position by itself, so the cache and the kernels of the other rows stay; a function gets all
    tokens so far, so the whole text runs for each new one.
    """
    import torch

    from tinytf.generate.loop import stream

    vector = 0.1 * torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(0))

    def within(block: Callable[[], Any]) -> list[int]:
        with block():
            return [step.id for step in stream(model.transformer, ids, max_tokens=NEW_TINY)]

    runs = {
        "plain": partial(within, nullcontext),
        "a vector at a step": partial(within, lambda: model.steered({"L1.out": vector})),
        "a vector at every layer": partial(within, lambda: model.steered({"L*.out": vector})),
        "a function at a step": partial(within, lambda: model.edited({"L1.out": lambda x: x + vector})),
    }
    if runs["a vector at a step"]() != runs["a function at a step"]():
        raise SystemExit("a vector and a function that adds it generate different tokens")
    seconds = in_turns(runs, repeat)
    goals = {"a vector at a step": 1.5}
    return [Row(f"time, {name} / plain", ratio(seconds, name, "plain"), goal=goals.get(name)) for name in [*runs][1:]]


def main() -> int:
    parser = options(__doc__, repeat=5)
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled kernels out")
    chosen = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM

    from tinytf.checkpoints.huggingface.export import export
    from tinytf.checkpoints.huggingface.load import read_directory
    from tinytf.generate.decoder import Kind
    from tinytf.generate.loop import stream
    from tinytf.generate.score import quantization_cost
    from tinytf.loading import load
    from tinytf.model.transformer import Transformer

    show_machine("torch", "tinytf", "transformers", "numpy")

    def theirs(model: Any, ids: list[int], new: int) -> list[int]:
        made = model.generate(
            torch.tensor([ids]), max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        return list(made[0, len(ids) :].tolist())

    def ours(model: Transformer, ids: list[int], new: int, kind: Kind | None = None) -> list[int]:
        return [step.id for step in stream(model, ids, max_tokens=new, kind=kind or Kind())]

    def prompt(vocabulary: int) -> list[int]:
        return list(torch.randint(1, vocabulary, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist())

    def opened(folder: Path, dtype: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def loaded(folder: Path, dtype: str) -> Transformer:
        return read_directory(folder).load(getattr(torch, dtype)).transformer

    def rate(seconds: dict[str, list[float]], name: str, new: int) -> str:
        return f"{name} {new / median(seconds[name]):,.1f} tokens/s"

    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_gpt2(folder)
        ids = prompt(50_000)
        runs: dict[str, Callable[[], object]] = {}
        for dtype in ("float32", "bfloat16"):
            runs[f"transformers {dtype}"] = partial(theirs, opened(folder, dtype), ids, NEW)
            runs[f"tinytf {dtype}"] = partial(ours, loaded(folder, dtype), ids, NEW)
        exact = loaded(folder, "float32")
        runs["tinytf int8"] = partial(ours, exact, ids, NEW, Kind(quantize=True))
        if not chosen.no_compile:
            runs["tinytf compiled"] = partial(ours, exact, ids, NEW, Kind(compile=True))
            runs["tinytf compiled int8"] = partial(ours, exact, ids, NEW, Kind(compile=True, quantize=True))
        expected = runs["transformers float32"]()
        for mine in ("tinytf float32", "tinytf compiled"):
            if mine in runs and runs[mine]() != expected:
                raise SystemExit(f"{mine} and transformers generate different tokens")
        matrices = [weight for weight in exact.parameters() if weight.dim() == 2]
        runs["reading the weights"] = reading(matrices)
        seconds = in_turns(runs, chosen.repeat)
        bound = median(seconds["reading the weights"])
        size = sum(weight.nbytes for weight in matrices)
        goals = [("tinytf float32", "transformers float32", 1.7), ("tinytf bfloat16", "transformers bfloat16", 1.4)]
        goals += [] if chosen.no_compile else [("tinytf compiled", "transformers float32", 2.5)]
        rows = [
            Row(
                f"time, {mine} / {peer}",
                ratio(seconds, mine, peer),
                goal=1 / times,
                note=f"{rate(seconds, mine, NEW)}, {rate(seconds, peer, NEW)}",
            )
            for mine, peer, times in goals
        ]
        for mine in [name for name in runs if name.startswith("tinytf") and "int8" not in name and "16" not in name]:
            share = bound / (median(seconds[mine]) / NEW)
            rows.append(
                Row(
                    f"{mine}, share of the bound",
                    share,
                    note=f"{1 / bound:,.1f} tokens/s, {size / bound / 1e9:.1f} GB/s",
                )
            )
        for mine in [name for name in runs if "int8" in name]:
            cost = quantization_cost(exact, [*ids, *expected], compile="compiled" in mine)
            note = f"{rate(seconds, mine, NEW)}, {cost.cost:+.5f} nats a token on {cost.tokens} tokens"
            rows.append(Row(f"time, {mine} / tinytf float32", ratio(seconds, mine, "tinytf float32"), note=note))
        missed += show(f"GPT-2 small, {NEW} new tokens, median of {chosen.repeat}", rows)
    with tempfile.TemporaryDirectory() as name:
        tiny = load("tiny")
        export(tiny.transformer, tiny.tokenizer, Path(name) / "tiny")
        torch.set_num_threads(1)  # as the command line does for a model of this size; transformers is faster so, too
        ids = prompt(tiny.config.vocab_size)
        peer = opened(Path(name) / "tiny", "float32")
        runs = {
            "transformers": partial(theirs, peer, ids, NEW_TINY),
            "tinytf": partial(ours, tiny.transformer, ids, NEW_TINY),
        }
        if runs["tinytf"]() != runs["transformers"]():
            raise SystemExit("tinytf and transformers generate different tokens from tiny")
        seconds = in_turns(runs, 3 * chosen.repeat, warm=3)
        note = f"{rate(seconds, 'tinytf', NEW_TINY)}, {rate(seconds, 'transformers', NEW_TINY)}"
        row = Row("time, tinytf / transformers", ratio(seconds, "tinytf", "transformers"), goal=1 / 3, note=note)
        missed += show(f"tiny, {NEW_TINY} new tokens, median of {3 * chosen.repeat}", [row])
        missed += show(f"tiny under edits, {NEW_TINY} new tokens", edited_rows(tiny, ids, chosen.repeat))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
