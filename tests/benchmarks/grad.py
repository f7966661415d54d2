"""The gradient of every step of 30 layers beside a plain forward and backward pass of the same model.

The size of SmolLM2-135M with random weights, 32 tokens, next-token loss. ``recorded`` keeps every step with its
gradient and those of the parameters; ``trace`` makes the table of them too and holds every formula by hand against
autograd, which is all that ``tinytf grad`` computes before it draws its first table.

    python tests/benchmarks/grad.py --repeat 5
"""

import sys
from collections.abc import Callable
from functools import partial

from _timing import Row, in_turns, options, ratio, show, show_machine, spread

TOKENS = 32


def main() -> int:
    chosen = options(__doc__, repeat=5).parse_args()
    import torch
    import torch.nn.functional as F

    from tinytf.config import ModelConfig
    from tinytf.gradients.by_hand import agreement
    from tinytf.gradients.loss import Targets
    from tinytf.gradients.report import backward_rows
    from tinytf.gradients.trace import record_gradients
    from tinytf.model.transformer import Transformer
    from tinytf.text.tokenizer import Encoding, Token

    show_machine("torch", "tinytf")
    config = ModelConfig(
        vocab_size=49_152, d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_ff=1536, context=2048,
        positions="rotary", norm="rmsnorm", gated=True, activation="silu", qkv_bias=False, o_bias=False,
        ffn_bias=False, tied_head=True,
    )  # fmt: skip
    model = Transformer.initialised(config, 0).eval()
    ids = torch.randint(0, config.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    encoding = Encoding("", tuple(Token(i, f"#{i}", 0, 0, b"", False) for i in ids), "")
    targets = Targets(tuple(range(TOKENS - 1)), tuple(ids[1:]))

    def plain() -> object:
        F.cross_entropy(model(torch.tensor([ids]))[0, :-1], torch.tensor(ids[1:])).backward()
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
    return 1 if show(f"Gradients of {TOKENS} tokens through 30 layers, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
