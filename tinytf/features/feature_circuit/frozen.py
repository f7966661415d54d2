"""A forward pass that is linear in what tokens and feed-forwards add: attention patterns and norm scales are constants.

It is the model's own pass, hooked: maps of queries and keys and the standard deviations of norms carry no gradient, and
the output of each feed-forward is a leaf. So the gradient of what a transcoder reads, with respect to these leaves, is
the direct effect of every earlier output on it (Ameisen et al. 2025, "Circuit Tracing"). Shapes: T tokens, C d_model,
O width of the step that a transcoder writes, V vocabulary, N targets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.features.coder import SparseCoder
from tinytf.features.place import Place
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.steps.operations import Cap, Norm
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.operations.operation import wide
from tinytf.steps.table import table_of
from tinytf.trace.hooks import module_of, stepwise


@dataclass(frozen=True)
class Replaced:
    """A feed-forward that is replaced: the transcoder (None: there is none), where it reads, and where it writes."""

    layer: int
    coder: SparseCoder | None
    read: Place | None
    write: Step


class Frozen:
    """A pass of ids (T,) with the feed-forwards of ``replaced`` as leaves.

    ``start`` (1, T, C) enters the first layer, ``written`` (1, T, O) is what each feed-forward adds beside a skip
    connection, ``read`` (1, T, C) what each transcoder reads, and ``logits`` (V,) those after the last token, before a
    cap.
    """

    def __init__(self, model: Transformer, ids: Sequence[int], replaced: Sequence[Replaced]) -> None:
        self.model, self.replaced = model, replaced
        self.ids = torch.tensor([ids], device=model.embed.tokens.weight.device)
        self._maps: dict[tuple[str, int | None], Tensor] = {}
        self._scales: dict[tuple[str, int | None], Tensor] = {}
        self.start, self.written = torch.empty(0), dict[int, Tensor]()
        with torch.inference_mode(False), torch.enable_grad():
            self.read, logits = self._run(self.ids, self._leaf, self._written_leaf)
        self.logits = logits[0]

    @property
    def leaves(self) -> list[Tensor]:
        """``start``, then what each feed-forward adds, in the order of ``replaced``."""
        return [self.start, *(self.written[at.layer] for at in self.replaced)]

    def gradients(self, output: Tensor, directions: Tensor) -> list[Tensor]:
        """The gradients (N, 1, T, …) of the products of an output with N ``directions`` of its shape, for each leaf."""
        found = torch.autograd.grad(
            output, self.leaves, directions, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        zeros = (leaf.new_zeros(()).expand(len(directions), *leaf.shape) for leaf in self.leaves)
        return [zero if gradient is None else gradient for gradient, zero in zip(found, zeros, strict=True)]

    @torch.no_grad()
    def constants(self, added: Mapping[int, Tensor]) -> tuple[dict[int, Tensor], Tensor]:
        """``read`` and ``logits`` with the same patterns and scales, if tokens add nothing and each feed-forward only
        the vectors ``added`` (T, O): what biases make.
        """

        def written(layer: int, value: Tensor) -> Tensor:
            return added[layer].to(value).expand_as(value)

        read, logits = self._run(self.ids, torch.zeros_like, written, replayed=True)
        return read, logits[0]

    @torch.no_grad()
    def changed(self, deltas: Mapping[int, Tensor], count: int, *, held: bool) -> Tensor:
        """The logits (B, V) of the model itself in ``count`` runs, with ``deltas`` (B, T, O) added to what
        feed-forwards write: with the patterns and scales ``held``, or computed again. Feed-forwards are always.
        """

        def written(layer: int, value: Tensor) -> Tensor:
            return value + deltas[layer] if layer in deltas else value

        ids = self.ids.expand(count, -1)
        return self._run(ids, lambda start: start, written, replayed=held, frozen=held)[1]

    def _leaf(self, value: Tensor) -> Tensor:
        self.start = value.detach().clone().requires_grad_()
        return self.start

    def _written_leaf(self, layer: int, value: Tensor) -> Tensor:
        self.written[layer] = value.detach().clone().requires_grad_()
        return self.written[layer]

    def _run(
        self, ids: Tensor, start: Callable[[Tensor], Tensor], written: Callable[[int, Tensor], Tensor], *,
        replayed: bool = False, frozen: bool = True,
    ) -> tuple[dict[int, Tensor], Tensor]:  # fmt: skip
        """What transcoders read, and the logits (B, V) after the last token of each row of ids (B, T)."""
        read: dict[int, Tensor] = {}
        with self._hooked(read, start, written, replayed, frozen):
            hidden = self.model.hidden(ids)
            rows = self.model.over_vocabulary(hidden[:, -1])
        return read, self.before_cap(rows)

    def before_cap(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Logits, from all steps over the vocabulary: the last one before a cap."""
        table = table_of(self.model.config)
        linear = takewhile(lambda name: not isinstance(table.by_name[name].operation, Cap), rows)
        return rows[list(linear)[-1]]

    @contextmanager
    def _hooked(
        self, read: dict[int, Tensor], start: Callable[[Tensor], Tensor], written: Callable[[int, Tensor], Tensor],
        replayed: bool, frozen: bool,
    ) -> Iterator[None]:  # fmt: skip
        table, model = table_of(self.model.config), self.model
        reads, writes = dict[tuple[str, int | None], Replaced](), dict[tuple[str, int | None], Replaced]()
        for at in self.replaced:
            writes[at.write.name, at.layer] = at
            if at.read is not None:
                reads[at.read.name, at.read.layer] = at
        with ExitStack() as stack:
            stack.enter_context(stepwise(model))
            hook = model.blocks[0].register_forward_pre_hook(lambda _, args: (start(args[0]), *args[1:]))
            stack.callback(hook.remove)
            for step, layer in table.rows:
                if not step.runs:
                    continue
                key, module = (step.name, layer), module_of(model, step, layer)
                if step.is_map and frozen:
                    stack.callback(module.register_forward_hook(partial(self._map, key, replayed)).remove)
                if type(step.operation) is Norm and (frozen or (key in reads and _before_gain(reads[key]))):
                    into = read if key in reads and _before_gain(reads[key]) else {}
                    norm = partial(self._norm, key, step.operation, replayed, into)
                    stack.callback(module.register_forward_hook(norm).remove)
                if key in reads and not _before_gain(reads[key]):
                    stack.callback(module.register_forward_hook(partial(_keep, read, reads[key].layer)).remove)
                if key in writes:
                    stack.callback(module.register_forward_hook(partial(_write, writes[key], read, written)).remove)
            yield

    def _map(self, key: tuple[str, int | None], replayed: bool, module: nn.Module, args: Any, result: Tensor) -> Tensor:
        return self._maps[key].expand_as(result) if replayed else self._maps.setdefault(key, result.detach())

    def _norm(
        self, key: tuple[str, int | None], operation: Norm, replayed: bool, into: dict[int, Tensor], module: nn.Module,
        args: Any, result: Tensor,
    ) -> Tensor:  # fmt: skip
        x = wide(args[0])
        centred = x - x.mean(dim=-1, keepdim=True) if operation.centred else x
        scale = self._scales.get(key) if replayed else None
        if scale is None:
            scale = (centred.square().mean(dim=-1, keepdim=True) + operation.eps).sqrt().detach()
            self._scales.setdefault(key, scale)
        normed = centred / scale
        if key[1] is not None:
            into[key[1]] = normed
        bias = getattr(module, "bias", None)
        gained = normed * gain_of(module)
        return (gained if bias is None else gained + bias).to(result.dtype)


def _before_gain(at: Replaced) -> bool:
    return at.read is not None and at.read.before_gain


def _keep(read: dict[int, Tensor], layer: int, module: nn.Module, args: Any, result: Tensor) -> None:
    read[layer] = result


def _write(
    at: Replaced, read: Mapping[int, Tensor], written: Callable[[int, Tensor], Tensor], module: nn.Module, args: Any,
    result: Tensor,
) -> Tensor:  # fmt: skip
    if at.coder is None or at.coder.skip is None:
        return written(at.layer, result)
    skipped = (read[at.layer].to(at.coder.skip) @ at.coder.skip.T).to(result)
    return written(at.layer, result - skipped) + skipped
