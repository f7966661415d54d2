"""The colours of what is typed, by what each piece of the line is."""

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
"""A longer line has no colours: nobody reads it, and it is drawn at every key."""


def style_of(theme: str) -> Style:
    """The colours of a dark or light theme; bold, underlines and italics say the same without colour."""
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
_SCOPE = ("trace", "model", "torch", "np", "session", "_")


class LineLexer(Lexer):
    """prompt_toolkit's lexer of a session: it colours each line in the prompt."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = document.lines
        found = statements(enumerate(lines)) if len(lines) > 1 else ()
        inside = {start + more for start, text in found for more in range(1, text.count("\n") + 1)}

        def of_line(number: int) -> StyleAndTextTuples:
            line = lines[number] if number < len(lines) else ""
            try:
                return list(_python(line)) if number in inside else coloured(self._session, line)
            except Exception:  # a fault here must not end the session
                return [("", line)]

        return of_line


def coloured(session: Session, line: str) -> StyleAndTextTuples:
    """The pieces of a line with their styles; joined, they are the line."""
    if len(line) > LONGEST:
        return [("", line)]
    found: StyleAndTextTuples = []
    name: str | None = None
    for piece in pieces_of(line, session.lexicon.redirects):
        text = line[piece.start : piece.end]
        if piece.kind == "python":
            found.extend(_python(text))
        elif piece.kind != "word":
            found.append((_STYLES.get(piece.kind, ""), text))
        elif name is None:
            name = session.lexicon.meaning(piece.word.partition("/")[0])
            may_become = any(known.startswith(piece.word) for known in session.lexicon.names)
            found.append(("class:verb" if name else "" if may_become else "class:wrong", text))
        else:
            found.append((_style(session, name, piece, text), text))
    return found


def _style(session: Session, name: str, piece: Piece, text: str) -> str:
    """The style of a word after the verb or command."""
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
    return "class:number" if number else _address(session, piece.word)


def _address(session: Session, word: str) -> str:
    """The style of an address: that of its step's role. None for another word."""
    match = _STEP.fullmatch(word)
    if match is None:
        return ""
    name = match[1]
    if name is None:
        return "class:role.residual" if re.match(r"L[0-9*]", word) else ""
    if session.is_open:
        step = session.table.by_name.get(session.table.synonym(name) or name)
    else:  # a step of any model
        step = next((step for step in STEPS if step.name == name), None)
    return "" if step is None else f"class:role.{step.role}"


def _python(text: str) -> Iterator[tuple[str, str]]:
    from pygments.lexers.python import PythonLexer  # 40 ms, for ! lines only

    for style, word, *_ in PygmentsLexer(PythonLexer).lex_document(Document(text))(0):
        yield "class:verb" if word in _SCOPE else style, word
