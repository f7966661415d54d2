"""One text run in every way of the table, each compared with the text alone, and a few experiments that say why.

Shapes: B texts, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.counting import counted
from tinytf.errors import TinytfError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations import Mask
from tinytf.steps.table import table_of
from tinytf.tables import ColumnStyle
from tinytf.text.tokenizer import Encoding
from tinytf.through.not_finite import Origin
from tinytf.through.opening import reason_of
from tinytf.through.recording import tensors_in
from tinytf.through.runners import Ours, Runner
from tinytf.tolerance import RUN, allowed
from tinytf.trace.faults import overflow_at
from tinytf.trace.record import record

_EXTRA, _CHUNKS = 4, 3
"""Tokens that the longer text has more, and of padding; chunks into which a text is cut."""
_SIDES = ("right", "left")
Steps = dict[str, Tensor]


@dataclass(frozen=True)
class Way(Data):
    """A ``way`` of running the text: the ``step`` and ``position`` that differ first from the text alone, and ``why``.

    ``difference`` is the largest within a token of what the model gives, relative to its largest number; None where the
    way cannot be tried, or where the model ``failed`` or its numbers are not all finite, and ``why`` says so.
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
    is_finite: bool = True

    @property
    def holds(self) -> bool | None:
        return (
            False
            if self.failed or not self.is_finite
            else None
            if self.difference is None
            else self.difference <= self.tolerance
        )

    def holds_within(self, tolerance: float) -> bool:
        """Whether it was tried and differs by no more."""
        return self.difference is not None and self.difference <= tolerance


class Trial:
    """All ways of one text; ``steps`` are compared, whose numbers are of the text.

    A text that reads a source is also run with that padded, and after the other ``source``.
    """

    alone: Steps

    def __init__(
        self, model: Any, encoding: Encoding, beside: list[int] | None, runner: Runner, source: list[int] | None = None
    ) -> None:
        self.model, self.encoding, self.runner, self.source = model, encoding, runner, source
        self.ids, self.count = encoding.ids, len(encoding.ids)
        if self.count < 2:
            raise UsageError("a text of one token is the same in few ways", "give a longer text")
        weight = next(model.transformer.parameters())
        self.device, self.tolerance = weight.device, allowed(RUN, weight.dtype)
        room = min(model.config.context - self.count, _EXTRA)
        longer = (self.ids[::-1] * 2)[: self.count + room]
        self.beside = longer if beside is None else beside[: self.count + room]
        self.room, self.total = room, self.count + room

    @torch.no_grad()
    def ways(self) -> tuple[Way, ...]:
        """Every way, tried or with the reason why it cannot be; none but the text alone where that is not finite."""
        alone = self._steps([self.ids], None)
        if (bad := _not_finite(alone, self._hidden(alone), self.count)) is not None:
            self.alone = alone
            first = self._named(Way("alone", None, *bad, why=self._overflow(bad[0]) or self._origin(), is_finite=False))
            return first, *(Way(way, None, why="the text alone is not finite") for way, _ in self._ways())
        other = self._steps([self._another()], None)
        of_text = {name: x for name, x in alone.items() if not torch.equal(x, other.get(name, x[:0]))}
        self.alone = of_text or alone  # without tables of positions, which are no numbers of the text
        again = self._steps([self.ids], None, seed=1)
        same_seed = self._steps([self.ids], None)
        varied, kept = (_first_apart(self.alone, x, self.count, self.tolerance)[0] for x in (again, same_seed))
        self.random = varied > self.tolerance >= kept
        self.integers = self._takes_integers()
        return tuple(self._named(self._tried(way, ids)) for way, ids in counted("ways tried:", tuple(self._ways())))

    def _hidden(self, alone: Steps) -> Steps:
        """Numbers that are −∞ by design, beside those of each step of a model with a table: scores that are masked."""
        return {
            name: x if isinstance(self.table[name].operation, Mask) else x.new_zeros(()).expand(x.shape)
            for name, x in alone.items()
            if name in self.table
        }

    def _overflow(self, step: str) -> str:
        """Which number passes float16's largest at a step of a model with a table; else empty."""
        if step not in self.table:
            return ""
        return overflow_at(record(self.model.transformer, self.encoding, force=True), step)

    @cached_property
    def table(self) -> dict[str, Step]:
        """The steps of a model with a table by their names; none for another."""
        rows = table_of(self.model.config).rows if isinstance(self.model.transformer, Transformer) else ()
        return {step.full_name(layer): step for step, layer in rows}

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
        """Each way in words, and a function that tries it, or raises UsageError with the reason why it cannot be."""
        size = -(-self.count // _CHUNKS)
        sizes = [min(size, self.count - start) for start in range(0, self.count, size)]
        for side in _SIDES:
            yield f"padded on the {side}", lambda side=side: self._padded(side)  # type: ignore[misc]
        for side in _SIDES:
            words = f"in a batch, padded on the {side}"
            yield words, lambda side=side: self._batched(side)  # type: ignore[misc]
        yield "alone again, after another text", self._again
        yield "with later tokens after it", self._continued
        yield "with a cache, token by token", lambda: self._cached([1] * self.count)
        yield f"with a cache, in chunks of {size}", lambda: self._cached(sizes)
        for form in ("integers", "booleans", "four axes"):
            words = f"with a mask of {form}"
            yield words, lambda form=form: self._masked(form)  # type: ignore[misc]
        yield "with positions of its own", self._at_positions
        if isinstance(self.runner, Ours) and self.source is not None:
            yield "with its source padded on the right", lambda: self._facing([])
            yield "with its source in a batch, padded on the right", lambda: self._facing(self.source or [])

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

    def _require_side(self, side: str) -> None:
        if side == "left" and self.runner.right_alone:
            raise UsageError(self.runner.right_alone)
        if not self.runner.mask and (side == "left" or not self.runner.causal):
            raise UsageError("forward takes no attention_mask")

    def _require_causal(self, why: str) -> None:
        if not self.runner.causal:
            raise UsageError(why)

    def _padded(self, side: str) -> Way:
        """The text with padding on a side; then with other padding, and with positions of its own."""
        self._require_side(side)
        self._require_room()
        found = self._compared(*self._with_padding(side))
        return replace(found, why=self._why_padded(side)) if self._differs(found) else found

    def _differs(self, way: Way) -> bool:
        return way.difference is not None and way.difference > self.tolerance

    def _with_padding(
        self, side: str, fill: int | None = None, *, positions: bool = False, form: str = ""
    ) -> tuple[Steps, int]:
        """The steps of the text with padding on a side, and where it begins."""
        filled = [self.runner.padding if fill is None else fill] * self.room
        row, start = ([*filled, *self.ids], self.room) if side == "left" else ([*self.ids, *filled], 0)
        mask = torch.zeros(1, len(row), dtype=torch.bool, device=self.device)
        mask[:, start : start + self.count] = True
        return self._steps([row], mask, positions=positions, form=form), start

    def _why_padded(self, side: str) -> str:
        """What padding changes: what stands in it is read, or positions count it."""
        if self.runner.mask and not self._reads_mask():
            return f"forward takes {self.runner.mask}, and its result does not depend on it"
        fills = [fill for fill in range(2, self.model.config.vocab_size) if fill != self.runner.padding][:2]
        made = [self._with_padding(side, fill) for fill in fills]
        first, second = (self._own(steps, start, 0) for steps, start in made)
        if _first_apart(first, second, self.count, self.tolerance)[0] > self.tolerance:
            return "the padding is read: other tokens in it change the numbers"
        if not self.runner.positions:
            return "positions count the padding: other tokens in it change nothing, its length does" * (side == "left")
        if self._compared(*self._with_padding(side, positions=True)).holds_within(self.tolerance):
            return "positions count the padding: with position_ids of its own it is the same"
        return ""

    def _reads_mask(self, form: str = "") -> bool:
        """Whether the numbers of a text in a batch change when the mask hides its first token."""
        mask = torch.ones(2, self.count, dtype=torch.bool, device=self.device)
        hidden = mask.clone()
        hidden[0, 0] = False
        first, second = (self._steps([self.ids, self.ids], one, form=form) for one in (mask, hidden))
        last = list(self.alone)[-1]
        return not torch.equal(first[last][:1], second[last][:1])

    def _masked(self, form: str) -> Way:
        """The text padded with a mask of another form; on the left, where that can be."""
        if not self.runner.mask:
            raise UsageError("forward takes no attention_mask")
        self._require_room()
        side = "right" if self.runner.right_alone else "left"
        try:
            is_read = self._reads_mask(form)
            found = self._compared(*self._with_padding(side, positions=bool(self.runner.positions), form=form))
        except UsageError:
            raise
        except Exception as error:  # code of any architecture
            raise UsageError(f"forward refuses such a mask: {_reason(error)}") from None
        if not is_read:
            raise UsageError(f"forward takes {self.runner.mask}, and its result does not depend on it")
        if found.holds_within(self.tolerance) or form == ("integers" if self.integers else "booleans"):
            return replace(found, why=self._why_padded(side)) if self._differs(found) else found
        raise UsageError("forward takes such a mask for something else")

    def _at_positions(self) -> Way:
        """The text with the positions that it has by default, which some programs count from past the padding."""
        if not self.runner.positions:
            raise UsageError("forward takes no position_ids")
        places = torch.arange(self.count, device=self.device)[None]
        try:
            turned = self._steps([self.ids], None, places=places.flip(1))
            ways = [self._steps([self.ids], None, places=places + by) for by in (0, self.runner.padding + 1)]
        except Exception as error:  # code of any architecture
            raise UsageError(f"forward refuses them: {_reason(error)}") from None
        found = [self._compared(steps, 0) for steps in ways]
        if self._compared(turned, 0).difference == 0:
            raise UsageError(f"forward takes {self.runner.positions}, and its result does not depend on them")
        return next((way for way in found if way.holds_within(self.tolerance)), found[0])

    def _batched(self, side: str) -> Way:
        """The second row of a batch of two that are both padded, the first where it is shorter; beside another too."""
        self._require_side(side)
        self._require_room()
        found = self._compared(self._batch(self.beside, side), self._start(side), 1)
        if not self._differs(found):
            return found
        other = [self.ids[0]] * len(self.beside)
        first, second = (self._own(self._batch(row, side), self._start(side), 1) for row in (self.beside, other))
        why = self._why_padded(side)
        if _first_apart(first, second, self.count, self.tolerance)[0] > self.tolerance:
            why = "the texts of a batch are mixed: another text beside it changes the numbers"
        return replace(found, why=why)

    def _start(self, side: str) -> int:
        return self.room if side == "left" else 0

    def _batch(self, beside: list[int], side: str) -> Steps:
        rows, mask = list[list[int]](), torch.zeros(2, self.total, dtype=torch.bool, device=self.device)
        for number, ids in enumerate((beside, self.ids)):
            filled = [self.runner.padding] * (self.total - len(ids))
            rows.append([*filled, *ids] if side == "left" else [*ids, *filled])
            start = len(filled) if side == "left" else 0
            mask[number, start : start + len(ids)] = True
        return self._steps(rows, mask)

    def _facing(self, beside: Sequence[int]) -> Way:
        """The text, whose source is padded, alone or after one ``beside`` it."""
        assert isinstance(self.runner, Ours)
        texts = 2 if beside else 1
        found = self._compared(
            self._steps([self.ids] * texts, None, runner=self.runner.facing(beside, _EXTRA)), 0, texts - 1
        )
        return replace(found, why="the padding of the source is read" * self._differs(found))

    def _again(self) -> Way:
        self._steps([self.beside], None)
        found = self._compared(self._steps([self.ids], None), 0)
        differs = (found.difference or 0.0) > self.tolerance
        return replace(found, why="the model keeps something of the text before" * differs)

    def _continued(self) -> Way:
        self._require_causal("a token sees later ones in this model")
        self._require_room()
        found = self._compared(self._steps([[*self.ids, *self.beside[: self.room]]], None), 0)
        differs = (found.difference or 0.0) > self.tolerance
        return replace(found, why="a token sees later ones" * differs)

    def _cached(self, sizes: Sequence[int], *, positions: bool = False) -> Way:
        """The text in pieces with a cache; then with the positions of each piece."""
        self._require_causal("a token sees later ones in this model, so none can be cached")
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
        if not self.runner.positions:
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
        self,
        rows: Sequence[Sequence[int]],
        mask: Tensor | None,
        *,
        positions: bool = False,
        places: Tensor | None = None,
        seed: int = 0,
        form: str = "",
        runner: Runner | None = None,
    ) -> Steps:
        ids = torch.tensor(rows, device=self.device)
        if positions and mask is not None:
            places = (mask.long().cumsum(dim=-1) - 1).clamp(min=0)
        given = None if mask is None else self._in_form(mask, form or ("integers" if self.integers else "booleans"))
        self.last_run = partial((runner or self.runner).whole, ids, given, places)
        with self._kept(seed) as steps:
            logits = self.last_run()
        return steps if logits is None else {**steps, "logits": logits}

    def _in_form(self, mask: Tensor, form: str) -> Tensor:
        """A mask (B, T) as integers or booleans; of four axes, what is added to the scores of a query and a key."""
        if form != "four axes":
            return mask.long() if form == "integers" else mask
        count, kind = mask.shape[1], next(self.model.transformer.parameters()).dtype
        seen = mask[:, None, None, :].expand(-1, 1, count, -1)
        seen = seen.tril() if self.runner.causal else seen
        seen = seen | torch.eye(count, dtype=torch.bool, device=mask.device)  # no row without a key
        return torch.zeros(seen.shape, dtype=kind, device=mask.device).masked_fill(~seen, torch.finfo(kind).min)

    def _takes_integers(self) -> bool:
        """Whether a mask may be of integers; else it is of booleans."""
        self.integers = True
        if self.runner.mask:
            try:
                self._steps([self.ids], torch.ones(1, self.count, dtype=torch.bool, device=self.device))
            except Exception:  # code of any architecture
                return False
        return True

    def _origin(self) -> str:
        """Which function made NaN first in the last run."""
        self.runner.seed(0)
        with Origin() as origin:
            self.last_run()
        return origin.words

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
        if (bad := _not_finite(own, self.alone, self.count)) is not None:
            return Way("", None, *bad, why=self._origin(), is_finite=False)
        last = list(own)[-1]
        difference, *_ = _first_apart({last: self.alone[last]}, own, self.count, self.tolerance)
        if (
            difference <= self.tolerance
        ):  # queries that RoPE has turned differ at other places, and what they see does not
            return Way("", difference)
        _, name, position = _first_apart(self.alone, own, self.count, self.tolerance, by_token=by_token)
        return Way("", difference, name, position)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, TinytfError) else reason_of(error)


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


def _not_finite(steps: Steps, alone: Steps, count: int) -> tuple[str, int | None] | None:
    """The first step and token that are NaN, or infinite where the text alone is not; None where all are finite.

    What is −∞ in the text alone is hidden by design.
    """
    for name, x in steps.items():
        known = alone.get(name)
        bad = x.isnan() | (x.isposinf() if known is None or known.shape != x.shape else x.isinf() & ~known.isinf())
        if bad.any():
            axis = next((axis for axis in range(x.dim()) if x.shape[axis] == count), None)
            return name, None if axis is None else int(bad.nonzero()[:, axis].min())
    return None
