"""What a run starts from: tokenizer, examples and first weights; and what is wrong when its numbers go wrong."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tinytf.config import ModelConfig
from tinytf.errors import TrainingError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding, Token, Tokenizer
from tinytf.text.train import TRAINERS
from tinytf.trace.faults import first_not_finite
from tinytf.trace.record import record
from tinytf.training.data import Batch, Examples, MaskedTokens, NextToken, paragraphs, split_held_out, token_stream
from tinytf.training.recipe import Recipe


@dataclass(frozen=True)
class Setup:
    """All that a run starts from: the model with its first weights, the tokenizer, the examples, and whose they are."""

    model: Transformer
    tokenizer: Tokenizer
    examples: Examples
    fingerprint: str = ""


def prepare(
    texts: Sequence[str], recipe: Recipe, tokenizer: Tokenizer | None = None, model: Transformer | None = None
) -> Setup:
    """Tokenizer, examples and initial model for these texts; those that are given are not made.

    Raises TrainingError for too little text, UsageError for a model that does not fit tokenizer or objective.
    """
    documents = [document for text in texts for document in paragraphs(text)]
    if recipe.tokenizer == "char":
        documents = [text for text in texts if text.strip()]
        if len(documents) == 1:  # one text without an end token: hold out its tail
            cut = max(1, round(len(documents[0]) * (1 - recipe.held_out)))
            documents = [documents[0][:cut], documents[0][cut:]]
    if not documents:
        raise TrainingError("the text is empty, so there is nothing to train on")
    train, held_out = split_held_out(documents, recipe.held_out)
    if tokenizer is None:
        tokenizer = TRAINERS[recipe.tokenizer](train if recipe.tokenizer != "char" else documents, recipe.vocab_size)
    if model is None:
        model = Transformer.initialised(recipe.model_config(tokenizer.vocab_size), recipe.seed)
    else:
        _require_fit(model.config, tokenizer, recipe)
    examples: Examples
    if recipe.objective == "causal":
        kept = token_stream(held_out, tokenizer) if held_out else token_stream(train[-1:], tokenizer)[:0]
        examples = NextToken(
            token_stream(train, tokenizer),
            kept,
            block=recipe.block,
            batch=recipe.batch,
            seed=recipe.seed,
            vocab_size=tokenizer.vocab_size,
            end=tokenizer.end_id,
            repeats=recipe.repeats,
            repeats_first=recipe.repeats_first,
        )
    else:
        examples = MaskedTokens(train, held_out, tokenizer, recipe.block, recipe.batch, recipe.seed)
    return Setup(model, tokenizer, examples, fingerprint_of(texts))


def fingerprint_of(texts: Sequence[str]) -> str:
    """The same for the same texts in the same order, and for no others."""
    found = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8")
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def _require_fit(config: ModelConfig, tokenizer: Tokenizer, recipe: Recipe) -> None:
    if tokenizer.vocab_size > config.vocab_size:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, and the model knows {config.vocab_size:,}",
            "begin from the model with its own tokenizer",
        )
    if config.causal != (recipe.objective == "causal") or config.head == "none":
        raise UsageError(
            f"a {config.kind} with head {config.head!r} is not trained by the {recipe.objective} objective",
            "--objective causal is for decoders, masked for encoders with a masked head",
        )
    if recipe.block > config.context:
        raise UsageError(f"block {recipe.block} is longer than the model's context of {config.context}")


@torch.no_grad()
def first_fault(model: Transformer, batch: Batch) -> str:
    """Which example of a batch has numbers that are none, and at which step of the forward pass they first appear.

    ``, in example 3, first at L2.ffn``; empty where the forward pass alone shows nothing.
    """
    training = model.training
    try:
        for row, ids in enumerate(batch.ids.tolist()):
            real = ids if batch.padding_mask is None else ids[: int(batch.padding_mask[row].sum())]
            tokens = tuple(Token(token_id, f"#{token_id}", 0, 0, b"", False) for token_id in real)
            found = first_not_finite(record(model, Encoding("", tokens, ""), force=True))
            if found is not None:
                return f", in example {row}, first at {found}"
    finally:
        model.train(training)
    return ""
