"""HTML and SVG of what a true-colour terminal would show, by rich's exporters, with fonts of the reader's machine."""

from collections.abc import Iterable
from io import StringIO

from rich.console import Console
from rich.text import Text

_FONTS = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace'

# The names in braces are filled in by rich.Console.export_svg.
_SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" xml:space="preserve">
<style>
.{{unique_id}}-matrix {{{{ font-family: {_FONTS}; font-size: {{char_height}}px; line-height: {{line_height}}px; }}}}
{{styles}}
</style>
<defs>{{lines}}</defs>
<rect width="100%" height="100%" rx="8" fill="#292929"/>
<g transform="translate({{terminal_x}}, {{terminal_y}})">
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


def picture(lines: Iterable[str], extension: str, width: int) -> str:
    """Lines with true-colour escape codes as an ``.svg`` or ``.html`` document ``width`` columns wide."""
    console = Console(record=True, width=width, file=StringIO(), color_system="truecolor", legacy_windows=False)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True, highlight=False, markup=False, emoji=False)
    if extension == ".html":
        return console.export_html(code_format=_HTML)
    return console.export_svg(code_format=_SVG, unique_id="tinytf")
