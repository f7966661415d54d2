"""The report of a finished training, drawn."""

from collections.abc import Iterator

import numpy as np

from tinytf.runs.history import NAMES, History
from tinytf.runs.run_files import FRAMES
from tinytf.text.printable import printable
from tinytf.training.data.examples import IGNORED
from tinytf.training.recipe import FEW_BATCHES
from tinytf.training.train import Training
from tinytf.training.tuning.update import Update
from tinytf_cli.numbers import count, duration
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import heads_in_words
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.continuation import continuation
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import next_lines
from tinytf_cli.views.run import could_learn_to_copy, resuming, verdict_line

_POSITIONS, _BEFORE, _VOCABULARY = 8, 3, 100


@draws(Training)
def train(report: Training, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Vocabulary, first examples and their targets, losses, a sample, and the arithmetic of updates."""
    history, tokenizer = report.history, report.setup.tokenizer
    config = report.setup.model.config
    parameters = count(sum(p.numel() for p in report.setup.model.parameters()))
    yield Line(
        [
            Span(printable(str(report.run), spaces=False), "strong"),
            Span(f" · {config.kind}, {heads_in_words(config)}, d_model {config.d_model} · {parameters} parameters"),
        ]
    )
    yield from verdict_line(report.history)
    yield from _answer(report.history)
    yield from _spikes(report)
    yield Heading("vocabulary", f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens")
    shown = [tokenizer.shown(token_id) for token_id in range(min(_VOCABULARY, tokenizer.vocab_size))]
    more = " …" if tokenizer.vocab_size > _VOCABULARY else ""
    yield Line([Span(" ".join(shown)), Span(more, "dim")], indent=2, verbatim=True)
    yield from _examples(report)
    yield Heading("loss", f"{history.step.size:,} steps, nats per token", "output")
    losses = {"the first batch, before": report.before, "the same, after": report.after}
    if held_out := history.held_out:
        first = "first measured" if held_out[0][0] else "before"
        few = _of_batches(report, FEW_BATCHES)
        losses |= {f"held-out text, {first}{few}": held_out[0][1], f"in the end{few}": held_out[-1][1]}
        losses |= {f"{name} counts, the same text": loss for name, loss in history.baselines.items()}
    for step, measured in history.thorough:
        if measured.batches > FEW_BATCHES:  # otherwise these are the batches above
            when = "in the end" if step else "before"
            losses[f"{when}{_of_batches(report, measured.batches) or ', all of it'}"] = measured.loss
    numbers = [f"{loss:.4f}" for loss in losses.values()]
    yield Table([Column("", list(losses), said="of"), Column("", numbers, "right")], header=False)
    if history.milestones:
        yield Heading("milestones", "what heads became", "attention")
        yield from (Line(f"step {step:,}: {words}", indent=2) for step, words in history.milestones[-8:])
    if (sample := history.sample) is not None:
        how = f"temperature 0.8, seed {report.recipe.seed}" if config.causal else "the most probable word at [MASK]"
        yield Heading("a sample", f"after {sample.step:,} steps, {how}", "output")
        yield from continuation(sample.prompt, sample.text)
    for update in report.updates:
        yield from _update_blocks(update)
    yield Line("")
    yield from _next(report, terminal)


def _answer(history: History) -> Iterator[Line]:
    """The best held-out loss and its step, the effort, and the strongest heads."""
    best = history.best
    if best is not None:
        bits = history.bits_per_byte(best[1])
        words = [f"{best[1]:.4f} nats per token"] + ([f"{bits:.3f} bits per byte"] if bits is not None else [])
        yield Line([Span("best held-out ", "output"), Span(", ".join(words), "strong"), f" at step {best[0]:,}"])
    if history.exact:
        thorough = [(step, measured.exact) for step, measured in history.thorough if measured.exact is not None]
        step, share = (thorough or history.exact)[-1]
        yield Line(
            [
                Span("exact ", "output"),
                Span(f"{100 * share:.1f} %", "strong"),
                f" of the held-out targets at step {step:,}",
            ]
        )
    effort = [f"{history.step.size:,} steps"]
    effort += [f"{history.epochs:.2f} epochs"] if history.epochs is not None else []
    effort += [duration(history.elapsed)] if history.elapsed is not None else []
    effort += [f"{history.tokens_per_second:,.0f} tokens/s"] if history.tokens_per_second is not None else []
    effort += [f"{100 * history.mfu:.0f} % of the fastest matrix product here"] if history.mfu is not None else []
    yield Line([Span("trained ", "output"), ", ".join(effort)])
    if heads := _heads(history):
        yield Line([Span("heads ", "output"), heads])


def _spikes(report: Training) -> Iterator[Line]:
    """Where the loss jumped, and on what text."""
    for worst_text in report.spikes:
        spike = worst_text.spike
        jump = f"to {spike.loss:.3f} at step {spike.step:,}, from about {spike.usual:.3f}"
        worst = printable(worst_text.text, spaces=False)
        yield Line([Span("the loss jumped ", "bad"), f"{jump}; worst of its batch: {worst}"], single=True)


def _heads(history: History) -> str:
    """The strongest head of each kind in the last measurement."""
    if not history.heads:
        return ""
    words = []
    for kind in NAMES:
        scores = history.heads[-1][1].get(kind)
        if scores is not None and np.isfinite(scores).any():
            layer, head = np.unravel_index(int(np.nanargmax(scores)), scores.shape)
            words.append(f"strongest {kind} L{layer}H{head} {scores[layer, head]:.2f}")
    return ", ".join(words)


def _next(report: Training, terminal: Terminal) -> Iterator[Block]:
    """Command lines to type next."""
    run = printable(str(report.run), spaces=False)
    causal = report.setup.model.config.causal
    does = "translates" if report.recipe.objective == "translate" else "continues"
    lines = [(f"tinytf generate -m {run} TEXT", f"how it {does} a text")] if causal else []
    if (report.run / FRAMES).is_dir():
        lines.append((f"tinytf runs --film {run}", "the film: what it learned when"))
    lines.append((f"tinytf runs {run}", "beside others: name their folders too"))
    if not report.history.finished:
        lines.insert(0, (resuming(report.run), f"continues to step {report.recipe.steps:,}"))
    if could_learn_to_copy(report.history):
        needs = "no induction head so far: repeated tokens and planted previous-token heads make some by step 300"
        lines.append(("tinytf train TEXT --recipe induction", needs))
    yield from next_lines(terminal, *lines)


def _of_batches(report: Training, batches: int) -> str:
    """How many batches of the held-out text were measured; empty if that is all of it."""
    available = report.setup.examples.held_out_batches
    return f", {batches:,} of {available:,} batches" if batches < available else ""


def _examples(report: Training) -> Iterator[Block]:
    batch, shown = report.examples, report.setup.tokenizer.shown
    predicted = (batch.targets != IGNORED).any(0).nonzero().flatten().tolist()
    first = max(0, min(predicted, default=0) - _BEFORE)  # of a conversation, where the assistant begins
    last = min(first + _POSITIONS, batch.ids.shape[1])
    length = last - first
    causal = report.recipe.objective != "masked"
    shift = "each y is the x that comes next" if causal else "y is what [MASK] hides, and what was changed"
    yield Heading("first examples", f"{length} of {batch.ids.shape[1]} tokens; {shift}", "q")
    for row, (ids, targets) in enumerate(zip(batch.ids.tolist(), batch.targets.tolist(), strict=True)):
        pairs = zip(ids[first:last], targets[first:last], strict=True)
        columns = [
            Column(str(position), [shown(x), "·" if y == IGNORED else shown(y)])
            for position, (x, y) in enumerate(pairs, first)
        ]
        yield Table([Column("", ["x", "y"], said="row"), *columns], header=row == 0)


def _update_blocks(update: Update) -> Iterator[Block]:
    index = ", ".join(map(str, update.index))
    yield Heading(f"{update.name}[{index}]", f"Adam's step {update.step:,}", "ffn")
    bias1, bias2 = f"(1 − {update.beta1:g}^{update.step})", f"(1 − {update.beta2:g}^{update.step})"
    rows = [
        ("g", f"∂loss/∂θ·clip = {update.gradient:.6e}·{update.clip:.6f}", update.g),
        ("m", f"β₁·m + (1 − β₁)·g = {update.beta1:g}·{update.m_before:.4e} + {1 - update.beta1:g}·g", update.m),
        ("v", f"β₂·v + (1 − β₂)·g² = {update.beta2:g}·{update.v_before:.4e} + {1 - update.beta2:g}·g²", update.v),
        ("m̂", f"m / {bias1}", update.m_hat),
        ("v̂", f"v / {bias2}", update.v_hat),
        ("θ·(1 − lr·λ)", f"{update.before:.8f}·(1 − {update.lr:.4e}·{update.weight_decay:g})", update.decayed),
        ("θ after", f"θ·(1 − lr·λ) − lr·m̂ / (√v̂ + {update.epsilon:g})", update.after),
        ("torch", f"differs by {update.difference:.1e}", update.torch),
    ]
    yield Table(
        [
            Column("", [name for name, _, _ in rows], said="of"),
            Column("", [f"{value:.8e}" for _, _, value in rows], "right"),
            Column("", [words for _, words, _ in rows], shrink=1),
        ],
        header=False,
    )
