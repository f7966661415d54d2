"""Every report of numbers that are not finite names the same step: the first of the pass, however it is run."""

import math

import torch
from architectures import KINDS, config_of, encoding_of, lively
from covering import along

from tinytf.gradients.faults import first_fault
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.check import check
from tinytf.trace.record import record

IDS = (1, 5, 9, 4, 5)


def first_computed(model: Transformer) -> dict[str, str]:
    """The first step computed with each parameter of the last layer and outside layers, by the parameter's name."""
    steps: dict[str, str] = {}
    owners = {id(parameter): name for name, parameter in model.named_parameters()}
    for step, layer in table_of(model.config).rows:
        path = step.module if layer is None else f"blocks.{layer}.{step.module}"
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if step.module and step.to_loss and name.rpartition(".")[0] == path:
                steps.setdefault(owners[id(parameter)], step.full_name(layer))
    last = model.config.n_layers - 1
    return {name: step for name, step in steps.items() if not step.startswith("L") or step.startswith(f"L{last}.")}


@along({"kind": KINDS, "value": (math.nan, math.inf)})
def test_the_check_names_the_first_step_that_is_not_finite(kind: str, value: float) -> None:
    model = lively(config_of(kind))
    for name, step in first_computed(model).items():
        parameter = model.get_parameter(name)
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.fill_(value)
            trace = record(model, encoding_of(IDS))
            outcome, fault = check(trace), first_fault(trace, ("nan", "inf"))
            parameter.copy_(kept)
        if math.isnan(value):
            assert (fault and fault.step, outcome.holds) == (step, False), name
        if not outcome.holds:
            assert outcome.telling.step == outcome.to_dict()["at"] == (fault and fault.step), name
