"""The backward pass by hand: the chain rule over the steps of a recorded forward pass, last step first."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tinytf.gradients.loss import Targets, cross_entropy, cross_entropy_of_probs, require_targets
from tinytf.steps.operations.lookup import TOKEN_TABLE
from tinytf.steps.table import Place
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


def backward(trace: Trace, targets: Targets) -> Iterator[tuple[str, Tensor]]:
    """Every gradient of the loss, by name: of each step in the reverse of the table's order, and of each parameter.

    A step (``L3.out``) has the shape of its tensor, and is followed by the parameters that it was computed with
    (``blocks.3.norm1.weight``), in theirs; each comes once. The matrix of a tied head comes with the embeddings,
    where its second part is known. What does not lead to the loss has gradient 0. A step that is used twice has
    the sum of both. Tensors may be shared between names: do not write into them.

    Raises UsageError for targets that are not of this text, AddressError where a layer was not recorded.
    """
    require_targets(trace.model, len(trace.tokens), targets)
    return _with_parameters(trace, targets)


@torch.no_grad()
def _with_parameters(trace: Trace, targets: Targets) -> Iterator[tuple[str, Tensor]]:
    of_token_table: Tensor | None = None
    for site, gradient in step_gradients(trace, targets):
        if gradient is None:
            yield from _zeros(site)
            continue
        yield site.name, gradient
        for name, found in site.operation.parameter_gradients(site, passed_on(site, gradient)):
            if name != TOKEN_TABLE:
                yield name, found
            elif site.step.is_vocabulary:
                of_token_table = found
            else:
                yield name, found if of_token_table is None else found.add_(of_token_table)


@torch.no_grad()
def step_gradients(
    trace: Trace, targets: Targets, known: Callable[[Site], Tensor] | None = None
) -> Iterator[tuple[Site, Tensor | None]]:
    """The gradients of the steps alone, last first; None for a step that does not lead to the loss.

    Each is computed from those of the steps behind it, by hand too or as they are ``known``.
    """
    pending: dict[Place, Tensor] = {}
    for step, layer in reversed(trace.steps.rows):
        if not step.is_tensor:
            continue
        site = Site(trace, step, layer)
        if step.is_vocabulary and not step.to_loss:
            yield site, of_probs(trace, targets)
            continue
        if step.name == "logits":  # from the loss itself, where no p is divided by
            pending[step.name, None] = _of_logits(trace, targets)
        gradient = pending.pop((step.name, layer), None)
        yield site, gradient
        if gradient is None:
            continue
        behind = passed_on(site, gradient if known is None else known(site))
        for source, found in zip(site.sources, site.operation.input_gradients(site, behind), strict=True):
            before = pending.get(source)
            pending[source] = found if before is None else before + found


def passed_on(site: Site, gradient: Tensor) -> Tensor:
    """What of a step's gradient goes to what the step was computed from: of what an intervention put there, nothing."""
    name, layer = site.step.name, site.layer
    if site.trace.is_exchanged(name, layer):
        return torch.zeros_like(gradient)
    gone = [head for head in range(len(gradient)) if site.trace.is_exchanged(name, layer, head)]
    if not site.step.has_heads or not gone:
        return gradient
    gradient = gradient.clone()
    gradient[gone] = 0.0
    return gradient


def _of_logits(trace: Trace, targets: Targets) -> Tensor:
    """The gradient of the logits (T, V): (p − onehot) / N at the targets' positions, 0 at the others."""
    return _at_positions(trace.step("logits"), targets, cross_entropy)


def of_probs(trace: Trace, targets: Targets) -> Tensor:
    """The gradient of the probabilities (T, V): −1 / (N·p) at the targets, 0 elsewhere."""
    return _at_positions(trace.step("probs"), targets, cross_entropy_of_probs)


def _at_positions(values: Tensor, targets: Targets, formula: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    places = torch.tensor(targets.positions, device=values.device)
    rows = formula(values[places], torch.tensor(targets.ids, device=values.device))  # (N, V)
    return torch.zeros_like(values).index_add_(0, places, rows)


def _zeros(site: Site) -> Iterator[tuple[str, Tensor]]:
    yield site.name, torch.zeros_like(site.value)
    if site.path:
        for name, parameter in site.module.named_parameters(prefix=site.path):
            yield name, torch.zeros_like(parameter)
