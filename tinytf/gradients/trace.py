"""A trace with its backward pass: the gradient of a loss with respect to every step and every parameter."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.counting import tell
from tinytf.errors import MemoryShortage, UsageError
from tinytf.gradients.loss import Targets, at_positions, cross_entropy_of_probs, require_targets
from tinytf.gradients.targets import choose_targets
from tinytf.memory import UNASKED, free_bytes, in_gib
from tinytf.model.batches import typed
from tinytf.model.transformer import PATHS, Source, Transformer, run_each
from tinytf.model.turn import in_turn, using
from tinytf.nearest import did_you_mean
from tinytf.parts.row import TEXT_AXES, Step
from tinytf.report import About
from tinytf.short_repr import brief
from tinytf.steps.table import table_of
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.hooks import as_step, tap_steps
from tinytf.trace.trace import Recording, Trace

Metric = Callable[[Tensor], Tensor]
"""A function of the logits (T, V) that returns one number."""
METRICS = ("loss", "logit", "logit_diff")
"""The numbers that ``grad`` takes by name."""


class Gradients(Trace):
    """The gradients of a loss at the addresses of a trace, each in the shape of its step.

    The gradient at ``probs`` is −1 / (N·p) at the targets; for a metric it is 0, since a metric reads the logits. It is
    0 for steps that do not lead to the loss.
    """

    def __init__(self, trace: Trace, targets: Targets | None, recording: Recording) -> None:
        super().__init__(trace.model, trace.encoding, recording)
        self._trace, self._targets = trace, targets

    def _derived_step(self, step: Step, layer: int | None, heads: tuple[int, ...] | None) -> Tensor:
        if step.is_vocabulary and not step.to_loss and self._targets is not None:
            return at_positions(self._trace.step(step.name), self._targets, cross_entropy_of_probs)
        return torch.zeros_like(self._trace.step(step.name, layer, heads))

    def vocabulary(self, name: str, positions: Sequence[int]) -> Tensor:
        """The gradient of a step over the vocabulary at some positions (P, V)."""
        return self.step(name)[list(positions)]


class GradientTrace(Trace):
    """A trace with the gradients of its steps in ``grad``, and of the parameters, by name, in ``parameters``.

    ``losses`` are the cross-entropies in nats, one per target; the loss is their mean, or the value of a metric.
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
        source: "GradientTrace | None" = None,
    ) -> None:
        super().__init__(model, encoding, recording, source)  # with the gradients of the same loss
        self._targets, self.losses, self.parameters = targets, losses, parameters
        self.grad = Gradients(self, targets, Recording(gradients, recording.logit_rows, recording.layers))

    @property
    def source(self) -> Any:
        """The trace of the text that the model reads, with the gradients of the same loss."""
        return self._source

    @property
    def targets(self) -> Targets:
        """The tokens to predict. Raises UsageError if the gradients are of a metric."""
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
    metric: Metric | str | None = None,
    truncate: bool = False,
    force: bool = False,
) -> GradientTrace:
    """Record ``text`` and the backward pass of the loss that ``choose_targets`` reads from the words.

    The trace has every gradient at its address: ``trace.grad["L3H5.weights"]``. ``metric`` is one of METRICS, or a
    function of the logits (T, V). ``logit`` is that of the ``target``, by default the predicted token; ``logit_diff``
    its logit less that of ``versus``, by default the most probable other token. With a ``versus`` it is the default.

    Raises UsageError for words that name no target, for an unknown metric, for a function beside other options, and
    like ``record_gradients``.
    """
    if isinstance(metric, str) and metric not in METRICS:
        raise UsageError(f"there is no metric {metric!r}", did_you_mean(metric, METRICS))
    if callable(metric):
        if (target, positions, versus) != (None, None, None):
            raise UsageError(
                "a metric reads all logits, and takes no target, positions or versus", "drop the metric or the others"
            )
        trace = record_gradients(model.transformer, model.encode(text, truncate=truncate), metric, force=force)
        trace.about = About(model, trace.encoding)
        return trace
    model.transformer.require_choice("there is no loss and no gradient")
    encoding = model.encode(text, truncate=truncate)
    if metric == "logit" and versus is not None:
        raise UsageError("the metric logit takes no versus", "logit_diff does")
    metric = metric or ("loss" if versus is None else "logit_diff")
    if metric == "loss" and versus is not None:
        raise UsageError("the metric loss takes no versus", "logit_diff does")
    if metric != "loss" and (target is None or (metric == "logit_diff" and versus is None)):
        forward = model.trace_of(encoding)
        first, second = forward.logits_at(forward.recording.logit_rows[-1]).topk(2).indices.tolist()
        target = f"#{first}" if target is None else target
        if metric == "logit_diff" and versus is None:
            versus = f"#{second if model.find_outcome(target) == first else first}"
    if model.config.labels:
        targets = _classes(model, encoding, model.optional_outcome(target, "--target"), positions)
    else:
        encoding, targets = choose_targets(
            model.tokenizer, encoding, causal=model.config.causal, target=target, positions=positions
        )
    against: Targets | Metric = targets
    if metric != "loss":
        against = _lead(targets, None if versus is None else model.find_outcome(versus, "--versus"))
    trace = record_gradients(model.transformer, encoding, against, force=force)
    trace.about = About(model, encoding)
    return trace


def _lead(targets: Targets, other: int | None) -> Metric:
    """The mean, over the targets, of the target's logit, less that of another outcome if there is one."""
    if other in targets.ids:
        raise UsageError("target and versus are the same token, so there is no difference", "name two tokens")

    def lead(logits: Tensor) -> Tensor:
        rows = logits[list(targets.positions)].double()  # (N, V)
        logit = rows[range(len(targets.ids)), list(targets.ids)]
        return (logit if other is None else logit - rows[:, other]).mean()

    return lead


def _classes(model: TextModel, encoding: Encoding, named: int | None, positions: str | None) -> Targets:
    """The ``named`` or most probable class at each position that the head reads, or at some of them.

    Raises UsageError for a position that the head does not read.
    """
    trace = model.trace_of(encoding)
    read_positions = trace.recording.logit_rows
    default = tuple(row for row in read_positions if not trace.tokens[row].special) or read_positions
    chosen = default if positions is None else trace.positions(positions, "--positions")
    unread = [position for position in chosen if position not in read_positions]
    if unread:
        raise UsageError(f"the head reads only token {read_positions[0]}, not {unread[0]}", "leave out --positions")
    return Targets(chosen, tuple(int(trace.logits_at(row).argmax()) if named is None else named for row in chosen))


@in_turn
def record_gradients(
    model: Transformer, encoding: Encoding, of: Targets | Metric, *, force: bool = False
) -> GradientTrace:
    """Run ``encoding`` forward and back once, attention step by step, and keep every step and its gradient.

    The gradients are ``of`` the mean cross-entropy of targets, or of a metric.

    The model's own gradients and modes do not change. Raises UsageError for targets outside this text and for weights
    that can have no gradient, and MemoryShortage if the result would not fit into the free memory, unless ``force`` is
    true.
    """
    targets = of if isinstance(of, Targets) else None
    if targets is not None:
        require_targets(model, len(encoding.tokens), targets)
    model.require_head("there is no loss and no gradient")
    if not force:
        _require_room(model, len(encoding.tokens))
    stacks = {at: _Taped(*asked) for at, asked in model.texts(encoding).items()}
    with differentiable(model) as parameters, ExitStack() as taps:
        for stack in stacks.values():
            taps.enter_context(tap_steps(stack.model, stack.tap))
        hidden = run_each(stacks.values(), _Taped.run)
        logits = model.unembed(hidden)[0]  # (T, V)
        losses = losses_of(logits, of) if isinstance(of, Targets) else _metric_value(of, logits)
        recorded = [tensor for stack in stacks.values() for tensor in stack.recorded.values()]
        all_gradients = list(
            torch.autograd.grad(
                losses.mean(), [*recorded, *parameters.values()], allow_unused=True, materialize_grads=True
            )
        )
    for stack in stacks.values():
        stack.gradients = [all_gradients.pop(0) for _ in stack.recorded]
    of_parameters = dict(zip(parameters, all_gradients, strict=True))
    read = None
    for at, stack in stacks.items():
        own = {name.removeprefix(PATHS[at]): g for name, g in of_parameters.items() if name.startswith(PATHS[at])}
        asked = (None, ()) if at else (targets, tuple(losses.detach().tolist()))
        read = stack.trace(*asked, own, read)
    assert read is not None
    return read


class _Taped:
    """One stack with its text, the steps of its pass, and their gradients."""

    def __init__(self, model: Transformer, encoding: Encoding) -> None:
        self.model, self.encoding = model, encoding
        self.rows = {step.full_name(layer): (step, layer) for step, layer in table_of(model.config).rows}
        self.recorded: dict[str, Tensor] = {}
        self.gradients: list[Tensor] = []
        self.returned = itertools.count(1)

    def run(self, source: Source | None = None) -> Tensor:
        """The last hidden states (1, T, C)."""
        ids = torch.tensor([self.encoding.ids], device=next(self.model.parameters()).device)
        return self.model.hidden(ids, token_types=typed([self.encoding.types], ids.device), source=source)

    def tap(self, name: str, tensor: Tensor) -> Tensor:
        constant = not tensor.requires_grad  # such as sinusoidal positions
        self.recorded[name] = kept = tensor.clone().requires_grad_() if constant else tensor
        tell("steps run:", len(self.recorded), len(self.rows))
        kept.register_hook(lambda _: tell("gradients of steps:", next(self.returned), len(self.recorded)))
        return kept

    def trace(
        self,
        targets: Targets | None,
        losses: tuple[float, ...],
        parameters: dict[str, Tensor],
        source: GradientTrace | None = None,
    ) -> GradientTrace:
        """The pass as a trace with its gradients."""
        model, positions = self.model, tuple(range(len(self.encoding.tokens)))
        values, gradients = self._as_steps(self.recorded.values()), self._as_steps(self.gradients)
        recording = Recording(values, positions, tuple(range(model.config.n_layers)), model.exchanged, model.edited)
        return GradientTrace(model, self.encoding, recording, targets, losses, gradients, parameters, source)

    def _as_steps(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        pairs = zip(self.recorded, tensors, strict=True)
        config = self.model.config
        return {name: as_step(self.rows[name][0], one.detach(), config.at(self.rows[name][1])) for name, one in pairs}


def _metric_value(metric: Metric, logits: Tensor) -> Tensor:
    """The value of a metric on the logits (T, V), as (1,)."""
    value = metric(logits)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise UsageError(
            f"the metric returns {brief(value)}, but must return one number that depends on the logits",
            "such as lambda logits: logits[-1, 3] - logits[-1, 4]",
        )
    return value.reshape(1)


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
    with using(model):
        required = {name: parameter.requires_grad for name, parameter in parameters.items()}
        try:
            for parameter in parameters.values():
                parameter.requires_grad_(True)
            with torch.inference_mode(False), torch.enable_grad():
                yield parameters
        finally:
            for name, parameter in parameters.items():
                parameter.requires_grad_(required[name])


def _require_room(model: Transformer, tokens: int) -> None:
    """Raise MemoryShortage if the steps, their gradients and those of the parameters exceed the free memory."""
    config, weights = model.config, sum(parameter.numel() for parameter in model.parameters())
    sizes = [{**dict.fromkeys(TEXT_AXES, tokens), **config.at(n).sizes} for n in range(config.n_layers)]
    rows = ((step, sizes[layer or 0]) for step, layer in table_of(config).rows if step.is_tensor)
    steps = sum(math.prod(size[axis] for axis in step.axes) for step, size in rows)
    needed = next(model.parameters()).itemsize * (2 * steps + weights)
    if needed < UNASKED or needed <= (free := free_bytes(next(model.parameters()).device)):
        return
    raise MemoryShortage(
        f"a backward pass of {tokens:,} tokens through {config.n_layers} layers needs {in_gib(needed)}, and "
        f"{in_gib(free)} are free",
        "cut the text with --truncate; --force goes on anyway",
    )
