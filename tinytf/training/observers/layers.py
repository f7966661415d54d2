"""What happens in the layers of any model of torch as it trains, by hooks on its modules at some steps.

Shapes: B batch, H heads, T tokens, Q and K where query and key differ, F units.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tinytf.look.heads.measures import entropy_share, previous
from tinytf.training.film.frames import dead_share
from tinytf.training.film.probe import HeadScores
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics
from tinytf.training.tuning.health import Health, StepHealth, layers_of

_SUM = 0.05
"""How far the mean sum of the weights of a query may be from 1."""


class Layers(Observer):
    """Adds to every ``every``-th line: norms of gradients and updates by layer, RMS, dead units, entropy of attention.

    Hooks are there only during the passes of such a step. ``rms`` is of the first tensor that a layer returns. Units
    are the input of the matrix of a layer that reads most numbers and gives fewer, as the last of a feed-forward does;
    they are dead as in a film, over all tokens of a pass. Attention is any tensor (B, H, Q, K) between the modules of a
    layer whose rows sum to 1, dropout aside; fused kernels have none.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.handles: list[RemovableHandle] = []
        self.health: StepHealth | None = None

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        self._prepare(loop.progress.step + 1)

    def gradients(self, line: Metrics) -> None:
        if self.handles and math.isfinite(line.grad_norm):
            self.health = StepHealth(self.loop.model, self.loop.group)

    def step(self, line: Metrics) -> None:
        if self.health is not None:
            line.updates = self.health.by_matrix() or None
            line.health = self._with_activations(self.health.after())
            line.heads = self._scores()
            self.health = None
        self.end()
        self._prepare(line.step + 1)

    def end(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _prepare(self, step: int) -> None:
        """Hook the layers if the next step is measured."""
        if step % self.every:
            return
        layers = list(layers_of(self.loop.model))
        self.rms: list[float] = [math.nan] * len(layers)
        self.units: list[tuple[int, float]] = [(0, math.nan)] * len(layers)
        self.maps: list[Tensor | None] = [None] * len(layers)
        for number, layer in enumerate(layers):
            for module in layer.modules():
                hook = self._see_layer if module is layer else self._see_module
                self.handles.append(module.register_forward_hook(partial(hook, number)))

    @torch.no_grad()
    def _see_layer(self, number: int, _: nn.Module, inputs: Any, output: Any) -> None:
        if (stream := next(tensors_in(output), None)) is not None:
            self.rms[number] = float(stream.float().square().mean().sqrt())

    @torch.no_grad()
    def _see_module(self, number: int, module: nn.Module, inputs: Any, output: Any) -> None:
        before, after = next(tensors_in(inputs), None), next(tensors_in(output), None)
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2 and before is not None and after is not None:
            width = before.shape[-1]
            if width > max(after.shape[-1], self.units[number][0]):
                self.units[number] = width, float(dead_share(before.float().flatten(0, -2)))
        for tensor in (*tensors_in(inputs), *tensors_in(output)):
            if tensor.dim() == 4 and self.maps[number] is None and _holds_shares(tensor):
                visible = (tensor > 0).flatten(0, 1).any(0).sum(-1)  # (Q,)
                weights = tensor.float() / tensor.float().sum(-1, keepdim=True).clamp(min=1e-9)
                scores = [entropy_share(weights, visible), previous(weights)]
                self.maps[number] = torch.stack(scores).mean(dim=1)  # (2, H)

    def _with_activations(self, health: Health) -> Health:
        dead = [share for _, share in self.units]
        measured = {"rms": torch.tensor(self.rms), "dead": torch.tensor(dead)}
        return health.with_activations({name: t for name, t in measured.items() if not bool(t.isnan().any())})

    def _scores(self) -> HeadScores | None:
        heads = max((len(scores[0]) for scores in self.maps if scores is not None), default=0)
        if not heads:
            return None
        empty = torch.full((2, heads), math.nan)
        layers = torch.stack([empty if scores is None else scores.cpu() for scores in self.maps])  # (L, 2, H)
        entropy, look_back = (tuple(map(tuple, rows)) for rows in layers.transpose(0, 1).tolist())
        return HeadScores(entropy, look_back)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of floating point among arguments or results."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from tensors_in(member)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


def _holds_shares(tensor: Tensor) -> bool:
    """Whether the rows of a map are shares of 1, on average, since dropout changes single ones."""
    return bool((tensor >= 0).all()) and abs(float(tensor.float().sum(-1).mean()) - 1) < _SUM


@torch.no_grad()
def first_module(model: nn.Module, run: Callable[[], object]) -> str:
    """The first tensor that is not finite in a pass by ``run``: a weight, or what a module gets or gives; else empty.

    A value of −∞ counts as finite, since masks have it. The random state stays as it was.
    """
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"in the weights {name}"
    found: list[str] = []

    def look(name: str, words: str, value: Any) -> None:
        if not found and any(bool((tensor.isnan() | tensor.isposinf()).any()) for tensor in tensors_in(value)):
            found.append(f"{words} {name}")

    handles = []
    for name, module in model.named_modules():
        label = f"{name or 'the model'} ({type(module).__name__})"
        handles.append(module.register_forward_pre_hook(lambda _, x, label=label: look(label, "in the input of", x)))
        handles.append(module.register_forward_hook(lambda _, x, y, label=label: look(label, "in", y)))
    try:
        with torch.random.fork_rng():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return "".join(found)
