"""Every row of the step table and every operation is whole, in every architecture that has it.

A row is derived as the model computes it, recorded or seen on its way, exchanged, drawn, explained and differentiated
(by hand, by autograd, by finite differences, and as one row worked out). A new row without one of these fails by name.
"""

import inspect
from collections.abc import Iterator
from functools import cache
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

from tinytf.gradients.by_hand import Agreement, agreement
from tinytf.gradients.derivation import derive as derived_row
from tinytf.gradients.loss import Targets
from tinytf.gradients.trace import GradientTrace, losses_of, record_gradients
from tinytf.look.arithmetic import Explanation
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
from tinytf_cli.views.steps import step_blocks


def explain(trace: Trace, address: str, **settings: Any) -> Explanation:
    """The one cell at an address."""
    return asked(trace.model).explain(trace, address, **settings)[0]


IDS = [3, 14, 15, 9, 2, 6, 5]
TARGETS = Targets((6, 4, 4), (11, 7, 2))
ROWS = {f"{row.name}, {row.title}": row for row in STEPS}
TENSORS = {name: row for name, row in ROWS.items() if row.axes}
rows = pytest.mark.parametrize("row", TENSORS.values(), ids=TENSORS)
OPERATIONS = {
    name: kind
    for name in operations.__all__
    if inspect.isclass(kind := getattr(operations, name)) and issubclass(kind, Operation) and kind is not Operation
}


@cache
def model_of(kind: str):
    return lively(config_of(kind)).double()


@cache
def trace_of(kind: str) -> Trace:
    return record(model_of(kind), encoding_of(IDS))


@cache
def gradients_of(kind: str) -> GradientTrace:
    return record_gradients(model_of(kind), encoding_of(IDS), TARGETS)


@cache
def seen_in(kind: str) -> dict[str, Tensor]:
    """Every step on its way through the running model, by its full name."""
    found: dict[str, Tensor] = {}
    model = model_of(kind)
    with torch.no_grad(), tap_steps(model, lambda name, tensor: found.setdefault(name, tensor)):
        model(torch.tensor([IDS]))
    return found


@cache
def plain_of(kind: str) -> Tensor:
    """What the model gives where a tap exchanges nothing."""
    model = model_of(kind)
    with torch.no_grad(), tap_steps(model, lambda _, tensor: tensor):
        return model(torch.tensor([IDS]))


@cache
def agreement_of(kind: str) -> Agreement:
    return agreement(gradients_of(kind))


@cache
def all_places() -> dict[tuple[str, str], list[tuple[str, Step, int | None, bool]]]:
    """Where each row is, by its name and title, and whether the kind of architecture has a loss."""
    found: dict[tuple[str, str], list[tuple[str, Step, int | None, bool]]] = {}
    for kind in (*KINDS, *HEADS_OF_CLASSES):
        table = StepTable(config_of(kind))
        for step, layer in table.rows:
            found.setdefault((step.name, step.title), []).append((kind, step, layer, table.chooses))
    return found


def places(row: Step, *, head: bool = False) -> Iterator[tuple[str, Step, int | None]]:
    """Where a row is, once for each way in which it is computed; with ``head`` in a kind that has a loss.

    In all layers of all kinds only with --exhaustive: that the steps of every kind are derived as they are computed is
    held by test_trace.py, their gradients by tests/gradients/test_trace.py, their explanation by
    tests/look/test_arithmetic.py.
    """
    first = first_places(head)
    for kind, step, layer, chooses in all_places().get((row.name, row.title), ()):
        if (chooses or not head) and (covering.everything or first[way(step)] == (kind, layer)):
            yield kind, step, layer


def cell_of(step: Step, layer: int | None, words: int) -> Address:
    """An address of a cell (or of a row, with one word) that is not masked."""
    heads = (1,) if step.is_split else None
    last = {"label": "1", "sink": "0", "switch": "0"}.get(step.axes[-1], "2")
    cell = ("0",) if len(step.axes[-2:]) == 1 else ("4", last)[:words]
    return Address(step, None if layer is None else (layer,), heads, cell)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_row_is_in_some_architecture_of_the_tests(row: Step) -> None:
    assert list(places(row)), f"add a kind to tests/architectures.py that has {row.name}, {row.title}"


@pytest.mark.parametrize("kind", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_has_all_its_handlers_and_makes_some_step(kind: type[Operation]) -> None:
    assert not inspect.isabstract(kind)
    assert kind.words
    used = [step for row in STEPS for _, step, _ in places(row) if type(step.operation) is kind]
    assert used, f"no row is made by {kind.__name__}"
    assert kind.forward is not Base.forward or kind.derive is not Base.derive
    feeds = any(step.inputs and step.to_loss and step.reads for step in used)
    assert not feeds or kind.input_gradients is not Base.input_gradients
    assert not feeds or kind.summand is not Base.summand
    has_parameters = any(step.module and step.to_loss for step in used)
    assert not has_parameters or kind.parameter_gradients is not Base.parameter_gradients


@rows
def test_a_row_is_derived_as_the_model_computes_it_and_passes_where_it_says(row: Step) -> None:
    for kind, step, layer in places(row):
        trace, name = trace_of(kind), step.full_name(layer)
        assert step.operation is not None, f"{kind}: {name} has no operation"
        again, held = Site(trace, step, layer).derive(), trace.step(step.name, layer)
        finite = held.isfinite()
        assert torch.equal(again.isfinite(), finite)
        assert furthest(again[finite], held[finite]) < 1e-12, f"{kind}: {name} is derived otherwise"
        if not step.runs:
            continue
        passing = as_step(step, seen_in(kind)[name], trace.config.at(layer))
        assert furthest(again[finite], passing[finite]) < 1e-12, f"{kind}: {name} is another number in the model"


@rows
def test_a_row_that_is_recorded_is_kept_by_the_forward_pass(row: Step) -> None:
    for kind, step, layer in places(row):
        kept = step.full_name(layer) in trace_of(kind).recording.tensors
        assert kept == step.recorded, f"{kind}: {step.full_name(layer)}"


@rows
def test_a_tap_exchanges_every_row(row: Step) -> None:
    for kind, step, layer in places(row):
        name, model = step.full_name(layer), model_of(kind)
        if name not in seen_in(kind):
            continue

        def tap(passing: str, tensor: Tensor, name: str = name) -> Tensor:
            return tensor + 0.5 * torch.arange(1, 1 + tensor.shape[-1]) if passing == name else tensor

        with torch.no_grad(), tap_steps(model, tap):
            changed = model(torch.tensor([IDS]))
        assert not torch.equal(plain_of(kind), changed), f"{kind}: {name} is made, and nothing takes it"


@rows
def test_a_row_has_the_gradient_of_autograd_and_of_finite_differences(row: Step) -> None:
    generator = torch.Generator().manual_seed(4)
    for kind, step, layer in places(row, head=True):
        name, trace = step.full_name(layer), gradients_of(kind)
        if not step.to_loss:
            continue
        assert agreement_of(kind).steps[name].relative < 1e-9, f"{kind}: ∂{name} by hand"
        direction = torch.randn(trace.step(step.name, layer).shape, generator=generator, dtype=torch.float64)
        direction[~trace.step(step.name, layer).isfinite()] = 0.0
        along = float((direction * trace.grad.step(step.name, layer)).sum())

        def loss(size: float, kind: str = kind, name: str = name, step: Step = step, direction=direction) -> float:
            model = model_of(kind)

            def tap(passing: str, tensor: Tensor) -> Tensor:
                if passing != name:
                    return tensor
                flat = step.has_heads and tensor.dim() == 3
                way = direction.transpose(0, 1).flatten(1) if flat else direction
                return tensor + size * way

            with torch.no_grad(), tap_steps(model, tap):
                return float(losses_of(model(torch.tensor([IDS]))[0], TARGETS).mean())

        measured = (loss(1e-6) - loss(-1e-6)) / 2e-6
        assert measured == pytest.approx(along, rel=1e-5, abs=1e-8), f"{kind}: ∂{name} by finite differences"


@rows
def test_one_row_of_a_gradient_is_worked_out(row: Step) -> None:
    for kind, step, layer in places(row, head=True):
        if len(step.axes) < 2:
            continue
        trace = gradients_of(kind)
        where = cell_of(step, layer, 1)
        found = derived_row(trace, where)
        expected = trace.grad[where]
        assert furthest(found.result, expected) < 1e-12, f"{kind}: the row {where} of the gradient"
        assert found.formula[0].startswith(f"∂{step.name} = ")


@rows
def test_a_cell_is_explained(row: Step) -> None:
    for kind, step, layer in places(row):
        found = explain(trace_of(kind), cell_of(step, layer, 2))
        assert found.holds, f"{kind}: {found.address} is {found.recorded}, and explained as {found.total}"
        assert found.kind


@rows
def test_a_row_is_drawn_by_its_axes(row: Step) -> None:
    for kind, step, layer in places(row):
        head = 1 if step.is_split else None
        blocks = list(step_blocks(trace_of(kind), step, layer, head, dims=8, rows=None, asked=True))
        assert any(isinstance(block, Heat) for block in blocks) == step.is_drawn, f"{kind}: {step.full_name(layer)}"
        drawn = list(paint(blocks, Terminal()))
        assert any(step.name in line for line in drawn)
        assert len(drawn) > len(IDS) // 2 or len(step.axes) == 1 or step.is_vocabulary


@rows
def test_an_axis_is_of_a_kind_whose_size_is_known(row: Step) -> None:
    for kind, step, layer in places(row):
        sizes = {"token": len(IDS), "query": len(IDS), "key": len(IDS), **config_of(kind).at(layer).sizes}
        shape = trace_of(kind).step(step.name, layer).shape
        assert tuple(sizes[axis] for axis in step.axes) == shape, f"{kind}: {step.full_name(layer)}"
