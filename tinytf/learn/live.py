"""The text and the model of the lessons; each computation runs when a lesson first needs it."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf.generate.samplers import with_temperature
from tinytf.gradients.loss import Targets
from tinytf.gradients.targets import choose_targets
from tinytf.gradients.trace import GradientTrace, record_gradients
from tinytf.learn import NAMES, OF_ANY, TEXTS
from tinytf.learn.lesson import Asker, Lesson, LiveTable, Map, Question
from tinytf.loading import Model
from tinytf.model.without import removable
from tinytf.parts.block import BlockConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.softmax import probabilities
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.record import record
from tinytf.trace.trace import Trace
from tinytf.training.pace import Pace

Numbers = NDArray[np.float64]
_LAST = 8
"""Positions at the end of a text whose predictions are compared."""


def _lacks_parts(block: BlockConfig) -> bool:
    """Whether a layer lacks a norm or feed-forward of its own."""
    return block.norms.norm_below or block.norms.shortcut or not block.feed_forward.d_ff


class Live:
    """One text through one model, from which every number of every lesson is taken.

    Lessons follow one head, ``place`` or the first of the first block, and one token, ``here``: the last token of a
    decoder; the first mask of an encoder, or its last word if nothing is masked. ``row`` is the query whose attention
    is worked through. A ``trace`` is taken instead of a recording of the text. Raises UsageError for a model without
    scaling or positions, for a decoder without its mask, for layers without a norm or feed-forward of their own,
    for several residual streams, and for a text of which an indexer hides tokens.
    """

    def __init__(
        self, model: Model, text: str | None = None, *, seed: int = 0, truncate: bool = False,
        trace: Trace | None = None, place: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.config, self.seed = model, model.config, seed
        parts = removable(model.config)
        if missing := [part for part in LEFT_OUT if part not in parts and (part != "mask" or model.config.causal)]:
            raise UsageError(
                f"one lesson is about {missing[0]}, which this model lacks",
                "choose a model that nothing was left out of",
            )
        if any(_lacks_parts(block) for block in model.config.blocks):
            raise UsageError(
                "lessons are about layers with a norm, attention and a feed-forward each, which this model lacks",
                "choose a model whose layers are alike",
            )
        if model.config.extra_streams:
            raise UsageError(
                "lessons are about one residual stream, and this model has several",
                "choose a model without extra_streams",
            )
        if text is None:
            shows_mask = not model.config.causal and model.tokenizer.mask_id is not None
            text = "the little dog [MASK] to the park" if shows_mask else "The cat lost the ball. The cat lost the"
        if trace is not None:
            self.trace = trace
        self.encoding = model.encode(text, truncate=truncate) if trace is None else trace.encoding
        first = next(iter(table_of(self.config).attention_layers), 0)
        self.follows_one = place is not None
        self.layer, self.head = place or (first, 0)
        """Where lessons look into, which they call L0H0: by default the first layer with attention."""
        self.length = len(self.encoding.tokens)
        self.has_head = model.config.predicts_tokens
        if 0 < model.config.index_keys < self.length:
            raise UsageError(
                f"lessons are about all earlier tokens, and an indexer chooses {model.config.index_keys:,} here",
                "give a shorter text, or choose another model",
            )

    @property
    def lessons(self) -> tuple[str, ...]:
        """The names of the lessons that this model has: all, or those that are not of two stacks."""
        return OF_ANY if self.model.transformer.reads is None else NAMES

    @cached_property
    def trace(self) -> Trace:
        """The recording of the text, with every step."""
        return record(self.model.transformer, self.encoding, self.model.tokenizer.mask_id)

    @cached_property
    def steps(self) -> dict[str, Step]:
        """The steps of the model by name, as they are in ``layer``."""
        table = self.trace.steps
        return {name: table.at(name, self.layer) for name in table.by_name}

    def ask(self, name: str) -> Asker:
        """The maker of a lesson's question."""
        return Asker(name, self.seed)

    def lesson(
        self,
        name: str,
        question: Question,
        figures: LiveTable | None = None,
        revealed_figures: LiveTable | None = None,
        *,
        variant: str = "",
        also: Sequence[str] = (),
        maps: Sequence[Map] = (),
        revealed_maps: Sequence[Map] = (),
        pace: Pace | None = None,
        **words: object,
    ) -> Lesson:
        """A lesson with its texts from assets/lessons.toml, those of ``variant`` first, filled in with ``words``.

        The addresses ``also`` are shown last.
        """
        texts = {"role": "residual", "focus": "0", "shown": (), "revealed": ()} | TEXTS[name]
        texts |= texts.get(variant, {})
        common = {
            "live": self,
            "config": self.config,
            "here": self.here,
            "row": self.row,
            "token": self.token(self.here),
        }

        def fill(text: str) -> str:
            return self._in_layer(text.format(**common, **words))

        return Lesson(
            number=NAMES.index(name) + 1,
            name=name,
            title=texts["title"],
            why=fill(" ".join(texts["why"].split())),
            formula=fill(texts["formula"]),
            pytorch=fill(texts["pytorch"]),
            cell=fill(texts["cell"]),
            question=question,
            role=texts["role"],
            focus=int(fill(texts["focus"])),
            shown=(*map(fill, texts["shown"]), *map(self._in_layer, also)),
            figures=figures,
            revealed=tuple(map(fill, texts["revealed"])),
            revealed_figures=revealed_figures,
            maps=tuple(maps),
            revealed_maps=tuple(revealed_maps),
            pace=pace,
        )

    def _in_layer(self, text: str) -> str:
        """The text with the layer and head that lessons look into in place of L0 and L0H0."""
        return text.replace("L0H0", f"L0H{self.head}").replace("L0", f"L{self.layer}")

    def at(self, address: str) -> Numbers:
        """The numbers at an address, in float64; L0H0 means the layer and head that lessons look into."""
        numbers: Numbers = self.trace[self._in_layer(address)].detach().double().cpu().numpy()
        return numbers

    def map(self, title: str, word: str, trace: Trace, head: int, layer: int | None = None) -> Map:
        """The weights of a head as a small picture; by default in the layer that lessons look into."""
        layer = self.layer if layer is None else layer
        weights = trace[f"L{layer}H{head}.weights"].detach().double().cpu()
        allowed = trace.allowed(layer, head)
        visible = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed
        rows = (zip(row, mask, strict=True) for row, mask in zip(weights.tolist(), visible.tolist(), strict=True))
        return Map(
            title, word, tuple(tuple(weight if is_visible else None for weight, is_visible in row) for row in rows)
        )

    def parameters(self, module: str) -> int:
        """The number of parameters of a module of the model."""
        return sum(parameter.numel() for parameter in self.model.transformer.get_submodule(module).parameters())

    @property
    def block_sizes(self) -> list[int]:
        """The number of parameters of each block that has its own, without those that all blocks share."""
        table, model = self.trace.steps, self.model.transformer
        shared = {step.module for step in table.layer_steps if step.shared}
        sizes = []
        for layer in dict.fromkeys(map(self.config.first_of, range(self.config.n_layers))):
            parameters = model.blocks[layer].named_parameters()
            sizes.append(
                sum(parameter.numel() for name, parameter in parameters if name.rpartition(".")[0] not in shared)
            )
        return sizes

    def token(self, position: int) -> str:
        """The printed form of a token of the text."""
        return self.encoding.tokens[position].shown

    @cached_property
    def mask(self) -> int | None:
        """The position of the first mask in the text, or None."""
        mask_id = self.model.tokenizer.mask_id
        return next((i for i, token in enumerate(self.encoding.tokens) if token.id == mask_id), None)

    @cached_property
    def here(self) -> int:
        """The position of the token that the lessons follow."""
        if self.config.causal:
            return self.length - 1
        if self.mask is not None:
            return self.mask
        words = [i for i, token in enumerate(self.encoding.tokens) if not token.special]
        return words[-1] if words else self.length - 1

    @property
    def row(self) -> int:
        """The position of the query whose attention is worked through."""
        return min(2, self.length - 1) if self.config.causal else self.here

    def visible_keys(self, query: int) -> range:
        """The keys that a query may look at."""
        config = self.config.at(self.layer)
        window, chunk = config.window or self.length, config.chunk or self.length
        end = query + 1 if self.config.causal else min(self.length, query + window)
        return range(max(0, query + 1 - window, query // chunk * chunk), end)

    def strongest_keys(self, count: int) -> list[int]:
        """The ``count`` keys that ``row`` gives the largest weights, in the order of the text."""
        weights = self.at("L0H0.weights")[self.row]
        keys = sorted(self.visible_keys(self.row), key=lambda key: -weights[key])[:count]
        return sorted(keys)

    @property
    def final(self) -> str:
        """The address of the last step before the logits; without a head, of the model's output."""
        if self.config.head.kind == "mlm":
            return "head.norm"
        table = self.trace.steps
        return table.by_name[table.final].full_name(self.config.n_layers - 1)

    @cached_property
    def predicted_at(self) -> int:
        """The position whose prediction is shown: the least certain of the last few.

        It is ``here`` with a ``place``, and in an encoder.
        """
        if not self.config.causal or self.follows_one:
            return self.here
        positions = range(max(self.length // 2, self.length - _LAST), self.length)
        rows = [probabilities(self.trace.logits_at(position).double()) for position in positions]
        return positions[int(np.argmax([float(torch.special.entr(row).sum()) for row in rows]))]

    @cached_property
    def logits(self) -> Numbers:
        """The logits (V,) at ``predicted_at``."""
        logits: Numbers = self.trace.logits_at(self.predicted_at).detach().double().cpu().numpy()
        return logits

    def probabilities(self, temperature: float = 1.0) -> Numbers:
        """The probabilities (V,) at ``predicted_at``, with the logits divided by ``temperature``."""
        probabilities: Numbers = with_temperature(torch.from_numpy(self.logits), temperature).softmax(-1).numpy()
        return probabilities

    @cached_property
    def likeliest(self) -> tuple[int, ...]:
        """The ids of the ten tokens with the largest logits at ``predicted_at``."""
        return tuple(int(i) for i in np.argsort(-self.logits, kind="stable")[:10])

    def piece(self, token_id: int) -> str:
        """The printed form of a token of the vocabulary."""
        return self.model.tokenizer.shown(token_id)

    @cached_property
    def prediction_task(self) -> tuple[Encoding, Targets, str]:
        """What the loss measures: a text, the right tokens, and a sentence that says what is to be predicted."""
        tokenizer = self.model.tokenizer
        if self.config.causal and self.length > 1:
            targets = Targets(tuple(range(self.length - 1)), tuple(self.encoding.ids[1:]))
            return self.encoding, targets, "At each token, the model is asked for the next one in the text"
        if not self.config.causal and self.mask is None and tokenizer.mask_id is not None:
            encoding, targets = choose_targets(tokenizer, self.encoding, causal=False, positions=str(self.here))
            return (
                encoding,
                targets,
                f"Token {self.here}, {self.token(self.here)}, is masked, and the model is asked for it",
            )
        targets = Targets((self.predicted_at,), (self.likeliest[0],))
        return self.encoding, targets, "Nothing says what is right here, so the model's first guess is taken as right"

    @cached_property
    def gradients(self) -> GradientTrace:
        """The text of ``prediction_task`` with its backward pass."""
        encoding, targets, _ = self.prediction_task
        return record_gradients(self.model.transformer, encoding, targets)

    @property
    def target(self) -> tuple[int, int, float]:
        """The last prediction: its position, the id of the right token, and the loss there."""
        trace = self.gradients
        return trace.targets.positions[-1], trace.targets.ids[-1], trace.losses[-1]
