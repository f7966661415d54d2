"""The view of ablations: one prediction before and after, or the map of all heads, feed-forwards or layers."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tinytf.cause.interventions import Ablation, AblationSweep, Choice
from tinytf.loading import Model
from tinytf.report import Verified
from tinytf.text.printable import printable
from tinytf.trace.trace import Trace
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Heat, Line, Piece, Span, Table
from tinytf_cli.views.parts import (
    first_of,
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
"""Sites named in a heading."""
_WORDS = {"zero": "set to zero", "mean": "set to the", "resample": "replaced by values"}
_ONE = {"heads": "head", "experts": "expert", "ffn": "feed-forward", "layers": "layer"}


class AblationView:
    """One ablation, drawn."""

    def __init__(self, model: Model, trace: Trace, found: Ablation) -> None:
        self.model, self.trace, self.found = model, trace, found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        found, shown = self.found, self.model.shown
        yield from banner(self.model, self.trace.encoding)
        yield Heading("ablated", f"{first_of(found.sites, SITES)}: {_how(found)}", "attention")
        yield note(where_predicted(self.trace, found.position))
        yield choice_table(found.choices, shown, found.target)
        yield Line("")
        effect = found.effect
        rows = [
            (f"ln p({shown(found.target)})", effect.log_p_before, effect.log_p_after),
            ("loss on the text", found.loss_before, found.loss_after),
        ]
        known = [(name, before, after) for name, before, after in rows if before is not None and after is not None]
        yield Table(
            [
                Column("", [name for name, _, _ in known], shrink=16, said=""),
                Column("before", [Figure(before, "%.4f") for _, before, _ in known], "right"),
                Column("after", [Figure(after, "%.4f") for _, _, after in known], "right"),
                Column("change", [Figure(after - before, "%+.4f") for _, before, after in known], "right"),
            ]
        )
        yield Line(["KL(before ‖ after) = ", Figure(effect.kl, "%.4f", "strong"), " nats"], indent=2)
        yield from check_line(found.check)


class AblationSweepView:
    """Ablations, each alone: the ``top`` strongest in a table, then a map of all."""

    def __init__(self, model: Model, trace: Trace, found: AblationSweep, top: int, whole: bool = False) -> None:
        self.model, self.trace, self.found, self.top, self.whole = model, trace, found, top, whole

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        found, shown = self.found, self.model.shown
        yield from banner(self.model, self.trace.encoding)
        yield Heading(f"every {_ONE[found.what]}, ablated alone", _how(found), "attention")
        where = where_predicted(self.trace, found.position)
        before = Figure(found.measured[0][1].log_p_before, "%.3f")
        yield note([f"{where}: ln p({shown(found.target)}) = ", before])
        yield from stopped(found.interrupted, len(found.measured), len(found.names), found.what)
        strongest = found.strongest(self.top)
        changes = [effect.change for _, effect in strongest]
        yield Table(
            [
                Column("", [Span(name, "strong") for name, _ in strongest], said=""),
                signed_bars("change of ln p", changes, one_form(changes, sign=True)),
                share_column("p after", [effect.p_after for _, effect in strongest], "output"),
                Column("KL", [Figure(effect.kl, "%.4f") for _, effect in strongest], "right"),
                Column("then first", [shown(effect.best) for _, effect in strongest], drop=1),
            ]
        )
        values = as_array(found.change)
        most = largest(values)
        yield Heading(f"all {len(found.names)} {found.what}", "the change without each; KL above: nats, of all tokens")
        if found.what == "heads":
            yield from head_map(values, "signed", most, map_digits(most), whole=self.whole)
        elif found.what == "experts":
            layers = list(dict.fromkeys(name.partition("E")[0] for name in found.names))
            columns = numbered("E", values.shape[1])
            yield Heat(values, layers, columns, "signed", None, most, False, map_digits(most))
        else:
            columns = numbered("L", values.shape[1])
            yield Heat(values, [found.what], columns, "signed", None, most, True, map_digits(most))
        yield from check_line(found.check)


def _how(found: Ablation | AblationSweep) -> str:
    return f"{_WORDS[found.how]} {found.source}".rstrip()


def where_predicted(trace: Trace, position: int) -> str:
    """Which prediction it is, in words."""
    if trace.config.labels:
        return f"class of the text, read at {position} {trace.tokens[position].shown}"
    if not trace.config.causal:
        masks = len(trace.recording.logit_rows)
        return f"at [MASK] {position}" + (f", the first of {masks}" if masks > 1 else "")
    start = trace.tokens[-12].start if len(trace.tokens) > 12 else 0
    shown = printable(trace.encoding.text[start : trace.tokens[-1].end], spaces=False)
    return f'after "{"…" if start else ""}{shown}"'


def choice_table(
    found: tuple[Choice, ...],
    shown: Callable[[int], str],
    target: int,
    titles: tuple[str, str] = ("p before", "p after"),
) -> Table:
    """Probabilities before and after of the most probable tokens, the followed one marked by weight."""
    before, after = [one.before for one in found], [one.after for one in found]
    tokens: list[Cell] = [Span(shown(one.id), "strong" if one.id == target else "") for one in found]
    return Table(
        [
            Column("", tokens, shrink=12, said=""),
            share_column(titles[0], before, "output", like=after),
            share_column(titles[1], after, "output", like=before),
            replace(signed_bars("change of ln p", [one.change for one in found]), drop=1),
        ]
    )


def check_line(*found: Verified) -> Iterator[Block]:
    """Whether logits that were computed in two ways agree; the first that do not are named."""
    wrong = next((one for one in found if not one.holds), None)
    said: list[Piece] = []
    for one in found:
        said += ["; " if said else "", f"{one.what}, "]
        said += ["off by ", Figure(one.difference, "%.1e")] if one.difference else ["exactly"]
    if wrong is not None:
        off = Figure(wrong.difference, "%.1e")
        said = [f"it should be that {wrong.what}, and it is off by ", off, f" (allowed {wrong.allowed:.1e})"]
    yield Line("")
    yield verdict(wrong is None, said)
