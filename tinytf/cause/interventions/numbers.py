"""Set single numbers of a model: cells of a step, cells of a parameter, and √d, the divisor of attention scores."""

import copy
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tinytf.cause.interventions.edits import Edit, hook_edits, require_edit
from tinytf.config import ModelConfig
from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.model.without import with_config
from tinytf.parts.row import TEXT_AXES
from tinytf.short_repr import brief
from tinytf.steps.operations import Sight
from tinytf.steps.table import StepTable, table_of
from tinytf.text.tokenizer import Encoding
from tinytf.text.words import NUMBERS, AxisNames, as_slice, find_index, is_selection
from tinytf.text_model import AnyModel, TextModel
from tinytf.trace.address import Address, parse_numbers, span
from tinytf.trace.parameters import ParameterAddress, parse_any
from tinytf.trace.trace import Text, Trace, is_masked

_DIVISOR = re.compile(rf"(?:L({NUMBERS})\.)?(?:√d(?:_head)?|scale)")
_DIVISOR_SETTING = "attention_divisor"


@dataclass(frozen=True)
class Divisor:
    """The divisor of attention scores in some ``layers``; None for all."""

    layers: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return "√d" if self.layers is None else f"L{span(self.layers)}.√d"

    def values(self, config: ModelConfig) -> Tensor:
        """The divisors, one for each layer."""
        layers = range(config.n_layers) if self.layers is None else self.layers
        return torch.tensor([config.at(layer).score_divisor for layer in layers], dtype=torch.float64)

    def set_to(self, number: float, config: ModelConfig) -> ModelConfig:
        """The configuration with another divisor. Raises UsageError for one that is not above 0."""
        if number <= 0:
            message = f"{self} divides the scores, and {number:g} is not above 0"
            raise UsageError(message, f"1 leaves the scores as they are: {self} = 1")
        layers = range(config.n_layers)
        divisors = [number if n in (self.layers or layers) else config.at(n).attention_divisor for n in layers]
        by_layer = tuple(pair for pair in config.by_layer if pair[0] != _DIVISOR_SETTING)
        if len(set(divisors)) == 1:
            return config.but(by_layer=by_layer, **{_DIVISOR_SETTING: divisors[0]})
        return config.but(by_layer=(*by_layer, (_DIVISOR_SETTING, tuple(divisors))))


Target = Address | ParameterAddress | Divisor
"""What a number is set at."""


def number_at(text: str, table: StepTable, encoding: Encoding | None = None) -> Target:
    """Read where a number is set: ``L1H2.weights[mat,cat]``, ``L0.W_Q[0,3]``, ``√d``, ``L1.√d``; ``scale`` is √d.

    Tokens of the text become their positions, so that the address means the same cell in every text. Raises
    AddressError for an address that does not exist, and for a step that cannot be edited.
    """
    if not isinstance(text, str):
        raise AddressError(f"an address is a text, and this is {brief(text)}", "such as L1H2.weights[2,1]")
    if match := _DIVISOR.fullmatch(text.strip()):
        return Divisor(parse_numbers(match[1], table.config.n_layers, "layer"))
    target = parse_any(text, table)
    if isinstance(target, ParameterAddress):
        if target.parameter.same_as:
            raise AddressError(f"{target} cannot be set alone: {target.note}", f"{target.parameter.same_as} sets both")
        return target
    target = target.plain(table)
    require_edit(target, table)
    return target if encoding is None else replace(target, cell=tuple(_positions(target, encoding)))


def _positions(address: Address, encoding: Encoding) -> Iterator[str]:
    """The words of a cell, with numbers for tokens."""
    axes, shown = _axes(address), [token.shown for token in encoding.tokens]
    for axis, word in address.words(len(axes)):
        is_position = axes[axis] in TEXT_AXES[:3] and not is_selection(word)
        yield str(find_index(word, axes[axis], len(shown), AxisNames(shown))) if is_position else word


def _axes(address: Address) -> tuple[str, ...]:
    """The axes of the numbers that the cell is in."""
    assert address.step is not None
    return address.step.axes[1:] if address.heads is not None and len(address.heads) == 1 else address.step.axes


def assignment(text: str) -> tuple[str, float]:
    """The address and the number of ``ADDRESS = NUMBER``. Raises UsageError for anything else."""
    at, equals, word = (part.strip() for part in text.rpartition("="))
    if not equals:
        raise UsageError(f"{text!r} gives no number", "such as: √d = 1")
    try:
        return at, float(word)
    except ValueError:
        raise UsageError(f"{word!r} is not a number", f"such as: {at or '√d'} = 0.5") from None


def number_before(model: TextModel, target: Target, trace: Trace | None) -> Tensor:
    """The numbers at ``target``, of which those of a step belong to ``trace``; masked cells are left out.

    Raises AddressError for a cell that does not exist or is masked.
    """
    if isinstance(target, Divisor):
        return target.values(model.config)
    if isinstance(target, ParameterAddress):
        return target.tensor(model.transformer, partial(model.find_token, option="token"))
    assert trace is not None, "a step has numbers in a text only"
    numbers, seen = trace[target], trace.seen(target)
    if seen is not None:
        numbers = numbers[seen]
        if not len(numbers):
            raise AddressError(f"{target} is masked: its query does not see its key", "set a cell that is not masked")
    return numbers


def with_numbers(model: AnyModel, numbers: Mapping[str, float], *, text: Text | None = None) -> AnyModel:
    """Another model that shares all other weights, and always runs with these numbers at their addresses.

    ``numbers`` maps addresses as in ``number_at`` to numbers; a row or a slice is filled, except for masked cells. A
    later number goes over an earlier one. The tokens in an address are those of ``text``. What follows a set step is
    computed from it, as in ``edited``, in generation too.

    Raises the errors of ``number_at``; UsageError for a number that is not finite in the model's dtype, for a divisor
    that is not above 0, and for one in a model with replaced steps. A text without a set cell raises AddressError.
    """
    if not isinstance(numbers, Mapping) or not numbers:
        message = f"numbers are set by address, and this is {brief(numbers)}"
        raise UsageError(message, 'pass a dict, such as {"L1H2.weights[2,1]": 0}')
    encoding = text.encoding if isinstance(text, Trace) else None if text is None else model.encode(text, truncate=True)
    parsed = [(at, number_at(at, table_of(model.config)), number) for at, number in numbers.items() if is_divisor(at)]
    transformer, config = model.transformer, model.config
    for _, divisor, number in parsed:
        assert isinstance(divisor, Divisor)
        config = divisor.set_to(_finite(number, str(divisor), model.transformer), config)
    if parsed:
        transformer = with_config(transformer, config)
    table = table_of(config)
    parsed += [(at, number_at(at, table, encoding), number) for at, number in numbers.items() if not is_divisor(at)]
    targets = {at: (target, _finite(number, str(target), transformer)) for at, target, number in parsed}
    transformer = _copied(transformer, [target for target, _ in targets.values()])
    edits: list[tuple[Address, Edit]] = []
    with torch.no_grad():
        for target, number in targets.values():
            if isinstance(target, ParameterAddress):
                target.fill(transformer, number, partial(model.find_token, option="token"))
            elif isinstance(target, Address) and target.step is not None:
                for layer in target.layers or (None,):
                    sight = Sight.of(config.at(layer)) if is_masked(table.at(target.step.name, layer)) else None
                    place = target if layer is None else replace(target, layers=(layer,))
                    edits.append((place, partial(_fill, place, number, sight)))
    list(hook_edits(transformer, edits))  # the hooks stay
    words = tuple(f"{targets[at][0]} = {number:g}" for at, number in numbers.items())
    notes = (*model.file_notes, f"with {', '.join(words)}")
    return replace(model, transformer=transformer, numbers=(*model.numbers, *words), file_notes=notes)


def is_divisor(at: str) -> bool:
    """Whether an address is that of a divisor, which is set before any step is replaced."""
    return isinstance(at, str) and _DIVISOR.fullmatch(at.strip()) is not None


def _finite(number: float, at: str, model: Transformer) -> float:
    """The number. Raises UsageError for one that the model cannot hold."""
    if not isinstance(number, int | float):
        raise UsageError(f"{brief(number)} is not a number", f"such as {at} = 0")
    dtype = next(model.parameters()).dtype
    if not math.isfinite(number) or abs(number) > torch.finfo(dtype).max:
        raise UsageError(
            f"{number:g} is not a finite number of {str(dtype).removeprefix('torch.')}", f"set a finite one: {at} = 0"
        )
    return float(number)


def _copied(model: Transformer, targets: "list[Target]") -> Transformer:
    """A copy, in evaluation mode, that shares all tensors except the parameters that are set."""
    paths = {
        target.path(layer)
        for target in targets
        if isinstance(target, ParameterAddress)
        for layer in target.layers or (None,)
    }
    own = {id(model.get_parameter(path)) for path in paths}
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors if id(tensor) not in own}).eval()


def _fill(address: Address, number: float, sight: Sight | None, value: Tensor) -> None:
    """Write a number into the cells of a step in one text, except where ``sight`` masks them."""
    axes, before = _axes(address), value.clone()
    index: list[int | slice] = [slice(None)] * value.dim()
    for axis, word in address.words(len(axes)):
        try:
            index[axis] = as_slice(find_index(word, axes[axis], value.shape[axis], AxisNames()))
        except AddressError as error:
            message = f"{address} is set to {number:g}, and in this text {error.message}"
            raise AddressError(message, "give a text that has the cell, or take the number back") from None
    value[tuple(index)] = number
    allowed = None if sight is None else sight.allowed(value.shape[-2], None, value.device)
    if allowed is not None:
        value.copy_(torch.where(allowed, value, before))
