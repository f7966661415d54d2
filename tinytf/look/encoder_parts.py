"""What the encoder's parts add to a logit of the decoder, through the values of cross-attention.

With its weights and all scales of norms held, cross-attention is linear in the states of the encoder, and these are the
sum of the encoder's embeddings, heads and feed-forwards, through its last norm. Shapes: N parts, S tokens of the source,
C d_model of the decoder, H heads, D their width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.look.stream_parts import (
    Parts,
    add_embeddings,
    attention_or_feed_forward,
    float64,
    parts_read,
    send_through_block,
)
from tinytf.parts.row import Step
from tinytf.trace.record import record
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

OF_SOURCE = ("cross.head_out", "cross.concat", "cross.attn")
"""The steps between the values of cross-attention and the stream, any of which an intervention may replace."""


@dataclass(frozen=True)
class EncoderPart:
    """A part of the encoder, or the biases of the values in a layer of the decoder, and what it adds at each token."""

    name: str
    kind: str
    layer: int | None
    head: int | None
    by_token: tuple[float, ...]


def encoder_parts(trace: Trace, position: int, direction: Tensor, frozen: Trace | None = None) -> list[EncoderPart]:
    """The parts of ``direction`` (C,) times the last hidden state at ``position`` that come from the encoder.

    They add up to what the tokens of the source add. None for a decoder that is given states, or has no source.
    """
    read = trace.source
    if read is None or trace.model.encoder is None:
        return []
    if trace.model.encoder.exchanged:  # which change what the encoder gives
        read = record(trace.model.encoder, read.encoding)
    directions, biases = _directions(trace, position, direction, frozen)  # (S, d_source)
    found: dict[tuple[str, str, int | None, int | None], list[float]] = {}
    count = len(read.tokens)
    for token in range(count):
        parts = parts_read(read, token, _whole_stream(read))
        values = torch.cat(parts.rows) @ directions[token]  # (N, d_source) · (d_source,) -> (N,)
        for name, value in zip(parts.names, values.tolist(), strict=True):  # experts differ from token to token
            found.setdefault(name, [0.0] * count)[token] += value
    own = [
        EncoderPart(f"enc.{name}", kind, layer, head, tuple(values))
        for (name, kind, layer, head), values in found.items()
    ]
    return own + biases


def _whole_stream(trace: Trace) -> Callable[[Parts], None]:
    def build(parts: Parts) -> None:
        add_embeddings(parts)
        for layer in range(trace.config.n_layers):
            send_through_block(parts, layer, attention_or_feed_forward)

    return build


def _directions(
    trace: Trace, position: int, direction: Tensor, frozen: Trace | None
) -> tuple[Tensor, list[EncoderPart]]:
    """What each number of the encoder's states adds, (S, d_source) in float64, and what the biases of values add."""
    states = trace.step("source")
    total, biases = torch.zeros(states.shape, dtype=torch.float64), list[EncoderPart]()
    for layer in range(trace.config.n_layers):
        names = [name for name in OF_SOURCE if trace.steps.has(name, layer)]
        if not names or any(trace.is_exchanged(name, layer) for name in names):
            continue
        added = _added_by_heads(trace, position, layer, direction, frozen)  # (H·D,)
        weights = float64(trace.step("cross.weights", layer)[:, position])  # (H, S)
        site = Site(trace, trace.steps.at("cross.v", layer), layer)
        of_values = torch.einsum("hs,hd->shd", weights, added.view(len(weights), -1))  # (S, H, D)
        groups = site.value.shape[0]
        of_values = of_values.unflatten(1, (groups, -1)).sum(2).flatten(1)  # heads that share values: (S, Hkv·D)
        total += of_values @ float64(site.weight)  # (S, Hkv·D) · (Hkv·D, d_source)
        if (bias := getattr(site.module, "bias", None)) is not None:
            by_token = tuple((of_values @ float64(bias)).tolist())
            biases.append(EncoderPart(f"L{layer}.cross.v bias", "bias of values", layer, None, by_token))
    return total, biases


def _added_by_heads(trace: Trace, position: int, layer: int, direction: Tensor, frozen: Trace | None) -> Tensor:
    """What each number of the heads of cross-attention, side by side, adds by its way to the logits: (H·D,), float64."""

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
