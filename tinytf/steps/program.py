"""The program of a model: the rows of its table, each a module, run one after the other.

Recording, taps, edits, gradients and explanation all hook these modules, so that they see exactly what runs. A faster
kernel may replace several rows while none of them is hooked. Shapes: B batch, T tokens, H heads, D head width,
C d_model.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.parts.row import Step
from tinytf.steps.operations.mask import mask_scores, real_keys
from tinytf.steps.operations.operation import Kernel, Pass, StepModule

Values = dict[str, Tensor]


class Borrowed(nn.Module):
    """Runs the module of another step without its hooks; the module stays registered under that step alone."""

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self.owner = (owner,)

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = self.owner[0].forward(*inputs)
        return output


class Instruction:
    """A row of a program: its step, its module and the names of its inputs.

    ``heads``: how many heads a matrix product is split into; ``hides``: whether padding is masked in the output;
    ``drops``: whether dropout follows; ``frees``: the inputs that no later row takes; ``once``: whether a cache keeps
    the output, which depends on no token of the text.
    """

    __slots__ = ("drops", "frees", "heads", "hides", "home", "inputs", "leaf", "name", "once", "operation", "step")

    def __init__(self, step: Step, inputs: tuple[str, ...], home: nn.Module, leaf: str) -> None:
        self.step, self.name, self.inputs, self.operation = step, step.name, inputs, step.operation
        self.home, self.leaf = home._modules, leaf
        self.heads, self.hides, self.drops, self.frees = 0, False, False, tuple[str, ...]()
        self.once = step.of_source and not step.is_map

    @property
    def module(self) -> nn.Module:
        module = self.home[self.leaf]
        assert module is not None
        return module

    def gather_inputs(self, values: Values, now: Pass) -> list[Tensor]:
        """The inputs; with a cache, those that it remembers include the earlier tokens."""
        inputs = [values[name] for name in self.inputs]
        if now.cache is not None:
            for number, cache_name in self.operation.remembers:
                inputs[number] = now.cache.extend(cache_name, inputs[number])
        return inputs

    def __call__(self, values: Values, now: Pass) -> Tensor:
        """The output in the layout of a trace, with a batch axis: (B, T, C), (B, H, T, D) or (B, H, Q, K)."""
        if self.once and now.cache is not None and not self.module._forward_hooks:
            return now.cache.once(self.name, lambda: self._computed(values, now))
        return self._computed(values, now)

    def _computed(self, values: Values, now: Pass) -> Tensor:
        module, inputs = self.home[self.leaf], self.gather_inputs(values, now)
        assert module is not None
        if isinstance(module, StepModule):
            output: Tensor = module(*inputs, now=now)
        else:
            output = module(*self.operation.arguments(now, *inputs))
        if self.heads and output.dim() == 3:
            output = output.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, T, H·D) -> (B, H, T, D)
        mask = now.source_mask if self.step.of_source else now.padding_mask
        if self.hides and mask is not None:
            output = mask_scores(output, real_keys(mask))
        return output


class Fused:
    """Consecutive rows that one kernel replaces: it computes the last of them from their inputs of earlier rows.

    It does not run where a row before the last is hooked, or where a user's module replaces that of the last. With
    ``remembers`` the cache stores what the operations of the rows remember; without, the kernel keeps its own state.
    """

    __slots__ = ("drops", "frees", "has_state", "inputs", "kernel", "name", "remembers", "rows")

    def __init__(self, rows: Sequence[Instruction], kernel: Kernel, *, remembers: bool = True) -> None:
        names, last = {row.name for row in rows}, rows[-1]
        self.rows, self.kernel, self.name = tuple(rows), kernel, last.name
        self.inputs = tuple(dict.fromkeys(name for row in rows for name in row.inputs if name not in names))
        remembering, self.has_state = rows if remembers else (), not remembers
        self.remembers = {row.inputs[i]: cache_name for row in remembering for i, cache_name in row.operation.remembers}
        self.drops, self.frees = last.drops, tuple(name for row in rows for name in row.frees if name not in names)

    @property
    def fits(self) -> bool:
        """Whether no hook needs a value that the kernel skips."""
        *inner, last = (row.home[row.leaf] for row in self.rows)
        has_hooks = any(module._forward_hooks or _hooked_beside(module) for module in inner if module is not None)
        return not has_hooks and isinstance(last, StepModule) and not _hooked_beside(last)

    def __call__(self, values: Values, now: Pass) -> Tensor:
        inputs = [values[name] for name in self.inputs]
        if now.cache is not None:
            inputs = [
                now.cache.extend(self.remembers[name], value) if name in self.remembers else value
                for name, value in zip(self.inputs, inputs, strict=True)
            ]
        output: Tensor = self.rows[-1].module(*inputs, now=now, kernel=self.kernel)
        return output


def _hooked_beside(module: nn.Module) -> bool:
    """Whether a hook sees the inputs of the module, or its gradients."""
    return bool(module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


_BLOCK = (
    "altup",
    "hyper1",
    "hyper2",
    "ngram",
    "read1",
    "write1",
    "norm1",
    "attention",
    "cross",
    "delta",
    "conv",
    "mamba",
    "lightning",
    "griffin",
    "attn_conv",
    "attn_norm",
    "laurel",
    "read2",
    "write2",
    "norm2",
    "ffn",
    "ffn_gain",
    "ffn_conv",
    "ffn_norm",
    "ple",
    "side",
    "memory",
)


def _registered(step: Step) -> tuple[int, bool]:
    """The sort key of registering and initialising parameters, which does not depend on where a block has its norms."""
    outer = step.path.partition(".")[0]
    return _BLOCK.index(outer) if outer in _BLOCK else len(_BLOCK), step.late


Find = Callable[[Sequence[Instruction]], Iterable[Fused]]
"""Finds the rows that kernels can replace."""


class Program(nn.Module):
    """Rows of a table as modules, registered under their paths relative to ``base``, run in order.

    ``outside`` names the inputs that the caller supplies beside the stream, ``taken`` those of other layers, by the row
    that takes them; ``kept`` rows stay in ``values``. An operation finds others that no row computes, such as ids, in
    the Pass. Dropout follows the ``dropped`` steps in training. ``find`` finds the rows that kernels can replace; with
    ``fused`` false, every row runs by itself.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: Sequence[Step],
        base: str = "",
        *,
        outside: Collection[str] = (),
        taken: Mapping[str, str] = {},
        kept: Collection[str] = (),
        dropped: Collection[str] = (),
        find: Find = lambda _: (),
    ) -> None:
        super().__init__()
        for step in sorted(rows, key=_registered):
            home, leaf = self._place(step.path.removeprefix(base))
            borrows = step.module and step.path != step.module
            module = Borrowed(self.get_submodule(step.module)) if borrows else step.operation.make_module(config, step)
            home.add_module(leaf, module)
        self.dropout, self.fused = nn.Dropout(config.dropout), True
        self.available, self.taken = {*outside, *(step.name for step in rows)}, dict(taken)
        self.rows = [self._instruction(config, step, base) for step in rows]
        self._free({*taken.values(), *kept})
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
        inputs = (STREAM,) if step.from_stream else tuple(name for name in step.inputs if name in self.available)
        if step.name in self.taken:
            inputs = (self.taken[step.name],)
        instruction = Instruction(step, inputs, *self._place(step.path.removeprefix(base)))
        if step.has_heads and step.operation.side_by_side:
            instruction.heads = config.n_kv_heads if "kv head" in step.axes else config.n_heads
        return instruction

    def _free(self, kept: Collection[str]) -> None:
        last = {name: row for row in self.rows for name in row.inputs if name not in kept}
        for name, row in last.items():
            row.frees += (name,)

    def _with(self, patterns: Iterable[Fused]) -> list[Instruction | Fused]:
        fused_at = {pattern.rows[0]: pattern for pattern in patterns}
        covered = {row for pattern in fused_at.values() for row in pattern.rows[1:]}
        return [fused_at.get(row, row) for row in self.rows if row not in covered]

    def run(self, values: Values, now: Pass, *, keep: bool = False) -> Tensor:
        """Compute the last step from ``values``, the inputs by name; with ``keep``, leave every step in ``values``."""
        output = torch.empty(0)
        for item in self.program:
            runs_as_one = not isinstance(item, Fused) or (self.fused and item.fits)
            if not runs_as_one and item.has_state and now.cache is not None:  # type: ignore[union-attr]
                raise UsageError(
                    "a step inside a recurrence is only computed for whole texts, but this continues from a cache",
                    "generate with --no-cache, or watch head_out",
                )
            for row in (item,) if runs_as_one else item.rows:  # type: ignore[union-attr]
                output = row(values, now)
                if row.drops:
                    output = self.dropout(output)
                values[row.name] = output
                for name in () if keep else row.frees:
                    del values[name]
        return output


STREAM = "<stream>"
"""The name of a program's input from the residual stream."""
