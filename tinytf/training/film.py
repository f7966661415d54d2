"""The film of a run, read again: what the model did with fixed texts at each frame, and what it learned when.

Free of torch. Shapes: L layers, H heads, T tokens, Q and K where query and key differ, G groups of parameters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import read_json, resolved
from tinytf.report import Report
from tinytf.sheet import Array
from tinytf.training.history import NAMES, History, Series
from tinytf.training.lines import json_or_none
from tinytf.training.reader import read_history
from tinytf.training.run_files import FRAMES, PROBES, frame_step

Numbers = NDArray[np.float32]
KINDS = ("punctuation", "spelling", "words", "names", "copying")
"""What a token is to be predicted by: see ``Probe.kinds``."""
BECOMES = 0.5


@dataclass(frozen=True)
class Probe:
    """A fixed text: its ``tokens``, and what is ``expected`` at each of them; None where nothing is."""

    name: str
    text: str
    tokens: tuple[str, ...]
    expected: tuple[str | None, ...]

    @cached_property
    def kinds(self) -> tuple[str | None, ...]:
        """One of KINDS for each expected token, by what would help to predict it.

        ``copying``: it followed this token before in the text; otherwise ``punctuation`` has no letter or digit,
        ``spelling`` goes on inside a word, and where a word begins it is one of the ``names`` if its letter is
        a capital, else one of the ``words``.
        """
        seen: set[tuple[str, str]] = set()
        found: list[str | None] = []
        for token, target in zip(self.tokens, self.expected, strict=True):
            if target is None:
                found.append(None)
                continue
            found.append("copying" if (token, target) in seen else _kind(token, target))
            seen.add((token, target))
        return tuple(found)


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
    """A kind of token: how many the probes have, the first and the last loss, and ``half``: the step of the first
    frame by which the loss had made half of its way down to the lowest; None where it never fell."""

    kind: str
    tokens: int
    first: float
    last: float
    half: int | None


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

    def loss_of(self, kind: str, frame: Frame) -> float:
        """The mean loss of the tokens of a kind in all probes, in nats; NaN where there are none."""
        found = [
            loss
            for probe in self.probes
            for loss, one in zip(frame.loss[probe.name].tolist(), probe.kinds, strict=True)
            if one == kind
        ]
        return sum(found) / len(found) if found else math.nan

    @cached_property
    def learned(self) -> tuple[Learned, ...]:
        """What was learned when: the kinds of tokens that the probes have."""
        found = []
        for kind in KINDS:
            count = sum(one == kind for probe in self.probes for one in probe.kinds)
            losses = [self.loss_of(kind, frame) for frame in self.frames]
            if not count or not losses:
                continue
            half = (losses[0] + min(losses)) / 2
            by = next((f.step for f, loss in zip(self.frames, losses, strict=True) if loss <= half), None)
            fell = min(losses) < losses[0]
            found.append(Learned(kind, count, losses[0], losses[-1], by if fell else None))
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
        """Maps, norms, losses and head scores of all frames, such as ``step-16.held-out.maps``."""
        import torch

        axes = {"maps": ["layer", "head", "query", "key"], "norms": ["layer", "token"], "loss": ["token"],
                "top": ["token", "rank"]}  # fmt: skip
        found = []
        for frame in self.frames:
            named = [(f"{name}.{what}", axes[what], one) for what in axes for name, one in getattr(frame, what).items()]
            named += [(f"heads.{kind}", ["layer", "head"], scores) for kind, scores in frame.heads.items()]
            found += [Array.of(f"step-{frame.step}.{name}", of, torch.from_numpy(one)) for name, of, one in named]
        return found


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
            Probe(str(one["name"]), str(one["text"]), tuple(map(str, one["tokens"])), tuple(one["expected"]))
            for one in read_json(path)["probes"]
        )
        expected = [target for probe in found for target in probe.expected if target is not None]
        names = {probe.name for probe in found}
        sound = 0 < len(names) == len(found) and all(isinstance(target, str) for target in expected)
        if not sound or any(len(probe.tokens) != len(probe.expected) for probe in found):
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
