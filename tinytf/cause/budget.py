"""Choose a GGUF type for each tensor within a size, by the damage that each type does to the tensor alone.

Shapes: N texts, R runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.damage import Damage, MeasuredText
from tinytf.cause.model_pair import Texts, addresses_by_path, require_finite_on
from tinytf.cause.swaps import Swapping, Values
from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.errors import UsageError
from tinytf.estimate import Estimate, estimates
from tinytf.memory import require_free
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import About, Data, Progress, Report, ignore_progress, plain
from tinytf.resume_log import ResumeLog, checksum
from tinytf.sentences import percent
from tinytf.steps.operations import Positions
from tinytf.text.chat import Written
from tinytf.text_model import TextModel

TYPES = ("Q4_0", "Q5_0", "Q8_0", "F16")
"""Types that the gguf library can write, smallest first."""


@dataclass(frozen=True)
class PlannedTensor(Data):
    """One tensor of a file: ``kind``, its planned type, takes ``n_bytes``; ``costs`` is the KL of each type alone.

    ``name`` is its name in a GGUF file, if the architecture exists there; else the address of the parameter.
    """

    name: str
    paths: tuple[str, ...]
    numbers: int
    kind: str
    n_bytes: int
    costs: Mapping[str, float]


@dataclass(frozen=True)
class Uniform(Data):
    """All tensors in one GGUF type, ``kind``: the bytes, and the measured KL."""

    kind: str
    n_bytes: int
    kl: Estimate


@dataclass(frozen=True)
class Budget(Report):
    """A type for each matrix: ``n_bytes`` in all, with the tensors that stay in float32, at most ``limit``.

    ``predicted`` is the sum of the KLs that the types cost alone, ``measured`` the KL of all of them together; both are
    means per position over ``texts``.
    """

    KIND = "budget"
    EVENTS: ClassVar = {"tensors": "tensor", "uniform": "uniform"}

    limit: int
    n_bytes: int
    kept: tuple[PlannedTensor, ...]
    predicted: float
    measured: Estimate
    uniform: tuple[Uniform, ...]
    texts: int
    positions: int
    is_named: bool

    @property
    def options(self) -> tuple[str, ...]:
        """The plan as values of llama-quantize's --tensor-type, such as ``blk\\.(2|11)\\.ffn_down\\.=q8_0``.

        Empty if the architecture has no names in GGUF files.
        """
        layers: dict[tuple[str, str], list[str]] = {}
        for tensor in self.kept if self.is_named else ():
            name = tensor.name.removesuffix(".weight")
            block, dot, rest = name.removeprefix("blk.").partition(".")
            numbers = layers.setdefault((rest if dot else name, tensor.kind.lower()), [])
            numbers += [block] if dot else []
        depth = self.about.model.config.n_layers if self.about else 0
        options = []
        for (name, kind), numbers in layers.items():
            blocks = "[0-9]+" if len(numbers) == depth else f"({'|'.join(numbers)})"
            options.append((rf"blk\.{blocks}\.{name}\." if numbers else rf"^{name}\.") + f"={kind}")
        return tuple(options)

    def in_a_sentence(self) -> str:
        """How much less the predictions change than with all tensors in the largest type that fits as well."""
        fitting = [uniform for uniform in self.uniform if uniform.n_bytes <= self.limit]
        used, limit = f"{self.n_bytes / 1e6:.3g}", f"{self.limit / 1e6:.3g}"
        found = f"The chosen types take {'all' if used == limit else used} of {limit} MB"
        largest = max(fitting, key=lambda uniform: uniform.n_bytes, default=None)
        if largest is None or largest.kl.value <= 0:
            return f"{found}."
        share = percent(self.measured.value / largest.kl.value)
        return f"{found}; they change the predictions {share} as much as {largest.kind} in every tensor would."

    def fields(self) -> dict[str, Any]:
        return {
            **self.members("limit", "n_bytes", "predicted", "measured", "texts", "positions", "options", "uniform"),
            "tensors": plain(self.kept),
        }


@torch.no_grad()
def budget(
    model: TextModel,
    texts: Written | Sequence[Written] | Texts,
    limit: int,
    *,
    types: Sequence[str] = TYPES,
    seed: int = 0,
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> Budget:
    """Choose the types of a model's matrices that cost the least KL on the texts, within ``limit`` bytes.

    Each matrix is quantised to each type alone and measured. From the smallest types, take the upgrade that saves most
    KL for its bytes, while there is room. The file ``resume`` keeps what was measured, for another ``limit`` too.
    Raises UsageError if the smallest types are too large, and TinytfError for a model that is not finite on a text.
    """
    texts = texts if isinstance(texts, Texts) else Texts(texts)
    asked = texts.asked(model)
    model.transformer.require_choice("there are no predictions to compare")
    require_finite_on(model, asked)
    tensors = _Tensors(model.transformer, types)
    tensors.require_room(limit)
    log = ResumeLog(resume, "budget", model.transformer, list(types), asked)
    with evaluating(model.transformer):
        swapping = Swapping(model.transformer)

        def measured_kls(rows: Sequence[Values], of: str, done: Callable[[int], None] = lambda _: None) -> Tensor:
            """The KL of each row on each text, (N, R)."""
            for number, text in enumerate(asked):
                if f"text {number} {of}" not in log.found:
                    log.add({f"text {number} {of}": _kl(swapping, text, rows)})
                done(number + 1)
            kls = [log.found[f"text {number} {of}"] for number in range(len(asked))]
            return torch.tensor(kls, dtype=torch.float64)

        rows = [tensors.values[name, kind] for name in tensors.paths for kind in types]
        kls = measured_kls(rows, "alone", lambda done: on_progress(done, len(asked) + 1))
        positions = torch.tensor([len(text.positions) for text in asked], dtype=torch.float64)
        kls_alone = (kls.sum(0) / positions.sum()).view(len(tensors.paths), len(types)).tolist()
        costs = {name: dict(zip(types, row, strict=True)) for name, row in zip(tensors.paths, kls_alone, strict=True)}
        plan = tensors.choose(costs, limit)
        plans = [plan, *(dict.fromkeys(tensors.paths, kind) for kind in types)]
        rows = [tensors.values_of(types_of) for types_of in plans]
        measured, *uniform = estimates(measured_kls(rows, f"plans {checksum(plans)}"), positions, seed)
    sizes = [tensors.total(types_of) for types_of in plans]
    return Budget(
        limit,
        sizes[0],
        tuple(tensors.planned(name, kind, costs[name]) for name, kind in plan.items()),
        sum(costs[name][kind] for name, kind in plan.items()),
        measured,
        tuple(Uniform(*row) for row in zip(types, sizes[1:], uniform, strict=True)),
        len(asked),
        int(positions.sum()),
        tensors.is_named,
        about=About(model),
    )


def _kl(swapping: Swapping, asked: MeasuredText, rows: Sequence[Values]) -> Tensor:
    streams = swapping.streams(asked.ids)
    return Damage(swapping, streams, asked).of(swapping, streams, rows)[:, 0]


class _Tensors:
    """The matrices of a model as a GGUF file stores them, each quantised to every type."""

    def __init__(self, model: Transformer, types: Sequence[str]) -> None:
        self.model, self.types = model, types
        self.parameters = dict(model.named_parameters())
        used = Swapping(model).used
        names = gguf_names(model)
        self.is_named = names is not None
        self.paths: dict[str, list[str]] = {}
        for path, address in _matrices(model):
            if used[path]:
                self.paths.setdefault((names or {}).get(path, address), []).append(path)
        copies = len(types) * sum(self.numbers(name) for name in self.paths) * 4
        require_free("quantised copies of all tensors take", copies, torch.device("cpu"), "take a smaller model")
        self.values: dict[tuple[str, str], Values] = {
            (name, kind): {path: quantised(self.parameters[path], kind) for path in paths}
            for name, paths in self.paths.items()
            for kind in types
        }

    def numbers(self, name: str) -> int:
        return sum(self.parameters[path].numel() for path in self.paths[name])

    def n_bytes(self, name: str, kind: str) -> int:
        import gguf

        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        return int(self.numbers(name) // block * size)

    @cached_property
    def fixed(self) -> int:
        """The bytes of the tensors that stay in float32."""
        quantised_paths = {path for paths in self.paths.values() for path in paths}
        return sum(4 * parameter.numel() for path, parameter in self.parameters.items() if path not in quantised_paths)

    def total(self, plan: Mapping[str, str]) -> int:
        return self.fixed + sum(self.n_bytes(name, kind) for name, kind in plan.items())

    def require_room(self, limit: int) -> None:
        smallest = self.fixed + sum(min(self.n_bytes(name, kind) for kind in self.types) for name in self.paths)
        if smallest > limit:
            raise UsageError(
                f"the tensors take {smallest:,} bytes in their smallest types, and the budget is {limit:,}",
                f"the smallest budget is {-(-smallest // 10**5) / 10:g}MB",
            )

    def choose(self, costs: Mapping[str, Mapping[str, float]], limit: int) -> dict[str, str]:
        """Choose a type for each tensor, greedily."""
        plan = {name: min(self.types, key=partial(self.n_bytes, name)) for name in self.paths}
        room = limit - self.total(plan)
        while True:
            upgrades = [
                ((costs[name][current] - costs[name][kind]) / more, more, name, kind)
                for name, current in plan.items()
                for kind in self.types
                if 0 < (more := self.n_bytes(name, kind) - self.n_bytes(name, current)) <= room
                and costs[name][kind] < costs[name][current]
            ]
            if not upgrades:
                return plan
            _, more, name, kind = max(upgrades)
            plan[name], room = kind, room - more

    def values_of(self, plan: Mapping[str, str]) -> Values:
        return {path: value for name, kind in plan.items() for path, value in self.values[name, kind].items()}

    def planned(self, name: str, kind: str, costs: Mapping[str, float]) -> PlannedTensor:
        return PlannedTensor(name, tuple(self.paths[name]), self.numbers(name), kind, self.n_bytes(name, kind), costs)


def _matrices(model: Transformer) -> Iterator[tuple[str, str]]:
    """The parameters that llama.cpp quantises, with addresses: whole blocks, but no vectors, positions or routers."""
    for path, (address, _) in addresses_by_path(model).items():
        shape, step = model.get_parameter(path).shape, address.step
        is_excluded = isinstance(step.operation, Positions) or "expert" in step.axes[-1:] or path.endswith("bias")
        if len(shape) >= 2 and not shape[-1] % 32 and not is_excluded:
            yield path, str(address)


def quantised(weight: Tensor, kind: str) -> Tensor:
    """A tensor after quantisation to a GGUF type, in its own dtype; its last axis is cut into blocks."""
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    rows = weight.detach().float().cpu().reshape(-1, weight.shape[-1]).numpy()
    dequantised = gguf.quants.dequantize(gguf.quants.quantize(rows, number), number)
    return torch.from_numpy(dequantised).view(weight.shape).to(weight)


def gguf_names(model: Transformer) -> dict[str, str] | None:
    """The GGUF name of each matrix, in the first architecture that fits the model; None if none fits."""
    for kind in ARCHITECTURES.values():
        fits = all(model.config.setting(name) == value for name, value in kind.fixed.items())
        if fits and all(kind.has(path) for path, _ in model.named_parameters()):
            return {path: kind.place(path, model.config)[0] for path, _ in _matrices(model)}
    return None
