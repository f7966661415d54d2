"""The lesson on warm-up, schedule and clipping, with the picture of ``tinytf train --dry-run``."""

from torch.nn.utils import get_total_norm

from tinytf.learn.lesson import Lesson, LiveTable, Question, figure
from tinytf.learn.live import Live
from tinytf.training.pace import Pace
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.optimiser import learning_rate

_RECIPE = Recipe()


def schedule(live: Live) -> Lesson:
    norm = float(get_total_norm(list(live.gradients.parameters.values()))) if live.has_head else None
    pace, warmup, count = Pace(_RECIPE, norm), _RECIPE.warmup, _RECIPE.steps
    steps = {1: "warm-up", warmup // 2: "warm-up", warmup: "the peak", (warmup + count) // 2: _RECIPE.schedule,
             count: "the last"}  # fmt: skip
    rates = LiveTable(
        ("step", "learning rate", ""), tuple((n, learning_rate(n - 1, _RECIPE), part) for n, part in steps.items())
    )
    return live.lesson(
        "schedule",
        _of_a_step(live, warmup // 4) if norm is None else _of_clipping(live, pace, norm),
        rates,
        variant="headless" if norm is None else "",
        pace=pace,
        recipe=_RECIPE,
        last=live.config.n_layers - 1,
    )


def _of_clipping(live: Live, pace: Pace, norm: float) -> Question:
    limit, factor = _RECIPE.clip, pace.clipped_by
    return live.ask("schedule").number(
        f"All gradients of this text together have length {figure(norm)}, and clipping allows {limit:g}. By what is "
        "each of them multiplied?",
        factor,
        [
            (norm / limit, "That is the length over the limit: it would make a long gradient longer."),
            (1.0, "That leaves them as long as they are, which is more than the limit."),
            (limit / max(norm, 1e-12), "That would make them longer, and clipping only shortens."),
            (norm - limit, "That is how far the length is above the limit."),
            (0.0, "That would leave nothing of them."),
        ],
        f"min(1, {limit:g} / {figure(norm)}) = {figure(factor)}, and their length becomes {figure(norm * factor)}. "
        "tinytf train --dry-run draws the rates and the clipping of a run of yours.",
    )


def _of_a_step(live: Live, step: int) -> Question:
    peak, warmup, count = _RECIPE.lr, _RECIPE.warmup, _RECIPE.steps
    return live.ask("schedule").number(
        f"Warm-up takes {warmup} of {count:,} steps, and ends at {peak:g}. What is the learning rate of step {step}?",
        learning_rate(step - 1, _RECIPE),
        [
            (peak, f"That is the rate of step {warmup}."),
            (peak * step / count, f"That divides by all {count:,} steps, and warm-up has {warmup}."),
            (peak * _RECIPE.final_lr, "That is where the schedule ends."),
        ],
        f"{peak:g} × {step} / {warmup} = {figure(learning_rate(step - 1, _RECIPE))}: every step adds the same.",
    )
