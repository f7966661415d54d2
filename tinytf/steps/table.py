"""The step table: every step between text and prediction, its operation, and where the model computes it.

The model, recorder, check, taps, gradients, explanation, views, addresses, JSON and documentation all read this table.
A model's table lists only the steps that its architecture has, layer by layer, since layers may differ; it says why
each other step is absent. STEPS is free of torch, so that names can be completed without importing it; the rows of a
model's table hold operations, which need torch.
"""

import copyreg
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from tinytf.config import ModelConfig
from tinytf.errors import ConfigError
from tinytf.parts import (
    added_conv,
    altup,
    attention,
    block,
    blocks,
    cross,
    embedding,
    feed_forward,
    gated_delta,
    gated_streams,
    head,
    hyper,
    indexer,
    kimi_delta,
    layer_inputs,
    mamba,
    mamba2,
    memory,
    ngrams,
    norm,
    pooling,
    positions,
    recurrence,
    side_conv,
)
from tinytf.parts.row import ROUTES, STREAMS, Nearest, Step

if TYPE_CHECKING:
    from types import ModuleType

    from tinytf.steps.operations import Parameter

T = TypeVar("T")
StepKey = tuple[str, int | None]
"""A step's short name and its layer; None outside the layers."""


def _row_number(step: Step) -> int:
    """The number in STEPS of the row that a step fills in for a model."""
    return _ROW_NUMBERS[step.name, step.title, step.mixer, step.when]


def _of_row(row_number: int, changes: dict[str, Any]) -> Step:
    return replace(STEPS[row_number], **changes)


def _pickled(step: Step) -> tuple[Callable[..., Step], tuple[int, dict[str, object]]]:
    """Pickle a step as its row number in STEPS and the fields that differ there, since lambdas cannot be pickled."""
    row_number = _row_number(step)
    values = {field.name: getattr(step, field.name) for field in fields(step)}
    changes = {name: value for name, value in values.items() if value is not getattr(STEPS[row_number], name)}
    return _of_row, (row_number, changes)


copyreg.pickle(Step, _pickled)

RENAMED = {"heads": "head_out"}
"""Former step names, which scripts and recordings may still use, and their present names."""

STEPS: tuple[Step, ...] = (
    *embedding.ROWS, *cross.SOURCE, *altup.AFTER_EMBEDDING, hyper.AFTER_EMBEDDING, *block.ROWS, *altup.MERGED,
    *hyper.MERGED, *gated_streams.FINAL, *norm.FINAL, head.READ,
    *pooling.ROWS, *head.ROWS,
)  # fmt: skip
"""Every row that any model can have, in order of computation."""
_ROW_NUMBERS = {(row.name, row.title, row.mixer, row.when): number for number, row in enumerate(STEPS)}
_FORMULAS = tuple(
    part.formulas
    for part in (
        embedding, norm, attention, blocks, indexer, recurrence, gated_delta, kimi_delta, mamba2, positions,
        feed_forward, layer_inputs, side_conv, added_conv, altup, hyper, ngrams, pooling, head,
    )
)  # fmt: skip
_INPUTS = tuple(
    part.inputs
    for part in (
        embedding, norm, attention, cross, blocks, indexer, gated_delta, mamba2, mamba, memory, positions, feed_forward,
        layer_inputs,
        altup, hyper, ngrams, pooling, head,
    )
)  # fmt: skip


def _merged(of_parts: Iterable[dict[str, T]]) -> dict[str, T]:
    """What stands for each placeholder; raises AssertionError if two parts define one."""
    merged: dict[str, T] = {}
    for of_part in of_parts:
        if twice := sorted(merged.keys() & of_part.keys()):
            raise AssertionError(f"two parts define the placeholder {twice[0]}")
        merged |= of_part
    return merged


@lru_cache(maxsize=256)
def _words(config: ModelConfig) -> dict[str, str]:
    """The words that fill the placeholders in formulas for this model."""
    return _merged(formulas(config) for formulas in _FORMULAS)


def _inputs(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs stands for in this model."""
    return _merged(inputs(config) for inputs in _INPUTS)


def _resolved(config: ModelConfig, operations: "ModuleType | None") -> Iterator[Step]:
    """Yield the rows of a model whose layers all have this configuration, with placeholders filled in.

    Without the module of operations, which imports torch, they have none.
    """
    words, substitutes = {**_words(config)}, _inputs(config)
    above: list[Step] = []
    present = [step for step in STEPS if step.is_in(config)]
    tensors = {step.name for step in present if step.is_tensor}
    for step in present:
        names = [source for name in step.inputs for source in substitutes.get(name, (name,))]
        # again, since the input of a head may itself be a placeholder: that of the last hidden state
        names = [source for name in names for source in substitutes.get(name, (name,))]
        inputs = tuple(_found(name, above, config) if isinstance(name, Nearest) else name for name in names)
        rows = {row.name: row for row in above}
        names = [_bare(name, step, tensors) for name in inputs]
        symbols = [rows[name].symbol if name in rows else "" for name in inputs]
        operands = [symbol or name for name, symbol in zip(names, symbols, strict=True)]
        words["inputs"] = " + ".join(
            "x" if symbol == "x" else name for name, symbol in zip(names, symbols, strict=True)
        )
        first = rows.get(inputs[0]) if inputs else None
        resolved = replace(
            step,
            formula=step.formula.format(*operands, **words).format(*operands),  # again, since words name inputs too
            axes=_axes(step.axes, config),
            inputs=inputs,
            matrix=step.matrix.format_map(words),
            operation=step.make(operations, config) if step.make and operations else None,
            reads=first.axes[-1] if first is not None and first.axes else "",
        )
        above.append(resolved)
    shared = config.n_kv_heads == config.n_heads
    for step in above:
        if shared and "kv head" in step.axes:
            step = replace(step, axes=tuple("head" if axis == "kv head" else axis for axis in step.axes))
        yield step


def _bare(name: str, reader: Step, tensors: Container[str]) -> str:
    """An input's name in the formula of ``reader``: without a prefix that both have, unless that is another step."""
    bare = name.removeprefix(reader.name.partition(".")[0] + ".")
    return name if bare in tensors else bare


def _axes(axes: tuple[str, ...], config: ModelConfig) -> tuple[str, ...]:
    """Axes with the widths of embeddings and values under the names that this model uses."""
    widths = {"<embedded>": config.embed_width, "<summed>": config.summed_width, "<head>": config.head_width}
    narrow = {axis: "d_unembed" if axis == "<head>" and config.d_unembed else "d_embed" for axis in widths}
    stream = STREAMS[-1] if config.extra_streams else "d_model"
    axes = tuple(stream if axis == "<stream>" else axis for axis in axes)
    renamed = ("d_model" if widths.get(axis) == config.d_model else narrow.get(axis, axis) for axis in axes)
    values_as_wide = config.value_width == config.d_head
    return tuple(axis.replace("d_value", "d_head") if values_as_wide else axis for axis in renamed)


def _absent(config: ModelConfig) -> Iterator[Step]:
    """Yield the rows with parameters that a model of this configuration lacks."""
    from tinytf.steps import operations

    words = _words(config)
    for step in STEPS:
        if step.module and step.make and not step.is_in(config):
            operation = step.make(operations, config)
            yield replace(
                step, axes=_axes(step.axes, config), matrix=step.matrix.format_map(words), operation=operation
            )


def _parameters(step: Step) -> "tuple[Parameter, ...]":
    return step.operation.parameters(step) if step.operation else ()


def _found(nearest: Nearest, above: list[Step], config: ModelConfig) -> str:
    axes = _axes(nearest.axes, config)
    for step in reversed(above):
        if step.role == nearest.role and step.axes == axes:
            return step.name
    raise LookupError(f"no row above is {nearest}")


@lru_cache(maxsize=256)
def _rows(config: ModelConfig) -> tuple[Step, ...]:
    from tinytf.steps import operations

    return tuple(_resolved(config, operations))


def described(config: ModelConfig) -> dict[str, tuple[Step, int]]:
    """The steps of a model by short name, and the first layer that has each; without operations, free of torch."""
    first = {config.at(layer): layer for layer in reversed(range(config.n_layers))}
    steps: dict[str, tuple[Step, int]] = {}
    for kind, layer in sorted(first.items(), key=lambda item: item[1]):
        for step in _resolved(kind, None):
            steps.setdefault(step.name, (step, layer))
    return steps


@lru_cache(maxsize=256)
def table_of(config: ModelConfig) -> "StepTable":
    """The step table of a configuration; cached."""
    return StepTable(config)


class StepTable:
    """The steps of one architecture, in order of computation."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        model_rows = _rows(config)
        layers = [[step for step in _rows(config.at(layer)) if step.in_layer] for layer in range(config.n_layers)]
        first = next(i for i, step in enumerate(model_rows) if step.in_layer)
        before, after = model_rows[:first], [step for step in model_rows[first:] if not step.in_layer]
        self.rows: tuple[tuple[Step, int | None], ...] = (
            *((step, None) for step in before),
            *((step, layer) for layer, steps in enumerate(layers) for step in steps),
            *((step, None) for step in after),
        )
        self._sources: dict[StepKey, tuple[StepKey, ...]] = {}
        self.by_key: dict[StepKey, Step] = {(step.name, layer): step for step, layer in self.rows}
        first_rows: dict[str, Step] = {}
        for step, _ in self.rows:
            first_rows.setdefault(step.name, step)
        inside = [step for step in first_rows.values() if step.in_layer]
        self.layer_steps = tuple(sorted(inside, key=_row_number))
        self.before, self.after = tuple(before), tuple(after)
        self.by_name = {step.name: step for step in (*before, *self.layer_steps, *after)}
        self.embedded = next(step.name for step in reversed(before) if step.role == "residual")
        self.output = next(step.name for step in reversed(layers[-1]) if step.role == "residual")
        # The residual stream between attention and feed-forward; empty in a parallel block.
        # Of several streams, only the active one has that step, from which nothing is predicted.
        has_mid = "mid" in self.by_name and not config.extra_streams
        normed = config.at(config.n_layers - 1).norm_order == "post"
        self.mid_stream = "" if not has_mid else "norm1" if normed else "mid"
        self.normed = "final.norm" if "final.norm" in self.by_name else self.output
        self.final = "head.mean" if "head.mean" in self.by_name else self.normed
        self.last: StepKey = (self.final, config.n_layers - 1 if self.final == self.output else None)
        self.input = next(step.name for step in self.layer_steps if step.from_stream)
        mixing = next(step for step in self.layer_steps if step.core and step.recorded)
        self.head_out = mixing.name
        self.weights = "weights" if "weights" in self.by_name else mixing.inputs[0]  # not so where heads are mixed
        # The outputs of attention and feed-forward that are added to the residual stream, before any norm.
        self.added = tuple(step for step in self.layer_steps if step.in_stream and step.role != "residual")
        self.feed_forward = next((step for step in reversed(self.added) if step.name == "ffn"), self.added[-1])
        self.ffn_activation = self.feed_forward.inputs[0] if config.d_ff else ""

    def __reduce__(self) -> "tuple[Callable[[ModelConfig], StepTable], tuple[ModelConfig]]":
        return table_of, (self.config,)

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers whose attention weights are shares of 1."""
        maps = ((layer, self.by_key.get((self.weights, layer))) for layer in range(self.config.n_layers))
        return tuple(layer for layer, step in maps if step is not None and step.holds_shares)

    def map_of(self, layer: int) -> Step | None:
        """The map that multiplies the values in a layer: attention weights, or another mixer's; None without a map."""
        if not self.has(self.head_out, layer):
            return None
        name = self.weights if self.has(self.weights, layer) else self.at(self.head_out, layer).inputs[0]
        mixed = self.at(name, layer)
        return mixed if mixed.is_map else None

    def mixes_heads(self, layer: int) -> bool:
        """Whether what one head of a layer gives depends on the inputs of others, through steps inside attention."""
        return any(step.operation is not None and step.operation.mixes_heads for step in self.in_layer(layer))

    def head_output(self, layer: int) -> Step | None:
        """The output of each head of a layer: the step whose heads are concatenated; None without a mixer."""
        return self.at(self.at("concat", layer).inputs[0], layer) if self.has("concat", layer) else None

    def added_in(self, layer: int) -> tuple[Step, ...]:
        """The outputs of attention and feed-forward that a layer adds to the stream."""
        if layer in self._giving:
            return ()
        return tuple(step for step in self.added if self.has(step.name, layer) and step.name != "memory.out")

    def summand(self, added: Step, layer: int) -> Step:
        """What a layer adds to the stream of an output of attention or feed-forward: itself, normed or scaled.

        An output that is not added there, such as that of a layer whose attention gives to another, is itself.
        """
        is_added = added.name in {step.name for step in self.added_in(layer)}
        return (added, *self.to_stream(added, layer))[-2] if is_added else added

    @cached_property
    def over_vocabulary(self) -> tuple[Step, ...]:
        """The steps from the product with the unembedding to the logits; one, unless logits are scaled or capped."""
        return tuple(step for step in self.by_name.values() if step.is_vocabulary and step.to_loss)

    @cached_property
    def expert_out(self) -> str:
        """The name of the step that the sum over experts adds up; empty in a model without experts."""
        from tinytf.steps.operations import SumExperts

        sums = (step for step, _ in self.rows if isinstance(step.operation, SumExperts))  # a dense layer has a ffn too
        return next((step.inputs[0] for step in sums), "")

    @cached_property
    def _feed_forward(self) -> tuple[Step, ...]:
        return tuple(step for step in self.layer_steps if step.role == "ffn")

    @cached_property
    def choice(self) -> str:
        """The name of the step that sends each token to experts, 1 or 0; empty in a model without experts."""
        from tinytf.steps.operations import Choose, ChooseById

        choices = (step.name for step in self._feed_forward if isinstance(step.operation, Choose | ChooseById))
        return next(choices, "")

    def chosen_keys(self, layer: int | None) -> tuple[StepKey, ...]:
        """The step of a layer that chooses the keys which its mask shows; empty without an indexer."""
        rows = () if layer is None else self.in_layer(layer)
        return tuple((step.name, layer) for step in rows if step.is_choice and step.is_map and step.recorded)

    def of_blocks(self, step: Step, layer: int | None) -> bool:
        """Whether the keys of a map after the mask are blocks of tokens."""
        from tinytf.steps.operations import Mask

        while not isinstance(step.operation, Mask) and step.inputs and (first := self.at(step.inputs[0], layer)).is_map:
            step = first
        return isinstance(step.operation, Mask) and step.operation.sight.every > 0

    @cached_property
    def routes(self) -> str:
        """The name of the step that weights the chosen experts; empty in a model without experts."""
        names = (step.name for step in self._feed_forward if step.in_experts and step.axes == ROUTES and step.to_loss)
        return next(names, "")

    @property
    def vector_steps(self) -> tuple[Step, ...]:
        """The steps from the last hidden states to the vector of the text; empty without pooling."""
        return tuple(step for step in self.after if step.path.startswith("pooling."))

    @property
    def probabilities(self) -> Step | None:
        """The step after the logits, on which no loss depends; None where the head gives a number."""
        return next((step for step in self.by_name.values() if step.is_vocabulary and not step.to_loss), None)

    @property
    def chooses(self) -> bool:
        """Whether each row of the logits becomes one distribution, over tokens or over classes."""
        return self.probabilities is not None and self.probabilities.holds_shares

    @property
    def unembedded(self) -> Step:
        """The step that is linear in the last hidden state."""
        return self.over_vocabulary[0]

    @property
    def stream_norms(self) -> tuple[Step, ...]:
        """The norms of a block that act on its additions to the residual stream, or on the stream itself."""

        from tinytf.steps.operations import Add, Norm

        def streams(step: Step) -> bool:
            first = next(layer for layer in range(self.config.n_layers) if self.has(step.name, layer))
            added = any(isinstance(later.operation, Add) for later, _, _ in self.consumers((step.name, first)))
            return isinstance(step.operation, Norm) and (added or step.name in self.stream(first))

        return tuple(step for step in self.layer_steps if streams(step))

    @property
    def stream_scales(self) -> tuple[Step, ...]:
        """The steps that multiply the residual stream itself by a number."""
        from tinytf.steps.operations import LayerScale

        return tuple(step for step in self.layer_steps if type(step.operation) is LayerScale)

    def has_own(self, step: Step, layer: int | None) -> bool:
        """Whether this step is the first one computed with the parameters of its module."""
        if layer is not None and self.first_layer_with(step.module, layer) != layer:
            return False
        return step.name == self._first_users[step.module]

    @cached_property
    def _first_users(self) -> dict[str, str]:
        return {step.module: step.name for step, _ in reversed(self.rows)}

    def first_layer_with(self, module: str, layer: int) -> int:
        """The first layer with the parameters that this module has in ``layer``: ``layer`` itself, unless shared."""
        if module in self._shared_modules:
            return 0
        if layer in self._giving and module not in self._own_modules:
            return self._giving[self._giving.index(layer) % self.config.memory_sets]
        return self.config.first_of(layer)

    @property
    def shares(self) -> bool:
        """Whether layers share parameters."""
        return bool(self._shared_modules or self.config.layer_groups or self._giving)

    @cached_property
    def _shared_modules(self) -> frozenset[str]:
        return frozenset(step.module for step in self.layer_steps if step.shared)

    @cached_property
    def _own_modules(self) -> frozenset[str]:
        return frozenset(step.module for step in self.layer_steps if step.own)

    @cached_property
    def _giving(self) -> tuple[int, ...]:
        """The layers beside the stream."""
        return tuple(layer for layer, block in enumerate(self.config.blocks) if block.memory.memory == "gives")

    def to_stream(self, added: Step, layer: int) -> tuple[Step, ...]:
        """The steps of a layer from an output of attention or feed-forward to the stream: norm or scale, then sum."""
        from tinytf.steps.operations import Add, MixStreams

        path = [added]
        while path[-1] is added or not isinstance(path[-1].operation, (Add, MixStreams)):  # experts + shared: Add too
            path.append(next(step for step in self.in_layer(layer) if path[-1].name in step.inputs))
        return tuple(path[1:])

    def at(self, name: str, layer: int | None) -> Step:
        """A step as it is in one layer; as in any other layer, where this one lacks it."""
        name = RENAMED.get(name, name)
        return self.by_key.get((name, layer)) or self.by_name[name]

    def has(self, name: str, layer: int | None) -> bool:
        return (name, layer) in self.by_key

    def in_layer(self, layer: int) -> tuple[Step, ...]:
        """The steps of one layer, in order of computation."""
        return tuple(step for step, row_layer in self.rows if row_layer == layer)

    def stream(self, layer: int) -> tuple[str, ...]:
        """The steps of a layer's residual stream, from its output up to its input."""
        names = [self.output]
        while not (step := self.at(names[-1], layer)).from_stream:
            inputs = (self.at(*place) for place in self.sources(step, layer))
            names.append(next(source.name for source in inputs if source.role == "residual"))
        return tuple(names)

    def branch_ends(self, step: Step, layer: int) -> tuple[str, ...]:
        """The ends of the branches that read ``step``: the steps that are added to the stream. Two may share a norm.

        A branch beside the stream ends with what the layer above takes.
        """
        users = [later for later in self.in_layer(layer) if (step.name, layer) in self.sources(later, layer)]
        on_stream = self.stream(layer)
        ends = [(step.name,) if user.name in on_stream else self.branch_ends(user, layer) for user in users]
        return tuple(dict.fromkeys(name for names in ends for name in names)) if users else (step.name,)

    def sources(self, step: Step, layer: int | None) -> tuple[StepKey, ...]:
        """The steps that ``step`` is computed from, in the order of its formula, across layers too; cached."""
        sources = self._sources.get((step.name, layer))
        if sources is None:
            sources = self._sources[step.name, layer] = self._find_sources(step, layer)
        return sources

    def _find_sources(self, step: Step, layer: int | None) -> tuple[StepKey, ...]:
        layers_below = self.config.n_layers if layer is None else layer
        if step.from_stream:
            return ((self.output, layers_below - 1),) if layers_below else ((self.embedded, None),)
        if step.below and layer is not None:
            source = layer - step.below
            if source < 0 or not self.has(step.name, source):
                raise ConfigError(f"layer {layer} takes {step.name} of layer {source}, which has none")
            return ((step.name, source),)
        if step.lent and layer is not None:
            lender = self.lender(step, layer)
            if step.lent == step.name:
                return ((step.name, lender),)
            return ((self.by_key[step.lent, lender].inputs[1], lender),)
        source_layer = self.config.n_layers - 1 if layer is None else layer
        steps = (self.by_key.get((name, source_layer)) or self.by_name[name] for name in step.inputs)
        return tuple((source.name, source_layer if source.in_layer else None) for source in steps if source.is_tensor)

    def lender(self, step: Step, layer: int) -> int:
        """The layer that a ``lent`` step is taken from: the last below with its own and the same window.

        For latent keys, the last whose heads share as wide a part.
        Raises ConfigError without one, or if its heads are others.
        """
        taker = self.config.at(layer)
        for below in range(layer - 1, -1, -1):
            lender = self.config.at(below)
            own = self.by_key.get((step.name, below))
            alike = ["window", "mixer", *(["rope_width"] if step.lent == step.name else [])]
            if own and not own.lent and all(getattr(lender, name) == getattr(taker, name) for name in alike):
                if any(getattr(lender, name) != getattr(taker, name) for name in ("n_kv_heads", "d_head", "d_value")):
                    raise ConfigError(
                        f"layer {layer} takes the {step.name} of layer {below}, but has heads of other sizes"
                    )
                return below
        raise ConfigError(f"no layer below layer {layer} has the {step.name} that it takes")

    def taken(self, layer: int) -> dict[str, StepKey]:
        """The steps outside a layer that it takes beside the stream, each by the one of its own that takes it."""
        readers = (step for step in self.in_layer(layer) if not step.from_stream)
        return {step.name: place for step in readers for place in self.sources(step, layer) if place[1] != layer}

    @cached_property
    def carried(self) -> dict[str, StepKey]:
        """The steps that later layers take beside the stream, by full name."""
        places = [place for layer in range(self.config.n_layers) for place in self.taken(layer).values()]
        return {self.at(*place).full_name(place[1]): place for place in places}

    @cached_property
    def reads_text(self) -> bool:
        """Whether layers read the text beside the stream: its ids, or its embeddings."""
        of_embeddings = any(layer is None for _, layer in self.carried.values())
        return of_embeddings or self.config.experts_by_id or any("ids" in step.inputs for step in self.layer_steps)

    @cached_property
    def convolves(self) -> bool:
        """Whether steps of layers read a few earlier tokens, of which a cache keeps a window."""
        from tinytf.steps.operations import LookupNgrams, ShortConv

        return any(isinstance(step.operation, LookupNgrams | ShortConv) for step in self.layer_steps)

    @property
    def reads_beside(self) -> bool:
        """Whether layers read anything beside the stream."""
        return bool(self.carried) or self.reads_text or self.config.segments

    def consumers(self, place: StepKey) -> tuple[tuple[Step, int | None, int], ...]:
        """The steps computed from ``place`` on the way to the loss: each with its layer and the number of the input."""
        return tuple(self._consumers.get(place, ()))

    @cached_property
    def _consumers(self) -> dict[StepKey, list[tuple[Step, int | None, int]]]:
        consumers: dict[StepKey, list[tuple[Step, int | None, int]]] = {}
        for step, layer in self.rows:
            for number, source in enumerate(self.sources(step, layer) if step.to_loss else ()):
                consumers.setdefault(source, []).append((step, layer, number))
        return consumers

    def only_through_maps(self, step: Step, layer: int | None) -> bool:
        """Whether the loss depends on a step only through attention weights.

        A query that sees a single key gives it weight 1 whatever the scores, so the loss does not depend on them there.
        """
        consumers = [(consumer, at) for consumer, at, _ in self.consumers((step.name, layer))]
        return bool(consumers) and all(
            (consumer.is_map and consumer.holds_shares) or self.only_through_maps(consumer, at)
            for consumer, at in consumers
        )

    def has_parameter(self, name: str, layer: int) -> bool:
        """Whether a layer has the parameter of that name."""
        found = self._parameters_of_rows.get((name, layer))
        return found is not None and not found[1].absent

    def parameter(self, name: str, layer: int | None) -> "tuple[Step, Parameter]":
        """A parameter as it is in one layer, with the step computed with it there."""
        return self._parameters_of_rows.get((name, layer), self.parameters[name])

    @cached_property
    def _parameters_of_rows(self) -> "dict[tuple[str, int | None], tuple[Step, Parameter]]":
        """The parameters of all rows by name and layer, each with the first step computed with it."""
        found: dict[tuple[str, int | None], tuple[Step, Parameter]] = {}
        for step, layer in self.rows:
            for own in _parameters(step):
                found.setdefault((own.name, layer), (step, own))
        return found

    def synonym(self, name: str, layer: int | None = None) -> str | None:
        """The name of the step that ``name`` is a synonym of in this architecture; None where it is no synonym.

        ``out`` means ``norm2`` in a post-norm block, ``ffn.added`` what the ``layer`` (or the first that has it) adds
        of ``ffn``, and a former name the present one.
        """
        if name in self.by_name:
            return None
        part, _, added = name.rpartition(".")
        if added == "added" and (step := self.by_name.get(part)) in self.added:
            having = [n for n in range(self.config.n_layers) if self.has(part, n)]
            return self.summand(step, layer if layer in having else having[0]).name
        target = {"embed.out": self.embedded, "out": self.output, **RENAMED}.get(name, name)
        return None if target == name else target

    @cached_property
    def parameters(self) -> "dict[str, tuple[Step, Parameter]]":
        """Every parameter that any model can have, by its name in addresses, with the step computed with it.

        Parameters of a layer have no layer in the name: ``W_Q``. One that this model lacks says why.
        """
        absent: dict[str, tuple[Step, Parameter]] = {}
        for step in _absent(self.config):
            reason = self.why_absent(step.name) or ""
            absent |= {p.name: (step, replace(p, absent=reason, same_as="")) for p in _parameters(step)}
        present: dict[str, tuple[Step, Parameter]] = {}
        for step, _ in self.rows:  # not by_name, which has one row of each name: ffn is another row with experts
            for parameter in _parameters(step):
                known = present.get(parameter.name)  # a later step may use it too, or be the first that has it
                if known is None or (known[1].absent and not parameter.absent):
                    present[parameter.name] = (step, parameter)
        return {name: entry for name, entry in absent.items() if name not in present} | present

    def why_absent(self, name: str, layer: int | None = None) -> str | None:
        """Why a step does not exist in this model or layer; None for a name that no model has."""
        config = self.config.at(layer)
        words, rows = _words(config), [step for step in STEPS if step.name == name]
        reasons = [step.absent.format_map(words) for step in rows if step.mixer in ("", config.mixer)]
        mixers = dict.fromkeys(step.mixer.replace("_", " ") for step in rows if step.mixer not in ("", config.mixer))
        reasons += [f"it is a step of {' and of '.join(mixers)}"] if mixers else []
        return next((reason for reason in reasons if reason), None)
