"""The view of the code of each step, in the order of the forward pass: a program, with what it gives as comments."""

from collections.abc import Iterator

from tinytf.loading import Model
from tinytf.look.code import Code, CodeLine
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Figure, Line, Span
from tinytf_cli.views.parts import not_finite, note, verdict
from tinytf_cli.views.tokens import pieces


class CodeView:
    """The lines of PyTorch of some steps, each compared with the recorded step."""

    def __init__(self, model: Model, found: Code) -> None:
        self.model, self.found = model, found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What is given, then each step as a comment and its lines."""
        tokens = self.found.encoding.tokens
        yield from banner(self.model)
        yield pieces(self.found.encoding)
        yield note("each step: its lines, run on the recorded steps before it, and compared")
        yield Line("")
        yield Line("import torch, torch.nn.functional as F")
        yield Line(f"ids, T = torch.tensor({[token.id for token in tokens]}), {len(tokens)}", hanging=4)
        if any("[rows]" in line.code for line in self.found.lines):
            yield Line(f"rows = {list(self.found.rows)}", hanging=4)
        for line in self.found.lines:
            yield Line([Span(f"# {line.step} = {line.formula}", "dim"), *_outcome(line)])
            for one in line.code.split("\n"):
                yield Line(Span(one, "strong"), hanging=4)
        told, said = self.found.telling, plural(len(self.found.lines), "step")
        if told is None:
            return
        off, allowed = Figure(told.difference, "%.1e"), Figure(told.allowed, "%.1e")
        yield Line("")
        if told.holds:
            yield verdict(True, [f"{said} of code, largest difference ", off, f" at {told.step}"])
        elif self.found.first_not_finite:
            yield not_finite(self.found.first_not_finite)
        else:
            yield verdict(False, [f"first at {told.step}, off by ", off, " where ", allowed, " is allowed"])


def _outcome(line: CodeLine) -> Iterator[Span]:
    """The shape of a step, the parameters in it, and how far it is off."""
    given = "".join(f", {name} {shape}" for name, shape in line.parameters.items() if shape)
    yield Span(f"  {line.shape}{given}  ", "dim")
    if line.difference is None:
        yield Span("replaced", "dim")
    elif not line.difference:
        yield Span("exact", "good")
    else:
        yield Span(f"off by {line.difference:.1e}", "good" if line.holds else "bad")
