"""Addresses: ``L3`` a layer, ``L3H5`` a head, ``L3H5.weights`` a step, ``L3H5.weights[sat,cat]`` a cell.

An expert is ``L3E5`` as a head is ``L3H5``. ``L0-2H*.weights`` is a set. TransformerLens names are
accepted; the answer has the canonical name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tinytf.errors import AddressError
from tinytf.nearest import did_you_mean
from tinytf.steps.table import Step, StepTable

ADDRESS = re.compile(
    r"(?:L(?P<layers>[0-9]+(?:-[0-9]+)?|\*)(?:(?P<letter>[HE])(?P<heads>[0-9]+(?:-[0-9]+)?|\*))?(?:\.(?=[A-Za-z])|(?=\[)|$))?"
    r"(?P<step>[A-Za-z][A-Za-z0-9_.₁₂]*)?(?:\[(?P<cell>.*)\])?",
    re.DOTALL,
)
PARTS = {"H": "head", "E": "expert"}
"""What the letters of an address stand for."""
_DIGITS = 18  # int() refuses thousands of them
_BLOCK = re.compile(r"blocks\.([0-9]{1,18})\.(.+)", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """A checked address: which step, in which layers and heads, and which cell of it.

    ``layers`` and ``heads`` are None where the address names none; ``cell`` holds the words between the brackets.
    ``heads`` are experts for a step that has a tensor of each, and without a step where the ``letter`` is E.
    ``note`` is for the reader: another name of the step, or shared key heads.
    """

    step: Step | None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    cell: tuple[str, ...] = ()
    note: str = ""
    letter: str = "H"

    def among(self, steps: Sequence[Step]) -> list[Step]:
        """The step that it names, or of all ``steps`` of a layer those of its experts where it names some."""
        if self.step is not None:
            return [self.step]
        return [step for step in steps if step.of_experts] if self.letter == "E" else list(steps)

    def parts_of(self, step: Step) -> tuple[int, ...] | None:
        """The heads or experts of ``step`` that it names."""
        return self.heads if step.is_split and (self.step is not None or self.letter == step.letter) else None

    @property
    def axes(self) -> list[str]:
        """The axes of the tensor that the address gives."""
        axes = list(self.step.axes) if self.step else []
        if self.heads is not None and len(self.heads) == 1:
            axes = axes[1:]
        axes = axes[: -2 if len(axes) > 1 else -1] + axes[-2:][len(self.cell) :]
        return (["layer"] if self.layers is not None and len(self.layers) > 1 else []) + axes

    def __str__(self) -> str:
        place = "" if self.layers is None else f"L{span(self.layers)}"
        letter = self.letter if self.step is None else self.step.letter
        place += "" if self.heads is None else f"{letter}{span(self.heads)}"
        parts = [part for part in (place, self.step.name if self.step else "") if part]
        return ".".join(parts) + (f"[{','.join(self.cell)}]" if self.cell else "")


def span(numbers: tuple[int, ...]) -> str:
    """``2``, or ``0-3``."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def read_numbers(text: str | None, count: int, what: str) -> tuple[int, ...] | None:
    """The layers or heads that ``2``, ``0-3`` or ``*`` means; AddressError for one that is not there."""
    if text is None:
        return None
    if text == "*":
        return tuple(range(count))
    first, _, last = text.partition("-")
    beyond = next((digits[:_DIGITS] + "…" for digits in (first, last) if len(digits) > _DIGITS), "")
    low, high = (0, 0) if beyond else (int(first), int(last or first))
    if high < low:
        raise AddressError(f"{what}s {low}-{high} run backwards")
    if beyond or high >= count:
        has = f"{count} {what}s, 0 to {count - 1}" if count > 1 else f"one {what}, 0"
        raise AddressError(
            f"there is no {what} {beyond or high}: the model has {has}", "tinytf info shows what a model has"
        )
    return tuple(range(low, high + 1))


def parse_block(text: str, table: StepTable) -> Address:
    """Read the address of whole blocks, such as L1H2 or L0-3. Raises AddressError for others, and for a step."""
    where = parse_address(text, table)
    if where.step is not None:
        raise AddressError(
            f"--block takes a layer and head, such as L0H0, and {text!r} is a step", f"--at {text} shows it"
        )
    return where


def parse_address(text: str, table: StepTable) -> Address:
    """Read an address for the model of ``table``.

    Raises AddressError with what exists, what is nearest, or why this architecture lacks the step.
    """
    config, note = table.config, ""
    canonical, note = _from_transformer_lens(text.strip(), table)
    match = ADDRESS.fullmatch(canonical)
    if not canonical or match is None or (match["layers"] is None and match["step"] is None):
        raise AddressError(
            f"{text!r} is not an address",
            "a layer is L3, a head L3H5, a step L3H5.weights, a cell L3H5.weights[2,1], a set L0-2H*.weights",
        )
    layers = read_numbers(match["layers"], config.n_layers, "layer")
    letter = match["letter"] or "H"
    if letter == "E" and not config.experts:
        raise AddressError(f"this model has no experts, and {text!r} names one", "a head is L3H5")
    heads = read_numbers(match["heads"], config.experts if letter == "E" else config.n_heads, PARTS[letter])
    cell = tuple(word.strip() for word in match["cell"].split(",")) if match["cell"] is not None else ()
    if match["step"] is None:
        if cell:
            raise AddressError(f"{text!r} has a cell but no step", "name one, such as .weights")
        return Address(None, layers, heads, letter=letter)
    named = match["step"]
    if letter == "E" and (full := f"expert.{named.removeprefix('ffn.')}") in table.by_name:
        named = full  # L3E5.ffn.hidden and L3E5.hidden are L3E5.expert.hidden
    step, synonym_note = _find_step(named, layers, table)
    if heads is not None and not (step.is_split and step.letter == letter):
        said = f"its axes are {', '.join(step.axes) or 'none'}"
        raise AddressError(f"{step.name} is not split into {PARTS[letter]}s", said)
    if layers is not None:
        there = tuple(layer for layer in layers if table.has(step.name, layer))
        if not there:
            why = table.why_absent(step.name, layers[0])
            raise AddressError(f"layer {layers[0]} has no step {step.name}: {why}")
        layers, step = there, table.at(step.name, there[0])
    room = min(2, len(step.axes))
    if len(cell) > room:
        form = ("no cells", "cells of one word", "cells of at most two words, [row,column]")[room]
        raise AddressError(f"{step.name} has {form}; {text!r} has {len(cell)}")
    if heads is not None and "kv head" in step.axes:
        note = f"{config.heads_per_kv} query heads share one {step.title.split(',')[0].rstrip('s')} head"
    return Address(step, layers, heads, cell, " ".join(n for n in (note, synonym_note) if n))


def _from_transformer_lens(text: str, table: StepTable) -> tuple[str, str]:
    name, bracket, cell = text.partition("[")
    match = _BLOCK.fullmatch(name)
    layer, alias = (match[1], match[2]) if match else (None, name)
    step = table.aliases().get(alias)
    if step is None or (layer is not None) != step.in_layer:
        if "hook_" in name:
            raise AddressError(f"{name!r} is not a name that this model has", did_you_mean(alias, table.aliases()))
        return text, ""
    canonical = step.full_name(int(layer) if layer is not None else None)
    note = f"{name} is {canonical} here" + (f"; {step.alias_note}" if step.alias_note else "")
    return canonical + bracket + cell, note


def _find_step(name: str, layers: tuple[int, ...] | None, table: StepTable) -> tuple[Step, str]:
    synonym = table.synonym(name)
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
    """What is nearest to a name that no step has."""
    own = {parameter: step for parameter, (step, one) in table.parameters.items() if not one.absent}
    if name in own:
        shown = f"L0.{name}" if own[name].in_layer else name
        return AddressError(f"{name} is a parameter, and not a step", f"tinytf trace --at {shown} shows it")
    return AddressError(f"there is no step {name!r}", did_you_mean(name, [*table.by_name, *own]))
