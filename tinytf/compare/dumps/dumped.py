"""A dump as one side of a comparison: it gives its steps as a trace does."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tinytf.checkpoints.table import FamilyTable
from tinytf.compare.dumps.fit import Fitted, distance, fit, in_halves, is_turned, part_of
from tinytf.compare.dumps.layouts import Meaning
from tinytf.compare.dumps.names import Named, in_encoder, resolve_all
from tinytf.compare.dumps.passes import starts_of
from tinytf.compare.dumps.read import IDS, Dump
from tinytf.config import ModelConfig
from tinytf.errors import DumpError, TinytfError
from tinytf.nearest import did_you_mean
from tinytf.parts.row import Step
from tinytf.report import text_data
from tinytf.steps.operations import Rotate
from tinytf.steps.table import StepKey, StepTable, table_of
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Token, Tokenizer

Beside = Callable[[Step, int | None, tuple[int, ...] | None], Tensor | None]
"""A function that gives the other side's numbers of a step in a layer, for all heads or some."""
Undo = Callable[[Tensor, Tensor], Tensor]
"""A function of the dump's numbers and ours that gives the dump's as our model would write them."""


@dataclass(frozen=True)
class DumpSide:
    """The tensors of a ``dump`` as the steps of a model of ``config`` on the text ``encoding``.

    The ways of writing in ``undone`` are undone, and ``shift`` (P, 1) is added to the logits.
    ``note`` says if it has only some of the tokens. By the full name of a step, ``said`` lists what was done to its
    tensor, and ``factors`` holds the factor of each rescaled one.
    """

    dump: Dump
    config: ModelConfig
    tokenizer: Tokenizer | None
    encoding: Encoding
    named: Named
    note: str = ""
    said: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    factors: dict[str, float] = field(default_factory=dict, repr=False)
    undone: Mapping[StepKey, Undo] = field(default_factory=dict, repr=False)
    shift: Tensor | None = field(default=None, repr=False)
    _decided: dict[str, StepKey] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        dump: Dump,
        config: ModelConfig,
        tokenizer: Tokenizer | None,
        encoding: Encoding,
        patterns: Mapping[str, str] | None = None,
        table: FamilyTable | None = None,
    ) -> "DumpSide":
        """Match the tensors of a dump with the steps of a model. Raises DumpError if none is a step."""
        names = [name for name in dump.shapes if name not in IDS and not _is_of_another(name, dump)]
        named = resolve_all(names, table_of(config), patterns, table)
        if not names:
            raise DumpError(f"{dump.path} holds only token ids", "write the tensors of the steps beside them")
        if not named.found:
            first = printable(names[0], spaces=False)
            raise DumpError(
                f"{dump.path}: none of its tensors has a name that this model knows; the first is {first}",
                did_you_mean(first, named.known, otherwise="--names TABLE.toml says what they mean"),
            )
        count, n_positions = len(encoding.tokens), None if dump.passes else _positions(dump, config, named)
        if dump.passes and config.looks_ahead:
            raise DumpError(f"{dump.path} has several passes, and this model reads a text in one")
        if n_positions is None or n_positions == count:
            return cls(dump, config, tokenizer, encoding, named)
        if n_positions > count or config.looks_ahead:
            raise DumpError(
                f"{dump.path} has {n_positions:,} positions, and the text {count:,} tokens",
                "write its token ids into it, as input_ids, without padding",
            )
        cut = Encoding(encoding.text, encoding.tokens[:n_positions], encoding.added)
        return cls(
            dump, config, tokenizer, cut, named, f"{dump.name} has the first {n_positions:,} of {count:,} tokens"
        )

    def with_encoder(
        self, config: ModelConfig, tokenizer: Tokenizer | None, encoding: Encoding
    ) -> "tuple[DumpSide, DumpSide] | None":
        """The side of an encoder that read ``encoding``, and this one without its tensors; None if there are none."""
        names = {own: name for name in self.named.unmatched if (own := in_encoder(name))}
        if not resolve_all(names, table_of(config)).found:
            return None
        encoder = DumpSide.of(self.dump.called(names), config, tokenizer, encoding)
        found = {names[own] for own in encoder.named.found}
        left = tuple(name for name in self.named.unmatched if name not in found)
        return encoder, replace(self, named=replace(self.named, unmatched=left, elsewhere=len(found)))

    def beginning(self, count: int) -> "DumpSide | None":
        """The first ``count`` tokens alone; None where an axis as long as the text may be none of tokens."""
        tokens, steps = len(self.tokens), self.steps
        for stored, (meaning, *_) in self.named.found.items():
            axes = sum(axis in ("token", "query", "key") for axis in steps.at(*meaning.place).axes)
            if self.dump.shapes[stored].count(tokens) > axes:
                return None
        cut = Encoding(self.encoding.text, self.encoding.tokens[:count], self.encoding.added)
        return replace(self, dump=self.dump.beginning(count, tokens), encoding=cut)

    def unturned(self) -> "DumpSide":
        """Without what RoPE has turned, which is other numbers where the text does not begin at position 0."""
        steps = self.steps
        turned = [
            name
            for name, meanings in self.named.found.items()
            if any(isinstance(steps.at(*meaning.place).operation, Rotate) for meaning in meanings)
        ]
        found = {name: meanings for name, meanings in self.named.found.items() if name not in turned}
        return replace(self, named=replace(self.named, found=found, unmatched=(*self.named.unmatched, *turned)))

    @property
    def steps(self) -> StepTable:
        return table_of(self.config)

    @property
    def text(self) -> Encoding:
        return self.encoding

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the first tensor; float32 if it is float64 or not floating point."""
        first, *_ = self.dump.passes or self.dump.shards or (self.dump,)
        dtype = first.read(next(name for name in self.named.found if name in first.shapes)).dtype
        return dtype if dtype.is_floating_point and dtype != torch.float64 else torch.float32

    @property
    def tokens(self) -> Sequence[Any]:
        return self.encoding.tokens

    def parts(self, force: bool) -> Iterator["DumpSide"]:
        """The dump itself, for every part of the pass."""
        return itertools.repeat(self)

    def has(self, name: str, layer: int | None) -> bool:
        return (name, layer) in self.named.at

    def heads_of(self, step: Step, layer: int | None) -> list[tuple[int, ...] | None]:
        """The heads of a step that the dump has: all in one tensor (None), or some in each."""
        heads_of_names = [meaning.heads for _, meaning in self.named.at.get((step.name, layer), ())]
        return [None] if None in heads_of_names else sorted(heads_of_names, key=lambda heads: heads or ())

    def step(
        self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None, beside: Beside | None = None
    ) -> Tensor | None:
        """A step in our axes, in the reading nearest to the numbers of ``beside``; None if the dump lacks it."""
        best: Fitted | None = None
        named = False
        for stored, meaning in sorted(self.named.at.get((name, layer), ()), key=lambda one: not one[1].certain):
            if named and not meaning.certain:
                break  # a name that may mean another step is no better than the step's own
            if meaning.heads != heads or (not meaning.certain and self._decide(stored, beside) != meaning.place):
                continue
            fitted = self._fitted(stored, meaning, beside)
            if fitted is not None and meaning.note and not fitted.close:
                continue  # a tensor of that name with another meaning
            if fitted is not None and (best is None or fitted.distance < best.distance):
                best, named = fitted, meaning.certain
        if best is None:
            return None
        full_name = self.steps.at(name, layer).full_name(layer)
        self.said[full_name] = best.notes
        if best.factor != 1:
            self.factors[full_name] = best.factor
        undo = self.undone.get((name, layer)) if heads is None and beside is not None else None
        like = None if undo is None or beside is None else beside(self.steps.at(name, layer), layer, None)
        return best.tensor if undo is None or like is None else undo(best.tensor.to(like), like)

    def _decide(self, stored: str, beside: Beside | None) -> StepKey:
        """Decide which of several steps a name means: the one with these numbers, else the likeliest."""
        if stored not in self._decided:
            meanings = self.named.found[stored]
            fits = [self._fitted(stored, meaning, beside) for meaning in meanings] if beside is not None else []
            close = [m for m, fitted in zip(meanings, fits, strict=False) if fitted is not None and fitted.close]
            best, likeliest = (close or meanings)[-1], meanings[-1]
            if beside is not None and likeliest not in close and best is not likeliest:  # one token may hide the others
                best = min(best, likeliest, key=lambda meaning: self._usual_distance(stored, meaning, beside))
            self._decided[stored] = best.place
        return self._decided[stored]

    def _usual_distance(self, stored: str, meaning: Meaning, beside: Beside) -> float:
        """How far most tokens are from ours, each relative to its own numbers."""
        step, fitted = self.steps.at(*meaning.place), self._fitted(stored, meaning, beside)
        like, axis = beside(step, meaning.place[1], meaning.heads), step.token_axis
        if fitted is None or like is None:
            return math.inf
        pairs = zip(*(one.unbind(axis) for one in (fitted.tensor, like)), strict=True) if axis is not None else ()
        return statistics.median([distance(*pair) for pair in pairs] or [fitted.distance])

    def _fitted(self, stored: str, meaning: Meaning, beside: Beside | None) -> Fitted | None:
        name, layer = meaning.place
        step, config = self.steps.at(name, layer), self.config.at(layer)
        like = None if beside is None else beside(step, layer, meaning.heads)
        shape = self._shape(step, layer, meaning.heads) if like is None else tuple(like.shape)
        if self.dump.passes:
            return self._fitted_passes(stored, meaning, step, config, shape, like)
        fitted: Fitted | None = None
        for tensor, own, notes in self._readings(stored, meaning, config):
            tensor = tensor.masked_fill(tensor.isneginf(), 0.0) if step.holds_shares else tensor  # null in our JSON
            one = fit(tensor, own, step, config, shape, like)
            if one is not None and (fitted is None or one.distance < fitted.distance):
                fitted = replace(one, notes=(*one.notes, *notes))
        if fitted is None or like is None or fitted.close or not is_turned(step, config):
            return fitted
        halved = replace(
            fitted, tensor=in_halves(fitted.tensor, config), notes=(*fitted.notes, "pairs of rows put in halves")
        )
        halved = replace(halved, distance=distance(halved.tensor, like))
        return halved if halved.close and self._attends_alike(layer, beside) else fitted

    def _fitted_passes(
        self,
        stored: str,
        meaning: Meaning,
        step: Step,
        config: ModelConfig,
        shape: tuple[int, ...],
        like: Tensor | None,
    ) -> Fitted | None:
        """The tensor of every pass for its own tokens, one after the other; keys that a pass has not seen are ours."""
        rows, keys = step.token_axis, step.axes.index("key") if step.is_map else None
        whole = torch.zeros(shape, dtype=torch.float64) if like is None else like.clone()
        notes: dict[str, None] = {f"put together from {len(self.dump.passes)} passes": None}
        for one, start in zip(self.dump.passes, starts_of(self.dump.passes), strict=True):
            if stored not in one.shapes or (rows is None and one is not self.dump.passes[-1]):
                if rows is not None:
                    return None
                continue
            end = start + len(one.ids or ())
            read, fitted = one.read(stored).to(whole.dtype), None
            for first, tensor in ((first, tensor) for tensor in _used(read, step, end) for first in (start, 0)):
                cut = tuple(
                    slice(first, end) if axis == rows else slice(0, end) if axis == keys else slice(None)
                    for axis in range(len(shape))
                )
                part = whole[cut]
                tensor = tensor.masked_fill(tensor.isneginf(), 0.0) if step.holds_shares else tensor
                fitted = fit(tensor, meaning, step, config, tuple(part.shape), None if like is None else like[cut])
                if fitted is not None:
                    own = slice(start - first, None)
                    index = tuple(own if axis == rows else slice(None) for axis in range(len(shape)))
                    target = tuple(slice(start, end) if axis == rows else part for axis, part in enumerate(cut))
                    whole[target] = fitted.tensor[index]
                    notes |= dict.fromkeys(fitted.notes)
                    break
            if fitted is None:
                return None
        return Fitted(whole, tuple(notes), math.inf if like is None else distance(whole, like))

    def _attends_alike(self, layer: int | None, beside: Beside | None) -> bool:
        """Whether the first map of a layer has our numbers: then the order of rows before it is not a mistake."""
        for step in self.steps.layer_steps:
            for stored, meaning in self.named.at.get((step.name, layer), ()) if step.is_map else ():
                fitted = self._fitted(stored, meaning, beside)
                return fitted is not None and fitted.close
        return False

    def _read(self, stored: str) -> Tensor:
        tensor = self.dump.read(stored)
        if tensor.is_floating_point():
            return tensor
        tensor = tensor.double()
        scale, zero = (self._beside(stored, names, tensor) for names in (SCALES, ZEROS))
        if zero is not None:
            tensor = tensor - zero
        return tensor if scale is None else tensor * scale

    def _readings(
        self, stored: str, meaning: Meaning, config: ModelConfig
    ) -> Iterator[tuple[Tensor, Meaning, tuple[str, ...]]]:
        """A tensor; of shards, every way of putting their parts together, with its meaning then and words for it."""
        if not self.dump.shards:
            yield self._read(stored), meaning, ()
            return
        parts = [one.read(stored).double() for one in self.dump.shards if stored in one.shapes]
        shapes, count = {tuple(part.shape) for part in parts}, f"{len(parts)} shards"
        if len(shapes) == 1 and all(torch.equal(part, parts[0]) for part in parts):
            yield parts[0], meaning, ()
            return
        for axis in reversed(range(parts[0].dim())):
            if len({(len(shape), *shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1:
                yield torch.cat(parts, dim=axis), meaning, (f"{count} joined",)
        if len(shapes) == 1:
            yield torch.stack(parts).sum(dim=0), meaning, (f"{count} summed",)
        if meaning.how is not None and meaning.how.parts:
            own = [part_of(part.squeeze(0), meaning.how, config) for part in parts]
            yield torch.cat(own, dim=-1), replace(meaning, how=None), (f"{count} joined",)

    def _beside(self, stored: str, endings: Sequence[str], tensor: Tensor) -> Tensor | None:
        """The scale or zero point of a quantised tensor, to broadcast to it: one number, or one a token or channel."""
        name = next((f"{stored}.{ending}" for ending in endings if f"{stored}.{ending}" in self.dump.shapes), None)
        if name is None:
            return None
        numbers = self.dump.read(name).double()
        if numbers.numel() == 1:
            return numbers.reshape(())
        if numbers.dim() == 1 and numbers.numel() == tensor.shape[-1]:
            return numbers
        axis = next((axis for axis, size in enumerate(tensor.shape[:-1]) if size == numbers.numel()), None)
        if axis is None:
            sizes = " × ".join(map(str, tensor.shape))
            raise DumpError(f"{self.dump.path}: {name} has {numbers.numel():,} numbers, which does not fit {sizes}")
        return numbers.reshape(-1, *(1 for _ in range(tensor.dim() - axis - 1)))

    def _shape(self, step: Step, layer: int | None, heads: tuple[int, ...] | None) -> tuple[int, ...]:
        config = self.config.at(layer)
        count = len(self.tokens)
        sizes = {"token": count, "query": count, "key": count, **config.sizes}
        shape = tuple(sizes[axis] for axis in step.axes)
        return shape if heads is None else (len(heads), *shape[1:])

    def why_not(self, step: Step, layer: int | None) -> str:
        """Why a named step does not fit our shape; empty if the name means another step after all."""
        if all(
            not meaning.certain and self._decided.get(name) != meaning.place
            for name, meaning in self.named.at[step.name, layer]
        ):
            return ""
        stored, meaning = self.named.at[step.name, layer][0]
        if meaning.note:
            return meaning.note
        lacking = [number for number, one in enumerate(self.dump.passes, 1) if stored not in one.shapes]
        if lacking:
            return f"pass {lacking[0]} of {len(self.dump.passes)} has no {printable(stored, spaces=False)}"
        if step.of_source:  # whose length only the model knows
            sizes = " × ".join(f"{size:,}" for size in self.dump.shapes[stored])
            return f"{printable(stored, spaces=False)} has {sizes} numbers, and is of another source"
        shapes = self.dump.shapes[stored], self._shape(step, layer, None)
        stored_size, our_size = (" × ".join(f"{size:,}" for size in shape) for shape in shapes)
        return f"{printable(stored, spaces=False)} has {stored_size} numbers, and {our_size} are expected"

    @cached_property
    def logits(self) -> tuple[Tensor, tuple[int, ...]] | None:
        """Logits (P, V) and their positions: all of them, those that the file lists, or the last."""
        step = self.steps.by_name.get("logits")
        for stored, meaning in self.named.at.get(("logits", None), ()) if step is not None else ():
            assert step is not None
            if self.dump.passes:
                return self._logits_of_passes(stored, meaning, step)
            count = len(self.tokens)
            listed = self.dump.metadata.get("logit_rows")
            some = listed if isinstance(listed, list) and all(row in range(count) for row in listed) else [count - 1]
            for tensor, own, notes in self._readings(stored, meaning, self.config):
                for rows in (range(count), some):
                    shape = (len(rows), *self._shape(step, None, None)[1:])
                    fitted = fit(tensor, own, step, self.config, shape, None)
                    if fitted is not None:
                        self.said["logits"] = (*fitted.notes, *notes)
                        return fitted.tensor, tuple(rows)
        return None

    def _logits_of_passes(self, stored: str, meaning: Meaning, step: Step) -> tuple[Tensor, tuple[int, ...]] | None:
        """The logits of every pass: of all its tokens, or of its last."""
        found, rows = list[Tensor](), list[int]()
        width = self._shape(step, None, None)[1:]
        for one, start in zip(self.dump.passes, starts_of(self.dump.passes), strict=True):
            count = len(one.ids or ())
            for first in (0, count - 1) if stored in one.shapes else ():
                fitted = fit(one.read(stored), meaning, step, self.config, (count - first, *width), None)
                if fitted is not None:
                    found.append(fitted.tensor)
                    rows += range(start + first, start + count)
                    break
        if not found:
            return None
        self.said["logits"] = (f"put together from {len(self.dump.passes)} passes",)
        return torch.cat(found), tuple(rows)

    def rows(self) -> tuple[int, ...]:
        """The positions that have logits."""
        return () if self.logits is None else self.logits[1]

    def outcomes(self, part: object, rows: Sequence[int]) -> dict[str, Tensor]:
        """The logits at some positions."""
        assert self.logits is not None
        tensor, positions = self.logits
        tensor = tensor if self.shift is None else tensor + self.shift
        return {"logits": tensor[[positions.index(row) for row in rows]]}

    def to_dict(self) -> dict[str, Any]:
        """The file, its names and its text, as plain JSON data."""
        return {
            "dump": {
                "file": self.dump.name,
                "names": self.named.spelling,
                "tensors": len(self.dump.shapes),
                "steps": len(self.named.at),
                "unmatched": list(self.named.unmatched),
            },
            **text_data(self.encoding),
        }


SCALES, ZEROS = ("scale", "scales"), ("zero_point", "zero_points", "zero")
"""What stands beside a tensor of whole numbers, by the end of its name: it is (numbers − zero point) · scale."""


def _used(tensor: Tensor, step: Step, end: int) -> Iterator[Tensor]:
    """A tensor of a pass up to the token ``end``; without the room that a static cache has for later keys and values.

    A program may also return all keys and values that it has cached, not only those of the pass.
    """
    yield tensor
    axis = -1 if step.is_map else -2 if "kv head" in step.axes else 0
    if axis and tensor.dim() >= -axis and tensor.shape[axis] > end:
        yield tensor.narrow(axis, 0, end)


def _is_of_another(name: str, dump: Dump) -> bool:
    """Whether a tensor is the scale or zero point of another."""
    of, _, ending = name.rpartition(".")
    return of in dump.shapes and ending in (*SCALES, *ZEROS)


def _positions(dump: Dump, config: ModelConfig, named: Named) -> int | None:
    """The number of positions in a dump, by its tensors as wide as the stream; None if it has no such tensor."""
    steps, counts = table_of(config), Counter[int]()
    for place, names in named.at.items():
        if steps.at(*place).axes == ("token", "d_model"):
            for shape in (dump.shapes[name] for name, _ in names):
                if len(shape) > 1 and shape[-1] == config.d_model and math.prod(shape[:-2]) == 1:
                    counts[shape[-2]] += 1
    return counts.most_common(1)[0][0] if counts else None


def recorded_config(dump: Dump) -> ModelConfig | None:
    """The model configuration that a file of ours records; None if it has none."""
    if dump.config is None:
        return None
    try:
        return ModelConfig.from_dict(dump.config)
    except (TinytfError, TypeError, ValueError) as error:
        message = f"{dump.path} has an invalid model configuration: {printable(str(error), spaces=False)}"
        raise DumpError(message, "write it again with this version of tinytf trace -o") from None


def recorded_encoding(dump: Dump, tokenizer: Tokenizer | None) -> Encoding | None:
    """The tokens that a file records; None if it records none."""
    ids = dump.ids
    if ids is None:
        return None
    tokens = dump.metadata.get("tokens")
    names = [str(token.get("shown")) for token in tokens if isinstance(token, dict)] if isinstance(tokens, list) else []
    if tokenizer is None and len(names) == len(ids):
        shown = dict(zip(ids, (printable(name, spaces=False) for name in names), strict=True))
        return of_ids(ids, shown.__getitem__, dump.text or "")
    return of_ids(ids, "#{}".format if tokenizer is None else tokenizer.shown, dump.text or "")


def of_ids(ids: Sequence[int], shown: Callable[[int], str], text: str) -> Encoding:
    """Tokens made from their ids alone."""
    return Encoding(text, tuple(Token(i, shown(i), 0, 0, b"", False) for i in ids), "ids of the dump")
