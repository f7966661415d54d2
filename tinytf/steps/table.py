"""The step table: every step between text and prediction, what makes it, and where the model computes it.

The one source that the model's attention, recorder, check, taps, gradients, explanation, views, addresses, JSON and
documentation read. A step is listed for a model only where its architecture has it, layer by layer, since the layers of
one model may differ; for the others the table says why it is absent. The rows are free of torch, so that names can be
completed without it; those of a model have operations, which are not.
"""

import copyreg
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from tinytf.config import ModelConfig
from tinytf.parts import attention, block, embedding, feed_forward, gated_delta, head, norm, positions, short_conv
from tinytf.parts.row import HEADS, KV, MAP, ROUTES, VALUES, WIDE, Step

if TYPE_CHECKING:
    from tinytf.steps.operations import Parameter

Place = tuple[str, int | None]
"""A step of the table by its short name, and the layer where it is inside one."""


def _of_row(number: int, own: dict[str, Any]) -> Step:
    return replace(STEPS[number], **own)


def _pickled(step: Step) -> tuple[Callable[..., Step], tuple[int, dict[str, object]]]:
    """Pickled by the number of its row in STEPS, whose functions have no names, and what is its own."""
    number = next(i for i, row in enumerate(STEPS) if (row.name, row.title) == (step.name, step.title))
    values = {one.name: getattr(step, one.name) for one in fields(step)}
    return _of_row, (number, {name: one for name, one in values.items() if one is not getattr(STEPS[number], name)})


copyreg.pickle(Step, _pickled)

RENAMED = {"heads": "head_out"}
"""Former names, which scripts and recordings may still use, to the present ones."""

CHAINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "<residual>": ("residual", WIDE),
    "<q>": ("q", HEADS),
    "<k>": ("k", KV),
    "<map>": ("attention", MAP),
    "<v>": ("v", VALUES),
    "<attn>": ("attention", WIDE),
    "<ffn>": ("ffn", WIDE),
}
"""What an input in <…> stands for: the nearest row above with this role and these axes."""

STEPS: tuple[Step, ...] = (*embedding.ROWS, *block.ROWS, *norm.FINAL, *head.ROWS)
"""Every row that some model has, in the order in which they happen."""
_PARTS = (embedding, norm, attention, gated_delta, short_conv, positions, feed_forward, head)


def _words(config: ModelConfig) -> dict[str, str]:
    """The words that the formulas of the table have for this model."""
    return {place: words for part in _PARTS for place, words in part.formulas(config).items()}


def _inputs(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The steps that a placeholder among the inputs stands for in this model, unless it is a chain."""
    return {place: names for part in _PARTS for place, names in part.inputs(config).items()}


def _resolved(config: ModelConfig) -> Iterator[Step]:
    """The rows that a model of this configuration has, with their words filled in; the same in every layer."""
    from tinytf.steps import operations

    words, several = _words(config), _inputs(config)
    above: list[Step] = []
    for step in STEPS:
        if not step.is_in(config):
            continue
        names = [one for name in step.inputs for one in several.get(name, (name,))]
        names = [one for name in names for one in several.get(name, (name,))]  # the last hidden state of a head's input
        inputs = tuple(_nearest(above, *CHAINS[name], config) if name in CHAINS else name for name in names)
        words["inputs"] = " + ".join("x" if name == "in" else name for name in inputs)
        words["map"] = inputs[0] if step.core else ""
        first = next((one for one in above if inputs and one.name == inputs[0]), None)
        resolved = replace(
            step,
            formula=step.formula.format_map(words),
            axes=_axes(step.axes, config),
            inputs=inputs,
            matrix=step.matrix.format_map(words),
            operation=None if step.make is None else step.make(operations, config),
            reads=first.axes[-1] if first is not None and first.axes else "",
        )
        above.append(resolved)
    shared = config.n_kv_heads == config.n_heads
    for step in above:
        yield replace(step, axes=tuple("head" if axis == "kv head" and shared else axis for axis in step.axes))


def _axes(axes: tuple[str, ...], config: ModelConfig) -> tuple[str, ...]:
    """Axes with those of embeddings and of values by their names in this model."""
    widths = {"<embedded>": config.embed_width, "<summed>": config.summed_width, "<head>": config.head_width}
    named = (
        "d_model" if widths.get(axis) == config.d_model else "d_embed" if axis in widths else axis for axis in axes
    )
    same = config.value_width == config.d_head
    return tuple(axis.replace("d_value", "d_head") if same else axis for axis in named)


def _absent(config: ModelConfig) -> Iterator[Step]:
    """The rows with parameters that a model of this configuration does not have."""
    from tinytf.steps import operations

    words = _words(config)
    for step in STEPS:
        if step.module and step.make and not step.is_in(config):
            made = step.make(operations, config)
            yield replace(step, axes=_axes(step.axes, config), matrix=step.matrix.format_map(words), operation=made)


def _parameters(step: Step) -> "tuple[Parameter, ...]":
    return step.operation.parameters(step) if step.operation else ()


def _nearest(above: list[Step], role: str, axes: tuple[str, ...], config: ModelConfig) -> str:
    named = _axes(axes, config)
    return next(step.name for step in reversed(above) if step.role == role and step.axes == named)


@lru_cache(maxsize=64)
def _rows(config: ModelConfig) -> tuple[Step, ...]:
    return tuple(_resolved(config))


@lru_cache(maxsize=64)
def table_of(config: ModelConfig) -> "StepTable":
    """The table of a configuration, made once."""
    return StepTable(config)


class StepTable:
    """The steps of one architecture, in the order in which they happen."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        whole = _rows(config)
        layers = [[step for step in _rows(config.at(number)) if step.in_layer] for number in range(config.n_layers)]
        first = next(i for i, step in enumerate(whole) if step.in_layer)
        before, after = whole[:first], [step for step in whole[first:] if not step.in_layer]
        self.rows: tuple[tuple[Step, int | None], ...] = (
            *((step, None) for step in before),
            *((step, number) for number, steps in enumerate(layers) for step in steps),
            *((step, None) for step in after),
        )
        self._sources: dict[Place, tuple[Place, ...]] = {}
        self.by_place: dict[Place, Step] = {(step.name, layer): step for step, layer in self.rows}
        found: dict[str, Step] = {}
        for step, _ in self.rows:
            found.setdefault(step.name, step)
        inside = [step for step in found.values() if step.in_layer]
        self.layer_steps = tuple(
            one for row in STEPS for one in inside if (one.name, one.title) == (row.name, row.title)
        )
        self.before, self.after = tuple(before), tuple(after)
        self.by_name = {step.name: step for step in (*before, *self.layer_steps, *after)}
        self.embedded = next(step.name for step in reversed(before) if step.role == "residual")
        self.output = next(step.name for step in reversed(layers[-1]) if step.role == "residual")
        # What the stream is between attention and feed-forward; empty where they stand side by side.
        self.between = "" if "mid" not in self.by_name else "norm1" if self.output == "norm2" else "mid"
        self.final = "final.norm" if "final.norm" in self.by_name else self.output
        self.input = next(step.name for step in self.layer_steps if step.from_stream)
        mixed = next(step for step in self.layer_steps if step.core and step.recorded)
        self.head_out = mixed.name
        self.weights = "weights" if "weights" in self.by_name else mixed.inputs[0]  # mixed over heads, it is another
        # What attention and the feed-forward give to the residual stream, before any norm.
        self.added = tuple(step for step in self.layer_steps if step.in_stream and step.role != "residual")
        self.activated = self.added[-1].inputs[0]

    def __reduce__(self) -> "tuple[Callable[[ModelConfig], StepTable], tuple[ModelConfig]]":
        return table_of, (self.config,)

    @cached_property
    def attending(self) -> tuple[int, ...]:
        """The layers that have maps of attention weights, shares of 1."""
        maps = ((layer, self.by_place.get((self.weights, layer))) for layer in range(self.config.n_layers))
        return tuple(layer for layer, step in maps if step is not None and step.is_distribution)

    def map_of(self, layer: int) -> Step | None:
        """What heads of a layer look at: attention weights, or another map that mixes tokens; None without a map."""
        if self.has(self.weights, layer):
            return self.at(self.weights, layer)
        mixed = self.at(self.at(self.head_out, layer).inputs[0], layer)
        return mixed if mixed.is_map else None

    def head_given(self, layer: int) -> Step:
        """What each head of a layer gives: the step whose heads are laid side by side."""
        return self.at(self.at("concat", layer).inputs[0], layer)

    @cached_property
    def over_vocabulary(self) -> tuple[Step, ...]:
        """The steps from the unembedded last hidden state to the logits: one, unless something is done in between."""
        return tuple(step for step in self.by_name.values() if step.is_vocabulary and step.to_loss)

    @cached_property
    def expert_out(self) -> str:
        """What each expert gives to the sum over experts; empty in a model without them."""
        from tinytf.steps.operations import SumExperts

        sums = (step for step in self.layer_steps if isinstance(step.operation, SumExperts))
        return next((step.inputs[0] for step in sums), "")

    @cached_property
    def choice(self) -> str:
        """Which experts each token is sent to, 1 or 0; empty in a model without experts."""
        from tinytf.steps.operations import Choose

        return next((step.name for step in self.layer_steps if isinstance(step.operation, Choose)), "")

    @cached_property
    def routes(self) -> str:
        """The weights of the experts that each token is sent to; empty in a model without experts."""
        found = (step.name for step in self.layer_steps if step.in_experts and step.axes == ROUTES and step.to_loss)
        return next(found, "")

    @property
    def probabilities(self) -> Step | None:
        """What is made of the logits, and no loss depends on; None where the head gives a number."""
        return next((step for step in self.by_name.values() if step.is_vocabulary and not step.to_loss), None)

    @property
    def chooses(self) -> bool:
        """Whether each row of the logits becomes one distribution, over tokens or over classes."""
        return self.probabilities is not None and self.probabilities.is_distribution

    @property
    def unembedded(self) -> Step:
        """The step that is linear in the last hidden state."""
        return self.over_vocabulary[0]

    @property
    def stream_norms(self) -> tuple[Step, ...]:
        """The norms of a block through which what it adds reaches the residual stream, or the stream itself goes."""

        from tinytf.steps.operations import Add, Norm

        def streams(step: Step) -> bool:
            added = any(isinstance(later.operation, Add) for later, _, _ in self.consumers((step.name, 0)))
            return isinstance(step.operation, Norm) and (added or step.name == self.output)

        return tuple(step for step in self.layer_steps if streams(step))

    def has_own(self, step: Step, layer: int | None) -> bool:
        """Whether no step before this one is made with the parameters of its module."""
        if layer is not None and self.first_with(step.module, layer) != layer:
            return False
        return step.name == self._first_made[step.module]

    @cached_property
    def _first_made(self) -> dict[str, str]:
        return {step.module: step.name for step, _ in reversed(self.rows)}

    def first_with(self, module: str, layer: int) -> int:
        """The first layer that has the parameters of this module of a layer: its own, unless they are shared."""
        return 0 if module in self._shared else self.config.first_of(layer)

    @property
    def shares(self) -> bool:
        """Whether layers share parameters."""
        return bool(self._shared or self.config.layer_groups)

    @cached_property
    def _shared(self) -> frozenset[str]:
        return frozenset(step.module for step in self.layer_steps if step.shared)

    def to_stream(self, added: Step) -> tuple[Step, ...]:
        """The steps through which what attention or the feed-forward adds goes: norm or scale, at last the sum."""
        from tinytf.steps.operations import Add

        way = [added]
        while way[-1] is added or not isinstance(way[-1].operation, Add):  # experts and a shared one are a sum too
            way.append(next(step for step in self.layer_steps if way[-1].name in step.inputs))
        return tuple(way[1:])

    def at(self, name: str, layer: int | None) -> Step:
        """A step as it is in one layer; where that layer has none, as it is in any."""
        name = RENAMED.get(name, name)
        return self.by_place.get((name, layer)) or self.by_name[name]

    def has(self, name: str, layer: int | None) -> bool:
        return (name, layer) in self.by_place

    def in_layer(self, layer: int) -> tuple[Step, ...]:
        """The steps of one layer, in their order."""
        return tuple(step for step, within in self.rows if within == layer)

    def sources(self, step: Step, layer: int | None) -> tuple[Place, ...]:
        """The steps that ``step`` is computed from, that of the layer below included, in the order of its formula."""
        known = self._sources.get((step.name, layer))
        if known is None:
            known = self._sources[step.name, layer] = self._find_sources(step, layer)
        return known

    def _find_sources(self, step: Step, layer: int | None) -> tuple[Place, ...]:
        below = self.config.n_layers if layer is None else layer
        if step.from_stream:
            return ((self.output, below - 1),) if below else ((self.embedded, None),)
        inside = self.config.n_layers - 1 if layer is None else layer
        found = (self.by_place.get((name, inside)) or self.by_name[name] for name in step.inputs)
        return tuple((source.name, inside if source.in_layer else None) for source in found if source.is_tensor)

    def consumers(self, place: Place) -> tuple[tuple[Step, int | None, int], ...]:
        """The steps computed from ``place`` on the way to the loss, each with its layer and which input it is."""
        return tuple(self._consumers.get(place, ()))

    @cached_property
    def _consumers(self) -> dict[Place, list[tuple[Step, int | None, int]]]:
        found: dict[Place, list[tuple[Step, int | None, int]]] = {}
        for step, layer in self.rows:
            for number, source in enumerate(self.sources(step, layer) if step.to_loss else ()):
                found.setdefault(source, []).append((step, layer, number))
        return found

    def only_through_maps(self, step: Step, layer: int | None) -> bool:
        """Whether the loss depends on a step only through scores: where a query sees one key, it does not at all."""
        after = [(later, within) for later, within, _ in self.consumers((step.name, layer))]
        return bool(after) and all(
            (later.is_map and later.is_distribution) or self.only_through_maps(later, within) for later, within in after
        )

    def has_parameter(self, name: str, layer: int) -> bool:
        """Whether a layer has the parameter of that name."""
        step = self.by_place.get((self.parameters[name][0].name, layer))
        return step is not None and any(one.name == name and not one.absent for one in _parameters(step))

    def parameter(self, name: str, layer: int | None) -> "tuple[Step, Parameter]":
        """A parameter as it is in one layer, with the step that is made with it there."""
        step, one = self.parameters[name]
        here = self.by_place.get((step.name, layer), step)
        return here, next((own for own in _parameters(here) if own.name == name), one)

    def synonym(self, name: str) -> str | None:
        """The step that ``name`` means in this architecture, or its present name, where that is another step."""
        target = {"embed.out": self.embedded, "out": self.output, **RENAMED}.get(name, name)
        return None if target == name else target

    @cached_property
    def parameters(self) -> "dict[str, tuple[Step, Parameter]]":
        """Every parameter that some model has, by its name in addresses, with the step that is made with it.

        Those of a layer are named as in one, ``W_Q``; those that this model lacks say why.
        """
        found: dict[str, tuple[Step, Parameter]] = {}
        for step in _absent(self.config):
            reason = self.why_absent(step.name) or ""
            found |= {one.name: (step, replace(one, absent=reason)) for one in _parameters(step)}
        own: dict[str, tuple[Step, Parameter]] = {}
        for step, _ in self.rows:  # not by_name, which has one row of each name: ffn is made otherwise with experts
            for one in _parameters(step):
                own.setdefault(one.name, (step, one))  # a later step may be made with it too
        return {name: one for name, one in found.items() if name not in own} | own

    def why_absent(self, name: str, layer: int | None = None) -> str | None:
        """Why a step of the table does not exist in this model, or layer; None for a name that no model has."""
        config = self.config.at(layer)
        words, rows = _words(config), [step for step in STEPS if step.name == name]
        reasons = [step.absent.format_map(words) for step in rows if step.mixer in ("", config.mixer)]
        others = dict.fromkeys(step.mixer.replace("_", " ") for step in rows if step.mixer not in ("", config.mixer))
        reasons += [f"it is a step of {' and of '.join(others)}"] if others else []
        return next((reason for reason in reasons if reason), None)
