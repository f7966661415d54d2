"""The view of two texts' likeness: what each pair of words adds to the cosine, and the cosine by layer."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from tinytf.look.similar import Similar
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Heading, Heat, Signed, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import fold_note, full_scale, note, row_limit, verdict
from tinytf_cli.views.steps import as_array


@dataclass(frozen=True)
class SimilarDisplay(Display):
    """``rows`` is the most pairs of words in the table: 0 for all, None for as many as suit the terminal."""

    rows: int | None = None


@draws(Similar, SimilarDisplay)
def similar(report: Similar, terminal: Terminal, display: SimilarDisplay) -> Iterator[Block]:
    """The map of all pairs of words, those that add most, and the cosine after each layer."""
    yield from banner(model_of(report), report.encoding)
    if report.by_word is not None:
        yield from _pairs(report, report.by_word, terminal, display)
    full = full_scale(report.layers)
    yield Heading("layers", f"the cosine if the model ended there; a bar is {full:.2f}", "residual")
    names = ["embeddings", *(f"L{layer}" for layer in range(len(report.layers) - 1))]
    cells = [Signed(cosine, full, "%.3f") for cosine in report.layers]
    yield Table([Column("", names, said="after"), Column("cosine", cells)])
    yield note(report.note)
    yield note(f"two random vectors: 0 ± {report.chance:.2g}")
    if report.unsplit:
        yield note(f"not split into words: {report.unsplit}")
    if report.check is not None:
        yield verdict(report.check.holds, f"{report.check.what}: {report.check.difference:.1e} apart")


def _pairs(report: Similar, by_word: Tensor, terminal: Terminal, display: SimilarDisplay) -> Iterator[Block]:
    first, second = ([word.shown for word in words] for words in report.words)
    values = as_array(by_word)
    limit = float(abs(values).max()) or 1.0
    yield Heading("pairs", f"what each pair of words adds; all add up to {report.cosine:.3f}", "attention")
    yield Heat(values, first, second, "signed", limit=limit, digits=3, axes="first text down, second across")
    full = full_scale([pair.added for pair in report.word_pairs])
    yield Heading("most", f"the pairs that add most; a bar is {full:.3f}", "attention")
    names = [f"{first[pair.first]} – {second[pair.second]}" for pair in report.word_pairs]
    table = Table([Column("", names, said="pair"),
                   Column("adds", [Signed(pair.added, full, "%+.4f") for pair in report.word_pairs])])  # fmt: skip
    most = row_limit(terminal, display.rows, 8) or len(names)
    yield table.only(range(min(most, len(names))))
    yield from fold_note(names, range(min(most, len(names))), "pairs", "--all")
    yield note(f"{report.outside_words:.3f} of it is from pairs with a special token, a bias or punctuation")
