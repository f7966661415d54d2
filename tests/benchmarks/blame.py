"""The damage of every tensor of another model, beside running every swap whole: the same numbers, compared first.

Weights are random (nothing is downloaded). What is timed as the loop is what everybody writes: put a tensor into the
model, run all of a text through it, take the tensor out.

    python tests/benchmarks/blame.py --repeat 3
"""

import copy
import sys

import torch
from _timing import Row, in_turns, options, ratio, show, show_machine, spread
from torch import Tensor

from tinytf.cause.damage import Damage, MeasuredText
from tinytf.cause.swaps import Swapping, Values, swapped
from tinytf.model.transformer import Transformer
from tinytf.presets import preset

GOAL = 0.8
"""The share of the loop's time: runs begin at half the depth on average, and no run does without the head."""
ALLOWED = 1e-3


def one_by_one(model: Transformer, ids: Tensor, swaps: list[Values], dtype: torch.dtype = torch.float32) -> Tensor:
    """The KL of each swap summed over the positions, a whole forward pass each; of logits in ``dtype``."""
    log_p = model(ids)[0].to(dtype).log_softmax(-1)
    found = []
    for values in swaps:
        with swapped(model, values):
            log_q = model(ids)[0].to(dtype).log_softmax(-1)
        found.append((log_p.exp() * (log_p - log_q)).sum())
    return torch.stack(found).double()


def together(model: Transformer, asked: MeasuredText, swaps: list[Values]) -> Tensor:
    swapping = Swapping(model)
    streams = swapping.streams(asked.ids)
    return Damage(swapping, streams, asked).of(swapping, streams, swaps)[:, 0]


@torch.no_grad()
def main() -> int:
    parser = options(__doc__, repeat=3)
    parser.add_argument("--tokens", type=int, default=16, help="length of the text (default 16)")
    parser.add_argument("--layers", type=int, default=12, help="layers of GPT-2 small (default 12)")
    chosen = parser.parse_args()
    config = preset("gpt2").but(n_layers=chosen.layers)
    model = Transformer.initialised(config, 0)
    generator = torch.Generator().manual_seed(1)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter += 0.1 * parameter.std().nan_to_num() * torch.randn(parameter.shape, generator=generator)
    swaps: list[Values] = [{path: one.data} for path, one in other.named_parameters() if one.dim() == 2]
    ids = torch.randint(config.vocab_size, (chosen.tokens,), generator=generator).tolist()
    asked = MeasuredText.of(model, ids, None)
    show_machine("torch")
    print(f"GPT-2 small, {chosen.layers} layers, {chosen.tokens} tokens, float32, random weights; {len(swaps)} swaps")
    ours, theirs = together(model, asked, swaps), one_by_one(model, asked.ids, swaps, torch.float64)
    apart = float(((ours - theirs) / theirs).abs().max())
    print(f"the KL of each differs by at most {apart:.1e} of it")
    if not apart < ALLOWED:
        raise SystemExit("they differ, so there is nothing to compare")
    runs = {"blame": lambda: together(model, asked, swaps), "loop": lambda: one_by_one(model, asked.ids, swaps)}
    seconds = in_turns(runs, chosen.repeat, warm=0)
    note = spread(seconds, "blame", "loop")
    return show(
        "Every tensor alone",
        [Row("blame / every swap run whole", ratio(seconds, "blame", "loop"), goal=GOAL, note=note)],
    )


if __name__ == "__main__":
    sys.exit(main())
