"""The start of a run: tokenizer, examples and initial weights."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinytf.checkpoints.weights import not_finite
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, TrainingError, UsageError
from tinytf.files import SMALL, TOKENIZER, parse_json, read_bytes
from tinytf.model.transformer import ADDED, Transformer
from tinytf.outputs import write_state
from tinytf.text.corpus import Corpus, Documents
from tinytf.text.stream import cut_anywhere
from tinytf.text.tokenizer import CHARACTERS, Tokenizer
from tinytf.text.train import TRAINERS, with_end
from tinytf.training.data.baselines import data_facts
from tinytf.training.data.cache import MIN_TEXT_BYTES, cached_entry
from tinytf.training.data.chats import ChatTurns
from tinytf.training.data.examples import Examples, Ids, NextToken
from tinytf.training.data.masked import MaskedTokens
from tinytf.training.data.tokens import Stage, tokenise
from tinytf.training.data.translation import Translations
from tinytf.training.recipe import USUAL_VOCABULARY, Recipe, require_mask
from tinytf.version import __version__

_EMBEDDING_SCALE, _ADDED_SCALE = 0.02, 0.02
"""For ``even`` first weights: the deviation of embeddings (Radford et al. 2019), and a scale for what blocks add."""
_EMBEDDINGS = ("embed.tokens.weight", "embed.positions.weight", "embed.types.weight", "head.decoder.weight")

_CHECKSUM = "tokenizer.json.sha256"

_COUNTED_BATCHES = 20
"""The number of batches whose tokens are counted."""


@dataclass(frozen=True)
class Setup:
    """The start of a run: the model with its initial weights, the tokenizer, the examples, their fingerprint.

    ``counts`` are the numbers of tokens to train on and held out; ``stream`` are the ids to train on, with the marks
    of conversations. ``cut``: the held-out text begins inside a document.
    """

    model: Transformer
    tokenizer: Tokenizer
    examples: Examples
    fingerprint: str = ""
    counts: tuple[int, int] = (0, 0)
    stream: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.uint16))
    cut: bool = False

    def notes(self, recipe: Recipe, *, new_tokenizer: bool) -> Iterator[str]:
        """What to say before training: a small vocabulary, and held-out text that is not whole documents, or none."""
        size = self.tokenizer.vocab_size
        if new_tokenizer and recipe.tokenizer != "char" and not recipe.vocab_size and size < USUAL_VOCABULARY:
            yield f"the text yields a vocabulary of {size:,} tokens, and {USUAL_VOCABULARY:,} are usual"
        if self.cut:
            yield "the text is held out from the middle of a document on, since no border between documents fits"
        elif not self.examples.held_out_batches:
            yield "nothing is held out, so that no held-out loss is measured"


def prepare(
    corpus: Corpus,
    recipe: Recipe,
    folder: Path,
    tokenizer: Tokenizer | None = None,
    model: Transformer | None = None,
    on_progress: Stage = lambda *_: None,
    examples: Examples | None = None,
) -> Setup:
    """Prepare tokenizer, examples and initial model for a corpus; a tokenizer or model, if given, is used as it is.

    Own ``examples`` need a tokenizer, and take the place of the corpus.

    The tokens go to ``folder``, are mapped into memory, and are reused the next time. Raises TrainingError for too
    little text or a model with a weight that is not finite, UsageError for a model that does not fit tokenizer or
    objective, or a vocabulary that the text cannot fill.
    """
    characters = recipe.tokenizer == "char" and (tokenizer is None or tokenizer.kind == CHARACTERS)
    corpus = corpus.whole_files() if characters else corpus
    if model is None:
        recipe.model_config(recipe.vocab_size or USUAL_VOCABULARY)  # raises before anything is read
    if recipe.objective == "chat" and (tokenizer is None or tokenizer.chat is None):
        raise UsageError("the chat objective needs a chat template", "begin --from an Instruct model")
    if corpus.weights and (recipe.objective != "causal" or recipe.document_starts):
        raise UsageError("weights need the causal objective and windows that begin anywhere", "leave them out")
    if tokenizer is None and examples is not None:
        raise UsageError("own examples are ids, whose tokenizer is unknown", "give it as tokenizer=…")
    if tokenizer is None:
        texts = [corpus.documents().texts(cut_anywhere)]
        if not characters:
            texts = [group.split(recipe.held_out)[0] for group in corpus.groups()]
            texts = texts if recipe.objective == "translate" else [documents.texts() for documents in texts]
        tokenizer = _new_tokenizer(corpus, recipe, texts, on_progress)
        if not characters and tokenizer.vocab_size < recipe.vocab_size:
            raise UsageError(
                f"a vocabulary of {recipe.vocab_size:,} tokens is too large for this text, which yields "
                f"{tokenizer.vocab_size:,} at most",
                "leave the size out, or give more text",
            )
    if model is None:
        model = first_model(recipe, tokenizer.largest_id + 1, tokenizer.end_id or 0)
    else:
        _require_fit(model.config, tokenizer, recipe)
        for note in not_finite(dict(model.named_parameters())):
            raise TrainingError(
                f"{recipe.begun_from or 'the model to begin from'}: {note}",
                "its file is damaged or was badly converted",
            )
    if examples is not None:
        if (largest := int(examples.batch(0).ids.max())) > tokenizer.largest_id:
            message = f"the examples have the id {largest:,}; the last of the tokenizer is {tokenizer.largest_id:,}"
            raise UsageError(message, "give the tokenizer that made them")
        return Setup(model, tokenizer, examples, fingerprint_of(corpus))
    is_masked, is_chat = recipe.objective == "masked", recipe.objective == "chat"
    if recipe.objective == "translate" and tokenizer.end_id is None:
        raise UsageError("the translate objective needs a token that ends a target, and this tokenizer has none")
    tokens = tokenise(corpus, tokenizer, folder, held_out=recipe.held_out, sentences=is_masked, on_progress=on_progress)
    weights = [weight for _, weight in corpus.weights]
    groups = list(zip(tokens.groups, weights, strict=True)) if weights else []
    streams = (tokens.train, tokens.held_out, recipe)
    examples = (
        MaskedTokens(*streams, tokenizer)
        if is_masked
        else ChatTurns(*streams, packs=_has_relative_positions(model.config))
        if is_chat
        else Translations(*streams, model.config.start_id)
        if recipe.objective == "translate"
        else NextToken(*streams, tokenizer.vocab_size, tokenizer.end_id, groups)
    )
    counts = len(tokens.train), len(tokens.held_out)
    return Setup(
        model, tokenizer, examples, fingerprint_of(corpus), counts, tokens.train, tokens.cut and not characters
    )


def _has_relative_positions(config: ModelConfig) -> bool:
    """Whether a text in the middle of a row is computed as at the start of a row."""
    relative = config.positions in ("rotary", "alibi", "none")
    return relative and not config.chunk and not config.rope_switch


@dataclass(frozen=True)
class _CountedTexts:
    """Texts that report how many of about ``total`` characters have been read; each pass reads them again.

    Of ``pairs``, which are JSON, both sides are texts.
    """

    texts: Sequence[Documents]
    total: int
    on_progress: Stage
    pairs: bool = False

    def __iter__(self) -> Iterator[str]:
        done = 0
        for text in chain.from_iterable(self.texts):
            yield from parse_json(text) if self.pairs else (text,)
            done += len(text)
            self.on_progress("characters counted for the vocabulary", min(done, self.total), self.total)
        if self.total >= MIN_TEXT_BYTES:  # for less text it is made at once
            self.on_progress("making the vocabulary", 0, 0)


def _new_tokenizer(corpus: Corpus, recipe: Recipe, texts: Sequence[Documents], on_progress: Stage) -> Tokenizer:
    """Train a tokenizer on a text, or take it from the cache; the tokenizer of a large text is cached."""
    size = recipe.vocab_size or USUAL_VOCABULARY
    contents = [__version__, recipe.tokenizer, size, recipe.held_out, vars(corpus.reading), fingerprint_of(corpus)]
    name = f"{recipe.tokenizer}-{hashlib.sha256(json.dumps(contents).encode('ascii')).hexdigest()}"

    with cached_entry(name, sum(file.size for file in corpus.files)) as folder:
        if folder is not None and (stored := _stored_tokenizer(folder)) is not None:
            return stored
        total = sum(file.characters for file in corpus.files)
        pairs = recipe.objective == "translate"
        tokenizer = TRAINERS[recipe.tokenizer](_CountedTexts(texts, total, on_progress, pairs), size)
        tokenizer = with_end(tokenizer) if pairs else tokenizer
        if folder is not None:
            with suppress(OSError, UsageError):
                data = tokenizer.to_json().encode("utf-8")
                write_state(folder / "tokenizer.json", data)
                write_state(folder / _CHECKSUM, _checksum_of(folder, data))
        return tokenizer


def _stored_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder of the cache; None unless its checksum matches."""
    with suppress(CheckpointError, OSError):
        path = folder / "tokenizer.json"
        if read_bytes(folder / _CHECKSUM, SMALL) == _checksum_of(folder, read_bytes(path, TOKENIZER)):
            return Tokenizer.load(path)
    return None


def _checksum_of(folder: Path, data: bytes) -> bytes:
    """A checksum of the data in a folder and of the folder's name, which identifies the text."""
    return hashlib.sha256(folder.name.encode("ascii") + data).hexdigest().encode("ascii")


@torch.no_grad()
def first_model(recipe: Recipe, vocab_size: int, start_id: int = 0) -> Transformer:
    """The initial model of a recipe.

    ``even`` weights make embeddings and unembedding so small that all tokens are about as probable, a loss of ln V, and
    let the blocks add next to nothing to them at first (Zhang et al. 2019, "Fixup").
    """
    config = recipe.model_config(vocab_size, start_id)
    model = Transformer.initialised(config, recipe.seed, look_back=recipe.first_weights == "look_back")
    for name, parameter in model.named_parameters() if recipe.first_weights == "even" else ():
        if name.startswith(_EMBEDDINGS):
            parameter.mul_(min(1.0, _EMBEDDING_SCALE * config.d_model**0.5))  # drawn with deviation 1/√d_model
        elif name.removesuffix(".weight").endswith(ADDED):
            parameter.mul_(_ADDED_SCALE)
    return model


def sizes_of(setup: Setup, recipe: Recipe) -> dict[str, Any]:
    """The numbers of tokens to train on, per step on average, and held out, the bytes of the held-out text, its facts.

    The bytes are None for objectives whose tokens do not stand for bytes of the text.
    """
    train, held_out = setup.counts
    step = round(sum(setup.examples.tokens(step) for step in range(_COUNTED_BATCHES)) / _COUNTED_BATCHES)
    sizes = {"tokens": train, "step_tokens": step, "held_out_tokens": held_out}
    sizes |= data_facts(setup.examples, recipe, setup.tokenizer.largest_id + 1)
    if type(setup.examples) is not NextToken:
        return {**sizes, "held_out_bytes": None}
    ids, counts = np.unique(setup.examples.held_out_set, return_counts=True)
    special = set(setup.tokenizer.special_ids)
    size = sum(
        len(setup.tokenizer.piece_bytes(token_id)) * count
        for token_id, count in zip(ids.tolist(), counts.tolist(), strict=True)
        if token_id not in special
    )
    return {**sizes, "held_out_bytes": size}


def fingerprint_of(corpus: Corpus) -> str:
    """A hash of the contents of all files in order, and of their weights."""
    contents = [*(file.sha256 for file in corpus.files), *(f"{count} × {weight!r}" for count, weight in corpus.weights)]
    return hashlib.sha256("\n".join(contents).encode("utf-8")).hexdigest()


def _require_fit(config: ModelConfig, tokenizer: Tokenizer, recipe: Recipe) -> None:
    if tokenizer.largest_id >= config.vocab_size:
        raise UsageError(
            f"the tokenizer has ids up to {tokenizer.largest_id:,}, but the model knows {config.vocab_size:,} tokens",
            "begin from the model with its own tokenizer",
        )
    kind = "model of two stacks" if config.encoder else f"{config.kind} with head {config.head.kind!r}"
    trained = {"masked": "encoder", "translate": "model"}.get(recipe.objective, "decoder")
    if not kind.startswith(trained) or not config.predicts_tokens:
        raise UsageError(
            f"a {kind} is not trained by the {recipe.objective} objective",
            "--objective causal and chat are for decoders, masked for encoders with a masked head, translate for two "
            "stacks",
        )
    require_mask(config)
    if recipe.block > config.context:
        raise UsageError(f"block {recipe.block} is longer than the model's context of {config.context}")
