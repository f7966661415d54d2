"""Ablations: one prediction before and after, or the map of all heads, feed-forwards or layers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tinytf.cause.interventions import Ablation, AblationSweep, Choice
from tinytf.cause.interventions.controls import Control
from tinytf.cause.interventions.hooks import not_yet_added, point_names
from tinytf.cause.repair import Repair
from tinytf.loading import Model
from tinytf.metric import Metric
from tinytf.report import Verified
from tinytf.sentences import first_of
from tinytf.steps.table import table_of
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Heat, Line, Piece, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import (
    head_map,
    map_digits,
    note,
    numbered,
    one_form,
    share_column,
    signed_bars,
    stopped,
    verdict,
)
from tinytf_cli.views.steps import as_array, largest

SITES = 12
"""The most sites named in a heading."""
_WORDS = {"zero": "set to zero", "mean": "set to the", "resample": "replaced by values"}
_SINGULAR = {"heads": "head", "experts": "expert", "ffn": "feed-forward", "layers": "layer"}


@draws(Ablation)
def ablation(report: Ablation, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The most probable tokens before and after, then the metric, the loss and the divergence."""
    model, effect = model_of(report), report.effect
    yield from banner(model, report.encoding)
    yield Heading("ablated", f"{first_of(point_names(report.sites), SITES)}: {replacement(report)}", "attention")
    yield note(where_predicted(model, report.encoding, report.position))
    yield from map(note, filter(None, [not_yet_added(report.sites, table_of(model.config))]))
    yield choice_table(report.choices, model.shown, report.metric.answer)
    yield Line("")
    rows = [
        (report.metric.label, effect.before, effect.after),
        ("loss on the text", report.loss_before, report.loss_after),
    ][: 1 if report.metric.name == "loss" else 2]
    measured = [(name, before, after) for name, before, after in rows if before is not None and after is not None]
    yield Table(
        [
            Column("", [name for name, _, _ in measured], shrink=16, said=""),
            Column("before", [Figure(before, "%.4f") for _, before, _ in measured], "right"),
            Column("after", [Figure(after, "%.4f") for _, _, after in measured], "right"),
            Column("change", [Figure(after - before, "%+.4f") for _, before, after in measured], "right"),
        ]
    )
    yield Line(["KL(before ‖ after) = ", Figure(effect.kl, "%.4f", "strong"), " nats"], indent=2)
    yield from control_line(report.control, "changes")
    yield from check_line(report.check)


@dataclass(frozen=True)
class SweepDisplay(Display):
    """``top`` is how many of the strongest sites the table lists; ``all`` maps every token, with numbers for heads."""

    top: int = 8
    all: bool = False


@draws(AblationSweep, SweepDisplay)
def ablate_sweep(report: AblationSweep, terminal: Terminal, display: SweepDisplay) -> Iterator[Block]:
    """A table of the strongest ablations, then a map of all."""
    model, before, metric = model_of(report), report.measured[0][1].before, report.metric
    yield from banner(model, report.encoding)
    yield Heading(f"every {_SINGULAR[report.what]}, ablated alone", replacement(report), "attention")
    where = where_predicted(model, report.encoding, report.position)
    yield note(
        [f"{where}: {metric.label} = ", Figure(before, "%.3f"), "" if metric.unit == "logits" else metric.in_unit]
    )
    yield from stopped(report.interrupted, len(report.measured), len(report.names), report.what)
    strongest = report.strongest(display.top)
    changes = [effect.change for _, effect in strongest]
    yield Table(
        [
            Column("", [Span(name, "strong") for name, _ in strongest], said=""),
            signed_bars(f"change of {_short(metric)}", changes, one_form(changes, sign=True)),
            *_after(report, [effect.after for _, effect in strongest]),
            Column("KL", [Figure(effect.kl, "%.4f") for _, effect in strongest], "right"),
            Column("then first", [model.shown(effect.best) for _, effect in strongest], drop=1),
        ]
    )
    yield from control_line(report.control, "changes")
    values = as_array(report.change)
    most, unit = largest(values), metric.in_unit and f", in{metric.in_unit}"
    yield Heading(
        f"all {len(report.names)} {report.what}",
        f"the change of the {metric.noun} without each{unit}; KL above: nats, of all tokens",
    )
    if report.what == "heads":
        yield from head_map(values, "signed", most, map_digits(most), whole=display.all)
    elif report.what == "experts":
        layers = list(dict.fromkeys(name.partition("E")[0] for name in report.names))
        yield Heat(values, layers, numbered("E", values.shape[1]), "signed", None, most, False, map_digits(most))
    else:
        columns = [name.partition(".")[0] for name in report.names]
        yield Heat(values, [report.what], columns, "signed", None, most, True, map_digits(most))
    yield from check_line(report.check)


def _short(metric: Metric) -> str:
    """The metric in the title of a column."""
    return "ln p" if metric.name == "log_prob" else metric.noun


def _after(report: AblationSweep, values: Sequence[float]) -> Iterator[Column]:
    """The metric without each part; of log-probabilities, the probability."""
    if report.metric.name in ("log_prob", "prob"):
        shares = list(values) if report.metric.name == "prob" else [math.exp(value) for value in values]
        yield share_column("p after", shares, "output")
    elif report.metric.name != "kl":
        yield Column("after", [Figure(value, "%.4g") for value in values], "right")


def replacement(report: Ablation | AblationSweep | Repair) -> str:
    return f"{_WORDS[report.how]} {report.source}".rstrip()


def where_predicted(model: Model, encoding: Encoding, position: int) -> str:
    """The position of the prediction in the text, in words."""
    tokens = encoding.tokens
    if model.config.labels:
        return f"class of the text, read at {position} {tokens[position].shown}"
    if not model.config.causal:
        masks = sum(token.id == model.tokenizer.mask_id for token in tokens)
        return f"at [MASK] {position}" + (f", the first of {masks}" if masks > 1 else "")
    start = tokens[position - 11].start if position > 11 else 0
    shown = printable(encoding.text[start : tokens[position].end], spaces=False)
    return f'after "{"…" if start else ""}{shown}"'


def choice_table(
    choices: tuple[Choice, ...],
    shown: Callable[[int], str],
    followed: Sequence[int],
    titles: tuple[str, str] = ("p before", "p after"),
) -> Table:
    """Probabilities of the most probable tokens before and after, with the first of those followed in bold."""
    before, after = [choice.before for choice in choices], [choice.after for choice in choices]
    tokens: list[Cell] = [Span(shown(choice.id), "strong" if choice.id in followed[:1] else "") for choice in choices]
    return Table(
        [
            Column("", tokens, shrink=12, said=""),
            share_column(titles[0], before, "output", like=after),
            share_column(titles[1], after, "output", like=before),
            replace(signed_bars("change of ln p", [choice.change for choice in choices]), drop=1),
        ]
    )


def control_line(control: Control | None, effects: str, of: str = "random controls") -> Iterator[Block]:
    """How many controls reach an effect, or of how many it is the largest, if there are any, and their sizes."""
    if control is not None:
        sizes = "median ", Figure(control.median, "%.4f"), ", largest ", Figure(control.largest, "%.4f")
        words = f"{of}: {control.words}; their {effects}: "
        if control.picked:
            words = f"{control.words}; {effects} of the others: "
        yield Line([words, *sizes], indent=2)


def check_line(*checks: Verified) -> Iterator[Block]:
    """Whether logits computed in two ways agree; names the first check that fails."""
    failed = next((check for check in checks if not check.holds), None)
    words: list[Piece] = []
    for check in checks:
        words += ["; " if words else "", f"{check.what}, "]
        words += ["off by ", Figure(check.difference, "%.1e")] if check.difference else ["exactly"]
    if failed is not None:
        off = Figure(failed.difference, "%.1e")
        words = [f"it should be that {failed.what}, and it is off by ", off, f" (allowed {failed.allowed:.1e})"]
    yield Line("")
    yield verdict(failed is None, words)
