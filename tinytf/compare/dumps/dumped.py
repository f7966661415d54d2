"""A dump as one side of a comparison: it answers for its steps as a trace does for those of a model."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tinytf.checkpoints.table import FamilyTable
from tinytf.compare.dumps.fit import Fitted, apart, fit, in_halves, is_turned
from tinytf.compare.dumps.layouts import Meaning
from tinytf.compare.dumps.names import Named, resolve_all
from tinytf.compare.dumps.read import IDS, Dump
from tinytf.config import ModelConfig
from tinytf.errors import DumpError, TinytfError
from tinytf.nearest import did_you_mean
from tinytf.parts.row import Step
from tinytf.report import text_data
from tinytf.steps.table import Place, StepTable, table_of
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Token, Tokenizer

Beside = Callable[[Step, int | None, tuple[int, ...] | None], Tensor | None]
"""Gives the numbers of a step on the other side, of a layer and of all heads or some."""


@dataclass(frozen=True)
class Dumped:
    """The tensors of a ``dump`` as steps of a model of ``config``, of the text ``encoding``.

    ``note`` says that it has only some of the tokens, ``said`` what was done to the tensors of each step, by its full
    name, and ``factors`` what those were multiplied by that were rescaled.
    """

    dump: Dump
    config: ModelConfig
    tokenizer: Tokenizer | None
    encoding: Encoding
    named: Named
    note: str = ""
    said: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    factors: dict[str, float] = field(default_factory=dict, repr=False)
    _decided: dict[str, Place] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        dump: Dump,
        config: ModelConfig,
        tokenizer: Tokenizer | None,
        encoding: Encoding,
        given: Mapping[str, str] | None = None,
        table: FamilyTable | None = None,
    ) -> "Dumped":
        """Raises DumpError where no tensor is a step of the model."""
        names = [name for name in dump.shapes if name not in IDS]
        named = resolve_all(names, table_of(config), given, table)
        if not names:
            raise DumpError(f"{dump.path} holds token ids alone", "write the tensors of the steps beside them")
        if not named.found:
            first = printable(names[0], spaces=False)
            raise DumpError(
                f"{dump.path}: none of its tensors has a name that this model knows; the first is {first}",
                did_you_mean(first, named.known, otherwise="--names TABLE.toml says what they mean"),
            )
        count, there = len(encoding.tokens), _positions(dump, config, named)
        if there is None or there == count:
            return cls(dump, config, tokenizer, encoding, named)
        if there > count or config.looks_ahead:
            raise DumpError(
                f"{dump.path} has {there:,} positions, and the text {count:,} tokens",
                "write its token ids into it, as input_ids, without padding",
            )
        cut = Encoding(encoding.text, encoding.tokens[:there], encoding.added)
        return cls(dump, config, tokenizer, cut, named, f"{dump.name} has the first {there:,} of {count:,} tokens")

    @property
    def steps(self) -> StepTable:
        return table_of(self.config)

    @property
    def text(self) -> Encoding:
        return self.encoding

    @cached_property
    def dtype(self) -> torch.dtype:
        """That of the first tensor; float32 where it holds no floating point numbers."""
        found = self.dump.read(next(iter(self.named.found))).dtype
        return found if found.is_floating_point and found != torch.float64 else torch.float32

    @property
    def tokens(self) -> Sequence[Any]:
        return self.encoding.tokens

    def parts(self, force: bool) -> Iterator["Dumped"]:
        """Itself for every part of the pass."""
        return itertools.repeat(self)

    def has(self, name: str, layer: int | None) -> bool:
        return (name, layer) in self.named.at

    def heads_of(self, step: Step, layer: int | None) -> list[tuple[int, ...] | None]:
        """Which heads of a step there are: all of them (None), or some at a time."""
        found = [meaning.heads for _, meaning in self.named.at.get((step.name, layer), ())]
        return [None] if None in found else sorted(found, key=lambda heads: heads or ())

    def step(
        self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None, beside: Beside | None = None
    ) -> Tensor | None:
        """A step in our axes, read as it is nearest to the numbers ``beside``; None where it is not there."""
        best: Fitted | None = None
        for stored, meaning in self.named.at.get((name, layer), ()):
            if meaning.heads != heads or (not meaning.certain and self._meant(stored, beside) != meaning.place):
                continue
            found = self._fitted(stored, meaning, beside)
            if found is not None and meaning.note and not found.close:
                continue  # a tensor of that name that is not ours
            if found is not None and (best is None or found.apart < best.apart):
                best = found
        if best is None:
            return None
        full_name = self.steps.at(name, layer).full_name(layer)
        self.said[full_name] = best.said
        if best.factor != 1:
            self.factors[full_name] = best.factor
        return best.tensor

    def _meant(self, stored: str, beside: Beside | None) -> Place:
        """Which of several steps a name means: the one whose numbers these are, else the likeliest."""
        if stored not in self._decided:
            meanings = self.named.found[stored]
            fits = [self._fitted(stored, one, beside) for one in meanings] if beside is not None else []
            near = [one.place for one, found in zip(meanings, fits, strict=False) if found is not None and found.close]
            self._decided[stored] = near[-1] if near else meanings[-1].place
        return self._decided[stored]

    def _fitted(self, stored: str, meaning: Meaning, beside: Beside | None) -> Fitted | None:
        name, layer = meaning.place
        step, config = self.steps.at(name, layer), self.config.at(layer)
        like = None if beside is None else beside(step, layer, meaning.heads)
        shape = self._shape(step, layer, meaning.heads) if like is None else tuple(like.shape)
        tensor = self._read(stored)
        tensor = tensor.masked_fill(tensor.isneginf(), 0.0) if step.is_distribution else tensor  # null in our JSON
        found = fit(tensor, meaning, step, config, shape, like)
        if found is None or like is None or found.close or not is_turned(step):
            return found
        other = replace(
            found, tensor=in_halves(found.tensor, config), said=(*found.said, "pairs of rows put in halves")
        )
        other = replace(other, apart=apart(other.tensor, like))
        return other if other.close and self._attends_alike(layer, beside) else found

    def _attends_alike(self, layer: int | None, beside: Beside | None) -> bool:
        """Whether the first map of a layer has our numbers: then another order of rows is no mistake before it."""
        for step in self.steps.layer_steps:
            for stored, meaning in self.named.at.get((step.name, layer), ()) if step.is_map else ():
                found = self._fitted(stored, meaning, beside)
                return found is not None and found.close
        return False

    def _read(self, stored: str) -> Tensor:
        tensor = self.dump.read(stored)
        return tensor if tensor.is_floating_point() else tensor.double()

    def _shape(self, step: Step, layer: int | None, heads: tuple[int, ...] | None) -> tuple[int, ...]:
        config = self.config.at(layer)
        count = len(self.tokens)
        sizes = {"token": count, "query": count, "key": count, **config.sizes}
        shape = tuple(sizes[axis] for axis in step.axes)
        return shape if heads is None else (len(heads), *shape[1:])

    def why_not(self, step: Step, layer: int | None) -> str:
        """Why a step that has a name here is in no shape of ours; empty where the name means another step after all."""
        if all(
            not one.certain and self._decided.get(name) != one.place for name, one in self.named.at[step.name, layer]
        ):
            return ""
        stored, meaning = self.named.at[step.name, layer][0]
        if meaning.note:
            return meaning.note
        shapes = self.dump.shapes[stored], self._shape(step, layer, None)
        there, here = (" × ".join(f"{size:,}" for size in shape) for shape in shapes)
        return f"{printable(stored, spaces=False)} has {there} numbers, and {here} are expected"

    @cached_property
    def logits(self) -> tuple[Tensor, tuple[int, ...]] | None:
        """Logits (P, V) and the positions that they are of: all of them, or the last."""
        step = self.steps.by_name.get("logits")
        for stored, meaning in self.named.at.get(("logits", None), ()) if step is not None else ():
            assert step is not None
            tensor, count = self._read(stored), len(self.tokens)
            said = self.dump.metadata.get("logit_rows")
            known = said if isinstance(said, list) and all(row in range(count) for row in said) else [count - 1]
            for rows in (range(count), known):
                shape = (len(rows), *self._shape(step, None, None)[1:])
                found = fit(tensor, meaning, step, self.config, shape, None)
                if found is not None:
                    self.said["logits"] = found.said
                    return found.tensor, tuple(rows)
        return None

    def rows(self) -> tuple[int, ...]:
        """The positions whose logits there are."""
        return () if self.logits is None else self.logits[1]

    def outcomes(self, part: object, rows: Sequence[int]) -> dict[str, Tensor]:
        """The logits at some positions."""
        assert self.logits is not None
        tensor, places = self.logits
        return {"logits": tensor[[places.index(row) for row in rows]]}

    def to_dict(self) -> dict[str, Any]:
        """What it is, as plain JSON data."""
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


def _positions(dump: Dump, config: ModelConfig, named: Named) -> int | None:
    """How many positions a dump has, by its tensors as wide as the stream; None where it has none of these."""
    steps, found = table_of(config), Counter[int]()
    for place, names in named.at.items():
        if steps.at(*place).axes == ("token", "d_model"):
            for shape in (dump.shapes[name] for name, _ in names):
                if len(shape) > 1 and shape[-1] == config.d_model and math.prod(shape[:-2]) == 1:
                    found[shape[-2]] += 1
    return found.most_common(1)[0][0] if found else None


def recorded_config(dump: Dump) -> ModelConfig | None:
    """The configuration of the model that a file of ours is of; None where it does not say."""
    if dump.config is None:
        return None
    try:
        return ModelConfig.from_dict(dump.config)
    except (TinytfError, TypeError, ValueError) as error:
        said = f"{dump.path} has the configuration of no model: {printable(str(error), spaces=False)}"
        raise DumpError(said, "write it again with this version of tinytf trace -o") from None


def recorded_encoding(dump: Dump, tokenizer: Tokenizer | None) -> Encoding | None:
    """The tokens that a file is of, as far as it says; None where it does not."""
    ids = dump.ids
    if ids is None:
        return None
    said = dump.metadata.get("tokens")
    names = [str(one.get("shown")) for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    if tokenizer is None and len(names) == len(ids):
        shown = dict(zip(ids, (printable(name, spaces=False) for name in names), strict=True))
        return of_ids(ids, shown.__getitem__, dump.text or "")
    return of_ids(ids, "#{}".format if tokenizer is None else tokenizer.shown, dump.text or "")


def of_ids(ids: Sequence[int], shown: Callable[[int], str], text: str) -> Encoding:
    """Tokens by their ids alone."""
    return Encoding(text, tuple(Token(i, shown(i), 0, 0, b"", False) for i in ids), "ids of the dump")
