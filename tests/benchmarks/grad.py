"""The gradient of every step of 30 layers beside a plain forward and backward pass of the same model.

The size of SmolLM2-135M with random weights, 32 tokens, next-token loss. ``recorded`` keeps every step with its
gradient and those of the parameters; ``trace`` makes the table of them too and holds every formula by hand against
autograd, which is all that ``tinytf grad`` computes before it draws its first table. ``point`` is one of the points of
integrated gradients of seven tokens, beside a plain forward and backward pass of the same seven, which has the
gradients of the parameters too. With SmolLM2's own weights (TINYTF_REAL_WEIGHTS) all points that completeness takes are
timed as well.

    python tests/benchmarks/grad.py --repeat 5
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _timing import Row, in_turns, milliseconds, options, ratio, show, show_machine, spread

TOKENS, FEW = 32, 7


def main() -> int:
    chosen = options(__doc__, repeat=5).parse_args()
    import torch
    import torch.nn.functional as F

    from tinytf.config import ModelConfig
    from tinytf.gradients import saliency
    from tinytf.gradients.by_hand import agreement
    from tinytf.gradients.grad import backward_rows
    from tinytf.gradients.loss import Targets
    from tinytf.gradients.trace import record_gradients
    from tinytf.model.transformer import Transformer
    from tinytf.text.tokenizer import Encoding, Token

    show_machine("torch", "tinytf")
    config = ModelConfig.of(
        vocab_size=49_152, d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_ff=1536, context=2048,
        positions="rotary", norm="rmsnorm", gated=True, activation="silu", qkv_bias=False, o_bias=False,
        ffn_bias=False, tied_head=True,
    )  # fmt: skip
    model = Transformer.initialised(config, 0).eval()
    ids = torch.randint(0, config.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    encoding = Encoding("", tuple(Token(i, f"#{i}", 0, 0, b"", False) for i in ids), "")
    targets = Targets(tuple(range(TOKENS - 1)), tuple(ids[1:]))

    def plain(count: int = TOKENS) -> object:
        F.cross_entropy(model(torch.tensor([ids[:count]]))[0, :-1], torch.tensor(ids[1:count])).backward()
        model.zero_grad(set_to_none=True)
        return None

    recorded = partial(record_gradients, model, encoding, targets)

    def trace() -> object:
        found = recorded()
        return list(backward_rows(found, agreement(found)))

    runs: dict[str, Callable[[], object]] = {"plain": plain, "recorded": recorded, "trace": trace}
    seconds = in_turns(runs, chosen.repeat)
    rows = [
        Row("recorded / plain forward and backward", ratio(seconds, "recorded", "plain"), goal=3.0),
        Row("trace / plain forward and backward", ratio(seconds, "trace", "plain"), goal=3.0,
            note=spread(seconds, *runs)),
    ]  # fmt: skip
    few = Encoding("", encoding.tokens[:FEW], "")
    asked = Targets(tuple(range(FEW - 1)), tuple(ids[1:FEW]))
    saliency.PIECES = saliency.AT_ONCE  # a path of random weights is smooth: as many points as a real one takes at once

    few_runs = {"points": lambda: saliency.integrated_gradients(model, few, asked), "plain": partial(plain, FEW)}
    found = in_turns(few_runs, chosen.repeat)
    share = ratio(found, "points", "plain") / (2 * saliency.PIECES + 1)
    rows.append(Row("a point of the integral / plain", share, goal=0.5, note=spread(found, "points", "plain")))
    saliency.PIECES = 4
    real = os.environ.get("TINYTF_REAL_WEIGHTS")
    file = next(Path(real).rglob("SmolLM2*.gguf"), None) if real else None
    if file is not None:
        from tinytf.loading import load

        opened = load(str(file), device="cpu")
        text = opened.encode("The capital of France is the city")
        of = opened.transformer, text, Targets(tuple(range(FEW - 1)), tuple(text.ids[1:]))
        took = in_turns({"integrated": lambda: saliency.integrated_gradients(*of)}, 1, warm=0)
        rows.append(Row("integrated gradients of SmolLM2", milliseconds(took, "integrated") / 1000, "s", goal=30.0))
    return 1 if show(f"Gradients of {TOKENS} tokens through 30 layers, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
