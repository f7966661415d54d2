"""The training loop: AdamW, warm-up then cosine, clipping, metrics, a run directory."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from tinytf.checkpoints.run import save_run
from tinytf.errors import TrainingError, UsageError
from tinytf.files import to_json, write_whole
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import TRAINERS
from tinytf.training.data import (
    IGNORED,
    Batch,
    Examples,
    MaskedTokens,
    NextToken,
    paragraphs,
    split_held_out,
    token_stream,
)
from tinytf.training.recipe import Recipe


@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl: losses in nats a token, ``held_out_loss`` only where it was measured."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    held_out_loss: float | None = None


@dataclass(frozen=True)
class Setup:
    """All that a run starts from: the model with its first weights, the tokenizer, and the examples."""

    model: Transformer
    tokenizer: Tokenizer
    examples: Examples


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up to ``lr``, then half a cosine down to ``lr * final_lr``; ``step`` counts from 0."""
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    low = recipe.lr * recipe.final_lr
    return low + (recipe.lr - low) * 0.5 * (1 + math.cos(math.pi * progress))


def prepare(texts: Sequence[str], recipe: Recipe) -> Setup:
    """Tokenizer, examples and initial model for these texts. Raises TrainingError for too little text."""
    documents = [document for text in texts for document in paragraphs(text)]
    if recipe.tokenizer == "char":
        documents = [text for text in texts if text.strip()]
        if len(documents) == 1:  # one text without an end token: hold out its tail
            cut = max(1, round(len(documents[0]) * (1 - recipe.held_out)))
            documents = [documents[0][:cut], documents[0][cut:]]
    if not documents:
        raise TrainingError("the text is empty, so there is nothing to train on")
    train, held_out = split_held_out(documents, recipe.held_out)
    tokenizer = TRAINERS[recipe.tokenizer](train if recipe.tokenizer != "char" else documents, recipe.vocab_size)
    config = recipe.model_config(tokenizer.vocab_size)
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
    return Setup(Transformer.initialised(config, recipe.seed), tokenizer, examples)


def batch_loss(model: Transformer, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy over the positions that ask for a token, in nats; only those go through the head."""
    batch = batch.to(model.embed.tokens.weight.device)
    hidden = model.hidden(batch.ids, padding_mask=batch.padding_mask)  # (B, T, C)
    asked = batch.targets != IGNORED
    return F.cross_entropy(model.unembed(hidden[asked]), batch.targets[asked])


@torch.no_grad()
def held_out_loss(model: Transformer, examples: Examples, limit: int | None = None) -> float | None:
    """Mean loss in nats a token over (at most ``limit`` batches of) the held-out text; None when there is none."""
    training = model.training
    model.eval()
    total, count = 0.0, 0
    for batch in examples.held_out(limit):
        asked = int((batch.targets != IGNORED).sum())
        total += float(batch_loss(model, batch)) * asked
        count += asked
    model.train(training)
    return total / count if count else None


def _require_number(what: str, value: float, step: int) -> None:
    if not math.isfinite(value):
        raise TrainingError(f"the {what} is {value} at step {step}", "try a smaller --lr")


def train(
    texts: Sequence[str],
    recipe: Recipe,
    out: Path,
    on_metrics: Callable[[Metrics, Setup], None] = lambda *_: None,
    device: torch.device | str = "cpu",
) -> Metrics:
    """Train a model on ``texts`` and leave it in the run directory ``out``; the last metrics are returned.

    Raises UsageError when ``out`` holds a run already, TrainingError when the loss stops being a number
    (the last good checkpoint stays).
    """
    if (out / "config.json").exists():
        raise UsageError(f"{out} holds a run already", "give another --out, or remove it")
    torch.manual_seed(recipe.seed)
    setup = prepare(texts, recipe)
    model = setup.model.to(device).train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.lr,
        betas=(recipe.beta1, recipe.beta2),
        fused=True,
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "recipe.json", to_json(recipe.to_dict()))
        lines = (out / "metrics.jsonl").open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}") from None
    with lines:
        for step in range(recipe.steps):
            lr = learning_rate(step, recipe)
            for group in optimiser.param_groups:
                group["lr"] = lr
            loss = batch_loss(model, setup.examples.batch(step))
            _require_number("loss", loss.item(), step)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            _require_number("gradient norm", norm.item(), step)
            optimiser.step()
            last = step + 1 == recipe.steps
            if last or (step + 1) % recipe.eval_every == 0:
                kept = held_out_loss(model, setup.examples, limit=None if last else 8)
                if kept is not None:
                    _require_number("held-out loss", kept, step)
                if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
                    raise TrainingError(f"a weight is no finite number after step {step}", "try a smaller --lr")
                save_run(out, model, setup.tokenizer)
            else:
                kept = None
            metrics = Metrics(step + 1, loss.item(), lr, norm.item(), kept)
            lines.write(json.dumps({k: v for k, v in vars(metrics).items() if v is not None}) + "\n")
            lines.flush()
            on_metrics(metrics, setup)
    model.eval()
    return metrics
