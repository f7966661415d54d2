"""A text that is generated with steering, beside the text without it, and how far each prediction moves."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinytf.cause.steer.applying import Steering, Vectors, hidden_states, steered_model, steering_of
from tinytf.errors import UsageError
from tinytf.generate.continuing import Streaming, encoded, steps_after
from tinytf.generate.loop import GeneratedToken, cache_for
from tinytf.generate.options import by_keyword
from tinytf.generate.report import Generation
from tinytf.generate.underway import Underway, begin_generation
from tinytf.metric import divergence
from tinytf.model.transformer import Transformer
from tinytf.report import About, Verified
from tinytf.sentences import listed
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.tolerance import DECODED, allowed

_POSITIONS_AT_ONCE = 128
"""The number of positions whose logits are in memory at a time."""
_CACHED = "the log-probabilities of the new tokens are those without a cache"


@dataclass(frozen=True, kw_only=True)
class SteeredGeneration(Generation):
    """Texts that follow a prompt with ``steering``, and the ``plain`` ones without it, from the same seeds.

    ``moved`` has for each sample KL(plain ‖ steered) in nats at each of its tokens: how far the prediction of the
    steered model after the same tokens is from the plain one. ``check`` compares with a run without a cache. All three
    are there once the texts are complete; ``plain`` only if it was asked for, ``check`` only if there was a cache.
    """

    KIND = "steered_generation"

    steering: Steering
    plain: Generation | None = None
    moved: tuple[tuple[float, ...], ...] = ()
    check: Verified | None = None

    @property
    def mean_moved(self) -> float | None:
        """The mean of ``moved`` over the tokens of all samples; None for a text that is not complete."""
        numbers = [number for sample in self.moved for number in sample]
        return math.fsum(numbers) / len(numbers) if numbers else None

    @property
    def parted(self) -> int | None:
        """The number of the first token, from 1, in which the first text differs from the plain one; None if in none.

        A text that ends earlier differs from there on.
        """
        if self.plain is None:
            return None
        first, second = ([step.id for step in report.of(1)] for report in (self, self.plain))
        same = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        if same is None and len(first) != len(second):
            same = min(len(first), len(second))
        return None if same is None else same + 1

    def in_a_sentence(self) -> str:
        """Where the text parts from the plain one, and how far its predictions move."""
        if self.mean_moved is None:
            return super().in_a_sentence()
        what = f"With {listed(self.steering.words)},"
        moved = f"each prediction moves by {self.mean_moved:.3g} nats on average (KL)"
        if self.plain is None:
            return f"{what} {moved}."
        text = "the text" if self.samples == 1 else "the first text"
        if self.parted is None:
            return f"{what} {text} stays the same; {moved}."
        tokens = [report.of(1) for report in (self, self.plain)]
        ours, theirs = (
            str(self.shown(steps[self.parted - 1].id)) if len(steps) >= self.parted else "its end" for steps in tokens
        )
        of = "" if self.samples == 1 else " of the first text"
        return f"{what} new token {self.parted:,}{of} is {ours} instead of {theirs}; {moved}."

    def _settings(self) -> dict[str, Any]:
        changes = [{"at": change.at, "way": "remove" if change.removes else "add",
                    "norm": float(change.vector.double().norm())} for change in self.steering.changes]  # fmt: skip
        return {**super()._settings(), "steering": list(self.steering.words), "changes": changes}

    def _outcome(self) -> dict[str, Any]:
        outcome = super()._outcome()
        for sample, moved in zip(outcome["samples"], self.moved, strict=False):
            sample["kl"] = list(moved)
        plain_texts = None
        if self.plain is not None:
            plain_texts = [self.plain.text(number) for number in range(1, self.samples + 1)]
        check = self.check and self.check.to_dict()
        return {**outcome, "plain": plain_texts, "mean_kl": self.mean_moved, "first_difference": self.parted,
                "check": check}  # fmt: skip


def begin_steered_generation(
    model: TextModel, prompt: Encoding, steering: Steering, options: Streaming, *, compare: bool = True
) -> Underway[SteeredGeneration]:
    """The texts that follow ``prompt`` with steering, token by token, then with ``compare`` those without it.

    Settings and errors are those of ``stream``; a text cannot slide on without its older half, since it is run again.
    """
    if options.on_overflow == "slide":
        raise UsageError("a steered text is run again as a whole, and one that slides has none", "stop or error")

    def steps(more: dict[str, Any]) -> Iterator[GeneratedToken]:
        steered = steered_model(model, steering.changes)
        cache = cache_for(steered.transformer, prompt.ids, options)
        generated: list[GeneratedToken] = []
        try:
            for step in steps_after(steered, prompt, replace(options, cache=cache)):
                generated.append(step)
                yield step
        finally:
            more["cache"] = None if cache is None else tuple(cache.use())
        report = replace(begun, steps=tuple(generated))
        moved, check = _measured(model.transformer, steered.transformer, report)
        more |= {"moved": moved, "check": None if cache is None else check}
        if compare:
            more["plain"] = begin_generation(model, prompt, options).whole

    about = About(model)
    begun = SteeredGeneration.begin(about, prompt, options, steering=steering)
    return Underway(about=about, begun=begun, model=model.transformer, start=steps)


@dataclass(frozen=True, kw_only=True)
class Steered(Streaming):
    """The settings of ``steered_generation``: those of ``stream``, and the vectors of ``Model.steered``."""

    add: Vectors | None = None
    remove: Vectors | None = None


@by_keyword(Steered)
def steered_generation(model: TextModel, prompt: Written | Encoding, options: Steered) -> SteeredGeneration:
    """What follows ``prompt`` with the vectors ``add`` and without the directions ``remove``, beside the plain text.

    Vectors are those of ``steered``, other settings those of ``stream``; errors are those of both.
    """
    steering = steering_of(model, options.add, options.remove)
    prompt = encoded(model, prompt, truncate=options.truncate)
    return begin_steered_generation(model, prompt, steering, options).whole


@torch.no_grad()
def _measured(plain: Transformer, steered: Transformer, report: SteeredGeneration) -> Any:
    """KL(plain ‖ steered) before each token of each sample, and the check of the log-probabilities without a cache."""
    moved = []
    difference, largest = 0.0, 1.0
    for sample in range(1, report.samples + 1):
        new = report.of(sample)
        ids = [*report.prompt.ids, *(step.id for step in new)]
        first = len(report.prompt.ids) - 1
        hidden = [hidden_states(model, ids[:-1])[first:] for model in (plain, steered)]  # (new, C)
        numbers: list[float] = []
        for start in range(0, len(new), _POSITIONS_AT_ONCE):
            rows = slice(start, start + _POSITIONS_AT_ONCE)
            logits = [model.unembed(x[rows]).double() for model, x in zip((plain, steered), hidden, strict=True)]
            before, after = (values.log_softmax(-1) for values in logits)
            numbers += divergence(before.exp(), before, after).tolist()
            again = after.gather(1, torch.tensor([[step.id] for step in new[rows]], device=after.device))[:, 0].cpu()
            cached = again.new_tensor([step.log_probability for step in new[rows]])
            difference = max(difference, float((again - cached).abs().max()))
            largest = max(largest, float(logits[1].abs().max()))
        moved.append(tuple(numbers))
    dtype = next(steered.parameters()).dtype  # the log-probability of a step is computed in float32
    limit = allowed(DECODED, torch.float32 if dtype == torch.float64 else dtype) * largest
    return tuple(moved), Verified(_CACHED, difference, limit)
