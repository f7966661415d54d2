"""A row of the step table: what a step is, and what makes it. Free of torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

Config = Any
"""A ModelConfig, which is made of parts and lies above them; inside a layer, that of the layer."""
Predicate = Callable[[Config], bool]
Make = Callable[["ModuleType", Config], Any]
"""Makes an operation of a configuration, from the module of operations, which imports torch."""

WIDE = ("token", "d_model")
EMBEDDED, SUMMED, HEAD = ("token", "<embedded>"), ("token", "<summed>"), ("token", "<head>")
"""As wide as the token embeddings, as their sum with positions and types, and as what the head unembeds."""
HEADS, KV, VALUES = ("head", "token", "d_head"), ("kv head", "token", "d_head"), ("kv head", "token", "d_value")
OF_HEADS, MAP = ("head", "token", "d_value"), ("head", "query", "key")
ROUTES = ("token", "expert")


@dataclass(frozen=True)
class Step:
    """One row of the step table.

    ``name`` is short (``scores``); in a layer the full name is ``L0.scores``. ``inputs`` are short names too; one in
    <…> stands for the nearest row above with that role and axes (``CHAINS`` of the table). ``operation`` makes the step
    of them, with the parameters of ``module`` (a path, from the block where the step is inside a layer, else from the
    model), whose matrix, table or gain is called ``matrix``, empty where a module has none. ``role`` is the accent that
    it has in every view. ``recorded`` steps are taken during the forward pass; the others are derived from them on
    first look. A ``core`` step is one of the attention core; ``in_experts`` are those between a router and the sum over
    experts. A ``from_stream`` step is the residual stream after the layer before. ``to_loss`` is false where no loss
    depends on a step. A ``shared`` step has the same parameters in every layer. Rows of a ``mixer`` are in the layers
    with that kind alone.

    Every step is made by a module of the model, which a hook may be put on: that with its parameters, else one called
    as the step is, or ``at`` another path. Parameters of a ``late`` row are registered, and drawn from the seed, after
    those of the rows that are not.
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
    operation: Any = None
    reads: str = ""

    def is_in(self, config: Config) -> bool:
        """Whether a model, or a layer, of this configuration has the row."""
        return self.mixer in ("", config.mixer) and self.when(config)

    @property
    def path(self) -> str:
        """Where the module is that makes the step; from the block, or from the model."""
        return self.at or self.module or self.name

    def full_name(self, layer: int | None) -> str:
        """``L0.scores`` for a step of a layer, else the name itself."""
        return f"L{layer}.{self.name}" if self.in_layer else self.name

    @property
    def parameter(self) -> str:
        """What addresses call its matrix, table or gain, which have a letter of their own or are called after it."""
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
        """The number of its axis of tokens, or of queries; None where it has neither."""
        return next((number for number, axis in enumerate(self.axes) if axis in ("token", "query")), None)

    @property
    def is_split(self) -> bool:
        """Whether an address may name a part of it: a head, or an expert."""
        return self.has_heads or self.of_experts

    @property
    def letter(self) -> str:
        """What stands before the number of a part in an address: L3H5, L3E5."""
        return "E" if self.of_experts else "H"

    def parts(self, config: Config) -> int:
        """How many heads, or experts, an address may name."""
        return int(config.experts if self.of_experts else config.n_heads)

    def part_numbers(self, config: Config) -> range:
        """The parts that have a tensor of their own; query heads that share a key head count once."""
        if self.of_experts:
            return range(config.experts)
        return range(0, config.n_heads, config.heads_per_kv if "kv head" in self.axes else 1)

    @property
    def is_tensor(self) -> bool:
        return bool(self.axes)

    @property
    def runs(self) -> bool:
        """Whether a forward pass makes it: not what is made of logits afterwards, or of the first token alone."""
        return self.operation is not None and (self.to_loss or self.in_experts)

    @property
    def is_map(self) -> bool:
        """Whether it has a number for every query and key."""
        return self.axes[-2:] == ("query", "key")

    @property
    def is_drawn(self) -> bool:
        """Whether it is a map to look at: of queries and keys, or of tokens and experts."""
        return self.is_map or self.axes == ROUTES

    @property
    def is_vocabulary(self) -> bool:
        """Whether it has a number for every token of the vocabulary, or for every class of the head.

        Such a step is computed only for the positions asked for.
        """
        return self.axes[-1:] in (("vocab",), ("label",))

    @property
    def is_distribution(self) -> bool:
        """Whether each of its rows holds shares of 1, all of it or what a sink leaves."""
        return self.operation is not None and self.operation.distribution

    @property
    def is_choice(self) -> bool:
        """Whether it only decides: it has no gradient, and none goes through it."""
        return self.axes == ROUTES and not self.to_loss

    @property
    def in_stream(self) -> bool:
        """Whether it is recorded in every layer and as wide as the residual stream: the stream, or what is added."""
        return self.in_layer and self.recorded and self.axes == WIDE

    @property
    def can_intervene(self) -> bool:
        """Whether it can be ablated and patched: the residual stream, and what heads, attention, feed-forward give."""
        return self.in_stream or (self.core and self.recorded)
