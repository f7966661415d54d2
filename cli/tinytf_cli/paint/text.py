"""Lines of styled text: measuring in cells, padding, cutting, and the 7-bit form."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from tinytf_cli.numbers import number
from tinytf_cli.paint.colour import SYSTEMS, role_style
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Figure, Span, Words

PaintedLine = list[Segment]

_ASCII = {
    "·": ".", "×": "x", "√": "sqrt ", "ᵀ": "^T", "−": "-", "∞": "inf", "→": "->", "↵": "\\n", "…": "..", "≤": "<=",
    "₀": "0", "₁": "1", "₂": "2", "⊙": "*", "█": "#", "▌": "#", "│": "|", "─": "-", "⁄": "/", "÷": "/", "☐": "_",
    "–": "-", "‖": "||", "Σ": "sum", "γ": "gain", "β": "bias", "μ": "mean", "σ": "std", "◌": "o", "²": "^2", "↓": "v",
    "∂": "d", "ĝ": "g_hat", "\u0302": "_hat", "′": "'", "ε": "eps", "Φ": "Phi", "φ": "phi", "π": "pi", "³": "^3",
    "θ": "theta", "λ": "lambda", "✓": "+", "✗": "x", "━": "=", "←": "<-", "±": "+-",
    "├": "+", "┼": "+", "┴": "+", "┬": "+", "╮": ".", "╯": "'", "⊕": "+", "┊": ":",
    "┌": "+", "└": "+", "▶": ">", "◀": "<", "▸": "+", "▾": "-", "●": "*", "▒": ":", "↑": "^", "Δ": "delta",
}  # fmt: skip
_BETAS = {"β₁": "beta1", "β₂": "beta2"}  # in Adam; β alone is a bias


def shown(text: str, terminal: Terminal) -> str:
    """``text`` as this terminal can show it; in 7 bits, symbols are spelled out and other characters escaped."""
    if not terminal.ascii or text.isascii():
        return text
    for sign, words in _BETAS.items():
        text = text.replace(sign, words)
    return "".join(
        char if char.isascii() else _ASCII.get(char) or char.encode("ascii", "backslashreplace").decode()
        for char in text
    )


def figure_text(figure: str | Figure, terminal: Terminal) -> str:
    """A number as this terminal shows it; text as it is."""
    return figure if isinstance(figure, str) else number(figure.value, terminal.form(figure.form))


def spans(words: Words, terminal: Terminal) -> Sequence[Span]:
    """Words in any of their forms, as spans; without those of advice where the terminal gives none."""
    if isinstance(words, str):
        return [Span(words)]
    every = [words] if isinstance(words, Span) else [_span(word, terminal) for word in words]
    return every if terminal.advises else [span for span in every if span.role != "advice"]


def _span(word: str | Span | Figure, terminal: Terminal) -> Span:
    if isinstance(word, Span):
        return word
    return Span(word) if isinstance(word, str) else Span(figure_text(word, terminal), word.role)


def segments(words: Words, terminal: Terminal) -> PaintedLine:
    """Words as styled segments."""
    return [Segment(shown(span.text, terminal), role_style(span.role, terminal)) for span in spans(words, terminal)]


def line_width(line: PaintedLine) -> int:
    return cell_len(line[0].text) if len(line) == 1 else sum([cell_len(segment.text) for segment in line])


def ellipsis(terminal: Terminal) -> str:
    """The mark of cut text."""
    return shown("…", terminal)


def fit(line: PaintedLine, width: int, terminal: Terminal, align: str = "left") -> PaintedLine:
    """The line padded or cut to ``width`` cells; a cut line ends in … (or ..)."""
    used = line_width(line)
    if used <= width:
        pad = [Segment(" " * (width - used))] if used < width else []
        return pad + line if align == "right" else line + pad
    return cut(line, width, terminal)


def cut(line: PaintedLine, width: int, terminal: Terminal) -> PaintedLine:
    """At most ``width`` cells of a line, ending in … (or ..) if it was cut."""
    if line_width(line) <= width:
        return line
    mark = ellipsis(terminal)
    shortened: PaintedLine = []
    room = width - cell_len(mark)
    for segment in line:
        size = cell_len(segment.text)
        if size > room:
            shortened.append(Segment(set_cell_size(segment.text, max(0, room)), segment.style))
            shortened.append(Segment(mark, segment.style))
            break
        shortened.append(segment)
        room -= size
    return shortened


def pad_text(text: str, width: int, terminal: Terminal, align: str = "left") -> str:
    """Plain text cut or padded to ``width`` cells."""
    return "".join(segment.text for segment in fit([Segment(text)], width, terminal, align))


def wrap(line: PaintedLine, width: int, indent: int = 0) -> list[PaintedLine]:
    """Break a line between words so that each part fits ``width``; later parts are indented."""
    parts: list[PaintedLine] = [[]]
    used = 0
    for segment in line:
        for word in _words(segment.text):
            size = cell_len(word)
            if used and used + cell_len(word.rstrip()) > width and word.strip():
                parts.append([Segment(" " * indent)])
                used = indent
            parts[-1].append(Segment(word, segment.style))
            used += size
    for part in parts[:-1]:  # drop the space before a break
        part[-1] = Segment(part[-1].text.rstrip(), part[-1].style)
    return parts


def _words(text: str) -> Iterable[str]:
    """Words with the spaces after them; a percent sign stays at its number."""
    start = 0
    for index in range(1, len(text)):
        if text[index - 1] == " " and text[index] not in " %":
            yield text[start:index]
            start = index
    yield text[start:]


def render(line: PaintedLine, depth: str) -> str:
    """A line with the escape codes of this colour depth (none for ``none``), without trailing spaces."""
    if depth == "none":
        return "".join(segment.text for segment in line).rstrip()
    system = SYSTEMS[depth]
    plain = Style.null()
    merged: list[tuple[str, Style]] = []
    for segment in line:
        style = segment.style or plain
        if merged and merged[-1][1] == style:
            merged[-1] = (merged[-1][0] + segment.text, style)
        else:
            merged.append((segment.text, style))
    if merged and not merged[-1][1].bgcolor:
        merged[-1] = (merged[-1][0].rstrip(), merged[-1][1])
    return "".join(style.render(text, color_system=system) if style else text for text, style in merged)
