"""A trained tuned lens: how far it and the logit lens are from the model's own prediction, stage by stage."""

from collections.abc import Iterator

from tinytf.estimate import Estimate
from tinytf.look.tuned_lens import TunedLens
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note, size_column, stopped

_FORM = "%.3f"


@draws(TunedLens)
def tuned_lens(report: TunedLens, terminal: Terminal, display: Display) -> Iterator[Block]:
    """A row for each stage, with both divergences and the interval of their difference."""
    yield from banner(model_of(report))
    stages = report.stages
    full = max(stage.logit.value for stage in stages)
    yield Heading("KL(final ‖ here)", "nats, on held-out text; 0 is the model's own prediction", "output")
    yield Table(
        [
            Column("stage", [Span(stage.stage, "residual") for stage in stages]),
            size_column("logit lens", [stage.logit.value for stage in stages], "k", _FORM, full),
            size_column("tuned lens", [stage.tuned.value for stage in stages], "output", _FORM, full),
            Column("less by", [_between(stage.less) for stage in stages], "right", drop=1),
            Column("", [Span("closer", "good") if stage.closer else Span("not closer", "dim") for stage in stages]),
        ]
    )
    yield Line("")
    yield from stopped(report.interrupted, report.steps, report.of_steps, "steps", "; what was trained is measured")
    yield note(
        f"{plural(report.steps, 'step')} on {plural(report.training, 'window')} of {report.window} tokens of "
        f"{printable(report.corpus, spaces=False)}, seed {report.seed}; measured on the last {report.held_out}",
        "-o lens.safetensors keeps the lens",
    )
    yield note("less by: the mean difference, with its 95 % interval over windows; closer if all of that is above 0")


def _between(estimate: Estimate) -> str:
    low, high = (estimate.value if end is None else end for end in (estimate.low, estimate.high))
    return f"{estimate.value:+.3f}  {low:+.3f} … {high:+.3f}"
