"""What ``tinytf.watch`` costs a plain loop: the loop of train.py, alone and watched, in turns of 50 steps.

Each turn has one step at which layers are looked at, by default every fiftieth. The time of the processor says more on
a machine that others use too. Both loops begin with the same weights, get the same batches, and must end with the same
weights. The model returns logits and loss, as nanoGPT's does, so that its labels are looked at too.

    OMP_NUM_THREADS=1 python tests/benchmarks/watch.py --repeat 5
"""

import contextlib
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from _timing import Row, milliseconds, options, ratio, show, show_machine
from torch import Tensor
from train import BATCH, BLOCK, PlainGPT

import tinytf

CHUNK, VOCABULARY, GOAL = 50, 65, 1.03


class NanoGPT(PlainGPT):
    """The plain model with nanoGPT's results."""

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(ids)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def first_model() -> NanoGPT:
    """The model with its first weights."""
    torch.manual_seed(0)
    return NanoGPT(VOCABULARY)


def turn(model: NanoGPT, optimiser: torch.optim.Optimizer, first: int, watch: tinytf.watch | None) -> None:
    """Fifty steps as nanoGPT takes them."""
    for number in range(first, first + CHUNK):
        ids = torch.randint(VOCABULARY, (BATCH, BLOCK + 1), generator=torch.Generator().manual_seed(number))
        _, loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if watch is None:
            loss.item()
        else:
            watch.step(loss)


def main() -> int:
    chosen = options(__doc__, repeat=5).parse_args()
    show_machine("torch", "tinytf")
    models = {name: first_model() for name in ("bare loop", "watched loop")}
    optimisers = {name: torch.optim.AdamW(model.parameters(), lr=1e-3) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    busy: dict[str, list[float]] = {name: [] for name in models}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        watched = "watched loop"
        watch = ends.enter_context(tinytf.watch(models[watched], optimisers[watched], Path(folder) / "run"))
        for number in range(-1, chosen.repeat):
            for name in list(models)[:: 1 if number % 2 else -1]:
                start, before = time.perf_counter(), time.process_time()
                turn(models[name], optimisers[name], (number + 1) * CHUNK, watch if name == watched else None)
                if number >= 0:
                    seconds[name].append((time.perf_counter() - start) / CHUNK)
                    busy[name].append((time.process_time() - before) / CHUNK)
    pairs = zip(*(model.parameters() for model in models.values()), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    note = ", ".join(f"{name} {milliseconds(seconds, name):.1f} ms" for name in models)
    rows = [
        Row("a step, watched / bare", ratio(seconds, watched, "bare loop"), goal=GOAL, note=note),
        Row("the same in the processor's time", ratio(busy, watched, "bare loop"), goal=GOAL),
    ]
    return 1 if show(f"Watching a plain loop, {CHUNK} steps a turn, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
