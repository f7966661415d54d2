"""Every row of the step table and every operation is whole, in every architecture that has it.

A row is derived as the model computes it, recorded or seen on its way, exchanged, drawn, explained and differentiated
(by hand, by autograd, by finite differences, and as one row worked out). A new row without one of these fails by name,
in the first kind of model that computes it in its way.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any

import covering
import pytest
import torch
from architectures import (
    HEADS_OF_CLASSES,
    KINDS,
    asked,
    config_of,
    encoding_of,
    first_places,
    furthest,
    lively,
    way,
)
from torch import Tensor

from tinytf.gradients.by_hand import agreement
from tinytf.gradients.derivation import derive as derived_row
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import GradientTrace, losses_of, record_gradients
from tinytf.look.explain import Explanation
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.steps import operations
from tinytf.steps.operations import Operation
from tinytf.steps.operations.operation import Operation as Base
from tinytf.steps.table import STEPS, StepTable
from tinytf.trace.address import Address
from tinytf.trace.hooks import as_step, tap_steps
from tinytf.trace.record import record
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Heat
from tinytf_cli.views.parts import Extent
from tinytf_cli.views.steps import step_blocks


def explain(trace: Trace, address: str, **settings: Any) -> Explanation:
    """The one cell at an address."""
    return asked(trace.model).explain(trace, address, **settings)[0]


IDS = [3, 14, 15, 9, 2, 6, 5]
TARGETS = Targets((6, 4, 4), (11, 7, 2))
OPERATIONS = {
    name: kind
    for name in operations.__all__
    if inspect.isclass(kind := getattr(operations, name)) and issubclass(kind, Operation) and kind is not Operation
}
pytestmark = pytest.mark.every


def rows_of(kind: str, *, head: bool = False) -> Iterator[tuple[Step, int | None]]:
    """The rows of a kind, and their layers, that no kind before it computes in the same way.

    With ``head`` only the kinds that have a loss count.

    All rows of all kinds only with --exhaustive: that the steps of every kind are derived as they are computed is held
    by test_trace.py, their gradients by tests/gradients/test_trace.py, their explanation by
    tests/look/test_arithmetic.py.
    """
    table, first = StepTable(config_of(kind)), first_places(head)
    if table.chooses or not head:
        for step, layer in table.rows:
            if covering.everything or first[way(step)] == (kind, layer):
                yield step, layer


@cache
def all_steps() -> list[Step]:
    """The rows of all kinds, once for each way in which they are computed."""
    return [step for kind in (*KINDS, *HEADS_OF_CLASSES) for step, _ in rows_of(kind)]


class Subject:
    """What the tests of one kind share."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rows = [(step, layer) for step, layer in rows_of(kind) if step.axes]
        self.rows_with_loss = [(step, layer) for step, layer in rows_of(kind, head=True) if step.to_loss and step.axes]

    @cached_property
    def model(self) -> Transformer:
        return lively(config_of(self.kind)).double()

    @cached_property
    def trace(self) -> Trace:
        return record(self.model, encoding_of(IDS))

    @cached_property
    def gradients(self) -> GradientTrace:
        return record_gradients(self.model, encoding_of(IDS), TARGETS)

    @cached_property
    def seen(self) -> dict[str, Tensor]:
        """Every step on its way through the running model, by its full name."""
        found: dict[str, Tensor] = {}
        self.run(lambda name, tensor: found.setdefault(name, tensor))
        return found

    def run(self, tap: Callable[[str, Tensor], Tensor]) -> Tensor:
        """What the model gives where a tap exchanges steps."""
        with torch.no_grad(), tap_steps(self.model, tap):
            return self.model(torch.tensor([IDS]))


@pytest.fixture(scope="module", params=[*KINDS, *HEADS_OF_CLASSES])
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param)


def cell_of(step: Step, layer: int | None, words: int) -> Address:
    """An address of a cell (or of a row, with one word) that is not masked."""
    heads = (1,) if step.is_split else None
    last = {"label": "1", "sink": "0", "switch": "0", "stream": "1", "d_shared_key": "1"}.get(step.axes[-1], "2")
    cell = ("0",) if len(step.axes[-2:]) == 1 else ("4", last)[:words]
    return Address(step, None if layer is None else (layer,), heads, cell)


def test_every_row_is_in_some_architecture_of_the_tests() -> None:
    found = {(step.name, step.title) for step in all_steps()}
    missing = [f"{row.name}, {row.title}" for row in STEPS if (row.name, row.title) not in found]
    assert not missing, "add a kind to tests/architectures.py that has them"


@pytest.mark.parametrize("kind", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_has_all_its_handlers_and_makes_some_step(kind: type[Operation]) -> None:
    assert not inspect.isabstract(kind)
    assert kind.words
    used = [step for step in all_steps() if type(step.operation) is kind]
    assert used, f"no row is made by {kind.__name__}"
    assert kind.forward is not Base.forward or kind.derive is not Base.derive
    feeds = any(step.inputs and step.to_loss and step.reads for step in used)
    assert not feeds or kind.input_gradients is not Base.input_gradients
    assert not feeds or kind.summand is not Base.summand
    has_parameters = any(step.module and step.to_loss for step in used)
    assert not has_parameters or kind.parameter_gradients is not Base.parameter_gradients


def test_rows_are_derived_as_the_model_computes_them_and_pass_where_they_say(subject: Subject) -> None:
    trace = subject.trace
    for step, layer in subject.rows:
        name = step.full_name(layer)
        assert step.operation is not None, f"{name} has no operation"
        again, held = Site(trace, step, layer).derive(), trace.step(step.name, layer)
        finite = held.isfinite()
        assert torch.equal(again.isfinite(), finite)
        assert furthest(again[finite], held[finite]) < 1e-12, f"{name} is derived otherwise"
        if not step.runs:
            continue
        passing = as_step(step, subject.seen[name], trace.config.at(layer))
        assert furthest(again[finite], passing[finite]) < 1e-12, f"{name} is another number in the model"


def test_rows_that_are_recorded_are_kept_by_the_forward_pass(subject: Subject) -> None:
    kept = {step.full_name(layer) for step, layer in subject.rows} & {*subject.trace.recording.tensors}
    assert kept == {step.full_name(layer) for step, layer in subject.rows if step.recorded}


def test_a_tap_exchanges_every_row(subject: Subject) -> None:
    plain = subject.run(lambda _, tensor: tensor)
    for step, layer in subject.rows:
        name = step.full_name(layer)
        if name not in subject.seen:
            continue

        def tap(passing: str, tensor: Tensor, name: str = name) -> Tensor:
            if passing != name:
                return tensor
            turned = torch.where(tensor.isfinite(), -tensor, tensor)  # what is only added cancels in some softmax
            return turned + 0.5 * torch.arange(1, 1 + tensor.shape[-1])

        assert not torch.equal(plain, subject.run(tap)), f"{name} is made, and nothing takes it"


def test_rows_have_the_gradient_of_autograd_and_of_finite_differences(subject: Subject) -> None:
    generator = torch.Generator().manual_seed(4)
    by_hand = agreement(subject.gradients).steps if subject.rows_with_loss else {}
    for step, layer in subject.rows_with_loss:
        name, trace = step.full_name(layer), subject.gradients
        assert by_hand[name].relative < 1e-9, f"∂{name} by hand"
        direction = torch.randn(trace.step(step.name, layer).shape, generator=generator, dtype=torch.float64)
        direction[~trace.step(step.name, layer).isfinite()] = 0.0
        along = float((direction * trace.grad.step(step.name, layer)).sum())

        def loss(size: float, name: str = name, step: Step = step, direction: Tensor = direction) -> float:
            def tap(passing: str, tensor: Tensor) -> Tensor:
                if passing != name:
                    return tensor
                flat = step.has_heads and tensor.dim() == 3
                way = direction.transpose(0, 1).flatten(1) if flat else direction
                return tensor + size * way

            return float(losses_of(subject.run(tap)[0], TARGETS).mean())

        measured = (loss(1e-6) - loss(-1e-6)) / 2e-6
        assert measured == pytest.approx(along, rel=1e-5, abs=1e-8), f"∂{name} by finite differences"


def test_one_row_of_a_gradient_is_worked_out(subject: Subject) -> None:
    for step, layer in rows_of(subject.kind, head=True):
        if len(step.axes) < 2:
            continue
        where = cell_of(step, layer, 1)
        found = derived_row(subject.gradients, where)
        assert furthest(found.result, subject.gradients.grad[where]) < 1e-12, f"the row {where} of the gradient"
        assert found.formula[0].startswith(f"∂{step.name} = ")


def test_a_cell_is_explained(subject: Subject) -> None:
    for step, layer in subject.rows:
        found = explain(subject.trace, cell_of(step, layer, 2))
        assert found.holds, f"{found.address} is {found.recorded}, and explained as {found.total}"
        assert found.kind


def test_rows_are_drawn_by_their_axes(subject: Subject) -> None:
    for step, layer in subject.rows:
        head = 1 if step.is_split else None
        blocks = list(step_blocks(subject.trace, step, layer, head, Extent(dims=8), asked=True))
        assert any(isinstance(block, Heat) for block in blocks) == step.is_drawn, step.full_name(layer)
        drawn = list(paint(blocks, Terminal()))
        assert any(step.name in line for line in drawn)
        assert len(drawn) > len(IDS) // 2 or len(step.axes) == 1 or step.is_vocabulary


def test_an_axis_is_of_a_kind_whose_size_is_known(subject: Subject) -> None:
    for step, layer in subject.rows:
        sizes = {**subject.trace.lengths, **config_of(subject.kind).at(layer).sizes}
        shape = subject.trace.step(step.name, layer).shape
        assert tuple(sizes[axis] for axis in step.axes) == shape, step.full_name(layer)
