"""The report of a training run: what was learned from, an example, the loss before and after, a sample."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinytf.generate.loop import stream
from tinytf.generate.samplers import Sampling
from tinytf.report import SCHEMA_VERSION
from tinytf.text.printable import printable
from tinytf.training.data import IGNORED
from tinytf.training.losses import batch_loss, held_out_batches
from tinytf.training.recipe import Recipe
from tinytf.training.setup import Setup
from tinytf.training.update import Update
from tinytf_cli.numbers import count
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import heads_in_words
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.continuation import continuation

_WINDOWS, _POSITIONS, _VOCABULARY = 3, 8, 100
_SAMPLE_TOKENS = 60


class TrainView:
    """One run that has just been trained, in every form."""

    def __init__(self, out: Path, recipe: Recipe, setup: Setup, updates: Sequence[Update] = ()) -> None:
        self.out, self.recipe, self.setup, self.updates = out, recipe, setup, updates
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
        self.before = float(lines[0]["loss"])
        self.after = float(batch_loss(setup.model, setup.examples.batch(0)).detach())
        self.held_out = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
        self.milestones = [(line["step"], words) for line in lines for words in line.get("milestones", ())]
        self.steps = len(lines)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """Vocabulary, first windows and their shift, losses, a sample, and what an update is made of."""
        config, tokenizer = self.setup.model.config, self.setup.tokenizer
        parameters = count(sum(p.numel() for p in self.setup.model.parameters()))
        yield Line(
            [
                Span(printable(str(self.out), spaces=False), "strong"),
                Span(f" · {config.kind}, {heads_in_words(config)}, d_model {config.d_model} · {parameters} parameters"),
            ]
        )
        yield Heading("vocabulary", f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens")
        shown = [tokenizer.shown(token_id) for token_id in range(min(_VOCABULARY, tokenizer.vocab_size))]
        yield Line([Span(" ".join(shown)), Span(" …" if tokenizer.vocab_size > _VOCABULARY else "", "dim")], indent=2)
        yield from self._windows()
        yield Heading("loss", f"{self.steps:,} steps, nats a token", "output")
        losses = {"the first batch, before": self.before, "the same, after": self.after}
        if self.held_out:
            losses |= {"held-out text, first measured": self.held_out[0], self._in_the_end(): self.held_out[-1]}
        numbers = [f"{loss:.4f}" for loss in losses.values()]
        yield Table([Column("", list(losses), said="of"), Column("", numbers, "right")], header=False)
        if self.milestones:
            yield Heading("milestones", "what heads became", "attention")
            yield from (Line(f"step {step:,}: {words}", indent=2) for step, words in self.milestones[-8:])
        sample = self._sample()
        if sample is not None:
            yield Heading("a sample", "temperature 0.8, seed 0", "output")
            yield from continuation(*sample)
        yield from self._update_blocks()

    def _in_the_end(self) -> str:
        """What the last held-out loss is of, where that is not all of the held-out text."""
        measured, there = held_out_batches(self.recipe), self.setup.examples.held_out_batches
        return f"in the end, {measured:,} of {there:,} batches" if measured < there else "in the end"

    def _windows(self) -> Iterator[Block]:
        batch, shown = self.setup.examples.batch(0), self.setup.tokenizer.shown
        length = min(_POSITIONS, batch.ids.shape[1])
        causal = self.recipe.objective == "causal"
        note = "each y is the x that comes next" if causal else "y is what [MASK] hides, and what was changed"
        yield Heading("first examples", f"{length} of {batch.ids.shape[1]} tokens; {note}", "q")
        for row in range(min(_WINDOWS, len(batch.ids))):
            targets = batch.targets[row, :length].tolist()
            y = ["·" if target == IGNORED else shown(target) for target in targets]
            x = [shown(token_id) for token_id in batch.ids[row, :length].tolist()]
            columns = [Column(str(place), [x[place], y[place]]) for place in range(length)]
            yield Table([Column("", ["x", "y"], said="row"), *columns], header=row == 0)

    def _sample(self) -> tuple[str, str] | None:
        """A prompt and how the model goes on from it; None for an encoder."""
        model, tokenizer = self.setup.model, self.setup.tokenizer
        if not model.config.causal:
            return None
        start = tokenizer.start()
        ids = start.ids if start else self.setup.examples.batch(0).ids[0, :1].tolist()
        steps = stream(
            model,
            ids,
            max_tokens=_SAMPLE_TOKENS,
            sampling=Sampling(temperature=0.8),
            ends=tokenizer.end_ids,
            decode=tokenizer.decode,
        )
        return tokenizer.decode(ids), "".join(step.text for step in steps)

    def _update_blocks(self) -> Iterator[Block]:
        for one in self.updates:
            place = ", ".join(map(str, one.index))
            yield Heading(f"{one.name}[{place}]", f"Adam's step {one.step:,}", "ffn")
            bias1, bias2 = f"(1 − {one.beta1:g}^{one.step})", f"(1 − {one.beta2:g}^{one.step})"
            rows = [
                ("g", f"∂loss/∂θ·clip = {one.gradient:.6e}·{one.clip:.6f}", one.g),
                ("m", f"β₁·m + (1 − β₁)·g = {one.beta1:g}·{one.m_before:.4e} + {1 - one.beta1:g}·g", one.m),
                ("v", f"β₂·v + (1 − β₂)·g² = {one.beta2:g}·{one.v_before:.4e} + {1 - one.beta2:g}·g²", one.v),
                ("m̂", f"m / {bias1}", one.m_hat),
                ("v̂", f"v / {bias2}", one.v_hat),
                ("θ·(1 − lr·λ)", f"{one.before:.8f}·(1 − {one.lr:.4e}·{one.weight_decay:g})", one.decayed),
                ("θ after", f"θ·(1 − lr·λ) − lr·m̂ / (√v̂ + {one.epsilon:g})", one.after),
                ("torch", f"differs by {one.difference:.1e}", one.torch),
            ]
            yield Table(
                [
                    Column("", [name for name, _, _ in rows], said="of"),
                    Column("", [f"{value:.8e}" for _, _, value in rows], "right"),
                    Column("", [words for _, words, _ in rows], shrink=1),
                ],
                header=False,
            )

    def data(self) -> dict[str, Any]:
        """The report as one JSON object."""
        batch, sample = self.setup.examples.batch(0), self._sample()
        targets = [[None if t == IGNORED else t for t in row] for row in batch.targets[:_WINDOWS].tolist()]
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "training",
            "run": str(self.out),
            "recipe": self.recipe.to_dict(),
            "vocab_size": self.setup.tokenizer.vocab_size,
            "examples": {"x": batch.ids[:_WINDOWS].tolist(), "y": targets},
            "steps": self.steps,
            "first_batch_loss": {"before": self.before, "after": self.after},
            "held_out_loss": self.held_out[-1] if self.held_out else None,
            "milestones": [{"step": step, "words": words} for step, words in self.milestones],
            "sample": None if sample is None else "".join(sample),
            "updates": [{**vars(one), "difference": one.difference} for one in self.updates],
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same as one event, and one a weight that is written out."""
        data = self.data()
        updates = data.pop("updates")
        yield {"type": data.pop("kind"), **data}
        for one in updates:
            yield {"type": "update", **one}
