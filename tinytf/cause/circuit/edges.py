"""Scores of all edges: how much of the lead is lost if the edge carries the corrupt run's value instead of its own.

Attribution patching estimates them all from a few gradients: (what the sender adds in the clean run − in the corrupt
run) · the gradient at the receiver's input (Syed et al. 2023), averaged over inputs on the way from the corrupt to the
clean embeddings (Hanna et al. 2024). Measuring each takes a run an edge. Shapes: R receivers, S senders, P positions
that are told apart (1: none), B texts, T tokens, C d_model.
"""

import torch
from torch import Tensor

from tinytf.cause.circuit.graph import Reading
from tinytf.cause.circuit.running import Added, Batch, Runs, split
from tinytf.model.transformer import evaluating
from tinytf.report import Progress
from tinytf.steps.operations.operation import wide

METHODS = ("gradient", "integrated", "exact")
STEPS = 5
"""The default number of inputs that integrated gradients average over."""


def edge_scores(runs: Runs, method: str, steps: int, on_progress: Progress) -> Tensor:
    """The score of every edge, the mean over the pairs: (R, S, P), float64; 0 where there is no edge.

    ``gradient`` takes the gradient of the clean run alone, ``integrated`` averages over ``steps`` inputs.
    """
    if method != "exact":
        return _attributed(runs, steps if method == "integrated" else 1, on_progress)
    scores = torch.zeros(runs.graph.allowed.shape, dtype=torch.float64)
    places = runs.graph.allowed.nonzero().tolist()
    for done, place in enumerate(places, 1):
        scores[tuple(place)] = _lost(runs, *place)
        on_progress(done, len(places))
    return scores


def node_scores(runs: Runs, on_progress: Progress) -> Tensor:
    """The score of every sender (S, 1), with all of its edges replaced together."""
    scores = torch.zeros(runs.graph.n_senders, 1, dtype=torch.float64)
    for node in range(len(scores)):
        scores[node] = _lost(runs, slice(None), node)
        on_progress(node + 1, len(scores))
    return scores


def _lost(runs: Runs, row: int | slice, column: int, position: int | slice = slice(None)) -> float:
    """The mean lead that is lost without one edge, or without all edges of one sender."""
    kept = runs.graph.allowed.clone()
    kept[row, column, position] = False
    return float((runs.clean - runs.leads(kept)).mean())


def _attributed(runs: Runs, steps: int, on_progress: Progress) -> Tensor:
    """Scores by ``steps`` gradients; with one, that of the clean run."""
    scores = torch.zeros(runs.graph.allowed.shape, dtype=torch.float64)
    total = steps * len(runs.batches)
    with evaluating(runs.model):
        for done, batch in enumerate(runs.batches):
            corrupt = runs.reference(batch)
            moved = runs.senders(batch, batch.clean) - corrupt  # (S, B, T, C)
            columns = wide(_by_position(moved, runs.graph.positions)).mT  # (P, ·, S)
            for step in range(1, steps + 1):
                start = corrupt[0] + moved[0] * (step / steps)
                for reading, gradient in _gradients(runs, batch, start).items():
                    rows = wide(_by_position(gradient, runs.graph.positions))  # (P, rows, ·)
                    products = rows @ columns[..., : reading.senders]
                    scores[reading.rows, : reading.senders] += products.movedim(0, -1).double().cpu()
                on_progress(done * steps + step, total)
    return scores / (steps * runs.n_pairs)


def _by_position(x: Tensor, positions: int) -> Tensor:
    """(N, B, T, C) -> (T, N, B·C), or (1, N, B·T·C) where positions are not told apart."""
    return x.flatten(1)[None] if positions == 1 else x.movedim(2, 0).flatten(2)


def _gradients(runs: Runs, batch: Batch, start: Tensor) -> dict[Reading, Tensor]:
    """The gradients of the leads at every receiver's input, (R, B, T, C), in the run that starts from ``start``."""
    inputs: dict[Reading, Tensor] = {}

    def shift(reading: Reading) -> Tensor:
        if reading not in inputs:  # a receiver may read by several steps, as a gated feed-forward without a norm does
            inputs[reading] = start.new_zeros((len(reading.receivers), *start.shape)).requires_grad_()
        return inputs[reading]

    hook = runs.model.blocks[0].register_forward_pre_hook(lambda _, args: (start, *args[1:]))
    try:
        with torch.enable_grad(), split(runs.model, runs.graph, Added(runs.empty(batch)), shift):
            lead = runs.lead(batch, batch.clean).sum()
        return dict(zip(inputs, torch.autograd.grad(lead, list(inputs.values())), strict=True))
    finally:
        hook.remove()
