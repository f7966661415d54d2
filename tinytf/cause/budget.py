"""How many bits each tensor should keep within a size: by the damage that each type of GGUF does to it alone.

Shapes: N texts, R runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.damage import Asked, Damage, Estimate, estimates
from tinytf.cause.model_pair import Texts, addresses_by_path
from tinytf.cause.swaps import Swapping, Values
from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.errors import UsageError
from tinytf.memory import require_free
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import About, Data, Progress, Report, plain, unheard
from tinytf.steps.operations import Positions
from tinytf.text.chat import Written
from tinytf.text_model import TextModel

TYPES = ("Q4_0", "Q5_0", "Q8_0", "F16")
"""Types that the gguf library can write, from small to large."""


@dataclass(frozen=True)
class PlannedTensor(Data):
    """One tensor of a file: the ``type`` that it is to have, in ``n_bytes``, and the KL that each type costs alone.

    ``name`` is that in a GGUF file, where the architecture is known there; else the address of the parameter.
    """

    name: str
    paths: tuple[str, ...]
    numbers: int
    type: str
    n_bytes: int
    costs: Mapping[str, float]


@dataclass(frozen=True)
class Uniform(Data):
    """All tensors in one type: the bytes, and the KL that was measured."""

    type: str
    n_bytes: int
    kl: Estimate


@dataclass(frozen=True)
class Budget(Report):
    """A type for each matrix, of ``n_bytes`` in all with the tensors that stay in float32, at most ``limit``.

    ``predicted`` is the sum of what the types cost one by one, ``measured`` the KL of all of them together; mean per
    position over ``texts``.
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
        """What llama-quantize takes for the plan after --tensor-type each, such as ``blk\\.(2|11)\\.ffn_down\\.=q8_0``.

        There are none where the architecture has no names in GGUF files.
        """
        layers: dict[tuple[str, str], list[str]] = {}
        for one in self.kept if self.is_named else ():
            name = one.name.removesuffix(".weight")
            block, dot, inside = name.removeprefix("blk.").partition(".")
            numbers = layers.setdefault((inside if dot else name, one.type.lower()), [])
            numbers += [block] if dot else []
        depth = self.about.model.config.n_layers if self.about else 0
        options = []
        for (name, kind), numbers in layers.items():
            which = "[0-9]+" if len(numbers) == depth else f"({'|'.join(numbers)})"
            options.append((rf"blk\.{which}\.{name}\." if numbers else rf"^{name}\.") + f"={kind}")
        return tuple(options)

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
    on_progress: Progress = unheard,
) -> Budget:
    """The types of a model's matrices that cost least KL on the texts, within ``limit`` bytes of tensors.

    Each is quantised to each type alone and measured. From the smallest types on, the step up that saves most KL for
    its bytes is taken, as long as there is room. Raises UsageError where the smallest types are too large.
    """
    texts = texts if isinstance(texts, Texts) else Texts(texts)
    asked = texts.asked(model)
    model.transformer.require_choice("there are no predictions to compare")
    tensors = _Tensors(model.transformer, types)
    tensors.require_room(limit)
    with evaluating(model.transformer):
        swapping = Swapping(model.transformer)
        rows = [tensors.values[name, kind] for name in tensors.paths for kind in types]
        found = []
        for text in asked:
            found.append(_kl(swapping, text, rows))
            on_progress(len(found), len(asked) + 1)
        positions = torch.tensor([len(one.positions) for one in asked], dtype=torch.float64)
        singles = (torch.stack(found).sum(0) / positions.sum()).view(len(tensors.paths), len(types)).tolist()
        costs = {name: dict(zip(types, row, strict=True)) for name, row in zip(tensors.paths, singles, strict=True)}
        plan = tensors.chosen(costs, limit)
        together = [plan, *(dict.fromkeys(tensors.paths, kind) for kind in types)]
        rows = [tensors.together(one) for one in together]
        measured, *uniform = estimates(torch.stack([_kl(swapping, text, rows) for text in asked]), positions, seed)
    sizes = [tensors.total(one) for one in together]
    return Budget(
        limit,
        sizes[0],
        tuple(tensors.kept(name, kind, costs[name]) for name, kind in plan.items()),
        sum(costs[name][kind] for name, kind in plan.items()),
        measured,
        tuple(Uniform(*one) for one in zip(types, sizes[1:], uniform, strict=True)),
        len(asked),
        int(positions.sum()),
        tensors.is_named,
        about=About(model),
    )


def _kl(swapping: Swapping, asked: Asked, rows: Sequence[Values]) -> Tensor:
    streams = swapping.streams(asked.ids)
    return Damage(swapping, streams, asked).of(swapping, streams, rows)[:, 0]


class _Tensors:
    """The matrices of a model as a GGUF file stores them, and each as every type would have it."""

    def __init__(self, model: Transformer, types: Sequence[str]) -> None:
        self.model, self.types = model, types
        self.parameters = dict(model.named_parameters())
        used = Swapping(model).used
        names = _names(model)
        self.is_named = names is not None
        self.paths: dict[str, list[str]] = {}
        for path, where in _matrices(model):
            if used[path]:
                self.paths.setdefault((names or {}).get(path, where), []).append(path)
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
        """The bytes of what stays in float32."""
        inside = {path for paths in self.paths.values() for path in paths}
        return sum(4 * one.numel() for path, one in self.parameters.items() if path not in inside)

    def total(self, plan: Mapping[str, str]) -> int:
        return self.fixed + sum(self.n_bytes(name, kind) for name, kind in plan.items())

    def require_room(self, limit: int) -> None:
        least = self.fixed + sum(min(self.n_bytes(name, kind) for kind in self.types) for name in self.paths)
        if least > limit:
            raise UsageError(
                f"the tensors take {least:,} bytes in their smallest types, and the budget is {limit:,}",
                f"the smallest budget is {-(-least // 10**5) / 10:g}MB",
            )

    def chosen(self, costs: Mapping[str, Mapping[str, float]], limit: int) -> dict[str, str]:
        """A type for each tensor."""
        plan = {name: min(self.types, key=partial(self.n_bytes, name)) for name in self.paths}
        left = limit - self.total(plan)
        while True:
            steps = [
                ((costs[name][now] - costs[name][kind]) / more, more, name, kind)
                for name, now in plan.items()
                for kind in self.types
                if 0 < (more := self.n_bytes(name, kind) - self.n_bytes(name, now)) <= left
                and costs[name][kind] < costs[name][now]
            ]
            if not steps:
                return plan
            _, more, name, kind = max(steps)
            plan[name], left = kind, left - more

    def together(self, plan: Mapping[str, str]) -> Values:
        return {path: value for name, kind in plan.items() for path, value in self.values[name, kind].items()}

    def kept(self, name: str, kind: str, costs: Mapping[str, float]) -> PlannedTensor:
        return PlannedTensor(name, tuple(self.paths[name]), self.numbers(name), kind, self.n_bytes(name, kind), costs)


def _matrices(model: Transformer) -> Iterator[tuple[str, str]]:
    """The parameters that llama.cpp quantises, with their addresses: no vectors, positions or routers, whole blocks."""
    for path, (where, _) in addresses_by_path(model).items():
        shape, step = model.get_parameter(path).shape, where.step
        other = isinstance(step.operation, Positions) or "expert" in step.axes[-1:] or path.endswith("bias")
        if len(shape) >= 2 and not shape[-1] % 32 and not other:
            yield path, str(where)


def quantised(weight: Tensor, kind: str) -> Tensor:
    """What is left of a tensor in a type of GGUF, in its own dtype; its last axis is cut into blocks."""
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    rows = weight.detach().float().cpu().reshape(-1, weight.shape[-1]).numpy()
    meant = gguf.quants.dequantize(gguf.quants.quantize(rows, number), number)
    return torch.from_numpy(meant).view(weight.shape).to(weight)


def _names(model: Transformer) -> dict[str, str] | None:
    """The name of each parameter in a GGUF file, in the first architecture that fits the model; None without one."""
    for kind in ARCHITECTURES.values():
        fits = all(model.config.setting(name) == value for name, value in kind.fixed.items())
        if fits and all(kind.has(path) for path, _ in model.named_parameters()):
            return {path: kind.place(path, model.config)[0] for path, _ in _matrices(model)}
    return None
