"""What a model's file has to share exactly with its original: ids, chat template, special tokens, pooling, settings."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinytf.certification.conversations import CONVERSATIONS
from tinytf.certification.texts import HARD_TEXTS
from tinytf.config import FIELDS
from tinytf.errors import TinytfError
from tinytf.parts.part import leaves
from tinytf.parts.pooling import Pooling
from tinytf.report import Data
from tinytf.tables import ColumnStyle
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text_model import TextModel

_REPEATS = 16
"""Times that a hard text is repeated that stands for a long one."""
_REFUSED, _MISSING = "refused", "none"
_POOLING = tuple(leaves(Pooling))
_ROUNDING = 2.0**-22
"""A GGUF file stores a setting as float32, some as the result of a formula in it."""
Contents = Mapping[str, tuple[str, ...]]
"""Words by the name of what they belong to: the tokens of a text, or one value."""


@dataclass(frozen=True)
class Shared(Data):
    """One thing that two models should share: what the file ``says``, and the names of the ``differing`` of all items.

    ``differing`` is None without another model; ``where`` is the first difference, the file's side first.
    """

    ALSO: ClassVar = ("holds",)
    COLUMNS: ClassVar = {
        "name": ColumnStyle("", role="strong", spoken="part"),
        "says": ColumnStyle("in the file", shrink=20),
        "verdict": ColumnStyle(
            "versus", role=lambda verdict: "good" if verdict == "same" else "bad" if verdict else "", spoken="verdict"
        ),
        "where": ColumnStyle("first difference", shrink=16, drop=1),
    }

    name: str
    says: str
    items: int
    differing: tuple[str, ...] | None = None
    where: str = ""

    @property
    def holds(self) -> bool:
        return not self.differing

    @property
    def verdict(self) -> str:
        """``same``, or how many differ; empty without another model."""
        if self.differing is None:
            return ""
        return f"{len(self.differing):,} of {self.items:,} differ" if self.differing else "same"


def compare_contents(
    model: TextModel, versus: TextModel | None, said: Collection[str] = tuple(FIELDS)
) -> tuple[Shared, ...]:
    """What the file says of itself, and where ``versus`` says otherwise; of settings only those that are ``said``."""
    contents = (
        _compare(name, read(model), None if versus is None else read(versus), says) for name, read, says in _READ
    )
    pooling = [name for name in _POOLING if name in said]
    settings = [name for name in FIELDS if name in said and name not in _POOLING]
    return (
        *contents,
        _compare_settings("pooling", str(model.config.pooling), model, versus, pooling),
        _compare_settings("settings", f"{len(settings)} of the architecture", model, versus, settings),
    )


def differing_settings(model: TextModel, versus: TextModel) -> dict[str, str]:
    """The settings in which two models differ by more than rounding to float32, each with both values."""
    found = model.config.differences(versus.config, _ROUNDING)
    return {name: f"{own} / {other}" for name, (own, other) in found.items()}


def _compare_settings(
    name: str, says: str, model: TextModel, versus: TextModel | None, settings: Sequence[str]
) -> Shared:
    if versus is None:
        return Shared(name, says, len(settings))
    values = differing_settings(model, versus)
    differing = tuple(setting for setting in settings if setting in values)
    return Shared(name, says, len(settings), differing, f"{differing[0]}: {values[differing[0]]}" if differing else "")


def _compare(name: str, own: Contents, other: Contents | None, says: Callable[[Contents], str]) -> Shared:
    if other is None:
        return Shared(name, says(own), len(own))
    missing, items = (_MISSING,), dict.fromkeys((*own, *other))
    differing = tuple(item for item in items if own.get(item, missing) != other.get(item, missing))
    where = ""
    if differing:
        first, second = (contents.get(differing[0], missing) for contents in (own, other))
        index = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        index = min(len(first), len(second)) if index is None else index
        place = f", token {index}" if max(len(first), len(second)) > 1 else ""
        sides = (words[index] if index < len(words) else "the end" for words in (first, second))
        where = f"{differing[0]}{place}: {' / '.join(sides)}"
    return Shared(name, says(own), len(items), differing, where)


def _tokens(encode: Callable[[], Encoding]) -> tuple[str, ...]:
    """The tokens of a text or a conversation, with their ids."""
    try:
        return tuple(f"{token.shown} #{token.id}" for token in encode().tokens)
    except TinytfError:
        return (_REFUSED,)


def _ids(model: TextModel) -> Contents:
    texts = {name: text * _REPEATS if repeated else text for name, text, repeated in HARD_TEXTS}
    return {name: _tokens(lambda text=text: model.tokenizer.encode(text)) for name, text in texts.items()}  # type: ignore[misc]


def _template(model: TextModel) -> Contents:
    if model.tokenizer.chat is None:
        return {}
    return {
        name: _tokens(lambda asked=asked: model.tokenizer.converse(asked))  # type: ignore[misc]
        for name, asked in CONVERSATIONS.items()
    }


def _special(model: TextModel) -> Contents:
    tokenizer: Tokenizer = model.tokenizer
    start, (before, after) = tokenizer.start(), tokenizer.surrounding_ids()
    ids = {
        "start": [] if start is None else start.ids,
        "end": [] if tokenizer.end_id is None else [tokenizer.end_id],
        "mask": [] if tokenizer.mask_id is None else [tokenizer.mask_id],
        "put before a text": before,
        "put after a text": after,
        **{f"token {token_id:,}": [token_id] for token_id in sorted(tokenizer.special_ids)},
    }
    return {name: (" ".join(map(tokenizer.shown, of)) or _MISSING,) for name, of in ids.items()}


def _rendered(contents: Contents) -> str:
    made = sum(words != (_REFUSED,) for words in contents.values())
    return f"writes {made} of {len(contents)} conversations" if contents else _MISSING


def _specials(contents: Contents) -> str:
    start, end = contents["start"][0], contents["end"][0]
    return f"{len(contents) - 5:,}; start {start}, end {end}"


_READ: tuple[tuple[str, Callable[[TextModel], Contents], Callable[[Contents], str]], ...] = (
    ("ids", _ids, lambda texts: f"{sum(map(len, texts.values())):,} in {len(texts)} hard texts"),
    ("template", _template, _rendered),
    ("special tokens", _special, _specials),
)
