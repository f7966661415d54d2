"""A difference: where it begins, how it grows step by step, and what it changes in the end."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from tinytf.compare.diff import Difference
from tinytf.compare.dumps.dumped import DumpSide
from tinytf.compare.measures import StepComparison
from tinytf.compare.walk import Attention
from tinytf.compare.weights import WeightsCompared
from tinytf.config import ENC, ZEROS, ModelConfig
from tinytf.loading import Model
from tinytf.parts.row import TEXT_AXES
from tinytf.report import About
from tinytf.sentences import NOT_FINITE, first_of, listed, sign_of
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding
from tinytf_cli.numbers import SHARE, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner, model_words, notes, tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Heat, Line, Piece, Span, Table
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import (
    NO_NUMBER,
    apart,
    bar_column,
    folded,
    head_map,
    map_digits,
    middle_out,
    most_rows,
    note,
    one_form,
    share_column,
    signed_bars,
    size_column,
    titled,
    verdict,
)
from tinytf_cli.views.steps import as_array, largest

_STEPS, _ROWS, _MOVED, _TEXT, _VALUE = 6, 3, 5, 20, 40
"""The most steps, rows, parameters and tokens of the texts, unless more are asked for; the most letters of a value."""
_FIRST, _SECOND = "q", "k"  # blue and orange, the ends of every diverging map


@dataclass(frozen=True)
class DifferenceDisplay(Display):
    """``rows`` is the most positions: 0 shows all of them and everything else too, None for what suits a screen.

    ``full`` shows every step, ``head`` the weights of the head, ``top`` limits the tokens of each prediction. ``brief``
    is only where the runs begin to differ, the predictions and the steps; ``fix`` only what to mend.
    """

    rows: int | None = None
    full: bool = False
    head: bool = False
    top: int = 5
    brief: bool = False
    fix: bool = False

    @property
    def all(self) -> bool:
        return self.rows == 0


@dataclass(frozen=True)
class _Runs:
    """The two runs, A and B: their models or dumps, their texts, and the names of the positions in both."""

    models: tuple[Model, ...]
    dumps: tuple[DumpSide, ...]
    texts: tuple[Encoding, ...]
    names: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, report: Difference) -> "_Runs":
        models = tuple(cast("Model", side.model) for side in report.sides if isinstance(side, About))
        dumps = tuple(side for side in report.sides if isinstance(side, DumpSide))
        texts = tuple(side.text for side in report.sides if side.text is not None)
        names = {"": _names(texts)[: report.alignment.positions], ENC: _names(report.sources)}
        return cls(models, dumps, texts, names)

    @property
    def config(self) -> ModelConfig:
        return self.models[0].config if self.models else self.dumps[0].config

    @property
    def two_models(self) -> bool:
        return len({id(model.transformer.identity) for model in self.models}) > 1

    @property
    def one_text(self) -> bool:
        return self.texts[0].ids == self.texts[1].ids

    def shown(self, token_id: int) -> str:
        """A token by its name; without a model, by its number if it is not in the text."""
        if self.models:
            return self.models[0].shown(token_id)
        return next((token.shown for token in self.texts[0].tokens if token.id == token_id), f"#{token_id}")

    def best(self, token_id: int, probability: float) -> list[str | Figure | Span]:
        """The most probable token, and its probability."""
        return [self.shown(token_id), " ", Figure(probability, SHARE)] if math.isfinite(probability) else [NOT_FINITE]

    def position(self, index: int, stack: str = "") -> str:
        """``1 ·cat``, or the tokens of both texts where they differ."""
        name = self.names[stack][index] if index < len(self.names[stack]) else ""
        return name if " / " in name else f"{index} {name}".rstrip()

    def token(self, step: StepComparison) -> str:
        """The token with the largest relative difference; empty if none differs."""
        return "" if step.token is None or not step.relative else self.position(step.token, step.stack)

    def cell(self, step: StepComparison) -> str:
        """The cell that differs most, in words."""
        parts = []
        for axis, index in zip(step.step.axes, step.at, strict=True):
            if axis in TEXT_AXES:
                parts.append(self.position(index, ENC if axis == "source" else step.stack))
            elif axis == "vocab":
                parts.append(self.shown(index))
            else:
                parts.append(f"{'H' if axis in ('head', 'kv head') else 'E' if axis == 'expert' else 'd'}{index}")
        return ", ".join(parts)


@draws(Difference, DifferenceDisplay)
def difference(report: Difference, terminal: Terminal, display: DifferenceDisplay) -> Iterator[Block]:
    """The two sides, the first difference and its outcome, the steps, and the other tables."""
    runs = _Runs.of(report)
    if not display.brief:
        yield from _banner(report, runs, display)
        yield Line("")
    if report.equal:
        yield titled("nothing differs", f": all {len(report.steps)} steps are the same", "good")
        yield from _beside(report)
        yield from _limit(report)
        return
    if display.fix:
        yield from _fixes(report)
        return
    yield from _settings(report, display)
    yield from _first(report, runs, display)
    yield from _beside(report)
    if not display.brief:
        yield from _outcome(report, runs)
    yield from _predictions(report, runs, display)
    if display.all:
        yield from _map(report)
    yield from _steps(report, runs, display)
    if display.brief:
        return
    if report.attention is not None:
        if display.all:
            yield from _head_distances(report.attention)
        if display.all or display.head:
            yield from _weights(report.attention, runs)
    if display.all or not runs.dumps:
        yield from _positions(report, runs, display)
    if runs.two_models:
        yield from _changed_weights(report, display)
    yield from _incomparable(report, runs, display)
    for dump in runs.dumps:
        yield from _read(dump)
    if not display.all and report.steps:
        yield Line("")
        yield note("", "--all shows the map of every step and layer, every head and every row; --full every step")
    if outcome := list(_limit(report)):
        yield Line("")
        yield from outcome


def _banner(report: Difference, runs: _Runs, display: DifferenceDisplay) -> Iterator[Block]:
    if runs.two_models or runs.dumps:
        for letter, side, role in zip("AB", report.sides, (_FIRST, _SECOND), strict=True):
            if isinstance(side, DumpSide):
                yield from _dump(letter, side, role)
                continue
            model = cast("Model", side.model)
            yield Line([Span(f"{letter} ", role), *model_words(model)])
            yield from notes(model)
        for model in () if runs.dumps else runs.models[:1]:
            yield Line(tokenizer_words(model.tokenizer, model.tokenizer_note, runs.texts[0]), lead=True)
    else:
        yield from banner(runs.models[0], runs.texts[0])
    if report.sources:
        pairs = enumerate(zip(*(source.ids for source in report.sources), strict=False))
        yield from _texts(report.sources, {at for at, ids in pairs if len({*ids}) > 1}, display, "source ")
    yield from _texts(runs.texts, {*report.alignment.changed}, display)
    if report.alignment.note:
        yield titled("note", f": {report.alignment.note}")


def _names(texts: Sequence[Encoding]) -> list[str]:
    """The tokens of one or two texts, place by place: both where they differ, else as the first text shows it."""
    rows = zip(*(text.tokens for text in texts), strict=False) if texts else ()
    return [" / ".join(token.shown for token in (row if row[0].id != row[-1].id else row[:1])) for row in rows]


def _texts(texts: Sequence[Encoding], changed: set[int], display: DifferenceDisplay, what: str = "") -> Iterator[Block]:
    """The tokens of both texts, or of one that both have."""
    letters = zip(("A ", "B "), texts, (_FIRST, _SECOND), strict=False)
    one = [("A and B " * (len(texts) > 1), texts[0], "")] if len({tuple(text.ids) for text in texts}) == 1 else letters
    for letter, text, role in one:
        keep = set(middle_out(len(text.tokens), None if display.all else _TEXT))
        keep |= set(sorted(changed)[:_TEXT])
        spans = [Span(f"{what}{letter}", role or "strong")]
        for i, token in enumerate(text.tokens):
            if i in keep:
                spans += [Span(f" {token.shown}", role if i in changed and role else "dim" if token.special else "")]
            elif i - 1 in keep:
                spans.append(Span(" …", "dim"))
        yield Line([*spans, Span(f"   {plural(len(text.tokens), 'token')}", "dim")])


def _dump(letter: str, side: DumpSide, role: str) -> Iterator[Block]:
    """What a dump holds, and how much of it is compared."""
    count, unmatched = len(side.dump.shapes), side.named.unmatched
    steps = len(side.named.found) + side.named.elsewhere
    used = f"{plural(steps, 'tensor')} of {count:,} are steps" if unmatched else plural(count, "tensor")
    description = f" · {used} · names of {side.named.spelling}"
    yield Line([Span(f"{letter} ", role), Span(side.dump.name, "strong"), Span(description)])


def _read(side: DumpSide) -> Iterator[Block]:
    """How the tensors of a dump were read, and which were not."""
    unmatched = side.named.unmatched
    changes_made = Counter(words for changes in side.said.values() for words in changes)
    remarks = [f"{words} in {plural(times, 'step')}" for words, times in changes_made.most_common(4)]
    if unmatched:
        alike = Counter(printable(re.sub(r"\d+", "N", name), spaces=False) for name in unmatched)
        names = [f"{name} ({plural(times, 'tensor')})" for name, times in alike.items()]
        remarks.append(f"not compared, since no step has such a name: {first_of(names, 3)}")
    if remarks:
        yield note("; ".join(remarks))


def _beside(report: Difference) -> Iterator[Block]:
    """What a dump has beside the steps: what differs from the run's own, then what does not."""
    for one in report.beside:
        if not one.agrees:
            yield titled("beside the steps", f": {one.in_words}", "bad")
    if same := [one.in_words for one in report.beside if one.agrees]:
        yield note("; ".join(same))


def _settings(report: Difference, display: DifferenceDisplay) -> Iterator[Block]:
    """The settings that differ."""
    if report.settings:
        words = [
            f"{setting.name} {_value(setting.name, setting.first)} in A and {_value(setting.name, setting.second)} in B"
            for setting in report.settings
        ]
        yield titled("settings", f": {first_of(words, len(words) if display.all else 4)}")


def _first(report: Difference, runs: _Runs, display: DifferenceDisplay) -> Iterator[Block]:
    """The first difference beyond the tolerance, the largest one, and the head whose weights differ most."""
    first, limit = report.first, f"{report.tolerance:.0e} of a token's largest number"
    if not report.steps:
        yield titled("no step", " of the two can be compared", "bad")
        return
    if report.floor is not None and report.floor.steps:
        word, _, rest = report.floor.in_words().partition(": ")
        yield titled(word, f": {rest}", "bad" if report.floor.bug else "good")
    yield from _gauges(report)
    if first is None:
        yield titled("within the tolerance", f": no step differs by more than {limit}", "good")
    else:
        first_value, second_value = (_number(value) for value in first.values)
        where = f" at {first.name}, beyond {limit}: {runs.cell(first)} is "
        number = report.pass_of(first)
        begins = (
            f"; it begins at {runs.position(first.begins or 0)}, in pass {(number or 0) + 1} of {len(report.passes)}"
        )
        after = "" if number is None else begins
        yield titled("first difference", [where, first_value, " in A and ", second_value, f" in B{after}"])
        if first.unlike:
            total = math.prod(first.shape)
            yield titled("not finite", f": {first.unlike:,} of its {total:,} numbers are NaN or ∞ on one side alone")
        yield from _cause(report)
    if (worst := report.worst) is not None and worst is not first and worst.largest:
        at = f" at {runs.token(worst)}" if worst.token is not None else ""
        size = apart(worst.relative, "%.3g")
        of = " of the largest number" if math.isfinite(worst.relative) else ""
        yield titled("largest difference", [f" at {worst.name}: ", size, f"{of}{at}"])
    if (heads := report.attention) is not None and (distances := heads.apart[heads.layer]) is not None:
        name, share = Span(f"L{heads.layer}H{heads.head}", "attention"), Figure(distances[heads.head], "%.3f")
        comparison = "" if display.head else ", more than in any other head"
        if math.isfinite(distances[heads.head]):
            yield titled("attention", [": in ", name, " ", share, f" of the weights are on other keys{comparison}"])


def _cause(report: Difference) -> Iterator[Block]:
    """The cause of the first difference, or the earlier steps where it may begin."""
    cause, rescaled = report.cause, report.rescaled
    if rescaled is not None:
        words = f": {rescaled.step} of B matches A only when multiplied by {rescaled.factor:.4g}, as was done here"
        yield titled("rescaled", f"{words}; a program that lacks this factor would differ next, so no cause is named")
    if report.follows:
        yield titled(
            "no step is wrong", ": each follows from the numbers of B before it, so only rounding adds up", "good"
        )
    yield from _parameters(report)
    if cause is None:
        return
    for number, one in enumerate(report.causes):
        if one.found:
            rest = f" there, and in {one.explained:,} of {plural(one.later, 'later step')} that differ"
            words = f" at {one.step}: {one.in_words}; with that, A gives the numbers of B{rest * bool(one.later)}"
            words += f", of the first {one.tokens:,} tokens" * bool(one.tokens)
            yield titled("then" if number else "written differently" if report.rewritten else "cause", words, "good")
        elif number:
            yield titled("then", f" {one.first} differs, and nothing that was tried gives its numbers")
            yield from _tried(report, one.first)
    if cause.found:
        return
    if cause.words:
        yield titled("likely", f": {cause.words}")
    yield from _tried(report, cause.first)
    if cause.unseen:
        names = f"{cause.unseen[0]} … {cause.unseen[-1]}" if len(cause.unseen) > 2 else " and ".join(cause.unseen)
        lacks = plural(len(cause.unseen), "step")
        yield titled(
            "or before", f": {names}, {lacks} that could not be compared; with them the first step would be certain"
        )


def _gauges(report: Difference) -> Iterator[Block]:
    """In which gauges a dump is written, which were undone."""
    if report.gauges:
        words = [f"{one.words} ({plural(len(one.steps), 'step')})" for one in report.gauges]
        yield titled("written differently", f": {listed(words)}; read here as A writes them", "good")


def _parameters(report: Difference) -> Iterator[Block]:
    """How the weights of B are made of A's."""
    made = report.parameters
    if made is None or not (words := made.in_words()):
        return
    total, differ = made.same + made.differ, made.differ
    count = f"; {differ:,} of {total:,} differ" if differ and made.common else ""
    yield titled("cause" if made.faults else "weights", f": {words}{count}", "good" if made.faults else "strong")


def _tried(report: Difference, step: str) -> Iterator[Block]:
    """The record of the search at a step where no mistake was found."""
    for one in report.tried:
        if one.step == step:
            yield note(f"without success, {one.in_words()}")


def _fixes(report: Difference) -> Iterator[Block]:
    """A row for each cause, in order: where, what, and how many of the later steps are right with it."""
    causes = report.causes
    if report.parameters is not None:
        yield from _weight_fixes(report, report.parameters)
        return
    if not report.first and not all(one.agrees for one in report.beside):
        yield from _beside(report)
        return
    if not causes:
        no_search = "no cause was searched for" if report.first and not report.tried else ""
        yield note(
            no_search or ("nothing that was tried gives the numbers of B" if report.first else "nothing differs")
        )
        for tried in report.tried:
            yield note(tried.in_words())
        return
    right = [f"{one.explained:,} of {one.later:,}" if one.found else "" for one in causes]
    yield Table(
        [
            Column("#", [str(number) for number in range(1, len(causes) + 1)], "right", said=""),
            Column("at", [one.step for one in causes], shrink=12),
            Column("mistake", [one.in_words if one.found else one.words or "not found" for one in causes], shrink=30),
            Column("later steps right with it", right, "right"),
        ]
    )


def _weight_fixes(report: Difference, made: WeightsCompared) -> Iterator[Block]:
    """Of two models: a row for each relation of their weights, and for each setting that differs."""
    rows = [(listed(one.names) or f"{len(one.addresses):,} weights", one.sentence) for one in made.relations]
    values = [(one.name, *(_value(one.name, value) for value in (one.first, one.second))) for one in report.settings]
    rows += [(name, f"{first} in A and {second} in B") for name, first, second in values]
    if rows:
        numbers = [str(number) for number in range(1, len(rows) + 1)]
        columns = [Column("#", numbers, "right", said=""), Column("at", [at for at, _ in rows], shrink=12)]
        yield Table([*columns, Column("difference", [words for _, words in rows], shrink=30)])
    else:
        words = f"no relation was found between the {made.differ:,} weights that differ"
        words += f"; tried: {', '.join(made.tried)}" if made.tried else "; none was tried, for the sizes are others"
        yield note(words if made.differ else "all weights and settings are the same")


def _outcome(report: Difference, runs: _Runs) -> Iterator[Block]:
    divergence = next((step.kl for step in report.steps if step.name == "logits"), None)
    if divergence is not None:
        words: list[Piece] = [apart(divergence, "%.4g")]
        if math.isfinite(divergence):
            words.append(" nats, the mean over the positions")
        if report.predictions:
            where = f" at the {'next token' if runs.config.causal else 'first mask'}"
            words += ["; ", apart(report.predictions[0].kl, "%.4g"), where]
        yield titled("KL(A‖B)", [" ", *words])
    if report.losses is not None:
        a, b = (apart(loss, "%.4f") for loss in report.losses)
        change = report.losses[1] - report.losses[0]
        by: list[Piece] = [" (", Figure(change, "%+.4f"), ")"] if math.isfinite(change) else []
        yield titled("loss", [" of the text ", a, " nats per token in A, ", b, " in B", *by])


def _map(report: Difference) -> Iterator[Block]:
    """The relative differences of the steps of all layers."""
    inside = [step for step in report.steps if step.block is not None]
    layers = list(dict.fromkeys(step.block for step in inside if step.block is not None))
    if len(layers) < 2:
        return
    names = list(dict.fromkeys(step.step.name for step in inside))
    values = np.full((len(names), len(layers)), np.nan, dtype=np.float32)
    for step in inside:  # no finite one is above 2
        values[names.index(step.step.name), [step.block == layer for layer in layers]] = min(2.0, step.relative)
    columns = [f"{stack}L{layer}" for stack, layer in layers]
    subtitle = f"within a token, in units of its largest number; {columns[0]} to {columns[-1]} across"
    yield Heading("relative difference", subtitle)
    seen = ~np.isnan(values)
    most = float(values[seen].max()) or 1.0
    shown = None if seen.all() else seen
    digits = map_digits(most)
    yield Heat(np.nan_to_num(values), names, columns, "unit", shown, most, digits=digits, hidden=NO_NUMBER)


def _telling(report: Difference) -> list[StepComparison]:
    """The first difference, the step of each layer that differs most for its size, and the steps outside the layers.

    Equal steps are omitted, and so are the steps before the first difference.
    """
    steps = [step for step in report.steps if step.largest]
    if report.first is not None:
        steps = steps[steps.index(report.first) :]
    by_layer: dict[tuple[str, int], list[StepComparison]] = {}
    for step in steps:
        if step.block is not None:
            by_layer.setdefault(step.block, []).append(step)
    most = {max(inside, key=lambda step: step.relative).name for inside in by_layer.values()}
    return [step for step in steps if step.layer is None or step is report.first or step.name in most]


def _steps(report: Difference, runs: _Runs, display: DifferenceDisplay) -> Iterator[Block]:
    limit = report.tolerance
    steps = report.steps if display.full else _telling(report)
    missing = len(report.steps) - len(steps)
    if not steps:
        return
    yield Heading("steps", f"relative: in units of the largest number of that token; tolerance {limit:.0e}")
    shares = [min(1.0, step.relative) if step.differs(limit) else 0.0 for step in steps]
    relative = one_form(step.relative for step in steps)
    divergence = Column("KL", _apart([step.kl for step in steps]), "right")
    numbers = [str(step.token) if runs.token(step) else "" for step in steps]
    a, b = ([_number(value, form) if step.largest else "" for step, value in zip(steps, column, strict=True)]
            for column in zip(*(step.values for step in steps), strict=True)
            for form in [one_form(column)])  # fmt: skip
    table = Table(
        [
            Column("step", [Span(step.name, step.step.role) for step in steps], said=""),
            Column("largest", _apart([step.largest for step in steps]), "right", said="largest difference"),
            bar_column("relative", shares, [Figure(step.relative, relative) for step in steps], _SECOND),
            Column("token", [runs.token(step) for step in steps], narrow=numbers, shrink=8, drop=1),
            Column("cosine", [Figure(step.cosine, "%.6f") for step in steps], "right"),
            *([divergence] if any(divergence.cells) else []),
            Column(
                "largest at",
                [runs.cell(step) if step.largest else "" for step in steps],
                narrow=[_address(step) if step.largest else "" for step in steps],
                shrink=10,
                drop=2,
            ),
            Column("A", a, "right", drop=3),
            Column("B", b, "right", drop=3),
        ],
        rule_after=frozenset(i for i in range(len(steps) - 1) if display.full and steps[i].block != steps[i + 1].block),
    )
    yield from folded(table, [step.name for step in steps], None if display.all or display.full else _STEPS, "steps")
    if missing:
        yield note("the step that differs most in each layer", f"--full shows {missing} more")


def _head_distances(attention: Attention) -> Iterator[Block]:
    """How far apart the weights of each head are in A and B."""
    if any(shares is not None for shares in attention.apart):
        n_heads = max(len(shares) for shares in attention.apart if shares is not None)
        values = np.array([shares or (np.nan,) * n_heads for shares in attention.apart], dtype=np.float32)
        subtitle = "0: the same weights, 1: weights on other keys; the mean over the queries"
        yield Heading("heads apart", subtitle, "attention")
        most = float(np.nanmax(values, initial=0.0)) or 1.0
        yield from head_map(values, "unit", most, map_digits(most), whole=True)


def _weights(attention: Attention, runs: _Runs) -> Iterator[Block]:
    """What one head looks at more, or less, in B."""
    change = as_array(attention.second - attention.first)
    seen = None if attention.seen is None else attention.seen.cpu().numpy()
    title, subtitle = f"L{attention.layer}H{attention.head}.weights", "B − A, query down, key across"
    yield Heading(title, subtitle, "attention", "--head chooses another")
    yield Heat(change, runs.names[""], runs.names[""], "signed", seen, largest(change, seen) or 1.0)


def _positions(report: Difference, runs: _Runs, display: DifferenceDisplay) -> Iterator[Block]:
    positions = report.positions
    if not positions:
        return
    yield Heading("positions", "KL(A‖B) in nats, and what is most probable there", "output")
    table = Table(
        [
            Column("#", [str(position.index) for position in positions], "right", said="position"),
            Column("token", [runs.names[""][position.index] for position in positions], shrink=10, said=""),
            size_column("KL", [position.kl for position in positions], "output"),
            Column("A", [runs.best(*position.first) for position in positions], shrink=10),
            Column("B", [runs.best(*position.second) for position in positions], shrink=10),
        ]
    )
    keep = report.telling(most_rows(display.rows, _ROWS))
    yield table.only(keep)
    if len(keep) < len(positions):
        yield note(f"the {len(keep)} of {len(positions)} positions that differ most", "--all shows the others")


def _predictions(report: Difference, runs: _Runs, display: DifferenceDisplay) -> Iterator[Block]:
    causal = runs.config.causal
    for prediction in report.predictions:
        ids, first, second, change = prediction.ids, prediction.first, prediction.second, prediction.change
        text = "the text" if runs.one_text else "either text"
        where = f"after {text}" if causal else f"at the mask, position {prediction.position}"
        if runs.config.labels:
            yield Heading("class", "of the text", "output")
        else:
            yield Heading("next" if causal else "fill", where, "output")
        table = Table(
            [
                Column("token", [runs.shown(i) for i in ids], shrink=10, said=""),
                share_column("A", first, _FIRST, like=second),
                share_column("B", second, _SECOND, like=first),
                signed_bars("B − A", change, one_form(change, sign=True)),
            ]
        )
        keep = range(len(ids) if display.all else min(len(ids), max(_ROWS, display.top)))
        yield table.only(keep)
        if len(keep) < len(ids):
            yield note(f"the first {len(keep)} of {len(ids)} tokens", "--all shows the others")


def _changed_weights(report: Difference, display: DifferenceDisplay) -> Iterator[Block]:
    changed = [parameter for parameter in report.moved if parameter.change]
    if not changed:
        same = "all parameters that both have in one shape are the same"
        yield Heading("weights", same if report.moved else "no parameter is in both models in one shape")
        return
    shown = changed[: None if display.all else _MOVED]
    yield Heading("weights", f"the {len(shown)} of {len(changed)} changed parameters that moved most for their size")
    yield Table(
        [
            Column("parameter", [parameter.name for parameter in shown], shrink=14, said=""),
            Column("shape", [" × ".join(map(str, parameter.shape)) for parameter in shown], drop=1),
            Column("‖Δ‖", _apart([parameter.change for parameter in shown]), "right", said="norm of the change"),
            Column("‖W‖", _apart([parameter.norm for parameter in shown]), "right", said="norm in A"),
            size_column("‖Δ‖ ÷ ‖W‖", [parameter.ratio for parameter in shown], "ffn", said="change over norm"),
        ]
    )


def _incomparable(report: Difference, runs: _Runs, display: DifferenceDisplay) -> Iterator[Block]:
    missing, count = report.missing, plural(len(report.incomparable), "step")
    if missing:
        these = f": {', '.join(missing)}" if display.all else f", such as {missing[-1]}"
        files = " or ".join(side.dump.name for side in runs.dumps)
        yield note(
            f"{plural(len(missing), 'step')} of the model not in {files}{these}",
            "" if display.all else "--all names them",
        )
    if not report.incomparable:
        return
    by_reason: dict[tuple[str, str], list[str]] = {}
    for step in report.incomparable:
        short = step.name.partition(".")[2] if step.name.startswith("L") and "." in step.name else ""
        by_reason.setdefault((step.why, short), []).append(step.name)
    if not display.all and report.steps:
        whole = next((step.why for step in report.incomparable if step.name == ENC.rstrip(".")), "")
        if whole:
            yield note(f"the encoder is not compared: {whole}")
        yield note(f"{count} cannot be compared", "--all shows why")
        return
    yield Heading("not comparable", count)
    names = [
        f"{names[0]} … {names[-1]}" if short and len(names) > 1 else ", ".join(names)
        for (_, short), names in by_reason.items()
    ]
    yield Table([Column("", names, shrink=20), Column("", [why for why, _ in by_reason], shrink=20)], header=False)


def _limit(report: Difference) -> Iterator[Block]:
    """Whether a step differs by more than --fail-over allows; nothing without it."""
    limit, steps = report.fail_over, report.steps
    if limit is None:
        return
    over = report.failing
    words = f"no step differs by more than {limit:g} of a token's largest number"
    if report.worst is None:
        words = "no step can be compared"
    elif over:
        words = f"{len(over)} of {len(steps)} steps differ by more than {limit:g}, first {over[0].name}"
    yield verdict(report.holds, words)


def _apart(values: Sequence[float | None]) -> list[Figure | Span | str]:
    """Cells of differences in one notation; None is an empty cell."""
    form = one_form(values)
    return ["" if value is None else apart(value, form) for value in values]


def _number(value: float, form: str = "%.4g") -> Figure | Span:
    """A number of a step, by its sign where it is not finite."""
    return Figure(value, form) if math.isfinite(value) else Span(sign_of(value))


def _value(name: str, value: object) -> str:
    """A setting's value, or what a 0 of it stands for; a long one is cut."""
    if not value and name in ZEROS:
        return ZEROS[name]
    text = f"{value:,g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    return printable(text if len(text) <= _VALUE else text[: _VALUE - 1] + "…", spaces=False)


def _address(step: StepComparison) -> str:
    """The cell that differs most, as in an address: ``H2[1,23]``."""
    head = f"{step.step.letter}{step.at[0]}" if step.step.is_split else ""
    return f"{head}[{','.join(map(str, step.at[bool(head) :]))}]"
