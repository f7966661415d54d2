"""Colours of the typed line, by the kind of each piece."""

import re
from collections.abc import Callable, Iterator

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.lexers import Lexer, PygmentsLexer
from prompt_toolkit.styles import Style

from tinytf.steps.table import STEPS
from tinytf.text.words import NUMBERS
from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS, accents
from tinytf_cli.repl.line import Piece, pieces_of
from tinytf_cli.repl.python import statements
from tinytf_cli.repl.session import Session

LONGEST = 2_000
"""Lines longer than this many characters stay uncoloured: they are redrawn at every key."""


def prompt_style(theme: str) -> Style:
    """The prompt's style in a dark or light theme; bold, underline and italics carry it without colour."""
    colours, ground, text = accents(theme), BACKGROUNDS[theme], FOREGROUNDS[theme]
    raised, edge = {"dark": ("#2a2d34", "#3a3e47"), "light": ("#e4e6ea", "#d3d6dc")}[theme]
    return Style.from_dict(
        {
            "prompt": f"bold {colours['q']}",
            "verb": "bold",
            "wrong": f"underline {colours['output']}",
            "option": colours["embed"],
            "string": colours["v"],
            "number": colours["k"],
            "sign": f"bold {colours['attention']}",
            "comment": f"italic {colours['residual']}",
            "keyword": f"bold {colours['ffn']}",
            "pygments.literal.string": colours["v"],
            "pygments.literal.number": colours["k"],
            "pygments.comment": f"italic {colours['residual']}",
            "pygments.keyword": f"bold {colours['ffn']}",
            "pygments.operator.word": f"bold {colours['ffn']}",
            **{f"role.{role}": colour for role, colour in colours.items()},
            "auto-suggestion": f"italic {colours['residual']}",
            "bottom-toolbar": "noreverse",
            "bar": colours["residual"],
            "bar.model": f"bold {colours['residual']}",
            "completion-menu.completion": f"bg:{raised} {text}",
            "completion-menu.completion.current": f"noreverse bold bg:{colours['q']} {ground}",
            "scrollbar.background": f"bg:{edge}",
            "scrollbar.button": f"bg:{colours['residual']}",
            "completion-menu.meta.completion": f"bg:{edge} {text}",
            "completion-menu.meta.completion.current": f"bg:{colours['q']} {ground}",
        }
    )


_STYLES = {"sign": "class:sign", "bang": "class:sign", "comment": "class:comment", "target": "class:string"}
_STEP = re.compile(rf"(?:L{NUMBERS}(?:[HE]{NUMBERS})?)?\.?([a-z][a-z0-9_.]*)?(\[.*)?")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SCOPE_NAMES = ("trace", "model", "torch", "np", "session", "_")


class LineLexer(Lexer):
    """prompt_toolkit's lexer of a session, which colours each line of the prompt."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = document.lines
        joined = statements(enumerate(lines)) if len(lines) > 1 else ()
        continued = {start + offset for start, text in joined for offset in range(1, text.count("\n") + 1)}

        def style_line(index: int) -> StyleAndTextTuples:
            line = lines[index] if index < len(lines) else ""
            try:
                return list(_style_python(line)) if index in continued else style_pieces(self._session, line)
            except Exception:  # an error in colouring must not end the session
                return [("", line)]

        return style_line


def style_pieces(session: Session, line: str) -> StyleAndTextTuples:
    """The pieces of a line as pairs of style and text; joined, the texts are the line."""
    if len(line) > LONGEST:
        return [("", line)]
    fragments: StyleAndTextTuples = []
    name: str | None = None
    for piece in pieces_of(line, session.lexicon.redirects):
        text = line[piece.start : piece.end]
        if piece.kind == "python":
            fragments.extend(_style_python(text))
        elif piece.kind != "word":
            fragments.append((_STYLES.get(piece.kind, ""), text))
        elif name is None:
            name = session.lexicon.meaning(piece.word.partition("/")[0])
            is_prefix = any(known.startswith(piece.word) for known in session.lexicon.names)
            fragments.append(("class:verb" if name else "" if is_prefix else "class:wrong", text))
        else:
            fragments.append((_word_style(session, name, piece, text), text))
    return fragments


def _word_style(session: Session, name: str, piece: Piece, text: str) -> str:
    """The style of a word after the verb or command ``name``."""
    verb = session.lexicon.verbs.get(name)
    takes = verb.takes if verb is not None else ()
    number = _NUMBER.fullmatch(text)
    if text[:1] in "\"'":
        return "class:string"
    if text.startswith("-") and not number:
        return "class:option"
    if takes[:1] == ("text",):
        return ""
    if text.startswith("/") and "flag" in takes:
        return "class:option"
    if "condition" in takes and text in ("if", "and", "or"):
        return "class:keyword"
    return "class:number" if number else _address_style(session, piece.word)


def _address_style(session: Session, word: str) -> str:
    """The style of an address, by the role of its step; empty for any other word."""
    match = _STEP.fullmatch(word)
    if match is None:
        return ""
    name = match[1]
    if name is None:
        return "class:role.residual" if re.match(r"L[0-9*]", word) else ""
    if session.is_open and session.through is None:
        step = session.table.by_name.get(session.table.synonym(name) or name)
    else:  # no model is open: the steps of all models
        step = next((step for step in STEPS if step.name == name), None)
    return "" if step is None else f"class:role.{step.role}"


def _style_python(text: str) -> Iterator[tuple[str, str]]:
    from pygments.lexers.python import PythonLexer  # 40 ms to import, so only for ! lines

    for style, word, *_ in PygmentsLexer(PythonLexer).lex_document(Document(text))(0):
        yield "class:verb" if word in _SCOPE_NAMES else style, word
