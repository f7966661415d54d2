"""Recipes: everything that decides a training run, from a TOML file or from options."""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tinytf.config import ModelConfig
from tinytf.errors import ConfigError, UsageError
from tinytf.fields import Limits, fields_of, require_fields

OBJECTIVES = ("causal", "masked")
SCHEDULES = ("cosine", "linear", "constant")
DTYPES = ("float32", "bfloat16")
TOKENIZERS = ("char", "bpe", "wordpiece")
USUAL_VOCABULARY = 2000
_SHARE, _POSITIVE = Limits(least=0, below=1), Limits(above=0)
_LIMITS = {
    "objective": Limits(choices=OBJECTIVES),
    "tokenizer": Limits(choices=TOKENIZERS),
    "schedule": Limits(choices=SCHEDULES),
    "dtype": Limits(choices=DTYPES),
    "vocab_size": Limits(0, 1_000_000),
    "block": Limits(2, 1_000_000),
    "batch": Limits(1, 65_536),
    "accumulate": Limits(1, 65_536),
    "keep": Limits(1, 1_000_000),
    "save_every": Limits(0, 1_000_000_000),
    "probe_every": Limits(0, 1_000_000_000),
    "sample_tokens": Limits(0, 1_000_000),
    "steps": Limits(1, 1_000_000_000),
    "eval_every": Limits(1, 1_000_000_000),
    "repeats_first": Limits(0, 1_000_000_000),
    "seed": Limits(0, 2**63 - 1),
    **dict.fromkeys(("lr", "clip"), _POSITIVE),
    **dict.fromkeys(("held_out", "repeats", "final_lr", "weight_decay", "beta1", "beta2"), _SHARE),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Model, tokenizer, data, optimiser and seed of one run; ``model`` holds ModelConfig fields, without vocab_size.

    ``begun_from`` names the model that was trained on further, whose architecture and tokenizer it then is. A BPE or
    WordPiece tokenizer has just ``vocab_size`` tokens; with 0 the usual 2,000, or fewer where the text yields fewer.

    ``block`` is the training length in tokens, ``batch`` the examples a step; ``repeats`` the share of a causal
    batch that is random ids said again and again (what teaches copying), in the first ``repeats_first`` steps all of
    it. ``lr`` is the peak learning rate, reached after ``warmup`` steps and followed by the ``schedule`` (cosine,
    linear or constant) down to ``lr * final_lr``; ``clip`` bounds the global gradient norm; ``accumulate`` splits a
    batch into so many parts that go through one after the other; ``dtype`` bfloat16 computes in it (the weights stay
    float32), ``compile`` has torch write kernels first. ``held_out`` is the share of the text, from its end, that is
    never trained on; it is measured every ``eval_every`` steps, and a checkpoint written every ``save_every`` (0: as
    often), of which the last ``keep`` and the best are kept. What the heads do is measured every ``probe_every``
    steps (0: never). With every held-out loss a decoder goes on from a prompt by ``sample_tokens``, and an encoder
    fills in a word (0: never).
    """

    model: Mapping[str, Any] = field(default_factory=dict)
    begun_from: str = ""
    tokenizer: str = "bpe"
    vocab_size: int = 0
    objective: str = "causal"
    block: int = 128
    batch: int = 16
    accumulate: int = 1
    repeats: float = 0.0
    repeats_first: int = 0
    steps: int = 1000
    lr: float = 1e-3
    final_lr: float = 0.1
    warmup: int = 100
    schedule: str = "cosine"
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    held_out: float = 0.05
    eval_every: int = 250
    save_every: int = 0
    keep: int = 2
    probe_every: int = 50
    sample_tokens: int = 40
    dtype: str = "float32"
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in FIELDS.items():
            known.require(getattr(self, name), UsageError)
        if self.objective == "masked" and self.tokenizer != "wordpiece":
            raise UsageError(
                f"the masked objective needs [MASK], which a {self.tokenizer} tokenizer has not",
                "use --tokenizer wordpiece",
            )
        if self.objective == "masked" and self.block < 3:
            raise UsageError(f"block {self.block} has no room for a word between [CLS] and [SEP]", "3 is the least")
        if self.accumulate > self.batch:
            raise UsageError(f"a batch of {self.batch} has no {self.accumulate} parts", "accumulate at most the batch")
        if not 0 <= self.warmup <= self.steps:
            raise UsageError(f"warmup {self.warmup} is not between 0 and steps {self.steps}")

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The model that this recipe trains, for a vocabulary of this size."""
        defaults = {
            "d_model": 128,
            "n_layers": 4,
            "n_heads": 4,
            "d_ff": 512,
            "context": max(256, self.block),
            "causal": self.objective == "causal",
            "head": "lm" if self.objective == "causal" else "mlm",
        }
        config = ModelConfig.from_dict({**defaults, **self.model, "vocab_size": vocab_size})
        if config.causal != (self.objective == "causal"):
            raise ConfigError(f"objective {self.objective!r} does not train a model with causal = {config.causal}")
        if self.block > config.context:
            raise ConfigError(f"block {self.block} is longer than the model's context of {config.context}")
        return config

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], source: str = "") -> Self:
        """A recipe from its fields; an unknown one is refused with the nearest name.

        Where nothing is said of the warm-up, it is at most a tenth of the steps.
        """
        steps = fields.get("steps", cls.steps)
        if type(steps) is int:
            fields = {"warmup": max(0, min(cls.warmup, steps // 10)), **fields}
        require_fields(fields, _TYPES, "a recipe", UsageError, source)  # limits: an option may be over the file
        return cls(**fields)

    @classmethod
    def load(cls, path: Path, **changes: Any) -> Self:
        """A recipe from a TOML file, with ``changes`` put over it."""
        try:
            fields = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read the recipe {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not TOML: {error}") from None
        return cls.from_dict({**fields, **changes}, str(path))


_TYPES, FIELDS = fields_of(Recipe), fields_of(Recipe, _LIMITS)
"""What each field of a recipe may hold."""
