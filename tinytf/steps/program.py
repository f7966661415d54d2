"""The program of a model: the rows of its table, each a module, run one after the other.

What runs is what is recorded, tapped, edited, differentiated and explained: each by a hook on the module of a step.
Some rows have one faster kernel together, which stands in for them while none of them is hooked. Shapes: B batch,
T tokens, H heads, D head width, C d_model.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.mask import mask_scores, real_keys
from tinytf.steps.operations.operation import Kernel, Pass, StepModule

Values = dict[str, Tensor]


class Borrowed(nn.Module):
    """The module of another step, which stays registered there alone; run without its hooks."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.other = (other,)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.other[0].forward(x)
        return made


class Instruction:
    """A row of a program: its step, the module that makes it and the steps that it takes.

    ``heads`` is into how many heads the product of a matrix is split, ``hides`` whether padding is hidden in what it
    makes, ``drops`` whether dropout follows, and ``frees`` names the steps that no later row takes.
    """

    __slots__ = ("drops", "frees", "heads", "hides", "home", "inputs", "leaf", "name", "operation", "step")

    def __init__(self, step: Step, inputs: tuple[str, ...], home: nn.Module, leaf: str) -> None:
        self.step, self.name, self.inputs, self.operation = step, step.name, inputs, step.operation
        self.home, self.leaf = home._modules, leaf
        self.heads, self.hides, self.drops, self.frees = 0, False, False, tuple[str, ...]()

    @property
    def module(self) -> nn.Module:
        found = self.home[self.leaf]
        assert found is not None
        return found

    def taken(self, values: Values, now: Pass) -> list[Tensor]:
        """What it takes, where a cache is with what that holds of the tokens before."""
        found = [values[name] for name in self.inputs]
        if now.cache is not None:
            for number, what in self.operation.remembers:
                found[number] = now.cache.extend(what, found[number])
        return found

    def __call__(self, values: Values, now: Pass) -> Tensor:
        """The step in the layout of a trace with a batch: (B, T, C), (B, H, T, D), (B, H, Q, K)."""
        module, taken = self.home[self.leaf], self.taken(values, now)
        assert module is not None
        if isinstance(module, StepModule):
            made: Tensor = module(*taken, now=now)
        else:
            made = module(*self.operation.arguments(now, *taken))
        if self.heads and made.dim() == 3:
            made = made.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, T, H·D) -> (B, H, T, D)
        if self.hides and now.padding_mask is not None:
            made = mask_scores(made, real_keys(now.padding_mask))
        return made


class Fused:
    """Some rows that one kernel stands in for: it makes the last of them from what they take of the rows before.

    Not where one before the last is hooked, or the last is not the table's own. A cache holds of them what their
    operations remember, unless the kernel keeps a state of its own there: then it ``remembers`` nothing else.
    """

    __slots__ = ("drops", "frees", "inputs", "kernel", "name", "remembers", "rows")

    def __init__(self, rows: Sequence[Instruction], kernel: Kernel, *, remembers: bool = True) -> None:
        made, last = {row.name for row in rows}, rows[-1]
        self.rows, self.kernel, self.name = tuple(rows), kernel, last.name
        self.inputs = tuple(dict.fromkeys(name for row in rows for name in row.inputs if name not in made))
        kept = rows if remembers else ()
        self.remembers = {row.inputs[i]: what for row in kept for i, what in row.operation.remembers}
        self.drops, self.frees = last.drops, tuple(name for row in rows for name in row.frees if name not in made)

    @property
    def fits(self) -> bool:
        """Whether nobody looks in between."""
        *inside, last = (row.home[row.leaf] for row in self.rows)
        watched = any(one._forward_hooks or _hooked_beside(one) for one in inside if one is not None)
        return not watched and isinstance(last, StepModule) and not _hooked_beside(last)

    def __call__(self, values: Values, now: Pass) -> Tensor:
        given = [values[name] for name in self.inputs]
        if now.cache is not None:
            given = [
                now.cache.extend(self.remembers[name], one) if name in self.remembers else one
                for name, one in zip(self.inputs, given, strict=True)
            ]
        made: Tensor = self.rows[-1].module(*given, now=now, kernel=self.kernel)
        return made


def _hooked_beside(module: nn.Module) -> bool:
    """Whether a hook is given what the module takes, or its gradients."""
    return bool(module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


_BLOCK = ("norm1", "attention", "delta", "conv", "attn_norm", "norm2", "ffn", "ffn_norm")


def _registered(step: Step) -> tuple[int, bool]:
    """The order in which parameters are registered, and drawn from a seed: the same wherever a block has its norms."""
    outer = step.path.partition(".")[0]
    return _BLOCK.index(outer) if outer in _BLOCK else len(_BLOCK), step.late


Find = Callable[[Sequence[Instruction]], Iterable[Fused]]
"""Finds rows that a kernel stands in for."""


class Program(nn.Module):
    """Rows of a table as modules, under their paths after ``base``, run in their order.

    ``given`` are the names of what comes from outside, beside the stream; other inputs that no row makes, such as ids,
    an operation finds in the Pass. Steps that are ``dropped`` are followed by dropout in training; ``find`` finds rows
    that kernels stand in for, which with ``fused`` false run by themselves.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: Sequence[Step],
        base: str = "",
        *,
        given: Collection[str] = (),
        dropped: Collection[str] = (),
        find: Find = lambda _: (),
    ) -> None:
        super().__init__()
        for step in sorted(rows, key=_registered):
            home, leaf = self._place(step.path.removeprefix(base))
            borrows = step.module and step.path != step.module
            made = Borrowed(self.get_submodule(step.module)) if borrows else step.operation.make_module(config, step)
            home.add_module(leaf, made)
        self.dropout, self.fused = nn.Dropout(config.dropout), True
        self.known = {*given, *(step.name for step in rows)}
        self.rows = [self._instruction(config, step, base) for step in rows]
        self._free()
        scores = {row.inputs[0] for row in self.rows if row.step.core and row.operation.distribution}
        for row in self.rows:
            row.hides, row.drops = row.name in scores, row.name in dropped
        self.program = self._with(find(self.rows))

    def _place(self, path: str) -> tuple[nn.Module, str]:
        home: nn.Module = self
        *outer, leaf = path.split(".")
        for name in outer:
            if name not in home._modules:
                home.add_module(name, nn.Module())
            home = home.get_submodule(name)
        return home, leaf

    def _instruction(self, config: ModelConfig, step: Step, base: str) -> Instruction:
        inputs = (STREAM,) if step.from_stream else tuple(name for name in step.inputs if name in self.known)
        made = Instruction(step, inputs, *self._place(step.path.removeprefix(base)))
        if step.has_heads and step.operation.side_by_side:
            made.heads = config.n_kv_heads if "kv head" in step.axes else config.n_heads
        return made

    def _free(self) -> None:
        last = {name: row for row in self.rows for name in row.inputs}
        for name, row in last.items():
            row.frees += (name,)

    def _with(self, patterns: Iterable[Fused]) -> list[Instruction | Fused]:
        first = {pattern.rows[0]: pattern for pattern in patterns}
        inside = {row for pattern in first.values() for row in pattern.rows[1:]}
        return [first.get(row, row) for row in self.rows if row not in inside]

    def run(self, values: Values, now: Pass, *, keep: bool = False) -> Tensor:
        """The last step, from the ``values`` of what is given; with ``keep`` those have every step at the end."""
        made = torch.empty(0)
        for part in self.program:
            whole = not isinstance(part, Fused) or (self.fused and part.fits)
            for row in (part,) if whole else part.rows:  # type: ignore[union-attr]
                made = row(values, now)
                if row.drops:
                    made = self.dropout(made)
                values[row.name] = made
                for name in () if keep else row.frees:
                    del values[name]
        return made


STREAM = "<stream>"
"""The residual stream that a program is given."""
