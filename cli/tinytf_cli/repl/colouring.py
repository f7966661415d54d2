"""The colours of what is typed: by what each piece of the line is."""

import keyword
import re
from collections.abc import Callable

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.styles import Style

from tinytf.steps.table import STEPS
from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS, accents
from tinytf_cli.repl.line import Piece, pieces_of
from tinytf_cli.repl.session import Session

LONGEST = 2_000
"""Characters of a line beyond which it is shown as it is: nobody reads it, and it is drawn at every key."""


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


_STEP = re.compile(r"(?:L(?:[0-9]+(?:-[0-9]+)?|\*)(?:H(?:[0-9]+(?:-[0-9]+)?|\*))?)?\.?([a-z][a-z0-9_.]*)?(\[.*)?")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_PYTHON = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)|(?P<comment>\#.*)|(?P<word>[^\W\d]\w*)"""
    r"""|(?P<number>[0-9][0-9_]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)|(?P<other>.)""",
    re.DOTALL,
)
_SCOPE = ("trace", "model", "torch", "np", "session", "_")


class LineLexer(Lexer):
    """Colours each line that is in the prompt."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = document.lines

        def of_line(number: int) -> StyleAndTextTuples:
            line = lines[number] if number < len(lines) else ""
            try:
                return coloured(self._session, line)
            except Exception:  # a fault here must not end the session
                return [("", line)]

        return of_line


def coloured(session: Session, line: str) -> StyleAndTextTuples:
    """A line as pieces with their styles, which together are the line."""
    if len(line) > LONGEST:
        return [("", line)]
    found: StyleAndTextTuples = []
    first = True
    name = ""
    for piece in pieces_of(line, session.lexicon.redirects):
        text = line[piece.start : piece.end]
        if piece.kind == "python":
            found.extend(_python(text))
        elif piece.kind == "word" and first:
            name = session.lexicon.meaning(piece.word.partition("/")[0])
            may_become = any(known.startswith(piece.word) for known in session.lexicon.names)
            style = "class:verb" if name else "" if may_become else "class:wrong"
            found.append((style, text))
            first = False
        elif piece.kind == "word":
            found.append((_style(session, name, piece, text), text))
        else:
            found.append((_STYLES.get(piece.kind, ""), text))
    return found


_STYLES = {"sign": "class:sign", "bang": "class:sign", "comment": "class:comment", "target": "class:string"}


def _style(session: Session, name: str, piece: Piece, text: str) -> str:
    """The style of a word behind the first."""
    if text[:1] in "\"'":
        return "class:string"
    verb = session.lexicon.verbs.get(name)
    takes = verb.takes if verb is not None else ()
    if text.startswith("-") and not _NUMBER.fullmatch(text):
        return "class:option"
    if takes[:1] == ("text",):
        return ""
    if text.startswith("/") and "flag" in takes:
        return "class:option"
    if "condition" in takes and text in ("if", "and", "or"):
        return "class:keyword"
    if _NUMBER.fullmatch(text):
        return "class:number"
    return _address(session, piece.word)


def _address(session: Session, word: str) -> str:
    """The style of the role that an address has; none for what is no address."""
    match = _STEP.fullmatch(word)
    if match is None or not word:
        return ""
    if match[1] is None:
        return "class:role.residual" if word.startswith("L") and word[1:2] in "0123456789*" and word[1:] else ""
    role = role_of(session, match[1])
    return f"class:role.{role}" if role else ""


def role_of(session: Session, name: str) -> str:
    """The role of a step by its short name; of any model while none is open."""
    if session.is_open:
        found = session.table.by_name.get(session.table.synonym(name) or name)
        return found.role if found is not None else ""
    return next((step.role for step in STEPS if step.name == name), "")


def _python(text: str) -> StyleAndTextTuples:
    found: StyleAndTextTuples = []
    for match in _PYTHON.finditer(text):
        kind = match.lastgroup or ""
        if kind == "word":
            word = match[0]
            kind = "keyword" if keyword.iskeyword(word) else ("verb" if word in _SCOPE else "")
        found.append((f"class:{kind}" if kind not in ("", "other") else "", match[0]))
    return found
