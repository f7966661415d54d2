"""What a training run would do, drawn before it begins."""

from collections.abc import Iterator, Mapping

import numpy as np

from tinytf.text.printable import printable
from tinytf.training.pace import Pace
from tinytf.training.plan import TrainingPlan
from tinytf_cli.numbers import count, duration, in_bytes, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import heads_in_words
from tinytf_cli.views.blocks import Block, Curve, Curves, Heading, Line, Span
from tinytf_cli.views.draw import Display, draws


@draws(TrainingPlan)
def plan(report: TrainingPlan, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Sizes, the learning rate of every step, what clipping does to the first gradient, and what is written."""
    recipe, config = report.recipe, report.config
    where, vocabulary = printable(str(report.run), spaces=False), config.vocab_size
    kind = f"{config.kind}, {heads_in_words(config)}, d_model {config.d_model}"
    yield Line([Span(where, "strong"), Span(f" · {kind} · dry run")])
    seen = f"{count(report.seen_tokens)} tokens, {report.passes:,.1f} times the text"
    uniform = f"ln {vocabulary:,} = {report.uniform_loss:.4f}"
    rows = {
        "model": f"{count(report.parameters)} parameters{_trained(report)}, {report.tokenizer} vocabulary "
        f"of {vocabulary:,}",
        "text": f"{report.tokens:,} tokens to train on, {report.held_out_tokens:,} held out",
        "steps": f"{recipe.steps:,}, each of {report.step_tokens:,} tokens: {seen}",
        "memory": f"{in_bytes(report.memory_bytes)}: weights, gradients, Adam's moments; activations on top",
        "first loss": f"{report.loss:.4f} nats per token; a uniform guess has {uniform}",
    }
    if report.padding is not None:
        rows["padding"] = f"{100 * report.padding:.0f} % of a batch, which is as wide as its longest conversation"
    if report.conversations is not None:
        rows["conversations"] = _conversations(report)
    if report.step_seconds is not None and report.seconds is not None:
        pace = f"{report.step_seconds:.3g} s a step, the median of five, without measuring between them"
        rows["time"] = f"{duration(report.seconds)}: {pace}"
    if report.mfu is not None and report.peak_flops is not None:
        work = f"{report.flops_per_token / 1e6:,.3g} MFLOP a token; a matrix product here reaches"
        rows["MFU"] = f"{100 * report.mfu:.0f} %: {work} {report.peak_flops / 1e9:,.0f} GFLOP/s"
    yield from _facts(rows)
    yield from pace_blocks(report.pace, "the first gradient")
    yield Heading("would write", f"to {where}; a dry run trains and writes nothing")
    retained = f"the last {min(report.checkpoints, recipe.keep)} and the best stay"
    files = {
        "tokens": in_bytes(report.token_bytes),
        "checkpoints": f"{report.checkpoints:,} of {in_bytes(report.checkpoint_bytes)}, model and moments; {retained}",
        "metrics": plural(recipe.steps, "line"),
        "model": f"{in_bytes(report.weight_bytes)}, with tokenizer and recipe",
    }
    yield from _facts(files)


def _trained(report: TrainingPlan) -> str:
    """How many of the parameters are trained; empty if all are."""
    if report.recipe.lora:
        return f", beside them {count(report.trained)} of LoRA to train"
    return f", {count(report.trained)} of them to train" if report.trained < report.parameters else ""


def _conversations(report: TrainingPlan) -> str:
    """How many conversations there are, how many exceed --block, and how many of their tokens it cuts off."""
    block, long = report.recipe.block, report.long_conversations
    if not long:
        return f"{report.conversations:,}, none longer than --block {block:,}"
    parts = f"{report.cut_tokens:,} tokens are cut off, into parts that do not see what was before"
    return f"{long:,} of {report.conversations:,} exceed --block {block:,}: {parts}"


def pace_blocks(pace: Pace, gradient: str, height: int = 8) -> Iterator[Block]:
    """The learning rate of every step; and the clipping factor by gradient norm, with that of ``gradient``."""
    yield from _schedule(pace, height)
    if pace.gradient_norm is not None:
        yield from _clipping(pace, pace.gradient_norm, gradient, max(1, height - 2))


def _schedule(pace: Pace, height: int) -> Iterator[Block]:
    recipe, peak = pace.recipe, f"{pace.recipe.lr:g}"
    warm = f"{plural(recipe.warmup, 'step')} of warm-up to {peak}, then " if recipe.warmup else f"from {peak} "
    low = "" if recipe.schedule == "constant" else f" towards {recipe.lr * recipe.final_lr:g}"
    yield Heading("learning rate", warm + recipe.schedule + low, "q")
    steps, rates = zip(*pace.schedule, strict=True)
    yield Curves([Curve("learning rate", np.array(steps), np.array(rates), "q")], "step", "learning rate", height)


def _clipping(pace: Pace, norm: float, gradient: str, height: int) -> Iterator[Block]:
    most, factor = pace.recipe.clip, pace.clipped_by
    effect = f"is multiplied by {factor:.3f}" if factor < 1 else "stays as it is"
    yield Heading("clipping", f"global norm at most {most:g}; {gradient} has {norm:.3f} and {effect}", "k")
    norms, factors = np.array(pace.clipping).T
    first = Curve(gradient.removeprefix("the "), np.array([norm]), np.array([factor]), "output", points=True)
    yield Curves([first, Curve("any gradient", norms, factors, "k")], "gradient norm", "factor", height)


def _facts(rows: Mapping[str, str]) -> Iterator[Line]:
    width = 2 + max(map(len, rows))
    for name, words in rows.items():
        yield Line([Span(name.ljust(width), "dim"), words], indent=2, hanging=width)
