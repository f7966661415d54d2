"""The base of all operations: how a step is computed from others, its gradients, and the arithmetic of one cell.

Each operation has its own file. The model runs its ``forward``; its gradients (by formula, without autograd) and its
arithmetic (one cell, in float64) are written independently of it, since they check it. Shapes: T tokens (Q queries,
K keys), H query heads, G key-value heads, D head width, C model width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working
from tinytf.steps.operations.written import Written

_IN_CODE = str.maketrans("₁₂.", "12_")
"""Characters in addresses that cannot occur in names of code, and their replacements."""

Kernel = Callable[..., Tensor]
"""Computes a step from a Pass and the inputs of the earlier steps that it replaces."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """A named scalar (no axes) or vector (one axis)."""

    name: str
    values: Tensor


@dataclass(slots=True)
class Pass:
    """The context of one forward pass, which steps may use beside their inputs.

    ``ids`` and ``token_types`` (B, T); ``start``, the position of the first token; a ``padding_mask`` as in
    ``real_keys``, and the ``source_mask`` of the other stack; the layer's ``cache`` of earlier tokens; and the
    ``table`` of token embeddings, for a tied head.
    """

    ids: Tensor | None = None
    token_types: Tensor | None = None
    start: int = 0
    padding_mask: Tensor | None = None
    cache: Any = None
    table: Tensor | None = None
    source_mask: Tensor | None = None


@dataclass
class Carried:
    """What layers take beside the stream: ``ids``, token ``types``, and steps of lower layers and the embeddings."""

    ids: Tensor
    steps: dict[str, Tensor]
    types: Tensor | None = None
    source_mask: Tensor | None = None


ALONE = Pass()


class StepModule(nn.Module):
    """A step as a module of the model, with the parameters of its operation; it can be hooked like any other."""

    def __init__(self, operation: "Operation", shapes: Mapping[str, tuple[int, ...] | None] | None = None) -> None:
        super().__init__()
        self.operation = operation
        for name, shape in (shapes or {}).items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape)))

    def forward(self, *inputs: Tensor, now: Pass = ALONE, kernel: Kernel | None = None) -> Tensor:
        """The step from its inputs; with a ``kernel``, from the inputs of the steps that the kernel replaces."""
        return self.operation.run(self, now, *inputs) if kernel is None else kernel(now, *inputs)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a step: its ``name`` in addresses, and its ``attribute`` in the module.

    ``axes`` are in the order of formulas: (in, out) for the matrix in x·W, which is stored ``transposed``. ``absent``
    says why this model does not have it; empty where it does. An absent one may be read from another, ``same_as``,
    whose numbers it has.
    """

    name: str
    attribute: str
    axes: tuple[str, ...]
    transposed: bool = False
    absent: str = ""
    same_as: str = ""


@dataclass(frozen=True)
class Row:
    """One row of a step: the token or query ``place``, of the query head or expert ``head`` where the step is split."""

    step: Step
    layer: int | None
    head: int | None
    place: int

    def of(self, tensor: Tensor, step: Step, heads_per_kv: int) -> Tensor:
        """This row of a tensor with the axes of ``step``, in the key head that serves its query head."""
        if not step.is_split:
            return tensor[self.place]
        head = self.head or 0
        return tensor[head // heads_per_kv if "kv head" in step.axes else head, self.place]


@dataclass(frozen=True, eq=False)
class Summand:
    """One summand of a gradient's row: formula, result, the meaning of its letters, and the quantities in it."""

    expression: str
    result: Tensor
    where: tuple[str, ...] = ()
    inputs: tuple[Quantity, ...] = ()
    intermediates: tuple[Quantity, ...] = ()


@dataclass(frozen=True, eq=False)
class Consumer:
    """A later step (``site``) with its gradient ``g``; ``row`` is a row of its input ``number``."""

    site: Site
    g: Tensor
    number: int
    row: Row

    @property
    def symbol(self) -> str:
        """∂ and the later step's name, with its layer only where that differs from the row's."""
        return "∂" + (self.site.step.name if self.site.layer == self.row.layer else self.site.name)

    def at_row(self, tensor: Tensor) -> Tensor:
        """The row in a tensor with the axes of the later step."""
        return self.row.of(tensor, self.site.step, self.site.config.heads_per_kv)

    @property
    def incoming(self) -> Quantity:
        return Quantity(self.symbol, self.at_row(self.g))

    def input_at_row(self, number: int) -> Quantity:
        step = self.site.source_steps[number]
        return Quantity(step.name, self.row.of(self.site.input(number), step, self.site.config.heads_per_kv))

    def head_of(self, step: Step) -> int:
        """The index of the row's query head on the head axis of ``step``."""
        return (self.row.head or 0) // (self.site.config.heads_per_kv if "kv head" in step.axes else 1)

    @property
    def query_heads(self) -> range:
        """The heads of the later step that use the row."""
        head, later = self.head_of(self.row.step), self.site.step
        shared = self.site.config.heads_per_kv if "kv head" in self.row.step.axes and "kv head" not in later.axes else 1
        return range(head * shared, (head + 1) * shared)


class Operation(ABC):
    """How a step is computed. ``words`` describes it; ``fused``: torch's fused attention computes it too.

    ``distribution``: its rows are shares of 1, or of what a sink leaves (see ``whole``). ``side_by_side``: its module
    returns heads concatenated, (T, H·D). ``deciding``: the inputs, by number, that only decide and have no gradient.
    ``over_tokens``: it needs all rows of its input at once. ``remembers``: the inputs, by number, that a cache stores
    for all tokens so far, with their names there. ``pointwise``: each number depends only on the inputs' numbers at the
    same index. ``hides_ahead``: it is 0 wherever a key comes after its query. ``has_state``: it reads what tokens wrote
    into a state, which ``written`` gives. ``mixes_heads``: what it gives for one head depends on the inputs of others.
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
    has_state: ClassVar[bool] = False
    mixes_heads: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def forward(self, *inputs: Tensor) -> Tensor:
        """The step from its inputs; for an operation with parameters, see ``derive``."""
        raise TypeError(f"{type(self).__name__} has parameters: it is computed by its module")

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        """The module that runs the step in a model; its parameters are not initialised."""
        sizes, shapes = config.sizes, dict[str, tuple[int, ...] | None]()
        for parameter in self.parameters(step):
            shape = [] if parameter.absent else [sizes[axis] for axis in parameter.axes]
            if parameter.transposed and shape:
                shape[-2], shape[-1] = shape[-1], shape[-2]
            shapes[parameter.attribute] = None if parameter.absent else tuple(shape)
        return StepModule(self, shapes)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Initialise the parameters: matrices and tables normal with ``std``, gains 1, biases 0."""
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() >= 2 and name != "bias":
                parameter.normal_(0.0, std, generator=generator)
            else:
                parameter.fill_(1.0 if name == "weight" else 0.0)

    def arguments(self, now: Pass, *inputs: Tensor) -> tuple[Any, ...]:
        """The arguments for a module that is no StepModule: one of torch, or of a user."""
        return inputs

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        """The step in a model, with a batch axis (B, …), from its inputs and the parameters of ``module``."""
        return self.forward(*inputs)

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        """A function for the step of one new token, (…, C) or (…, H, D), on arrays of ``kernels``; None without one.

        ``module`` runs the step in the model.
        """
        return kernels.pointwise(self.forward) if self.pointwise else None

    def for_expert(self, module: Any, number: int, *inputs: Tensor) -> Tensor:
        """The step of expert ``number``, for the tokens that are sent to it."""
        return self.forward(*inputs)

    def whole(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        """The sum that each row of a distribution must have; it broadcasts to (H, Q)."""
        return torch.ones(())

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        """The step from its recorded inputs, computed as the model does; ``heads`` selects query heads."""
        return self.forward(*site.inputs(heads))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the inputs from the gradient ``g`` of the step, without autograd."""
        return ()

    def side(self, number: int, x: Tensor) -> Tensor | None:
        """On which side of a kink each number of an input lies; None where the operation has no kink."""
        return None

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The gradients of the step's parameters, by their names in the model."""
        return iter(())

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        """The parameters of ``step``, including those that this model lacks, with the reason."""
        return ()

    def matrix(self, module: Any) -> Any:
        """The whole matrix (out, in) of a linear map; None where it has none of its own."""
        return module.weight

    @abstractmethod
    def code(self, site: Site) -> str:
        """The step as lines of PyTorch, from its inputs (``site.names``) and ``operands``; T is the number of tokens.

        The last line assigns ``site.variable``. The layout is that of a trace, without a batch axis.
        """

    def operands(self, site: Site) -> dict[str, Tensor]:
        """The parameters of the step as stored, by their names in its ``code``."""
        present = (parameter for parameter in self.parameters(site.step) if not parameter.absent)
        return {parameter.name.translate(_IN_CODE): getattr(site.module, parameter.attribute) for parameter in present}

    @abstractmethod
    def arithmetic(self, cell: Cell) -> Working:
        """One cell of the step, worked out in float64 from the recorded cells of its inputs."""

    def summand(self, to: Consumer) -> Summand:
        """The contribution of a step of this operation to one row of the gradient of its input."""
        raise TypeError(f"{self.words} has no input that a gradient could go to")

    def written(self, site: Site, core: Sequence[Site], head: int) -> Written:
        """What each token writes into the state of a head; ``core`` are the core steps of its mixer, of which it is."""
        raise TypeError(f"{self.words} reads no state")

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        """Multiply-adds of one layer's step for ``tokens`` queries that look at ``keys`` keys.

        0 for norms, activations and sums, whose work is linear in the size of the output, as is usual in such counts.
        """
        return 0


def wide(x: Tensor) -> Tensor:
    """16-bit numbers in float32: torch's own kernels sum in it, and float16 overflows at 256²."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def summed(g: Tensor) -> Tensor:
    """The sum over every axis but the last: the gradient of a vector added to each token, (…, C) -> (C,)."""
    return g.flatten(0, -2).sum(dim=0)


def in_float32(name: str, x: Tensor) -> str:
    """The code of ``wide`` for the variable ``name``, which holds x."""
    return f"{name}.float()" if wide(x) is not x else name


def side_by_side(heads: Tensor) -> Tensor:
    """(…, H, T, D) -> (…, T, H·D)."""
    return heads.transpose(-3, -2).flatten(-2)


def into_heads(x: Tensor, d_head: int) -> Tensor:
    """(…, T, H·D) -> (…, H, T, D)."""
    return x.unflatten(-1, (-1, d_head)).transpose(-3, -2)


def of_query_heads(x: Tensor, site: Site, heads: tuple[int, ...] | None) -> Tensor:
    """The heads of x that serve some query heads (None: all heads); a shared key or value head may occur repeatedly."""
    shared = site.config.heads_per_kv if "kv head" in site.step.axes else 1
    return x if heads is None else x[[head // shared for head in heads]]


def by_group(x: Tensor, shared: Tensor) -> Tensor:
    """(H, …) -> (G, H/G, …), to match ``shared`` (G, …)."""
    return x.unflatten(0, (len(shared), -1))


def repeats(site: Site, number: int) -> int:
    """How many heads of a step take each head of its input ``number``."""
    shared = "kv head" in site.source_steps[number].axes and "kv head" not in site.step.axes
    return site.config.heads_per_kv if shared else 1


def repeat_groups(x: Tensor, n_heads: int) -> Tensor:
    """Repeat each of G key or value heads for its n_heads / G query heads: (…, G, T, D) -> (…, H, T, D)."""
    groups = x.shape[-3]
    return x if groups == n_heads else x.repeat_interleave(n_heads // groups, dim=-3)


def width_of(site: Site) -> int:
    """The size of the last axis of a step."""
    return site.config.sizes[site.step.axes[-1]]


def dimension(axis: str, number: int, config: ModelConfig) -> str:
    """The label of one number of a row: ``d17``, ``unit 203`` in a feed-forward, ``head 2 d5`` in joined heads."""
    if axis in ("d_ff", "d_expert", "d_shared"):
        return f"unit {number}"
    if axis == "expert":
        return f"expert {number}"
    if axis == "d_model·near":
        d, place = divmod(number, config.side_width)
        return f"d{d} of the token {place - config.side_width // 2:+d}"
    if axis.startswith(("n_heads·", "index_heads·")):
        head, inner = divmod(number, config.sizes[axis.partition("·")[2]])
        return f"head {head} d{inner}"
    if axis in ("streams·d_model", "others·d_model"):
        stream, inner = divmod(number, config.d_model)
        return f"stream {stream + axis.startswith('others')} d{inner}"
    return f"d{number}"
