"""Lessons about learning: the loss, its gradient, and the step of the optimiser."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from tinytf.lessons.asking import figure
from tinytf.lessons.data import Figure, Figures, Lesson
from tinytf.lessons.live import Live
from tinytf.lessons.titles import TITLES
from tinytf.training.optimiser import make_optimiser
from tinytf.training.recipe import Recipe
from tinytf.training.update import Chosen, Update, UpdateWatch

_RECIPE = Recipe()
_RATE = _RECIPE.lr


def loss(live: Live, number: int) -> Lesson:
    if not live.has_head:
        return _no_loss(live, number)
    place, token_id, value = live.target
    p, found = math.exp(-value), live.gradients
    question = live.asked("loss").number(
        f"At token {place}, {found.tokens[place].shown}, the model gave {live.piece(token_id)}, which {live.standing}, "
        f"probability {figure(p)}. What is the loss there, in nats?",
        value,
        [1 - p, value / math.log(2), p, 1 / p if p > 1e-12 else 1e12, -math.log10(p) if p else math.inf],
        f"−ln {figure(p)} = {figure(value)}. A model that knows nothing has ln {live.config.vocab_size:,} = "
        f"{figure(math.log(live.config.vocab_size))}; the mean here is {figure(found.loss)}.",
    )
    rows = tuple(
        (f"{place} {found.tokens[place].shown}", live.piece(token), math.exp(-each))
        for place, token, each in zip(found.targets.positions, found.targets.ids, found.losses, strict=True)
    )
    told = tuple((*row, each) for row, each in zip(rows, found.losses, strict=True))
    return Lesson(
        number, "loss", TITLES["loss"],
        "Training needs one number to make smaller. It is −ln of the probability that the right token was given: 0 for "
        f"certainty, more without end for a surprise. {_sentence(live.goal)}",
        "loss = mean of −ln p(right token)",
        "loss = F.cross_entropy(logits[0, :-1], ids[0, 1:])"
        if live.config.causal
        else "loss = F.cross_entropy(logits[masked], ids_before[masked])",
        f"probs[{place},{token_id}]" if found.encoding is live.encoding else f"L0.ffn[{live.here},0]",
        question,
        role="output",
        figures=Figures(("at", "right", "probability"), rows, share=2),
        revealed_figures=Figures(("at", "right", "probability", "loss"), told, share=2),
    )  # fmt: skip


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def _no_loss(live: Live, number: int) -> Lesson:
    vocab = live.config.vocab_size
    question = live.asked("loss").number(
        f"A head that has learned nothing would give each of {vocab:,} tokens the same probability. What would its "
        "loss be, in nats?",
        math.log(vocab),
        [math.log2(vocab), 1 / vocab, vocab, math.log10(vocab)],
        f"−ln(1 / {vocab:,}) = ln {vocab:,} = {figure(math.log(vocab))}. Every loss of a training run begins near "
        "this.",
    )
    return Lesson(
        number, "loss", TITLES["loss"],
        "Training needs one number to make smaller: −ln of the probability that the right token was given. This model "
        "has no head, so it gives no probabilities, and without something to compare with there is no loss.",
        "loss = mean of −ln p(right token), where there are logits",
        "loss = F.cross_entropy(logits, targets)",
        f"{live.final}[{live.here},0]",
        question,
        role="output",
        focus=live.here,
        shown=(live.final,),
    )  # fmt: skip


def backward(live: Live, number: int) -> Lesson:
    if not live.has_head:
        return _no_backward(live, number)
    found = live.gradients
    place, token_id, value = live.target
    p, count = math.exp(-value), len(found.targets.ids)
    right = (p - 1) / count
    over = f" / {count}" if count > 1 else ""
    mean = f" The loss is the mean of {count}." if count > 1 else ""
    true = float(found.grad["logits"][place, token_id])
    question = live.asked("backward").number(
        f"At token {place}, {found.tokens[place].shown}, the right token {live.piece(token_id)} has probability "
        f"{figure(p)}.{mean} What is the gradient of the loss at its logit?",
        right,
        [-right, p / count, -p / count, (p - 1) * count if count > 1 else p - 2, -1 / count],
        f"(p − 1){over} = ({figure(p)} − 1){over} = {figure(right)}: below 0, so a larger logit makes the loss "
        f"smaller. Autograd found {figure(true)}.",
    )
    rows: list[tuple[Figure, ...]] = []
    for layer in range(live.config.n_layers):
        sizes = (found.grad[f"L{layer}.{name}"].double().norm() for name in ("in", "attn", "ffn"))
        rows.append((f"L{layer}", *map(float, sizes)))
    return Lesson(
        number, "backward", TITLES["backward"],
        "Each number of the model is asked: if you were a little larger, what would the loss do? The chain rule gives "
        "all the answers in one pass from the loss back to the embeddings; at the logits it is simply what was "
        "predicted minus what was right.",
        "∂loss/∂logits = (softmax(logits) − one-hot of the right token) / N",
        "loss.backward()  # then logits.grad, weight.grad, …",
        f"logits[{place},{token_id}]" if found.encoding is live.encoding else f"logits[{place},{live.likeliest[0]}]",
        question,
        role="output",
        figures=Figures(("gradient's length at", "in", "attn", "ffn"), tuple(rows), layers=True),
    )  # fmt: skip


def _no_backward(live: Live, number: int) -> Lesson:
    row = live.row
    weights = live.at("L0H0.weights")[row]
    key = int(np.abs(weights - 0.5).argmin())
    w = float(weights[key])
    question = live.asked("backward").number(
        f"Query {row}, {live.token(row)}, gives key {key}, {live.token(key)}, the weight {figure(w)}. "
        "How fast does that weight grow with its own score?",
        w * (1 - w),
        [w, 1 - w, w * w, w * (w - 1)],
        f"w·(1 − w) = {figure(w)} × {figure(1 - w)} = {figure(w * (1 - w))}: most where the choice is open, nothing "
        "where it is settled.",
    )
    return Lesson(
        number, "backward", TITLES["backward"],
        "Without a head there is no loss, and without a loss nothing to go back from. What does exist is each step's "
        "own slope, and the chain rule would multiply these from the loss down; here is that of the softmax.",
        "∂w/∂score = w·(1 − w), of a softmax with itself",
        "loss.backward()  # where there is a loss",
        f"L0H0.weights[{row},{key}]",
        question,
        role="attention",
        focus=row,
        shown=("L0H0.weights",),
    )  # fmt: skip


def first_step(live: Live) -> Update:
    """AdamW's first step for one weight, made by torch on a copy of its matrix: where its gradient is largest."""
    found = live.gradients.parameters
    wanted = f"blocks.{live.config.n_layers - 1}.ffn.down.weight"
    if not bool(found[wanted].any()):
        wanted = max(found, key=lambda name: float(found[name].abs().max()))
    copy = nn.Module()
    weight = nn.Parameter(live.model.transformer.get_parameter(wanted).detach().float().cpu().clone())
    copy.register_parameter("weight", weight)
    weight.grad = found[wanted].detach().float().cpu().clone()
    optimiser = make_optimiser(copy, _RECIPE)
    watch = UpdateWatch(copy, optimiser, [Chosen("weight")])
    optimiser.step()
    (update,) = watch.updates(0.0, math.inf)
    return replace(update, name=wanted)


def optimiser(live: Live, number: int) -> Lesson:
    if not live.has_head:
        return _no_step(live, number)
    with torch.enable_grad():
        step = first_step(live)
    moved = -step.lr * step.m_hat / (math.sqrt(step.v_hat) + step.epsilon)
    entry = f"{step.name}[{','.join(map(str, step.index))}]"
    question = live.asked("optimiser").number(
        f"A weight is {figure(step.before)}, its gradient {figure(step.g)}, the learning rate {step.lr:g}. By how much "
        "does the first step of Adam move it, decay aside?",
        moved,
        [-step.lr * step.g, -moved, -step.g, moved * math.sqrt(abs(step.g))],
        f"−lr·m̂ / √v̂ = {figure(moved)}: in the first step m̂ is the gradient and √v̂ its size, so only its sign is left. "
        f"With decay torch's AdamW made {figure(step.torch)} of it.",
    )
    rows = (
        ("gradient g", step.g, ""),
        ("m", step.m, f"{step.beta1:g} × 0 + {1 - step.beta1:.3g} × g"),
        ("v", step.v, f"{step.beta2:g} × 0 + {1 - step.beta2:.3g} × g²"),
    )
    told = (
        *rows,
        ("m_hat", step.m_hat, f"m / (1 − {step.beta1:g})"),
        ("v_hat", step.v_hat, f"v / (1 − {step.beta2:g})"),
        ("weight decay", step.decayed - step.before, f"−{step.lr:g} × {step.weight_decay:g} × weight"),
        ("after", step.after, f"{figure(step.before)} before"),
    )
    return Lesson(
        number, "optimiser", TITLES["optimiser"],
        "The gradient says which way, not how far. Adam keeps a running mean of each weight's gradient and of its "
        "square, and divides one by the root of the other, so every weight moves by about the learning rate.",
        "θ ← θ·(1 − lr·λ) − lr·m̂ / (√v̂ + ε)",
        f"AdamW(model.parameters(), lr={step.lr:g}, betas=({step.beta1:g}, {step.beta2:g})).step()",
        f"L{live.config.n_layers - 1}.ffn[{live.here},0]",
        question,
        figures=Figures((entry, "value", "from"), rows),
        revealed_figures=Figures((entry, "value", "from"), told),
    )  # fmt: skip


def _no_step(live: Live, number: int) -> Lesson:
    count = live.model.n_parameters
    question = live.asked("optimiser").number(
        f"Beside its {count:,} parameters, how many numbers does training this model with Adam have to keep: gradients "
        "and both moments?",
        3 * count,
        [count, 2 * count, 4 * count],
        f"One gradient and two moments for each: 3 × {count:,} = {3 * count:,}.",
    )
    rows = tuple(
        (what, count) for what in ("weights", "gradients", "m, mean of the gradients", "v, mean of their squares")
    )
    return Lesson(
        number, "optimiser", TITLES["optimiser"],
        "Without a loss there is no gradient to follow, so no step is shown here. With one, Adam keeps a running mean "
        "of each weight's gradient and of its square, and moves the weight by their quotient.",
        "θ ← θ·(1 − lr·λ) − lr·m̂ / (√v̂ + ε)",
        f"AdamW(model.parameters(), lr={_RATE:g}).step()",
        f"{live.final}[{live.here},0]",
        question,
        figures=Figures(("kept", "numbers"), rows),
    )  # fmt: skip


LESSONS: dict[str, Callable[[Live, int], Lesson]] = {"loss": loss, "backward": backward, "optimiser": optimiser}
