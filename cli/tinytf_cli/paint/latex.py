"""Blocks as a LaTeX document: sentences, tables, and small matrices with the labels of their rows and columns."""

import re
from collections.abc import Iterable, Iterator, Sequence

from tinytf.errors import UsageError
from tinytf.text.printable import printable
from tinytf_cli.numbers import number, number_format
from tinytf_cli.paint.heat import number_form
from tinytf_cli.paint.plain import cell_text
from tinytf_cli.paint.text import spans
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    Bars,
    Block,
    Cell,
    Curves,
    Figure,
    Heading,
    Heat,
    Histogram,
    Line,
    Links,
    Meter,
    RowBars,
    Scale,
    Signed,
    Table,
    Values,
)
from tinytf_cli.views.parts import BLANK, BY_HAND

_DRAWN = (Bars, Curves, Links, RowBars, Scale)
"""Charts beside the numbers, which a document goes without."""
_BEGIN = r"""% Written by tinytf. Its parts need the package amsmath; letters that pdfLaTeX lacks need XeLaTeX.
\documentclass{article}
\usepackage{amsmath}
\setlength{\parindent}{0pt}
\raggedright
\begin{document}
"""
_SIGNS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "*": "{*}",  # else they would belong to a line break before them
    **{sign: f"${command}$" for sign, command in {
        "·": r"\cdot", "√": r"\surd", "−": "-", "×": r"\times", "→": r"\to", "←": r"\leftarrow", "±": r"\pm",
        "≤": r"\le", "≥": r"\ge", "≠": r"\ne", "≈": r"\approx", "∞": r"\infty", "⊙": r"\odot", "∂": r"\partial",
        "Σ": r"\Sigma", "∑": r"\sum", "∈": r"\in", "Δ": r"\Delta", "∇": r"\nabla", "↑": r"\uparrow",
        "↓": r"\downarrow", "│": r"\vert", "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta",
        "ε": r"\varepsilon", "η": r"\eta", "θ": r"\theta", "λ": r"\lambda", "μ": r"\mu", "π": r"\pi",
        "σ": r"\sigma", "τ": r"\tau", "φ": r"\varphi", "ω": r"\omega", "ᵀ": r"^{\top}", "²": "^2", "³": "^3",
        "₀": "_0", "₁": "_1", "₂": "_2", "ⁿ": "^n", "✓": r"\surd", "✗": r"^{\text{wrong}}", "…": r"\ldots",
        "⁻": "^{-}", "¹": "^1", "½": r"\tfrac12", "‖": r"\Vert", "ĝ": r"\hat{g}",
    }.items()},
}  # fmt: skip
_STRUT = r"\rule{0pt}{5ex}"
_RULE = rf"{_STRUT}\rule{{4em}}{{0.4pt}}"
"""A blank, with room for handwriting, and its height alone."""
_ESCAPES = str.maketrans(_SIGNS)
_HAT = re.compile("([a-z])\u0302")


def escaped(text: str) -> str:
    """Text as LaTeX sets it, with every sign that is a command there spelt out."""
    parts = (printable(part, spaces=False).translate(_ESCAPES) for part in text.split(BLANK))
    return _HAT.sub(r"$\\hat{\1}$", _RULE.join(parts))


def document(blocks: Iterable[Block], terminal: Terminal) -> Iterator[str]:
    """Yield a document, part by part. Raises UsageError for a matrix that is too large, and for a picture."""
    yield _BEGIN
    for block in blocks:
        if not isinstance(block, _DRAWN):
            yield from _written(block, terminal)
    yield "\\end{document}\n"


def _written(block: Block, terminal: Terminal) -> Iterator[str]:
    if isinstance(block, Line):
        text = "".join(span.text for span in spans(block.words, terminal)).strip()
        yield f"{escaped(text)}\n\n" if text else ""
    elif isinstance(block, Heading):
        yield f"\n\\section*{{{escaped(block.title)}}}\n{escaped(block.note)}\n\n"
    elif isinstance(block, Table):
        cells = [[_cell(cell, terminal) for cell in column.cells] for column in block.columns]
        rows, titles = [list(row) for row in zip(*cells, strict=True)], [column.title for column in block.columns]
        if block.matrix:
            yield from _matrix([row[1:] for row in rows], cells[0], titles[1:])
        else:
            yield from _tabular(block, rows, titles)
    elif isinstance(block, Heat):
        form, visible = number_form(block, terminal), block.visible
        texts = [
            [number(value, form) if visible is None or visible[r, c] else "·" for c, value in enumerate(row)]
            for r, row in enumerate(block.values.tolist())
        ]
        yield from _matrix(texts, block.row_labels, block.column_labels)
    elif isinstance(block, Values):
        shown = block.values[:, : block.first]
        form = terminal.form(number_format(shown))
        texts = [[number(value, form) for value in row] for row in shown.tolist()]
        yield from _matrix(texts, block.labels, block.columns[: block.first])
    else:
        raise UsageError("this result is a picture, which LaTeX cannot set", "write a .pdf file, and include it")


def _cell(cell: Cell, terminal: Terminal) -> str:
    if isinstance(cell, Figure | Histogram | Meter | Signed):
        return cell_text(cell, terminal)
    return "".join(span.text for span in spans(cell, terminal)).strip()


def _matrix(cells: Sequence[Sequence[str]], rows: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    """A pmatrix with the labels of its rows on the left, and those of its columns above the first row."""
    across = max(map(len, cells), default=0)
    if len(cells) > BY_HAND or across > BY_HAND:
        raise UsageError(
            f"a matrix of {len(cells):,} × {across:,} numbers is too large for LaTeX: at most {BY_HAND} × {BY_HAND}",
            "name a part of it, such as one row or a shorter text, give --dims 8, or write a .csv file",
        )
    over = [columns[column] if column < len(columns) else "" for column in range(across)]
    lines = []
    for index, row in enumerate(cells):
        values = [_entry(text) for text in row]
        if not index:  # the label stands over its first number
            values = [
                f"\\overset{{\\text{{{escaped(name.strip())}}}}}{{{value}}}" if name.strip() else value
                for name, value in zip(over, values, strict=True)
            ]
        lines.append(" & ".join(values) + r" \\")
    yield "\\[\n"
    if any(label.strip() for label in rows):
        strut = r"\vphantom{\overset{\text{X}}{0}}" if any(name.strip() for name in over) else ""
        high = _STRUT if any(BLANK in text for row in cells for text in row) else ""
        labels = [
            f"{strut * (not index)}{high}\\text{{{escaped(label.strip())}}} \\\\" for index, label in enumerate(rows)
        ]
        yield "\\begin{array}{r}\n" + "\n".join(labels) + "\n\\end{array}\n"
    yield "\\begin{pmatrix}\n" + "\n".join(lines) + "\n\\end{pmatrix}\n\\]\n\n"


def _entry(text: str) -> str:
    """A number in mathematics, whose sign is a minus; the point of a masked cell; what is no number, as text."""
    if _is_number(text):
        bare, _, exponent = text.strip().replace(",", "{,}").partition("e")
        return f"{bare} \\times 10^{{{int(exponent)}}}" if exponent else bare
    return r"\cdot" if text.strip() == "·" else f"\\text{{{escaped(text.strip())}}}"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?", text.strip()) is not None


def _tabular(block: Table, rows: Sequence[Sequence[str]], titles: Sequence[str]) -> Iterator[str]:
    letters = "".join(
        "r" if column.align == "right" or all(_is_number(row[index]) for row in rows) else "l"
        for index, column in enumerate(block.columns)
    )
    head = [titles] if block.header and any(titles) else []
    lines = [
        " & ".join(f"${_entry(text)}$" if _is_number(text) else escaped(text) for text in row) + r" \\"
        for row in (*head, *rows)
    ]
    lines[: len(head)] = [line + r" \hline" for line in lines[: len(head)]]
    yield f"\\begin{{tabular}}{{{letters}}}\n" + "\n".join(lines) + "\n\\end{tabular}\n\n"
