"""A guided tour: a text file of stops, each an address, keys and what to say about it with live numbers."""

import re
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from tinytf.errors import TinytfError, UsageError
from tinytf.sentences import percent
from tinytf_cli.explore.cursor import Cursor
from tinytf_cli.explore.scene import Scene
from tinytf_cli.inputs import file_text
from tinytf_cli.views.blocks import Piece, Span

BUILT_IN = files("tinytf") / "assets" / "tour.txt"
_LIVE = re.compile(r"\{([^{}]*)\}")
_SUCH_AS = "a stop is a line with an address and keys, such as L1H0.weights Enter, then what to say about it"


@dataclass(frozen=True)
class Stop:
    """A stop: its address, the keys pressed there, and its sentences with the number of the line of each."""

    number: int
    address: str
    keys: tuple[str, ...]
    sentences: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Tour:
    """The stops of a file, its text, and its model; ``model`` is empty where any will do."""

    name: str
    text: str
    model: str = ""
    stops: tuple[Stop, ...] = field(default=())

    def error(self, number: int, message: str, hint: str = _SUCH_AS) -> UsageError:
        return UsageError(f"{self.name}, line {number}: {message}", hint)

    def check(self, scene: Scene, keys: frozenset[str]) -> None:
        """Raise UsageError, with the line, for a stop that the run does not have, and for a key that does not exist."""
        for stop in self.stops:
            for key in stop.keys:
                if key not in keys:
                    raise self.error(
                        stop.number, f"{key} is no key of a tour", f"the keys are {' '.join(sorted(keys))}"
                    )
            number = stop.number
            try:
                Cursor().to(scene.trace, scene.trace.address(stop.address))
                for number, sentence in stop.sentences:  # noqa: B007  the line of an error
                    said(sentence, scene)
            except TinytfError as error:
                raise self.error(number, error.message, error.hint) from None


def read_tour(path: Path | None) -> Tour:
    """The tour in a file, or the built-in one. Raises UsageError, with the line."""
    name = "tour.txt" if path is None else str(path)
    content = BUILT_IN.read_text("utf-8") if path is None else file_text(path, "a tour: a text, and stops")
    lines = [(number, line.strip()) for number, line in enumerate(content.splitlines(), 1) if not line.startswith("#")]
    blocks: list[list[tuple[int, str]]] = [[]]
    for number, line in lines:
        if line:
            blocks[-1].append((number, line))
        elif blocks[-1]:
            blocks.append([])
    head, *rest = [block for block in blocks if block] or [[]]
    values, tour = {}, Tour(name, "")
    for number, line in head:
        word, _, value = line.partition(" ")
        if word not in ("text", "model") or not value:
            raise tour.error(number, f"{line} is neither a text nor a model", "a tour begins with text The cat sat")
        values[word] = value.strip()
    if "text" not in values:
        raise tour.error(head[0][0] if head else 1, "the tour has no text", "a tour begins with text The cat sat")
    if not rest:
        raise tour.error(lines[-1][0], "the tour has no stop")
    stops = []
    for (number, line), *sentences in rest:
        address, *keys = line.split()
        if not sentences:
            raise tour.error(number, "the stop says nothing")
        for sentence_number, sentence in sentences:
            if any(brace in _LIVE.sub("", sentence) for brace in "{}"):
                raise tour.error(sentence_number, "a brace is open", "a live number is {L1H0.weights[2,1]}")
        stops.append(Stop(number, address, tuple(keys), tuple(sentences)))
    return Tour(name, values["text"], values.get("model", ""), tuple(stops))


def said(sentence: str, scene: Scene) -> list[Piece]:
    """A sentence with its live words computed on a run. Raises the errors of an address, and UsageError."""
    parts = _LIVE.split(sentence)  # every second part is live
    return [Span(_live(part, scene), "strong") if index % 2 else part for index, part in enumerate(parts)]


def _live(word: str, scene: Scene) -> str:
    """``next``, ``chance``, ``chance TOKEN``, ``guess LAYER`` or the number of a cell, as a person says it."""
    verb, _, of = word.partition(" ")
    trace = scene.trace
    if verb in ("next", "chance", "guess"):
        last = scene.at_token(len(trace.tokens) - 1)
        best = scene.predicted_at(last)[0].top[0] if scene.predicted else None
        if best is None or best.probability is None:
            raise UsageError("this model predicts no token", "next, chance and guess need one that does")
        if verb == "next":
            return best.shown
        if verb == "chance":
            step = trace.steps.probabilities
            assert step is not None
            return percent(float(trace[f"{step.name}[{last},{of}]"])) if of else percent(best.probability)
        layer = trace.address(of).layers
        read = scene.overview(last).layers[layer[0]].read if layer else None
        if read is None:
            raise UsageError(f"{of} is no layer whose guess can be read", "a live guess is {guess L1}")
        return read.token
    address = trace.address(word)
    value = trace[address]
    if value.numel() != 1 or address.step is None:
        raise UsageError(f"{word} is not one number", "a live number is {L1H0.weights[2,1]}")
    return percent(float(value)) if address.step.holds_shares else f"{float(value):.3g}"
