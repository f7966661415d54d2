"""A row of the step table: what a step is, and which operation computes it. Free of torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import ModuleType

Config = Any
"""A ModelConfig, untyped because its module imports the parts; inside a layer, the layer's configuration."""
Predicate = Callable[[Config], bool]
Make = Callable[["ModuleType", Config], Any]
"""Makes a configuration's operation; takes the module of operations, which imports torch, as an argument."""


def make_linear(operations: "ModuleType", bias: bool, groups: int) -> Any:
    """The operation of a linear map: with one matrix, or one for each of several ``groups`` of numbers."""
    return operations.GroupedLinear(bias, groups) if groups > 1 else operations.Linear(bias)


def grouped_words(groups: int) -> str:
    """The end of the formula of such a map."""
    return f", in {groups} groups" if groups > 1 else ""


WIDE = ("token", "d_model")
EMBEDDED, SUMMED, HEAD = ("token", "<embedded>"), ("token", "<summed>"), ("token", "<head>")
"""The axes of token embeddings, of their sum with positions and types, and of the hidden states that are unembedded."""
STREAM, STREAMS, OTHERS = ("token", "<stream>"), ("token", "streams·d_model"), ("token", "others·d_model")
"""The axes of what runs through all layers: one stream or several side by side, several, and all but the first."""
HEADS, KV, VALUES = ("head", "token", "d_head"), ("kv head", "token", "d_head"), ("kv head", "token", "d_value")
OF_HEADS, MAP = ("head", "token", "d_value"), ("head", "query", "key")
CROSS_MAP = ("head", "query", "source")
"""The axes of a map from the tokens of this stack to those of the one that it reads."""
ROUTES, PAIRS = ("token", "expert"), ("query", "key")
KV_PAIRS = ("kv head", *PAIRS)
TEXT_AXES = ("token", "query", "key", "source")
"""The axes of tokens; those of a source are of the text that another stack read."""


class Nearest(str):
    """An input that stands for the nearest row above with this role and these axes."""

    role: str
    axes: tuple[str, ...]

    def __new__(cls, role: str, axes: tuple[str, ...]) -> Self:
        nearest = super().__new__(cls, f"<{role} ({', '.join(axes)})>")
        nearest.role, nearest.axes = role, axes
        return nearest


RESIDUAL, ATTN, FFN = (Nearest(role, WIDE) for role in ("residual", "attention", "ffn"))
Q, K, V, SCORES = Nearest("q", HEADS), Nearest("k", KV), Nearest("v", VALUES), Nearest("attention", MAP)


@dataclass(frozen=True)
class Step:
    """One row of the step table.

    ``name`` is short (``scores``); in a layer the full name is ``L0.scores``. ``inputs`` are short names too; one
    in <…> stands for other steps: the ``Nearest`` row above, or the steps that its part names in ``inputs``. A
    ``formula`` calls its inputs {0}, {1}, …, or {inputs} for their sum; other rows write the step as its
    ``symbol``, if it has one. ``operation`` computes the step from them, with the parameters of ``module`` (a path
    from the block for a step in a layer, else from the model); ``matrix`` names the module's matrix, table or gain,
    and is empty where it has none. ``role`` decides the accent colour in every view.

    ``recorded`` steps are stored during the forward pass; the others are derived from them on demand. ``core``: part of
    the attention core; ``in_experts``: between a router and the sum over experts; ``from_stream``: reads the residual
    stream of the layer below; ``to_loss``: the loss depends on it; ``shared``: all layers have the same parameters;
    ``own``: each layer has its own, even of those that take turns with sets of weights;
    ``mixer``: only layers with this kind of mixer have the row; ``lent``: it takes the second input of that step
    of an earlier layer, its keys, values or chosen keys, or that step itself where it has its own name; ``below``: it
    takes the same step of so many layers below.

    Every step has a module in the model that can be hooked: the one with its parameters, else one named after the step,
    or at the path ``at``. Parameters of ``late`` rows are registered, and drawn from the seed, after all others.
    """

    name: str
    title: str
    formula: str
    axes: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    role: str = "residual"
    in_layer: bool = True
    recorded: bool = False
    when: Predicate = lambda _: True
    mixer: str = ""
    absent: str = ""
    make: Make | None = None
    module: str = ""
    matrix: str = "W"
    at: str = ""
    late: bool = False
    core: bool = False
    in_experts: bool = False
    from_stream: bool = False
    to_loss: bool = True
    shared: bool = False
    lent: str = ""
    below: int = 0
    own: bool = False
    symbol: str = ""
    operation: Any = None
    reads: str = ""

    def is_in(self, config: Config) -> bool:
        """Whether a model or layer of this configuration has the row."""
        return self.mixer in ("", config.mixer) and self.when(config)

    @property
    def path(self) -> str:
        """The path of the step's module, from the block for a step in a layer, else from the model."""
        return self.at or self.module or self.name

    def full_name(self, layer: int | None) -> str:
        """``L0.scores`` for a step of a layer, else the name itself."""
        return f"L{layer}.{self.name}" if self.in_layer else self.name

    @property
    def parameter(self) -> str:
        """The name of its matrix, table or gain in addresses: a letter of its own (``W_Q``) or ``step.gain``."""
        if self.matrix in ("W", "gain"):
            return f"{self.name}.{self.matrix}"
        return f"{self.name.partition('.')[0]}.{self.matrix}" if self.role == "ffn" else self.matrix

    @property
    def has_heads(self) -> bool:
        return "head" in self.axes or "kv head" in self.axes

    @property
    def of_experts(self) -> bool:
        """Whether it has a tensor for each expert."""
        return self.axes[:1] == ("expert",)

    @property
    def token_axis(self) -> int | None:
        """The index of its axis of tokens or queries; None where it has neither."""
        return next((number for number, axis in enumerate(self.axes) if axis in ("token", "query")), None)

    @property
    def is_split(self) -> bool:
        """Whether an address may select one head or expert of it."""
        return self.has_heads or self.of_experts

    @property
    def letter(self) -> str:
        """The letter before the number of a head or expert in an address: L3H5, L3E5."""
        return "E" if self.of_experts else "H"

    def parts(self, config: Config) -> int:
        """How many heads or experts an address may name."""
        return int(config.experts if self.of_experts else config.n_heads)

    def part_numbers(self, config: Config) -> range:
        """The heads or experts that have their own tensor; query heads that share a key head count once."""
        if self.of_experts:
            return range(config.experts)
        return range(0, config.n_heads, config.heads_per_kv if "kv head" in self.axes else 1)

    @property
    def is_tensor(self) -> bool:
        return bool(self.axes)

    @property
    def runs(self) -> bool:
        """Whether a forward pass computes it; probabilities and the pooled token are computed afterwards."""
        return self.operation is not None and (self.to_loss or self.in_layer)

    @property
    def is_map(self) -> bool:
        """Whether it has a number for every query and key."""
        return self.axes[-2:] in (("query", "key"), CROSS_MAP[1:])

    @property
    def of_source(self) -> bool:
        """Whether one of its axes is of the tokens of the stack that this one reads."""
        return "source" in self.axes

    @property
    def is_drawn(self) -> bool:
        """Whether views draw it as a map: of queries and keys, or of tokens and experts."""
        return self.is_map or self.axes == ROUTES

    @property
    def is_vocabulary(self) -> bool:
        """Whether it has a number for every token of the vocabulary, or for every class of the head.

        Such a step is computed only at the positions asked for.
        """
        return self.axes[-1:] in (("vocab",), ("label",))

    @property
    def holds_shares(self) -> bool:
        """Whether each of its rows holds shares of 1, all of it or what a sink leaves."""
        return self.operation is not None and self.operation.distribution

    @property
    def is_choice(self) -> bool:
        """Whether it only chooses experts or keys: no gradient reaches it or passes through it."""
        return self.axes in (ROUTES, PAIRS, KV_PAIRS) and not self.to_loss

    @property
    def in_stream(self) -> bool:
        """Whether it is a recorded state of the residual stream in a layer, or an addition to it."""
        return self.in_layer and self.recorded and self.axes in (WIDE, STREAMS)

    @property
    def can_intervene(self) -> bool:
        """Whether it can be ablated and patched: a step of a layer that the model computes, with a row a token."""
        rows_are_tokens = self.axes[-2:-1] in (("token",), ("query",))
        return self.in_layer and self.runs and rows_are_tokens and not self.is_choice
