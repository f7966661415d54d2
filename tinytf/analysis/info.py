"""What a configuration amounts to, as a report: parameters, memory and work."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tinytf.analysis.size import Component, parameter_count, parameter_parts
from tinytf.config import ModelConfig
from tinytf.report import Report
from tinytf.steps.work import cache_bytes_per_token, work_per_token


@dataclass(frozen=True)
class Info(Report):
    """``family`` is the kind of the files, ``counted`` the parameters of the opened model, ``notes`` what is worth
    knowing of its files, ``card`` the model card of a built-in model.
    """

    KIND = "info"
    EVENTS: ClassVar = {"parameters": "component"}

    name: str
    config: ModelConfig
    family: str = "preset"
    counted: int | None = None
    notes: tuple[str, ...] = ()
    card: Mapping[str, Any] | None = None

    @cached_property
    def parts(self) -> list[Component]:
        return parameter_parts(self.config)

    @cached_property
    def total(self) -> int:
        return parameter_count(self.config)

    @property
    def holds(self) -> bool:
        """Whether the opened model has as many parameters as its configuration says."""
        return self.counted in (None, self.total)

    def fields(self) -> dict[str, Any]:
        config, work = self.config, work_per_token(self.config, self.config.context)
        return {
            "model": self.name,
            "family": self.family,
            "notes": list(self.notes),
            "config": config.to_dict(),
            "parameters": [
                {"component": p.name, "formula": p.formula, "each": p.each, "copies": p.copies, "total": p.total}
                for p in self.parts
            ],
            "total_parameters": self.total,
            "counted_parameters": self.counted,
            "memory_bytes": {"fp32": 4 * self.total, "bf16": 2 * self.total},
            "flops_per_token": {**vars(work), "total": work.total},
            "kv_cache_bytes_per_token": {
                "fp32": cache_bytes_per_token(config, 4) if config.causal else 0,
                "bf16": cache_bytes_per_token(config, 2) if config.causal else 0,
            },
            "card": self.card,
        }
