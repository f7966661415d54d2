"""What a head is called, and the evidence for it in a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinytf.report import Data


@dataclass(frozen=True)
class Label(Data):
    """A kind of head: the ``score`` that identifies it, ``least`` how much of it is needed, and what it means.

    A label ``of_repeats`` is read on repeated random tokens, the others on text where there is some.
    """

    LESS: ClassVar = ("of_repeats",)

    name: str
    score: str
    least: float
    meaning: str
    of_repeats: bool = False


LABELS: tuple[Label, ...] = (
    Label("induction", "induction", 0.5, "finds what followed the last time, and so can repeat it", True),
    Label("duplicate", "duplicate", 0.5, "finds the earlier copy of its own token", True),
    Label("previous", "previous", 0.5, "brings each token the one before it", True),
    Label("self", "self", 0.5, "stays at its own token"),
    Label("offset", "offset_weight", 0.5, "looks so many tokens back, or ahead, whatever token is there"),
    Label("first", "first", 0.5, "rests on the first token: a sink, where attention goes that is not needed"),
    Label("broad", "entropy_share", 0.9, "looks at all tokens nearly alike, and so takes their mean"),
)
"""In the order of what says most: a head is called by the first that it reaches. Half is the majority of its weight: on
the same sequences no other place can have as much."""


_OFFSET = next(label for label in LABELS if label.name == "offset")


@dataclass(frozen=True)
class Named:
    """``label`` is the first of LABELS that a head reaches, None for no pattern; ``evidence`` is what was measured."""

    label: Label | None
    evidence: str

    @property
    def name(self) -> str:
        return "–" if self.label is None else self.label.name


_WORDS = {
    "induction": "induction",
    "duplicate": "duplicate token",
    "previous": "previous token",
    "self": "own token",
    "first": "first token",
    "entropy_share": "entropy",
}


Of = Mapping[str, float]
"""The scores of one head, by name."""


def named(repeats: Of, text: Of | None) -> Named:
    """The label of a head from its scores on either kind of sequence, and all that speak for one, or the highest."""
    reached: list[Label] = []
    for label in LABELS:
        new = label.name != "offset" or not _is_said(reached, repeats, text)
        if new and _score(label, repeats, text) >= label.least:
            reached.append(label)
    if reached:
        return Named(reached[0], ", ".join(_said(label, repeats, text) for label in reached))
    others = [label for label in LABELS if label.name not in ("offset", "broad")]
    if (text or repeats)["offset"] not in (0, -1):
        others.append(_OFFSET)
    most = max(others, key=lambda label: _score(label, repeats, text))
    return Named(None, f"at most {_said(most, repeats, text)}")


def _score(label: Label, repeats: Of, text: Of | None) -> float:
    return (repeats if label.of_repeats or text is None else text)[label.score]


def _is_said(reached: Sequence[Label], repeats: Of, text: Of | None) -> bool:
    """Whether an offset says nothing that another label has not said: on repeats, every one of them is an offset."""
    if text is None:
        return bool(reached)
    return text["offset"] == 0 or (text["offset"] == -1 and any(label.name == "previous" for label in reached))


def _said(label: Label, repeats: Of, text: Of | None) -> str:
    where = "on repeated tokens" if label.of_repeats else "on random tokens" if text is None else "on text"
    what = f"offset {(text or repeats)['offset']:+.0f}" if label.name == "offset" else _WORDS[label.score]
    share = " of the most possible" if label.name == "broad" else ""
    return f"{what} {_score(label, repeats, text):.2f}{share} {where}"
