"""What is known of a step: a line of metrics.jsonl."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinytf.runs.history import Sample, Thorough
from tinytf.text.printable import printable
from tinytf.training.film.probe import HeadScores
from tinytf.training.tuning.health import Health
from tinytf.training.tuning.noise import Noise

_UNWRITTEN = ("sample", "seconds", "tokens", "tokens_per_second")


@dataclass
class Metrics:
    """One line of metrics.jsonl, to which the observers of a step add what they measure: losses in nats per token.

    ``milestones`` are sentences about heads that took on or lost a kind; ``health`` comes with ``heads``. ``stopped``
    says why the run ends early. ``held_out_loss`` is always of the same few batches; ``thorough``, after the last step
    only, is of many more. On the first line only, ``held_out_before`` and ``thorough_before`` are of the model that the
    run begins from, and ``heads_before`` are the scores before the first step. ``held_out_exact`` is the share of
    held-out targets that a model of two stacks translates exactly. ``seen_loss``, measured with ``held_out_loss`` and
    likewise in evaluation mode, is of the training text; ``copying``, measured with ``heads``, is what a repetition of
    random tokens gains, in nats per token, ``updates`` the ratio of update and weights by matrix, ``shifts`` those of
    ``shift_losses``, ``experts`` the shares of the experts of a layer. ``noise`` is of the gradient before clipping,
    ``own`` are numbers of a user's observers by name.

    The line leaves out the ``seconds`` and ``tokens`` of the step, its speed, and its sample, which other files have.
    """

    step: int
    loss: float = math.nan
    lr: float = 0.0
    grad_norm: float = math.nan
    held_out_loss: float | None = None
    heads: HeadScores | None = None
    milestones: tuple[str, ...] = ()
    health: Health | None = None
    stopped: str | None = None
    held_out_before: float | None = None
    held_out_exact: float | None = None
    seen_loss: float | None = None
    copying: float | None = None
    updates: Mapping[str, float] | None = None
    shifts: tuple[float, ...] | None = None
    experts: list[list[float]] | None = None
    noise: Noise | None = None
    heads_before: HeadScores | None = None
    thorough: Thorough | None = None
    thorough_before: Thorough | None = None
    own: dict[str, float] = field(default_factory=dict)
    sample: Sample | None = None
    seconds: float = 0.0
    tokens: int = 0
    tokens_per_second: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields of the line, except those that were not measured."""
        fields = {name: value for name, value in vars(self).items() if name not in _UNWRITTEN}
        data = {name: value for name, value in fields.items() if value not in (None, (), {})}
        data = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in data.items()
        }
        measured: dict[str, Any] = {
            name: getattr(self, name).to_dict()
            for name in ("heads", "heads_before", "health", "noise", "thorough", "thorough_before")
            if name in data
        }
        return {**data, **measured}

    @classmethod
    def read(cls, line: Mapping[str, Any], groups: tuple[str, ...]) -> "Metrics":
        """Read a line of metrics.jsonl, for a model with these ``groups`` of weights.

        Raises TypeError, KeyError, ValueError or AttributeError for a line of any other form.
        """
        heads = {name: HeadScores.read(line[name]) for name in ("heads", "heads_before") if name in line}
        health = {"health": Health(groups, **line["health"])} if "health" in line else {}
        noise = {"noise": Noise(**line["noise"])} if "noise" in line else {}
        names = [name for name in ("thorough", "thorough_before") if name in line]
        thorough: dict[str, Any] = {name: Thorough(**line[name]) for name in names}
        numbers = {name: float(line[name]) for name in ("loss", "lr", "grad_norm")}
        words = tuple(printable(sentence, spaces=False) for sentence in line.get("milestones", ()))
        metrics = cls(**{**line, **numbers, "milestones": words, **heads, **health, **noise, **thorough})
        metrics.to_dict()  # raises if a score or a norm is not a number
        return metrics
