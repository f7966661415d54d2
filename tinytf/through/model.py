"""A model that transformers runs, with its tokenizer: it takes texts, and its modules are recorded."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import CheckpointError, UsageError
from tinytf.short_repr import shown
from tinytf.text.chat import TextPair
from tinytf.text.library import Limit
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel, in_turn_of_all
from tinytf.through.formulas import compared
from tinytf.through.opening import directory_of, open_module, quiet_transformers, reason_of, vocabulary_of
from tinytf.through.recording import Recording, logits_of, record
from tinytf.through.roles import Roles, ends_of, parts_of_layers, roles_of

_TRIED = 6
"""Tokens of the text with which the model is asked whether it sees later tokens."""
_LONG = 2**15
"""The longest text of a model that names no limit, in tokens."""


@dataclass(frozen=True)
class Outcomes:
    """What reports ask of a model: what it predicts, and from which tokens.

    ``labels`` are the classes of a classifier. ``causal`` says that the numbers of a token do not change with later
    tokens, which was tried; ``starts`` is the token that a decoder beside an encoder begins with.
    """

    kind: str
    vocab_size: int
    context: int
    causal: bool
    labels: tuple[str, ...]
    predicts_tokens: bool
    n_layers: int
    starts: int | None
    encoder: None = None
    d_source: ClassVar[int] = 0

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "labels": list(self.labels)}


@dataclass(frozen=True, repr=False)
class ThroughModel(TextModel):
    """A model of transformers and its tokenizer; ``transformer`` is the module. Made by ``open_through``."""

    transformer: Any

    @cached_property
    def config(self) -> Any:
        """The ``Outcomes`` of the model."""
        module = self.transformer
        text, name = module.config.get_text_config(), type(module).__name__
        embedding, head = ends_of(module)
        vocabulary: int = (
            getattr(embedding, "num_embeddings", None) or getattr(text, "vocab_size", None) or self.tokenizer.vocab_size
        )
        context = next((v for k in _CONTEXTS if isinstance(v := getattr(text, k, None), int) and v > 0), _LONG)
        labels = (
            tuple(str(label) for _, label in sorted((module.config.id2label or {}).items())) if head is None else ()
        )
        classifies = "Classification" in name
        starts = getattr(module.config, "decoder_start_token_id", None) if module.config.is_encoder_decoder else None
        return Outcomes(
            name, vocabulary, context, starts is not None or (not classifies and self._is_causal(vocabulary)),
            labels if classifies else (), head is not None,
            int(getattr(text, "num_hidden_layers", 0)), starts,
        )  # fmt: skip

    def __repr__(self) -> str:
        return shown(self, {"name": self.name, "parameters": self.n_parameters, "class": self.config.kind})

    def require_unchanged(self) -> None:
        """Nothing: the weights are in memory."""

    @cached_property
    def notes(self) -> tuple[str, ...]:
        return self.file_notes

    @property
    def in_words(self) -> str:
        """The model in a few words: its class."""
        return f"{self.config.kind} through transformers"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "through": "transformers"}

    def inputs(self, ids: list[int], answer: list[int] | None = None) -> dict[str, Any]:
        """The arguments of a pass over one text; ``answer`` is what a decoder beside the encoder has so far."""
        tokens = torch.tensor([ids], device=self.transformer.device)
        inputs: dict[str, Any] = {"input_ids": tokens, **self.options}
        if self.transformer.config.is_encoder_decoder:
            start = getattr(self.transformer.config, "decoder_start_token_id", None) or 0
            inputs["decoder_input_ids"] = torch.tensor([answer or [start]], device=tokens.device)
        return inputs

    @cached_property
    def options(self) -> dict[str, Any]:
        """Switches of a pass that every model of transformers takes whose configuration has them."""
        text = self.transformer.config.get_text_config()
        return {name: value for name, value in (("use_cache", False),) if hasattr(text, name)}

    def _is_causal(self, vocabulary: int) -> bool:
        """Whether the logits of the first tokens stay the same when the last token is another."""
        ids = [2 + number % max(1, vocabulary - 3) for number in range(_TRIED)]
        first, second = (self.logits([*ids[:-1], last]) for last in (ids[-1], ids[0]))
        if first is None or second is None or first.dim() != 2 or len(first) != _TRIED:
            return False
        return compared("", first[:-1], second[:-1].double()).holds

    def _pair(self, pair: TextPair, limit: Limit, truncate: bool) -> Encoding:
        raise UsageError("run through transformers, a model reads one text, not a pair", "leave out --pair")

    @in_turn_of_all
    @torch.no_grad()
    def logits(self, ids: list[int], answer: list[int] | None = None) -> Tensor | None:
        """The logits (T, V) of a text or the ``answer`` to it, or (classes,); None if the model gives none."""
        torch.manual_seed(0)
        return logits_of(self._run(lambda: self.transformer(**self.inputs(ids, answer))))

    @in_turn_of_all
    def record(self, encoding: Encoding) -> tuple[Recording, Roles]:
        """Every call of a module for a text, and the roles of the modules.

        Raises CheckpointError for whatever the model raises.
        """
        module = self.transformer
        parts = parts_of_layers(module)
        recording: Recording = self._run(lambda: record(module, self.inputs(encoding.ids), parts))
        return recording, roles_of(module, recording)

    def _run(self, run: Any) -> Any:
        try:
            with quiet_transformers():
                return run()
        except Exception as error:  # code of any architecture
            message = f"{self.name} does not run on this text: {reason_of(error)}"
            raise CheckpointError(message, "--debug shows where") from error


_CONTEXTS = ("max_position_embeddings", "n_positions", "seq_length", "n_ctx")


def open_through(
    model: str | os.PathLike[str], *, device: str = "auto", dtype: str = "float32", trust_remote_code: bool = False
) -> ThroughModel:
    """Open a directory of transformers, whatever its architecture, to run through transformers.

    Code in the directory runs only with ``trust_remote_code``. Raises UsageError for any other kind of model and
    without transformers, and for a model that takes no text; CheckpointError if transformers cannot open it.
    """
    source = directory_of(model)
    directory: Path = source.path
    module: Any = open_module(directory, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    takes = getattr(module, "main_input_name", "input_ids")
    if takes not in ("input_ids", "decoder_input_ids"):
        raise UsageError(f"{source.name} takes {takes} and no text", "tinytf shows what models do with text")
    vocabulary = vocabulary_of(directory, module)
    opened = ThroughModel(source.name, module, vocabulary.tokenizer, source.where, vocabulary.note)
    opened.config  # noqa: B018 - which runs it, so that nothing runs unasked later
    return opened
