"""Feed-forward units: the active ones of each token, what they promote, and where else they are active."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinytf.loading import Model
from tinytf.look.neurons import ActiveExample, ActiveUnit, Direction, Neurons, TokenUnits, TopExamples, Unit
from tinytf.look.readout import Ends
from tinytf.report import Report
from tinytf.text.printable import printable
from tinytf_cli.numbers import number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import (
    end_bars,
    figures,
    fold_note,
    full_scale,
    middle_out,
    most_rows,
    note,
    one_form,
    side,
    signed_bars,
)

_TABLE_ROWS = 28
"""The most rows of the table, unless more are asked for."""
_FEW = 3  # tokens from each end of a direction in a row of the table

Row = tuple[TokenUnits, ActiveUnit]


@dataclass(frozen=True)
class NeuronsDisplay(Display):
    """``rows`` limits the tokens of a table (0: all)."""

    rows: int | None = None


@draws(Neurons, NeuronsDisplay)
def neurons(report: Neurons, terminal: Terminal, display: NeuronsDisplay) -> Iterator[Block]:
    """The units of each token, or each named unit at all tokens, then where they are active in the corpus."""
    model, tokens = model_of(report), report.tokens
    directions = {direction.unit: direction for direction in report.directions}
    yield from banner(model, report.encoding)
    rows_per_token = 1 if report.chosen else 1 + max((len(token.units) for token in tokens), default=0)
    keep = middle_out(len(tokens), most_rows(display.rows, max(2, _TABLE_ROWS // rows_per_token)))
    if report.chosen:
        for unit in report.chosen:
            yield from _unit(report, model, unit, keep)
            if unit in directions:
                yield from in_vocabulary(model, str(unit), "‖row‖", directions[unit])
    else:
        yield from _table(report, model, directions, keep)
    yield Line("")
    yield Line(Span(f"directions: {report.reading}" if directions else report.reading, "dim"))
    if model.transformer.head is not None:
        yield Line(Span(f"Δ logit: {report.contributing}", "dim"))
    if directions and not report.chosen:
        words = "promotes, suppresses: what the unit does here; a negative activation reverses its direction"
        yield Line(Span(words, "dim"))
    if report.examples is not None:
        yield from examples_of(model, report.examples)


def _table(report: Neurons, model: Model, directions: Mapping[Unit, Direction], keep: list[int]) -> Iterator[Block]:
    """The strongest units of each token in ``keep``."""
    tokens, where = report.tokens, report.where or " of all layers"
    entries = [(tokens[i], active) for i in keep for active in tokens[i].units]
    yield Heading("units", f"the strongest{where} at each token, by the size of their {report.by}", "ffn")

    names = Column("unit", [Span(str(active.unit), "ffn") for _, active in entries])
    bars = _bars(entries, full_scale(active.activation for token in tokens for active in token.units))
    ends = [_ends(directions.get(active.unit), active.activation) for _, active in entries]
    yield strongest_table(report, model, entries, [names, bars], ends)
    yield from fold_note(range(len(tokens)), keep, "tokens")


def _ends(direction: Direction | None, activation: float) -> tuple[Ends, Ends]:
    """The tokens that a unit promotes and suppresses here; a negative activation reverses its direction."""
    if direction is None:
        return (), ()
    both = direction.promoted, direction.suppressed
    return both if activation >= 0 else both[::-1]


def strongest_table(
    report: Report, model: Model, entries: Sequence[tuple[Any, Any]], columns: Sequence[Column],
    ends: Sequence[tuple[Ends, Ends]], counts: Sequence[int] = (),
) -> Table:  # fmt: skip
    """A row for each unit or feature in ``entries``, with its token: ``columns``, its logit and both ``ends``.

    ``counts`` is how many of the token are active, for each entry.
    """
    names = report.encoding.tokens
    is_first = [row == 0 or entries[row - 1][0] is not token for row, (token, _) in enumerate(entries)]
    first: list[Cell] = [
        Span(f"{token.position} {names[token.position].shown}", "strong") if begins else ""
        for (token, _), begins in zip(entries, is_first, strict=True)
    ]
    shown = [Column("token", first, shrink=8, said="")]
    if counts:
        cells: list[Cell] = [f"{count:,}" if begins else "" for count, begins in zip(counts, is_first, strict=True)]
        shown.append(Column("active", cells, "right", drop=3))
    shown += [*columns, *logit_columns(model, entries)]
    for drop, title in enumerate(("promotes", "suppresses")):
        if any(both[drop] for both in ends):
            words = [
                ["  ".join(model.shown(i) for i, _ in both[drop][:most]) for both in ends] for most in (_FEW, _FEW - 1)
            ]
            shown.append(Column(title, words[0], narrow=words[1], shrink=12, drop=drop))
    last = frozenset(row for row in range(len(entries) - 1) if is_first[row + 1] and not is_first[row])
    return Table(shown, rule_after=last)


def _bars(rows: Sequence[Row], full: float) -> Column:
    """The activation of each unit."""
    activations = [active.activation for _, active in rows]
    return signed_bars("activation", activations, one_form(activations, sign=True), full)


def logit_columns(model: Model, rows: Sequence[tuple[Any, Any]]) -> Iterator[Column]:
    """What each active unit or feature of a token adds to the logit of the predicted token, if that is known."""
    if any(active.contribution is not None for _, active in rows):
        added = figures([active.contribution for _, active in rows], sign=True)
        yield Column("Δ logit", added, "right", said="adds")
        predicted = ["" if token.predicted is None else model.shown(token.predicted) for token, _ in rows]
        yield Column("of", predicted, shrink=6, drop=2)


def _unit(report: Neurons, model: Model, unit: Unit, keep: list[int]) -> Iterator[Block]:
    """The activation of one unit at each token in ``keep``."""
    names = report.encoding.tokens
    rows = [(token, next(active for active in token.units if active.unit == unit)) for token in report.tokens]
    visible = [rows[i] for i in keep]
    yield Heading(str(unit), "its activation at each token", "ffn")
    columns = [
        Column("#", [str(token.position) for token, _ in visible], "right", said="token"),
        Column("token", [names[token.position].shown for token, _ in visible], shrink=8, said=""),
        _bars(visible, full_scale(active.activation for _, active in rows)),
        *logit_columns(model, visible),
    ]
    yield Table(columns)
    yield from fold_note(range(len(rows)), keep, "tokens")


def in_vocabulary(model: Model, name: str, norm: str, direction: Any) -> Iterator[Block]:
    """A bar for each token that a direction, whose length is called ``norm``, promotes or suppresses most."""
    ends = (("promotes", direction.promoted), ("suppresses", direction.suppressed))
    if not any(end for _, end in ends):
        return
    words = f"logits for an activation of 1, before the norm's scale; {norm} {number(direction.norm, '%.3g')}"
    yield Heading(f"{name} in the vocabulary", words, "output")
    yield end_bars(ends, model.shown)


def examples_of(model: Model, top: TopExamples) -> Iterator[Block]:
    """The places in the corpus where each unit is most active."""
    corpus = printable(top.corpus, spaces=False)
    counted = f"{plural(top.tokens, 'token')} in {plural(top.documents, 'document')} of {corpus}"
    for unit, examples in top.units.items():
        yield Heading(f"{unit} elsewhere", f"<<where it is most active>>, of {counted}", "ffn")
        if not examples:
            yield note("it is not active there" if top.tokens else "the corpus has no token")
        form = one_form((example.activation for example in examples), sign=True)
        for example in examples:
            yield Line([Figure(example.activation, form, "dim"), "  ", *_context(model, example)], indent=2)


def _context(model: Model, example: ActiveExample) -> list[Span]:
    words = [model.tokenizer.shown(i) for i in example.ids]
    if model.tokenizer.kind == "WordPiece":  # its words have no space of their own
        words = [word.removeprefix("##") if word.startswith("##") else f"·{word}" for word in words]
    marked = Span(f"<<{words[example.at]}>>", side(example.activation))
    return [Span("".join(words[: example.at])), marked, Span("".join(words[example.at + 1 :]))]
