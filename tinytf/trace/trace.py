"""``Trace``: the recording of one text, and everything that follows from it.

Little is recorded (``record.py``); the rest is derived on first use, by the functions that the model itself runs.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from tinytf.config import ENC, ModelConfig
from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.model.turn import using
from tinytf.parts.row import TEXT_AXES, Step
from tinytf.report import About
from tinytf.short_repr import brief, shown
from tinytf.steps.operations import Mask, Sight, Unembed
from tinytf.steps.operations.mask import chosen_in
from tinytf.steps.table import StepTable, table_of
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding, Token, Tokenizer
from tinytf.text.words import AxisNames, find_index, find_token, is_selection, positions_in
from tinytf.trace.address import Address, in_stack, parse_address
from tinytf.trace.parameters import ParameterAddress, parse_any
from tinytf.trace.site import Site
from tinytf.trace.summary import StepSummary, statistics

_CACHE_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Recording:
    """The tensors that the hooks recorded, by full step name, without the batch axis.

    ``logit_rows`` are the positions that ``logits`` were computed for, ``layers`` the recorded layers. ``exchanged``
    are the steps that an intervention replaced, such as ``L2.ffn`` or ``L3H5.head_out``; ``edited`` those that the
    user's functions computed. With ``grad`` the steps carry gradients, derived ones too.
    """

    tensors: dict[str, Tensor]
    logit_rows: tuple[int, ...]
    layers: tuple[int, ...]
    exchanged: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    grad: bool = False


class Trace:
    """All steps of one text through one model, for one sequence of T tokens.

    ``trace["L0H3.weights"]`` is a tensor (T, T); ``trace["L0.weights"]`` (H, T, T); several layers add a leading
    axis. A TransformerLens name gives the tensor of TransformerLens, without its batch axis. Of two
    stacks, ``enc.L0H3.weights`` is a step of the one that reads the source. In a model with a
    tokenizer, tokens name cells of the vocabulary: ``trace["logits[-1,·on]"]``. ``trace.table()`` is the pipeline as
    JSON data.
    """

    def __init__(
        self, model: Transformer, encoding: Encoding, recording: Recording, source: "Trace | None" = None
    ) -> None:
        self.model: Transformer = model
        self._source: Any = source
        self.encoding: Encoding = encoding
        self.recording: Recording = recording
        self._derived: OrderedDict[tuple[str, tuple[int, ...] | None], Tensor] = OrderedDict()
        self._derived_bytes = 0
        self.about: About | None = None
        """The model and tokenizer that recorded the trace; without them tokens of the vocabulary have no names."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give the model that a pickled trace is about the weights of the trace."""
        self.__dict__ |= state
        if self.about is not None:
            self.about = replace(self.about, model=replace(self._asked, transformer=self.model))

    def __repr__(self) -> str:
        summary = {"tokens": len(self.tokens), "layers": self.recording.layers, "steps": len(self)}
        model = {"model": self.about.model.name} if self.about else {}
        return shown(self, {**model, "text": self.encoding.text, **summary})

    @property
    def tokenizer(self) -> Tokenizer | None:
        return None if self.about is None else self.about.model.tokenizer

    @property
    def _asked(self) -> Any:
        """The Model that recorded the trace. Raises UsageError without one."""
        if self.about is None:
            raise UsageError(
                "this trace has no tokenizer to name tokens with", "Model.trace makes a trace that has one"
            )
        return self.about.model

    @property
    def predictions(self) -> Any:
        """The predictions for the text: its next token, the token at each mask, or the classes of the head."""
        return self._asked.traced(self).predictions

    def show(self) -> None:
        """Print what ``tinytf trace`` prints for this text."""
        self._asked.traced(self).show()

    def _repr_html_(self) -> str | None:
        return None if self.about is None else self._asked.traced(self)._repr_html_()

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def tokens(self) -> tuple[Token, ...]:
        return self.encoding.tokens

    @property
    def source(self) -> Self | None:
        """The trace of the text that the model reads, by the encoder of this pass; None for a model of one stack."""
        return self._source or (None if self.model.reads is None else self.model.reads.trace)

    @property
    def stacks(self) -> dict[str, Self]:
        """The traces of the stacks that ran on a text, by what their addresses begin with, in that order."""
        return {"": self} if self.source is None else {ENC: self.source, "": self}

    def tokens_on(self, axis: str) -> tuple[Token, ...]:
        """The tokens along an axis; those of a source of which only states are given are numbers."""
        reads = self.model.reads
        if axis != "source" or reads is None:
            return self.tokens
        if self.source is not None:
            return self.source.tokens
        return tuple(Token(-1, str(number), 0, 0, b"", False) for number in range(reads.states.shape[1]))

    @property
    def lengths(self) -> dict[str, int]:
        """The sizes of the axes of tokens."""
        return {axis: len(self.tokens_on(axis)) for axis in TEXT_AXES}

    @cached_property
    def steps(self) -> StepTable:
        return table_of(self.config)

    @property
    def recorded_bytes(self) -> int:
        """Bytes of the recorded tensors; shared storage counts once."""
        storages = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self.recording.tensors.values()
        }
        return sum(storages.values())

    def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> Tensor:
        """The tensor of a step by its short name, recorded or derived; ``heads`` selects from the head axis.

        ``heads`` are always numbers of query heads: a shared key or value head answers to each of its query heads.
        """
        step = self.steps.at(name, layer)
        full = step.full_name(layer)
        incomplete = full == "logits" and len(self.recording.logit_rows) < len(self.tokens)
        if full in self.recording.tensors and not incomplete:
            config = self.config.at(layer)
            tensor, shared = self.recording.tensors[full], config.heads_per_kv if "kv head" in step.axes else 1
            return tensor if heads is None else tensor[[head // shared for head in heads]]
        if layer is not None and not self.steps.has(step.name, layer):
            reason = self.steps.why_absent(step.name, layer) or "it is a step of other layers"
            raise AddressError(f"layer {layer} has no step {step.name}: {reason}")
        if layer is not None and layer not in self.recording.layers:
            recorded = ", ".join(map(str, self.recording.layers)) or "none"
            raise AddressError(f"layer {layer} was not recorded", f"recorded: {recorded}")
        key = (full, heads)
        with using(self.model):  # whose modules derive it, and of which other threads derive steps too
            if key in self._derived:
                self._derived.move_to_end(key)
                return self._derived[key]
            with torch.set_grad_enabled(self.recording.grad):
                tensor = self._derived_step(step, layer, heads)
            self._keep(key, tensor)
        return tensor

    def underived(self) -> Self:
        """A copy of the trace without the steps derived so far."""
        trace = copy.copy(self)
        trace._derived, trace._derived_bytes = OrderedDict(), 0
        return trace

    def detached(self) -> "Trace":
        """The trace without gradients, in the same memory."""
        if not self.recording.grad:
            return self
        trace = self.underived()
        tensors = {name: tensor.detach() for name, tensor in self.recording.tensors.items()}
        trace.recording = replace(self.recording, tensors=tensors, grad=False)
        return trace

    def shown_part(self, step: Step, layer: int | None, head: int) -> int | None:
        """The part of a split step to show: ``head``, or the expert with the most weight over the text."""
        if step.of_experts:
            return int(self.step(self.steps.routes, layer).sum(dim=0).argmax())
        return head if step.is_split else None

    def is_exchanged(self, name: str, layer: int | None, head: int | None = None) -> bool:
        """Whether an intervention replaced a step, so that it does not follow from the steps before it."""
        full = self.steps.by_name[name].full_name(layer)
        part = f"L{layer}{self.steps.by_name[name].letter}{head}.{name}"
        return full in self.recording.exchanged or part in self.recording.exchanged

    def _derived_step(self, step: Step, layer: int | None, heads: tuple[int, ...] | None) -> Tensor:
        tensor = Site(self, step, layer).derive(heads)
        for i, number in enumerate(heads or range(len(tensor))) if step.of_experts else ():
            exchanged = self.recording.tensors.get(f"L{layer}E{number}.{step.name}")
            if exchanged is not None:
                tensor = tensor.clone()
                tensor[i] = exchanged
        return tensor

    def vocabulary(self, name: str, positions: Sequence[int]) -> Tensor:
        """A step over the vocabulary at some positions (P, V): recorded, or derived for these positions alone."""
        step, rows = self.steps.by_name[name], self.recording.logit_rows
        if step.recorded and all(position in rows for position in positions):
            return self.recorded_logits[[rows.index(position) for position in positions]]
        site = Site(self, step, None)
        (source,) = site.source_steps
        with using(self.model), torch.set_grad_enabled(self.recording.grad):
            if site.operation.over_tokens:
                return site.operation.forward(self.step(source.name))[list(positions)]
            if source.is_vocabulary:
                return site.operation.forward(self.vocabulary(source.name, positions))
            assert isinstance(site.operation, Unembed)
            return site.operation.unembed(site, site.input()[list(positions)])

    def _keep(self, key: tuple[str, tuple[int, ...] | None], tensor: Tensor) -> None:
        """Cache a derived tensor within a byte budget: neighbouring steps are derived from it."""
        if tensor.nbytes > _CACHE_BYTES // 2:
            return
        self._derived[key] = tensor
        self._derived_bytes += tensor.nbytes
        while self._derived_bytes > _CACHE_BYTES:
            self._derived_bytes -= self._derived.popitem(last=False)[1].nbytes

    def address(self, text: str) -> Address:
        """Read an address for this trace's model. Raises AddressError with what exists instead."""
        return parse_address(text, self.steps)

    def addresses(self, addresses: Sequence[str | Address]) -> tuple[Address, ...]:
        """Read the addresses that are texts; the others are returned as they are."""
        return tuple(self.address(address) if isinstance(address, str) else address for address in addresses)

    def keys(self) -> list[str]:
        """The addresses of all steps with a tensor, recorded or derived, in the order of the forward pass."""
        recorded = (None, *self.recording.layers)
        rows = ((step, layer) for step, layer in self.steps.rows if layer in recorded)
        return [step.full_name(layer) for step, layer in rows if step.is_tensor or step.name == "ids"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Every step by its address, each derived when its turn comes."""
        return ((name, self[name]) for name in self.keys())

    def __contains__(self, address: object) -> bool:
        """Whether there is a tensor at an address; for a cell, the tensor is read."""
        try:
            parsed = parse_any(address, self.steps) if isinstance(address, str) else address
            if isinstance(parsed, Address) and parsed.step is not None and not parsed.cell:
                recorded = set(parsed.layers or ()) <= set(self.recording.layers)
                return recorded and (parsed.step.is_tensor or parsed.step.name == "ids")
            return isinstance(parsed, Address | ParameterAddress) and self[parsed] is not None
        except AddressError:
            return False

    def __getitem__(self, address: str | Address | ParameterAddress) -> Tensor:
        """The tensor at an address: without a head axis for one head, with a leading layer axis for several layers.

        A parameter has an address too, such as ``L0.W_Q``; ``E[cat]`` is the embedding of a token of the text.
        """
        if isinstance(address, str):
            at, address = in_stack(address, self.stacks)
            if at:
                return self.stacks[at][address]
        parsed = parse_any(address, self.steps) if isinstance(address, str) else address
        if not isinstance(parsed, Address | ParameterAddress):
            raise AddressError(
                f"an address is a text, not {brief(parsed)}",
                "such as trace['L0H3.weights']; several heads are L0H*.weights, a token is L0.out[2]",
            )
        if isinstance(parsed, ParameterAddress):
            return parsed.tensor(self.model, self._token_id)
        step = parsed.step
        if step is None:
            raise AddressError(f"{parsed} names no step", f"for example {parsed}.weights")
        if step.name == "ids":
            return self._cell(torch.tensor([token.id for token in self.tokens]), parsed, ["token"])
        if not step.is_tensor:
            raise AddressError(f"{step.name} is not a tensor")
        tensors = []
        for layer in parsed.layers if parsed.layers is not None else (None,):
            tensor, axes = self._uncut(parsed, layer)
            tensors.append(self._cell(tensor, parsed, axes))
        if len({tensor.shape for tensor in tensors}) > 1:
            raise AddressError(f"{parsed} has several shapes: heads differ by layer", "name layers of one kind")
        return tensors[0] if len(tensors) == 1 else torch.stack(tensors)

    def stack(self, *addresses: str) -> Tensor:
        """The tensors at some addresses as one with a leading axis, one entry for each layer that an address names.

        ``trace.stack("embed.out", "L*.attn.added", "L*.ffn.added")``, the parts of the stream, is (1 + 2·layers, T, C).
        Layers without the step are left out.
        Raises AddressError like indexing, and UsageError for steps of several shapes.
        """
        tensors = [self[one] for address in addresses for one in self._each_layer(address)]
        shapes = {tuple(tensor.shape) for tensor in tensors}
        if len(shapes) != 1:
            sizes = " and ".join(map(str, sorted(shapes))) or "none"
            raise UsageError(
                f"only tensors of one shape can be stacked, and these are {sizes}", "stack fewer addresses"
            )
        return torch.stack(tensors)

    def _each_layer(self, text: str) -> Iterator[Address | ParameterAddress]:
        """The address in each of its layers alone, where they have the step."""
        parsed = parse_any(text, self.steps)
        if isinstance(parsed, Address) and parsed.layers is not None and parsed.step is not None:
            layers = [layer for layer in parsed.layers if self.steps.has(parsed.step.name, layer)]
            yield from (replace(parsed, layers=(layer,)) for layer in layers)
        else:
            yield parsed

    def _uncut(self, address: Address, layer: int | None) -> tuple[Tensor, Sequence[str]]:
        """The tensor of an address in one layer before its cell is applied, and its axes.

        Over the vocabulary only the rows of the cell are computed.
        """
        step = address.step
        assert step is not None
        if address.lens is not None:
            return address.lens.tensor(Site(self, self.steps.at(step.name, layer), layer)), address.lens.axes(step)
        if step.is_vocabulary and address.cell:
            rows = self.pick_indices(address.cell[0], "token", len(self.tokens))
            return self.vocabulary(step.name, [rows] if isinstance(rows, int) else rows), step.axes
        tensor = self.step(step.name, layer, address.heads)
        return (
            (tensor[0], step.axes[1:]) if address.heads is not None and len(address.heads) == 1 else (tensor, step.axes)
        )

    def _cell(self, tensor: Tensor, address: Address, axes: Sequence[str]) -> Tensor:
        words = dict(address.words(len(axes)))
        if address.lens is None and address.step is not None and address.step.is_vocabulary and words:
            words[0] = ":" if is_selection(words[0]) else "0"  # only these rows were computed
        for axis in sorted(words, reverse=True):  # from the last axis, so that earlier axes keep their index
            picked = self.pick_indices(words[axis], axes[axis], tensor.shape[axis])
            if isinstance(picked, int):
                tensor = tensor.select(axis, picked)
            else:
                tensor = tensor.index_select(axis, torch.tensor(picked, device=tensor.device))
        return tensor

    def places(self, address: Address) -> dict[str, Sequence[int]]:
        """The indices that an address selects of each axis, by its name; of an axis that is left out, all.

        An axis of which it names one index has that index alone, though the tensor lacks the axis.
        """
        axes = (address.lens.axes(address.step) if address.lens else address.step.axes) if address.step else ()
        layer = None if address.layers is None else address.layers[0]
        sizes = {**self.config.at(layer).sizes, **self.lengths, "scale": 1}
        selected: dict[str, Sequence[int]] = {}
        if address.layers is not None and len(address.layers) > 1:
            selected["layer"] = address.layers
        if address.heads is not None and len(address.heads) > 1:
            selected[axes[0]] = address.heads
        for axis, word in address.words(len(axes)):
            picked = self.pick_indices(word, axes[axis], sizes[axes[axis]])
            selected[axes[axis]] = (picked,) if isinstance(picked, int) else picked
        return selected

    def positions(self, words: str, option: str = "--position") -> tuple[int, ...]:
        """The positions of the text named by ``words``: ``2``, ``0-3,7``, ``-1``, ``all``, or tokens.

        Raises AddressError for a missing position or token, and for a token that occurs more than once.
        """
        return positions_in(words, [token.shown for token in self.tokens], option)

    def index(self, word: str, axis: str, size: int) -> int:
        """The single index that a word of a cell names. Raises AddressError like ``picked``, and for several."""
        picked = self.pick_indices(word, axis, size)
        if not isinstance(picked, int):
            raise AddressError(f"{word!r} names {len(picked)} places, but one {axis} is needed", "such as 0, or -1")
        return picked

    def seen(self, address: Address) -> Tensor | None:
        """Which numbers at the address of a map are not masked, in the shape of ``self[address]``; None for all."""
        step = address.step
        if step is None or address.lens is not None or not step.is_map:
            return None
        masks = []
        for layer in address.layers if address.layers is not None else (None,):
            if (allowed := visible(self, step, layer)) is None:
                return None
            heads = step.part_numbers(self.config.at(layer)) if address.heads is None else address.heads
            single = address.heads is not None and len(heads) == 1
            each = [allowed if (seen := visible(self, step, layer, head)) is None else seen for head in heads]
            mask = each[0] if single else torch.stack(each)
            masks.append(self._cell(mask, address, step.axes[1:] if single else step.axes))
        return masks[0] if len(masks) == 1 else torch.stack(masks)

    def pick_indices(self, word: str, axis: str, size: int) -> int | range:
        """The index on an axis named by a word of a cell; for a slice or a range, the range of indices.

        Raises AddressError for a number out of range, an unknown token, or a token that occurs more than once.
        """
        find = None if self.tokenizer is None else self._token_id
        shown = [token.shown for token in self.tokens_on(axis)]
        return find_index(word, axis, size, AxisNames(shown, self.config.labels, find))

    def _token_id(self, word: str) -> int:
        """The id of a token of the vocabulary; without a tokenizer, of a token of the text."""
        if self.tokenizer is None:
            return self.tokens[self.index(word, "token", len(self.tokens))].id
        config = self.config
        try:
            return find_token(self.tokenizer, word, causal=config.causal, option="token", vocabulary=config.vocab_size)
        except UsageError as error:
            raise AddressError(error.message, error.hint) from None

    def logits_at(self, position: int) -> Tensor:
        """Logits (V,) at one position: recorded, or derived from the last hidden state."""
        return self.vocabulary("logits", [position])[0]

    def at_logit_rows(self, step: Step) -> Tensor:
        """A step over the vocabulary at the positions that the forward pass computed, (rows, V)."""
        return self.recorded_logits if step.recorded else self.vocabulary(step.name, self.recording.logit_rows)

    @property
    def recorded_logits(self) -> Tensor:
        """The logits that the forward pass computed, (rows, V), at ``recording.logit_rows``."""
        return self.recording.tensors["logits"]

    @property
    def model_input(self) -> Tensor:
        """The input of the first block (T, C): the sum of the embeddings, normed in some models."""
        return self.step(self.steps.embedded)

    @property
    def last_hidden(self) -> Tensor:
        """The last hidden states (T, C): after the final norm, or the last block's output in a post-norm model."""
        step = self.steps.by_name[self.steps.final]
        return self.step(step.name, self.config.n_layers - 1 if step.in_layer else None)

    @property
    def last_output(self) -> Tensor:
        """The output of the last block (T, C), before any final norm."""
        return self.step(self.steps.output, self.config.n_layers - 1)

    def allowed(self, layer: int | None = 0, head: int | None = None, *, blocks: bool = False) -> Tensor | None:
        """Which keys (Q, K) each query of a layer may look at in some head, or in one; None where nothing is masked.

        With ``blocks``, which blocks instead.
        """
        config, heads = self.config.at(layer), None if head is None else (head,)
        sight = Sight(True, every=config.block_size) if blocks else Sight.of(config)
        allowed = sight.allowed(len(self.tokens), None, self.model_input.device)
        chosen = self.steps.chosen_keys(layer) if blocks == (config.block_size > 0) else ()
        choices = (
            self.step(*place, heads).amax(0) if self.steps.at(*place).has_heads else self.step(*place)
            for place in chosen
        )
        return chosen_in(allowed, *choices)

    def table(self) -> list[dict[str, Any]]:
        """The pipeline as JSON data: name, title, formula, axes, shape and statistics of each step."""
        return [row.to_dict() for row in pipeline(self)]


def visible(trace: Trace, step: Step, layer: int | None = None, head: int | None = None) -> Tensor | None:
    """Which cells (Q, K) of a masked attention step are visible in some head, or in one.

    None for any other step, or if all are.
    """
    blocks = trace.steps.of_blocks(step, layer)
    return trace.allowed(layer, head, blocks=blocks) if is_masked(step) else None


def is_masked(step: Step) -> bool:
    """Whether a step is an attention map after the mask."""
    shown = step.is_map and not step.of_source
    return shown and (step.holds_shares or step.operation.hides_ahead or isinstance(step.operation, Mask))


def row_of(trace: Trace, number: int, step: Step, layer: int | None) -> StepSummary:
    """One row of the pipeline; logits and probabilities are of the positions that the forward pass computed."""
    if not step.is_tensor:
        shape: tuple[tuple[str, int], ...] = () if step.role == "output" else (("token", len(trace.tokens)),)
        return StepSummary(number, step, layer, shape, None)
    note = ""
    if step.is_vocabulary:
        rows = trace.recording.logit_rows
        tensor = trace.at_logit_rows(step)
        if len(rows) < len(trace.tokens):
            note = f"masked token{'s' if len(rows) > 1 else ''}"
            if trace.config.causal or trace.config.labels:
                note = "last token" if rows[-1] else "first token"
    else:
        tensor = trace.step(step.name, layer)
    shape = tuple(zip(step.axes, tensor.shape, strict=True))
    return StepSummary(number, step, layer, shape, statistics(tensor, visible(trace, step, layer)), note)


def pipeline(trace: Trace) -> list[StepSummary]:
    """A summary of each step, in order, in the recorded layers."""
    rows = enumerate(trace.steps.rows, start=1)
    recorded = (None, *trace.recording.layers)
    return [row_of(trace, number, step, layer) for number, (step, layer) in rows if layer in recorded]


Text = Written | Trace
"""The text of a question: a text or a conversation, or its trace if recorded before."""
