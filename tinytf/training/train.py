"""The report of a finished training: examples, the loss before and after, a sample, and updates worked out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tinytf.generate.loop import stream
from tinytf.generate.samplers import Sampling
from tinytf.report import Report
from tinytf.sentences import choices
from tinytf.training.data.examples import IGNORED, Batch
from tinytf.training.data.setup import Setup
from tinytf.training.data.translation import Translations
from tinytf.training.film.sampler import reading_first
from tinytf.training.folder.history import History, Spike
from tinytf.training.folder.reader import read_history
from tinytf.training.folder.runs import RunReport
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.losses import measured_loss, worst_example
from tinytf.training.tuning.update import Update

_EXAMPLES, _SAMPLE_TOKENS, _SPIKES = 3, 60, 3


@dataclass(frozen=True)
class SpikeText:
    """A spike, and the example of its batch that has the ``worst`` loss in the trained model, with its ``text``."""

    spike: Spike
    example: int
    worst: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self.spike), "example": self.example, "worst_loss": self.worst, "text": self.text}


@dataclass(frozen=True)
class Training(Report):
    """A trained run. ``before`` and ``after`` are the loss of the first batch in nats per token.

    ``examples`` are the first rows of that batch. ``sample`` is a prompt and a decoder's continuation of it. ``spikes``
    are the highest of the history, at most three.
    """

    KIND = "train"
    EVENTS: ClassVar = {"updates": "update"}
    ALWAYS_SAID = True

    run: Path
    recipe: Recipe
    setup: Setup
    history: History
    examples: Batch
    before: float
    after: float
    sample: tuple[str, str] | None
    updates: tuple[Update, ...]
    spikes: tuple[SpikeText, ...] = ()

    def in_a_sentence(self) -> str:
        """What its run says; without held-out text, how unsure the model is about its first batch, and was."""
        learned = f"as if it chose among {choices(self.after)} tokens; before, among {choices(self.before)}"
        batch = f"After {self.history.last:,} steps the model is as unsure about its first batch {learned}."
        return RunReport(self.run.name, self.run, self.history).sentence or batch

    def fields(self) -> dict[str, Any]:
        """Losses in nats per token; null for a position without a target."""
        summary = RunReport(self.run.name, self.run, self.history).summary()
        targets = [[None if t == IGNORED else t for t in row] for row in self.examples.targets.tolist()]
        return {
            "run": str(self.run),
            "recipe": self.recipe.to_dict(),
            "vocab_size": self.setup.tokenizer.vocab_size,
            "examples": {"x": self.examples.ids.tolist(), "y": targets},
            "steps": self.history.step.size,
            "first_batch_loss": {"before": self.before, "after": self.after},
            "best_held_out": summary["best_held_out"],
            **{name: summary[name] for name in ("epochs", "elapsed_seconds", "tokens_per_second", "mfu", "risen")},
            **{name: summary[name] for name in ("baselines", "verdict")},
            "spikes": [spike.to_dict() for spike in self.spikes],
            "held_out_loss": self.history.held_out[-1][1] if self.history.held_out else None,
            "thorough": [{"step": step, **vars(measured)} for step, measured in self.history.thorough],
            "held_out_exact": self.history.exact[-1][1] if self.history.exact else None,
            "milestones": [{"step": step, "words": words} for step, words in self.history.milestones],
            "sample": None if self.sample is None else "".join(self.sample),
            "updates": [{**vars(update), "difference": update.difference} for update in self.updates],
        }


def report_of(run: Path, recipe: Recipe, setup: Setup, updates: Sequence[Update] = ()) -> Training:
    """The report of the training in the folder ``run``."""
    history, batch = read_history(run), setup.examples.batch(recipe.at_step)
    after = measured_loss(setup.model, [batch], recipe.accumulate)
    assert after is not None  # otherwise the first step would have failed
    before, sample = float(history.loss[0]), _sample(setup)
    return Training(
        run, recipe, setup, history, batch[:_EXAMPLES], before, after, sample, tuple(updates), _spikes(history, setup)
    )


def _spikes(history: History, setup: Setup) -> tuple[SpikeText, ...]:
    """The highest spikes by step, with the worst text of each batch, which the seed and the step reproduce."""
    texts = []
    highest = sorted(history.spikes, key=lambda spike: spike.loss / spike.usual)[-_SPIKES:]
    for spike in sorted(highest, key=lambda spike: spike.step):
        batch = setup.examples.batch(spike.step - 1)
        row, loss = worst_example(setup.model, batch)
        ids = batch.ids[row] if batch.padding_mask is None else batch.ids[row][batch.padding_mask[row].bool()]
        texts.append(SpikeText(spike, row, loss, setup.tokenizer.decode(ids.tolist())))
    return tuple(texts)


def _sample(setup: Setup) -> tuple[str, str] | None:
    """A prompt and its continuation; None for an encoder."""
    model, tokenizer = setup.model, setup.tokenizer
    if not model.config.causal:
        return None
    start, examples = tokenizer.start(), setup.examples
    ids = start.ids if start else examples.batch(0).ids[0, :1].tolist()
    if isinstance(examples, Translations):
        ids = [examples.train.start]
    with reading_first(setup) as source:
        steps = stream(
            model,
            ids,
            max_tokens=_SAMPLE_TOKENS,
            sampling=Sampling(temperature=0.8),
            ends=tokenizer.end_ids,
            decode=tokenizer.decode,
        )
        return source or tokenizer.decode(ids), "".join(step.text for step in steps)
