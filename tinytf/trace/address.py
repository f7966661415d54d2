"""Addresses: ``L3`` a layer, ``L3H5`` a head, ``L3H5.weights`` a step, ``L3H5.weights[sat,cat]`` a cell.

``L3E5`` is an expert. ``L0-2H*.weights``, ``L0,-1`` and ``L0.in[0:3,:]`` are sets. A word of a
cell is a number, a slice, a token or a class: see ``tinytf.text.words``. TransformerLens names are accepted.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tinytf.config import ENC, ModelConfig
from tinytf.errors import AddressError
from tinytf.nearest import did_you_mean
from tinytf.parts.row import Step
from tinytf.steps.table import StepTable
from tinytf.text.words import NUMBERS, AxisNames, find_index, is_selection, numbers_in
from tinytf.trace.lens_names import HOOK, Lens, find_lens

_BLOCK = re.compile(
    rf"L(?P<layers>{NUMBERS})(?:(?P<letter>[HE])(?P<parts>{NUMBERS}))?|blocks\.(?P<blocks>{NUMBERS})(?=\.)"
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.₁₂]*")
PARTS = {"H": "head", "E": "expert"}
"""The letters of an address and the parts that they stand for."""
_FORMS = "a layer is L3, a head L3H5, a step L3H5.weights, a cell L3H5.weights[2,1], a set L0-2H*.weights"


@dataclass(frozen=True)
class RawAddress:
    """The parts of an address as written; ``cell`` is None without brackets."""

    layers: str | None
    letter: str
    parts: str | None
    name: str
    cell: tuple[str, ...] | None


def spell(text: str) -> RawAddress:
    """Split an address into its parts. Raises AddressError, with the first wrong character."""
    text = text.strip()
    match, at, name, cell = _BLOCK.match(text), 0, "", None

    def error(at: int, message: str) -> AddressError:
        where = f"at character {at + 1}, {text[at]!r}," if at < len(text) else "at its end"
        return AddressError(f"{text!r} is not an address" + (f": {where} {message}" if text else ""), _FORMS)

    if match is not None:
        at = match.end()
        if text[at : at + 1] == ".":
            at += 1
            if _NAME.match(text, at) is None:
                raise error(at, "a step is expected")
    if at == 0 or text[at - 1] == ".":
        name_match = _NAME.match(text, at)
        if name_match is None:
            raise error(at, "a layer or a step is expected")
        name, at = name_match[0], name_match.end()
    if text[at : at + 1] == "[":
        if not text.endswith("]"):
            raise error(at, "the bracket is not closed")
        cell, at = tuple(word.strip() for word in text[at + 1 : -1].split(",")), len(text)
    if at < len(text):
        raise error(at, "the address should end")
    if match is None:
        return RawAddress(None, "H", None, name, cell)
    return RawAddress(match["layers"] or match["blocks"], match["letter"] or "H", match["parts"], name, cell)


@dataclass(frozen=True)
class Address:
    """A checked address: a step, the layers and heads, and a cell.

    ``layers`` and ``heads`` are None if the address names none; ``cell`` holds the words between the brackets.
    ``heads`` are experts for a step with a tensor for each expert, and without a step if the ``letter`` is E.
    ``note`` is for the reader: another name of the step, or shared key heads. With a ``lens`` the address names the
    tensor of TransformerLens, whose axes may be in another order; the words of the cell then count from its first axis.
    """

    step: Step | None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    cell: tuple[str, ...] = ()
    note: str = ""
    letter: str = "H"
    lens: Lens | None = None

    def among(self, steps: Sequence[Step]) -> list[Step]:
        """The named step, or else the ``steps`` of a layer that the address is about: all, or those of experts."""
        if self.step is not None:
            return [self.step]
        return [step for step in steps if step.of_experts] if self.letter == "E" else list(steps)

    def parts_of(self, step: Step) -> tuple[int, ...] | None:
        """The heads or experts of ``step`` that the address names; None for all."""
        return self.heads if step.is_split and (self.step is not None or self.letter == step.letter) else None

    @property
    def axes(self) -> list[str]:
        """The axes of the tensor at the address."""
        axes = list(self.step.axes) if self.step else []
        if self.lens is not None and self.step is not None:
            axes = list(self.lens.axes(self.step))
        elif self.heads is not None and len(self.heads) == 1:
            axes = axes[1:]
        indexed = {i for i, word in self.words(len(axes)) if not is_selection(word)}
        axes = [axis for i, axis in enumerate(axes) if i not in indexed]
        return (["layer"] if self.layers is not None and len(self.layers) > 1 else []) + axes

    def words(self, count: int) -> list[tuple[int, str]]:
        """The words of the cell, each with the index of its axis; the tensor has ``count`` axes."""
        first = 0 if self.lens is not None else max(0, count - 2)
        return [(first + i, word) for i, word in enumerate(self.cell)]

    def plain(self, table: StepTable) -> "Address":
        """This address under our own step name. Raises AddressError if no step of ours has these numbers."""
        if self.lens is None or self.step is None:
            return self
        ours = Address(self.step, self.layers)
        if not self.lens.is_step:
            raise AddressError(f"{self} is not a step here, but {self.lens.of(str(ours))}", f"{ours} is the step")
        axes = self.lens.axes(self.step)
        words = dict(zip(axes, (*self.cell, *[":"] * len(axes)), strict=False))
        heads, word = None, next((words.pop(axis) for axis in ("head", "kv head") if axis in words), ":")
        if word not in (":", "*"):
            parts = self.step.part_numbers(table.config.at(None if self.layers is None else self.layers[0]))
            index = find_index(word, "head", len(parts), AxisNames())
            heads = (parts[index],) if isinstance(index, int) else tuple(parts[i] for i in index)
        cell = list(words.values())
        while cell and cell[-1] == ":":
            cell.pop()
        address = replace(ours, heads=heads, cell=tuple(cell))
        return replace(address, note=f"{self} is {address} here")

    def __str__(self) -> str:
        cell = f"[{','.join(self.cell)}]" if self.cell else ""
        if self.lens is not None:
            layers = "" if not self.lens.in_layer or self.layers is None else f"blocks.{span(self.layers)}."
            return f"{layers}{self.lens.name}{cell}"
        block = "" if self.layers is None else f"L{span(self.layers)}"
        letter = self.letter if self.step is None else self.step.letter
        block += "" if self.heads is None else f"{letter}{span(self.heads)}"
        return ".".join(part for part in (block, self.step.name if self.step else "") if part) + cell


def span(numbers: Sequence[int]) -> str:
    """Numbers as an address writes them: ``2``, ``0-3``, or ``0,2-4``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_numbers(text: str | None, count: int, what: str) -> tuple[int, ...] | None:
    """The layers or heads named by ``2``, ``-1``, ``0-3``, ``0,2`` or ``*``. Raises AddressError for a missing one."""
    if text is None:
        return None
    return numbers_in(text, count, what)


def parse_single_number(text: str, count: int, what: str) -> int:
    """The single layer or head named by a word. Raises AddressError for is_selection, and for a missing one."""
    matches = numbers_in(text, count, what)
    if len(matches) != 1:
        raise AddressError(f"{text!r} names {len(matches)} {what}s, but one is needed", "such as 0, or -1 for the last")
    return matches[0]


def in_stack(text: str, stacks: Collection[str]) -> tuple[str, str]:
    """What the addresses of a stack begin with, and the address there that ``text`` names.

    A model of one of the ``stacks`` takes no such beginning; ``dec.`` stands for the model itself, one of two.
    """
    begins, rest = text[: len(ENC)], text[len(ENC) :]
    return (begins.removeprefix("dec."), rest) if begins in (ENC, "dec.") and len(stacks) > 1 else ("", text)


def parse_block(text: str, table: StepTable) -> Address:
    """Read the address of whole blocks, such as L1H2 or L0-3. Raises AddressError for any other, such as a step."""
    address = parse_address(text, table)
    if address.step is not None:
        raise AddressError(
            f"--block takes a layer and head, such as L0H0, and {text!r} is a step", f"--at {text} shows it"
        )
    return address


def parse_address(text: str, table: StepTable) -> Address:
    """Read the address of a step for the model of ``table``; a TransformerLens name gives our step.

    Raises AddressError with what exists, what is nearest, or why this architecture lacks the step.
    """
    address = parse_tensor(text, table)
    return address if address.lens is None else address.plain(table)


def parse_tensor(text: str, table: StepTable) -> Address:
    """Read the address of a tensor; a TransformerLens name gives the tensor of TransformerLens."""
    raw, config = spell(text), table.config
    layers = parse_numbers(raw.layers, config.n_layers, "layer")
    name, letter, cell = raw.name, raw.letter, raw.cell or ()
    if HOOK in name:
        return _of_lens(text.strip(), raw, layers, table)
    if letter == "E" and not config.experts:
        raise AddressError(f"this model has no experts, and {text!r} names one", "a head is L3H5")
    if not name:
        if cell:
            raise AddressError(f"{text!r} has a cell but no step", "name one, such as .weights")
        return Address(None, layers, parse_part_numbers(raw, layers, config), letter=letter)
    if letter == "E" and (full := f"expert.{name.removeprefix('ffn.')}") in table.by_name:
        name = full  # L3E5.ffn.hidden and L3E5.hidden are L3E5.expert.hidden
    step, note = _find_step(name, layers, table)
    if raw.parts is not None and not (step.is_split and step.letter == letter):
        hint = f"its axes are {', '.join(step.axes) or 'none'}"
        raise AddressError(f"{step.name} is not split into {PARTS[letter]}s", hint)
    if layers is not None:
        present = tuple(layer for layer in layers if table.has(step.name, layer))
        if not present:
            reason = table.why_absent(step.name, layers[0])
            raise AddressError(f"layer {layers[0]} has no step {step.name}: {reason}")
        layers, step = present, table.at(step.name, present[0])
        if len({table.at(step.name, layer).axes for layer in present}) > 1:
            raise AddressError(f"{step.name} has different axes in some of these layers", "name layers of one kind")
    heads = parse_part_numbers(raw, layers, config)
    most_words = min(2, len(step.axes))
    if len(cell) > most_words:
        form = ("no cells", "cells of one word", "cells of at most two words, [row,column]")[most_words]
        raise AddressError(f"{step.name} has {form}; {text!r} has {len(cell)}")
    shared = ""
    if heads is not None and "kv head" in step.axes:
        count = config.at(layers[0] if layers else None).heads_per_kv
        kind = step.title.split(",")[0].rstrip("s")
        shared = f"{count} query heads share one {kind if ' ' not in kind else step.name} head"
    return Address(step, layers, heads, cell, " ".join(n for n in (shared, note) if n))


def parse_part_numbers(raw: RawAddress, layers: Sequence[int] | None, config: ModelConfig) -> tuple[int, ...] | None:
    """The numbers of the heads or experts that an address names. Raises AddressError if the layers differ in count."""
    if raw.parts is None or raw.letter == "E":
        return parse_numbers(raw.parts, config.experts, PARTS["E"])
    counts = {config.at(layer).n_heads for layer in layers or (None,)} - {0}
    if not counts:
        raise AddressError("a layer with a feed-forward alone has no heads", "tinytf info shows the layers of a model")
    if len(counts) > 1:
        numbers = " or ".join(map(str, sorted(counts)))
        raise AddressError(f"these layers have different numbers of heads, {numbers}", "name layers of one kind")
    return parse_numbers(raw.parts, counts.pop(), PARTS["H"])


def _of_lens(text: str, raw: RawAddress, layers: tuple[int, ...] | None, table: StepTable) -> Address:
    """The address of a tensor of TransformerLens."""
    if raw.parts is not None:
        cell_form = f"[:,{raw.parts}]"
        raise AddressError(
            f"{text!r} puts a head before a TransformerLens name", f"write the head in the cell: {cell_form}"
        )
    step, layers, lens = find_lens(raw.name, layers, table)
    cell, axes = raw.cell or (), lens.axes(step)
    if len(cell) > len(axes):
        raise AddressError(f"{raw.name} has {len(axes)} axes, {', '.join(axes)}; {text!r} names {len(cell)}")
    address = Address(step, layers, None, cell, lens=lens)
    ours = lens.of(str(replace(address, lens=None, cell=())))
    without_cell = replace(address, cell=())
    return replace(address, note=f"{without_cell} is {ours} here, with axes {', '.join(axes)}" if axes else "")


def _find_step(name: str, layers: tuple[int, ...] | None, table: StepTable) -> tuple[Step, str]:
    synonyms = {table.synonym(name, layer) for layer in layers or (None,)}
    if len(synonyms) > 1:
        named = " or ".join(sorted(filter(None, synonyms)))
        raise AddressError(f"{name!r} is {named} in layers of two kinds", "name layers of one kind")
    synonym = synonyms.pop()
    step = table.by_name.get(synonym or name)
    if step is None:
        reason = table.why_absent(name)
        if reason:
            raise AddressError(f"this model has no step {name!r}: {reason}")
        raise _unknown(name, table)
    if step.in_layer and layers is None:
        last = table.config.n_layers - 1
        raise AddressError(f"{name!r} is a step of every layer", f"say which: L0.{name} … L{last}.{name}, or L*.{name}")
    if not step.in_layer and layers is not None:
        raise AddressError(f"{name!r} is not inside a layer", f"write {name} alone")
    return step, f"{name} is {step.name} in this model" if synonym else ""


def _unknown(name: str, table: StepTable) -> AddressError:
    """The error for a name that no step has, with the nearest names."""
    parameter_steps = {key: step for key, (step, parameter) in table.parameters.items() if not parameter.absent}
    if name in parameter_steps:
        address = f"L0.{name}" if parameter_steps[name].in_layer else name
        return AddressError(f"{name} is a parameter, not a step", f"tinytf trace --at {address} shows it")
    hint = "tinytf trace TEXT --pipeline lists the steps of a model"
    return AddressError(
        f"there is no step {name!r}", did_you_mean(name, [*table.by_name, *parameter_steps], otherwise=hint)
    )
