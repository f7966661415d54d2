"""The printable form of untrusted text, with everything that a terminal could act on spelled out."""

import unicodedata

_NAMED = {" ": "·", "\n": "↵", "\t": "→"}
# Controls, formats (bidi, zero width), surrogates, private use, unassigned, line and paragraph separators.
_SPELLED_OUT = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Letters, marks and a symbol that are drawn blank (Unicode's Default_Ignorable, and the blank Braille pattern).
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_DOTTED_CIRCLE = "\u25cc"


def is_hidden(char: str) -> bool:
    """Whether a terminal could act on a character, draws it blank, or may draw it differently from other terminals."""
    # Variation selectors may change the width.
    is_selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return char in _BLANK or is_selector or unicodedata.category(char) in _SPELLED_OUT


def _spelled_out(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def printable(text: str, *, spaces: bool = True) -> str:
    """``text`` with control, bidi, zero-width and other invisible characters made visible.

    A space is ``·`` (unless ``spaces`` is false), newline ``↵``, tab ``→``, a byte ``\\xNN``, other invisible
    characters ``\\uNNNN``. A combining mark without a base gets a dotted circle, so that it cannot
    attach to the text before it. The result is safe to write to a terminal.
    """
    parts: list[str] = []
    for char in text:
        if char == " " and not spaces:
            parts.append(char)
        elif char in _NAMED:
            parts.append(_NAMED[char])
        elif is_hidden(char) or unicodedata.category(char) == "Zs":
            parts.append(_spelled_out(char))
        elif unicodedata.category(char) in {"Mn", "Me", "Mc"} and (not parts or len(parts[-1]) > 1):
            parts.append(_DOTTED_CIRCLE + char)
        else:
            parts.append(char)
    return "".join(parts)
