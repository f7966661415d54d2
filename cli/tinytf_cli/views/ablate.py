"""Ablations: one prediction before and after, or the map of all heads, feed-forwards or layers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tinytf.cause.interventions import Ablation, AblationSweep, Choice
from tinytf.cause.interventions.hooks import not_yet_added, point_names
from tinytf.cause.repair import Repair
from tinytf.loading import Model
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
    """The most probable tokens before and after, then the probability of the target, the loss and the divergence."""
    model, effect = model_of(report), report.effect
    yield from banner(model, report.encoding)
    yield Heading("ablated", f"{first_of(point_names(report.sites), SITES)}: {replacement(report)}", "attention")
    yield note(where_predicted(model, report.encoding, report.position))
    yield from map(note, filter(None, [not_yet_added(report.sites, table_of(model.config))]))
    yield choice_table(report.choices, model.shown, report.target)
    yield Line("")
    rows = [
        (f"ln p({model.shown(report.target)})", effect.log_p_before, effect.log_p_after),
        ("loss on the text", report.loss_before, report.loss_after),
    ]
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
    yield from check_line(report.check)


@dataclass(frozen=True)
class SweepDisplay(Display):
    """``top`` is how many of the strongest sites the table lists; ``all`` maps every token, with numbers for heads."""

    top: int = 8
    all: bool = False


@draws(AblationSweep, SweepDisplay)
def ablate_sweep(report: AblationSweep, terminal: Terminal, display: SweepDisplay) -> Iterator[Block]:
    """A table of the strongest ablations, then a map of all."""
    model, before = model_of(report), report.measured[0][1].log_p_before
    yield from banner(model, report.encoding)
    yield Heading(f"every {_SINGULAR[report.what]}, ablated alone", replacement(report), "attention")
    where = where_predicted(model, report.encoding, report.position)
    yield note([f"{where}: ln p({model.shown(report.target)}) = ", Figure(before, "%.3f")])
    yield from stopped(report.interrupted, len(report.measured), len(report.names), report.what)
    strongest = report.strongest(display.top)
    changes = [effect.change for _, effect in strongest]
    yield Table(
        [
            Column("", [Span(name, "strong") for name, _ in strongest], said=""),
            signed_bars("change of ln p", changes, one_form(changes, sign=True)),
            share_column("p after", [effect.p_after for _, effect in strongest], "output"),
            Column("KL", [Figure(effect.kl, "%.4f") for _, effect in strongest], "right"),
            Column("then first", [model.shown(effect.best) for _, effect in strongest], drop=1),
        ]
    )
    values = as_array(report.change)
    most = largest(values)
    yield Heading(f"all {len(report.names)} {report.what}", "the change without each; KL above: nats, of all tokens")
    if report.what == "heads":
        yield from head_map(values, "signed", most, map_digits(most), whole=display.all)
    elif report.what == "experts":
        layers = list(dict.fromkeys(name.partition("E")[0] for name in report.names))
        yield Heat(values, layers, numbered("E", values.shape[1]), "signed", None, most, False, map_digits(most))
    else:
        columns = [name.partition(".")[0] for name in report.names]
        yield Heat(values, [report.what], columns, "signed", None, most, True, map_digits(most))
    yield from check_line(report.check)


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
    start = tokens[-12].start if len(tokens) > 12 else 0
    shown = printable(encoding.text[start : tokens[-1].end], spaces=False)
    return f'after "{"…" if start else ""}{shown}"'


def choice_table(
    choices: tuple[Choice, ...],
    shown: Callable[[int], str],
    target: int,
    titles: tuple[str, str] = ("p before", "p after"),
) -> Table:
    """Probabilities of the most probable tokens before and after, with the target in bold."""
    before, after = [choice.before for choice in choices], [choice.after for choice in choices]
    tokens: list[Cell] = [Span(shown(choice.id), "strong" if choice.id == target else "") for choice in choices]
    return Table(
        [
            Column("", tokens, shrink=12, said=""),
            share_column(titles[0], before, "output", like=after),
            share_column(titles[1], after, "output", like=before),
            replace(signed_bars("change of ln p", [choice.change for choice in choices]), drop=1),
        ]
    )


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
