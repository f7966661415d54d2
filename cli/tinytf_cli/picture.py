"""HTML and SVG pictures of a true-colour terminal, written by rich, in the reader's own fonts; an SVG as PNG or PDF."""

import re
from collections.abc import Iterable, Iterator
from html import escape, unescape
from io import StringIO

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tinytf.errors import UsageError
from tinytf.text.printable import printable
from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS
from tinytf_cli.terminal import Terminal

FONTS = '"DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace'
"""Fonts by name, each with box-drawing signs: some programs read only the first name, and know no ``ui-monospace``."""
_REMEDY = 'pip install "tinytf[picture]"; or write an .svg file'
_SCALE, _LARGEST = 2.0, 32_767
"""Pixels of a PNG for one of the SVG, and the most that cairo has along a side."""

_COLUMN = 20 * 0.61
"""Pixels of a column in rich's SVG: the size of its letters and their usual shape."""
_SIZE = 20.27
"""Pixels of a letter, of which DejaVu Sans Mono makes a whole column, where a program ignores ``textLength``."""
_LINE, _ABOVE = 20 * 1.22, 18.5
"""Pixels of a line in rich's SVG, and from the top of its background to the foot of its letters."""
_SHAPES = "─│┌┐└┘├┤┬┴┼╭╮╯╰\u2580-\u2590\u2594-\u259f\u2800-\u28ff"
_GAP = "[ \xa0]{2,}"
_SHAPE, _APART = re.compile(f"[{_SHAPES}]"), re.compile(f"{_GAP}|[{_SHAPES}]")
_PIECES = re.compile(f"{_GAP}|(?:(?!{_GAP})[ -~\xa0])+|[{_SHAPES}]+|[^ -~\xa0{_SHAPES}]+")
"""Signs that are drawn as shapes, as terminals do: a font leaves gaps between lines, and many have no braille. And the
pieces of a text: gaps, ASCII, shapes, other signs."""
_DOTS = [(column, row, bit) for column, bits in enumerate(((0, 1, 2, 6), (3, 4, 5, 7))) for row, bit in enumerate(bits)]
"""The column, row and bit of each of the 2 × 4 dots of a braille sign."""
_DOT, _STROKE = 2.4, 1.6
"""Pixels of the side of a dot, and across a line."""
_ARMS = {sign: arms for arms, signs in {
    "lr": "─", "ud": "│", "rd": "┌╭", "ld": "┐╮", "ru": "└╰", "lu": "┘╯",
    "rud": "├", "lud": "┤", "lrd": "┬", "lru": "┴", "lrud": "┼",
}.items() for sign in signs}  # fmt: skip
"""Where the lines of a sign go from the middle of its cell: left, right, up, down."""
_QUADRANTS = ("bl", "br", "tl", "tlblbr", "tlbr", "tltrbl", "tltrbr", "tr", "trbl", "trblbr")
"""The quarters, top and bottom, left and right, of the signs from ▖ to ▟."""
_TEXT = re.compile(r'(<text [^>]*?)x="([^"]*)"([^>]*?)textLength="[^"]*"([^>]*)>([^<]*)</text>')
_FONT_FACE = re.compile(r"@font-face \{[^}]*\}\s*")

# rich.Console.export_svg fills in the names in braces; GROUND is the background.
_SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" role="img" xml:space="preserve">
ABOUT<style>
.{{unique_id}}-matrix {{{{ font-family: {FONTS}; font-size: {_SIZE}px; line-height: {{line_height}}px; }}}}
{{styles}}
</style>
<defs>{{lines}}</defs>
<rect width="100%" height="100%" rx="8" fill="GROUND"/>
<g transform="translate({{terminal_x}}, 24)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""

_HTML = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="UTF-8">
<title>tinytf</title>
<style>
{{stylesheet}}
body {{{{ color: {{foreground}}; background-color: {{background}}; }}}}
pre {{{{ font-family: {FONTS}; line-height: 1.2; }}}}
</style>
</head>
<body><pre>{{code}}</pre></body>
</html>
"""

_FRAGMENT = f"""<pre style='color: {{foreground}}; background-color: {{background}}; padding: 0.7em; overflow-x: auto;
font-family: {FONTS}; line-height: 1.2'>{{code}}</pre>"""


def picture(lines: Iterable[str], extension: str, screen: Terminal, name: str = "tinytf", about: str = "") -> str:
    """Lines painted for ``screen``, in true colour, as an ``.svg`` or ``.html`` document in its theme.

    CSS classes of an SVG begin with its ``name``, so that one document can hold several. ``about`` is its title and
    alternative text, as ``described`` makes them.
    """
    console, theme, ground = _written(lines, screen)
    if extension == ".html":
        return console.export_html(code_format=_HTML, theme=theme)
    form = _SVG.replace("GROUND", ground).replace("ABOUT", about.replace("{", "{{").replace("}", "}}"))
    svg = console.export_svg(code_format=form, unique_id=name, theme=theme)
    return _TEXT.sub(_on_the_grid, svg)


def _on_the_grid(text: re.Match[str]) -> str:
    """An element of text in its columns; rich counts letters, and 猫 has two columns, an accent none.

    What follows such letters, or a gap, is an element of its own, so that it stands in its column in
    any font. Blocks, lines and braille are drawn as shapes.
    """
    whole = unescape(text[5])
    words = whole.lstrip(" \xa0") or whole
    if cell_len(words) == len(whole) and not _APART.search(words):
        return text[0]
    x, pieces = float(text[2]) + _COLUMN * (len(whole) - len(words)), []
    for piece in _PIECES.findall(words):
        length = _COLUMN * cell_len(piece)
        if _SHAPE.match(piece):
            pieces.append(_shapes(piece, x, text[0]))
        elif not re.match(_GAP, piece):
            shown = escape(piece).replace("\xa0", "&#160;")
            pieces.append(f'{text[1]}x="{x:g}"{text[3]}textLength="{length:g}"{text[4]}>{shown}</text>')
        x += length
    return "".join(pieces)


def _shapes(signs: str, x: float, element: str) -> str:
    """The shapes of signs that begin at ``x``, in the line and colour of an element of text."""
    style, foot = (re.search(f' {name}="([^"]*)"', element) for name in ("class", "y"))
    assert style is not None
    assert foot is not None
    top, drawn = float(foot[1]) - _ABOVE, []
    for place, sign in enumerate(signs):
        for left, upper, right, lower in _rectangles(sign):
            start = x + _COLUMN * place
            drawn.append(
                f"M{start + left:.1f} {top + upper:.1f}H{start + right:.1f}V{top + lower:.1f}H{start + left:.1f}z"
            )
    return f'<path class="{style[1]}" shape-rendering="crispEdges" d="{"".join(drawn)}"/>'


def _rectangles(sign: str) -> Iterator[tuple[float, float, float, float]]:
    """Left, top, right and bottom of each rectangle that a sign is made of, in pixels of its cell."""
    code, middle, half = ord(sign), (_COLUMN / 2, _LINE / 2), _STROKE / 2
    if code >= 0x2800:
        for column, row, bit in _DOTS:
            if code >> bit & 1:
                across, down = _COLUMN * (2 * column + 1) / 4, _LINE * (2 * row + 1) / 8
                yield across - _DOT / 2, down - _DOT / 2, across + _DOT / 2, down + _DOT / 2
    elif sign in _ARMS:
        ends = {"l": (0.0, middle[1]), "r": (_COLUMN, middle[1]), "u": (middle[0], 0.0), "d": (middle[0], _LINE)}
        for across, down in (ends[arm] for arm in _ARMS[sign]):
            beside, along = (half, 0.0) if across == middle[0] else (0.0, half)
            first, last = sorted((across, middle[0])), sorted((down, middle[1]))
            yield first[0] - beside, last[0] - along, first[1] + beside, last[1] + along
    elif code >= 0x2596:
        quarters = _QUADRANTS[code - 0x2596]
        for vertical, horizontal in zip(quarters[::2], quarters[1::2], strict=True):
            left, upper = middle[0] * (horizontal == "r"), middle[1] * (vertical == "b")
            yield left, upper, left + middle[0], upper + middle[1]
    else:
        yield {
            "▀": (0, 0, _COLUMN, middle[1]),
            "▐": (middle[0], 0, _COLUMN, _LINE),
            "▔": (0, 0, _COLUMN, _LINE / 8),
            "▕": (_COLUMN * 7 / 8, 0, _COLUMN, _LINE),
        }.get(sign) or (
            (0, _LINE * (0x2588 - code) / 8, _COLUMN, _LINE)  # ▁ to █, from below
            if code <= 0x2588
            else (0, 0, _COLUMN * (0x2590 - code) / 8, _LINE)  # ▉ to ▏, from the left
        )


def described(kind: str, sentence: str, lines: Iterable[str] = ()) -> str:
    """The title and alternative text of an SVG: its sentence, or the first of its lines that has words."""
    plain = (Text.from_ansi(line).plain.strip() for line in lines)
    alternative = sentence or next(filter(None, plain), kind)
    words = (escape(printable(text, spaces=False)) for text in (f"tinytf {kind.replace('_', ' ')}", alternative))
    return "<title>{}</title>\n<desc>{}</desc>\n".format(*words)


def screenshot(svg: str, sentence: str) -> str:
    """A picture that Textual took of the explorer, with a title, alternative text, and no font of the network."""
    start = svg.index(">", svg.index("<svg")) + 1
    svg = f"{svg[:start]}\n{described('explore', sentence)}{svg[start:]}"
    svg = _FONT_FACE.sub("", svg)
    return svg.replace("Fira Code, monospace", FONTS)


def printed(svg: str, extension: str) -> bytes:
    """An SVG as a ``.png`` or ``.pdf`` file. Raises UsageError without CairoSVG, or if it is too large for a PNG."""
    try:
        import cairosvg
    except (ImportError, OSError) as error:  # OSError: the package is there, and the library cairo is not
        missing = "CairoSVG" if isinstance(error, ImportError) else "the library cairo"
        raise UsageError(f"a {extension} file needs {missing}, which is not installed", _REMEDY) from None
    if extension == ".pdf":
        return bytes(cairosvg.svg2pdf(bytestring=svg.encode("utf-8")))
    largest = max(map(float, svg.split('viewBox="')[1].split('"')[0].split()))
    if largest > _LARGEST:
        raise UsageError(
            f"the picture is {largest:,.0f} pixels high, and a PNG has at most {_LARGEST:,}", "write a .pdf"
        )
    scale = min(_SCALE, _LARGEST / largest)
    return bytes(cairosvg.svg2png(bytestring=svg.encode("utf-8"), scale=scale))


def fragment(lines: Iterable[str], screen: Terminal) -> str:
    """Lines as an element of an HTML page, with inline styles."""
    console, theme, _ = _written(lines, screen)
    return console.export_html(code_format=_FRAGMENT, theme=theme, inline_styles=True)


def _written(lines: Iterable[str], screen: Terminal) -> tuple[Console, TerminalTheme, str]:
    """A console that has recorded the lines, the colours of the screen, and its background."""
    console = Console(
        record=True, width=screen.width, file=StringIO(), color_system="truecolor", legacy_windows=False,
        force_jupyter=False,  # in a notebook rich would show what it records, line by line
    )  # fmt: skip
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True, highlight=False, markup=False, emoji=False)
    ground, text = BACKGROUNDS[screen.theme], FOREGROUNDS[screen.theme]
    theme = TerminalTheme(Color.parse(ground).get_truecolor(), Color.parse(text).get_truecolor(), [(0, 0, 0)] * 8)
    return console, theme, ground
