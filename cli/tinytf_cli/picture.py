"""HTML and SVG pictures of a true-colour terminal, written by rich, in the reader's own fonts."""

from collections.abc import Iterable
from io import StringIO

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS
from tinytf_cli.terminal import Terminal

_FONTS = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace'

# rich.Console.export_svg fills in the names in braces; GROUND is the background.
_SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" xml:space="preserve">
<style>
.{{unique_id}}-matrix {{{{ font-family: {_FONTS}; font-size: {{char_height}}px; line-height: {{line_height}}px; }}}}
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
pre {{{{ font-family: {_FONTS}; line-height: 1.2; }}}}
</style>
</head>
<body><pre>{{code}}</pre></body>
</html>
"""

_FRAGMENT = f"""<pre style='color: {{foreground}}; background-color: {{background}}; padding: 0.7em; overflow-x: auto;
font-family: {_FONTS}; line-height: 1.2'>{{code}}</pre>"""


def picture(lines: Iterable[str], extension: str, screen: Terminal, name: str = "tinytf") -> str:
    """Lines painted for ``screen``, in true colour, as an ``.svg`` or ``.html`` document in its theme.

    CSS classes of an SVG begin with its ``name``, so that one document can hold several.
    """
    console, theme, ground = _written(lines, screen)
    if extension == ".html":
        return console.export_html(code_format=_HTML, theme=theme)
    return console.export_svg(code_format=_SVG.replace("GROUND", ground), unique_id=name, theme=theme)


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
