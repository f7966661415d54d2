"""A trained sparse autoencoder: what it keeps of held-out text, and its curve."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tinytf.features.train_sae import SaeTraining
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Curve, Curves, Figure, Heading, Line, Span
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.features import coder_lines, kept
from tinytf_cli.views.parts import next_lines, note, opening_of


@dataclass(frozen=True)
class SaeTrainingDisplay(Display):
    """``opening`` are the options by which a command opens the model; by default those that the report tells."""

    opening: tuple[str, ...] | None = None


@draws(SaeTraining, SaeTrainingDisplay)
def sae_training(report: SaeTraining, terminal: Terminal, display: SaeTrainingDisplay) -> Iterator[Block]:
    """What is kept of held-out text, the curve of the training, and how to go on."""
    model = model_of(report)
    yield from banner(model)
    yield from coder_lines(report.coder, report.at, report.at)
    if report.stopped:
        yield note("stopped early; what was learned until then is kept")
    yield from kept(report.held_out, f"{report.at} on held-out text")
    passes = f" in {report.passes:,} passes" if report.passes > 1 else ""
    words = f"{plural(report.tokens, 'token')}{passes}, {report.batch:,} a step"
    yield Heading("training", f"share of the variance not explained; {words}", "residual")
    x = np.array([step.tokens for step in report.steps], dtype=np.int64)
    y = np.array([step.unexplained for step in report.steps], dtype=np.float64)
    if len(report.steps) > 1:
        yield Curves([Curve("unexplained", x, y, "residual")], "tokens", "share", height=10)
    if report.tokens > report.dead_after:
        dead = f"{report.dead:,} of {plural(report.coder.n_features, 'feature')} are dead"
        yield note([f"{dead}: not active in the last {report.dead_after:,} tokens"])
    yield note(["learning rate ", Figure(report.lr, "%.2g"), f", seed {report.seed}"])
    if report.folder:
        folder = printable(report.folder, spaces=False)
        yield Line([Span("written to "), Span(folder, "strong")])
        opening = shlex.join(opening_of(model) if display.opening is None else display.opening)
        line = f"tinytf features TEXT --sae {folder} {opening}".rstrip()
        yield from next_lines(terminal, (line, "shows its features in a text"))
