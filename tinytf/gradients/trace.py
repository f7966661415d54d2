"""A trace with its backward pass: the gradient of a loss with respect to every step and every parameter."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.errors import MemoryShortage, UsageError
from tinytf.gradients.loss import Targets, at_positions, cross_entropy_of_probs, require_targets
from tinytf.gradients.targets import choose_targets
from tinytf.memory import UNASKED, free_bytes, in_gib
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.report import About
from tinytf.short_repr import brief
from tinytf.steps.table import table_of
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.hooks import as_step, tapped
from tinytf.trace.trace import Recording, Trace

Metric = Callable[[Tensor], Tensor]
"""Makes one number of logits (T, V)."""


class Gradients(Trace):
    """The gradients of a loss by the addresses of a trace, each in the shape of its step.

    That of ``probs`` is −1 / (N·p) at the targets, and 0 for a metric, which is of logits; it is 0 for steps that do
    not lead to the loss.
    """

    def __init__(self, of: Trace, targets: Targets | None, recording: Recording) -> None:
        super().__init__(of.model, of.encoding, recording)
        self._of, self._targets = of, targets

    def _derived_step(self, step: Step, layer: int | None, heads: tuple[int, ...] | None) -> Tensor:
        if step.is_vocabulary and not step.to_loss and self._targets is not None:
            return at_positions(self._of.step(step.name), self._targets, cross_entropy_of_probs)
        return torch.zeros_like(self._of.step(step.name, layer, heads))

    def vocabulary(self, name: str, positions: Sequence[int]) -> Tensor:
        """The gradient of a step over the vocabulary at some positions (P, V)."""
        return self.step(name)[list(positions)]


class GradientTrace(Trace):
    """A trace, with the gradients of its steps in ``grad`` and those of the parameters, by name, in ``parameters``.

    ``losses`` are the cross-entropies in nats, one per target; the loss is their mean, or what a metric gives.
    """

    def __init__(
        self,
        model: Transformer,
        encoding: Encoding,
        recording: Recording,
        targets: Targets | None,
        losses: tuple[float, ...],
        gradients: dict[str, Tensor],
        parameters: dict[str, Tensor],
    ) -> None:
        super().__init__(model, encoding, recording)
        self._targets, self.losses, self.parameters = targets, losses, parameters
        self.grad = Gradients(self, targets, Recording(gradients, recording.logit_rows, recording.layers))

    @property
    def targets(self) -> Targets:
        """What is predicted. Raises UsageError where the gradients are of a metric."""
        if self._targets is None:
            raise UsageError("these gradients are of a metric, not of a cross-entropy", "name a target instead")
        return self._targets

    @property
    def loss(self) -> float:
        return math.fsum(self.losses) / len(self.losses)


def grad(
    model: TextModel,
    text: Written,
    *,
    target: str | None = None,
    positions: str | None = None,
    versus: str | None = None,
    metric: Metric | None = None,
    truncate: bool = False,
    force: bool = False,
) -> GradientTrace:
    """Record ``text`` and the backward pass of the loss that ``choose_targets`` reads from the words.

    The trace has every gradient by its address: ``trace.grad["L3H5.weights"]``. With ``versus``, another token, they
    are of the logit of the ``target`` (by default the predicted token) less that of the other; with a ``metric`` of the
    one number that this function makes of the logits (T, V). Raises UsageError for words that name no target, for two
    of these at once, and as ``record_gradients`` does.
    """
    if metric is not None:
        if (target, positions, versus) != (None, None, None):
            raise UsageError("a metric is of all logits, and has no target, positions or versus", "choose one of them")
        found = record_gradients(model.transformer, model.encode(text, truncate=truncate), metric, force=force)
        found.about = About(model, found.encoding)
        return found
    model.transformer.require_choice("there is no loss and no gradient")
    encoding = model.encode(text, truncate=truncate)
    if versus is not None and target is None:
        trace = model.trace_of(encoding)
        target = f"#{int(trace.logits_at(trace.recording.logit_rows[-1]).argmax())}"
    if model.config.labels:
        targets = _classes(model, encoding, model.optional_outcome(target, "--target"), positions)
    else:
        encoding, targets = choose_targets(
            model.tokenizer, encoding, causal=model.config.causal, target=target, positions=positions
        )
    against = targets if versus is None else _lead(targets, model.find_outcome(versus, "--versus"))
    found = record_gradients(model.transformer, encoding, against, force=force)
    found.about = About(model, encoding)
    return found


def _lead(targets: Targets, other: int) -> Metric:
    """The logit of each target less that of another outcome, in the mean."""
    if other in targets.ids:
        raise UsageError("target and versus are one, so there is no difference", "name two: target and versus")

    def lead(logits: Tensor) -> Tensor:
        rows = logits[list(targets.positions)].double()  # (N, V)
        return (rows[range(len(targets.ids)), list(targets.ids)] - rows[:, other]).mean()

    return lead


def _classes(model: TextModel, encoding: Encoding, named: int | None, positions: str | None) -> Targets:
    """The class that is ``named``, or the most probable one, at each position that the head reads, or at some of them.

    Raises UsageError for a position that the head does not read.
    """
    trace = model.trace_of(encoding)
    read = trace.recording.logit_rows
    own = tuple(row for row in read if not trace.tokens[row].special) or read
    places = own if positions is None else trace.positions(positions, "--positions")
    wrong = [place for place in places if place not in read]
    if wrong:
        raise UsageError(f"the head reads token {read[0]} alone, not {wrong[0]}", "leave out --positions")
    return Targets(places, tuple(int(trace.logits_at(row).argmax()) if named is None else named for row in places))


def record_gradients(
    model: Transformer, encoding: Encoding, of: Targets | Metric, *, force: bool = False
) -> GradientTrace:
    """Run ``encoding`` forward and back once, attention step by step, and keep every step and its gradient.

    They are ``of`` the mean cross-entropy of targets, or of a metric.

    The model's own gradients and modes do not change. Raises UsageError for targets that are not of this text and for
    weights without a gradient, and MemoryShortage where the result would not fit into the free memory, unless
    ``force`` is true.
    """
    targets = of if isinstance(of, Targets) else None
    if targets is not None:
        require_targets(model, len(encoding.tokens), targets)
    model.require_head("there is no loss and no gradient")
    if not force:
        _require_room(model, len(encoding.tokens))
    rows = {step.full_name(layer): (step, layer) for step, layer in table_of(model.config).rows}
    caught: dict[str, Tensor] = {}

    def tap(name: str, tensor: Tensor) -> Tensor:
        constant = not tensor.requires_grad  # such as sinusoidal positions
        caught[name] = tensor.clone().requires_grad_() if constant else tensor
        return caught[name]

    with differentiable(model) as parameters, tapped(model, tap):
        ids = torch.tensor([encoding.ids], device=next(model.parameters()).device)
        logits = model(ids)[0]  # (T, V)
        losses = losses_of(logits, of) if isinstance(of, Targets) else _measured(of, logits)
        found = torch.autograd.grad(
            losses.mean(), [*caught.values(), *parameters.values()], allow_unused=True, materialize_grads=True
        )

    def as_steps(tensors: Collection[Tensor]) -> dict[str, Tensor]:
        pairs = zip(caught, tensors, strict=True)
        return {name: as_step(rows[name][0], one.detach(), model.config.at(rows[name][1])) for name, one in pairs}

    values, gradients = as_steps(caught.values()), as_steps(found[: len(caught)])
    positions, layers = tuple(range(len(encoding.tokens))), tuple(range(model.config.n_layers))
    recording = Recording(values, positions, layers, model.exchanged, model.edited)
    of_parameters = dict(zip(parameters, found[len(caught) :], strict=True))
    each = tuple(losses.detach().tolist())
    return GradientTrace(model, encoding, recording, targets, each, gradients, of_parameters)


def _measured(metric: Metric, logits: Tensor) -> Tensor:
    """What a metric makes of the logits (T, V), as (1,)."""
    found = metric(logits)
    if not isinstance(found, Tensor) or found.numel() != 1 or not found.requires_grad:
        raise UsageError(
            f"the metric gives {brief(found)}, and gradients are of one number that depends on the logits",
            "such as lambda logits: logits[-1, 3] - logits[-1, 4]",
        )
    return found.reshape(1)


def losses_of(logits: Tensor, targets: Targets) -> Tensor:
    """Cross-entropy in nats of each target (N,), from logits (T, V); in float64, as float32 sums too coarsely."""
    ids = torch.tensor(targets.ids, device=logits.device)
    return F.cross_entropy(logits[list(targets.positions)].double(), ids, reduction="none")


@contextmanager
def differentiable(model: Transformer) -> Iterator[dict[str, Tensor]]:
    """The model's parameters by name; inside, each requires its gradient, and autograd is on.

    Raises UsageError for weights that are not floating-point numbers.
    """
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise UsageError(f"{name} is of {parameter.dtype}, which has no gradient", "load it with --dtype float32")
    before = {name: parameter.requires_grad for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        with torch.inference_mode(False), torch.enable_grad():
            yield parameters
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(before[name])


def _require_room(model: Transformer, tokens: int) -> None:
    """Raise MemoryShortage where the steps, their gradients and those of the parameters exceed the free memory."""
    config, weights = model.config, sum(parameter.numel() for parameter in model.parameters())
    sizes = [{"token": tokens, "query": tokens, "key": tokens, **config.at(n).sizes} for n in range(config.n_layers)]
    rows = ((step, sizes[layer or 0]) for step, layer in table_of(config).rows if step.is_tensor)
    steps = sum(math.prod(size[axis] for axis in step.axes) for step, size in rows)
    needed = next(model.parameters()).itemsize * (2 * steps + weights)
    if needed < UNASKED or needed <= (free := free_bytes(next(model.parameters()).device)):
        return
    raise MemoryShortage(
        f"a backward pass of {tokens:,} tokens through {config.n_layers} layers holds {in_gib(needed)}, and "
        f"{in_gib(free)} are free",
        "cut the text with --truncate; --force goes on anyway",
    )
