"""What an operation is: how a step is made of others, how a gradient goes back through it, and how one cell adds up.

Each operation has a file of its own. Its ``forward`` is what the model runs; its gradients (by formula, without
autograd) and its arithmetic (one cell, in float64) are written independently of it, since they check it. Shapes:
T tokens (Q queries, K keys), H query heads, G key-value heads, D head width, C model width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.protocols import Cell, Kernels, Site
from tinytf.steps.operations.working import Working

_IN_CODE = str.maketrans("₁₂.", "12_")
"""Addresses have signs that no name in code has."""

Kernel = Callable[..., Tensor]
"""Makes a step of a Pass and of the inputs of the steps before it, which it stands in for."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """A named scalar (no axes) or vector (one axis)."""

    name: str
    values: Tensor


@dataclass(slots=True)
class Pass:
    """What the steps of one forward pass may ask for beside their inputs.

    The ``ids`` (B, T) and ``token_types`` (B, T), the position of the first of them, a ``padding_mask`` as in
    ``real_keys``, the layer's ``cache`` of the tokens before, and the ``table`` of token embeddings, which a tied head
    takes.
    """

    ids: Tensor | None = None
    token_types: Tensor | None = None
    start: int = 0
    padding_mask: Tensor | None = None
    cache: Any = None
    table: Tensor | None = None


ALONE = Pass()


class StepModule(nn.Module):
    """A step as a module of the model, with the parameters of its operation, so that it is hooked like any other."""

    def __init__(self, operation: "Operation", shapes: Mapping[str, tuple[int, ...] | None] | None = None) -> None:
        super().__init__()
        self.operation = operation
        for name, shape in (shapes or {}).items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape)))

    def forward(self, *inputs: Tensor, now: Pass = ALONE, kernel: Kernel | None = None) -> Tensor:
        """The step of its inputs, or by a ``kernel`` that makes it of the inputs of the steps before it."""
        return self.operation.run(self, now, *inputs) if kernel is None else kernel(now, *inputs)


@dataclass(frozen=True)
class Parameter:
    """A parameter that a step is made with: its ``name`` in addresses, and the ``attribute`` of the module that has it.

    ``axes`` are those that formulas read: of a matrix in x·W (in, out), which a ``transposed`` one is not stored as.
    ``absent`` says why this model does not have it; it is empty where the model has.
    """

    name: str
    attribute: str
    axes: tuple[str, ...]
    transposed: bool = False
    absent: str = ""


@dataclass(frozen=True)
class Row:
    """Which row of a step: of the query head or expert ``head`` where it is split, the token or query ``place``."""

    step: Step
    layer: int | None
    head: int | None
    place: int

    def of(self, tensor: Tensor, step: Step, heads_per_kv: int) -> Tensor:
        """This row of a tensor with the axes of ``step``; a shared key head serves each of its query heads."""
        if not step.is_split:
            return tensor[self.place]
        head = self.head or 0
        return tensor[head // heads_per_kv if "kv head" in step.axes else head, self.place]


@dataclass(frozen=True, eq=False)
class Summand:
    """One summand of a gradient's row: its formula, result, the meaning of its letters, and the numbers in it."""

    expression: str
    result: Tensor
    where: tuple[str, ...] = ()
    inputs: tuple[Quantity, ...] = ()
    intermediates: tuple[Quantity, ...] = ()


@dataclass(frozen=True, eq=False)
class Consumer:
    """A later step (``site``) with its gradient ``g``; the row belongs to its input ``number``."""

    site: Site
    g: Tensor
    number: int
    row: Row

    @property
    def symbol(self) -> str:
        """∂ and the later step's name, without its layer where that is the row's own."""
        return "∂" + (self.site.step.name if self.site.layer == self.row.layer else self.site.name)

    def at_row(self, tensor: Tensor) -> Tensor:
        """The row of a tensor that has the axes of the later step."""
        return self.row.of(tensor, self.site.step, self.site.config.heads_per_kv)

    @property
    def incoming(self) -> Quantity:
        return Quantity(self.symbol, self.at_row(self.g))

    def input_at_row(self, number: int) -> Quantity:
        step = self.site.source_steps[number]
        return Quantity(step.name, self.row.of(self.site.input(number), step, self.site.config.heads_per_kv))

    def head_of(self, step: Step) -> int:
        """The number on the axis of heads of ``step`` that the row's query head has there."""
        return (self.row.head or 0) // (self.site.config.heads_per_kv if "kv head" in step.axes else 1)

    @property
    def query_heads(self) -> range:
        """The heads of the later step that share the row."""
        own, later = self.head_of(self.row.step), self.site.step
        shared = self.site.config.heads_per_kv if "kv head" in self.row.step.axes and "kv head" not in later.axes else 1
        return range(own * shared, (own + 1) * shared)


class Operation(ABC):
    """How a step is made. ``words`` says what it is; ``fused`` whether torch's fused attention computes it too.

    The rows of a ``distribution`` are shares of 1: of all of it, or of what a sink leaves, which ``whole`` says. Heads
    that it makes pass ``side_by_side`` in the model, (T, H·D). ``deciding`` are the numbers of inputs that only decide,
    and have no gradient. ``over_tokens`` it needs all rows of its input at once. ``remembers`` are the numbers of
    inputs that a cache keeps of all tokens so far, and what they are called there. What is ``pointwise`` makes each
    number of those in its place. What ``hides_ahead`` has 0 wherever a key comes after its query.
    """

    words: ClassVar[str]
    fused: ClassVar[bool] = False
    distribution: ClassVar[bool] = False
    over_tokens: ClassVar[bool] = False
    side_by_side: ClassVar[bool] = False
    deciding: ClassVar[tuple[int, ...]] = ()
    remembers: ClassVar[tuple[tuple[int, str], ...]] = ()
    pointwise: ClassVar[bool] = False
    hides_ahead: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def forward(self, *inputs: Tensor) -> Tensor:
        """The step from its inputs; for an operation with parameters, see ``derive``."""
        raise TypeError(f"{type(self).__name__} has parameters: it is computed by its module")

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        """What runs the step in a model, with its parameters, which are not initialised."""
        sizes, shapes = config.sizes, dict[str, tuple[int, ...] | None]()
        for one in self.parameters(step):
            shape = [] if one.absent else [sizes[axis] for axis in one.axes]
            if one.transposed and shape:
                shape[-2], shape[-1] = shape[-1], shape[-2]
            shapes[one.attribute] = None if one.absent else tuple(shape)
        return StepModule(self, shapes)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Random parameters: matrices and tables normal with ``std``, gains 1, biases 0."""
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() >= 2 and name != "bias":
                parameter.normal_(0.0, std, generator=generator)
            else:
                parameter.fill_(1.0 if name == "weight" else 0.0)

    def arguments(self, now: Pass, *inputs: Tensor) -> tuple[Any, ...]:
        """What a module that is torch's own, or a user's, is called with."""
        return inputs

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        """The step in a model, (B, …), from its inputs and the ``module`` with its parameters."""
        return self.forward(*inputs)

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        """What makes the step of one new token, (…, C) or (…, H, D), in arrays of ``kernels``; None where nothing does.

        ``module`` is what runs the step in the model.
        """
        return kernels.pointwise(self.forward) if self.pointwise else None

    def alone(self, module: Any, number: int, *inputs: Tensor) -> Tensor:
        """The step of one expert, ``number``, for the tokens that are sent to it."""
        return self.forward(*inputs)

    def whole(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        """What each row of a distribution sums to, by the steps before it; it broadcasts to (H, Q)."""
        return torch.ones(())

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        """The step from the recorded steps before it, by what the model runs; ``heads`` selects query heads."""
        return self.forward(*site.inputs(heads))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the inputs from that of the step, each in its own shape. No autograd."""
        return ()

    def side(self, number: int, x: Tensor) -> Tensor | None:
        """On which side of its kinks each number of an input lies; None where the operation has none there."""
        return None

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The gradients of the parameters that the step was computed with, by their names in the model."""
        return iter(())

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        """What ``step`` is made with; for a parameter that this model lacks, why."""
        return ()

    @abstractmethod
    def code(self, site: Site) -> str:
        """The step in lines of PyTorch, of its inputs by ``site.names`` and its ``operands``; T is how many tokens.

        The last line assigns ``site.variable``. They compute what the model does, in its layout: no batch axis.
        """

    def operands(self, site: Site) -> dict[str, Tensor]:
        """The parameters of the step, as they are stored, by the names that they have in its ``code``."""
        here = (one for one in self.parameters(site.step) if not one.absent)
        return {one.name.translate(_IN_CODE): getattr(site.module, one.attribute) for one in here}

    @abstractmethod
    def arithmetic(self, cell: Cell) -> Working:
        """One cell of the step worked out in float64, from the recorded cells before it."""

    def summand(self, to: Consumer) -> Summand:
        """What a step of this operation brings to one row of the gradient of its input."""
        raise TypeError(f"{self.words} has no input that a gradient could go to")

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        """Multiply-adds of one layer's step for ``tokens`` queries that look at ``keys`` keys.

        0 for what is linear in the size of its output (norms, activations, sums), as is usual in such counts.
        """
        return 0


def wide(x: Tensor) -> Tensor:
    """Numbers of 16 bits in float32: torch's own kernels sum in it, and float16 overflows at 256²."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def summed(g: Tensor) -> Tensor:
    """The sum over every axis but the last, as the gradient of what was added to each token: (…, C) -> (C,)."""
    return g.flatten(0, -2).sum(dim=0)


def in_float32(name: str, x: Tensor) -> str:
    """The code of ``wide``."""
    return f"{name}.float()" if wide(x) is not x else name


def side_by_side(heads: Tensor) -> Tensor:
    """(…, H, T, D) -> (…, T, H·D)."""
    return heads.transpose(-3, -2).flatten(-2)


def into_heads(x: Tensor, d_head: int) -> Tensor:
    """(…, T, H·D) -> (…, H, T, D)."""
    return x.unflatten(-1, (-1, d_head)).transpose(-3, -2)


def of_query_heads(made: Tensor, site: Site, heads: tuple[int, ...] | None) -> Tensor:
    """Those of some query heads (all where None): a shared key or value head answers to each of its query heads."""
    shared = site.config.heads_per_kv if "kv head" in site.step.axes else 1
    return made if heads is None else made[[head // shared for head in heads]]


def by_group(x: Tensor, shared: Tensor) -> Tensor:
    """(H, …) -> (G, H/G, …), to match ``shared`` (G, …)."""
    return x.unflatten(0, (len(shared), -1))


def repeats(site: Site, number: int) -> int:
    """How many heads of a step take each head of its input ``number``."""
    shared = "kv head" in site.source_steps[number].axes and "kv head" not in site.step.axes
    return site.config.heads_per_kv if shared else 1


def repeat_groups(x: Tensor, n_heads: int) -> Tensor:
    """Let each of G key or value heads serve its n_heads / G query heads: (…, G, T, D) -> (…, H, T, D)."""
    groups = x.shape[-3]
    return x if groups == n_heads else x.repeat_interleave(n_heads // groups, dim=-3)


def width_of(site: Site) -> int:
    """The size of the last axis of a step."""
    return site.config.sizes[site.step.axes[-1]]


def dimension(axis: str, number: int, config: ModelConfig) -> str:
    """What one number of a row is called: ``d17``, ``unit 203`` of a feed-forward, ``head 2 d5`` of heads in a row."""
    if axis in ("d_ff", "d_expert", "d_shared"):
        return f"unit {number}"
    if axis == "expert":
        return f"expert {number}"
    if axis.startswith("n_heads·"):
        head, within = divmod(number, config.sizes[axis.partition("·")[2]])
        return f"head {head} d{within}"
    return f"d{number}"
