"""A transformer with its tokenizer, which takes texts and records them."""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from operator import index
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from tinytf.checkpoints.huggingface.adapter import Merged
from tinytf.checkpoints.table import FamilyTable
from tinytf.checkpoints.weights import not_finite
from tinytf.config import ModelConfig
from tinytf.errors import TokenizerError, UsageError
from tinytf.model.transformer import Source, Transformer, outline, reading
from tinytf.model.turn import using_all
from tinytf.nearest import did_you_mean
from tinytf.report import About
from tinytf.short_repr import ShortRepr, brief, shown
from tinytf.text.chat import Conversation, TextPair, Written
from tinytf.text.languages import LANGUAGES
from tinytf.text.late import LateInteraction
from tinytf.text.library import DEFAULT_LIMIT, Limit
from tinytf.text.pair import PairTemplate, encode_pair, encode_rendered
from tinytf.text.printable import printable
from tinytf.text.prompts import NO_PROMPTS, Prompts
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text.words import find_token
from tinytf.trace.record import record, record_all
from tinytf.trace.trace import Text, Trace

AnyModel = TypeVar("AnyModel", bound="TextModel")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class TextModel(ShortRepr):
    """A transformer with its tokenizer: the part of a Model that questions need.

    ``source`` says where it comes from, ``tokenizer_note`` where the vocabulary does, ``file_notes`` what was ignored
    in its files. ``corpus`` is a text of the kind that it was trained on, if known; ``lacks`` are the parts of
    attention that were left out, ``numbers`` what was set, such as ``√d = 1``; ``table`` is the family table of its
    files, if they are another program's; ``prompts`` may stand before a text whose vector is asked for. A longer text
    is cut to ``cuts_at`` tokens (0: to none), as its embedding folder says. ``pair_template`` is how it reads two
    texts, if not as its tokenizer joins them; ``late`` how it reads a query and a document, if it compares them token
    by token. ``merged`` is the adapter in its weights. ``read_by`` is the model of two stacks that
    this one is the encoder of.
    """

    name: str
    transformer: Transformer
    tokenizer: Tokenizer
    source: str
    tokenizer_note: str = ""
    file_notes: tuple[str, ...] = ()
    corpus: Path | None = None
    lacks: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    table: FamilyTable | None = field(default=None, repr=False, compare=False)
    prompts: Prompts = field(default=NO_PROMPTS, repr=False, compare=False)
    cuts_at: int = 0
    late: LateInteraction | None = field(default=None, repr=False, compare=False)
    pair_template: PairTemplate | None = field(default=None, repr=False, compare=False)
    merged: Merged | None = field(default=None, repr=False, compare=False)
    read_by: "TextModel | None" = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        config = self.config
        sizes = {"layers": config.n_layers, "heads": config.n_heads, "d_model": config.d_model}
        return shown(self, {"name": self.name, "parameters": self.n_parameters, **sizes, "tokens": config.vocab_size})

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle: without ``table`` and ``merged``, which hold functions."""
        return {**self.__dict__, "table": None, "merged": None, "_outlined": {}}

    def outlined(self: AnyModel) -> AnyModel:
        """A copy that describes the model, and has none of its weights; the same copy until an edit begins or ends."""
        whole = self.transformer
        made, replaced = self.__dict__.setdefault("_outlined", {}), (whole.exchanged, whole.edited)
        if replaced not in made:
            copied = made[replaced] = copy.copy(self)
            like = next(whole.parameters()).detach().new_empty(())
            copied.__dict__.update(transformer=outline(self.config, like, *replaced), notes=self.notes, read_by=None)
        described: AnyModel = made[replaced]
        return described

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: what was ignored in the files or assumed, and weights that are not finite."""
        return (*self.file_notes, *self.tokenizer.notes, *not_finite(dict(self.transformer.named_parameters())))

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

    @cached_property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.transformer.parameters())

    def to_dict(self) -> dict[str, Any]:
        """A description of the model as plain JSON data."""
        parameter = next(self.transformer.parameters())
        return {
            "name": self.name,
            "source": self.source,
            "notes": list(self.notes),
            "config": self.config.to_dict(),
            "parameters": self.n_parameters,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": parameter.device.type,
            "tokenizer": self.tokenizer.to_dict(self.tokenizer_note),
        }

    def encode(self, text: Written, *, truncate: bool = False, limit: Limit | None = None) -> Encoding:
        """Tokens of ``text``, or of a conversation, as this model takes them; nothing is added to a Rendered text.

        An embedding model cuts a text where its folder says so. Raises UsageError for a text without a word, or with
        more tokens than the ``limit`` (by default the context), unless ``truncate`` cuts it there.
        """
        limit = limit or self._context
        limit = limit._replace(of="target") if self.config.d_source else limit
        most = DEFAULT_LIMIT if truncate or self.cuts_at else limit
        if self.config.d_source:
            return self._fitting(self._target(text, most), truncate, limit)
        if isinstance(text, Conversation):
            return self._fitting(self._cut(self.tokenizer.converse(text, limit=most)), truncate, limit)
        if isinstance(text, TextPair):
            if self.config.causal and self.pair_template is None:
                raise UsageError(
                    "a pair of texts is for encoders and rerankers, and the folder of this decoder says nothing of "
                    "pairs",
                    "give one text; a reranker has a modules.json, and a modality_config with messages",
                )
            return self._fitting(self._pair(text, most, truncate), truncate, limit)
        _require_string(text)
        if not text.strip():
            kind = "empty" if not text else "only white space"
            raise UsageError(f"the text is {kind}", "give a few words, such as: The cat sat")
        return self._fitting(self._cut(self.tokenizer.encode(text, limit=most)), truncate, limit)

    def _target(self, text: Written, limit: Limit) -> Encoding:
        """The tokens of a target: those of a text without its end, behind the token that every target begins with.

        The language that a tokenizer adds is that of the source; a target has the code that stands in its text, and an
        empty one the token that the configuration makes it begin with. The target of a classifier is the source once
        more, a pair too, with the last of its tokens left out.
        """
        if self.config.labels and isinstance(text, TextPair):
            encoding = self._pair(text, limit, False)
        elif isinstance(text, Conversation | TextPair):
            raise UsageError("this model writes a target for a source, not a conversation or a pair", "give one text")
        else:
            _require_string(text)
            encoding = self.tokenizer.encode(text, limit=limit)
        own = tuple(token for token in encoding.tokens if not (token.is_added and token.shown in LANGUAGES))
        encoding = replace(encoding, tokens=own)
        open_ended = encoding.tokens[:-1] if self.config.labels else encoding.open_ended(self.tokenizer.end_ids).tokens
        forced = [] if text or self.tokenizer.forced is None else [self.tokenizer.forced]
        first, *begun = self.tokenizer.encode_ids([self.config.start_id, *forced]).tokens
        first, begun = replace(first, start=0, end=0), [replace(token, start=0, end=0) for token in begun]
        tokens = open_ended if text else tuple(begun)
        if tokens and tokens[0].is_added and tokens[0].id == first.id:  # as Whisper's tokenizer begins
            tokens = tokens[1:]
        return replace(encoding, tokens=(first, *tokens), added=f"{first.shown} before the target, no end after it")

    @cached_property
    def target_begins(self) -> str:
        """The token that a target is made to begin with, unless the tokenizer adds it; empty for none."""
        forced = self.tokenizer.forced
        if forced is None or forced in self._target("a", DEFAULT_LIMIT).ids[:2]:
            return ""
        return self.tokenizer.shown(forced)

    @cached_property
    def encoder(self: AnyModel) -> AnyModel:
        """The stack that this one reads, as a model of its own. Raises UsageError for a model of one stack."""
        if self.transformer.encoder is None:
            if self.config.d_source:
                raise UsageError("the encoder of this model is not opened", "give its states: --source FILE")
            raise UsageError("this model has one stack", "T5, BART and Marian have two")
        read = self.transformer.encoder
        return replace(self, transformer=read, tokenizer=self.tokenizer.of_source, table=None, read_by=self)

    def reading(self: AnyModel, source: Text | Tensor, *, truncate: bool = False) -> AnyModel:
        """This model of two stacks with what its encoder reads; its own texts are then the targets.

        Instead of a text, ``source`` may be the states (S, d_source) that an encoder of another program gives.
        Raises UsageError for a model of one stack, for states of another shape, and like ``trace`` for the source.
        """
        if isinstance(source, Tensor):
            return replace(self, transformer=reading(self.transformer, self._given(source)))
        trace = self.encoder.trace(source, truncate=truncate)
        return replace(self, transformer=reading(self.transformer, Source(trace.last_hidden[None], trace=trace)))

    def _given(self, states: Tensor) -> Source:
        """The states of an encoder, or of a batch of one. Raises UsageError for any other shape."""
        width, weight = self.config.d_source, next(self.transformer.parameters())
        if not width:
            raise UsageError("this model has one stack, and reads no states of an encoder", "leave them out")
        rows = states[0] if states.dim() == 3 and len(states) == 1 else states
        if rows.dim() != 2 or rows.shape[1] != width or not len(rows):
            sizes = " × ".join(map(str, states.shape))
            raise UsageError(f"states of an encoder are tokens × {width} for this model, and these are {sizes}")
        return Source(rows[None].to(weight))

    def _cut(self, encoding: Encoding) -> Encoding:
        """The encoding, cut where an embedding model cuts it."""
        return encoding.truncated(self.cuts_at) if self.cuts_at else encoding

    def _pair(self, pair: TextPair, limit: Limit, truncate: bool) -> Encoding:
        if not (pair.first.strip() and pair.second.strip()):
            raise UsageError("one text of the pair is empty", 'such as: tinytf trace "Who sat?" --pair "The cat sat."')
        cut = min(self.cuts_at or self.config.context, self.config.context) if truncate or self.cuts_at else 0
        if self.pair_template is not None:
            return encode_rendered(self.tokenizer, pair, self.pair_template, limit=limit, cut=cut)
        pair = replace(pair, first=self.prompts.of() + pair.first)
        encoding, known = encode_pair(self.tokenizer, pair, limit=limit, cut=cut), self.config.n_token_types
        if known and max(encoding.types) >= known:
            raise UsageError(
                f"the tokenizer gives a pair {max(encoding.types) + 1} token types, and the model has {known}"
            )
        return encoding

    @property
    def _context(self) -> Limit:
        return Limit(self.config.context, self.name, "shorten it, or add --truncate")

    def require_unchanged(self) -> None:
        """Raise CheckpointError if a weight file has changed since it was opened."""
        for file in self.transformer.mapped:
            file.require_unchanged()

    def _fitting(self, encoding: Encoding, truncate: bool, limit: Limit) -> Encoding:
        self.require_unchanged()
        beyond = [token for token in encoding.tokens if token.id >= self.config.vocab_size]
        if beyond:
            raise TokenizerError(
                f"token {beyond[0].shown} has id {beyond[0].id}, but the model has {self.config.vocab_size} tokens",
                "the tokenizer is another model's; --tokenizer names the place of its own",
            )
        if truncate and len(encoding.tokens) > self.config.context:
            return encoding.truncated(self.config.context)
        limit.require(len(encoding.tokens))
        return encoding

    def encode_ids(self, ids: Any, *, truncate: bool = False) -> Encoding:
        """The tokens of ``ids``: numbers in a list, an array or a tensor, for one text; nothing is added to them.

        Raises UsageError for anything else, and like ``encode``.
        """
        listed = ids.tolist() if hasattr(ids, "tolist") else ids
        rows = [listed] if isinstance(listed, list | tuple | range) else []
        if len(rows) == 1 and len(listed) == 1 and isinstance(listed[0], list | tuple):
            rows = [listed[0]]  # a batch of one
        if not rows or not all(isinstance(token_id, int) and token_id >= 0 for token_id in rows[0]):
            raise UsageError(f"{brief(ids)} is not a list of token ids", "such as ids=[464, 3797, 3332], for one text")
        return self._fitting(
            self.tokenizer.encode_ids([int(token_id) for token_id in rows[0]]), truncate, self._context
        )

    def prompt(self, text: Written, *, truncate: bool = False) -> Encoding:
        """Tokens of ``text`` to continue, without an end token; for an empty text, the start token alone.

        If a conversation ends with the assistant, its last message is continued.

        Raises UsageError like ``encode``, and for an empty text if there is no start token.
        """
        if isinstance(text, Conversation):
            most = DEFAULT_LIMIT if truncate else self._context
            return self._fitting(self.tokenizer.converse(text, continued=True, limit=most), truncate, self._context)
        _require_string(text)
        if not text and not self.config.d_source:
            start = self.tokenizer.start()
            if start is None:
                raise UsageError(
                    "the text is empty, and this model has no start token", "give a few words, such as: The cat sat"
                )
            return self._fitting(start, truncate, self._context)
        return self.encode(text, truncate=truncate).open_ended(self.tokenizer.end_ids)

    def find_token(self, word: str | int, option: str = "target") -> int:
        """The id of the token ``word``, as it would continue a text or fill a mask; ``#514`` or 514 is token 514.

        Raises UsageError, naming the ``option``, if ``word`` is not a single token of the vocabulary.
        """
        token_id, count = word, self.config.vocab_size
        if isinstance(token_id, str):
            token_id = find_token(self.tokenizer, token_id, causal=self.config.causal, option=option, vocabulary=count)
        token_id = _number(token_id, option)
        if not 0 <= token_id < count:
            raise UsageError(f"{option} {word!r}: there is no token {token_id:,}, the model has {count:,}")
        return token_id

    def find_outcome(self, word: str | int, option: str = "target") -> int:
        """The number of the token or class ``word`` among the outcomes of the head.

        A class is named by its label or its number. Raises UsageError like ``find_token``.
        """
        labels = self.config.labels
        if not labels:
            return self.find_token(word, option)
        word = word if isinstance(word, str) else _number(word, option)
        names = {name: number for number, name in reversed(list(enumerate(labels)))}
        numbers = {form: number for number in range(len(labels)) for form in (number, str(number), f"#{number}")}
        outcome = names.get(str(word), numbers.get(word))
        if outcome is None:
            raise UsageError(
                f"{option} {word!r} is none of the {len(labels):,} classes: {self.config.head.labels_in_words}",
                did_you_mean(str(word), labels),
            )
        return outcome

    def optional_outcome(self, word: str | int | None, option: str = "target") -> int | None:
        """Like ``find_outcome``, but None for None."""
        return None if word is None else self.find_outcome(word, option)

    def shown(self, outcome: int) -> str:
        """The printed form of an outcome of the head: a token of the vocabulary, or a class."""
        labels = self.config.labels
        return printable(labels[outcome], spaces=False) if labels else self.tokenizer.shown(outcome)

    def trace(
        self,
        text: Text | None = None,
        *,
        ids: Any = None,
        truncate: bool = False,
        layers: Collection[int] | None = None,
        force: bool = False,
        grad: bool = False,
    ) -> Trace:
        """Record every step, or only those of ``layers``, of ``text`` or token ``ids``. A trace is returned as it is.

        With ``grad`` the steps carry gradients, also to a vector that ``edited`` puts in; without it, none.
        Raises like ``record``, and UsageError for both a text and ids, or neither.
        """
        if (text is None) == (ids is None):
            raise UsageError("a trace takes either a text or ids", 'model.trace("The cat sat")')
        if isinstance(text, Trace):
            text.about = text.about or About(self, text.encoding)
            return text if grad else text.detached()
        encoding = self.encode_ids(ids, truncate=truncate) if text is None else self.encode(text, truncate=truncate)
        return self.trace_of(encoding, layers=layers, force=force, grad=grad)

    def traces(
        self,
        texts: Sequence[Written],
        *,
        truncate: bool = False,
        layers: Collection[int] | None = None,
        force: bool = False,
    ) -> list[Trace]:
        """Record several texts, which go through the model in batches. Raises like ``trace``."""
        encodings = [self.encode(text, truncate=truncate) for text in require_text_list(texts)]
        traces = record_all(self.transformer, encodings, self.tokenizer.mask_id, layers=layers, force=force)
        for trace in traces:
            trace.about = About(self, trace.encoding)
        return traces

    def trace_of(
        self, encoding: Encoding, *, layers: Collection[int] | None = None, force: bool = False, grad: bool = False
    ) -> Trace:
        """The trace of a text's tokens; see ``trace``."""
        trace = record(self.transformer, encoding, self.tokenizer.mask_id, layers=layers, force=force, grad=grad)
        trace.about = About(self, encoding)
        return trace


def in_turn_of_all(question: Callable[P, R]) -> Callable[P, R]:
    """The question, asked while no other thread uses any of the models that it gets."""

    @wraps(question)
    def ask(*args: P.args, **options: P.kwargs) -> R:
        with using_all(value.transformer for value in (*args, *options.values()) if isinstance(value, TextModel)):
            return question(*args, **options)

    return ask


def require_text_list(texts: Sequence[Written]) -> Sequence[Written]:
    """The texts of a list. Raises UsageError for a single text, and for anything but a list."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise UsageError(
            f"several texts must be a list of strings, not {brief(texts)}", 'such as ["The cat", "The dog"]'
        )
    return texts


def _number(word: object, option: str) -> int:
    """The number of a token or class. Raises UsageError for what is no whole number, such as a list of words."""
    try:
        return index(word)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{option} {word!r} is not one word or number", "name one token, as it follows") from None


def _require_string(text: object) -> None:
    if not isinstance(text, str):
        if isinstance(text, TextPair):
            raise UsageError("this takes one text, not a pair", "leave out --pair")
        is_list = isinstance(text, list | tuple)
        raise UsageError(
            f"a text must be a string, not a {type(text).__name__}",
            "traces and score take several texts" if is_list else "trace(ids=[464, 3797]) takes tokens by their ids",
        )
