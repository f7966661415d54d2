"""Read the film of a run: what the model did with fixed texts at each frame, and what it learned when.

Free of torch. Shapes: L layers, H heads, T tokens, Q and K where query and key differ, G groups of parameters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import read_json, resolve_links
from tinytf.report import Report, derived, plain
from tinytf.runs.history import NAMES, History, Sample, Series
from tinytf.runs.lines import json_or_none
from tinytf.runs.reader import read_history
from tinytf.runs.run_files import FRAMES, PROBES, frame_step
from tinytf.tables import Array

Numbers = NDArray[np.float32]
KINDS = ("punctuation", "spelling", "words", "names", "copying")
"""Kinds of tokens, by what helps to predict them: see ``Probe.kinds``."""
UNSEEN, SEEN, TWICE = "unseen", "seen", "twice"
"""Prefixes of the names of probes: held-out text, training text, and some tokens twice in a row."""
HEAD_THRESHOLD = 0.5
LEARNED = 1.0
"""A kind of token counts as learned from this gain on, in nats per token: see ``Film.gain_of``."""
FEWEST_TOKENS = 4
"""Of fewer tokens, no kind is called learned: their mean says too little about the kind."""


@dataclass(frozen=True)
class Probe:
    """A fixed text: its ``tokens``, and the token ``expected`` after each of them; None where there is no target.

    ``baseline`` is the loss in nats of each expected token without any context: by its frequency in the training text,
    or by a uniform guess where that is better. It is None in films of older versions, which did not store it.
    """

    name: str
    text: str
    tokens: tuple[str, ...]
    expected: tuple[str | None, ...]
    baseline: tuple[float | None, ...]

    @derived
    def kinds(self) -> tuple[str | None, ...]:
        """One of KINDS for each expected token, by what would help to predict it.

        ``copying``: in repeated text, every token of the second copy except its first. Otherwise ``punctuation`` has no
        letter or digit, ``spelling`` continues a word, and a token that begins a word counts under ``names`` if its
        first letter is a capital, else under ``words``.
        """
        pairs = enumerate(zip(self.tokens, self.expected, strict=True))
        return tuple(
            None if target is None else "copying" if self.copies and position > self.copies else _kind(token, target)
            for position, (token, target) in pairs
        )

    @property
    def predicted(self) -> int:
        """How many tokens are expected."""
        return sum(target is not None for target in self.expected)

    @property
    def copies(self) -> int:
        """In repeated text, how many tokens of the first copy are predicted; else 0."""
        return len(self.tokens) // 2 if self.name == TWICE else 0


def _kind(token: str, target: str) -> str:
    letters = [char for char in target if char.isalnum()]
    if not letters:
        return "punctuation"
    continues_word = token[-1:].isalnum() and target[:1].isalnum()
    if continues_word or target.startswith("##"):
        return "spelling"
    return "names" if letters[0].isupper() else "words"


@dataclass(frozen=True)
class Frame:
    """The model after ``step`` steps; values by the name of each probe, with the shapes of ``frames.Frame``.

    ``heads`` are scores by their kind, (L, H). ``gradient_norm`` and ``update_ratio`` (G,) describe the latest step;
    they are empty at the beginning. ``model`` is the path of the model, None if its weights were not saved.
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

    ``by`` is the step from which the gain stays at least LEARNED until the last frame; None if there is none, and for
    fewer than FEWEST_TOKENS tokens.
    """

    kind: str
    tokens: int
    first: float
    last: float
    gain: float
    by: int | None


@dataclass(frozen=True)
class Appeared:
    """A head that took on a kind: its score reached 0.5 between steps ``after`` and ``by``, and ends at ``last``."""

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
        """The last frame up to a step; the first frame if there is none."""
        return next((frame for frame in reversed(self.frames) if frame.step <= step), self.frames[0])

    @derived
    def positions(self) -> dict[str, list[tuple[Probe, int]]]:
        """The tokens of each kind, as probe and position: copies in the repeated text, others in unseen text."""
        positions: dict[str, list[tuple[Probe, int]]] = {}
        for probe in self.probes:
            for position, kind in enumerate(probe.kinds):
                is_unseen = probe.name.startswith(UNSEEN) and probe.baseline[position] is not None
                if kind is not None and (kind == "copying" or is_unseen):
                    positions.setdefault(kind, []).append((probe, position))
        return {kind: positions[kind] for kind in KINDS if kind in positions}

    @derived
    def samples(self) -> dict[int, Sample]:
        """What the model wrote after each step at which it was asked; older versions asked at few frames."""
        return {sample.step: sample for sample in self.history.samples}

    def loss_of(self, kind: str, frame: Frame) -> float:
        """The mean loss of the tokens of a kind, in nats."""
        return float(
            np.mean([frame.loss[probe.name][position] for probe, position in self.positions[kind]], dtype=np.float64)
        )

    def gain_of(self, kind: str, frame: Frame) -> float:
        """How much better these tokens are predicted than without any context, in nats per token.

        Copies are compared with the same tokens in the first copy, all other tokens with their baseline.
        """
        positions = self.positions[kind]
        baselines = [
            frame.loss[probe.name][position - probe.copies - 1] if kind == "copying" else probe.baseline[position]
            for probe, position in positions
        ]
        return float(np.array(baselines, dtype=np.float64).mean()) - self.loss_of(kind, frame)

    @derived
    def learned(self) -> tuple[Learned, ...]:
        """What was learned, and when, for each kind of token in the probes."""
        kinds = []
        first, last = self.frames[0], self.frames[-1]
        for kind, positions in self.positions.items():
            gains = [self.gain_of(kind, frame) for frame in self.frames]
            unlearned = [index for index, gain in enumerate(gains) if not gain >= LEARNED]
            start = unlearned[-1] + 1 if unlearned else 0
            is_learned = start < len(self.frames) and len(positions) >= FEWEST_TOKENS
            by = self.frames[start].step if is_learned else None
            losses = self.loss_of(kind, first), self.loss_of(kind, last)
            kinds.append(Learned(kind, len(positions), *losses, gains[-1], by))
        return tuple(kinds)

    @derived
    def appeared(self) -> tuple[Appeared, ...]:
        """The heads with a kind at the end, in the order in which they took it on."""
        heads = []
        for kind in NAMES:
            scores = [frame.heads.get(kind) for frame in self.frames]
            if not scores or any(kind_scores is None for kind_scores in scores):
                continue
            stack = np.stack([kind_scores for kind_scores in scores if kind_scores is not None])  # (frames, L, H)
            for layer, head in np.argwhere(stack[-1] >= HEAD_THRESHOLD).tolist():
                index = int(np.argmax(stack[:, layer, head] >= HEAD_THRESHOLD))
                after = self.frames[index - 1].step if index else None
                last = float(stack[-1, layer, head])
                heads.append(Appeared(f"L{layer}H{head}", kind, after, self.frames[index].step, last))
        return tuple(sorted(heads, key=lambda head: head.by))

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
            "probes": [{**plain(probe), "kinds": list(probe.kinds)} for probe in self.probes],
            "learned_at": LEARNED,
            "learned": [plain(learned) for learned in self.learned],
            "appeared": [{**plain(appeared), "words": appeared.words} for appeared in self.appeared],
            "frames": [self._frame(frame) for frame in self.frames],
        }

    def _frame(self, frame: Frame) -> dict[str, Any]:
        sample = self.samples.get(frame.step)
        norms = {name: getattr(frame, name).tolist() for name in ("gradient_norm", "update_ratio", "rms", "dead")}
        return {
            "step": frame.step,
            "model": None if frame.model is None else str(frame.model),
            "sample": None if sample is None else vars(sample),
            "mean_loss": {probe.name: frame.mean(probe.name) for probe in self.probes},
            "kinds": {learned.kind: self.loss_of(learned.kind, frame) for learned in self.learned},
            "heads": {kind: scores.tolist() for kind, scores in frame.heads.items()},
            **norms,
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
        arrays = []
        for frame in self.frames:
            named = [
                (f"{name}.{field}", axes[field], tensors)
                for field in axes
                for name, tensors in getattr(frame, field).items()
            ]
            named += [(f"heads.{kind}", ["layer", "head"], scores) for kind, scores in frame.heads.items()]
            arrays += [
                Array.of(f"step-{frame.step}.{name}", array_axes, torch.from_numpy(values))
                for name, array_axes, values in named
            ]
        return arrays


@dataclass(frozen=True)
class Films(Report):
    """The films of two runs, side by side."""

    KIND = "films"
    EVENTS: ClassVar = {"frames": "frame"}

    films: tuple[Film, Film]

    def fields(self) -> dict[str, Any]:
        """The fields of both films under ``runs``, and their ``frames`` in one list, each with its run."""
        films = [film.fields() for film in self.films]
        frames = [{"run": film["run"], **frame} for film in films for frame in film.pop("frames")]
        return {"runs": films, "frames": frames}

    def stored(self) -> list[Array]:
        """The arrays of both films, their names prefixed with the number of the run."""
        arrays = [(number, array) for number, film in enumerate(self.films) for array in film.stored()]
        return [replace(array, name=f"{number}.{array.name}") for number, array in arrays]


def read_film(run: Path) -> Film:
    """Read the film of a run. Raises UsageError for a run without a film, CheckpointError for a damaged one."""
    history, folder = read_history(run), run / FRAMES
    if not (folder / PROBES).is_file():
        raise UsageError(f"{run} has no film", "tinytf train takes one unless --probe-every is 0; older runs have none")
    probes = _probes(folder / PROBES)
    paths = sorted((frame_step(path), path) for path in folder.glob("step-*.safetensors"))
    models = {
        checkpoint.step: checkpoint.path for checkpoint in reversed(history.checkpoints) if checkpoint.step is not None
    }
    sizes: _Sizes = {("T", probe.name): len(probe.tokens) for probe in probes}
    frames = [_frame(step, path, probes, models, sizes) for step, path in paths if step >= 0]
    if not frames:
        raise UsageError(f"{run} has no frame yet", "tinytf train takes the first before the first step")
    return Film(resolve_links(run).name, run, probes, tuple(frames), history)


def _probes(path: Path) -> tuple[Probe, ...]:
    try:
        probes = tuple(
            Probe(
                str(entry["name"]),
                str(entry["text"]),
                tuple(map(str, entry["tokens"])),
                tuple(entry["expected"]),
                tuple(entry.get("baseline", [None] * len(entry["tokens"]))),
            )
            for entry in read_json(path)["probes"]
        )
        expected = [target for probe in probes for target in probe.expected if target is not None]
        names = {probe.name for probe in probes}
        sound = 0 < len(names) == len(probes) and all(isinstance(target, str) for target in expected)
        sound = sound and all(
            isinstance(loss, float) for probe in probes for loss in probe.baseline if loss is not None
        )
        if not sound or any(len({*map(len, (probe.tokens, probe.expected, probe.baseline))}) > 1 for probe in probes):
            raise TypeError
        return probes
    except (KeyError, TypeError):
        raise CheckpointError(f"{path} is damaged: it does not describe the probes") from None


_Sizes = dict[str | tuple[str, str], int]
"""The size of every axis: of T, Q and K for each probe. Whatever a frame has first, all others have."""
_AXES = {"maps": "LHQK", "norms": "NT", "loss": "T", "top": "TW"}
_OWN_AXES = {"dead": "L", "gradient_norm": "G", "update_ratio": "G"}
"""The axes of what a frame has of each probe, and may have by itself; N = L + 1, and W is the number of words."""


def _require_shape(name: str, tensor: Numbers, axes: str, sizes: _Sizes, probe: str = "") -> None:
    """Raise ValueError for a tensor with other axes than ``axes``, or with other sizes than those before it."""
    keys = [(axis, probe) if axis in "TQK" else axis for axis in axes]
    fits = tensor.ndim == len(axes)
    if not fits or any(sizes.setdefault(key, size) != size for key, size in zip(keys, tensor.shape, strict=True)):
        raise ValueError(f"{name} has the shape {tensor.shape}")


def _require_shapes(tensors: Mapping[str, Numbers], words: Any, probes: tuple[Probe, ...], sizes: _Sizes) -> None:
    """Raise ValueError or KeyError unless a frame has all that it must have, with the shapes of ``frames.Frame``."""
    _require_shape("rms", tensors["rms"], "L", sizes)
    sizes["N"] = sizes["L"] + 1
    for probe in probes:
        for field, axes in _AXES.items():
            name = f"{probe.name}.{field}"
            _require_shape(name, tensors[name], axes, sizes, probe.name)
        if max(sizes["Q", probe.name], sizes["K", probe.name]) > len(probe.tokens):
            raise ValueError(f"{probe.name}.maps is larger than its text")
        rows = words[probe.name]
        lengths, kinds = [len(row) for row in rows], {type(word) for row in rows for word in row}
        if lengths != [sizes["W"]] * len(probe.tokens) or kinds != {str}:
            raise ValueError(f"it has other words than {sizes['W']} for each token of {probe.name}")
    for name, tensor in tensors.items():
        if own := "LH" if name.startswith("heads.") else _OWN_AXES.get(name):
            _require_shape(name, tensor, own, sizes)


def _frame(step: int, path: Path, probes: tuple[Probe, ...], models: Mapping[int, Path], sizes: _Sizes) -> Frame:
    try:
        with safe_open(path, "numpy") as file:
            metadata = json_or_none((file.metadata() or {}).get("tinytf", ""))
            tensors: dict[str, Numbers] = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118
        words = metadata["words"]  # type: ignore[index]
        by_probe = {field: {probe.name: tensors[f"{probe.name}.{field}"] for probe in probes} for field in _AXES}
        names = {probe.name: words[probe.name] for probe in probes}
        _require_shapes(tensors, words, probes, sizes)
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", "remove it; the other frames stay readable") from None
    heads = {
        name.removeprefix("heads."): scores.astype(np.float64)
        for name, scores in sorted(tensors.items())
        if name.startswith("heads.")
    }
    empty = np.zeros(0, dtype=np.float32)
    saved = path.with_suffix("")
    model = models.get(step, saved if (saved / "config.json").is_file() else None)
    measured: dict[str, Any] = by_probe | {name: tensors.get(name, empty) for name in ("rms", *_OWN_AXES)}
    return Frame(step, **measured, words=names, heads=heads, model=model)
