"""What the encoder's parts add to a logit of the decoder, through the values of cross-attention.

With its weights and all scales of norms held, cross-attention is linear in the states of the encoder, and these are the
sum of the encoder's embeddings, heads and feed-forwards, through its norms. Shapes: N parts, S tokens of the source, C
d_model of the decoder, H heads, D their width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tinytf.look.stream_parts import (
    AFTER_VALUES,
    Parts,
    add_embeddings,
    attention_or_feed_forward,
    float64,
    parts_read,
    send_through_block,
)
from tinytf.parts.row import Step
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

Named = tuple[str, str, int | None, int | None]
"""The name, kind, layer and head of a part."""


def encoder_parts(
    trace: Trace, position: int, direction: Tensor, frozen: Trace | None = None
) -> dict[Named, tuple[float, ...]]:
    """What each part of the encoder adds at each token of the source (S,) to ``direction`` (C,) times what is
    unembedded at ``position``; and the biases of the values in each layer of the decoder.

    They add up to what the tokens of the source add. Empty for a decoder that is given states or reads no source, and
    where an intervention replaced what lies between.
    """
    read = trace.source
    if read is None or trace.model.encoder is None or trace.is_exchanged("source", None):
        return {}
    directions, biases = _directions(trace, position, direction, frozen)  # (S, d_source)
    found: dict[Named, list[float]] = {}
    count = len(read.tokens)
    for token in range(count):
        parts = parts_read(read, token, _whole_stream(read))
        values = torch.cat(parts.rows) @ directions[token]  # (N, d_source) · (d_source,) -> (N,)
        for name, value in zip(parts.names, values.tolist(), strict=True):  # experts differ from token to token
            found.setdefault(name, [0.0] * count)[token] += value
    own = {(f"enc.{name}", kind, layer, head): tuple(by) for (name, kind, layer, head), by in found.items()}
    return {**own, **biases}


def _whole_stream(trace: Trace) -> Callable[[Parts], None]:
    def build(parts: Parts) -> None:
        add_embeddings(parts)
        for layer in range(trace.config.n_layers):
            send_through_block(parts, layer, attention_or_feed_forward)

    return build


def _directions(
    trace: Trace, position: int, direction: Tensor, frozen: Trace | None
) -> tuple[Tensor, dict[Named, tuple[float, ...]]]:
    """What each number of the encoder's states adds, (S, d_source) in float64, and what the biases of values add."""
    total, biases = torch.zeros(1, dtype=torch.float64), dict[Named, tuple[float, ...]]()
    read = "source"
    for layer in range(trace.config.n_layers):
        if not trace.steps.has("cross.v", layer) or any(trace.is_exchanged(name, layer) for name in AFTER_VALUES):
            continue
        added = _added_by_heads(trace, position, layer, direction, frozen)  # (H·D,)
        weights = float64(trace.step("cross.weights", layer)[:, position])  # (H, S)
        site = Site(trace, trace.steps.at("cross.v", layer), layer)
        of_values = torch.einsum("hs,hd->shd", weights, added.view(len(weights), -1))  # (S, H, D)
        groups = site.value.shape[0]
        of_values = of_values.unflatten(1, (groups, -1)).sum(2).flatten(1)  # heads that share values: (S, Hkv·D)
        total = total + of_values @ float64(site.weight)  # (S, Hkv·D) · (Hkv·D, width)
        (read,) = site.step.inputs
        if (bias := getattr(site.module, "bias", None)) is not None:
            name = f"L{layer}.cross.v bias", "bias of values", layer, None
            biases[name] = tuple((of_values @ float64(bias)).tolist())
    if read == "source":
        return total.expand(trace.step(read).shape), biases
    projection = Site(trace, trace.steps.by_name[read], None)  # of the states, before all layers
    biases[f"{read} bias", "bias of values", None, None] = tuple((total @ float64(projection.module.bias)).tolist())
    return total @ float64(projection.weight), biases


def _added_by_heads(trace: Trace, position: int, layer: int, direction: Tensor, frozen: Trace | None) -> Tensor:
    """What each number of the heads of cross-attention, side by side, adds on its way to the logits: (H·D,)."""

    def units(stream: Parts, step: Step, at: int) -> Parts:
        added = Parts(trace, position, stream.frozen)
        if step.role == "cross" and at == layer:
            rows = float64(Site(trace, trace.steps.at(step.name, at), at).weight).T  # (H·D, C)
            added.names += [("unit", "unit", at, number) for number in range(len(rows))]
            added.rows.append(rows)
        return added

    def build(parts: Parts) -> None:
        for at in range(layer, trace.config.n_layers):
            send_through_block(parts, at, units)

    parts = parts_read(trace, position, build, frozen)
    is_unit = torch.tensor([kind == "unit" for _, kind, _, _ in parts.names])
    return torch.cat(parts.rows)[is_unit] @ direction
