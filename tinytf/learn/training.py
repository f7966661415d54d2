"""Lessons about learning: the loss, its gradient, and the step of the optimiser."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from tinytf.learn.lesson import Lesson, LiveTable, figure
from tinytf.learn.live import Live
from tinytf.steps.operations.softmax import probabilities
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.optimiser import make_optimiser
from tinytf.training.tuning.update import ChosenWeight, Update, UpdateWatch

_RECIPE = Recipe()
_MOST_TOKENS = 6


def loss(live: Live) -> Lesson:
    if not live.has_head:
        return _no_loss(live)
    position, token_id, value = live.target
    p, trace, untrained = math.exp(-value), live.gradients, math.log(live.config.vocab_size)
    question = live.ask("loss").number(
        f"At token {position}, {trace.tokens[position].shown}, the target is {live.piece(token_id)}, and the model "
        f"gives it probability {figure(p)}. What is the loss there, in nats?",
        value,
        [
            (1 - p, "That is 1 − p, and the loss is −ln p."),
            (value / math.log(2), "That is in bits, −log₂ p."),
            (p, "That is the probability itself."),
            (1 / p if p else math.inf, "That is 1 / p, and the loss is its logarithm."),
            (-math.log10(p) if p else math.inf, "That is −log₁₀ p."),
        ],
        f"−ln {figure(p)} = {figure(value)}. A model that knows nothing has ln {live.config.vocab_size:,} = "
        f"{figure(untrained)}; the mean here is {figure(trace.loss)}.",
    )
    revealed = tuple(
        (f"{position} {trace.tokens[position].shown}", live.piece(token), math.exp(-token_loss), token_loss)
        for position, token, token_loss in zip(trace.targets.positions, trace.targets.ids, trace.losses, strict=True)
    )
    return live.lesson(
        "loss",
        question,
        LiveTable(("at", "right", "probability"), tuple(row[:3] for row in revealed), share=2, keep="last"),
        LiveTable(("at", "right", "probability", "loss"), revealed, share=2, keep="last"),
        variant="" if live.config.causal else "encoder",
        goal=live.prediction_task[2],
        cell=f"probs[{position},{token_id}]" if trace.encoding is live.encoding else f"L0.ffn[{live.here},0]",
    )


def _no_loss(live: Live) -> Lesson:
    vocab = live.config.vocab_size
    question = live.ask("loss").number(
        f"A head that has learned nothing would give each of {vocab:,} tokens the same probability. What would its "
        "loss be, in nats?",
        math.log(vocab),
        [
            (math.log2(vocab), "That is in bits, −log₂ p."),
            (1 / vocab, "That is the probability, and the loss is −ln of it."),
            (vocab, "That is 1 / p, and the loss is its logarithm."),
            (math.log10(vocab), "That is −log₁₀ p."),
        ],
        f"−ln(1 / {vocab:,}) = ln {vocab:,} = {figure(math.log(vocab))}. Every training run starts near this loss.",
    )
    return live.lesson("loss", question, variant="headless")


def backward(live: Live) -> Lesson:
    if not live.has_head:
        return _no_backward(live)
    trace = live.gradients
    position, token_id, value = live.target
    p, count = math.exp(-value), len(trace.targets.ids)
    answer = (p - 1) / count
    divisor = f" / {count}" if count > 1 else ""
    mean_note = f" The loss is the mean of {count}." if count > 1 else ""
    question = live.ask("backward").number(
        f"At token {position}, {trace.tokens[position].shown}, the right token {live.piece(token_id)} has probability "
        f"{figure(p)}.{mean_note} What is the gradient of the loss at its logit?",
        answer,
        [
            (-answer, "That has the wrong sign: a larger logit would make the loss larger."),
            (p / count, "That leaves out the 1 of the right token."),
            (-p / count, "That leaves out the 1 of the right token, and has the wrong sign."),
            ((p - 1) * count, f"That multiplies by {count}, and a mean divides."),
            (-1 / count, "That leaves out the probability."),
        ],
        f"(p − 1){divisor} = ({figure(p)} − 1){divisor} = {figure(answer)}: below 0, so a larger logit makes the loss "
        f"smaller. Autograd found {figure(float(trace.grad['logits'][position, token_id]))}.",
    )
    cell_token = token_id if trace.encoding is live.encoding else live.likeliest[0]
    probs, slopes = probabilities(trace.logits_at(position).double()), trace.grad["logits"][position]
    tokens = dict.fromkeys([token_id, *probs.topk(min(_MOST_TOKENS, len(probs))).indices.tolist()])
    rows = [(live.piece(token), "" if token != token_id else "right", float(probs[token])) for token in tokens]
    revealed = tuple((*row, float(slopes[token])) for row, token in zip(rows, tokens, strict=True))
    return live.lesson(
        "backward",
        question,
        LiveTable(("token", "", "probability"), tuple(rows), share=2),
        LiveTable(("token", "", "probability", "gradient of the logit"), revealed, share=2),
        cell=f"logits[{position},{cell_token}]",
        lengths=_lengths(live),
    )


def _lengths(live: Live) -> str:
    """The length of the gradient at the input of the last block and of the first, in words."""
    addresses = dict.fromkeys((f"L{live.config.n_layers - 1}.in", "L0.in"))
    return ", ".join(
        f"{figure(float(live.gradients.grad[address].double().norm()))} at {address}" for address in addresses
    )


def _no_backward(live: Live) -> Lesson:
    row, weights = live.row, live.at("L0H0.weights")[live.row]
    key = int(np.abs(weights - 0.5).argmin())
    w = float(weights[key])
    question = live.ask("backward").number(
        f"Query {row}, {live.token(row)}, gives key {key}, {live.token(key)}, the weight {figure(w)}. "
        "How fast does that weight grow with its own score?",
        w * (1 - w),
        [
            (w, "That is the weight itself."),
            (1 - w, "That is 1 − w, without the factor w."),
            (w * w, "That is w², and the other factor is 1 − w."),
            (w * (w - 1), "That has the wrong sign: a larger score makes the weight larger."),
        ],
        f"w·(1 − w) = {figure(w)} × {figure(1 - w)} = {figure(w * (1 - w))}: most where the choice is open, nothing "
        "where it is settled.",
    )
    return live.lesson("backward", question, variant="headless", key=key)


def first_step(live: Live) -> Update:
    """AdamW's first step for one weight, the one with the largest gradient; torch takes it on a copy of its matrix."""
    gradients = live.gradients.parameters
    last_ffn = f"blocks.{live.config.first_of(live.config.n_layers - 1)}.ffn."
    down_matrices = [
        name for name in gradients if name.startswith(last_ffn) and name.endswith("down.weight")
    ]  # of experts, or of one
    chosen = max(
        [name for name in down_matrices if bool(gradients[name].any())] or gradients,
        key=lambda n: float(gradients[n].abs().max()),
    )
    copy = nn.Module()
    weight = nn.Parameter(live.model.transformer.get_parameter(chosen).detach().float().cpu().clone())
    copy.register_parameter("weight", weight)
    weight.grad = gradients[chosen].detach().float().cpu().clone()
    optimiser = make_optimiser(copy, _RECIPE)
    watch = UpdateWatch(copy, optimiser, [ChosenWeight("weight")])
    optimiser.step()
    (update,) = watch.updates(0.0, math.inf)
    return replace(update, name=chosen)


def optimiser(live: Live) -> Lesson:
    if not live.has_head:
        return _no_step(live)
    with torch.enable_grad():
        step = first_step(live)
    change = -step.lr * step.m_hat / (math.sqrt(step.v_hat) + step.epsilon)
    question = live.ask("optimiser").number(
        f"A weight is {figure(step.before)}, its gradient {figure(step.g)}, the learning rate {step.lr:g}. By how much "
        "does the first step of Adam move it, without weight decay?",
        change,
        [
            (-step.lr * step.g, "That is plain gradient descent, −lr·g."),
            (-change, "That has the wrong sign: it goes up the gradient."),
            (-step.g, "That is the gradient itself, without a learning rate."),
            (
                change * math.sqrt(abs(step.g)),
                "That depends on the size of the gradient, and only its sign counts here.",
            ),
        ],
        f"−lr·m̂ / √v̂ = {figure(change)}: in the first step m̂ is the gradient and √v̂ its size, so only its sign is "
        f"left. With weight decay torch's AdamW moved the weight to {figure(step.torch)}.",
    )
    rows = (
        ("before", step.before, "as it is now"),
        ("gradient g", step.g, ""),
        ("m", step.m, f"{step.beta1:g} × 0 + {1 - step.beta1:.3g} × g"),
        ("v", step.v, f"{step.beta2:g} × 0 + {1 - step.beta2:.3g} × g²"),
        ("m_hat", step.m_hat, f"m / (1 − {step.beta1:g})"),
        ("v_hat", step.v_hat, f"v / (1 − {step.beta2:g})"),
        ("weight decay", step.decayed - step.before, f"−{step.lr:g} × {step.weight_decay:g} × weight"),
        ("after", step.after, "before + weight decay − lr·m_hat / √v_hat"),
    )
    titles = (f"{step.name}[{','.join(map(str, step.index))}]", "value", "from")
    return live.lesson(
        "optimiser",
        question,
        LiveTable(titles, rows[:4]),
        LiveTable(titles, rows),
        lr=step.lr,
        betas=f", betas=({step.beta1:g}, {step.beta2:g})",
        last=live.config.n_layers - 1,
    )


def _no_step(live: Live) -> Lesson:
    count = live.model.n_parameters
    question = live.ask("optimiser").number(
        f"Besides its {count:,} parameters, how many numbers does training this model with Adam have to keep: "
        "gradients and both moments?",
        3 * count,
        [
            (count, "That is one number for each, and there are three."),
            (2 * count, "That is two numbers for each, and there are three."),
            (4 * count, "That counts the parameters too."),
        ],
        f"One gradient and two moments for each: 3 × {count:,} = {3 * count:,}.",
    )
    kinds = ("weights", "gradients", "m, mean of the gradients", "v, mean of their squares")
    rows = tuple((kind, count) for kind in kinds)
    return live.lesson(
        "optimiser", question, LiveTable(("kept", "numbers"), rows), variant="headless", lr=_RECIPE.lr, betas=""
    )
