"""The view of ablations: one prediction before and after, or the map of all heads, feed-forwards or layers."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.analysis.interventions import Ablation, AblationSweep, Choice, HookPoint
from tinytf.loading import Model
from tinytf.report import Verified
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Tokenizer
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import number, probability
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Array, Block, Cell, Column, Heading, Heat, Line, Meter, Span, Table
from tinytf_cli.views.steps import as_array, largest, signed_role

_WORDS = {"zero": "set to zero", "mean": "set to the", "resample": "replaced by values"}


class AblationView:
    """One ablation, drawn."""

    def __init__(self, model: Model, trace: Trace, found: Ablation) -> None:
        self.model, self.trace, self.found = model, trace, found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        found, tokenizer = self.found, self.model.tokenizer
        yield from banner(self.model, self.trace.encoding)
        yield Heading("ablated", f"{site_names(found.sites)}: {_how(found.how, found.source)}", "attention")
        yield Line(Span(where_predicted(self.trace, found.position), "dim"), indent=2)
        yield choice_table(found.choices, tokenizer, found.target)
        yield from _figures(found, tokenizer)
        yield from check_line(found.check)


class AblationSweepView:
    """A map of ablations, drawn, with its ``top`` strongest in a table."""

    def __init__(self, model: Model, trace: Trace, found: AblationSweep, top: int) -> None:
        self.model, self.trace, self.found, self.top = model, trace, found, top

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        found, tokenizer = self.found, self.model.tokenizer
        yield from banner(self.model, self.trace.encoding)
        yield Heading(f"every {_ONE[found.what]}, ablated alone", _how(found.how, found.source), "attention")
        target = tokenizer.shown(found.target)
        said = f"change of ln p({target}) {where_predicted(self.trace, found.position)}; it is {_log_p(found)}"
        yield Line(Span(said, "dim"), indent=2)
        values = as_array(found.change)
        rows = [f"L{i}" for i in range(len(values))] if found.what == "heads" else [found.what]
        columns = [f"{'H' if found.what == 'heads' else 'L'}{i}" for i in range(values.shape[1])]
        yield Heat(values, rows, columns, "signed", None, largest(values), asked=True, digits=digits_for(values))
        yield Heading("strongest", "by the change; KL(before ‖ after) of all tokens, in nats")
        yield self._strongest()
        yield from check_line(found.check)

    def _strongest(self) -> Table:
        found = self.found.strongest(self.top)
        most = max((abs(effect.change) for _, effect in found), default=0.0)
        form = f"%+.{digits_for(np.array([most], dtype=np.float32)) + 1}f"
        return Table(
            [
                Column("", [Span(name, "strong") for name, _ in found], said=""),
                Column("change", [signed(effect.change, most, form) for _, effect in found], "right"),
                Column("p after", [_probability(math.exp(effect.log_p_after)) for _, effect in found]),
                Column("KL", [number(effect.kl, "%.4f") for _, effect in found], "right"),
                Column("then first", [self.model.tokenizer.shown(effect.best) for _, effect in found], drop=1),
            ]
        )


_ONE = {"heads": "head", "ffn": "feed-forward", "layers": "layer"}


def _how(how: str, source: str) -> str:
    return f"{_WORDS[how]} {source}".rstrip()


def _log_p(found: AblationSweep) -> str:
    return number(found.effects[0].log_p_before, "%.3f")


def where_predicted(trace: Trace, position: int) -> str:
    """Which prediction is looked at, in words."""
    if not trace.config.causal:
        masks = len(trace.recording.logit_rows)
        return f"at [MASK] {position}" + (f", the first of {masks}" if masks > 1 else "")
    start = trace.tokens[-12].start if len(trace.tokens) > 12 else 0
    shown = printable(trace.encoding.text[start : trace.tokens[-1].end], spaces=False)
    return f'after "{"…" if start else ""}{shown}"'


def _probability(p: float) -> Meter:
    return Meter(p, probability(p), "output")


def signed(value: float, most: float, form: str) -> Span:
    return Span(number(value, form), signed_role(value, most))


def digits_for(values: Array) -> int:
    """Digits after the point of a map: two, or as many as show two figures of the largest number."""
    most = largest(values)
    return 2 if not most or most >= 0.1 else min(9, 1 - math.floor(math.log10(most)))


def site_names(sites: Sequence[HookPoint], most: int = 12) -> str:
    """The sites by their addresses; of many the first."""
    shown = ", ".join(map(str, sites[:most]))
    return shown + (f" and {len(sites) - most} more" if len(sites) > most else "")


def choice_table(
    found: tuple[Choice, ...], tokenizer: Tokenizer, target: int, titles: tuple[str, str] = ("p before", "p after")
) -> Table:
    """Probabilities before and after of the most probable tokens, the followed one marked by weight."""
    changes = [math.log(one.after / one.before) if one.after and one.before else math.nan for one in found]
    finite = [abs(change) for change in changes if math.isfinite(change)]
    most = max(finite, default=0.0)
    tokens: list[Cell] = [Span(tokenizer.shown(one.id), "strong" if one.id == target else "") for one in found]
    return Table(
        [
            Column("", tokens, shrink=12, said=""),
            Column(titles[0], [_probability(one.before) for one in found]),
            Column(titles[1], [_probability(one.after) for one in found]),
            Column("change of ln p", [signed(change, most, "%+.3f") for change in changes], "right", drop=1),
        ]
    )


def _figures(found: Ablation, tokenizer: Tokenizer) -> Iterator[Block]:
    effect, target = found.effect, tokenizer.shown(found.target)
    yield Line("")
    rows = [
        (f"ln p({target})", effect.log_p_before, effect.log_p_after),
        ("loss on the text", found.loss_before, found.loss_after),
    ]
    shown = [(name, before, after) for name, before, after in rows if before is not None and after is not None]
    yield Table(
        [
            Column("", [name for name, _, _ in shown], shrink=16, said=""),
            Column("before", [number(before, "%.4f") for _, before, _ in shown], "right"),
            Column("after", [number(after, "%.4f") for _, _, after in shown], "right"),
            Column("change", [number(after - before, "%+.4f") for _, before, after in shown], "right"),
        ]
    )
    yield Line([Span("KL(before ‖ after) = "), Span(number(effect.kl, "%.4f"), "strong"), Span(" nats")], indent=2)


def check_line(*found: Verified) -> Iterator[Block]:
    """Whether logits that were computed in two ways agree; the first that do not are named."""
    wrong = next((one for one in found if not one.holds), None)
    yield Line("")
    if wrong is None:
        figures = ["exactly" if not one.difference else f"off by {one.difference:.1e}" for one in found]
        said = "; ".join(f"{one.what}, {figure}" for one, figure in zip(found, figures, strict=True))
        yield Line([Span("checked", "good"), Span(f": {said}")])
    else:
        figure = f"off by {wrong.difference:.1e} (allowed {wrong.allowed:.1e})"
        yield Line([Span("check failed", "bad"), Span(f": it should be that {wrong.what}, and it is {figure}")])
