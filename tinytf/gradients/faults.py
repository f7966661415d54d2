"""Find the first faulty step, forward or backward: not finite, saturated, dead, or off from its formula."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from tinytf.errors import UsageError
from tinytf.gradients.by_hand import agreement
from tinytf.gradients.trace import GradientTrace
from tinytf.nearest import did_you_mean
from tinytf.steps.operations import Activate
from tinytf.steps.operations.activate import SLOPES
from tinytf.tolerance import Comparison
from tinytf.trace.check import check
from tinytf.trace.faults import NOT_FINITE, Fault, Inspected, Test, allowed, describe_entries, first_of
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

KINDS = ("nan", "inf", "saturated", "dead", "mismatch")

ONE_KEY = 0.999
"""A query with a weight this large attends to one key alone, and softmax passes almost no gradient."""

FLAT, ALMOST_ALL = 1e-6, 0.999
"""An activation is saturated if its slope is at most FLAT for ALMOST_ALL of its inputs."""

SILENT = 1e-9
"""A unit of the feed-forward is silent if its output is no larger."""


def first_fault(trace: Trace, kinds: Collection[str] = KINDS) -> Fault | None:
    """The first fault of the forward pass; if there is none and the trace has gradients, of the backward pass.

    Steps come in the order of the pass, and at each step ``kinds`` in the order of KINDS:

    - ``nan``, ``inf``: entries that are not finite, except −∞ at masked keys;
    - ``saturated``: an attention map in which each query that sees more than one key gives one of them ONE_KEY, or an
      activation whose slope is FLAT at ALMOST_ALL of its inputs;
    - ``dead``: at least half, and at least two, of the units of ``ffn.act`` are SILENT for every token; backward, a
      gradient that is exactly 0 at a step that leads to the loss;
    - ``mismatch``: failures of ``tinytf.trace.check`` and ``agreement``. It needs every layer.

    After the steps of the backward pass come the gradients of the parameters. Raises UsageError for an unknown kind.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise UsageError(f"there is no fault {unknown[0]!r}", did_you_mean(unknown[0], KINDS))
    tests: dict[str, Test] = {**NOT_FINITE, "saturated": _saturated, "dead": _silent}
    if "mismatch" in kinds:
        tests["mismatch"] = _look_up(_failures(check(trace).items))
    fault = first_of(trace, trace.steps.rows, "forward", _chosen(tests, kinds))
    if fault is None and isinstance(trace, GradientTrace):
        return _first_backward(trace, kinds)
    return fault


def _first_backward(trace: GradientTrace, kinds: Collection[str]) -> Fault | None:
    tests: dict[str, Test] = {**NOT_FINITE, "dead": partial(_without_gradient, trace)}
    parameter_failures: Mapping[str, str] = {}
    if "mismatch" in kinds:
        comparisons = agreement(trace)
        step_failures, parameter_failures = (
            _failures(compared.values()) for compared in (comparisons.steps, comparisons.parameters)
        )
        tests["mismatch"] = _look_up(step_failures)
    rows = [row for row in reversed(trace.steps.rows) if row[0].to_loss and row[0].operation is not None]
    fault = first_of(trace.grad, rows, "backward", _chosen(tests, kinds))
    return fault or _first_of_parameters(trace, kinds, parameter_failures)


def _first_of_parameters(trace: GradientTrace, kinds: Collection[str], mismatches: Mapping[str, str]) -> Fault | None:
    for name, gradient in reversed(trace.parameters.items()):
        evidence = {
            "nan": describe_entries(gradient.isnan(), "NaN", str),
            "inf": describe_entries(gradient.isinf(), "infinite", str),
            "mismatch": mismatches.get(name, ""),
        }
        for kind, clause in evidence.items():
            if clause and kind in kinds:
                return Fault(name, "backward", kind, clause)
    return None


def _chosen(tests: Mapping[str, Test], kinds: Collection[str]) -> dict[str, Test]:
    return {kind: test for kind, test in tests.items() if kind in kinds}


def _look_up(clauses: Mapping[str, str]) -> Test:
    return lambda inspected: clauses.get(inspected.name, "")


def _saturated(inspected: Inspected) -> str:
    if inspected.step.is_map and inspected.step.holds_shares:
        return _one_key_each(inspected)
    return _flat(inspected, inspected.step.operation.name) if isinstance(inspected.step.operation, Activate) else ""


def _one_key_each(inspected: Inspected) -> str:
    choosing = allowed(inspected).sum(dim=-1) > 1  # (Q,)
    if not bool(choosing.any()):
        return ""
    least = inspected.values.amax(dim=-1)[:, choosing].amin(dim=-1)  # (H, Q, K) -> (H,)
    heads = (least >= ONE_KEY).nonzero().flatten().tolist()
    if not heads:
        return ""
    return (
        f"{len(heads)} of {len(least)} heads, the first is head {heads[0]}: each of its {int(choosing.sum())} queries "
        f"that see more than one key gives one of them {float(least[heads[0]]):.6f} of its weight or more"
    )


def _flat(inspected: Inspected, activation: str) -> str:
    flat = SLOPES[activation](Site(inspected.trace, inspected.step, inspected.layer).input()).abs() <= FLAT
    if float(flat.double().mean()) < ALMOST_ALL:
        return ""
    return inspected.counted(flat, f"of inputs where the slope of {activation} is at most {FLAT:g}")


def _silent(inspected: Inspected) -> str:
    if not (inspected.step.in_layer and isinstance(inspected.step.operation, Activate)) or len(inspected.values) < 2:
        return ""
    silent = (inspected.values.abs() <= SILENT).all(dim=0)  # (T, F) -> (F,)
    count, units, tokens = int(silent.sum()), len(silent), len(inspected.values)
    if 2 * count < units:
        return ""
    first = int(silent.nonzero()[0])
    return f"{count:,} of {units:,} units are 0 for each of {tokens:,} tokens, the first is unit {first}"


def _without_gradient(trace: GradientTrace, inspected: Inspected) -> str:
    if bool(inspected.values.any()):
        return ""
    choices = allowed(inspected)[list(trace.targets.positions)].sum(dim=-1)
    if int(choices.max()) < 2 and trace.steps.only_through_maps(inspected.step, inspected.layer):
        return ""
    return f"the gradient is exactly 0 in all {inspected.values.numel():,} entries"


def _failures(compared: Iterable[Comparison]) -> dict[str, str]:
    """The comparisons that fail: by step name, a clause that says how far each is off."""
    return {
        c.step: f"off from {c.what} by {c.difference:.3g}, {c.relative:.2g} of the largest value, where "
        f"{c.allowed:.2g} is allowed"
        for c in compared
        if not c.holds
    }
