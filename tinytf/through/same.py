"""Does a model give a text the same numbers alone, padded, in a batch, with a cache, after another text?

Each way of running the text is compared with the text alone, module by module; where one differs, a few experiments say
why. Shapes: B texts, T tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from tinytf.errors import TinytfError, UsageError
from tinytf.model.cache import KVCache
from tinytf.report import About, Data, Report
from tinytf.steps.table import table_of
from tinytf.tables import ColumnStyle
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel, in_turn_of_all
from tinytf.through.model import ThroughModel
from tinytf.through.opening import reason_of
from tinytf.through.recording import tensors_in
from tinytf.tolerance import RUN, allowed

TEXT = "The cat sat on the mat."
_EXTRA, _CHUNKS = 4, 3
"""Tokens that the longer text has more, and of padding; chunks into which a text is cut."""
Steps = dict[str, Tensor]


class Runner(Protocol):
    """A module whose steps are kept while it runs."""

    @property
    def modules(self) -> Mapping[str, nn.Module]: ...
    @property
    def causal(self) -> bool: ...
    @property
    def takes_positions(self) -> bool: ...
    @property
    def padding(self) -> int: ...
    @property
    def sides(self) -> tuple[str, ...]: ...
    def seed(self, number: int) -> None: ...
    def whole(self, rows: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor | None: ...
    def pieces(self, pieces: Sequence[Tensor], positions: bool) -> Iterator[Tensor | None]: ...


@dataclass(frozen=True)
class _Ours:
    """A model that tinytf computes, which pads on the right."""

    model: TextModel
    takes_positions, padding, sides = False, 0, ("right",)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        found, module = dict[str, nn.Module](), self.model.transformer
        for step, layer in table_of(self.model.config).rows:
            if step.recorded and step.runs:
                path = step.path if layer is None else f"blocks.{layer}.{step.path}"
                found[step.full_name(layer)] = module.get_submodule(path)
        return found

    @property
    def causal(self) -> bool:
        return not self.model.config.looks_ahead

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def whole(self, rows: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor | None:
        given: Tensor = self.model.transformer(rows, padding_mask=mask)
        return given

    def pieces(self, pieces: Sequence[Tensor], positions: bool) -> Iterator[Tensor | None]:
        module, tokens = self.model.transformer, sum(piece.shape[1] for piece in pieces)
        weight = next(module.parameters())
        cache = KVCache(self.model.config, tokens, device=weight.device, dtype=weight.dtype)
        for piece in pieces:
            hidden = module.hidden(piece, cache=cache)
            yield hidden if module.head is None else module.unembed(hidden)


@dataclass(frozen=True)
class _Theirs:
    """A model that runs through transformers."""

    model: ThroughModel

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        return {name: module for name, module in self.model.transformer.named_modules() if name}

    @property
    def causal(self) -> bool:
        return self.model.config.causal

    @property
    def _takes(self) -> Mapping[str, Any]:
        return signature(self.model.transformer.forward).parameters

    @property
    def takes_positions(self) -> bool:
        return "position_ids" in self._takes

    @property
    def padding(self) -> int:
        padding = getattr(self.model.transformer.config.get_text_config(), "pad_token_id", None)
        return padding if isinstance(padding, int) and padding >= 0 else 0

    @property
    def sides(self) -> tuple[str, ...]:
        return ("right", "left") if self.causal else ("right",)

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def whole(self, rows: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor | None:
        given: dict[str, Any] = {**self.model.options, **({} if mask is None else {"attention_mask": mask.long()})}
        given |= {} if positions is None else {"position_ids": positions}
        return _logits(self.model.transformer(input_ids=rows, **given))

    def pieces(self, pieces: Sequence[Tensor], positions: bool) -> Iterator[Tensor | None]:
        if "past_key_values" not in self._takes and "cache_params" not in self._takes:
            raise UsageError("it takes no cache")
        name = "past_key_values" if "past_key_values" in self._takes else "cache_params"
        cache, start = None, 0
        for piece in pieces:
            end = start + piece.shape[1]
            given = {"position_ids": torch.arange(start, end, device=piece.device)[None]} if positions else {}
            result = self.model.transformer(input_ids=piece, use_cache=True, **{name: cache}, **given)
            cache, start = getattr(result, name, None), end
            if cache is None:
                raise UsageError("it returns no cache")
            yield _logits(result)


def _logits(result: Any) -> Tensor | None:
    found = getattr(result, "logits", None)
    return found if isinstance(found, Tensor) else None


@dataclass(frozen=True)
class Way(Data):
    """A ``way`` of running the text: the ``step`` and ``position`` that differ first from the text alone, and ``why``.

    ``difference`` is the largest within a token of what the model gives, relative to its largest number; None where the
    way cannot be tried, or where the model ``failed``, and ``why`` says so.
    """

    ALSO: ClassVar = ("holds",)
    COLUMNS: ClassVar = {
        "holds": ColumnStyle(
            "", lambda holds: "✓" if holds else "✗", "left",
            role={True: "good", False: "bad", None: "dim"}.__getitem__,
        ),
        "way": ColumnStyle("the text", shrink=20),
        "difference": ColumnStyle("differs by", "%.1e", "right"),
        "step": ColumnStyle("first at", shrink=16),
        "shown": ColumnStyle("token", shrink=8),
    }  # fmt: skip

    way: str
    difference: float | None
    step: str = ""
    position: int | None = None
    why: str = ""
    tolerance: float = 0.0
    shown: str = ""
    failed: bool = False

    @property
    def holds(self) -> bool | None:
        return False if self.failed else None if self.difference is None else self.difference <= self.tolerance


@dataclass(frozen=True)
class Same(Report):
    """Whether the model gives a text the same in every one of ``ways``; ``steps`` are compared where it does not.

    ``target`` is the module of a file that ran instead of the model, with its sizes and weights.
    """

    KIND = "same"
    EVENTS: ClassVar = {"ways": "way", "check": "check"}
    ALWAYS_SAID = True

    ways: tuple[Way, ...]
    steps: int
    tolerance: float
    target: str = ""

    @property
    def differing(self) -> tuple[Way, ...]:
        return tuple(way for way in self.ways if way.holds is False)

    @property
    def holds(self) -> bool:
        """Whether no way changes the numbers, and some way was tried."""
        return not self.differing and any(way.holds for way in self.ways)

    def in_a_sentence(self) -> str:
        """The first way that changes the numbers, where it begins and why; or that none does."""
        words = self._in_words()
        return f"{self.target} is {words[0].lower()}{words[1:]}" if self.target and words else words

    def _in_words(self) -> str:
        tried = [way for way in self.ways if way.holds is not None]
        if not self.differing:
            most = max((way.difference or 0.0 for way in tried), default=0.0)
            return f"The same in all {len(tried)} ways, to {most:.0e} of a token's largest number." if tried else ""
        first, others = self.differing[0], len(self.differing) - 1
        token = "" if first.position is None else f", at token {first.position} {first.shown}"
        why = f": {first.why}" if first.why else ""
        rest = f" ({others} more way{'s' * (others > 1)} differ{'s' * (others == 1)})" if others else ""
        begins = f", from {first.step} on{token}" if first.step else ""
        return f"Not the same {first.way}{begins}{why}{rest}."

    def fields(self) -> dict[str, Any]:
        check = {"tolerance": self.tolerance, "holds": self.holds}
        return {**self.members("target", "steps", "ways"), "check": check}


@in_turn_of_all
def same(
    model: "TextModel | ThroughModel", text: str = TEXT, other: str | None = None, *, truncate: bool = False
) -> Same:
    """Compare a text alone with the same text padded, in a batch, with a cache, in chunks and after another text.

    ``other`` is the text beside and before it; by default one of the same tokens, longer. ``truncate`` cuts texts that
    exceed the context. Raises UsageError for a text of a single token.
    """
    encoding = model.encode(text, truncate=truncate)
    beside = None if other is None else model.encode(other, truncate=truncate).ids
    runner: Runner = _Theirs(model) if isinstance(model, ThroughModel) else _Ours(model)
    trial = Trial(model, encoding, beside, runner)
    return Same(trial.ways(), trial.steps, trial.tolerance, about=About(model, encoding))


class Trial:
    """All ways of one text; ``steps`` are compared, whose numbers are of the text."""

    alone: Steps

    def __init__(self, model: Any, encoding: Encoding, beside: list[int] | None, runner: Runner) -> None:
        self.model, self.encoding, self.runner = model, encoding, runner
        self.ids, self.count = encoding.ids, len(encoding.ids)
        if self.count < 2:
            raise UsageError("a text of one token is the same in few ways", "give a longer text")
        weight = next(model.transformer.parameters())
        self.device, self.tolerance = weight.device, allowed(RUN, weight.dtype)
        room = min(model.config.context - self.count, _EXTRA)
        longer = (self.ids[::-1] * 2)[: self.count + room]
        self.beside = longer if beside is None else beside[: self.count + room]
        self.total = max(self.count, len(self.beside)) if beside is not None else self.count + room
        self.room = room

    @torch.no_grad()
    def ways(self) -> tuple[Way, ...]:
        """Every way, tried."""
        alone, other = self._steps([self.ids], None), self._steps([self._another()], None)
        of_text = {name: x for name, x in alone.items() if not torch.equal(x, other.get(name, x[:0]))}
        self.alone = of_text or alone  # without tables of positions, which are no numbers of the text
        again = self._steps([self.ids], None, seed=1)
        same_seed = self._steps([self.ids], None)
        varied, kept = (_first_apart(self.alone, x, self.count, self.tolerance)[0] for x in (again, same_seed))
        self.random = varied > self.tolerance >= kept
        return tuple(self._named(self._tried(way, ids)) for way, ids in self._ways())

    @property
    def steps(self) -> int:
        return len(self.alone)

    def _another(self) -> list[int]:
        """A text of as many other tokens."""
        last = self.model.config.vocab_size - 1
        return [token - 1 if token >= last else token + 1 for token in self.ids]

    def _named(self, way: Way) -> Way:
        shown = "" if way.position is None else self.encoding.tokens[way.position].shown
        return replace(way, tolerance=self.tolerance, shown=shown)

    def _ways(self) -> "Iterator[tuple[str, Callable[[], Way]]]":
        """Each way in words, and a function that tries it."""
        sides = self.runner.sides
        for side in sides:
            yield f"padded on the {side}", lambda side=side: self._padded(side)  # type: ignore[misc]
        for side in sides:
            words = f"in a batch, padded on the {side}"
            yield words, lambda side=side: self._batched(side)  # type: ignore[misc]
        yield "alone again, after another text", self._again
        if self.runner.causal:
            yield "with later tokens after it", self._continued
            yield "with a cache, token by token", lambda: self._cached([1] * self.count)
            size = -(-self.count // _CHUNKS)
            sizes = [min(size, self.count - start) for start in range(0, self.count, size)]
            yield f"with a cache, in chunks of {size}", lambda: self._cached(sizes)

    def _tried(self, words: str, way: Callable[[], Way]) -> Way:
        """A way, or why it cannot be tried."""
        try:
            found = way()
            if self.random and found.difference is not None and found.difference > self.tolerance:
                found = replace(found, why="its numbers are drawn at random: another seed gives others")
            return replace(found, way=words)
        except TinytfError as error:
            return Way(words, None, why=error.message)
        except Exception as error:  # code of any architecture
            return Way(words, None, why=f"it fails: {reason_of(error)}", failed=True)

    def _padded(self, side: str, fill: int | None = None, *, positions: bool = False) -> Way:
        """The text with padding on a side; then with other padding, and with positions of its own."""
        self._require_room()
        filled = [self.runner.padding if fill is None else fill] * self.room
        row = [*filled, *self.ids] if side == "left" else [*self.ids, *filled]
        start = self.room if side == "left" else 0
        mask = torch.zeros(1, len(row), dtype=torch.bool, device=self.device)
        mask[:, start : start + self.count] = True
        found = self._compared(self._steps([row], mask, positions=positions), start)
        if fill is not None or positions or found.difference is None or found.difference <= self.tolerance:
            return found
        return replace(found, why=self._why_padded(side))

    def _why_padded(self, side: str) -> str:
        """What padding changes: what stands in it is read, or positions count it."""
        start = self.room if side == "left" else 0
        fills = [fill for fill in range(2, self.model.config.vocab_size) if fill != self.runner.padding][:2]
        rows = [[*([fill] * self.room), *self.ids] if start else [*self.ids, *([fill] * self.room)] for fill in fills]
        mask = torch.zeros(1, len(rows[0]), dtype=torch.bool, device=self.device)
        mask[:, start : start + self.count] = True
        first, second = (self._own(self._steps([row], mask), start, 0) for row in rows)
        if _first_apart(first, second, self.count, self.tolerance)[0] > self.tolerance:
            return "the padding is read: other tokens in it change the numbers"
        if self.runner.takes_positions and (self._padded(side, positions=True).difference or 1.0) <= self.tolerance:
            return "positions count the padding: with position_ids of its own it is the same"
        return ""

    def _batched(self, side: str) -> Way:
        """The second row of a batch whose first row is longer; then beside another text."""
        self._require_room()
        found = self._compared(self._batch(self.beside, side), self._start(side), 1)
        if found.difference is None or found.difference <= self.tolerance:
            return found
        other = [self.ids[0]] * len(self.beside)
        first, second = (self._own(self._batch(row, side), self._start(side), 1) for row in (self.beside, other))
        why = self._why_padded(side) if self.total > self.count else ""
        if _first_apart(first, second, self.count, self.tolerance)[0] > self.tolerance:
            why = "the texts of a batch are mixed: another text beside it changes the numbers"
        return replace(found, why=why)

    def _start(self, side: str) -> int:
        return self.total - self.count if side == "left" else 0

    def _batch(self, beside: list[int], side: str) -> Steps:
        rows, mask = list[list[int]](), torch.zeros(2, self.total, dtype=torch.bool, device=self.device)
        for number, ids in enumerate((beside, self.ids)):
            filled = [self.runner.padding] * (self.total - len(ids))
            rows.append([*filled, *ids] if side == "left" else [*ids, *filled])
            start = len(filled) if side == "left" else 0
            mask[number, start : start + len(ids)] = True
        return self._steps(rows, mask)

    def _again(self) -> Way:
        self._steps([self.beside], None)
        found = self._compared(self._steps([self.ids], None), 0)
        differs = (found.difference or 0.0) > self.tolerance
        return replace(found, why="the model keeps something of the text before" * differs)

    def _continued(self) -> Way:
        self._require_room()
        found = self._compared(self._steps([[*self.ids, *self.beside[: self.room]]], None), 0)
        differs = (found.difference or 0.0) > self.tolerance
        return replace(found, why="a token sees later ones" * differs)

    def _cached(self, sizes: Sequence[int], *, positions: bool = False) -> Way:
        """The text in pieces with a cache; then with the positions of each piece."""
        pieces = torch.tensor([self.ids], device=self.device).split(list(sizes), dim=1)
        outputs, kept = self.runner.pieces(pieces, positions), list[Steps]()
        for _ in pieces:
            with self._kept() as steps:
                logits = next(outputs)
                if logits is not None:
                    steps["logits"] = logits
            kept.append(dict(steps))
        joined = {name: _joined(x, [one.get(name) for one in kept], sizes) for name, x in self.alone.items()}
        found = self._compared({name: x for name, x in joined.items() if x is not None}, 0, by_token=True)
        if positions or (found.difference or 0.0) <= self.tolerance:
            return found
        if not self.runner.takes_positions:
            return replace(found, why=self._why_cached(kept[-1], pieces[-1]))
        given = self._cached(sizes, positions=True).difference
        if given is not None and given <= self.tolerance:
            return replace(found, why="with position_ids of each piece it is the same")
        return replace(found, why=self._why_cached(kept[-1], pieces[-1]))

    def _why_cached(self, kept: Steps, piece: Tensor) -> str:
        """Whether a piece gives what it gives alone, as if nothing were cached."""
        alone = self._steps(piece.tolist(), None)
        most, *_ = _first_apart(kept, alone, piece.shape[1], self.tolerance)
        return "the cache is not read: a piece gives what it gives alone" if most <= self.tolerance else ""

    def _require_room(self) -> None:
        if self.room < 1:
            raise UsageError("the text fills the context")

    @contextmanager
    def _kept(self, seed: int = 0) -> Iterator[Steps]:
        """What modules return in this context, in the order in which they do, by name."""
        kept: Steps = {}

        def keep(name: str, result: Any) -> None:
            found = next((x for x in tensors_in(result) if x.is_floating_point() and x.numel()), None)
            if found is not None:
                number = sum(other.partition("#")[0] == name for other in kept)
                kept[f"{name}#{number + 1}" if number else name] = found.detach()

        with ExitStack() as stack:
            for name, module in self.runner.modules.items():
                hook = module.register_forward_hook(lambda _, __, result, name=name: keep(name, result))
                stack.callback(hook.remove)
            self.runner.seed(seed)
            yield kept

    def _steps(
        self, rows: Sequence[Sequence[int]], mask: Tensor | None, *, positions: bool = False, seed: int = 0
    ) -> Steps:
        ids = torch.tensor(rows, device=self.device)
        places = (mask.long().cumsum(dim=-1) - 1).clamp(min=0) if positions and mask is not None else None
        with self._kept(seed) as steps:
            logits = self.runner.whole(ids, mask, places)
        return steps if logits is None else {**steps, "logits": logits}

    def _own(self, steps: Steps, start: int, row: int) -> Steps:
        """The numbers of the text in a batch, without padding."""
        found = ((name, self._part(self.alone[name], x, start, row)) for name, x in steps.items() if name in self.alone)
        return {name: x for name, x in found if x is not None}

    def _part(self, alone: Tensor, x: Tensor, start: int, row: int) -> Tensor | None:
        """The part of the text in a tensor, in the axes of the text ``alone``; None where these are not found."""
        count, size = self.count, self.total
        if alone.dim() == x.dim() and alone.shape[0] == count and x.shape[0] % count and not x.shape[0] % size:
            x = x.unflatten(0, (-1, size))[row]  # (B·T, …)
            return x.narrow(0, start, count) if x.shape[1:] == alone.shape[1:] else None
        if alone.dim() != x.dim() or alone.shape[0] != 1 or x.shape[0] <= row:
            return None
        x = x[row : row + 1]
        for axis in range(1, x.dim()):
            if x.shape[axis] != alone.shape[axis]:
                if alone.shape[axis] != count or x.shape[axis] < start + count:
                    return None
                x = x.narrow(axis, start, count)
        return x

    def _compared(self, steps: Steps, start: int, row: int = 0, *, by_token: bool = False) -> Way:
        """What the model gives beside that for the text alone, and where it differs first, if it does.

        ``by_token`` puts the first token before the first step.
        """
        own = self._own(steps, start, row)
        if not own:
            raise UsageError("none of its modules can be compared")
        last = list(own)[-1]
        difference, *_ = _first_apart({last: self.alone[last]}, own, self.count, self.tolerance)
        if (
            difference <= self.tolerance
        ):  # queries that RoPE has turned differ at other places, and what they see does not
            return Way("", difference)
        _, name, position = _first_apart(self.alone, own, self.count, self.tolerance, by_token=by_token)
        return Way("", difference, name, position)


def _joined(alone: Tensor, pieces: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """The pieces of a step put together along the axis of tokens; None where there is no such axis."""
    for axis in range(alone.dim()):
        wanted = [(*alone.shape[:axis], size, *alone.shape[axis + 1 :]) for size in sizes]
        found = [x for x, shape in zip(pieces, wanted, strict=True) if x is not None and tuple(x.shape) == shape]
        if alone.shape[axis] == sum(sizes) and len(found) == len(sizes):
            return torch.cat(found, dim=axis)
    return None


def _first_apart(
    first: Steps, second: Steps, count: int, tolerance: float, *, by_token: bool = False
) -> tuple[float, str, int | None]:
    """The largest relative difference of a token, and the step and position that are the first beyond the tolerance."""
    most, differing = 0.0, list[tuple[int, str, int | None]]()
    for name, a in first.items():
        b = second.get(name)
        if b is None or a.shape != b.shape:
            continue
        axis = next((axis for axis in range(a.dim()) if a.shape[axis] == count), None)
        a, b = (x.float().reshape(1, -1) if axis is None else x.float().movedim(axis, 0).flatten(1) for x in (a, b))
        seen = a.isfinite() & b.isfinite()
        unlike = ((a != b) & ~seen).any(dim=1)
        a, b = (torch.where(seen, x, 0.0) for x in (a, b))
        scale = torch.maximum(a.abs().amax(dim=1), b.abs().amax(dim=1))
        if a.shape[1] == 1:
            scale = scale.amax().expand_as(scale)
        off = ((a - b).abs().amax(dim=1) / scale.clamp(min=1e-30)).masked_fill(unlike, torch.inf)
        most = max(most, float(off.max()))
        if bool((off > tolerance).any()):
            position = int((off > tolerance).nonzero()[0])
            differing.append((position if axis is not None else 0, name, position if axis is not None else None))
    if not differing:
        return most, "", None
    return most, *(min(differing, key=lambda one: one[0]) if by_token else differing[0])[1:]
