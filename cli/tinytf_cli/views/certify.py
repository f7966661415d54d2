"""A certificate: the verdict, a line per check, and how the difference grows from layer to layer."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.certification.certify import Certificate
from tinytf.certification.sides import Check
from tinytf.sentences import apart as in_words
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Line, Span, Table
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import apart, folded, most_rows, note, verdict

_LAYERS = 6
"""Layers shown, unless all are requested."""


@dataclass(frozen=True)
class CertificateDisplay(Display):
    """``rows`` is the most layers shown: 0 for all, None for as many as suit a screen."""

    rows: int | None = None


@draws(Certificate, CertificateDisplay)
def certificate(report: Certificate, terminal: Terminal, display: CertificateDisplay) -> Iterator[Block]:
    """The two sides, the verdict, every check, and the layers."""
    assert report.about is not None
    name = printable(str(report.about.to_dict()["model"]["name"]), spaces=False)
    reference = f" · against transformers {report.transformers}, eager, torch {report.torch} · "
    yield Line([Span(name, "strong"), Span(f"{reference}{printable(str(report.versus), spaces=False)}", "dim")])
    yield _verdict(report)
    yield Line("")
    checks = report.checks
    yield Table(
        [
            Column("check", [check.name for check in checks]),
            Column("dtype", [check.dtype for check in checks], drop=1),
            Column("texts", [f"{check.texts:,}" for check in checks], "right", drop=3),
            Column("tokens", [f"{check.tokens:,}" for check in checks], "right", drop=4),
            Column("worst", [_worst(check) for check in checks], "right"),
            Column("where", [printable(check.where, spaces=False) for check in checks], shrink=16, drop=2),
            Column("allowed", [f"{check.tolerance:.1e}" if check.tolerance else "0" for check in checks], "right"),
            Column("", [Span("holds", "good") if check.holds else Span("fails", "bad") for check in checks]),
        ]
    )
    yield note("worst: in units of the largest number of its token so far; of ids, the texts that differ")
    for text in report.notes:
        yield note(printable(text, spaces=False))
    yield Line("")
    yield from _layers(report, display)


def _verdict(report: Certificate) -> Line:
    failing = [check for check in report.checks if not check.holds]
    if not failing:
        measured = (check for check in report.checks if check.tolerance)
        worst = max(measured, key=lambda check: check.difference / check.tolerance)
        words = f"{plural(len(report.checks), 'check')} hold; nearest to its limit: {worst.name}"
        return verdict(True, f"{words} in {worst.dtype}, {worst.difference:.1e} of {worst.tolerance:.1e}", "certified")
    words = f"{plural(len(failing), 'check')} of {len(report.checks)}, first {failing[0].name}: {_words(failing[0])}"
    return verdict(False, words, bad="not certified")


def _layers(report: Certificate, display: CertificateDisplay) -> Iterator[Block]:
    """The worst difference after each layer, in each dtype."""
    dtypes = list(dict.fromkeys(layer.dtype for layer in report.layers))
    steps = list(dict.fromkeys(layer.step for layer in report.layers))
    differences = {(layer.step, layer.dtype): layer.difference for layer in report.layers}
    columns = [Column("after", steps)]
    columns += [Column(dtype, [apart(differences[step, dtype]) for step in steps], "right") for dtype in dtypes]
    yield from folded(Table(columns), steps, most_rows(display.rows, _LAYERS), "layers")


def _worst(check: Check) -> Span:
    """The worst difference of a check; for ids, a count of texts."""
    role = "" if check.holds else "bad"
    if not check.dtype:
        return Span(f"{check.difference:,.0f}", role)
    return Span(in_words(check.difference, "%.1e"), role)


def _words(check: Check) -> str:
    """A failed check in words."""
    location = printable(check.where, spaces=False)
    if not check.dtype:
        return f"{check.difference:,.0f} of {plural(check.texts, 'text')} have other ids, first {location}"
    if check.not_finite is not None:
        return f"not finite at {printable(check.first, spaces=False)}"
    return f"{_worst(check).text} at {location}, and {check.tolerance:.1e} is allowed"
