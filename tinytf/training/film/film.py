"""The film of a run, read again: what the model did with fixed texts at each frame, and what it learned when.

Free of torch. Shapes: L layers, H heads, T tokens, Q and K where query and key differ, G groups of parameters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import read_json, resolved
from tinytf.report import Report
from tinytf.tables import Array
from tinytf.training.folder.history import NAMES, History, Series
from tinytf.training.folder.lines import json_or_none
from tinytf.training.folder.reader import read_history
from tinytf.training.folder.run_files import FRAMES, PROBES, frame_step

Numbers = NDArray[np.float32]
KINDS = ("punctuation", "spelling", "words", "names", "copying")
"""What a token is to be predicted by: see ``Probe.kinds``."""
UNSEEN, SEEN, TWICE = "unseen", "seen", "twice"
"""What the names of probes begin with: held-out text, text to train on, and some tokens twice in a row."""
BECOMES = 0.5
LEARNED = 1.0
"""The gain in nats per token from which on a kind of token counts as learned: see ``Film.gain_of``."""


@dataclass(frozen=True)
class Probe:
    """A fixed text: its ``tokens``, and what is ``expected`` at each of them; None where nothing is.

    ``baseline`` is the loss in nats of each expected token without any context: by its frequency in the training text,
    or by a uniform guess where that is better. It is None in films of versions that did not keep it.
    """

    name: str
    text: str
    tokens: tuple[str, ...]
    expected: tuple[str | None, ...]
    baseline: tuple[float | None, ...]

    @cached_property
    def kinds(self) -> tuple[str | None, ...]:
        """One of KINDS for each expected token, by what would help to predict it.

        ``copying``: of text that is there twice, those of the second copy but its first. Otherwise ``punctuation`` has
        no letter or digit, ``spelling`` goes on inside a word, and where a word begins it is one of the ``names`` if
        its letter is a capital, else one of the ``words``.
        """
        pairs = enumerate(zip(self.tokens, self.expected, strict=True))
        return tuple(
            None if target is None else "copying" if self.copies and place > self.copies else _kind(token, target)
            for place, (token, target) in pairs
        )

    @property
    def predicted(self) -> int:
        """How many tokens are expected."""
        return sum(target is not None for target in self.expected)

    @property
    def copies(self) -> int:
        """Of text that is there twice, how many tokens of the first copy are predicted; else 0."""
        return len(self.tokens) // 2 if self.name == TWICE else 0


def _kind(token: str, target: str) -> str:
    letters = [char for char in target if char.isalnum()]
    if not letters:
        return "punctuation"
    goes_on = token[-1:].isalnum() and target[:1].isalnum()
    if goes_on or target.startswith("##"):
        return "spelling"
    return "names" if letters[0].isupper() else "words"


@dataclass(frozen=True)
class Frame:
    """The model after ``step`` steps; of each probe, by its name, as ``frames.Frame`` has it.

    ``heads`` are scores by their kind, (L, H). ``gradient_norm`` and ``update_ratio`` (G,) are of the step before, and
    empty at the beginning. ``model`` is where it opens, None where its weights were not kept.
    """

    step: int
    maps: Mapping[str, Numbers]
    norms: Mapping[str, Numbers]
    loss: Mapping[str, Numbers]
    top: Mapping[str, Numbers]
    words: Mapping[str, Sequence[Sequence[str]]]
    heads: Mapping[str, Series]
    gradient_norm: Numbers
    update_ratio: Numbers
    rms: Numbers
    dead: Numbers
    model: Path | None

    def mean(self, probe: str) -> float:
        """The mean loss of a probe, in nats."""
        return float(np.nanmean(self.loss[probe].astype(np.float64)))


@dataclass(frozen=True)
class Learned:
    """A kind of token: how many there are, their loss in the first and the last frame, and the ``gain`` in the last.

    ``by`` is the step of the first frame from which on the gain is at least LEARNED to the end; None without one.
    """

    kind: str
    tokens: int
    first: float
    last: float
    gain: float
    by: int | None


@dataclass(frozen=True)
class Appeared:
    """A head that became something: its score reached 0.5 ``after`` one frame and ``by`` the next, and is ``last``."""

    head: str
    kind: str
    after: int | None
    by: int
    last: float

    @property
    def words(self) -> str:
        between = f"by step {self.by:,}" if self.after is None else f"between steps {self.after:,} and {self.by:,}"
        return f"{self.head} became {NAMES[self.kind]} {between}"


@dataclass(frozen=True)
class Film(Report):
    """The frames of a run by step."""

    KIND = "film"
    EVENTS: ClassVar = {"frames": "frame"}

    name: str
    run: Path
    probes: tuple[Probe, ...]
    frames: tuple[Frame, ...]
    history: History

    def at(self, step: int) -> Frame:
        """The last frame until a step; the first where there is none."""
        return next((frame for frame in reversed(self.frames) if frame.step <= step), self.frames[0])

    @cached_property
    def places(self) -> dict[str, list[tuple[Probe, int]]]:
        """Of each kind its tokens, by their places: copies in the text that is there twice, others in unseen text."""
        found: dict[str, list[tuple[Probe, int]]] = {}
        for probe in self.probes:
            for place, kind in enumerate(probe.kinds):
                known = probe.name.startswith(UNSEEN) and probe.baseline[place] is not None
                if kind is not None and (kind == "copying" or known):
                    found.setdefault(kind, []).append((probe, place))
        return {kind: found[kind] for kind in KINDS if kind in found}

    def loss_of(self, kind: str, frame: Frame) -> float:
        """The mean loss of the tokens of a kind, in nats."""
        return float(np.mean([frame.loss[probe.name][place] for probe, place in self.places[kind]], dtype=np.float64))

    def gain_of(self, kind: str, frame: Frame) -> float:
        """By how much these tokens are predicted better than without any context, in nats per token.

        A copy costs so much less than the same tokens did the first time, any other token less than its
        baseline.
        """
        found = self.places[kind]
        without = [
            frame.loss[probe.name][place - probe.copies - 1] if kind == "copying" else probe.baseline[place]
            for probe, place in found
        ]
        return float(np.array(without, dtype=np.float64).mean()) - self.loss_of(kind, frame)

    @cached_property
    def learned(self) -> tuple[Learned, ...]:
        """What was learned, and when: the kinds of tokens that the probes have."""
        found = []
        first, last = self.frames[0], self.frames[-1]
        for kind, places in self.places.items():
            gains = [self.gain_of(kind, frame) for frame in self.frames]
            below = [place for place, gain in enumerate(gains) if not gain >= LEARNED]
            since = below[-1] + 1 if below else 0
            by = self.frames[since].step if since < len(self.frames) else None
            losses = self.loss_of(kind, first), self.loss_of(kind, last)
            found.append(Learned(kind, len(places), *losses, gains[-1], by))
        return tuple(found)

    @cached_property
    def appeared(self) -> tuple[Appeared, ...]:
        """The heads that are something at the end, in the order in which they became it."""
        found = []
        for kind in NAMES:
            scores = [frame.heads.get(kind) for frame in self.frames]
            if not scores or any(one is None for one in scores):
                continue
            stack = np.stack([one for one in scores if one is not None])  # (frames, L, H)
            for layer, head in np.argwhere(stack[-1] >= BECOMES).tolist():
                since = int(np.argmax(stack[:, layer, head] >= BECOMES))
                after = self.frames[since - 1].step if since else None
                last = float(stack[-1, layer, head])
                found.append(Appeared(f"L{layer}H{head}", kind, after, self.frames[since].step, last))
        return tuple(sorted(found, key=lambda one: one.by))

    def strongest(self, kind: str, frame: Frame) -> tuple[str, float] | None:
        """The head with the largest score of a kind, and the score."""
        scores = frame.heads.get(kind)
        if scores is None or not np.isfinite(scores).any():
            return None
        layer, head = np.unravel_index(int(np.nanargmax(scores)), scores.shape)
        return f"L{layer}H{head}", float(scores[layer, head])

    def fields(self) -> dict[str, Any]:
        """Losses in nats; the maps are in a .safetensors file only."""
        return {
            "run": str(self.run),
            "steps": self.history.steps,
            "probes": [{**vars_of(probe), "kinds": list(probe.kinds)} for probe in self.probes],
            "learned_at": LEARNED,
            "learned": [vars_of(one) for one in self.learned],
            "appeared": [{**vars_of(one), "words": one.words} for one in self.appeared],
            "frames": [self._frame(frame) for frame in self.frames],
        }

    def _frame(self, frame: Frame) -> dict[str, Any]:
        known = {name: getattr(frame, name).tolist() for name in ("gradient_norm", "update_ratio", "rms", "dead")}
        return {
            "step": frame.step,
            "model": None if frame.model is None else str(frame.model),
            "mean_loss": {probe.name: frame.mean(probe.name) for probe in self.probes},
            "kinds": {one.kind: self.loss_of(one.kind, frame) for one in self.learned},
            "heads": {kind: scores.tolist() for kind, scores in frame.heads.items()},
            **known,
            "probes": {
                probe.name: {
                    "loss": [None if math.isnan(loss) else loss for loss in frame.loss[probe.name].tolist()],
                    "norms": frame.norms[probe.name].tolist(),
                    "next": [
                        [{"token": word, "probability": p} for word, p in zip(words, row, strict=True)]
                        for words, row in zip(frame.words[probe.name], frame.top[probe.name].tolist(), strict=True)
                    ],
                }
                for probe in self.probes
            },
        }

    def stored(self) -> list[Array]:
        """Maps, norms, losses and head scores of all frames, such as ``step-16.unseen.maps``."""
        import torch

        axes = {"maps": ["layer", "head", "query", "key"], "norms": ["layer", "token"], "loss": ["token"],
                "top": ["token", "rank"]}  # fmt: skip
        found = []
        for frame in self.frames:
            named = [(f"{name}.{what}", axes[what], one) for what in axes for name, one in getattr(frame, what).items()]
            named += [(f"heads.{kind}", ["layer", "head"], scores) for kind, scores in frame.heads.items()]
            found += [Array.of(f"step-{frame.step}.{name}", of, torch.from_numpy(one)) for name, of, one in named]
        return found


@dataclass(frozen=True)
class Films(Report):
    """The films of two runs beside each other."""

    KIND = "films"
    EVENTS: ClassVar = {"frames": "frame"}

    films: tuple[Film, Film]

    def fields(self) -> dict[str, Any]:
        """The ``runs`` as a film has them, and the ``frames`` of both, each with its run."""
        every = [film.fields() for film in self.films]
        frames = [{"run": one["run"], **frame} for one in every for frame in one.pop("frames")]
        return {"runs": every, "frames": frames}

    def stored(self) -> list[Array]:
        """As those of a film, with the number of the run before them."""
        every = [(place, one) for place, film in enumerate(self.films) for one in film.stored()]
        return [replace(one, name=f"{place}.{one.name}") for place, one in every]


def vars_of(one: Any) -> dict[str, Any]:
    """The fields of a frozen object, without what it has computed."""
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def read_film(run: Path) -> Film:
    """The film of the run in a folder. Raises UsageError for a run without one, CheckpointError for a damaged one."""
    history, folder = read_history(run), run / FRAMES
    if not (folder / PROBES).is_file():
        raise UsageError(f"{run} has no film", "tinytf train takes one, but with --probe-every 0; older runs have none")
    probes = _probes(folder / PROBES)
    found = sorted((frame_step(path), path) for path in folder.glob("step-*.safetensors"))
    opened = {one.step: one.path for one in reversed(history.checkpoints) if one.step is not None}
    frames = [_frame(step, path, probes, opened) for step, path in found if step >= 0]
    if not frames:
        raise UsageError(f"{run} has no frame yet", "tinytf train takes the first before the first step")
    return Film(resolved(run).name, run, probes, tuple(frames), history)


def _probes(path: Path) -> tuple[Probe, ...]:
    try:
        found = tuple(
            Probe(
                str(one["name"]),
                str(one["text"]),
                tuple(map(str, one["tokens"])),
                tuple(one["expected"]),
                tuple(one.get("baseline", [None] * len(one["tokens"]))),
            )
            for one in read_json(path)["probes"]
        )
        expected = [target for probe in found for target in probe.expected if target is not None]
        names = {probe.name for probe in found}
        sound = 0 < len(names) == len(found) and all(isinstance(target, str) for target in expected)
        sound = sound and all(isinstance(loss, float) for one in found for loss in one.baseline if loss is not None)
        if not sound or any(len({*map(len, (one.tokens, one.expected, one.baseline))}) > 1 for one in found):
            raise TypeError
        return found
    except (KeyError, TypeError):
        raise CheckpointError(f"{path} is damaged: it does not say what the probes are") from None


def _frame(step: int, path: Path, probes: tuple[Probe, ...], opened: Mapping[int, Path]) -> Frame:
    try:
        with safe_open(path, "numpy") as file:
            said = json_or_none((file.metadata() or {}).get("tinytf", ""))
            tensors: dict[str, Numbers] = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118
        words = said["words"]  # type: ignore[index]
        by_probe = {
            what: {probe.name: tensors[f"{probe.name}.{what}"] for probe in probes}
            for what in ("maps", "norms", "loss", "top")
        }
        names = {probe.name: words[probe.name] for probe in probes}
        rms = tensors["rms"]
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", "remove it; the other frames can still be seen") from None
    heads = {
        name.removeprefix("heads."): scores.astype(np.float64)
        for name, scores in sorted(tensors.items())
        if name.startswith("heads.")
    }
    none = np.zeros(0, dtype=np.float32)
    kept = path.with_suffix("")
    model = opened.get(step, kept if (kept / "config.json").is_file() else None)
    return Frame(
        step=step,
        maps=by_probe["maps"],
        norms=by_probe["norms"],
        loss=by_probe["loss"],
        top=by_probe["top"],
        words=names,
        heads=heads,
        gradient_norm=tensors.get("gradient_norm", none),
        update_ratio=tensors.get("update_ratio", none),
        rms=rms,
        dead=tensors.get("dead", none),
        model=model,
    )
