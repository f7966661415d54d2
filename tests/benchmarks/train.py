"""A training step beside the same model in plain torch, at nanoGPT's documented size for a processor.

Characters, 4 layers, 4 heads, d_model 128, block 64, batch 12, no dropout. Two peers, restated here in plain torch: a
loop as nanoGPT's (loss of every position, AdamW, clipping, the loss read every step), and the barest loop that trains
(the same without clipping and without reading the loss). tinytf's own loop writes its metrics, measures its heads and
checks its numbers, in float32 and with its matrix products in bfloat16 (--dtype bfloat16). Batches and
first weights are the same in all.
The text is of the stories that samples/stories makes up. ``--steps 2000`` goes on from where the rounds end to so many
steps, and compares the loss on text that none was trained on.

On a machine that others use too, the time of the processor with one thread (OMP_NUM_THREADS=1) says most.

    python tests/benchmarks/train.py --repeat 7 --steps 2000

``--memory 5`` measures instead the most memory of processes that train 200 steps by one of the loops, in turns.
"""

import argparse
import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from _timing import Row, milliseconds, options, ratio, show, show_machine
from torch import Tensor, nn

from tinytf.text.corpus import find_files
from tinytf.training.data.examples import NextToken
from tinytf.training.loop import Loop
from tinytf.training.observers.inside import Explanation
from tinytf.training.recipe import Recipe
from tinytf.training.start import started
from tinytf.training.train import _choose_speed, give_observers
from tinytf.training.tuning.losses import held_out_loss as measured
from tinytf.training.tuning.optimiser import learning_rate
from tinytf.training.tuning.speed import Speed

ROOT = Path(__file__).resolve().parents[2]
SIZE = {"d_model": 128, "n_layers": 4, "n_heads": 4, "d_ff": 512, "context": 64, "qkv_bias": False, "o_bias": False,
        "ffn_bias": False, "positions": "learned", "norm": "layernorm", "activation": "gelu",
        "gated": False}  # fmt: skip
BLOCK, BATCH, CHUNK = 64, 12, 20
Batches = Callable[[int], tuple[Tensor, Tensor]]


class PlainBlock(nn.Module):
    """Pre-norm attention and feed-forward, as nanoGPT has them with bias=False."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PlainGPT(nn.Module):
    """The same architecture as tinytf's, with q, k and v in one matrix."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, 128), nn.Embedding(BLOCK, 128)
        self.blocks = nn.ModuleList(PlainBlock(128, 4) for _ in range(4))
        self.norm = nn.LayerNorm(128)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def logits(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)  # (B, T, V)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(ids).flatten(0, 1), targets.flatten())


def plain_step(
    model: PlainGPT, batches: Batches, rate: Callable[[int], float], losses: list[float], *, bare: bool
) -> Callable[[int], None]:
    """One step of the plain model; ``bare`` leaves clipping and reading the loss out."""
    matrices, vectors = ([p for p in model.parameters() if (p.dim() >= 2) is wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=bare)

    def step(number: int) -> None:
        for group in optimiser.param_groups:
            group["lr"] = rate(number)
        loss = model(*batches(number))
        loss.backward()
        if not bare:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if not bare:
            losses.append(loss.item())

    return step


def plain_model(vocabulary: int) -> PlainGPT:
    """The plain model with its first weights."""
    torch.manual_seed(0)
    return PlainGPT(vocabulary)


@torch.no_grad()
def held_out_loss(model: PlainGPT, examples: NextToken) -> float:
    """Mean loss in nats a token over the held-out text."""
    losses = [(float(model(batch.ids, batch.targets)), batch.targets.numel()) for batch in examples.held_out(None)]
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)


def recipe_of(dtype: str, steps: int) -> Recipe:
    """nanoGPT's setting for Shakespeare's characters on a processor; without ``steps``, at a constant rate."""
    pace = {"steps": steps, "warmup": 100} if steps else {"steps": 10**6, "warmup": 0, "schedule": "constant"}
    return Recipe(
        model=SIZE, tokenizer="char", block=BLOCK, batch=BATCH, lr=1e-3, beta2=0.99, eval_every=10**6, held_out=0.1,
        dtype=dtype, sample_tokens=0, first_weights="normal", **pace,
    )  # fmt: skip


@torch.no_grad()
def take_weights(model: nn.Module, plain: PlainGPT) -> None:
    """Begin with the weights of the plain model."""
    weights = plain.state_dict()
    for name, parameter in model.named_parameters():
        theirs = name.replace("embed.", "").replace("attention.", "").replace("ffn.", "").replace("final_norm", "norm")
        letter = theirs.removesuffix(".weight")[-1]
        if theirs in weights:
            parameter.copy_(weights[theirs])
        else:  # q, k and v lie in one matrix
            parameter.copy_(weights[theirs.replace(f"{letter}.weight", "qkv.weight")].chunk(3)["qkv".index(letter)])


def begun(text: str, out: Path, recipe: Recipe) -> Loop:
    """A run of tinytf's own loop before its first step, with all that watches it."""
    out.mkdir()
    corpus, device = find_files(text), torch.device("cpu")
    loop = started(corpus, recipe, out, device)
    take_weights(loop.model, plain_model(loop.model.config.vocab_size))
    give_observers(loop, corpus, Explanation(loop, 0, ()), (), False, lambda *_: None, print)
    _choose_speed(loop, print)  # with OMP_NUM_THREADS too, which only sets the threads here
    for observer in loop.observers:
        observer.begin(loop)
    return loop


def stepped(loop: Loop) -> None:
    """One step, computed as the run has chosen."""
    with Speed(loop.recipe.threads, loop.recipe.kernel).used():
        loop.step()


def peak_bytes(loop: str, text: str, out: Path) -> int:
    """The most memory of this process (ru_maxrss) after training 200 steps by ``loop``: tinytf's, or nanoGPT's."""
    if loop == "tinytf":
        run = begun(text, out / "run", recipe_of("float32", 0))
        for _ in range(200):
            stepped(run)
    else:
        table = {character: number for number, character in enumerate(sorted(set(text)))}
        stream = torch.tensor([table[character] for character in text], dtype=torch.uint8)

        def batches(number: int) -> tuple[Tensor, Tensor]:
            starts = torch.randint(len(stream) - BLOCK, (BATCH,), generator=torch.Generator().manual_seed(number))
            windows = torch.stack([stream[start : start + BLOCK + 1] for start in starts.tolist()]).long()
            return windows[:, :-1], windows[:, 1:]

        step = plain_step(plain_model(len(table)), batches, lambda _: 1e-3, [], bare=False)
        for number in range(200):
            step(number)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(repeat: int, arguments: list[str]) -> int:
    """Compare the memory of processes that run one after the other, in turns."""
    peaks: dict[str, list[float]] = {"tinytf": [], "nanoGPT's loop": []}
    for _ in range(repeat):
        for loop, values in peaks.items():
            command = [sys.executable, __file__, "--only", loop, *arguments]
            values.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]))
    note = ", ".join(f"{loop} {statistics.median(values) / 2**20:.0f} MiB" for loop, values in peaks.items())
    row = Row("most memory, tinytf / nanoGPT's loop", ratio(peaks, "tinytf", "nanoGPT's loop"), goal=1.1, note=note)
    return 1 if show(f"Memory of a training of characters, 200 steps, median of {repeat}", [row]) else 0


def main() -> int:
    parser = options(__doc__, repeat=7)
    parser.add_argument("--steps", type=int, default=0, help="compare held-out losses after so many steps (0: not)")
    parser.add_argument("--text", type=Path, help="train on this text instead of the stories")
    parser.add_argument("--memory", type=int, default=0, help="measure memory, in so many turns (0: time)")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.memory:
        return memory(chosen.memory, ["--text", str(chosen.text)] if chosen.text else [])
    sys.path.insert(0, str(ROOT / "samples" / "stories"))
    from generate import stories

    text = chosen.text.read_text("utf-8") if chosen.text else "\n\n".join(itertools.islice(stories(seed=1), 300))
    if chosen.only:
        with tempfile.TemporaryDirectory() as name:
            sys.stdout.write(f"{peak_bytes(chosen.only, text, Path(name))}\n")
        return 0
    show_machine("torch", "tinytf")
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        dtypes = (("tinytf", "float32"), ("bfloat16", "bfloat16"))
        runs = {key: begun(text, out / key, recipe_of(dtype, chosen.steps)) for key, dtype in dtypes}
        examples, vocabulary = runs["tinytf"].setup.examples, runs["tinytf"].setup.tokenizer.vocab_size

        def batches(number: int) -> tuple[Tensor, Tensor]:
            batch = examples.batch(number)
            return batch.ids, batch.targets

        def rate(number: int) -> float:
            return learning_rate(number, runs["tinytf"].recipe)

        theirs: list[float] = []
        nano, bare = plain_model(vocabulary), plain_model(vocabulary)
        steps: dict[str, Callable[[int], object]] = {
            "tinytf": lambda _: stepped(runs["tinytf"]),
            "tinytf bfloat16": lambda _: stepped(runs["bfloat16"]),
            "nanoGPT's loop": plain_step(nano, batches, rate, theirs, bare=False),
            "bare loop": plain_step(bare, batches, rate, theirs, bare=True),
        }
        seconds: dict[str, list[float]] = {key: [] for key in steps}
        busy: dict[str, list[float]] = {key: [] for key in steps}
        names = list(steps)
        for turn in range(-1, chosen.repeat):
            for key in names[turn % 4 :] + names[: turn % 4]:
                start, busy_before = time.perf_counter(), time.process_time()
                for number in range(CHUNK):
                    steps[key]((turn + 1) * CHUNK + number)
                if turn >= 0:
                    seconds[key].append((time.perf_counter() - start) / CHUNK)
                    busy[key].append((time.process_time() - busy_before) / CHUNK)
        lines = (out / "tinytf" / "metrics.jsonl").read_text("utf-8").splitlines()
        heads = sum("heads" in json.loads(line) for line in lines)
        apart = max(abs(json.loads(line)["loss"] - loss) for line, loss in zip(lines[:CHUNK], theirs, strict=False))
        losses: dict[str, float] = {}
        for number in range((chosen.repeat + 1) * CHUNK, chosen.steps):
            for key in names[:3]:
                steps[key](number)
        if chosen.steps:
            losses = {key: measured(runs[key].model, examples) or math.nan for key in runs}
            losses["nanoGPT's loop"] = held_out_loss(nano, examples)
    note = ", ".join(f"{key} {milliseconds(seconds, key):.1f} ms" for key in steps)
    least = ", ".join(f"{key} {min(values) * 1000:.1f} ms" for key, values in seconds.items())
    rows = [
        Row("a step, tinytf / bare loop", ratio(seconds, "tinytf", "bare loop"), goal=1.05, note=note),
        Row("a step, tinytf / nanoGPT's loop", ratio(seconds, "tinytf", "nanoGPT's loop"), goal=0.8),
        Row("the same, the fastest round of each", min(seconds["tinytf"]) / min(seconds["nanoGPT's loop"]), note=least),
        Row("the same in the processor's time", ratio(busy, "tinytf", "nanoGPT's loop")),
        Row(
            "a step in bfloat16, tinytf / nanoGPT's loop", ratio(seconds, "tinytf bfloat16", "nanoGPT's loop"), goal=0.8
        ),
        Row(f"largest difference of a loss in the first {CHUNK} steps", apart, "nats", goal=1e-4),
        Row("heads measured in these steps", float(heads), ""),
    ]
    if losses:
        peer = losses.pop("nanoGPT's loop")
        rows += [
            Row(
                f"held-out loss, {key} − nanoGPT's loop", loss - peer, "nats", goal=0.02, note=f"{loss:.4f}, {peer:.4f}"
            )
            for key, loss in losses.items()
        ]
    return 1 if show(f"Training characters, {CHUNK} steps a round, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
