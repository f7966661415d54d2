"""What a training run would do, drawn before it begins."""

from collections.abc import Iterator, Mapping

import numpy as np

from tinytf.text.printable import printable
from tinytf.training.plan import TrainingPlan
from tinytf_cli.numbers import count, duration, in_bytes, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import heads_in_words
from tinytf_cli.views.blocks import Block, Column, Curve, Curves, Heading, Line, Span, Table


class PlanView:
    """A planned run, drawn."""

    def __init__(self, found: TrainingPlan) -> None:
        self.found, self.recipe = found, found.recipe

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """Sizes, the learning rate of every step, what clipping does to the first gradient, and what is written."""
        found, recipe, config = self.found, self.recipe, self.found.config
        where, vocabulary = printable(str(found.run), spaces=False), config.vocab_size
        kind = f"{config.kind}, {heads_in_words(config)}, d_model {config.d_model}"
        yield Line([Span(where, "strong"), Span(f" · {kind} · dry run")])
        seen = f"{count(found.seen_tokens)} tokens, {found.passes:,.1f} times the text"
        uniform = f"ln {vocabulary:,} = {found.uniform_loss:.4f}"
        rows = {
            "model": f"{count(found.parameters)} parameters{self._trained()}, {found.tokenizer} vocabulary "
            f"of {vocabulary:,}",
            "text": f"{found.tokens:,} tokens to train on, {found.held_out_tokens:,} held out",
            "steps": f"{recipe.steps:,}, each of {found.step_tokens:,} tokens: {seen}",
            "memory": f"{in_bytes(found.memory_bytes)}: weights, gradients, Adam's moments; activations on top",
            "first loss": f"{found.loss:.4f} nats per token; a uniform guess has {uniform}",
        }
        if found.padding is not None:
            rows["padding"] = f"{100 * found.padding:.0f} % of a batch, which is as wide as its longest conversation"
        if found.step_seconds is not None and found.seconds is not None:
            pace = f"{found.step_seconds:.3g} s a step, the median of five, without measuring between them"
            rows["time"] = f"{duration(found.seconds)}: {pace}"
        if found.mfu is not None and found.peak_flops is not None:
            work = f"{found.flops_per_token / 1e6:,.3g} MFLOP a token; a matrix product here reaches"
            rows["MFU"] = f"{100 * found.mfu:.0f} %: {work} {found.peak_flops / 1e9:,.0f} GFLOP/s"
        yield _named(rows)
        yield from self._schedule()
        yield from self._clipping()
        yield Heading("would write", f"to {where}; a dry run trains and writes nothing")
        kept = f"the last {min(found.checkpoints, recipe.keep)} and the best stay"
        files = {
            "tokens": in_bytes(found.token_bytes),
            "checkpoints": f"{found.checkpoints:,} of {in_bytes(found.checkpoint_bytes)}, model and moments; {kept}",
            "metrics": plural(recipe.steps, "line"),
            "model": f"{in_bytes(found.weight_bytes)}, with tokenizer and recipe",
        }
        yield _named(files)

    def _trained(self) -> str:
        """How many of the parameters are trained, where that is not all of them."""
        found = self.found
        if self.recipe.lora:
            return f", beside them {count(found.trained)} of LoRA to train"
        return f", {count(found.trained)} of them to train" if found.trained < found.parameters else ""

    def _schedule(self) -> Iterator[Block]:
        recipe, peak = self.recipe, f"{self.recipe.lr:g}"
        warm = f"{plural(recipe.warmup, 'step')} of warm-up to {peak}, then " if recipe.warmup else f"from {peak} "
        low = "" if recipe.schedule == "constant" else f" towards {recipe.lr * recipe.final_lr:g}"
        yield Heading("learning rate", warm + recipe.schedule + low, "q")
        steps, rates = zip(*self.found.schedule, strict=True)
        yield Curves([Curve("learning rate", np.array(steps), np.array(rates), "q")], "step", "learning rate", 8)

    def _clipping(self) -> Iterator[Block]:
        """The factor that clips a gradient of each norm, and that of the first one."""
        norm, most, factor = self.found.gradient_norm, self.recipe.clip, self.found.clipped_by
        did = f"is multiplied by {factor:.3f}" if factor < 1 else "stays as it is"
        yield Heading("clipping", f"global norm at most {most:g}; the first gradient has {norm:.3f} and {did}", "k")
        norms, factors = np.array(self.found.clipping).T
        first = Curve("first gradient", np.array([norm]), np.array([factor]), "output", points=True)
        yield Curves([first, Curve("any gradient", norms, factors, "k")], "gradient norm", "factor", 6)


def _named(rows: Mapping[str, str]) -> Table:
    return Table([Column("", [Span(name, "dim") for name in rows]), Column("", list(rows.values()))], header=False)
