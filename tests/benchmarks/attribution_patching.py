"""Attribution patching beside exact patching: every head of SmolLM2 135M, from a prompt about who gave what to whom.

Both start from the recordings of the two texts; a second table has both from the texts on. The weights are found below
the folder that TINYTF_REAL_WEIGHTS names, or given by --model.

    TINYTF_REAL_WEIGHTS=~/weights python tests/benchmarks/attribution_patching.py --repeat 3
"""

import os
import sys
from pathlib import Path

from _timing import Row, in_turns, options, ratio, show, show_machine, spread

from tinytf.loading import load

GOAL = 1 / 20
"""An estimate takes at most this share of the sweep's time."""
CLEAN = "When Mary and John went to the store, John gave a drink to"
CORRUPT = "When Mary and John went to the store, Mary gave a drink to"
BEFORE = "It was a cold and rainy afternoon in the middle of November, and most of the shops had closed early. "


def main() -> int:
    parser = options(__doc__, repeat=3)
    parser.add_argument("--model", help="the weights (default: SmolLM2 below TINYTF_REAL_WEIGHTS)")
    parser.add_argument("--sweep", choices=["heads", "attn", "ffn", "residual"], default="heads")
    parser.add_argument("--short", action="store_true", help="leave out the sentence before the prompt")
    chosen = parser.parse_args()
    found = sorted(Path(os.environ.get("TINYTF_REAL_WEIGHTS", os.devnull)).rglob("SmolLM2-135M-Instruct.Q4_1.gguf"))
    if chosen.model is None and not found:
        parser.error("TINYTF_REAL_WEIGHTS names no folder with SmolLM2, and there is no --model")
    model = load(chosen.model or str(found[0]))
    show_machine("torch")
    texts = [("" if chosen.short else BEFORE) + text for text in (CLEAN, CORRUPT)]
    clean, corrupt = (model.trace(text) for text in texts)
    tokens = {"answer": "Mary", "versus": "John"}
    over = chosen.sweep
    print(f"{model.name}, {model.config.n_layers} layers × {model.config.n_heads} heads, {len(clean.tokens)} tokens")
    missed = 0
    for how in ("gradient", "integrated"):
        beside = model.patch_estimate(clean, corrupt, over, how=how, exact=True, **tokens).beside
        assert beside is not None
        print(f"{how}: rank correlation {beside.rank_correlation:.3f} over {beside.sites} sites; they differ most at "
              f"{beside.worst}, estimated {beside.worst_estimated:+.4f}, exact {beside.worst_exact:+.4f}")  # fmt: skip
    for title, given, goal in (
        ("From two recordings", (clean, corrupt), GOAL if over == "heads" else None),
        ("From two texts", texts, None),
    ):
        first, second = given
        runs = {
            "gradient": lambda: model.patch_estimate(first, second, over, **tokens),  # noqa: B023 - runs in this turn
            "integrated": lambda: model.patch_estimate(first, second, over, how="integrated", **tokens),  # noqa: B023
            "sweep": lambda: model.patch_sweep(first, second, over, **tokens),  # noqa: B023
        }
        seconds = in_turns(runs, chosen.repeat)
        note = spread(seconds, *runs)
        rows = [Row("gradient / sweep", ratio(seconds, "gradient", "sweep"), goal=goal, note=note),
                Row("integrated / sweep", ratio(seconds, "integrated", "sweep"))]  # fmt: skip
        missed += show(title, rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
