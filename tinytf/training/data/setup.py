"""What a run starts from: tokenizer, examples and first weights; and where its numbers stop being finite."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from tinytf.checkpoints.weights import not_finite
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, TrainingError, UsageError
from tinytf.files import SMALL, TOKENIZER, read_bytes
from tinytf.model.transformer import ADDED, Transformer
from tinytf.outputs import write_state
from tinytf.text.corpus import Corpus, Documents
from tinytf.text.stream import anywhere
from tinytf.text.tokenizer import CHARACTERS, Encoding, Token, Tokenizer
from tinytf.text.train import TRAINERS
from tinytf.trace.faults import first_not_finite
from tinytf.trace.record import record
from tinytf.training.data.cache import LEAST, kept
from tinytf.training.data.chats import ChatTurns
from tinytf.training.data.examples import Batch, Examples, Ids, NextToken
from tinytf.training.data.masked import MaskedTokens
from tinytf.training.data.tokens import Stage, tokenise
from tinytf.training.recipe import USUAL_VOCABULARY, Recipe, require_mask
from tinytf.version import __version__

_EMBEDDED, _FIRST_ADDED = 0.02, 0.02
"""Of ``even`` first weights: the deviation of embeddings (Radford et al. 2019), and how much of the usual is added."""
_OF_TOKENS = ("embed.tokens.weight", "embed.positions.weight", "embed.types.weight", "head.decoder.weight")

_SUM = "tokenizer.json.sha256"

_LOOKED_AT = 20
"""The batches whose tokens are counted."""


@dataclass(frozen=True)
class Setup:
    """All that a run starts from: the model with its first weights, the tokenizer, the examples, their fingerprint.

    ``counts`` are the tokens to train on, and those held out; ``stream`` are the ids to train on, with the marks of
    conversations.
    """

    model: Transformer
    tokenizer: Tokenizer
    examples: Examples
    fingerprint: str = ""
    counts: tuple[int, int] = (0, 0)
    stream: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.uint16))


def prepare(
    corpus: Corpus,
    recipe: Recipe,
    folder: Path,
    tokenizer: Tokenizer | None = None,
    model: Transformer | None = None,
    on_progress: Stage = lambda *_: None,
) -> Setup:
    """Tokenizer, examples and initial model for a corpus; a given tokenizer or model is used as it is.

    The tokens are kept in ``folder``, mapped into memory, and found there the next time. Raises TrainingError for too
    little text and a model with a weight that is not finite, UsageError for a model that does not fit tokenizer or
    objective, and for a vocabulary that the text cannot fill.
    """
    characters = recipe.tokenizer == "char" and (tokenizer is None or tokenizer.kind == CHARACTERS)
    corpus = corpus.whole_files() if characters else corpus
    if model is None:
        recipe.model_config(recipe.vocab_size or USUAL_VOCABULARY)  # raises before anything is read
    if recipe.objective == "chat" and (tokenizer is None or tokenizer.chat is None):
        raise UsageError("the chat objective needs a chat template", "begin --from an Instruct model")
    if corpus.weights and (recipe.objective != "causal" or recipe.document_starts):
        raise UsageError("weights are for windows of the causal objective that begin anywhere", "leave them out")
    if tokenizer is None:
        texts = [corpus.documents().texts(anywhere)]
        if not characters:
            texts = [one.split(recipe.held_out)[0].texts() for one in corpus.groups()]
        tokenizer = _new_tokenizer(corpus, recipe, texts, on_progress)
        if not characters and tokenizer.vocab_size < recipe.vocab_size:
            raise UsageError(
                f"a vocabulary of {recipe.vocab_size:,} tokens is too large for this text, which yields "
                f"{tokenizer.vocab_size:,} at most",
                "leave the size out, or give more text",
            )
    if model is None:
        model = first_model(recipe, tokenizer.vocab_size)
    else:
        _require_fit(model.config, tokenizer, recipe)
        for note in not_finite(dict(model.named_parameters())):
            raise TrainingError(
                f"{recipe.begun_from or 'the model to begin from'}: {note}",
                "its file is damaged or was badly converted",
            )
    masked, chat = recipe.objective == "masked", recipe.objective == "chat"
    tokens = tokenise(corpus, tokenizer, folder, held_out=recipe.held_out, sentences=masked, on_progress=on_progress)
    weights = [weight for _, weight in corpus.weights]
    groups = list(zip(tokens.groups, weights, strict=True)) if weights else []
    streams = (tokens.train, tokens.held_out, recipe)
    examples: Examples = (
        MaskedTokens(*streams, tokenizer)
        if masked
        else ChatTurns(*streams, packs=_places_are_relative(model.config))
        if chat
        else NextToken(*streams, tokenizer.vocab_size, tokenizer.end_id, groups)
    )
    counts = len(tokens.train), len(tokens.held_out)
    return Setup(model, tokenizer, examples, fingerprint_of(corpus), counts, tokens.train)


def _places_are_relative(config: ModelConfig) -> bool:
    """Whether a text that begins later in a row is computed as at its start."""
    relative = config.positions in ("rotary", "alibi", "none")
    return relative and not config.chunk and config.rope_scaling != "longrope"  # which changes with the length


@dataclass(frozen=True)
class _Counted:
    """Texts that say how many of about ``total`` characters of them were read; each pass reads them again."""

    texts: Sequence[Documents]
    total: int
    on_progress: Stage

    def __iter__(self) -> Iterator[str]:
        done = 0
        for text in chain.from_iterable(self.texts):
            yield text
            done += len(text)
            self.on_progress("characters counted for the vocabulary", min(done, self.total), self.total)
        if self.total >= LEAST:  # of less it is made at once
            self.on_progress("making the vocabulary", 0, 0)


def _new_tokenizer(corpus: Corpus, recipe: Recipe, texts: Sequence[Documents], on_progress: Stage) -> Tokenizer:
    """The tokenizer of a text, from scratch; that of a large one is kept."""
    size = recipe.vocab_size or USUAL_VOCABULARY
    said = [__version__, recipe.tokenizer, size, recipe.held_out, vars(corpus.reading), fingerprint_of(corpus)]
    name = f"{recipe.tokenizer}-{hashlib.sha256(json.dumps(said).encode('ascii')).hexdigest()}"

    with kept(name, sum(file.size for file in corpus.files)) as folder:
        if folder is not None and (stored := _stored_tokenizer(folder)) is not None:
            return stored
        total = sum(file.characters for file in corpus.files)
        made = TRAINERS[recipe.tokenizer](_Counted(texts, total, on_progress), size)
        if folder is not None:
            with suppress(OSError, UsageError):
                data = made.to_json().encode("utf-8")
                write_state(folder / "tokenizer.json", data)
                write_state(folder / _SUM, _sum_of(folder, data))
        return made


def _stored_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in a folder of the cache, if it is the one that was made for that."""
    with suppress(CheckpointError, OSError):
        path = folder / "tokenizer.json"
        if read_bytes(folder / _SUM, SMALL) == _sum_of(folder, read_bytes(path, TOKENIZER)):
            return Tokenizer.load(path)
    return None


def _sum_of(folder: Path, data: bytes) -> bytes:
    """A checksum of what stands in a folder, and of the folder's name, which says for which text."""
    return hashlib.sha256(folder.name.encode("ascii") + data).hexdigest().encode("ascii")


@torch.no_grad()
def first_model(recipe: Recipe, vocab_size: int) -> Transformer:
    """The model that a recipe begins with.

    ``even`` weights make embeddings and unembedding so small that all tokens are about as probable, a loss of ln V, and
    let the blocks add next to nothing to them at first (Zhang et al. 2019, "Fixup").
    """
    config = recipe.model_config(vocab_size)
    model = Transformer.initialised(config, recipe.seed, look_back=recipe.first_weights == "look_back")
    for name, parameter in model.named_parameters() if recipe.first_weights == "even" else ():
        if name.startswith(_OF_TOKENS):
            parameter.mul_(min(1.0, _EMBEDDED * config.d_model**0.5))  # they were drawn with 1/√d_model
        elif name.removesuffix(".weight").endswith(ADDED):
            parameter.mul_(_FIRST_ADDED)
    return model


def sizes_of(setup: Setup) -> dict[str, int | None]:
    """The tokens to train on, of a step (in the mean), those held out, and their bytes.

    None where a token does not stand for its bytes.
    """
    train, held_out = setup.counts
    step = round(sum(setup.examples.tokens(step) for step in range(_LOOKED_AT)) / _LOOKED_AT)
    sizes = {"tokens": train, "step_tokens": step, "held_out_tokens": held_out}
    if type(setup.examples) is not NextToken:
        return {**sizes, "held_out_bytes": None}
    ids, counts = np.unique(setup.examples.kept, return_counts=True)
    special = set(setup.tokenizer.special_ids)
    size = sum(
        len(setup.tokenizer.piece_bytes(token_id)) * count
        for token_id, count in zip(ids.tolist(), counts.tolist(), strict=True)
        if token_id not in special
    )
    return {**sizes, "held_out_bytes": size}


def fingerprint_of(corpus: Corpus) -> str:
    """A hash of the contents of all files in order, and of their weights."""
    said = [*(file.sha256 for file in corpus.files), *(f"{count} × {weight!r}" for count, weight in corpus.weights)]
    return hashlib.sha256("\n".join(said).encode("utf-8")).hexdigest()


def _require_fit(config: ModelConfig, tokenizer: Tokenizer, recipe: Recipe) -> None:
    if tokenizer.vocab_size > config.vocab_size:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, and the model knows {config.vocab_size:,}",
            "begin from the model with its own tokenizer",
        )
    if config.causal != (recipe.objective != "masked") or not config.predicts_tokens:
        raise UsageError(
            f"a {config.kind} with head {config.head.kind!r} is not trained by the {recipe.objective} objective",
            "--objective causal and chat are for decoders, masked for encoders with a masked head",
        )
    require_mask(config)
    if recipe.block > config.context:
        raise UsageError(f"block {recipe.block} is longer than the model's context of {config.context}")


@torch.no_grad()
def first_fault(model: Transformer, batch: Batch) -> str:
    """Which example of a batch has numbers that are not finite, and at which step of the forward pass they appear.

    ``, in example 3, first at L2.ffn``; empty if the forward pass is finite.
    """
    training = model.training
    try:
        for row, ids in enumerate(batch.ids.tolist()):
            real = ids if batch.padding_mask is None else ids[: int(batch.padding_mask[row].bool().sum())]
            tokens = tuple(Token(token_id, f"#{token_id}", 0, 0, b"", False) for token_id in real)
            found = first_not_finite(record(model, Encoding("", tokens, ""), force=True))
            if found is not None:
                return f", in example {row}, first at {found}"
    finally:
        model.train(training)
    return ""
