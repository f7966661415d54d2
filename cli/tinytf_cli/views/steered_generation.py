"""A steered text, beside the text without steering, and the predictions that move most."""

import statistics
from collections.abc import Iterator

from tinytf.cause.steer.steered_generation import SteeredGeneration
from tinytf.generate.underway import Underway
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import check_line
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.continuation import continuation
from tinytf_cli.views.draw import draws, model_of
from tinytf_cli.views.generate import GenerationDisplay, generation
from tinytf_cli.views.parts import note, size_column

_TOP = 6
"""The most tokens in the table."""


@draws(SteeredGeneration, GenerationDisplay)
def steered_generation(
    report: SteeredGeneration | Underway[SteeredGeneration], terminal: Terminal, display: GenerationDisplay
) -> Iterator[Block]:
    """The text as it is generated; unless only that is asked for, the plain text and the predictions that moved."""
    yield from generation(report, terminal, display)
    if not display.running or terminal.cuts or terminal.picture:
        yield from _comparison(report.now)


def _comparison(report: SteeredGeneration) -> Iterator[Block]:
    model = model_of(report)
    if report.plain is not None:
        for sample in range(1, report.samples + 1):
            yield Heading(f"sample {sample}, plain" if report.samples > 1 else "plain", "without steering", "residual")
            yield from continuation(report.prompt.text, report.plain.text(sample))
    if not report.moved:
        return
    steps = [(step, kl) for number, moved in enumerate(report.moved, 1)
             for step, kl in zip(report.of(number), moved, strict=True)]  # fmt: skip
    most = sorted(
        sorted(steps, key=lambda entry: -entry[1])[:_TOP], key=lambda entry: (entry[0].sample, entry[0].number)
    )
    yield Heading("moved", "KL(plain ‖ steered) of the predictions after the same tokens, in nats", "attention")
    columns = [Column("token", [str(step.number) for step, _ in most], "right")]
    if report.samples > 1:
        columns.insert(0, Column("sample", [str(step.sample) for step, _ in most], "right"))
    columns += [
        Column("", [Span(model.shown(step.id), "strong") for step, _ in most], shrink=8, said=""),
        size_column("KL", [kl for _, kl in most], "attention"),
    ]
    yield Table(columns)
    if len(most) < len(steps):
        median = statistics.median(kl for _, kl in steps)
        yield note(f"the {len(most)} that move most of {len(steps):,}, whose median is {median:.3g}")
    if report.check is not None:
        yield from check_line(report.check)
    else:
        yield Line("")
