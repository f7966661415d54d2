"""A mixture of experts: a router sends each token to a few feed-forwards, whose outputs are weighed and summed.

It runs the rows of the step table as attention's core does: fused, each expert for its own tokens alone, or one row
after the other, each with an axis of experts. Shapes: B batch, T tokens, E experts, F units, C d_model, N tokens sent.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.model.attention import Edit, Tap
from tinytf.model.linear import Linear
from tinytf.model.parts import FeedForward
from tinytf.parts.row import Step
from tinytf.steps.operations import SumExperts
from tinytf.steps.operations.expert_linear import used
from tinytf.steps.table import table_of


class ExpertLinear(nn.Module):
    """The matrices of all experts in one tensor (E, out, in), with biases (E, out) or without; not initialised."""

    def __init__(self, count: int, inside: int, outside: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, outside, inside))
        self.bias = nn.Parameter(torch.empty(count, outside)) if bias else None


class Bank(nn.Module):
    """The feed-forwards of all experts, each matrix of theirs in one tensor."""

    def __init__(self, count: int, c: int, width: int, config: ModelConfig) -> None:
        super().__init__()
        self.up = ExpertLinear(count, c, width, config.ffn_bias)
        self.down = ExpertLinear(count, width, c, config.ffn_bias)
        self.gate = ExpertLinear(count, c, width, config.ffn_bias) if config.gated else None


class _Core(nn.Module):
    """The rows of the table that the experts run, up to the sum of what they add."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self.steps = tuple(steps)

    def _rows(self, experts: "Experts") -> list[tuple[Step, nn.Module | None]]:
        return [(step, experts.get_submodule(step.module[4:]) if step.module else None) for step in self.steps]


class FusedExperts(_Core):
    """Each expert computes the tokens that are sent to it, and no others; only the routes have an axis of experts."""

    def forward(self, experts: "Experts", x: Tensor, router: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)  # (B, T, C) -> (B·T, C)
        routed, total = {"ffn.router": router.flatten(0, -2)}, torch.zeros_like(tokens)
        rows = self._rows(experts)
        for step, module in rows:
            if not step.of_experts and not isinstance(step.operation, SumExperts):
                routed[step.name] = step.operation.in_core(module, *(routed[name] for name in step.inputs))
        parts = [(step, module) for step, module in rows if step.of_experts]
        for number in sorted({*used(routed["ffn.chosen"]), *experts.changes}):
            sent = routed["ffn.chosen"][:, number].nonzero()[:, 0]  # (N,)
            values = {name: one[sent, number] for name, one in routed.items()}
            own = tokens[sent]
            for step, module in parts:
                taken = (values.get(name, own) for name in step.inputs)
                values[step.name] = step.operation.alone(module, number, *taken)
            added = values[parts[-1][0].name]
            if not experts.changes:
                total = total.index_add(0, sent, added)
                continue
            whole = torch.zeros_like(tokens).index_add(0, sent, added).view_as(x)
            total = total.view(-1, *x.shape[1:]) + experts.changed(number, whole)
        return total.view(-1, *x.shape[1:])


class SteppedExperts(_Core):
    """One row after the other, with an axis of experts, (B, E, T, F). Each is passed to ``tap``, as in attention."""

    def __init__(self, steps: Sequence[Step], tap: Tap | None = None) -> None:
        super().__init__(steps)
        self.tap: Tap = tap or (lambda _, tensor: tensor)

    def forward(self, experts: "Experts", x: Tensor, router: Tensor) -> Tensor:
        values = {"ffn.router": router}
        for step, module in self._rows(experts):
            made: Tensor = step.operation.in_core(module, *(values.get(name, x) for name in step.inputs))
            if step.of_experts and step.name == self.steps[-1].inputs[0]:
                for number in experts.changes:
                    made = made.clone()
                    made[..., number, :, :] = experts.changed(number, made[..., number, :, :])
            if step.name in experts.edits:
                made = experts.edits[step.name](made)
            values[step.name] = self.tap(step.name, made) if step.in_experts else made
        return values[self.steps[-1].name]


def make_experts(config: ModelConfig, tap: Tap | None = None, *, stepwise: bool = False) -> nn.Module:
    """What runs the experts of one layer: fused, unless each step is to be seen."""
    rows = [step for step in table_of(config).layer_steps if step.in_experts or isinstance(step.operation, SumExperts)]
    return SteppedExperts(rows, tap) if stepwise else FusedExperts(rows)


class Switch(nn.Module):
    """The sigmoid of a token's one number, times what its shared expert gives."""

    def forward(self, x: Tensor, score: Tensor) -> Tensor:
        return x * torch.sigmoid(score)


class Balance(nn.Module):
    """A bias for each expert, by which they are chosen but not weighed; no gradient reaches it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight: Tensor
        self.register_buffer("weight", torch.zeros(count))


class Experts(nn.Module):
    """Router and experts, with a shared expert that takes every token, behind a switch or not, or without one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        count, width, c = config.experts, config.sizes["d_expert"], config.d_model
        self.config = config
        self.router = Linear(c, count, bias=config.router_bias)
        self.experts = Bank(count, c, width, config)
        self.shared = FeedForward(config, config.d_shared) if config.d_shared else None
        self.shared_score = Linear(c, 1, bias=False) if config.shared_gate else None
        self.switch = Switch()
        self.preference = Balance(count) if config.choice_bias else None
        self.core: nn.Module = make_experts(config)
        # what an intervention makes of what an expert adds (B, T, C), and who is told of it
        self.changes: dict[int, Callable[[Tensor], Tensor]] = {}
        self.edits: dict[str, Edit] = {}  # as in attention
        self.on_change: Callable[[int, Tensor], None] | None = None

    def changed(self, number: int, added: Tensor) -> Tensor:
        """What the expert adds, (B, T, C), or what an intervention makes of it."""
        if number in self.changes:
            added = self.changes[number](added)
            if self.on_change is not None:
                self.on_change(number, added)
        return added

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.core(self, x, self.router(x))  # (B, T, C)
        if self.shared is None:
            return mixed
        shared = self.shared(x)
        return mixed + (shared if self.shared_score is None else self.switch(shared, self.shared_score(x)))
