"""The trace of a model that runs through transformers: its modules, what was proved, and its prediction."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.look.prediction import Likely, Prediction
from tinytf.nearest import did_you_mean
from tinytf.report import About, Data, Report
from tinytf.sentences import percent
from tinytf.tables import Array, ColumnStyle
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import in_turn_of_all
from tinytf.through.model import ThroughModel
from tinytf.through.recording import Call, Recording, unbatched
from tinytf.through.roles import innermost


@dataclass(frozen=True)
class ModuleGroup(Data):
    """The modules whose paths differ only in numbers: their role and class, and the shape of the first one's output.

    ``smallest`` and ``largest`` are the root mean squares of the least and the largest output. ``proved`` calls of
    those that are ``made`` and not passed on were computed again, the first by ``formula``.
    """

    COLUMNS: ClassVar = {
        "modules": ColumnStyle("module", shrink=40),
        "calls": ColumnStyle("×", "{:,}".format),
        "role": ColumnStyle("role", role="strong"),
        "shape": ColumnStyle("output", lambda shape: " × ".join(f"{size:,}" for size in shape), drop=3),
        "sizes": ColumnStyle("size", align="right", drop=2),
        "how": ColumnStyle("computed again", shrink=16),
    }

    ALSO: ClassVar = ("role",)

    modules: str
    calls: int
    kind: str
    role: str
    shape: tuple[int, ...]
    smallest: float
    largest: float
    made: int
    proved: int
    formula: str

    @property
    def sizes(self) -> str:
        """The sizes of the outputs, from the smallest to the largest."""
        both = [f"{size:.3g}" for size in (self.smallest, self.largest)]
        return both[0] if both[0] == both[1] else " … ".join(both)

    @property
    def how(self) -> str:
        """How many of its outputs were computed again, and how."""
        if not self.made:
            return f"passes on {self.formula}"
        if not self.proved:
            return "–"
        return f"{self.formula}" + f" ({self.proved:,} of {self.made:,})" * (self.proved < self.made)


@dataclass(frozen=True)
class Failure(Data):
    """A module whose output is not what its formula gives."""

    module: str
    formula: str
    difference: float
    allowed: float


@dataclass(frozen=True)
class ModuleProof(Data):
    """How many of the outputs that modules ``made`` were computed again, and how well.

    The largest ``difference`` is at ``module``, where the largest number is ``scale``.

    ``passed`` outputs are those of a module inside, or the input, so there is nothing to compute. ``unseen`` inputs are
    no output of another module, nor a sum, a product or a mixture of some: code outside modules made them, and the
    attention ``maps``.
    """

    ALSO: ClassVar = ("holds",)

    proved: int
    made: int
    passed: int
    unseen: int
    maps: int
    difference: float
    scale: float
    module: str
    failures: tuple[Failure, ...]

    @property
    def holds(self) -> bool:
        return not self.failures


@dataclass(frozen=True, eq=False)
class ThroughTrace(Report):
    """A pass through transformers; ``at`` are the outputs asked for, as (name, tensor), instead of the whole."""

    KIND = "through"
    EVENTS: ClassVar = {"tokens": "token", "groups": "module", "prediction": "prediction", "check": "check"}

    recording: Recording
    groups: tuple[ModuleGroup, ...]
    stacks: tuple[tuple[str, int], ...]
    prediction: Prediction | None
    check: ModuleProof
    at: tuple[tuple[str, Tensor], ...] = ()

    def in_a_sentence(self) -> str:
        """The first prediction, and how much of the pass was computed again."""
        proved = f"{self.check.proved:,} of {self.check.made:,} module outputs were computed again"
        if unseen := self.check.unseen + self.check.maps:
            proved += f"; {unseen:,} inputs or attention maps come from unchecked code between modules"
        if self.prediction is None:
            return f"The model ran; {proved}."
        best, seen = self.prediction.top[0], self.prediction
        where = {"next": f" after {seen.shown}", "begins": " as the first token of its answer", "class": ""}
        share = "" if best.probability is None else f" ({percent(best.probability)})"
        return f"The model expects {best.shown}{where.get(seen.what, f' for {seen.title}')}{share}; {proved}."

    def fields(self) -> dict[str, Any]:
        values = {name: {"shape": list(tensor.shape), "values": tensor.tolist()} for name, tensor in self.at}
        return {
            "stacks": [{"path": path, "layers": count} for path, count in self.stacks],
            **self.members("groups", "prediction"),
            **({"values": values} if self.at else {}),
            **self.members("check"),
        }

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The outputs and attention weights of the modules by path, without the axis of the batch."""
        outputs = {call.path: unbatched(call.output) for call in self.recording.calls if call.path}
        return outputs | {f"{c.path}.weights": c.weights for c in self.recording.calls if c.weights is not None}

    def role(self, call: Call) -> str:
        """The role of a call's module; empty for one without."""
        return next((group.role for group in self.groups if group.modules == _pattern(call.name)), "")

    def showing(self, names: Sequence[str]) -> "ThroughTrace":
        """The trace with the outputs that names or patterns choose. Raises UsageError for one that chooses none."""
        outputs = self.outputs
        return replace(
            self, at=tuple((path, outputs[path]) for name in names for path in matching(list(outputs), name))
        )

    def arrays(self) -> list[Array]:
        return [_array(name, tensor, self.encoding) for name, tensor in self.at]

    def stored(self) -> list[Array]:
        """The outputs asked for; without any, the ids, and every output that is not passed on."""
        if self.at:
            return self.arrays()
        ids = Array.of("ids", ["token"], torch.tensor(self.encoding.ids))
        return [ids, *(_array(call.path, unbatched(call.output), self.encoding) for call in self.recording.made())]


def _array(name: str, tensor: Tensor, encoding: Encoding) -> Array:
    """A tensor with the names of its axes: the axis before the last is that of the tokens where it has their number."""
    axes = [f"axis {number}" for number in range(tensor.dim())]
    tokens = len(encoding.tokens)
    if name.endswith(".weights") and tensor.dim() == 3:
        axes = ["head", "query", "key"]
    elif tensor.dim() > 1 and tensor.shape[-2] == tokens:
        axes[-2:] = ["token", "dimension"]
    return Array(name, axes, lambda: tensor)


@in_turn_of_all
def trace_through(
    model: ThroughModel, text: Written, *, at: Sequence[str] = (), top: int = 10, truncate: bool = False
) -> ThroughTrace:
    """Run a text, record every module, compute again what a formula fits, and predict.

    ``at`` are paths of modules, or patterns such as ``*.self_attn``; PATH.weights are the attention weights that one
    returned. Raises UsageError for a path that no call has.
    """
    encoding = model.encode(text, truncate=truncate)
    recording, roles = model.record(encoding)
    groups = tuple(
        _group(name, calls, roles.by_path.get(calls[0].name, "")) for name, calls in _grouped(recording).items()
    )
    prediction = predicted(model, encoding, recording.logits, top)
    stacks = tuple((path, sum(p.rpartition(".")[0] == path for p, r in roles.by_path.items() if r == "layer"))
                   for path in roles.stacks)  # fmt: skip
    trace = ThroughTrace(recording, groups, stacks, prediction, _check(recording), about=About(model, encoding))
    return trace.showing(at)


def _grouped(recording: Recording) -> dict[str, list[Call]]:
    """The calls by their path with * for numbers, in the order of the modules in the pass, outer ones last."""
    groups: dict[str, list[Call]] = {}
    for call in recording.calls:
        groups.setdefault(_pattern(call.name), []).append(call)
    return groups


def _pattern(path: str) -> str:
    """A path with * for numbers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path) or "(the model)"


def _group(name: str, calls: list[Call], role: str) -> ModuleGroup:
    sizes = [float(call.output.double().square().mean().sqrt()) for call in calls]
    made = [call for call in calls if not call.passes]
    proofs = [call.proof for call in made if call.proof is not None and call.proof.holds]
    inside = re.sub(r"\d+", "*", calls[0].passes.removeprefix(f"{calls[0].name}."))
    formula = proofs[0].formula if proofs else inside
    kind, shape = type(calls[0].module).__name__, tuple(unbatched(calls[0].output).shape)
    return ModuleGroup(name, len(calls), kind, role, shape, min(sizes), max(sizes), len(made), len(proofs), formula)


def _check(recording: Recording) -> ModuleProof:
    proved, made = recording.proved(), recording.made()
    failures = tuple(
        Failure(call.path or "(the model)", call.proof.formula, call.proof.off, call.proof.allowed)
        for call in recording.failed()
        if call.proof is not None
    )
    worst = max(proved, key=lambda call: call.proof.off if call.proof else 0.0, default=None)
    proof = None if worst is None else worst.proof
    off, scale = (0.0, 0.0) if proof is None else (proof.off, proof.scale)
    name = "" if worst is None else worst.path
    passed, unseen = len(recording.calls) - len(made), len(recording.unseen())
    maps = len(innermost(recording.calls))
    return ModuleProof(len(proved), len(made), passed, unseen, maps, off, scale, name, failures)


def matching(paths: Sequence[str], name: str) -> list[str]:
    """The paths that a name or pattern chooses. Raises UsageError if there is none, with the nearest."""
    found = [path for path in paths if fnmatchcase(path, name)]
    if not found:
        raise UsageError(f"no module that ran is called {name!r}", did_you_mean(name, paths))
    return found


def predicted(
    model: ThroughModel, encoding: Encoding, logits: Tensor | None, top: int, position: int = -1
) -> Prediction | None:
    """What the model predicts: the next token, the first mask, the first token of its answer, or a class.

    The next token is that after ``position``, by default the last.
    """
    config, tokens = model.config, encoding.tokens
    if logits is None:
        return None
    if config.labels:
        if logits.dim() != 1:
            return None
        row, what, values = len(tokens) - 1, "class", logits
    elif config.starts is not None:
        row, what, values = len(tokens) - 1, "begins", logits[-1]
    elif not config.predicts_tokens or logits.dim() != 2 or len(logits) != len(tokens):
        return None
    else:
        masks = [i for i, token in enumerate(tokens) if token.id == model.tokenizer.mask_id]
        if not config.causal and not masks:
            return None
        row, what = (range(len(tokens))[position], "next") if config.causal else (masks[0], "fills")
        values = logits[row]
    values = values.float()
    shares = values.softmax(-1)
    best = torch.topk(shares, min(top, len(shares))).indices.tolist()
    likely = tuple(Likely(model.shown(i), i, float(shares[i]), float(values[i])) for i in best)
    return Prediction(row, tokens[row].shown, what, likely[0].id, likely)
