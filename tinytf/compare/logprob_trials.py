"""What a program may have done to its log-probabilities, predicted from the model's logits of the logged tokens.

Settings are solved for: those that leave the smallest error, searched on a grid and then between its points.
Shapes: n tokens, V vocabulary. Δ is what a change adds to the log-probability of each token.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tinytf.errors import TinytfError
from tinytf.text.chat import Conversation
from tinytf.text_model import TextModel

Numbers = NDArray[np.float64]
VAGUE = 2.0
"""How many times less an explanation must leave that has two settings, or that many causes would give."""
_AS_LITTLE, _NOTHING = 1.05, 1e-10
"""What a rounder number may leave: so many times the least mean square, and 1e-5 nats."""
_MOST_NUMBERS = 16_000_000
"""The most logits that experiments keep: 64 MiB."""
_TEMPERATURES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)
_GRIDS: dict[str, tuple[float, ...]] = {
    "top-p": (*np.linspace(0.05, 0.99, 95).tolist(), 0.995, 0.999),
    "top-k": (*range(1, 201), 250, 256, 300, 400, 500, 512, 1000, 1024, 2000),
    "min-p": (*np.geomspace(0.001, 0.9, 100).tolist(), 0.01, 0.02, 0.05, 0.1, 0.2),
}
_PENALTIES: dict[str, tuple[Callable[[float, Tensor, Tensor], Tensor], tuple[float, ...]]] = {
    "repetition": (lambda by, logits, _: torch.where(logits < 0, logits * by, logits / by),
                   (0.8, 0.9, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)),
    "presence": (lambda by, logits, _: logits - by, (-1.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0)),
    "frequency": (lambda by, logits, counts: logits - by * counts, (-1.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0)),
}  # fmt: skip
"""What each penalty makes of the logits of tokens that were seen, each so many times."""


@dataclass(frozen=True)
class Pair:
    """One text: the log-probabilities of its last tokens in both logs, and all its ids where they are known."""

    first: Numbers
    second: Numbers
    ids: tuple[int, ...] | None


@dataclass(frozen=True)
class Trial:
    """An explanation with the Δ (n,) that it predicts, NaN for tokens of which it says nothing.

    One with a larger ``penalty`` must leave as many times less than others.
    """

    words: str
    predicted: Numbers
    penalty: float = 1.0


class Logged:
    """The model's logits (n, V) of the logged tokens of the first texts, as many as fit."""

    def __init__(self, model: TextModel, pairs: Sequence[Pair]) -> None:
        self.model, self.texts, rows, count = model, list[tuple[tuple[int, ...], int]](), list[Tensor](), 0
        for pair in pairs:
            ids, logged = pair.ids or (), len(pair.first)
            if rows and (count + logged) * model.config.vocab_size > _MOST_NUMBERS:
                break
            count += logged
            rows.append(_before(model, ids)[-logged:])
            self.texts.append((ids, len(ids) - logged))
        self.pairs = list(pairs[: len(rows)])
        self.logits = torch.cat(rows)
        self.targets = torch.tensor([token for ids, start in self.texts for token in ids[start:]])
        self.of_target = self.logits.gather(1, self.targets[:, None])[:, 0]
        self.rank = (self.logits > self.of_target[:, None]).sum(-1)
        self.plain = self.tempered(1.0)

    @cached_property
    def ordered(self) -> Tensor:
        """The logits of each row, the largest first."""
        return self.logits.sort(-1, descending=True).values

    def change(self, logprobs: Tensor) -> Numbers:
        """How far log-probabilities, (n,) or (n, values), are from the model's own."""
        plain = self.plain if logprobs.dim() == 1 else self.plain[:, None]
        change: Numbers = (logprobs.double() - plain.double()).numpy()
        return change

    def tempered(self, temperature: float) -> Tensor:
        return self.of_target / temperature - (self.logits / temperature).logsumexp(-1)

    def seen(self, *, in_answer: bool) -> "_Seen":
        """The tokens before each logged one: of its text, or only the logged ones."""
        before = [ids[start * in_answer : at] for ids, start in self.texts for at in range(start, len(ids))]
        return _Seen(self, before)


class _Seen:
    """The distinct tokens (n, S) that were seen before each logged one, how often, and their logits."""

    def __init__(self, logged: Logged, before: Sequence[Sequence[int]]) -> None:
        counted = [torch.tensor(ids, dtype=torch.long).unique(return_counts=True) for ids in before]
        ids, self.counts = (
            nn.utils.rnn.pad_sequence(list(one), batch_first=True) for one in zip(*counted, strict=True)
        )
        self.logits = logged.logits.gather(1, ids).double()
        self.of_target = logged.of_target.double()
        self.total = logged.logits.double().logsumexp(-1)
        self.is_target = (ids == logged.targets[:, None]) & (self.counts > 0)

    def penalised(self, name: str, by: float) -> Tensor:
        """The log-probabilities (n,) where a penalty changes the logits of the tokens that were seen."""
        changed = torch.where(self.counts > 0, _PENALTIES[name][0](by, self.logits, self.counts), self.logits)
        total = self.total[:, None]
        gained = ((changed - total).exp() - (self.logits - total).exp()).sum(-1)
        of_target = self.of_target + ((changed - self.logits) * self.is_target).sum(-1)
        return of_target - self.total - gained.log1p()


def _before(model: TextModel, ids: Sequence[int]) -> Tensor:
    """The logits (T, V) that predict each token of a text, in float32; NaN for its first."""
    transformer = model.transformer
    given = torch.tensor([list(ids)], device=next(transformer.parameters()).device)
    logits: Tensor = transformer(given)[0].float().cpu()
    return torch.cat([torch.full_like(logits[:1], math.nan), logits[:-1]])


def with_model(logged: Logged, deltas: Numbers) -> Iterator[tuple[str, Iterator[Trial]]]:
    """What is tried to explain ``deltas`` (n,): in words, with its trials."""
    yield "a temperature", _temperature(logged, deltas)
    yield "top-p, top-k and min-p, alone and with a temperature", _truncations(logged, deltas)
    yield "penalties for repetition, presence and frequency", _penalties(logged, deltas)
    yield "another start, prompt or chat template", _prompts(logged)


def error(predicted: Numbers, deltas: Numbers) -> float:
    """The mean square of what is not predicted; infinite where most is not."""
    known = np.isfinite(deltas) & np.isfinite(predicted)
    return (
        float(((deltas - predicted)[known] ** 2).mean()) if known.sum() > 0.5 * np.isfinite(deltas).sum() else math.inf
    )


def _solve(
    grid: Sequence[float], predicted: Callable[[Sequence[float]], Numbers], deltas: Numbers, rounds: int
) -> tuple[float, Numbers]:
    """The value with the least error, and its Δ (n,), where ``predicted`` gives those of several values (n, values).

    It is searched on a grid, and ``rounds`` times on a finer one around the best. A rounder number that leaves as
    little is taken instead: people type those.
    """
    best, change = math.nan, np.full_like(deltas, math.nan)
    for _ in range(rounds + 1):
        values = sorted(grid)
        changes = predicted(values)
        at = int(np.argmin([error(column, deltas) for column in changes.T]))
        best, change = values[at], changes[:, at]
        grid = [best, *np.linspace(values[max(at - 1, 0)], values[min(at + 1, len(values) - 1)], 9).tolist()]
    least = error(change, deltas)
    for rounder in (float(f"{best:.{digits}g}") for digits in (1, 2, 3)):
        as_round = predicted([rounder])[:, 0]
        if error(as_round, deltas) <= _AS_LITTLE * least + _NOTHING:
            return rounder, as_round
    return best, change


def _temperature(logged: Logged, deltas: Numbers) -> Iterator[Trial]:
    def predicted(temperatures: Sequence[float]) -> Numbers:
        return logged.change(torch.stack([logged.tempered(one) for one in temperatures], -1))

    best, change = _solve((1.0, *_TEMPERATURES), predicted, deltas, 6)
    yield Trial(f"are those of a temperature of {best:.4g}", change)


def _truncations(logged: Logged, deltas: Numbers) -> Iterator[Trial]:
    """Probabilities that are renormalised over fewer tokens, cut after the temperature or, as in llama.cpp, before."""
    plain = _Cut(logged, 1.0)
    for temperature in (1.0, *_TEMPERATURES):
        tempered = plain if temperature == 1 else _Cut(logged, temperature)
        for name, grid in _GRIDS.items():
            for cut in dict.fromkeys((tempered, tempered if name == "top-k" else plain)):

                def predicted(
                    values: Sequence[float], name: str = name, tempered: _Cut = tempered, cut: _Cut = cut
                ) -> Numbers:
                    return logged.change(tempered.logprobs(cut.counts(name, values)))

                best, change = _solve(grid, predicted, deltas, 0 if name == "top-k" else 2)
                words = f"are renormalised over {name} {best:.3g}"
                if temperature != 1:
                    words += f" {'after' if cut is tempered else 'and then take'} a temperature of {temperature:g}"
                yield Trial(words, change, 1.0 if temperature == 1 else VAGUE)


class _Cut:
    """The probabilities (n, V) at a temperature, the largest first, and what is left of them by a truncation."""

    def __init__(self, logged: Logged, temperature: float) -> None:
        self.probabilities = (logged.ordered / temperature).softmax(-1)
        self.mass = self.probabilities.cumsum(-1)
        self.rank, self.tempered = logged.rank, logged.tempered(temperature)

    def counts(self, name: str, values: Sequence[float]) -> Tensor:
        """How many of the most probable tokens are kept, for each value of a truncation (n, values)."""
        given = torch.tensor(values, dtype=self.mass.dtype).repeat(len(self.mass), 1)
        if name == "top-k":
            counts = given.long()
        elif name == "top-p":
            counts = torch.searchsorted(self.mass, given) + 1
        else:
            counts = torch.searchsorted(-self.probabilities, -given * self.probabilities[:, :1], right=True)
        return counts.clamp(1, self.mass.shape[-1])

    def logprobs(self, counts: Tensor) -> Tensor:
        """The log-probabilities (n, values) of the targets among the kept tokens; −∞ for one that is cut."""
        left = self.mass.gather(1, counts - 1).log()
        return torch.where(self.rank[:, None] < counts, self.tempered[:, None] - left, -math.inf)


def _penalties(logged: Logged, deltas: Numbers) -> Iterator[Trial]:
    for in_answer in (False, True):
        seen = logged.seen(in_answer=in_answer)
        for name, (_, grid) in _PENALTIES.items():

            def predicted(values: Sequence[float], seen: _Seen = seen, name: str = name) -> Numbers:
                return logged.change(torch.stack([seen.penalised(name, by) for by in values], -1))

            best, change = _solve(grid, predicted, deltas, 3)
            of = "the logged tokens" if in_answer else "all tokens before"
            yield Trial(f"have a {name} penalty of {best:.3g} on {of}", change)


def _prompts(logged: Logged) -> Iterator[Trial]:
    """The logged tokens after another beginning of the text."""
    model, tokenizer = logged.model, logged.model.tokenizer
    start = tokenizer.start()

    def templated(prompt: tuple[int, ...]) -> Sequence[int]:
        plain = tokenizer.decode([token for token in prompt if token not in tokenizer.special_ids])
        return model.encode(Conversation([{"role": "user", "content": plain}])).ids

    beginnings: dict[str, Callable[[tuple[int, ...]], Sequence[int]]] = {
        "are those of the text without its first token": lambda prompt: prompt[1:],
        "are those of the logged tokens alone, without what is before them": lambda prompt: (),
        "are those of the prompt in the model's chat template": templated,
    }
    if start is not None:
        beginnings["are those of the text after a start token"] = lambda prompt: (*start.ids, *prompt)
    for words, beginning in beginnings.items():
        with suppress(TinytfError):  # no template, or a text that is too long
            rows = []
            for ids, at in logged.texts:
                other = (*beginning(ids[:at]), *ids[at:])
                rows.append(_before(model, other)[len(other) - len(ids) + at :])
            logits = torch.cat(rows)
            found = logits.gather(1, logged.targets[:, None])[:, 0] - logits.logsumexp(-1)
            yield Trial(words, logged.change(found))
