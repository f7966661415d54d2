"""Ablation and patching sweeps beside TransformerLens, at the size of GPT-2 small; and what a lens holds in memory.

Weights are random (nothing is downloaded), the same in all libraries. What is timed there is the loop that everybody
writes: one hooked forward pass for each head, or for each layer and position. Beside it are torch's hooks on GPT-2 of
transformers, batched by hand: one pass a layer, with a row for each head or position. All numbers are compared first.

    python tests/benchmarks/why.py --repeat 5
"""

import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from trace import encoding_of, in_transformers, peer_of, random_model  # the benchmark beside this one
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from _timing import Row, in_turns, options, ratio, show, show_machine, spread
from torch import Tensor, nn

from tinytf.api import Model
from tinytf.model import Transformer
from tinytf.presets import preset
from tinytf.trace.record import record

Change = Callable[[Tensor, int], None]
GOAL = 1 / 2
"""A sweep takes at most this share of the loop's time."""
ALLOWED = 1e-3


def asked(transformer: Transformer) -> Model:
    """A model to ask of traces, whose tokens are named by number."""
    numbers: Any = SimpleNamespace(vocab_size=transformer.config.vocab_size, shown=str)
    return Model("random", transformer, numbers, "")


def some_ids(vocabulary: int, length: int, seed: int) -> list[int]:
    return torch.randint(vocabulary, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def ablated_one_by_one(theirs: Any, ids: list[int], target: int, n_heads: int, n_layers: int) -> Tensor:
    """Log-probabilities of ``target`` at the last position, (layers, heads), a forward pass each."""
    found = torch.zeros(n_layers, n_heads)
    batch = torch.tensor([ids])
    for layer in range(n_layers):
        for head in range(n_heads):

            def zero(z: Tensor, hook: object, head: int = head) -> Tensor:
                heads = z if z.dim() == 4 else z.unflatten(-1, (n_heads, -1))  # a view: (B, T, H, D)
                heads[:, :, head] = 0.0
                return z

            logits = theirs.run_with_hooks(batch, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", zero)])
            found[layer, head] = logits[0, -1].log_softmax(-1)[target]
    return found


def patched_one_by_one(
    theirs: Any, clean: list[int], corrupt: list[int], answer: int, versus: int, n_layers: int
) -> Tensor:
    """Logit differences at the last position, (layers, positions), a forward pass each."""
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(n_layers)]
    _, cache = theirs.run_with_cache(torch.tensor([clean]), names_filter=lambda name: name in names)
    found = torch.zeros(n_layers, len(corrupt), dtype=torch.float64)
    batch = torch.tensor([corrupt])
    for layer, name in enumerate(names):
        for position in range(len(corrupt)):

            def put(stream: Tensor, hook: object, name: str = name, position: int = position) -> Tensor:
                stream = stream.clone()
                stream[:, position] = cache[name][:, position]
                return stream

            logits = theirs.run_with_hooks(batch, fwd_hooks=[(name, put)])
            found[layer, position] = logits[0, -1, answer].double() - logits[0, -1, versus].double()
    return found


def in_batches(model: Any, ids: list[int], rows: int, of_layer: Callable[[int], nn.Module], change: Change) -> Tensor:
    """Logits (layers, rows, V) of the last position in transformers' GPT-2: a pass a layer, hooked by hand.

    ``change`` writes into what the module of a layer reads, (rows, T, C).
    """
    batch, found = torch.tensor([ids]).expand(rows, -1), []
    for layer in range(model.config.n_layer):

        def hook(module: nn.Module, args: tuple[Any, ...], layer: int = layer) -> tuple[Any, ...]:
            changed = args[0].clone()
            change(changed, layer)
            return changed, *args[1:]

        handle = of_layer(layer).register_forward_pre_hook(hook)
        found.append(model(batch, logits_to_keep=1, use_cache=False).logits[:, -1])
        handle.remove()
    return torch.stack(found)


def ablated_in_batches(model: Any, ids: list[int], target: int) -> Tensor:
    """As ``ablated_one_by_one``."""
    heads = model.config.n_head

    def zero(side_by_side: Tensor, layer: int) -> None:
        by_head = side_by_side.unflatten(-1, (heads, -1))  # a view: (H, T, H, D)
        by_head[range(heads), :, range(heads)] = 0.0

    logits = in_batches(model, ids, heads, lambda layer: model.transformer.h[layer].attn.c_proj, zero)
    return logits.log_softmax(-1)[..., target]


def patched_in_batches(model: Any, clean: list[int], corrupt: list[int], answer: int, versus: int) -> Tensor:
    """As ``patched_one_by_one``."""
    streams = model(torch.tensor([clean]), output_hidden_states=True, use_cache=False).hidden_states
    positions = range(len(corrupt))

    def put(stream: Tensor, layer: int) -> None:
        stream[positions, positions] = streams[layer][0]

    logits = in_batches(model, corrupt, len(corrupt), lambda layer: model.transformer.h[layer], put).double()
    return logits[..., answer] - logits[..., versus]


def compared(what: str, ours: Tensor, theirs: Tensor) -> None:
    apart = float((ours - theirs).abs().max())
    print(f"{what}: {ours.numel()} numbers of the two libraries differ by at most {apart:.1e}")
    if not apart < ALLOWED:
        raise SystemExit("they differ, so there is nothing to compare")


def measure(
    what: str,
    ours: Callable[[], Tensor],
    theirs: Callable[[], Tensor] | None,
    batched: Callable[[], Tensor],
    repeat: int,
) -> list[Row]:
    runs = {"sweep": ours, "batched": batched} | ({} if theirs is None else {"loop": theirs})
    for other in (batched, theirs):
        if other is not None:
            compared(what, ours(), other())
    seconds = in_turns(runs, repeat, warm=0 if theirs is not None else 1)
    note = spread(seconds, *runs)
    rows = [Row("sweep / hooks batched by hand", ratio(seconds, "sweep", "batched"), note=note)]
    if theirs is not None:
        rows.insert(0, Row("sweep / loop in TransformerLens", ratio(seconds, "sweep", "loop"), goal=GOAL))
    return rows


def held_beyond(run: Callable[[], object]) -> int:
    """By how many bytes this process grew at most while ``run`` ran, looked at every millisecond."""
    process, done = psutil.Process(), threading.Event()
    before = most = process.memory_info().rss

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, process.memory_info().rss)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return most - before


def measure_lens(model: Transformer, repeat: int) -> list[Row]:
    """What a lens of 512 tokens holds beyond its trace, in units of one layer's logits."""
    length = 512
    trace = record(model, encoding_of(some_ids(model.config.vocab_size, length, 1)))
    lens = asked(model).lens
    lens(trace)  # what libraries keep from the first time on
    layer = length * model.config.vocab_size * 4
    held = [held_beyond(lambda: lens(trace)) for _ in range(repeat)]
    note = f"{min(held) / 2**20:.0f} to {max(held) / 2**20:.0f} MiB; one layer's logits are {layer / 2**20:.0f}"
    return [Row("memory / one layer's logits", median(held) / layer, goal=1.25, note=note)]


@torch.no_grad()
def main() -> int:
    parser = options(__doc__, repeat=5)
    parser.add_argument("--tokens", type=int, default=32, help="length of the texts (default 32)")
    parser.add_argument("--sweep", choices=["heads", "residual", "lens"], help="one of the three alone")
    parser.add_argument("--layers", type=int, default=12, help="layers (default 12); fewer for a quick look")
    chosen = parser.parse_args()
    ours: Transformer = random_model(preset("gpt2").but(n_layers=chosen.layers))
    peer: tuple[str, nn.Module] | None = peer_of(ours)
    show_machine("torch", *(["transformer-lens"] if peer else []))
    name = peer[0] if peer else "no TransformerLens"
    print(f"GPT-2 small, {chosen.layers} layers, {chosen.tokens} tokens, float32, random weights; {name}")
    config, theirs = ours.config, None if peer is None else peer[1]
    clean, corrupt = (some_ids(config.vocab_size, chosen.tokens, seed) for seed in (1, 2))
    assert clean[0] != corrupt[0], "positions that are the same in both texts would not be run"

    def heads() -> Tensor:
        found = asked(ours).ablate_sweep(record(ours, encoding_of(clean)), "heads")
        return found.change + found.effects[0].before

    def patches() -> Tensor:
        runs = [record(ours, encoding_of(ids)) for ids in (clean, corrupt)]
        return asked(ours).patch_sweep(*runs, "residual", answer=11, versus=13).values

    target = int(ours(torch.tensor([clean]))[0, -1].argmax())
    loops: list[Callable[[], Tensor] | None] = [None, None]
    if theirs is not None:
        loops = [
            lambda: ablated_one_by_one(theirs, clean, target, config.n_heads, config.n_layers),
            lambda: patched_one_by_one(theirs, clean, corrupt, 11, 13, config.n_layers),
        ]
    plain = in_transformers(ours)
    by_hand = (
        lambda: ablated_in_batches(plain, clean, target),
        lambda: patched_in_batches(plain, clean, corrupt, 11, 13),
    )
    missed = 0
    titles = {"heads": "Head ablation, layers × heads", "residual": "Patching the residual stream, layers × positions"}
    for (name, title), sweep, loop, batched in zip(titles.items(), (heads, patches), loops, by_hand, strict=True):
        if chosen.sweep in (None, name):
            missed += show(title, measure(title, sweep, loop, batched, chosen.repeat))
    if chosen.sweep in (None, "lens"):
        missed += show("Logit lens of 512 tokens", measure_lens(ours, chosen.repeat))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
