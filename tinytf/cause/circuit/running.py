"""Runs of a circuit: the model on the clean text, with every edge outside the circuit as on the corrupt text.

Each receiver reads the stream of the run so far, less what the senders of its missing edges add now beyond the corrupt
run (resample ablation; Chan et al. 2022), through its own norm and projection. Shapes: R receivers, S senders, P
positions that are told apart (1: none), N pairs, B texts of a batch, T tokens, C d_model, H heads, D head width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.cause.circuit.graph import Adding, Graph, Reading
from tinytf.errors import UsageError
from tinytf.metric import Metric
from tinytf.model.batches import batches, padded
from tinytf.model.transformer import Transformer, evaluating
from tinytf.pairs.pair import EncodedPair
from tinytf.steps.operations import Norm
from tinytf.steps.operations.norm import gain_of, layer_normed, rms_normed
from tinytf.trace.hooks import module_of
from tinytf.trace.record import record_all

_ROOM, _KEPT = 2**30, 2**30
"""Bytes that a batch may take, and that the senders of corrupt runs may take together."""
_COPIES = 6  # tensors of the size of all receivers' inputs that a backward pass holds

Shift = Callable[[Reading], Tensor]
"""What to add to the stream for each receiver of a reading: (R, B, T, C)."""


@dataclass(frozen=True)
class Batch:
    """Pairs of similar lengths, padded on the right: ids (B, T), measured by ``metrics``; ``numbers`` are theirs."""

    numbers: list[int]
    clean: Tensor
    corrupt: Tensor
    metrics: Sequence[Metric]


class Runs:
    """Runs of a model on pairs; ``clean`` and ``corrupt`` are the leads of answer over versus in the plain runs, (N,).

    Leads are differences of two logits at the last token, or another metric of the ``pairs``. With ``by_position`` the
    graph tells the positions of the texts apart; raises UsageError where they have different numbers of tokens.
    """

    def __init__(
        self, model: Transformer, graph: Graph, pairs: Sequence[EncodedPair], *, by_position: bool = False
    ) -> None:
        lengths = {len(pair.clean.ids) for pair in pairs}
        if by_position and len(lengths) > 1:
            raise UsageError(
                f"positions are those of equally long texts, and these have {min(lengths)} to {max(lengths)} tokens",
                "choose pairs of one length with --where, or leave out --level positions",
            )
        self.model = model
        plain = record_all(model, [pair.clean for pair in pairs], layers=())
        metrics = [pair.asked.bind(trace, len(pair.clean.ids) - 1) for pair, trace in zip(pairs, plain, strict=True)]
        if by_position:
            read = {position for metric in metrics for position in metric.positions}
            graph = replace(graph, positions=lengths.pop(), read=tuple(sorted(read)))
        self.graph = graph
        self.batches = list(_batches(model, graph, pairs, metrics))
        self._references: dict[int, Tensor] = {}
        self.n_pairs = len(pairs)
        self.clean = self._each(lambda batch: self.lead(batch, batch.clean))
        self.corrupt = self._each(lambda batch: self.lead(batch, batch.corrupt))

    def leads(self, kept: Tensor) -> Tensor:
        """The leads (N,) of a circuit: the edges ``kept`` (R, S, P) as in the run itself, others as in the corrupt."""
        kept = (kept & self.graph.allowed).to(self.model.embed.tokens.weight.device)

        def of_batch(batch: Batch) -> Tensor:
            added = Added(self.empty(batch), self.reference(batch))

            def shift(reading: Reading) -> Tensor:
                return added.moved(kept[reading.rows, : reading.senders])

            with split(self.model, self.graph, added, shift):
                return self.lead(batch, batch.clean)

        return self._each(of_batch)

    def share(self, leads: Tensor) -> float:
        """Leads (N,) as a share of the effect, a ratio of means: 1 for those of the clean runs, 0 of the corrupt."""
        return float((leads - self.corrupt).sum() / (self.clean - self.corrupt).sum())

    def faithfulness(self, kept: Tensor) -> float:
        """The share of the effect that a circuit keeps: edges (R, S, P)."""
        return self.share(self.leads(kept)) if bool(kept.any()) else 0.0

    def reference(self, batch: Batch) -> Tensor:
        """What every sender adds in the corrupt run: (S, B, T, C)."""
        number = batch.numbers[0]
        if number in self._references:
            return self._references[number]
        values = self.senders(batch, batch.corrupt)
        if values.nbytes * len(self.batches) <= _KEPT:
            self._references[number] = values
        return values

    @torch.no_grad()
    def senders(self, batch: Batch, ids: Tensor) -> Tensor:
        """What every sender adds in the plain run of ``ids``: (S, B, T, C)."""
        added = Added(self.empty(batch))
        with split(self.model, self.graph, added, None):
            self.model.hidden(ids)
        return added.values

    def empty(self, batch: Batch) -> Tensor:
        """Room for what every sender adds: (S, B, T, C)."""
        weight = self.model.embed.tokens.weight
        shape = (self.graph.n_senders, *batch.clean.shape, self.model.config.d_model)
        return torch.zeros(shape, dtype=weight.dtype, device=weight.device)

    def lead(self, batch: Batch, ids: Tensor) -> Tensor:
        """The leads (B,) in a forward pass, in float64."""
        hidden, counts = self.model.hidden(ids), [len(metric.positions) for metric in batch.metrics]
        rows = torch.arange(len(ids), device=ids.device).repeat_interleave(torch.tensor(counts, device=ids.device))
        positions = [position for metric in batch.metrics for position in metric.positions]
        logits = self.model.unembed(hidden[rows, positions]).split(counts)  # (P, V) for each pair
        return torch.cat([metric.of(own[None]) for metric, own in zip(batch.metrics, logits, strict=True)])

    @torch.no_grad()
    def _each(self, of_batch: Callable[[Batch], Tensor]) -> Tensor:
        """A number for each pair, (N,), from a function of a batch."""
        leads = torch.zeros(self.n_pairs, dtype=torch.float64)
        with evaluating(self.model):
            for batch in self.batches:
                leads[batch.numbers] = of_batch(batch).cpu()
        return leads


def _batches(
    model: Transformer, graph: Graph, pairs: Sequence[EncodedPair], metrics: Sequence[Metric]
) -> Iterator[Batch]:
    weight = model.embed.tokens.weight
    of_token = (2 * graph.n_senders + _COPIES * len(graph.receivers)) * model.config.d_model * weight.itemsize
    for numbers in batches([len(pair.clean.ids) for pair in pairs], model, _ROOM // of_token):
        of = [pairs[number] for number in numbers]
        ids = ([pair.clean.ids for pair in of], [pair.corrupt.ids for pair in of])
        clean, corrupt = (padded(texts, model.config, weight.device)[0] for texts in ids)  # a decoder needs no mask
        yield Batch(numbers, clean, corrupt, [metrics[number] for number in numbers])


class Added:
    """What every sender adds in a forward pass, ``values`` (S, B, T, C), less the ``reference`` if there is one.

    ``totals[n]`` is the sum of the first n, for every n at which something reads the stream.
    """

    def __init__(self, values: Tensor, reference: Tensor | None = None) -> None:
        self.values, self.reference = values, reference
        self.totals = {0: torch.zeros_like(values[0])}

    def write(self, first: int, values: Tensor) -> None:
        """Take what senders add, from the ``first`` on: (senders, B, T, C)."""
        end = first + len(values)
        self.values[first:end] = (
            values.detach() if self.reference is None else values.detach() - self.reference[first:end]
        )
        if self.reference is not None:
            self.totals[end] = self.totals[first] + self.values[first:end].sum(dim=0)

    def moved(self, kept: Tensor) -> Tensor:
        """How far the stream of each receiver moves if only ``kept`` edges (R, n, P) are of this run: (R, B, T, C).

        Of the sum over kept edges and that over missing ones, the one with fewer senders is computed.
        """
        present, absent = (edges.any(dim=2).any(dim=0).nonzero()[:, 0] for edges in (kept, ~kept))
        senders, edges = (present, kept) if len(present) < len(absent) else (absent, ~kept)
        used = self.values if len(senders) == len(self.values) else self.values[senders]
        if kept.shape[2] == 1:
            total = torch.tensordot(edges[:, senders, 0].to(used), used, dims=1)
        else:
            total = torch.einsum("rst,sbtc->rbtc", edges[:, senders].to(used), used)
        return -total if edges is not kept else total - self.totals[kept.shape[1]]


@contextmanager
def split(model: Transformer, graph: Graph, added: Added, shift: Shift | None) -> Iterator[None]:
    """Write what every sender adds into ``added``.

    With ``shift``, every receiver reads a stream of its own: the one of the run, with what ``shift`` adds.
    """
    with ExitStack() as stack:
        first_block = model.blocks[0]
        stack.callback(first_block.register_forward_pre_hook(lambda _, args: added.write(0, args[0][None])).remove)
        first = 1
        for adding in graph.addings:
            module, hook = _sending(model, adding, first, added)
            stack.callback(module.register_forward_hook(hook).remove)
            first += adding.heads or 1
        if shift is not None:
            for handle in (handle for reading in graph.readings for handle in _hook_reading(model, reading, shift)):
                stack.callback(handle.remove)
        yield


def _sending(model: Transformer, adding: Adding, first: int, added: Added) -> Any:
    """The module that computes what senders add, and the hook that writes it."""
    if not adding.heads:
        step = (adding.step, *adding.path)[-1]
        return module_of(model, step, adding.layer), lambda _, args, result: added.write(first, result[None])

    def of_heads(module: nn.Module, args: Any, result: Tensor) -> None:
        heads = args[0].unflatten(-1, (adding.heads, -1))  # (B, T, H·D) -> (B, T, H, D)
        weight = module.get_parameter("weight").unflatten(1, heads.shape[-2:])  # (C, H, D)
        parts, total = torch.einsum("bthd,chd->hbtc", heads, weight), result
        bias = getattr(module, "bias", None)
        if bias is not None:  # a norm of the sum makes something else of it in every run, so the heads share it
            parts = parts + bias / adding.heads
        for step in adding.path:
            beyond = module_of(model, step, adding.layer)
            parts, total = _share(step.operation, beyond, total, parts), beyond.forward(total)
        added.write(first, parts)

    return module_of(model, adding.step, adding.layer), of_heads


def _share(operation: Any, module: nn.Module, total: Tensor, parts: Tensor) -> Tensor:
    """The share of each part (H, B, T, C) of ``total`` in what a step makes of it; a norm keeps its scale of the total.

    The shares, and a bias, sum to the step's output.
    """
    if not isinstance(operation, Norm):
        return operation.forward(parts)
    _, sigma = (layer_normed if operation.centred else rms_normed)(total, operation.eps)
    centred = parts - parts.mean(dim=-1, keepdim=True) if operation.centred else parts
    return (centred / sigma * gain_of(module)).to(parts.dtype)


def _hook_reading(model: Transformer, reading: Reading, shift: Shift) -> Iterator[Any]:
    """Hook the readers of a reading, so that each receiver reads a stream of its own."""
    norm = None if reading.norm is None else module_of(model, reading.norm, reading.layer)
    read: list[Tensor] = []

    def inputs(x: Tensor) -> Tensor:
        """What each receiver reads, from the stream (B, T, C): (B, R, T, C)."""
        shifted = x[:, None] + shift(reading).transpose(0, 1)
        return shifted if norm is None else norm.forward(shifted)

    def project(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        own = inputs(read.pop() if norm is not None else args[0])  # (B, H, T, C)
        weight = module.get_parameter("weight").unflatten(0, (len(reading.receivers), -1))  # (H·D, C) -> (H, D, C)
        heads = own @ weight.transpose(-1, -2)  # (B, H, T, D)
        bias = getattr(module, "bias", None)
        return heads.transpose(1, 2).flatten(2) + (0.0 if bias is None else bias)  # (B, T, H·D)

    def replace(number: int) -> Callable[[nn.Module, Any], Any]:
        def pre_hook(module: nn.Module, args: Any) -> Any:
            if norm is not None:
                if len(read) == 1:
                    read.append(inputs(read[0])[:, 0])
                own = read[1]
            else:
                own = inputs(args[number])[:, 0]
            return (*args[:number], own, *args[number + 1 :])

        return pre_hook

    if norm is not None:

        def keep(module: nn.Module, args: Any, result: Tensor) -> None:
            read[:] = [args[0]]

        yield norm.register_forward_hook(keep)
    for step, number in reading.readers:
        module = module_of(model, step, reading.layer)
        yield (
            module.register_forward_hook(project)
            if reading.split
            else module.register_forward_pre_hook(replace(number))
        )
