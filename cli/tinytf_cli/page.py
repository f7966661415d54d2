"""A page of explained numbers: tables whose cells show their arithmetic under the pointer, or where the focus is.

It needs no server, no script and no other file, follows the reader's theme, and prints without the explanations.
"""

from html import escape

import numpy as np
from rich.color import Color

from tinytf.look.page import ExplainedMap, TracePage
from tinytf.text.printable import printable
from tinytf_cli.paint.colour import level, ramp, text_on
from tinytf_cli.picture import FONTS
from tinytf_cli.terminal import Terminal

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="UTF-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ margin: 0; }}
.tinytf {{ min-height: 100vh; box-sizing: border-box; color-scheme: light dark;
  font: 14px/1.4 {fonts};
  color: light-dark(#1a1a1a, #e6e6e6); background: light-dark(#ffffff, #16171d); padding: 1rem; }}
.tinytf h2 {{ font-size: 1rem; margin: 1.5rem 0 .3rem; }}
.tinytf small, .tinytf th {{ color: light-dark(#666, #9a9aa5); font-weight: normal; }}
.tinytf .wide {{ overflow-x: auto; padding-bottom: 11rem; margin-bottom: -11rem; pointer-events: none; }}
.tinytf table {{ border-collapse: collapse; pointer-events: auto; }}
.tinytf th {{ padding: 0 .6em; text-align: right; }}
.tinytf td {{ position: relative; padding: .1em .5em; text-align: right; cursor: help; }}
.tinytf td:focus {{ outline: 2px solid; outline-offset: -2px; }}
.tinytf td span {{ display: none; position: absolute; z-index: 1; left: 0; top: 100%; white-space: pre;
  text-align: left; padding: .5em .8em; border: 1px solid light-dark(#bbb, #555); border-radius: 4px;
  color: light-dark(#1a1a1a, #e6e6e6); background: light-dark(#fdfdf6, #22242e); }}
.tinytf td.late span {{ left: auto; right: 0; }}
.tinytf td:hover span, .tinytf td:focus span {{ display: block; }}
@media print {{ .tinytf td span {{ display: none !important; }} .tinytf td {{ print-color-adjust: exact; }}
  .tinytf .wide {{ overflow: visible; padding: 0; margin: 0; }} .tinytf .advice {{ display: none; }}
  .tinytf table {{ break-inside: avoid; font-size: min(1em, 100vw / (5 * var(--columns))); }} }}
</style>
</head>
<body>
<main class="tinytf">
<h1 style="font-size: 1.1rem">{title}</h1>
<p>{summary}</p>
<p class="advice"><small>Hover over a number, or go to it with Tab, to read its arithmetic.</small></p>
{maps}
<p><small>{check}</small></p>
</main>
</body>
</html>
"""


def page(report: TracePage) -> str:
    """The page as HTML; texts are escaped, and what they have of control characters is made visible."""
    text = report.encoding.text if report.about is not None and report.about.text is not None else ""
    best = [prediction.top[0] for prediction in report.predictions[:1] if prediction.top]
    said = [f"next: {report.shown(one.id)} {one.probability:.1%}" for one in best]
    check, verdict = report.check, "checked" if report.check.holds else "check failed"
    return _PAGE.format(
        fonts=FONTS,
        title=escape(f"tinytf · {printable(text, spaces=False)}"),
        summary=escape(" · ".join([report.sentence, *said])),
        maps="\n".join(map(_table, report.maps)),
        check=escape(f"{verdict}: {check.what}, off by {check.difference:.1e} where {check.allowed:.1e} is allowed"),
    )


def _table(table: ExplainedMap) -> str:
    """One step as a table; the colours of both themes are in each cell, and the reader's is used."""
    values = np.array([[np.nan if n.value is None else n.value for n in row] for row in table.numbers], np.float32)
    scale, limit = ("unit", 1.0) if table.shares else ("signed", float(np.nanmax(np.abs(values), initial=1e-30)))
    levels = level(values, scale, limit)
    light, dark = (ramp(scale, Terminal(depth="truecolor", theme=theme)) for theme in ("light", "dark"))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = []
    for number, row in enumerate(table.numbers):
        cells = []
        for column, cell in enumerate(row):
            colours = light[levels[number, column]], dark[levels[number, column]]
            late = ' class="late"' if column > len(row) // 2 else ""
            style = "" if cell.value is None else _style(*colours)
            shown = "·" if cell.value is None else f"{cell.value:.3f}"
            tip = escape(f"{cell.address}   {cell.arithmetic}")
            cells.append(f'<td tabindex="0"{late}{style}>{shown}<span role="tooltip">{tip}</span></td>')
        rows.append(f'<tr><th scope="row">{escape(table.rows[number])}</th>{"".join(cells)}</tr>')
    title = f"<h2>{escape(table.address)} <small>{escape(f'{table.title}: {table.formula}')}</small></h2>"
    opened = f'<div class="wide"><table style="--columns: {len(table.columns) + 2}">'
    return f"{title}\n{opened}<tr><th></th>{head}</tr>\n{chr(10).join(rows)}</table></div>"


def _style(light: Color, dark: Color) -> str:
    """The background of a cell in both themes, with black or white text, whichever is easier to read on it."""
    grounds = ", ".join(colour.get_truecolor().hex for colour in (light, dark))
    texts = ", ".join(map(text_on, (light, dark)))
    return f' style="background: light-dark({grounds}); color: light-dark({texts})"'
