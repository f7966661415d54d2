"""Run two models of one kind, ours and theirs, on the same texts in one dtype, and compare them token by token.

Shapes: B batch, T tokens, C d_model, V vocabulary or classes.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tinytf.certification.reference import Outputs, Reference, given_to
from tinytf.compare.measures import NotFinite
from tinytf.config import ModelConfig
from tinytf.errors import GenerationError, UsageError
from tinytf.generate.runner import Runner
from tinytf.model.transformer import Source, Transformer, facing
from tinytf.report import Data
from tinytf.steps.table import table_of
from tinytf.tolerance import RUN, allowed
from tinytf.trace.faults import overflow_in_words

_FINAL_NORM = "final.norm"
_VERSUS_HINT = "--versus names the directory that the model was made from"
_CHUNK = 7
"""Tokens of a text that go through the cache at a time."""
_ROUNDING_FACTOR = 3.0
"""Multiple of the rounding loss of transformers that is allowed: twice for our own loss, once for the difference."""
_BATCH_SIZE = 8
"""The number of texts in a padded batch: the shortest texts, since they are quick."""


@dataclass(frozen=True)
class Check(Data):
    """One comparison over all ``texts``: the worst difference, ``where`` it occurs, and the ``first`` place that fails,
    with what is ``not_finite`` there.

    ``difference`` is relative to the largest number of its token in the residual stream so far; for ids it counts the
    texts that differ.
    """

    ALSO: ClassVar = ("holds",)

    name: str
    dtype: str
    texts: int
    tokens: int
    difference: float
    where: str
    tolerance: float
    first: str = ""
    not_finite: NotFinite | None = None

    @property
    def holds(self) -> bool:
        return self.difference <= self.tolerance  # False for NaN


@dataclass
class _WorstStep:
    """The step with the largest difference relative to its tolerance so far, and where it occurs."""

    limit: float
    difference: float = 0.0
    tolerance: float = 0.0
    where: str = ""
    first: str = ""
    not_finite: NotFinite | None = None
    texts: set[str] = field(default_factory=set)
    tokens: int = 0

    def add(self, step: "_Step", text: str, first: int = 0) -> float:
        """Add a step of a text, (T, C) from token ``first`` on; returns the largest difference in it."""
        differences = _token_differences(step.ours, step.theirs, step.size).nan_to_num(
            nan=math.inf, posinf=math.inf
        )  # (T,)
        token = int(differences.argmax())
        difference, limit = float(differences[token]), max(self.limit, _ROUNDING_FACTOR * float(step.rounding_loss))
        self.texts.add(text)
        place = f"{step.name}, token {first + token}, {text}"
        if difference > limit and not self.first:
            self.first, self.not_finite = place, step.not_finite(token)
        if difference / max(limit, 1e-30) > self.difference / max(self.tolerance, 1e-30):
            self.difference, self.tolerance = difference, limit
            self.where = place
        return difference

    def check(self, name: str, dtype: torch.dtype) -> Check:
        dtype_name, limit = str(dtype).removeprefix("torch."), self.tolerance if self.where else self.limit
        return Check(
            name,
            dtype_name,
            len(self.texts),
            self.tokens,
            self.difference,
            self.where,
            limit,
            self.first,
            self.not_finite,
        )


class _Step(NamedTuple):
    """One step of both sides, (B, T, C) or one row of it.

    ``size`` (B, T) is the largest number of each token, in the residual stream over all layers so far, because rounding
    errors keep the size of earlier layers even where later layers cancel most of them. ``rounding_loss`` (B,) is what
    theirs loses by rounding. ``exact`` is theirs in float32, where both are in float16.
    """

    name: str
    ours: Tensor
    theirs: Tensor
    size: Tensor
    rounding_loss: Tensor
    exact: Tensor | None = None

    def not_finite(self, token: int) -> NotFinite | None:
        """What is not finite at a token of a row; in float16 with the number that passed its largest."""
        bad = NotFinite.of(self.name, self.ours[token], self.theirs[token])
        if bad is None or self.exact is None:
            return bad
        most = float(self.exact[token].abs().max())
        return replace(bad, overflow=overflow_in_words(most))

    def text_row(self, number: int, real: Tensor | None = None) -> "_Step":
        """One text of a batch, without padding."""
        tokens = slice(None) if real is None else real
        ours, theirs, size = (tensor[number][tokens] for tensor in (self.ours, self.theirs, self.size))
        exact = None if self.exact is None else self.exact[number][tokens]
        return _Step(self.name, ours, theirs, size, self.rounding_loss[number], exact)

    def from_token(self, first: int, ours: Tensor) -> "_Step":
        """The tokens of a row from ``first`` on, with ``ours`` replaced."""
        exact = None if self.exact is None else self.exact[first:]
        return _Step(self.name, ours, self.theirs[first:], self.size[first:], self.rounding_loss, exact)


def _token_differences(ours: Tensor, theirs: Tensor, size: Tensor) -> Tensor:
    """The largest difference at each token (…, T), relative to its ``size``; cuts padded vocabularies to one width."""
    width = min(ours.shape[-1], theirs.shape[-1])
    return (ours[..., :width].double() - theirs[..., :width].double()).abs().amax(-1) / size.double().clamp_min(1e-12)


def _step_names(config: ModelConfig) -> list[str]:
    """The compared states of a stack: the input of its first block, and the output of every block."""
    table = table_of(config)
    blocks = [f"L{layer}.{table.output}" for layer in range(config.n_layers)]
    return [table.embedded, *blocks[:-1], _FINAL_NORM if config.final_norm else blocks[-1]]


_SCORES = "logits are not compared: the folder's score is read off a few of them"


class Sides:
    """Both models in one dtype, and the largest differences on the texts so far.

    ``exact`` keeps their outputs in float32, by the name of a text or batch, for the dtypes after it.
    """

    def __init__(
        self,
        ours: Transformer,
        theirs: Reference,
        dtype: torch.dtype,
        tolerance: float | None,
        exact: dict[str, Outputs],
    ) -> None:
        self.ours, self.theirs, self.dtype, self.exact = ours, theirs, dtype, exact
        self.limit = allowed(RUN, dtype) if tolerance is None else tolerance
        self.allows_rounding = dtype in (torch.bfloat16, torch.float16) and tolerance is None
        self.stacks = ours.stacks
        self.step_names = [stack + name for stack, of in self.stacks.items() for name in _step_names(of.config)]
        self.layers = dict.fromkeys(self.step_names, 0.0)
        self.notes: list[str] = []
        self.alone_losses: dict[tuple[str, str], Tensor] = {}  # of each text by itself, by text and step
        self.device = next(ours.parameters()).device

    def checks(self, ids: dict[str, list[int]], on_text: Callable[[], None]) -> Iterator[Check]:
        """Run every comparison of these texts; ``on_text`` is called before each text."""
        if (n_tokens := self.theirs.n_tokens) <= max(map(max, ids.values())):
            ours = self.ours.config.vocab_size
            raise UsageError(f"the models have different vocabularies: {ours:,} and {n_tokens:,} tokens", _VERSUS_HINT)
        states, logits, cached, chunked = (_WorstStep(self.limit) for _ in range(4))
        causal = not self.ours.config.looks_ahead and self.ours.config.head.kind == "lm"
        for name, text_ids in ids.items():
            on_text()
            last = self._run_at_once(name, text_ids, states, logits)
            if causal and last is not None:
                self._run_token_by_token(name, text_ids, last, cached)
                self._run_in_chunks(name, text_ids, last, chunked)
        yield states.check("every layer", self.dtype)
        if logits.texts:
            yield logits.check("logits", self.dtype)
        for side in ("left", "right"):
            worst = _WorstStep(self.limit)
            self._run_padded(ids, side, worst)
            yield worst.check(f"in a batch, padded on the {side}", self.dtype)
        if causal:
            yield cached.check("token by token, with a cache", self.dtype)
            yield chunked.check(f"the text in pieces of {_CHUNK}", self.dtype)

    def _run_ours(self, ids: Tensor, real: Tensor | None) -> Outputs:
        """Our states and logits, in the form of ``Reference.run``."""
        states, last, mask, source = list[Tensor](), ids, None if real is None else real.to(self.device), None
        with torch.no_grad():
            for stack in self.stacks.values():
                of_stack, last = self._run_stack(stack, given_to(stack.config, ids, real).to(self.device), mask, source)
                states, source = [*states, *of_stack], Source(last, mask)
            logits = None if self.ours.head is None else self.ours.unembed(last)
        return [tensor.float().cpu() for tensor in states], None if logits is None else logits.float().cpu()

    def _run_stack(
        self, stack: Transformer, ids: Tensor, mask: Tensor | None, source: Source | None
    ) -> tuple[list[Tensor], Tensor]:
        """The states of one stack and its last hidden states."""
        states: list[Tensor] = []
        parts = (stack.streams, *stack.blocks)
        hooks = [part.register_forward_hook(lambda module, args, result: states.append(result)) for part in parts]
        try:
            last = stack.hidden(ids, padding_mask=mask, source=source)
        finally:
            for hook in hooks:
                hook.remove()
        normed = last if stack.averaged is None else stack.final_norm(states[-1])
        states[-1] = getattr(stack.head, "projection", nn.Identity())(normed)  # OPT-350m projects states
        return states, last

    def _run_both(self, name: str, ids: Tensor, real: Tensor | None) -> Iterator["_Step"]:
        """Run both; yield every step, then the logits if both have them."""
        config = self.ours.config
        states, logits = self._run_ours(ids, real)
        expected, expected_logits = self.theirs.run(ids, real, config)
        sizes = [(len(tensors), tensors[0].shape[-1]) for tensors in (states, expected)]
        if sizes[0] != sizes[1]:
            described = [f"{count - 1} layers of {width}" for count, width in sizes]
            raise UsageError(f"the models have different sizes: {described[0]}, and {described[1]}", _VERSUS_HINT)
        first_of_stack = {stack + table_of(of.config).embedded for stack, of in self.stacks.items()}
        if self.dtype == torch.float32:
            self.exact[name] = expected, expected_logits
        rounding_losses = self._rounding_losses(name, ids, real, (expected, expected_logits))
        size = torch.zeros(ids.shape)
        for number, (step, actual, reference) in enumerate(zip(self.step_names, states, expected, strict=True)):
            token_size = reference.abs().amax(-1)
            starts_again = step in first_of_stack or step.endswith(_FINAL_NORM)
            size = token_size if starts_again else torch.maximum(size, token_size)
            exact = self.exact[name][0][number] if self.dtype == torch.float16 else None
            yield _Step(step, actual, reference, size, rounding_losses(number, size), exact)
        if logits is not None and expected_logits is not None:
            if config.labels and expected_logits.shape[-1] == self.ours.config.vocab_size != logits.shape[-1]:
                self.notes += [] if _SCORES in self.notes else [_SCORES]
                return
            if config.head.kind == "sequence":
                logits = logits[:, [config.head.row_read]]
            size = expected_logits.abs().amax(-1)
            exact = self.exact[name][1] if self.dtype == torch.float16 else None
            yield _Step("logits", logits, expected_logits, size, rounding_losses(None, size), exact)

    def _rounding_losses(
        self, name: str, ids: Tensor, real: Tensor | None, eager: Outputs
    ) -> Callable[[int | None, Tensor], Tensor]:
        """A function from the index of a state (None: the logits) and its size to their worst rounding loss (B,).

        The loss is their distance from their own float32 run, in eager or fused attention, whichever is larger; 0 in
        float32.
        """
        if not self.allows_rounding:
            return lambda number, size: torch.zeros(len(ids))
        fused = self.theirs.run_fused(ids, real, self.ours.config)
        is_counted = torch.ones(ids.shape, dtype=torch.bool) if real is None else real

        def rounding_losses(number: int | None, size: Tensor) -> Tensor:
            runs = [self.exact[name], eager, *([] if fused is None else [fused])]
            exact, *rounded = (states[number] if number is not None else logits for states, logits in runs)
            assert exact is not None
            differences = [
                _token_differences(outputs, exact, size).nan_to_num(0.0, posinf=0.0)
                for outputs in rounded
                if outputs is not None
            ]
            return (torch.stack(differences) * is_counted[:, : size.shape[1]]).amax((0, 2))

        return rounding_losses

    def _run_at_once(self, name: str, ids: list[int], states: _WorstStep, logits: _WorstStep) -> "_Step | None":
        """Run one text at once; returns its logits, if there are any."""
        last = None
        states.tokens += len(ids)
        for step in self._run_both(name, torch.tensor([ids]), None):
            row = step.text_row(0)
            self.alone_losses[name, step.name] = row.rounding_loss
            if step.name == "logits":
                last, worst = row, logits
                logits.tokens += len(row.ours)
            else:
                worst = states
            difference = worst.add(row, name)
            if step.name in self.layers:
                self.layers[step.name] = max(self.layers[step.name], difference)
        return last

    def _run_padded(self, ids: dict[str, list[int]], side: str, worst: _WorstStep) -> None:
        """Run some texts in one batch, the shorter ones padded: no token may see the padding."""
        short = dict(sorted(ids.items(), key=lambda item: len(item[1]))[:_BATCH_SIZE])
        length = max(map(len, short.values()))
        fills = [[tokens[0]] * (length - len(tokens)) for tokens in short.values()]
        rows = [
            fill + tokens if side == "left" else tokens + fill
            for fill, tokens in zip(fills, short.values(), strict=True)
        ]
        counts, position = (
            torch.tensor([len(tokens) for tokens in short.values()])[:, None],
            torch.arange(length),
        )
        real = position >= length - counts if side == "left" else position < counts
        worst.tokens += sum(map(len, short.values()))
        for step in self._run_both(side, torch.tensor(rows), real):
            for index, name in enumerate(short):
                row = step.text_row(index, real[index])
                rounding_loss = torch.maximum(
                    row.rounding_loss, self.alone_losses.get((name, step.name), row.rounding_loss)
                )
                worst.add(row._replace(rounding_loss=rounding_loss), name)

    @contextmanager
    def _continued(self, ids: list[int]) -> Iterator[list[int]]:
        """The text that our model is to continue; of two stacks it reads the text in the block."""
        row = torch.tensor([ids])
        with torch.no_grad():
            source = self.ours.read(row)
        with facing(self.ours, source):
            yield given_to(self.ours.config, row, None)[0].tolist()

    def _run_token_by_token(self, name: str, ids: list[int], last: "_Step", worst: _WorstStep) -> None:
        """Run the first half as a prompt, then a token at a time, as ``tinytf generate`` does."""
        start = (len(ids) + 1) // 2
        rows = torch.full((len(ids) - start + 1, last.ours.shape[-1]), math.nan)
        with self._continued(ids) as given:
            runner = Runner(self.ours, given[:start], self.ours.cache(len(given)))
            with suppress(GenerationError):  # logits are not finite; the rest of the rows stays NaN
                rows[0] = runner.first()[0]
                for row, token_id in enumerate(given[start:], 1):
                    rows[row] = runner.go_on([0], [token_id])[0]
        worst.tokens += len(rows)
        worst.add(last.from_token(start - 1, rows), name, start - 1)
        if runner.note and runner.note not in self.notes:
            self.notes.append(runner.note)

    @torch.no_grad()
    def _run_in_chunks(self, name: str, ids: list[int], last: "_Step", worst: _WorstStep) -> None:
        """Run the text through a cache, a few tokens at a time."""
        ours = self.ours
        cache = ours.cache(len(ids))
        size = max(_CHUNK, ours.config.turned_alike_from(len(ids)))  # turned as the whole text
        with self._continued(ids) as given:
            pieces = torch.tensor([given], device=self.device).split(size, dim=1)
            logits = [ours.unembed(ours.hidden(piece, cache=cache))[0].float().cpu() for piece in pieces]
        worst.tokens += len(ids)
        worst.add(last.from_token(0, torch.cat(logits)), name)
