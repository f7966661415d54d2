"""Rows of chosen steps from a model: hooks on its own modules, and windows in batches of similar lengths.

Shapes: B windows, T tokens of a window, n recorded tokens.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor, nn

from tinytf.bulk.folder import DOCUMENT, IDS, POSITION
from tinytf.bulk.windows import Window, read_sources, run_windows
from tinytf.config import ModelConfig
from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.model.batches import batches
from tinytf.model.transformer import Transformer, evaluating, reading
from tinytf.parts.row import Step
from tinytf.steps.table import StepTable, table_of
from tinytf.trace.address import parse_address
from tinytf.trace.faults import HINT, where_not_finite
from tinytf.trace.hooks import module_of


@dataclass(frozen=True)
class Target:
    """A step of one layer to record, or one head of it: its address, and the axes and shape of a token's numbers."""

    at: str
    step: Step
    layer: int | None
    part: int | None
    axes: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        return torch.Size(self.shape).numel()


def targets_of(addresses: Sequence[str], config: ModelConfig) -> tuple[Target, ...]:
    """The steps that addresses such as ``L*.out`` and ``L3H2.head_out`` name, each layer and named head by itself.

    Raises AddressError for an address that does not parse, UsageError for a step without one row for each token.
    """
    table, targets = table_of(config), dict[str, Target]()
    for text in addresses:
        address = parse_address(text, table).plain(table)
        if address.step is None:
            raise AddressError(f"{text} names no step", f"such as {text}.{table.output}")
        if address.cell:
            raise UsageError(
                f"{text} names a cell, and whole tensors are recorded", f"leave out {text[text.find('[') :]}"
            )
        layers = address.layers or (None,)
        having = [layer for layer in layers if layer is None or table.has(address.step.name, layer)]
        if not having:
            reason = table.why_absent(address.step.name, layers[0]) or "it is a step of other layers"
            raise AddressError(f"{text} names no step of this model: {reason}")
        for layer in having:
            step, layer_config = table.at(address.step.name, layer), config.at(layer)
            _require_rows(step, text, table)
            axes = tuple(axis for axis in step.axes if axis != "token")
            shared = layer_config.heads_per_kv if "kv head" in axes else 1
            for head in address.heads or (None,):
                of_head = axes if head is None else axes[1:]
                name = step.full_name(layer) if head is None else f"L{layer}{step.letter}{head}.{step.name}"
                part = None if head is None else head // shared
                shape = tuple(layer_config.sizes[axis] for axis in of_head)
                targets.setdefault(name, Target(name, step, layer, part, of_head, shape))
    return tuple(targets.values())


def _require_rows(step: Step, text: str, table: StepTable) -> None:
    """Raise UsageError for a step that gives no row for each token when the layers and the final norm run."""
    if step in table.after and step.name not in (table.normed, table.final) and not step.is_vocabulary:
        raise UsageError(f"{text} is computed only for the tokens that are predicted", f"record {table.final} instead")
    if step.is_vocabulary:
        hint = "record final.norm instead: the logits are its product with the unembedding"
        raise UsageError(f"{text} has a number for each token of the vocabulary, which is not recorded", hint)
    if step.of_experts:
        raise UsageError(
            f"{text} has rows only for the tokens that go to each expert", "record its sum, such as L0.ffn"
        )
    if not step.runs or "token" not in step.axes or {"query", "key"} & set(step.axes):
        axes = f"its axes are {', '.join(step.axes)}" if step.axes else "it is no tensor"
        raise UsageError(f"{text} has not one row for each token ({axes})", "such as --at 'L*.out'")


class Passes:
    """Runs windows through a model, and takes the rows of some targets from hooks on its own modules.

    Only the steps of the targets are hooked, and no layer after the last of them runs.
    """

    def __init__(self, model: Transformer, targets: Sequence[Target], dtype: torch.dtype, every_token: bool) -> None:
        self.model, self.targets, self.dtype, self.every_token = model, targets, dtype, every_token
        before = [step.name for step in table_of(model.config).before]
        layers = [-1 if t.step.name in before else t.layer for t in targets]
        self._last = None if None in layers else max(layer for layer in layers if layer is not None)
        self._stack = ExitStack()
        self._windows: Sequence[Window] = ()  # of the running batch
        self._rows = torch.empty(0, dtype=torch.int64)  # (n,) where its rows are in (B·T)
        self._caught: dict[str, Tensor] = {}

    def __enter__(self) -> Self:
        self._stack.enter_context(evaluating(self.model))
        self._stack.enter_context(torch.no_grad())
        by_step: dict[tuple[str, int | None], list[Target]] = {}
        for target in self.targets:
            by_step.setdefault((target.step.name, target.layer), []).append(target)
        for targets in by_step.values():
            module = module_of(self.model, targets[0].step, targets[0].layer)
            self._stack.callback(module.register_forward_hook(partial(self._catch, targets)).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, windows: Sequence[Window]) -> dict[str, Tensor]:
        """The rows of some windows, in their order: ids, documents and positions (n,), and each target (n, …)."""
        chosen = [self._chosen(window) for window in windows]
        ids = torch.tensor([window.ids[at] for window, own in zip(windows, chosen, strict=True) for at in own])
        starts = [window.start - window.own.start for window in windows]
        positions = [start + at for start, own in zip(starts, chosen, strict=True) for at in own]
        documents = [window.document for window, own in zip(windows, chosen, strict=True) for _ in own]
        rows = {IDS: ids.int(), DOCUMENT: torch.tensor(documents), POSITION: torch.tensor(positions)}
        for target in self.targets:
            rows[target.at] = torch.empty(len(ids), *target.shape, dtype=self.dtype)
        firsts = [0, *accumulate(map(len, chosen))]
        for batch in batches([max(len(window.ids), len(window.source)) for window in windows], self.model):
            to = torch.cat([torch.arange(firsts[n], firsts[n + 1]) for n in batch])
            for name, caught in self._run([windows[n] for n in batch]).items():
                rows[name][to] = caught
        return rows

    def _chosen(self, window: Window) -> range:
        return window.own if self.every_token else window.own[-1:]

    def _run(self, windows: Sequence[Window]) -> dict[str, Tensor]:
        length = max(len(window.ids) for window in windows)
        self._windows = windows
        self._rows = torch.tensor([row * length + at for row, w in enumerate(windows) for at in self._chosen(w)])
        self._caught = {}
        run_windows(self.model, windows, self._last)
        return self._caught

    def _catch(self, targets: Sequence[Target], module: nn.Module, args: Any, result: Tensor) -> None:
        step, layer = targets[0].step, targets[0].layer
        rows = token_rows(step, result.detach(), self.model.config.at(layer), len(self._windows))[
            self._rows.to(result.device)
        ]
        for target in targets:
            values = rows if target.part is None else rows[:, target.part]
            stored = values.to(self.dtype).cpu()
            if not bool(stored.isfinite().all()):
                self._refuse(target, values.float().cpu())
            self._caught[target.at] = stored

    def _refuse(self, target: Target, values: Tensor) -> None:
        """Raise the error for numbers that are not finite, or not as the type that they are stored in."""
        largest = float(values.abs().amax())
        if math.isfinite(largest):
            kind, most = str(self.dtype).removeprefix("torch."), torch.finfo(self.dtype).max
            raise TinytfError(
                f"{target.at} has a number of size {largest:,.0f}, and {kind} holds at most {most:,.0f}",
                "store it with --save-as bfloat16 or float32",
            )
        row = int((~values.isfinite()).flatten(1).any(-1).nonzero()[0, 0])
        numbers = [(w.document, w.start - w.own.start + at) for w in self._windows for at in self._chosen(w)]
        document, position = numbers[row]
        self._stack.close()  # the search runs the model again, without these hooks
        own = [window for window in self._windows if window.document == document]
        source = read_sources(self.model, own[:1])
        model = self.model if source is None else reading(self.model, source)
        where = where_not_finite(model, [window.ids for window in own])
        raise TinytfError(
            f"{target.at} is not finite at token {position:,} of document {document:,}{f', {where}' if where else ''}",
            HINT,
        )


def token_rows(step: Step, result: Tensor, config: ModelConfig, batch: int) -> Tensor:
    """What a module gave for a batch, as a row for each token: (B·T, …) in the order of ``step.axes``.

    Queries, keys and values come as projected, (B, T, H·D), and are split into heads; positions have no batch axis.
    """
    result = result[None] if result.dim() == 2 else result
    result = result.expand(batch, *result.shape[1:])
    if step.has_heads and result.dim() == 3:
        heads = config.n_kv_heads if "kv head" in step.axes else config.n_heads
        return result.flatten(0, 1).unflatten(-1, (heads, -1))
    return result.movedim(1 + step.axes.index("token"), 1).flatten(0, 1)
