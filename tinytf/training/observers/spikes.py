"""Where a jump of the loss began: the gradient norm of every tensor, kept for the last steps."""

from collections import deque

import numpy as np
import torch

from tinytf.runs.history import SPIKE_WINDOW, is_spike, spike_level
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics

_LOOK_BACK = 10
"""Steps before a spike in which it may have begun."""


class Spikes(Observer):
    """Adds the global norm of the gradients, and a sentence to a step whose loss jumps, at most one in fifty steps.

    A spike began at the first of the last ten steps where the gradient of a tensor was unusual, by the definition of a
    spike; of several tensors, it is the one whose norm rose by the largest factor.
    """

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        self.named = [(name, p) for name, p in loop.model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in self.named]
        self.told = -SPIKE_WINDOW
        self.losses = deque[float](maxlen=SPIKE_WINDOW + 1)
        self.norms = deque[torch.Tensor](maxlen=SPIKE_WINDOW + _LOOK_BACK)

    def gradients(self, line: Metrics) -> None:
        known = [p.grad for _, p in self.named if p.grad is not None]
        if not known:
            return
        norms = torch.stack(torch._foreach_norm(known))
        if len(known) < len(self.named):  # a tensor without a gradient has the norm 0
            mask = torch.tensor([p.grad is not None for _, p in self.named], device=norms.device)
            norms = torch.zeros(len(mask), device=norms.device, dtype=norms.dtype).masked_scatter(mask, norms)
        self.norms.append(norms)
        line.grad_norm = float(torch.linalg.vector_norm(norms))

    def step(self, line: Metrics) -> None:
        self.losses.append(line.loss)
        losses = np.array(self.losses)
        is_new = len(losses) > SPIKE_WINDOW and line.step - self.told > SPIKE_WINDOW
        if not is_new or not np.isfinite(losses).all() or not is_spike(losses):
            return
        self.told = line.step
        where = self._origin(line.step)
        usual = float(np.median(losses[:-1]))
        line.milestones = (*line.milestones, f"the loss jumped from {usual:.2f} to {line.loss:.2f}{where}")

    def _origin(self, step: int) -> str:
        norms = torch.stack(tuple(self.norms)).double().cpu().numpy()  # (steps, tensors)
        for index in range(max(SPIKE_WINDOW // 2, len(norms) - _LOOK_BACK), len(norms)):
            window = norms[max(0, index - SPIKE_WINDOW) : index]
            times = norms[index] / np.maximum(np.median(window, axis=0), np.finfo(float).tiny)
            times[norms[index] <= spike_level(window)] = 0.0
            if times.max() > 0:
                began, rise = step - (len(norms) - 1 - index), f"{times.max():,.0f} times as large as usual"
                return f"; at step {began:,} the gradient of {self.names[int(times.argmax())]} was {rise}"
        return "; no gradient was unusual before"
