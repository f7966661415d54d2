"""A row's formula in words names what its operation is given: the inputs of the row, and nothing else of the model."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from architectures import KINDS, config_of

from tinytf.parts.row import Step
from tinytf.steps import table as step_table
from tinytf.steps.table import STEPS, StepTable, table_of

pytestmark = pytest.mark.every

FUNCTIONS = (
    "softmax softplus σ tanh SiLU GELU ReLU ReLU² xIELU LayerNorm RMSNorm Σ max mean e ln sin cos bucket Sinkhorn sign"
)
LETTERS = "T S i h t pos λ Λ slope"
WORDS = """
    head heads query key in each all over at once by its own row sums to of the last largest best groups for where else
    within turned position since tokens token earlier written first and up both or another segment chunk those most
    below two layers layer as with dimension masks learned text pieces id ids type but least equal decays probable next
    fill mask visible is an indexer hashes stream apart blocks block keys later whole among them nearest back group a
    table many before multiple no min
"""
KNOWN = {*FUNCTIONS.split(), *LETTERS.split(), *WORDS.split()}


def _rows() -> Iterator[tuple[str, StepTable, Step, int | None]]:
    for kind in KINDS:
        table = table_of(config_of(kind))
        for step, layer in table.rows:
            yield kind, table, step, layer


def _names(formula: str) -> set[str]:
    return {name.rstrip("ᵀ.") for name in re.findall(r"[^\W\d][\w.]*", formula)} - {""}


def _forms(name: str, step: Step, table: StepTable) -> set[str]:
    """Every way to write an input: its name, its name without the prefix of the row, its symbol."""
    bare = name.removeprefix(step.name.partition(".")[0] + ".")
    return {name, bare, table.by_name[name].symbol} - {""}


def _parameters(step: Step) -> set[str]:
    names = [parameter.name for parameter in step.operation.parameters(step)] if step.operation else []
    return {part for name in names for part in (name, name.rpartition(".")[2])} | {"b", "b₁", "b₂", "w", "s", "W", "E"}


def test_a_formula_names_every_input_of_its_row() -> None:
    for kind, table, step, _ in _rows():
        names = _names(step.formula.removeprefix(f"{step.symbol} = "))
        for source in step.inputs:
            assert names & _forms(source, step, table), (kind, step.name, step.formula, source)
        if step.from_stream:
            assert "x" in names, (kind, step.name)


def test_a_formula_names_nothing_but_inputs_and_parameters() -> None:
    for kind, table, step, layer in _rows():
        known = KNOWN | _parameters(step)
        known |= {form for source in step.inputs for form in _forms(source, step, table)}
        known |= {"x"} if step.from_stream else set()
        unknown = _names(step.formula.removeprefix(f"{step.symbol} = ")) - known
        assert not unknown, (kind, layer, step.name, step.formula)
    steps = {step.name for step in STEPS if step.is_tensor}
    assert KNOWN & steps <= {"in", "written", "segment"}  # the English words, and of a state


def test_two_inputs_of_a_row_never_share_a_name() -> None:
    for kind, table, step, _ in _rows():
        written = [_forms(source, step, table) & _names(step.formula) for source in dict.fromkeys(step.inputs)]
        assert len(set().union(*written)) >= len(written), (kind, step.name, step.formula)


def test_a_symbol_is_defined_by_the_formula_of_its_row() -> None:
    for _, _, step, _ in _rows():
        if step.symbol:
            assert step.formula == step.symbol or step.formula.startswith(f"{step.symbol} = ")


def test_each_placeholder_has_one_part_and_a_row_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("gpt2")
    text = "".join(step.formula + step.matrix + step.absent for step in STEPS)
    for formulas in step_table._FORMULAS:
        for placeholder in formulas(config):
            assert f"{{{placeholder}}}" in text, placeholder
            twice: Any = (*step_table._FORMULAS, lambda _, name=placeholder: {name: "something else"})
            with monkeypatch.context() as patched:
                patched.setattr(step_table, "_FORMULAS", twice)
                with pytest.raises(AssertionError, match=placeholder):
                    step_table._words.__wrapped__(config)  # not the cached ones
    for inputs in step_table._INPUTS:
        for placeholder in inputs(config):
            twice = (*step_table._INPUTS, lambda _, name=placeholder: {name: ("in",)})
            with monkeypatch.context() as patched:
                patched.setattr(step_table, "_INPUTS", twice)
                with pytest.raises(AssertionError, match=placeholder):
                    step_table._inputs(config)
