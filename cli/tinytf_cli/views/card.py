"""A card: what a file shares with its original, the types of its tensors, the worst ones, the lines of llama.cpp."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tinytf.certification.card import Card
from tinytf.certification.kept import DP_QUANTILES, KL_QUANTILES, Kept, Mean
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner, model_words
from tinytf_cli.views.blocks import Block, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import fold_note, most_rows, note, titled
from tinytf_cli.views.records import record_table

_TENSORS = 6
"""The most tensors of the table, unless more are asked for."""
_NAMES = {1.0: "Maximum", 0.5: "Median ", 0.0: "Minimum"}


@dataclass(frozen=True)
class CardDisplay(Display):
    """``rows`` is the most tensors in the table: 0 for all of them, None for six."""

    rows: int | None = None


@draws(Card, CardDisplay)
def card(report: Card, terminal: Terminal, display: CardDisplay) -> Iterator[Block]:
    """The two models, the checks, the types and the worst tensors, and the statistics of the predictions."""
    yield from banner(model_of(report))
    if report.versus is not None:
        original: Any = report.versus.model
        yield Line([Span("versus ", "dim"), *model_words(original)], lead=True)
    yield Heading("contents", "what a file has to share with its original exactly")
    yield _filled(record_table(report.checks))
    if report.types:
        yield Heading("types", f"{report.bits:.2f} bits a number" + ", error ‖Δ‖ ÷ ‖W‖" * bool(report.versus))
        yield _filled(record_table(report.types))
    if report.versus is not None:
        yield from _tensors(report, display)
        if report.parameters is not None and report.parameters.faults:
            yield titled("cause", f": {report.parameters.in_words('the file', 'the original')}", "good")
    for text in report.notes:
        yield note(printable(text, spaces=False))
    if report.perplexity is not None:
        cut = f"{plural(report.tokens, 'token')}, the second half of {plural(report.pieces, 'piece')}"
        yield Heading("predictions", f"{cut} of {report.context:,}, as llama-perplexity cuts a text")
        lines = _lines(report.perplexity, report.kept)
        yield from (Line(line, verbatim=True, whole=True) for line in lines)


def _tensors(report: Card, display: CardDisplay) -> Iterator[Block]:
    """The worst tensors, and how many others there are."""
    names = [printable(tensor.name, spaces=False) for tensor in report.weights if tensor.error]
    keep = range(len(names))[: most_rows(display.rows, _TENSORS)]
    kl = "KL in nats a token: of the tensor alone in the original, and taken back if restored"
    yield Heading("tensors", kl if report.worst else "error ‖Δ‖ ÷ ‖W‖")
    if not names:
        yield note("no tensor differs")
        return
    yield _filled(record_table(report.weights[: len(keep)]))
    yield from fold_note(names, keep, "tensors that differ")


def _filled(table: Table) -> Table:
    """A table without the columns that have no word."""
    return replace(table, columns=[column for column in table.columns if set(column.cells) - {Span("")}])


def _lines(own: Mean, kept: Kept | None) -> Iterator[str]:
    """What llama-perplexity prints of two models, in its words and digits; of one, its perplexity."""
    if kept is None:
        yield f"Final estimate: PPL = {own.value:.4f} +/- {own.error:.5f}"
        return
    yield "====== Perplexity statistics ======"
    yield f"Mean PPL(Q)                   : {_six(own)}"
    yield f"Mean PPL(base)                : {_six(kept.versus_perplexity)}"
    yield f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * kept.correlation:6.2f}%"
    yield f"Mean ln(PPL(Q)/PPL(base))     : {_six(kept.log_ratio)}"
    yield f"Mean PPL(Q)/PPL(base)         : {_six(kept.ratio)}"
    yield f"Mean PPL(Q)-PPL(base)         : {_six(kept.change)}"
    yield ""
    yield "====== KL divergence statistics ======"
    yield f"Mean    KLD: {_six(kept.kl)}"
    for at, value in zip(KL_QUANTILES, kept.kl_quantiles, strict=True):
        yield f"{_quantile(at)} KLD: {value:10.6f}"
    yield ""
    yield "====== Token probability statistics ======"
    yield f"Mean    Δp: {_percent(kept.dp)}"
    for at, value in zip(DP_QUANTILES, kept.dp_quantiles, strict=True):
        yield f"{_quantile(at)} Δp: {100 * value:6.3f}%"
    yield f"RMS Δp    : {_percent(kept.dp_rms)}"
    yield f"Same top p: {_percent(kept.same_top)}"


def _quantile(at: float) -> str:
    return _NAMES.get(at, f"{100 * at:4.1f}%  ")


def _six(mean: Mean) -> str:
    return f"{mean.value:10.6f} ± {mean.error:10.6f}"


def _percent(mean: Mean) -> str:
    return f"{100 * mean.value:6.3f} ± {100 * mean.error:5.3f} %"
