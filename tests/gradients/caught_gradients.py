"""The same gradients by autograd, of every step as it passes through the running model, and by the chain rule.

Also the models to compare: one of every kind, with a head where the kind has none.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from architectures import KINDS, config_of, encoding_of, lively
from torch import Tensor, nn

from tinytf.gradients.by_hand import comes_again, passed_on, step_gradients
from tinytf.gradients.loss import Targets
from tinytf.model.experts import Experts
from tinytf.model.parts import FeedForward
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

IDS = [3, 14, 15, 9, 2, 6, 5, 3, 5, 8]  # two tokens come twice: their rows of the table have two parts
DECODED = Targets(tuple(range(len(IDS) - 1)), tuple(IDS[1:]))
MASKED = Targets((2, 5, 2), (7, 30, 11))  # one position is asked twice
HEADS: dict[str, dict[str, Any]] = {
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
    return lively(config_of(kind, **HEADS.get(name, {}), **MORE.get(name, {}))).to(dtype)


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
    parts: dict[str, Tensor] = {}  # of parameters that several steps share
    for site, gradient in step_gradients(trace, targets):
        if gradient is None:
            yield site.name, torch.zeros_like(site.value)
            if site.path:
                for name, parameter in site.module.named_parameters(prefix=site.path):
                    yield name, torch.zeros_like(parameter)
            continue
        yield site.name, gradient
        for name, found in site.operation.parameter_gradients(site, passed_on(site, gradient)):
            parts[name] = found + parts.get(name, 0.0)
            if not comes_again(site, name):
                yield name, parts[name]


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference in units of the largest entry; the difference itself where all of that is 0."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    found, expected = found.detach(), expected.detach()
    difference, largest = float((found - expected).abs().max()), float(expected.abs().max())
    return difference / largest if largest else difference


Reshape = Callable[[Tensor], Tensor]


def _caught(model: Transformer, ids: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Reshape]]]:
    """Logits (T, V) of one forward pass, and each step's tensor in it with what takes its batch axis off."""
    config, table = model.config, table_of(model.config)
    caught: dict[str, tuple[Tensor, Reshape]] = {}
    hooks: list[Any] = []

    def first(tensor: Tensor) -> Tensor:
        return tensor[0]

    def into_heads(tensor: Tensor) -> Tensor:
        return tensor[0].reshape(len(ids), -1, config.d_head).transpose(0, 1)

    def of_rows(tensor: Tensor) -> Tensor:
        return tensor[0].unflatten(-1, (config.n_heads, -1)).transpose(0, 1)

    def by_head(tensor: Tensor) -> Tensor:
        return tensor[0].reshape(len(ids), config.n_heads, -1).transpose(0, 1)

    def output(module: nn.Module, name: str, reshape: Reshape = first) -> None:
        def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
            if not result.requires_grad:  # sinusoidal positions are a constant of the model
                result = result.clone().requires_grad_()
            caught[name] = result, reshape
            return result

        hooks.append(module.register_forward_hook(hook))

    def input(module: nn.Module, *names: str) -> None:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            caught.update({name: (tensor, first) for name, tensor in zip(names, args, strict=False)})

        hooks.append(module.register_forward_pre_hook(hook))

    def tap(layer: int, step: str, tensor: Tensor) -> Tensor:
        if table.has(step, layer):  # a mask that hides nothing is no step
            caught[f"L{layer}.{step}"] = tensor, first
        return tensor

    model.use_attention("steps")
    model.use_experts("steps")
    for layer, block in enumerate(model.blocks):
        block.attention.core.tap = partial(tap, layer)

    def feed_forward(module: FeedForward, name: str) -> None:
        output(module.up, f"{name}.hidden")
        if module.gate is not None:
            output(module.gate, f"{name}.gate")
        input(module.down, f"{name}.act")

    def of_experts(module: Experts, at: str) -> None:
        def tap(step: str, tensor: Tensor) -> Tensor:
            if step not in ("ffn.chosen", "ffn.preference"):
                caught[at + step] = tensor, first
            return tensor

        output(module.router, at + "ffn.router")
        module.core.tap = tap
        if module.shared is not None:
            feed_forward(module.shared, at + "shared")
            output(module.shared, at + "shared.out")
        if module.shared_score is not None:
            output(module.shared_score, at + "shared.score")
            output(module.switch, at + "shared.added")

    output(model.embed.tokens, "embed.tokens")
    if model.embed.kept is not None:
        output(model.embed.kept, "embed.kept")
    if model.embed.positions is not None:
        output(model.embed.positions, "embed.positions", lambda tensor: tensor)
    if model.embed.types is not None:
        output(model.embed.types, "embed.types")
    if config.embed_norm:
        input(model.embed.norm, "embed.sum")
        output(model.embed.norm, "embed.norm")
    elif config.d_embed:
        output(model.embed.projection, "embed.projected")
    if config.d_embed or not config.embed_norm:
        output(model.embed, "embed.out")
    order = config.norm_order
    for layer, block in enumerate(model.blocks):
        at = f"L{layer}."
        input(block, at + "in")
        if config.kv_rank:
            for name in ("q_a", "q_a_norm") if config.q_rank else ():
                output(getattr(block.attention, name), at + name)
            for name in ("kv_a", "kv_a_norm", "k_shared"):
                output(getattr(block.attention, name), at + name)
            for name, module in (("q", "q"), ("k_own", "k"), ("v", "v")):
                output(getattr(block.attention, module), at + name, by_head)
            output(block.attention.join, at + "k")
        for name in () if config.kv_rank else ("q", "k", "v"):
            output(getattr(block.attention, name), at + name, into_heads)
        for name in ("distances", "distances_norm", "pos_k", "pos_q") if config.distances else ():
            if name in table.by_name:
                output(getattr(block.attention, name), at + name, of_rows if "pos" in name else first)
        if config.at(layer).qk_norm:
            of_heads = first if config.qk_norm_across == "head" else into_heads
            output(block.attention.q_norm, at + "q_norm", of_heads)
            output(block.attention.k_norm, at + "k_norm", of_heads)
        for name in ("q_clip", "k_clip", "v_clip") if config.clip_qkv else ():
            output(getattr(block.attention, name), at + name)
        if config.at(layer).positions == "rotary":
            input(block.attention.q_turned, at + "q_rot")
            input(block.attention.k_turned, at + "k_rot")
        if config.at(layer).query_scale:
            input(block.attention.core, at + "q_scaled")
        input(block.attention.o, at + "concat")
        output(block.attention, at + "attn")
        if config.residual == "sequential":
            after = {"post": block.norm1, "output": block.ffn}.get(order, block.norm2)
            input(after, at + "mid")
        if order != "output" and config.at(layer).input_norm:
            output(block.norm1, at + "norm1")
        if order != "output" and not config.shared_norm:
            output(block.norm2, at + "norm2")
        if order in ("both", "output"):
            output(block.attn_norm, at + "attn_norm")
            output(block.ffn_norm, at + "ffn_norm")
        if config.residual_scale != 1:
            output(block.attn_scale, at + "attn_scaled")
            output(block.ffn_scale, at + "ffn_scaled")
        if order == "post":
            input(block.norm2, at + "sum")
        if isinstance(block.ffn, Experts):
            of_experts(block.ffn, at)
        else:
            feed_forward(block.ffn, at + "ffn")
        output(block.ffn, at + "ffn")
        if order != "post":
            output(block, at + "out")
    if config.final_norm:
        output(model.final_norm, "final.norm")
    if config.head.kind == "mlm":
        output(model.head.dense, "head.dense")
        input(model.head.norm, "head.act")
        output(model.head.norm, "head.norm")
    elif config.d_embed:
        output(model.head.projection, "head.projected")
    if config.logit_cap or config.logit_scale != 1.0:
        output(model.head.decoder, "head.logits")
    output(model.head, "logits")
    logits = model(ids[None])[0]
    for hook in hooks:
        hook.remove()
    model.use_attention("fused")
    model.use_experts("fused")
    return logits, caught


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
    F.cross_entropy(model(torch.tensor([IDS]))[0, list(targets.positions)], ids).backward()
    parameters = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }
    model.zero_grad()
    return steps, parameters
