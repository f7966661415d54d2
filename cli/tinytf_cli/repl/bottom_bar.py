"""The line under the prompt: model, text, place, memory, and the time that the last line took."""

import os
from dataclasses import dataclass

from prompt_toolkit.formatted_text import StyleAndTextTuples
from rich.cells import cell_len, set_cell_size

from tinytf.text.printable import printable
from tinytf_cli.numbers import in_bytes
from tinytf_cli.repl.session import Session

_LEAST_TEXT = 8
_NO_PATH = ("preset:", "hub:")
_SHOWN = 1_000


@dataclass(frozen=True)
class Bar:
    """What the bar says. ``role`` is that of the present step."""

    model: str
    text: str = ""
    place: str = ""
    role: str = ""
    memory: str = ""
    took: str = ""
    ascii: bool = False

    def fitted(self, width: int) -> StyleAndTextTuples:
        """The bar in at most ``width`` cells: the text is cut first, then what matters least is left out."""
        between = " | " if self.ascii else " · "
        model = _cut(self.model, max(_LEAST_TEXT, width // 2), self.ascii)
        parts = {"model": model, "text": self.text, "place": self.place, "memory": self.memory, "took": self.took}
        parts = {name: words for name, words in parts.items() if words}
        for name in ("", "took", "memory", "text", "model"):
            parts.pop(name, None)
            room = width - 1 - sum(cell_len(words) + len(between) for key, words in parts.items() if key != "text")
            if "text" in parts and room < min(cell_len(parts["text"]), _LEAST_TEXT):
                continue
            if "text" in parts:
                parts["text"] = _cut(parts["text"], room, self.ascii)
            if len(between.join(parts.values())) <= width:
                break
        fragments: StyleAndTextTuples = []
        for name, words in parts.items():
            if fragments:
                fragments.append(("class:bar", between))
            style = f"class:bar class:role.{self.role}" if name == "place" and self.role else f"class:bar.{name}"
            fragments.append((style, words))
        used = cell_len(between.join(parts.values()))
        if used > width:  # a place alone, on the narrowest of screens
            fragments = [("class:bar", _cut(between.join(parts.values()), width, self.ascii))]
        return fragments


def bar_of(session: Session) -> Bar:
    """The bar as the session stands."""
    run, place = session.run, session.place_words
    role = session.table.rows[session.place][0].role if place and session.place is not None else ""
    held = session.models.nbytes
    took = session.last_seconds
    return Bar(
        _model_words(session),
        printable(run.text[:_SHOWN], spaces=False) if run else "",
        place,
        role,
        in_bytes(held) if held else "",
        _time(took),
        session.settings.ascii,
    )


def _model_words(session: Session) -> str:
    """The model, of a path its last part, and what it runs without."""
    name, words = session.state.spec.name, session.model_words
    short = name if name.startswith(_NO_PATH) else os.path.basename(name.rstrip(os.sep)) or name
    return printable(f"{short}{words.removeprefix(name)}"[:_SHOWN], spaces=False)


def _time(seconds: float) -> str:
    if not seconds:
        return ""  # nothing has been run
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _cut(text: str, width: int, ascii: bool) -> str:
    if cell_len(text) <= width:
        return text
    sign = "..." if ascii else "…"
    return set_cell_size(text, max(0, width - len(sign))) + sign if width > len(sign) else set_cell_size(text, width)
