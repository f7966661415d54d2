"""Scores of edges are TransformerLens' gradients at the inputs of norms, times what the senders add there."""

import warnings
from typing import Any

import pytest
import torch
from architectures import asked
from peer_models import peers
from torch import Tensor

from tinytf.cause.circuit import graph_of
from tinytf.cause.circuit.edges import edge_scores
from tinytf.cause.circuit.running import Runs
from tinytf.pairs.pair import PairSet
from tinytf.report import ignore_progress

CLEAN, CORRUPT, ANSWER, VERSUS = (3, 14, 15, 9, 2, 6, 5), (3, 14, 15, 4, 2, 6, 5), 7, 11


def of_senders(cache: dict[str, Tensor], layers: int, heads: int, weights: Any) -> dict[str, Tensor]:
    """What every node adds, (T, C), from their activations."""
    added = {"embed": cache["blocks.0.hook_resid_pre"][0]}
    for layer in range(layers):
        z = cache[f"blocks.{layer}.attn.hook_z"][0]  # (T, H, D)
        z = z if z.dim() == 3 else z.unflatten(-1, (heads, -1))
        matrix = weights(layer).unflatten(1, z.shape[1:])  # (C, H, D)
        added |= {f"L{layer}H{head}": z[:, head] @ matrix[:, head].T for head in range(heads)}
        added[f"L{layer}.ffn"] = cache[f"blocks.{layer}.hook_mlp_out"][0]
    return added


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_scores_into_heads_feed_forwards_and_logits_are_those_of_its_gradients(family: str) -> None:
    both = peers(family)
    model, theirs = asked(both.ours), both.theirs
    rows = [{"clean": " ".join(map(str, CLEAN)), "corrupt": " ".join(map(str, CORRUPT)), "answer": f"#{ANSWER}",
             "versus": f"#{VERSUS}"}]  # fmt: skip
    graph = graph_of(both.ours)
    runs = Runs(both.ours, graph, PairSet.of(rows).encoded(model))
    scores = edge_scores(runs, "gradient", 1, ignore_progress)
    layers, heads = both.ours.config.n_layers, both.ours.config.n_heads
    caches = []
    for ids in (CLEAN, CORRUPT):
        with torch.no_grad():
            caches.append(dict(theirs.run_with_cache(torch.tensor([ids]))[1].items()))
    clean, corrupt = (
        of_senders(cache, layers, heads, lambda layer: both.ours.blocks[layer].attention.o.weight.detach())
        for cache in caches
    )
    inputs = {"ln_final.hook_in": ["logits"]}
    for layer in range(layers):
        of_layer = [name for name in graph.receivers if name.startswith(f"L{layer}H")]
        inputs |= {f"blocks.{layer}.ln1.hook_in": of_layer, f"blocks.{layer}.ln2.hook_in": [f"L{layer}.ffn"]}
    for hook_name, receivers in inputs.items():
        gradient = branch_gradient(theirs, hook_name)
        rows_of = [graph.receivers.index(name) for name in receivers]
        for column, name in enumerate(graph.nodes[:-1]):
            if graph.allowed[rows_of[0], column]:
                expected = float(((clean[name] - corrupt[name]) * gradient).sum())
                found = float(scores[rows_of, column].sum())
                assert found == pytest.approx(expected, abs=1e-5), f"{name} to {hook_name}"


def branch_gradient(theirs: Any, name: str) -> Tensor:
    """The gradient (T, C) of the lead at the input of a norm, through this norm alone."""
    read: list[Tensor] = []

    def keep(tensor: Tensor, hook: Any) -> Tensor:
        read.append(tensor.detach().requires_grad_())
        return read[-1]

    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        logits = theirs.run_with_hooks(torch.tensor([CLEAN]), fwd_hooks=[(name, keep)])
        (logits[0, -1, ANSWER] - logits[0, -1, VERSUS]).backward()
    (tensor,) = read
    assert tensor.grad is not None
    return tensor.grad[0]
