"""The estimated effect of every site of a sweep on the metric, from the gradients of a few runs.

An estimate is a change of a step · the metric's gradient there. The step is the site itself, or with the QK correction
of AtP* (Kramár et al. 2024, arXiv:2403.00745) the attention weights that follow from a patched query or key; GradDrop
(there too) takes the gradients without what one layer adds to the stream, each layer in turn. Shapes: P points on a
line, B of them in a batch, D gradients without a layer, T tokens, H heads, K keys, R rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from tinytf.cause.interventions.grid import Grid
from tinytf.cause.interventions.hooks import Change, HookPoint, changed
from tinytf.cause.interventions.patch import Runs
from tinytf.cause.interventions.sweep import Interventions, written
from tinytf.errors import UsageError
from tinytf.model.batches import typed
from tinytf.model.transformer import Transformer, evaluating
from tinytf.model.turn import using
from tinytf.nearest import did_you_mean
from tinytf.steps.table import StepTable, table_of
from tinytf.text_model import TextModel

GRAD_DROP = "grad-drop"
ESTIMATES = ("gradient", "integrated", GRAD_DROP)
STEPS = 10
"""The points of an integrated gradient, by default."""
TOKENS = 1024
"""Tokens in a batch; the activations of all of them are kept for the backward pass."""
Gradients = dict[HookPoint | None, Tensor]
"""The gradients of sites, (B, …); that of the embeddings goes by None."""
Maps = Mapping[int, tuple[HookPoint, ...]]
"""For each layer whose queries or keys act through attention weights alone: these weights."""


class Estimating(NamedTuple):
    """How effects are estimated: ``how`` is one of ESTIMATES, ``steps`` are the points of an integrated gradient."""

    how: str = "gradient"
    steps: int = STEPS
    qk_correction: bool = False

    @property
    def gives_sizes(self) -> bool:
        """Whether its estimates are sizes, without a sign."""
        return self.how == GRAD_DROP

    @property
    def points(self) -> list[float]:
        """Where the gradients are taken, on the line from the corrupt to the clean embeddings."""
        return [(k + 0.5) / self.steps for k in range(self.steps)] if self.how == "integrated" else [0.0]

    @property
    def words(self) -> str:
        """What an estimate is, as a product."""
        at = {
            "gradient": "at the corrupt run",
            "integrated": f"averaged over {self.steps} points between the texts",
            GRAD_DROP: "at the corrupt run, without each other layer in turn: the mean size",
        }[self.how]
        change = "change of the attention weights" if self.qk_correction else "(clean − corrupt)"
        return f"{change} · gradient {at}"

    def require(self, model: TextModel, over: str) -> None:
        """Raise UsageError for another estimate, too few steps, a correction of no query or key, or of a line, and a
        line between two texts where it has no meaning.
        """
        if self.how not in ESTIMATES:
            raise UsageError(f"there is no estimate {self.how!r}", did_you_mean(self.how, ESTIMATES))
        if self.steps < 1:
            raise UsageError(f"an integral takes at least one point, and not {self.steps}", f"such as {STEPS}")
        if self.qk_correction and over not in ("queries", "keys"):
            raise UsageError(
                f"the QK correction is of queries and keys, and this sweep is over {over}", "sweep queries, or keys"
            )
        if self.qk_correction and self.how == "integrated":
            raise UsageError(
                "the QK correction takes the gradient at the corrupt run, and not one integrated between the texts",
                "--estimate gradient, or grad-drop",
            )
        if self.how == "integrated" and table_of(model.config).reads_text:
            raise UsageError(
                "layers of this model take embeddings beside the stream, so there is no line between two texts",
                "estimate by the gradient",
            )


class SiteEffects(NamedTuple):
    """Estimated effects on the metric of ``sites`` (layers, columns), float64; NaN for absent ones.

    ``embeddings`` is that of all embeddings together, with every layer; ``logits`` (P, V) are those of the line's first
    point. ``uncorrected`` are the layers whose queries or keys act beside the attention weights too, or have none.
    """

    sites: Tensor
    embeddings: float
    logits: Tensor
    uncorrected: tuple[int, ...]


def site_effects(runs: Runs, grid: Grid, estimating: Estimating) -> SiteEffects:
    """The estimated effects in a pair of texts; the points of its line run in batches."""
    model, points = runs.corrupt.model, estimating.points
    embedded = model.embed.rows[-1].name
    corrupt, clean = (trace.step(embedded) for trace in (runs.corrupt, runs.clean))
    sites = {layer: HookPoint(step, layer) for layer, step in enumerate(grid.steps) if step}
    maps = _maps(grid, runs.corrupt.steps) if estimating.qk_correction else {}
    moved_maps = _moved_maps(runs, grid, maps) if maps else {}
    followed = [*(site for layer, site in sites.items() if layer not in maps), *moved_maps]
    # every layer, then without each in turn
    drops: list[int | None] = [None, *(range(len(grid.steps)) if estimating.how == GRAD_DROP else ())]
    sums: list[dict[HookPoint | None, Tensor]] = [{} for _ in drops]
    first_logits: Tensor | None = None
    at_once = max(1, TOKENS // len(corrupt))
    for batch in (points[first : first + at_once] for first in range(0, len(points), at_once)):
        inputs = torch.stack([corrupt + point * (clean - corrupt) for point in batch])
        logits, of_drops = _gradients(runs, inputs, followed, drops)
        first_logits = logits[0] if first_logits is None else first_logits
        for total, gradients in zip(sums, of_drops, strict=True):
            for site, gradient in gradients.items():
                total[site] = total.get(site, 0.0) + gradient.double().sum(0) / len(points)
    assert first_logits is not None

    def effects_of(gradients: Mapping[HookPoint | None, Tensor]) -> Tensor:
        effects = grid.filled(0.0)
        for layer, site in sites.items():
            if layer in maps:
                summed = sum(_of_heads(moved_maps[point] * gradients[point], grid, layer) for point in maps[layer])
            else:
                summed = grid.summed((site.value(runs.clean).double() - site.value(runs.corrupt)) * gradients[site])
            effects[layer, list(grid.columns(layer))] = summed
        return effects

    every, *without = map(effects_of, sums)
    of_embeddings = float(((clean.double() - corrupt) * sums[0][None]).sum())
    effects = _mean_size(torch.stack(without), grid) if len(without) > 1 else every.abs() if without else every
    uncorrected = tuple(layer for layer in sites if layer not in maps) if estimating.qk_correction else ()
    return SiteEffects(effects, of_embeddings, first_logits, uncorrected)


def _mean_size(without: Tensor, grid: Grid) -> Tensor:
    """The mean size of estimates (D, layers, columns) over the layers that were left out, but a site's own."""
    sizes = without.abs()
    if grid.over != "residual":  # without its layer, a site would have no effect
        sizes.diagonal().zero_()
        return sizes.sum(0) / (len(sizes) - 1)
    return sizes.mean(0)


def _maps(grid: Grid, table: StepTable) -> Maps:
    """The attention weights that queries or keys act through, in the layers where they act through nothing else."""

    def reached(name: str, layer: int | None) -> Iterator[HookPoint]:
        for step, at, _ in table.consumers((name, layer)):
            if step.is_map and step.holds_shares:
                assert at is not None
                yield HookPoint(step.name, at)
            else:
                yield from reached(step.name, at)

    own = {layer: table.at(step, layer) for layer, step in enumerate(grid.steps) if step}
    return {
        layer: tuple(dict.fromkeys(reached(step.name, layer)))
        for layer, step in own.items()
        if table.only_through_maps(step, layer)
    }


@torch.no_grad()
def _moved_maps(runs: Runs, grid: Grid, maps: Maps) -> dict[HookPoint, Tensor]:
    """How far each map moves if queries or keys are patched, and nothing else: (R, H, T, K), float64.

    One row patches every head, where no step mixes heads; otherwise a row patches a column of the grid. Each layer
    reads the corrupt stream, so that no patch is seen above.
    """
    corrupt, table, model = runs.corrupt, runs.corrupt.steps, runs.corrupt.model
    every = [[(layer, column) for layer in maps for column in grid.columns(layer)]]
    if any(map(table.mixes_heads, maps)):
        every = [[place for place in every[0] if place[1] == column] for column in range(grid.width)]
    rows: list[Interventions] = [tuple(grid.intervention(runs.clean, *place) for place in places) for places in every]
    points = list(dict.fromkeys(point for of_layer in maps.values() for point in of_layer))
    moved: dict[HookPoint, list[Tensor]] = {point: [] for point in points}

    def hold(layer: int) -> tuple[HookPoint, Change]:
        value = corrupt.step(table.input, layer)
        return HookPoint(table.input, layer), lambda stream: value.to(stream).expand_as(stream)

    def keep(point: HookPoint) -> tuple[HookPoint, Change]:
        def kept(weights: Tensor) -> Tensor:
            moved[point].append(weights.double() - point.value(corrupt).double())
            return weights

        return point, kept

    text, held = corrupt.encoding, [hold(layer) for layer in range(model.config.n_layers)]
    at_once = max(1, TOKENS // len(text.ids))
    for some in (rows[first : first + at_once] for first in range(0, len(rows), at_once)):
        ids = torch.tensor([text.ids] * len(some), device=corrupt.last_hidden.device)
        with evaluating(model), changed(model, [*held, *written(some), *map(keep, points)]):
            model.hidden(ids, token_types=typed([text.types] * len(some), ids.device))
    return {point: torch.cat(tensors) for point, tensors in moved.items()}


def _of_heads(effects: Tensor, grid: Grid, layer: int) -> Tensor:
    """The effect of each site of a layer, from those of single weights (R, H, T, K), as ``_moved_maps`` orders them."""
    columns = grid.columns(layer)
    if len(effects) > 1:
        return effects.sum((1, 2, 3))[list(columns)]
    return effects[0].sum((1, 2)).unflatten(0, (len(columns), -1)).sum(1)


def _gradients(
    runs: Runs, inputs: Tensor, sites: Sequence[HookPoint], drops: Sequence[int | None]
) -> tuple[Tensor, list[Gradients]]:
    """Logits (B, P, V) at the positions read, and for each of ``drops`` the gradients of each row's metric at sites.

    ``inputs`` (B, T, C) stand for the embeddings. A gradient drops a layer where it does not pass through what that
    layer adds to the stream; None drops none.
    """
    values: dict[HookPoint | None, Tensor] = {}
    dropped: int | None = None

    def keep(site: HookPoint) -> Change:
        def kept(tensor: Tensor) -> Tensor:
            values[site] = tensor
            return tensor

        return kept

    def droppable(layer: int) -> Change:
        def hook(tensor: Tensor) -> Tensor:
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: torch.zeros_like(gradient) if dropped == layer else None)
            return tensor

        return hook

    model, text, followed = runs.corrupt.model, runs.corrupt.encoding, runs.contrast
    table = runs.corrupt.steps
    added = [
        (HookPoint(table.summand(step, layer).name, layer), droppable(layer))
        for layer in drops
        if layer is not None
        for step in table.added_in(layer)
    ]
    ids = torch.tensor([text.ids], device=inputs.device).expand(len(inputs), -1)
    types = typed([text.types] * len(inputs), inputs.device)
    gradients: list[Gradients] = []
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model), _constant_weights(model):
        values[None] = inputs.clone().requires_grad_()
        embedding = model.embed.register_forward_hook(lambda module, args, result: values[None])
        try:
            with changed(model, [*((site, keep(site)) for site in sites), *added]):
                hidden = model.hidden(ids, token_types=types)  # (B, T, C)
        finally:
            embedding.remove()
        logits = model.unembed(hidden[:, list(followed.read)])  # (B, P, V)
        value = followed.metric.of(logits).sum()
        for layer in drops:
            dropped = layer
            tensors = torch.autograd.grad(
                value, list(values.values()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            gradients.append(dict(zip(values, tensors, strict=True)))
    return logits.detach(), gradients


@contextmanager
def _constant_weights(model: Transformer) -> Iterator[None]:
    """Take no gradients of parameters inside the ``with`` block: they would take a third of the time."""
    with using(model):
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        try:
            for parameter in learned:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in learned:
                parameter.requires_grad_(True)
