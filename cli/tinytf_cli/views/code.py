"""The view of the code of each step, in the order of the forward pass: a program with its results as comments."""

from collections.abc import Iterator

from tinytf.look.code import Code, CodeLine
from tinytf.sentences import apart as in_words
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Figure, Line, Span
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import not_finite, note, verdict
from tinytf_cli.views.tokens import pieces


@draws(Code)
def code(report: Code, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The token ids, then each step as a comment and its lines, then how far the lines are off."""
    model, tokens = model_of(report), report.encoding.tokens
    yield from banner(model)
    yield pieces(report.encoding)
    yield note("each step: its lines, run on the recorded steps before it, and compared")
    yield Line("")
    yield Line("import torch, torch.nn.functional as F")
    yield Line(f"ids, T = torch.tensor({[token.id for token in tokens]}), {len(tokens)}", hanging=4)
    if any("[rows]" in line.code for line in report.lines):
        yield Line(f"rows = {list(report.rows)}", hanging=4)
    for line in report.lines:
        yield Line([Span(f"# {line.step} = {line.formula}", "dim"), *_outcome(line)])
        for statement in line.code.split("\n"):
            yield Line(Span(statement, "strong"), hanging=4)
    worst, steps = report.telling, plural(len(report.lines), "step")
    if worst is None:
        return
    off, allowed = Figure(worst.difference, "%.1e"), Figure(worst.allowed, "%.1e")
    yield Line("")
    if worst.holds:
        yield verdict(True, [f"{steps} of code, largest difference ", off, f" at {worst.step}"])
    elif report.first_not_finite:
        yield not_finite(report.first_not_finite)
    else:
        yield verdict(False, [f"first at {worst.step}, off by ", off, " where ", allowed, " is allowed"])


def _outcome(line: CodeLine) -> Iterator[Span]:
    """The shape of a step, its parameters, and how far it is off."""
    parameters = "".join(f", {name} {shape}" for name, shape in line.parameters.items() if shape)
    yield Span(f"  {line.shape}{parameters}  ", "dim")
    if line.difference is None:
        yield Span("replaced", "dim")
    elif not line.difference:
        yield Span("exact", "good")
    else:
        yield Span(f"off by {in_words(line.difference, '%.1e')}", "good" if line.holds else "bad")
