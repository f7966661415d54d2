"""Two models of one kind side by side, ours and theirs, in one dtype: run alike, and compared token by token.

Shapes: B batch, T tokens, C d_model, V vocabulary or classes.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tinytf.certification.reference import Ran, Reference
from tinytf.errors import GenerationError, UsageError
from tinytf.generate.runner import Runner
from tinytf.model.transformer import Transformer
from tinytf.report import Data
from tinytf.steps.table import table_of
from tinytf.tolerance import RUN, allowed

_NORMED = "final.norm"
_ORIGINAL = "--versus names the directory that the model was made from"
_CHUNK = 7
"""How many tokens of a text go through at a time."""
_ROUNDED = 3.0
"""Twice what transformers loses by rounding, which we may lose, and once for the difference of the two."""
_BATCH = 8
"""How many texts are in a batch: the shortest, which are padded, and are quick."""


@dataclass(frozen=True)
class Check(Data):
    """One comparison over all ``texts``: the worst difference, and ``where`` it is.

    ``difference`` is in units of the largest number of its token, in the stream so far; of ids it counts the texts that
    differ.
    """

    ALSO: ClassVar = ("holds",)

    name: str
    dtype: str
    texts: int
    tokens: int
    difference: float
    where: str
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.tolerance  # false for a NaN


@dataclass
class _Worst:
    """The difference that is furthest beyond ``limit`` so far, or nearest to it, and where."""

    limit: float
    difference: float = 0.0
    tolerance: float = 0.0
    where: str = ""
    texts: set[str] = field(default_factory=set)
    tokens: int = 0

    def see(self, step: "_Step", text: str, first: int = 0) -> float:
        """Take in one step of one text, (T, C) from token ``first`` on; how far apart it is at worst."""
        apart = _apart(step.ours, step.theirs, step.size).nan_to_num(nan=math.inf)  # (T,)
        token = int(apart.argmax())
        found, limit = float(apart[token]), max(self.limit, _ROUNDED * float(step.lost))
        self.texts.add(text)
        if found / max(limit, 1e-30) > self.difference / max(self.tolerance, 1e-30):
            self.difference, self.tolerance = found, limit
            self.where = f"{step.name}, token {first + token}, {text}"
        return found

    def check(self, name: str, dtype: torch.dtype) -> Check:
        said, limit = str(dtype).removeprefix("torch."), self.tolerance if self.where else self.limit
        return Check(name, said, len(self.texts), self.tokens, self.difference, self.where, limit)


class _Step(NamedTuple):
    """One step of both sides, (B, T, C) or a row of it.

    ``size`` (B, T) is the largest number of each token, of a stream that of all layers so far: rounding keeps the size
    of what was there, also where later layers take most of it away. ``lost`` (B,) is what theirs loses by rounding.
    """

    name: str
    ours: Tensor
    theirs: Tensor
    size: Tensor
    lost: Tensor

    def row(self, number: int, real: Tensor | None = None) -> "_Step":
        """One text of a batch, without what it is filled up with."""
        kept = slice(None) if real is None else real
        ours, theirs, size = (one[number][kept] for one in (self.ours, self.theirs, self.size))
        return _Step(self.name, ours, theirs, size, self.lost[number])

    def after(self, first: int, ours: Tensor) -> "_Step":
        """The tokens of a row from ``first`` on, with other numbers of ours."""
        return _Step(self.name, ours, self.theirs[first:], self.size[first:], self.lost)


def _apart(one: Tensor, other: Tensor, size: Tensor) -> Tensor:
    """The largest difference at each token (…, T), in units of its ``size``; padded vocabularies are cut alike."""
    width = min(one.shape[-1], other.shape[-1])
    return (one[..., :width].double() - other[..., :width].double()).abs().amax(-1) / size.double().clamp_min(1e-12)


class Sides:
    """Both models in one dtype, and how far they are apart on the texts so far.

    ``exact`` keeps what theirs gives in float32, by the name of a text or batch, for the dtypes after it.
    """

    def __init__(
        self,
        ours: Transformer,
        theirs: Reference,
        dtype: torch.dtype,
        tolerance: float | None,
        exact: dict[str, Ran],
    ) -> None:
        self.ours, self.theirs, self.dtype, self.exact = ours, theirs, dtype, exact
        self.limit = allowed(RUN, dtype) if tolerance is None else tolerance
        self.rounds = dtype in (torch.bfloat16, torch.float16) and tolerance is None
        table, config = table_of(ours.config), ours.config
        blocks = [f"L{layer}.{table.output}" for layer in range(config.n_layers)]
        if config.final_norm:
            blocks[-1] = _NORMED
        self.steps = [table.embedded, *blocks]
        self.layers = dict.fromkeys(self.steps, 0.0)
        self.notes: list[str] = []
        self.lost: dict[tuple[str, str], Tensor] = {}  # by text and step, what theirs loses of it alone
        self.device = next(ours.parameters()).device

    def checks(self, ids: dict[str, list[int]], done: Callable[[], None]) -> Iterator[Check]:
        """Every comparison of these texts; ``done`` is called before each text."""
        if (known := self.theirs.n_tokens) <= max(map(max, ids.values())):
            ours = self.ours.config.vocab_size
            raise UsageError(f"the models are of other vocabularies: {ours:,} tokens, and {known:,}", _ORIGINAL)
        states, logits, cached, chunked = (_Worst(self.limit) for _ in range(4))
        causal = not self.ours.config.looks_ahead and self.ours.config.head.kind == "lm"
        for name, one in ids.items():
            done()
            last = self._whole(name, one, states, logits)
            if causal and last is not None:
                self._one_by_one(name, one, last, cached)
                self._in_chunks(name, one, last, chunked)
        yield states.check("every layer", self.dtype)
        if logits.texts:
            yield logits.check("logits", self.dtype)
        for side in ("left", "right"):
            worst = _Worst(self.limit)
            self._padded(ids, side, worst)
            yield worst.check(f"in a batch, padded on the {side}", self.dtype)
        if causal:
            yield cached.check("token by token, with a cache", self.dtype)
            yield chunked.check(f"the text in pieces of {_CHUNK}", self.dtype)

    def _run(self, ids: Tensor, real: Tensor | None) -> Ran:
        """Our states and logits, as ``Reference.run`` has theirs."""
        states: list[Tensor] = []
        parts = (self.ours.embed, *self.ours.blocks)
        hooks = [part.register_forward_hook(lambda module, args, result: states.append(result)) for part in parts]
        try:
            with torch.no_grad():
                given = None if real is None else real.to(self.device)
                last = self.ours.hidden(ids.to(self.device), padding_mask=given)
                logits = None if self.ours.head is None else self.ours.unembed(last)
                states[-1] = getattr(self.ours.head, "projection", nn.Identity())(last)  # as OPT-350m has them
        finally:
            for hook in hooks:
                hook.remove()
        return [one.float().cpu() for one in states], None if logits is None else logits.float().cpu()

    def _both(self, name: str, ids: Tensor, real: Tensor | None) -> Iterator["_Step"]:
        """Every step of both, then the logits where both have them."""
        config = self.ours.config
        states, logits = self._run(ids, real)
        expected, expected_logits = self.theirs.run(ids, real, config)
        sizes = [(len(one), one[0].shape[-1]) for one in (states, expected)]
        if sizes[0] != sizes[1]:
            said = [f"{count - 1} layers of {width}" for count, width in sizes]
            raise UsageError(f"the models are of other sizes: {said[0]}, and {said[1]}", _ORIGINAL)
        if self.dtype == torch.float32:
            self.exact[name] = expected, expected_logits
        lost = self._lost(name, ids, real, (expected, expected_logits))
        size = torch.zeros(ids.shape)
        for number, (step, one, other) in enumerate(zip(self.steps, states, expected, strict=True)):
            own = other.abs().amax(-1)
            size = own if step == _NORMED else torch.maximum(size, own)
            yield _Step(step, one, other, size, lost(number, size))
        if logits is not None and expected_logits is not None:
            if config.head.kind == "sequence":
                logits = logits[:, [0 if config.head_reads == "first" else -1]]
            size = expected_logits.abs().amax(-1)
            yield _Step("logits", logits, expected_logits, size, lost(None, size))

    def _lost(self, name: str, ids: Tensor, real: Tensor | None, eager: Ran) -> Callable[[int | None, Tensor], Tensor]:
        """A function of a state's number (None: the logits) and its size: what theirs loses by rounding, at worst (B,).

        That is its distance from its own float32, in eager attention or in fused, whichever is more; 0 in float32.
        """
        if not self.rounds:
            return lambda number, size: torch.zeros(len(ids))
        fused = self.theirs.run_fused(ids, real, self.ours.config)
        counted = torch.ones(ids.shape, dtype=torch.bool) if real is None else real

        def lost(number: int | None, size: Tensor) -> Tensor:
            runs = [self.exact[name], eager, *([] if fused is None else [fused])]
            exact, *others = (states[number] if number is not None else logits for states, logits in runs)
            assert exact is not None
            apart = [_apart(one, exact, size).nan_to_num(0.0, posinf=0.0) for one in others if one is not None]
            return (torch.stack(apart) * counted[:, : size.shape[1]]).amax((0, 2))

        return lost

    def _whole(self, name: str, ids: list[int], states: _Worst, logits: _Worst) -> "_Step | None":
        """One text at once; its logits, where there are any."""
        last = None
        states.tokens += len(ids)
        for one in self._both(name, torch.tensor([ids]), None):
            row = one.row(0)
            self.lost[name, one.name] = row.lost
            if one.name == "logits":
                last, worst = row, logits
                logits.tokens += len(row.ours)
            else:
                worst = states
            apart = worst.see(row, name)
            if one.name in self.layers:
                self.layers[one.name] = max(self.layers[one.name], apart)
        return last

    def _padded(self, ids: dict[str, list[int]], side: str, worst: _Worst) -> None:
        """Some texts in one batch, the short ones filled up: no token may see what is filled in."""
        few = dict(sorted(ids.items(), key=lambda one: len(one[1]))[:_BATCH])
        length = max(map(len, few.values()))
        fills = [[one[0]] * (length - len(one)) for one in few.values()]
        rows = [fill + one if side == "left" else one + fill for fill, one in zip(fills, few.values(), strict=True)]
        counts, place = torch.tensor([len(one) for one in few.values()])[:, None], torch.arange(length)
        real = place >= length - counts if side == "left" else place < counts
        worst.tokens += sum(map(len, few.values()))
        for one in self._both(side, torch.tensor(rows), real):
            for number, name in enumerate(few):
                row = one.row(number, real[number])
                most = torch.maximum(row.lost, self.lost.get((name, one.name), row.lost))
                worst.see(row._replace(lost=most), name)

    def _one_by_one(self, name: str, ids: list[int], last: "_Step", worst: _Worst) -> None:
        """The first half as a prompt, then a token at a time, as ``tinytf generate`` goes on."""
        start = (len(ids) + 1) // 2
        runner = Runner(self.ours, ids[:start], self.ours.cache(len(ids)))
        rows = torch.full((len(ids) - start + 1, last.ours.shape[-1]), math.nan)
        with suppress(GenerationError):  # of logits that are not finite: the rest stays so
            rows[0] = runner.first()[0]
            for place, one in enumerate(ids[start:], 1):
                rows[place] = runner.go_on([0], [one])[0]
        worst.tokens += len(rows)
        worst.see(last.after(start - 1, rows), name, start - 1)
        if runner.note and runner.note not in self.notes:
            self.notes.append(runner.note)

    @torch.no_grad()
    def _in_chunks(self, name: str, ids: list[int], last: "_Step", worst: _Worst) -> None:
        """The text through a cache, a few tokens at a time."""
        cache, turn = self.ours.cache(len(ids)), self.ours.config.rope_switch
        size = max(_CHUNK, turn + 1) if 0 < turn < len(ids) else _CHUNK  # the first piece turns as the whole text does
        pieces = torch.tensor([ids], device=self.device).split(size, dim=1)
        found = [self.ours.unembed(self.ours.hidden(piece, cache=cache))[0].float().cpu() for piece in pieces]
        worst.tokens += len(ids)
        worst.see(last.after(0, torch.cat(found)), name)
