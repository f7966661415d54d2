"""The same gradients by autograd, of every step as it passes through the running model, and by the chain rule.

Also the models to compare: one of every kind, with a head where the kind has none.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from architectures import KINDS, config_of, encoding_of, facing, lively
from torch import Tensor, nn

from tinytf.gradients.by_hand import gradient_to_inputs, has_earlier_user, step_gradients
from tinytf.gradients.loss import Targets
from tinytf.model.transformer import ENCODER, Source, Transformer
from tinytf.parts.row import Step
from tinytf.steps.table import table_of
from tinytf.tolerance import MARGIN
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

IDS = [3, 14, 15, 9, 2, 6, 5, 3, 5, 8]  # two tokens come twice: their rows of the table have two parts
DECODED = Targets(tuple(range(len(IDS) - 1)), tuple(IDS[1:]))
MASKED = Targets((2, 5, 2), (7, 30, 11))  # one position is asked twice
HEADS: dict[str, dict[str, Any]] = {
    "embeddinggemma 2, inputs of layers from embeddings, the mean projected": {
        "head": "lm",
        "pooling": "none",
        "pooled_dense": (),
    },
    "bert with a pooler": {"head": "mlm", "head_activation": "silu"},
    "the paper's encoder": {"head": "lm", "head_bias": True},
}
MORE: dict[str, dict[str, Any]] = {
    "gpt2, one layer": {"n_layers": 1},
    "gpt2, scaled and normed embeddings": {"embed_scale": 3.0, "embed_norm": True, "qk_norm": True},
    "llama, grouped, tied, with biases": {"tied_head": True, "qkv_bias": True, "o_bias": True, "ffn_bias": True},
    "bert with a masked head, untied": {"tied_head": False, "norm": "rmsnorm", "head_activation": "gelu_tanh"},
}
MODELS = [*KINDS, *MORE]


def model_of(name: str, dtype: torch.dtype = torch.float64) -> Transformer:
    kind = next(kind for kind in sorted(KINDS, key=len, reverse=True) if name.startswith(kind))
    return facing(lively(config_of(kind, **HEADS.get(name, {}), **MORE.get(name, {}))).to(dtype))


def traced(name: str, dtype: torch.dtype = torch.float64) -> tuple[Trace, Targets]:
    trace = record(model_of(name, dtype), encoding_of(IDS))
    return trace, DECODED if trace.config.causal else MASKED


def loss(trace: Trace, targets: Targets) -> float:
    """The mean cross-entropy in nats."""
    logits = trace.step("logits")[list(targets.positions)].double()
    return -float(logits.log_softmax(dim=-1)[range(len(targets.ids)), list(targets.ids)].mean())


@torch.no_grad()
def backward(trace: Trace, targets: Targets) -> Iterator[tuple[str, Tensor]]:
    """Every gradient by the chain rule over the formulas: each step, last first, followed by its parameters.

    The matrix of a tied head comes with the embeddings, where its second part is known.
    """
    own = dict(_backward(trace, targets))
    if trace.source is not None:
        encoder, parameters = record(trace.model.encoder, trace.source.encoding), _parameters(trace.model)
        for name, gradient in _backward(encoder, own["source"]):
            if ENCODER + name in parameters:
                yield ENCODER + name, gradient
            elif name in parameters:  # one table of both
                own[name] = own[name] + gradient
    yield from own.items()


def _parameters(model: Transformer) -> set[str]:
    return {name for name, _ in model.named_parameters()}


@torch.no_grad()
def _backward(trace: Trace, loss: Targets | Tensor | None) -> Iterator[tuple[str, Tensor]]:
    parts: dict[str, Tensor] = {}  # of parameters that several steps share
    for site, gradient in step_gradients(trace, loss):
        if gradient is None:
            yield site.name, torch.zeros_like(site.value)
            if site.path:
                for name, parameter in site.module.named_parameters(prefix=site.path):
                    yield name, torch.zeros_like(parameter)
            continue
        yield site.name, gradient
        for name, found in site.operation.parameter_gradients(site, gradient_to_inputs(site, gradient)):
            parts[name] = found + parts.get(name, 0.0)
            if not has_earlier_user(site, name):
                yield name, parts[name]


Reshape = Callable[[Tensor], Tensor]


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference in units of the largest entry; the difference itself where all of that is 0."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    found, expected = found.detach(), expected.detach()
    difference, largest = float((found - expected).abs().max()), float(expected.abs().max())
    return difference / largest if largest else difference


def is_near(found: Tensor, expected: Tensor, tolerance: float, exact: Callable[[], Tensor]) -> bool:
    """Whether two gradients are equal within a tolerance, or as near to the ``exact`` one as rounding is.

    That is autograd's own distance from it in the same precision, times the usual margin of two computations. What is 0
    on paper, such as the gradient of a number that is added to all scores of a row, is left over from rounding.
    """
    largest = max(float(found.detach().abs().max()), float(expected.detach().abs().max()))
    if relative(found, expected) <= tolerance or largest <= torch.finfo(found.dtype).eps:
        return True
    true = exact()
    return relative(found.double(), true) <= MARGIN * relative(expected.double(), true)


def _caught(model: Transformer, ids: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Reshape]]]:
    """Logits (T, V) of one forward pass, and each step's tensor in it with what takes its batch axis off."""
    caught: dict[str, tuple[Tensor, Reshape]] = {}
    hooks: list[Any] = []

    def taken(step: Step, layer: int | None, tensor: Tensor) -> Tensor:
        if step.name == "embed.positions":
            return tensor
        flat = step.has_heads and tensor.dim() == 3
        config = model.config.at(layer)
        heads = config.n_kv_heads if "kv head" in step.axes else config.n_heads
        return tensor[0].reshape(tensor.shape[1], heads, -1).transpose(0, 1) if flat else tensor[0]

    def catch(step: Step, layer: int | None, module: nn.Module) -> None:
        def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
            if not result.requires_grad:  # sinusoidal positions are a constant of the model
                result = result.clone().requires_grad_()
            caught[step.full_name(layer)] = result, partial(taken, step, layer)
            return result

        hooks.append(module.register_forward_hook(hook))

    for step, layer in table_of(model.config).rows:
        if step.runs and step.to_loss:
            inside = model if layer is None else model.blocks[layer]
            catch(step, layer, inside.get_submodule(step.path))
    model.fuse(False)
    logits = _logits(model, ids)
    for hook in hooks:
        hook.remove()
    model.fuse(True)
    return logits, caught


def _logits(model: Transformer, ids: Tensor) -> Tensor:
    """Logits (T, V), with the graph of what the model reads too."""
    source = None
    if model.encoder is not None:
        source = Source(model.encoder.hidden(torch.tensor([model.reads.trace.encoding.ids])))
    hidden = model.hidden(ids[None], source=source)
    return (hidden if model.head is None else model.unembed(hidden))[0]


def by_autograd(model: Transformer, targets: Targets) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The gradients of every step that leads to the loss, and of every parameter (0 where none does)."""
    logits, caught = _caught(model, torch.tensor(IDS))
    ids = torch.tensor(targets.ids)
    loss = F.cross_entropy(logits[list(targets.positions)], ids)
    tensors = [tensor for tensor, _ in caught.values()]
    found = torch.autograd.grad(loss, tensors, retain_graph=True)
    steps = {name: reshape(g) for (name, (_, reshape)), g in zip(caught.items(), found, strict=True)}
    probs = logits.softmax(dim=-1)
    (steps["probs"],) = torch.autograd.grad(-probs[list(targets.positions), ids].log().mean(), probs)
    model.zero_grad()
    F.cross_entropy(_logits(model, torch.tensor(IDS))[list(targets.positions)], ids).backward()
    parameters = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }
    model.zero_grad()
    return steps, parameters
