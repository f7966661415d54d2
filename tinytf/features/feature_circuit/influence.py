"""What of a feature circuit matters: the nodes and edges that carry most influence, scores, and the strongest paths.

Influence and both scores are those of circuit-tracer (github.com/decoderesearch/circuit-tracer, graph.py), after
Ameisen et al. 2025. Shapes: S sources, R targets.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.features.feature_circuit.edges import Edges, normalised


@dataclass(frozen=True)
class Pruned:
    """The sources (S,), targets (R,) and edges (R, S) that are kept.

    ``cumulative`` (S,) is the share of all influence that a source and all those with more have.
    """

    sources: Tensor
    targets: Tensor
    edges: Tensor
    cumulative: Tensor


def _least(values: Tensor, share: float) -> Tensor:
    """The least value of the largest that together make a share of the sum."""
    ordered = values.flatten().sort(descending=True).values
    ordered = ordered[ordered > 0]
    number = int(torch.searchsorted(ordered.cumsum(0) / ordered.sum(), share))
    return ordered[min(number, len(ordered) - 1)]


def on_targets(edges: Edges, influence: Tensor) -> Tensor:
    """The influence of each target (R,) from that of sources (S,): a logit's is its probability."""
    return torch.where(edges.own < 0, 0.0, influence[edges.own]).index_copy(
        0, torch.arange(len(edges.targets)), edges.probabilities
    )


def prune(edges: Edges, node_share: float, edge_share: float) -> Pruned:
    """Keep the nodes that have a share of the influence, then the edges among them; all tokens and logits are kept.

    A feature without an edge to it or from it is dropped, and so is an error without an edge from it.
    """
    sources, weights = edges.sources, edges.weights.double()
    influence = edges.reaching(normalised(weights), edges.probabilities)
    kept = influence >= _least(influence, node_share)
    kept[sources.tokens] = True
    of_features = edges.own >= 0
    targets = ~of_features | kept[edges.own]
    among = normalised(weights * targets[:, None] * kept)
    scores = among * on_targets(edges, edges.reaching(among, edges.probabilities))[:, None]
    kept_edges = scores >= _least(scores, edge_share)
    has_row = torch.zeros_like(kept)
    while True:
        before = kept.clone()
        has_row[:] = False
        has_row[edges.own[of_features & kept_edges.any(1)]] = True
        has_row[sources.n_features :] = True  # errors and tokens need none
        kept &= kept_edges.any(0) & has_row
        kept[sources.tokens] = True
        targets = ~of_features | kept[edges.own]
        kept_edges &= targets[:, None] & kept
        if torch.equal(before, kept):
            break
    order = influence.argsort(descending=True)
    cumulative = torch.zeros_like(influence)
    cumulative[order] = influence[order].cumsum(0) / influence.sum()
    return Pruned(kept, targets, kept_edges, cumulative)


def scores(edges: Edges) -> tuple[float, float]:
    """The replacement score: of the influence that ends in tokens and errors, the share of tokens. And completeness:
    the mean share of what is added to a node that is no error's, each node with its influence.
    """
    sources, shares = edges.sources, normalised(edges.weights.double())
    influence = edges.reaching(shares, edges.probabilities)
    tokens, errors = (float(influence[part].sum()) for part in (sources.tokens, sources.errors))
    of_errors = shares[:, sources.errors].sum(1) @ on_targets(edges, influence)
    everything = influence.sum() + edges.probabilities.sum()
    return tokens / (tokens + errors), float(1 - of_errors / everything)


def strongest_paths(edges: Edges, pruned: Pruned, count: int) -> list[tuple[float, tuple[int, ...]]]:
    """The paths from tokens and errors to the first logit that carry most, each with how much of the logit it makes.

    A path is the numbers of its sources, from its start. A feature hands on what an edge adds to it as a share of its
    activation. Only kept edges count.
    """
    sources = edges.sources
    best: dict[int, list[tuple[float, tuple[int, ...]]]] = {-1: [(1.0, ())]}
    for row, own in enumerate(edges.own.tolist()):
        if own < 0 and row:
            continue
        for value, path in best.get(own, []):
            share = value if own < 0 else value / float(edges.values[row])
            for source in pruned.edges[row].nonzero().flatten().tolist():
                paths = best.setdefault(source, [])
                paths.append((share * float(edges.weights[row, source]), (source, *path)))
                paths.sort(key=lambda entry: -abs(entry[0]))
                del paths[count:]
    ends = [entry for source, paths in best.items() if source >= sources.n_features for entry in paths]
    return sorted(ends, key=lambda entry: -abs(entry[0]))[:count]
