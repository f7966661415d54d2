"""The first step that goes wrong, forward or backward: not finite, saturated, dead, or not what its formula gives."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from tinytf.errors import UsageError
from tinytf.gradients.by_hand import agreement
from tinytf.gradients.trace import GradientTrace
from tinytf.nearest import did_you_mean
from tinytf.steps.operations import Activate
from tinytf.steps.operations.activate import SLOPES
from tinytf.tolerance import Compared
from tinytf.trace.check import check
from tinytf.trace.faults import NOT_FINITE, Fault, Inspected, Test, allowed, counted, first_of
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

KINDS = ("nan", "inf", "saturated", "dead", "mismatch")

ONE_KEY = 0.999
"""A query with so large a weight attends to one key alone, and softmax passes almost no gradient."""

FLAT, ALMOST_ALL = 1e-6, 0.999
"""An activation is saturated where its slope is at most FLAT for ALMOST_ALL of its inputs."""

SILENT = 1e-9
"""A unit of the feed-forward is silent where its output is no larger."""


def first_fault(trace: Trace, kinds: Collection[str] = KINDS) -> Fault | None:
    """The first fault of the forward pass; if there is none and the trace has gradients, of the backward pass.

    Steps come in the order of the pass, and at each step ``kinds`` in the order of KINDS:

    - ``nan``, ``inf``: entries that are not finite, except −∞ where a query may not look;
    - ``saturated``: an attention map in which each query that sees more than one key gives one of them ONE_KEY, or an
      activation whose slope is FLAT at ALMOST_ALL of its inputs;
    - ``dead``: at least half, and at least two, of the units of ``ffn.act`` are SILENT for every token; backward, a
      gradient that is exactly 0 at a step that leads to the loss;
    - ``mismatch``: what ``tinytf.trace.check`` and ``agreement`` find. It needs every layer.

    After the steps of the backward pass come the gradients of the parameters. Raises UsageError for an unknown kind.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise UsageError(f"there is no fault {unknown[0]!r}", did_you_mean(unknown[0], KINDS))
    tests: dict[str, Test] = {**NOT_FINITE, "saturated": _saturated, "dead": _silent}
    if "mismatch" in kinds:
        tests["mismatch"] = _in_table(_off(check(trace).items))
    found = first_of(trace, trace.steps.rows, "forward", _chosen(tests, kinds))
    if found is None and isinstance(trace, GradientTrace):
        return _first_backward(trace, kinds)
    return found


def _first_backward(trace: GradientTrace, kinds: Collection[str]) -> Fault | None:
    tests: dict[str, Test] = {**NOT_FINITE, "dead": partial(_without_gradient, trace)}
    of_parameters: Mapping[str, str] = {}
    if "mismatch" in kinds:
        agreed = agreement(trace)
        of_steps, of_parameters = (_off(compared.values()) for compared in (agreed.steps, agreed.parameters))
        tests["mismatch"] = _in_table(of_steps)
    rows = [row for row in reversed(trace.steps.rows) if row[0].to_loss and row[0].operation is not None]
    found = first_of(trace.grad, rows, "backward", _chosen(tests, kinds))
    return found or _first_of_parameters(trace, kinds, of_parameters)


def _first_of_parameters(trace: GradientTrace, kinds: Collection[str], mismatches: Mapping[str, str]) -> Fault | None:
    for name, gradient in reversed(trace.parameters.items()):
        evidence = {
            "nan": counted(gradient.isnan(), "NaN", str),
            "inf": counted(gradient.isinf(), "infinite", str),
            "mismatch": mismatches.get(name, ""),
        }
        for kind, clause in evidence.items():
            if clause and kind in kinds:
                return Fault(name, "backward", kind, clause)
    return None


def _chosen(tests: Mapping[str, Test], kinds: Collection[str]) -> dict[str, Test]:
    return {kind: test for kind, test in tests.items() if kind in kinds}


def _in_table(clauses: Mapping[str, str]) -> Test:
    return lambda seen: clauses.get(seen.name, "")


def _saturated(seen: Inspected) -> str:
    if seen.step.is_map and seen.step.is_distribution:
        return _one_key_each(seen)
    return _flat(seen, seen.step.operation.name) if isinstance(seen.step.operation, Activate) else ""


def _one_key_each(seen: Inspected) -> str:
    choosing = allowed(seen).sum(dim=-1) > 1  # (Q,)
    if not bool(choosing.any()):
        return ""
    least = seen.values.amax(dim=-1)[:, choosing].amin(dim=-1)  # (H, Q, K) -> (H,)
    heads = (least >= ONE_KEY).nonzero().flatten().tolist()
    if not heads:
        return ""
    return (
        f"{len(heads)} of {len(least)} heads, the first is head {heads[0]}: each of its {int(choosing.sum())} queries "
        f"that see more than one key gives one of them {float(least[heads[0]]):.6f} of its weight or more"
    )


def _flat(seen: Inspected, activation: str) -> str:
    flat = SLOPES[activation](Site(seen.trace, seen.step, seen.layer).input()).abs() <= FLAT
    if float(flat.double().mean()) < ALMOST_ALL:
        return ""
    return seen.counted(flat, f"of inputs where the slope of {activation} is at most {FLAT:g}")


def _silent(seen: Inspected) -> str:
    if not (seen.step.in_layer and isinstance(seen.step.operation, Activate)) or len(seen.values) < 2:
        return ""
    silent = (seen.values.abs() <= SILENT).all(dim=0)  # (T, F) -> (F,)
    count, units, tokens = int(silent.sum()), len(silent), len(seen.values)
    if 2 * count < units:
        return ""
    first = int(silent.nonzero()[0])
    return f"{count:,} of {units:,} units are 0 for each of {tokens:,} tokens, the first is unit {first}"


def _without_gradient(trace: GradientTrace, seen: Inspected) -> str:
    if bool(seen.values.any()):
        return ""
    choices = allowed(seen)[list(trace.targets.positions)].sum(dim=-1)
    if int(choices.max()) < 2 and trace.steps.only_through_maps(seen.step, seen.layer):
        return ""
    return f"the gradient is exactly 0 in all {seen.values.numel():,} entries"


def _off(compared: Iterable[Compared]) -> dict[str, str]:
    """The comparisons that do not hold: by the name of the step how far each is off, in a clause."""
    return {
        one.step: f"off from {one.what} by {one.difference:.3g}, {one.relative:.2g} of the largest value, where "
        f"{one.allowed:.2g} is allowed"
        for one in compared
        if not one.holds
    }
