"""The text and the model that lessons are about, run when a lesson first asks for it."""

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
from tinytf.lessons import NAMES, TEXTS
from tinytf.lessons.lesson import Asker, Lesson, LiveTable, Map, Question
from tinytf.loading import Model
from tinytf.model.without import removable
from tinytf.parts.row import Step
from tinytf.steps.operations.mask import Sight
from tinytf.steps.operations.softmax import probabilities
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

Numbers = NDArray[np.float64]
_LAST = 8
"""Positions at the end of a text whose predictions are compared."""


class Live:
    """One text through one model, from which every number of every lesson is taken.

    Lessons follow one head, the first of the first block, and one token, ``here``: a decoder's last, of an encoder the
    first mask, or the last word where there is none. ``row`` is the query whose attention is worked through. Raises
    UsageError for a model without scaling, without positions, and for a decoder without its mask.
    """

    def __init__(self, model: Model, text: str | None = None, *, seed: int = 0, truncate: bool = False) -> None:
        self.model, self.config, self.seed = model, model.config, seed
        has = removable(model.config)
        if missing := [part for part in LEFT_OUT if part not in has and (part != "mask" or model.config.causal)]:
            raise UsageError(f"a lesson is about {missing[0]}, and this model has none", "take a whole model")
        if text is None:
            fills = not model.config.causal and model.tokenizer.mask_id is not None
            text = "the little dog [MASK] to the park" if fills else "The cat sat on the mat"
        self.encoding = model.encode(text, truncate=truncate)
        self.length = len(self.encoding.tokens)
        self.has_head = model.config.predicts_tokens

    @cached_property
    def trace(self) -> Trace:
        """Every step of the text."""
        return record(self.model.transformer, self.encoding, self.model.tokenizer.mask_id)

    @cached_property
    def steps(self) -> dict[str, Step]:
        """The steps of the model by name, as they are in the first layer."""
        table = self.trace.steps
        return {name: table.at(name, self.layer) for name in table.by_name}

    def ask(self, name: str) -> Asker:
        """What makes the question of a lesson."""
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
        **words: object,
    ) -> Lesson:
        """A lesson with its texts of assets/lessons.toml, as ``variant`` has them, filled in with ``words``.

        The addresses ``also`` are shown after the others.
        """
        texts = {"role": "residual", "focus": "0", "shown": (), "revealed": ()} | TEXTS[name]
        texts |= texts.get(variant, {})
        own = {"live": self, "config": self.config, "here": self.here, "row": self.row, "token": self.token(self.here)}

        def fill(text: str) -> str:
            return self._there(text.format(**own, **words))

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
            shown=(*map(fill, texts["shown"]), *map(self._there, also)),
            figures=figures,
            revealed=tuple(map(fill, texts["revealed"])),
            revealed_figures=revealed_figures,
            maps=tuple(maps),
            revealed_maps=tuple(revealed_maps),
        )

    @cached_property
    def layer(self) -> int:
        """The layer that lessons look into: the first with attention, which they call L0."""
        return next(iter(table_of(self.config).attending), 0)

    def _there(self, text: str) -> str:
        return text.replace("L0", f"L{self.layer}") if self.layer else text

    def at(self, address: str) -> Numbers:
        """The numbers at an address, in float64; L0 stands for the layer that lessons look into."""
        found: Numbers = self.trace[self._there(address)].detach().double().cpu().numpy()
        return found

    def map(self, title: str, word: str, trace: Trace, head: int) -> Map:
        """The weights of a head of the first block as a small picture."""
        weights = trace[f"L{self.layer}H{head}.weights"].detach().double().cpu()
        seen = Sight.of(trace.config.at(self.layer)).allowed(len(weights), None, weights.device)
        shown = torch.ones_like(weights, dtype=torch.bool) if seen is None else seen
        rows = (zip(row, can, strict=True) for row, can in zip(weights.tolist(), shown.tolist(), strict=True))
        return Map(title, word, tuple(tuple(weight if can else None for weight, can in row) for row in rows))

    def parameters(self, module: str) -> int:
        """How many parameters a module of the model has."""
        return sum(parameter.numel() for parameter in self.model.transformer.get_submodule(module).parameters())

    @property
    def block_sizes(self) -> list[int]:
        """The parameters of each block that has its own, without those that all blocks share."""
        table, model = self.trace.steps, self.model.transformer
        shared = {step.module for step in table.layer_steps if step.shared}
        sizes = []
        for layer in dict.fromkeys(map(self.config.first_of, range(self.config.n_layers))):
            own = model.blocks[layer].named_parameters()
            sizes.append(sum(one.numel() for name, one in own if name.rpartition(".")[0] not in shared))
        return sizes

    def token(self, place: int) -> str:
        """A token as it is printed."""
        return self.encoding.tokens[place].shown

    @cached_property
    def mask(self) -> int | None:
        """The place of the first mask in the text."""
        mask_id = self.model.tokenizer.mask_id
        return next((i for i, token in enumerate(self.encoding.tokens) if token.id == mask_id), None)

    @cached_property
    def here(self) -> int:
        if self.config.causal:
            return self.length - 1
        if self.mask is not None:
            return self.mask
        words = [i for i, token in enumerate(self.encoding.tokens) if not token.special]
        return words[-1] if words else self.length - 1

    @property
    def row(self) -> int:
        return min(2, self.length - 1) if self.config.causal else self.here

    def seen(self, query: int) -> range:
        """The keys that a query may look at."""
        first = self.config.at(self.layer)
        window, chunk = first.window or self.length, first.chunk or self.length
        end = query + 1 if self.config.causal else min(self.length, query + window)
        return range(max(0, query + 1 - window, query // chunk * chunk), end)

    def strongest(self, most: int) -> list[int]:
        """Of the keys that ``row`` sees those with the largest weights, in the order of the text."""
        weights = self.at("L0H0.weights")[self.row]
        keys = sorted(self.seen(self.row), key=lambda key: -weights[key])[:most]
        return sorted(keys)

    @property
    def final(self) -> str:
        """The step that logits, or the model's user, read."""
        if self.config.head.kind == "mlm":
            return "head.norm"
        table = self.trace.steps
        return table.by_name[table.final].full_name(self.config.n_layers - 1)

    @cached_property
    def open(self) -> int:
        """The position whose prediction is shown: the least certain of the last few, an encoder's mask."""
        if not self.config.causal:
            return self.here
        places = range(max(self.length // 2, self.length - _LAST), self.length)
        rows = [probabilities(self.trace.logits_at(place).double()) for place in places]
        return places[int(np.argmax([float(torch.special.entr(row).sum()) for row in rows]))]

    @cached_property
    def logits(self) -> Numbers:
        """The logits (V,) at ``open``."""
        found: Numbers = self.trace.logits_at(self.open).detach().double().cpu().numpy()
        return found

    def probabilities(self, temperature: float = 1.0) -> Numbers:
        """The probabilities (V,) at ``open``, where the logits are divided by ``temperature``."""
        found: Numbers = with_temperature(torch.from_numpy(self.logits), temperature).softmax(-1).numpy()
        return found

    @cached_property
    def likeliest(self) -> tuple[int, ...]:
        """The ten tokens with the largest logits at ``open``."""
        return tuple(int(i) for i in np.argsort(-self.logits, kind="stable")[:10])

    def piece(self, token_id: int) -> str:
        """A token of the vocabulary as it is printed."""
        return self.model.tokenizer.shown(token_id)

    @cached_property
    def asked(self) -> tuple[Encoding, Targets, str]:
        """What the loss is of: a text, the tokens that are right, and in words what is asked for."""
        tokenizer = self.model.tokenizer
        if self.config.causal and self.length > 1:
            targets = Targets(tuple(range(self.length - 1)), tuple(self.encoding.ids[1:]))
            return self.encoding, targets, "Each token is asked for the one that comes next in the text"
        if not self.config.causal and self.mask is None and tokenizer.mask_id is not None:
            encoding, targets = choose_targets(tokenizer, self.encoding, causal=False, positions=str(self.here))
            return encoding, targets, f"Token {self.here}, {self.token(self.here)}, is masked and asked for"
        targets = Targets((self.open,), (self.likeliest[0],))
        return self.encoding, targets, "Nothing says what is right here, so the model's first guess is taken as right"

    @cached_property
    def gradients(self) -> GradientTrace:
        """The text of ``asked`` with its backward pass."""
        encoding, targets, _ = self.asked
        return record_gradients(self.model.transformer, encoding, targets)

    @property
    def target(self) -> tuple[int, int, float]:
        """The last of the predictions: its position, the token that is right, and the loss there."""
        found = self.gradients
        return found.targets.positions[-1], found.targets.ids[-1], found.losses[-1]
