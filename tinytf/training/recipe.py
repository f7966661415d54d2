"""Recipes: everything that determines a training run, from a TOML file or from options."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tinytf.config import ModelConfig
from tinytf.errors import ConfigError, UsageError
from tinytf.fields import ANY, Limits, fields_of, require_fields
from tinytf.files import SMALL, parse_toml, read_bytes, read_json
from tinytf.text.corpus import DOCUMENTS, Reading

OBJECTIVES = ("causal", "masked", "chat", "translate")
KERNELS = ("auto", "onednn", "torch")
SCHEDULES = ("cosine", "linear", "constant", "wsd")
DTYPES = ("float32", "bfloat16")
FIRST_WEIGHTS = ("even", "normal", "look_back")
TOKENIZERS = ("char", "bpe", "wordpiece")
USUAL_VOCABULARY = 2000
FEW_BATCHES = 8
"""Batches of the held-out text for its curve and every verdict, always the same ones."""
USUAL_WIDTH = 128
_LRS = {"new": (3e-3, USUAL_WIDTH, 1.2e-2), "fine": (5e-5, 576, 1e-3), "lora": (2e-3, 576, 1e-2)}
"""The default peak learning rate of a new model, of a trained one and of LoRA: at a width, and at most."""
_DECODER = {
    "causal": True, "head": "lm", "positions": "rotary", "norm": "rmsnorm", "activation": "silu", "gated": True,
    "qkv_bias": False, "o_bias": False, "ffn_bias": False,
}  # fmt: skip
_ENCODER = {"causal": False, "head": "mlm", "head_bias": True}
_FORMS = {"chat": "chat", "translate": "pair"}
_SHARE, _POSITIVE = Limits(least=0, below=1), Limits(above=0)


def _field(default: Any, help: str, limits: Limits = ANY) -> Any:
    """A field of a recipe: its default, a line of help, and the values it may have."""
    return field(default=default, metadata={"help": help, "limits": limits})


def usual_lr(kind: str, width: int | None = None) -> float:
    """The default peak learning rate, in inverse proportion to the width; of a usual width where that is unknown."""
    rate, at, most = _LRS[kind]
    return min(most, round(rate * at / (width or at), 6))


def require_mask(config: ModelConfig) -> None:
    """Raise ConfigError for a decoder without a mask, which would see the token that it should predict."""
    if config.causal and not config.mask:
        raise ConfigError("without its mask a decoder sees the token that it should predict", "leave out mask = false")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Model, tokenizer, data, optimiser and seed of one run.

    ``model`` holds ModelConfig fields, without vocab_size. ``begun_from`` names the model that the run started from,
    whose architecture and tokenizer it takes over; a branch continues from ``at_step`` of that run, ``without`` some
    heads. ``freeze`` are addresses of weights that are not trained. ``held_out`` text is measured every ``eval_every``
    steps; a decoder then continues a prompt by ``sample_tokens``, and an encoder fills in a word.
    """

    model: Mapping[str, Any] = field(default_factory=dict)
    begun_from: str = ""
    at_step: int = field(default=0, metadata={"limits": Limits(0, 1_000_000_000)})
    without: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    tokenizer: str = field(default="bpe", metadata={"limits": Limits(choices=TOKENIZERS)})
    vocab_size: int = _field(
        0, "Vocabulary size (not for char); 0: 2,000, or fewer if the text yields fewer.", Limits(0, 1_000_000)
    )
    objective: str = _field(
        "causal",
        "What to predict: the next token, masked tokens, the assistant's turns, or the target of a source.",
        Limits(choices=OBJECTIVES),
    )
    document: str = _field("paragraph", "What counts as a document in a text file.", Limits(choices=DOCUMENTS))
    field: str = _field("", "Field of the rows to read, in .jsonl, .csv, .tsv and .parquet files; of pairs A,B.")
    block: int = _field(128, "Training length in tokens.", Limits(2, 1_000_000))
    batch: int = _field(16, "Examples per step.", Limits(1, 65_536))
    accumulate: int = _field(1, "Parts of a batch that run one after the other.", Limits(1, 65_536))
    document_starts: float = _field(0.0, "Share of examples that begin at the start of a document.", _SHARE)
    repeats: float = _field(0.0, "Share of examples with repeated random tokens, which teach copying.", _SHARE)
    repeats_first: int = _field(0, "Steps at the start with only such examples.", Limits(0, 1_000_000_000))
    steps: int = _field(1000, "Optimiser steps.", Limits(1, 1_000_000_000))
    lr: float = _field(
        usual_lr("new"),
        "Peak learning rate; unless given 0.384 / d_model, with --from 0.0288 / d_model, with --lora 1.152 / d_model.",
        _POSITIVE,
    )
    final_lr: float = _field(0.1, "Final learning rate, as a share of the peak.", _SHARE)
    warmup: int = _field(100, "Steps of linear warm-up.")
    schedule: str = _field("cosine", "Learning rate after the warm-up.", Limits(choices=SCHEDULES))
    weight_decay: float = _field(0.1, "Weight decay of matrices; gains and biases have none.", _SHARE)
    beta1: float = _field(0.9, "Adam's decay of the mean gradient.", _SHARE)
    beta2: float = _field(0.95, "Adam's decay of the mean squared gradient.", _SHARE)
    label_smoothing: float = _field(0.0, "Share of each target that is spread over the vocabulary.", _SHARE)
    balance: float = _field(0.0, "With experts: weight of the loss that keeps them equally busy, such as 0.01.", _SHARE)
    clip: float = _field(1.0, "Largest global norm of the gradients.", _POSITIVE)
    held_out: float = _field(0.05, "Share of the text, from its end, that is never trained on.", _SHARE)
    eval_every: int = _field(250, "Steps between held-out losses.", Limits(1, 1_000_000_000))
    patience: int = _field(
        0, "Stop after this many held-out losses in a row without a new best; 0: never.", Limits(0, 1_000_000)
    )
    save_every: int = _field(0, "Steps between checkpoints; 0: those of --eval-every.", Limits(0, 1_000_000_000))
    save_minutes: float = _field(10.0, "Also save after this many minutes; 0: only by steps.", Limits(0, 1e6))
    keep: int = _field(2, "Checkpoints to keep, besides the best.", Limits(1, 1_000_000))
    probe_every: int = _field(
        50, "Steps between measurements of the heads; 0: never, and no film.", Limits(0, 1_000_000_000)
    )
    sample_tokens: int = _field(
        40, "Length of the sample with every held-out loss; 0: no sample.", Limits(0, 1_000_000)
    )
    frames: bool = _field(False, "Keep the weights with every frame of the film, in bfloat16.")
    dtype: str = _field("float32", "Type of the computation; weights stay float32.", Limits(choices=DTYPES))
    first_weights: str = _field(
        "even",
        "First weights: all tokens as probable, normal, or normal with planted previous-token heads.",
        Limits(choices=FIRST_WEIGHTS),
    )
    lora: int = _field(0, "With --from: rank of LoRA; the model's own weights stay. 0: all train.", Limits(0, 65_536))
    lora_alpha: int = _field(16, "Scale of LoRA, over its rank.", Limits(1, 1_000_000))
    recompute: bool = _field(False, "Recompute activations in the backward pass: less memory, a third more work.")
    threads: int = _field(0, "Threads of a process; 0: 1 or all, whichever is faster at first.", Limits(0, 1024))
    kernel: str = _field(
        "auto", "What computes long matrix products; auto: whichever is faster at first.", Limits(choices=KERNELS)
    )
    compile: bool = _field(False, "Let torch compile the kernels first; on a CPU this is mostly slower.")
    seed: int = _field(0, "Random seed of first weights, order and dropout.", Limits(0, 2**63 - 1))

    def __post_init__(self) -> None:
        for name, field_type in FIELDS.items():
            field_type.require(getattr(self, name), UsageError)
        if self.objective == "masked" and self.tokenizer != "wordpiece":
            raise UsageError(
                f"the masked objective needs [MASK], but a {self.tokenizer} tokenizer has none",
                "use --tokenizer wordpiece",
            )
        if self.objective == "translate" and self.tokenizer != "bpe":
            raise UsageError(f"a {self.tokenizer} tokenizer does not write every target", "use --tokenizer bpe")
        if self.objective == "masked" and self.block < 3:
            raise UsageError(f"block {self.block} has no room for a word between [CLS] and [SEP]", "use at least 3")
        if self.accumulate > self.batch:
            raise UsageError(
                f"a batch of {self.batch} cannot be split into {self.accumulate} parts", "use at most --batch parts"
            )
        if self.lora and not self.begun_from:
            raise UsageError("LoRA adapts a trained model, but the recipe begins a new one", "name a model by --from")
        if not 0 <= self.warmup <= self.steps:
            raise UsageError(f"warmup {self.warmup} is not between 0 and steps {self.steps}")

    @property
    def reading(self) -> Reading:
        """How to read the files of the text."""
        return Reading(self.document, self.field, _FORMS.get(self.objective, "text"))

    def model_config(self, vocab_size: int, start_id: int = 0) -> ModelConfig:
        """The model that this recipe trains, for a vocabulary of this size; a target begins with ``start_id``.

        By default a decoder is like Llama: rotary positions, RMSNorm, SwiGLU, no biases. A gated feed-forward has as
        many parameters as a plain one. Of two stacks the encoder is like the decoder, apart from its own settings.
        """
        fields = {
            "d_model": USUAL_WIDTH, "n_layers": 4, "n_heads": 4, "context": max(256, self.block),
            **(_ENCODER if self.objective == "masked" else _DECODER), **self.model, "vocab_size": vocab_size,
        }  # fmt: skip
        if type(width := fields["d_model"]) is int:
            fields.setdefault("d_ff", 8 * round(width / 3) if fields.get("gated") else 4 * width)
        if self.objective == "translate":
            settings = fields.pop("encoder", {})
            if not isinstance(settings, Mapping):
                raise ConfigError(f"encoder is {settings!r}, not settings of the encoder", "write [model.encoder]")
            encoder = {**fields, **settings, "vocab_size": vocab_size, "causal": False, "head": "none"}
            encoder["source_projection"] = False
            own = {"encoder": encoder, "d_source": encoder["d_model"], "start_id": start_id}
            fields = {"shares_embeddings": True, **fields, **own}
        config = ModelConfig.from_dict(fields)
        if config.causal != (self.objective != "masked"):
            raise ConfigError(f"objective {self.objective!r} does not train a model with causal = {config.causal}")
        require_mask(config)
        if not config.predicts_tokens:
            raise ConfigError(f"head {config.head.kind!r} predicts no token to learn from", "leave out --head")
        if self.first_weights == "look_back" and not (config.positions == "rotary" and config.qkv_bias):
            raise ConfigError("look_back needs rotary positions, and biases of queries and keys", "add --qkv-bias 1")
        if self.block > config.context:
            raise ConfigError(f"block {self.block} is longer than the model's context of {config.context}")
        return config

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], source: str = "") -> Self:
        """A recipe from its fields. Raises UsageError for an unknown field, with the nearest name.

        The default warm-up is at most a tenth of the steps. The default lr is ``usual_lr``, and the masked
        objective has a wordpiece tokenizer.
        """
        if (optimiser := fields.get("optimiser", "adamw")) != "adamw":
            raise UsageError(f"{source or 'the recipe'}: there is no optimiser {optimiser!r}", "AdamW is the only one")
        fields = {name: value for name, value in fields.items() if name != "optimiser"}  # older recipes name it
        width = model.get("d_model") if isinstance(model := fields.get("model"), Mapping) else None
        kind = "new" if not fields.get("begun_from") else "lora" if fields.get("lora") else "fine"
        fields = {"lr": usual_lr(kind, width if type(width) is int and width > 0 else None), **fields}
        if fields.get("objective") == "masked":
            fields = {"tokenizer": "wordpiece", **fields}
        steps = fields.get("steps", cls.steps)
        if type(steps) is int:
            fields = {"warmup": max(0, min(cls.warmup, steps // 10)), **fields}
        # Limits are checked later, since an option may override the file.
        return cls(**require_fields(fields, _TYPES, "a recipe", UsageError, source))

    @classmethod
    def load(cls, path: Path, **changes: Any) -> Self:
        """A recipe from a TOML file, or a shipped recipe by name, with ``changes`` applied."""
        return cls.from_dict({**cls.given(path), **changes}, str(path))

    @staticmethod
    def given(path: Path) -> dict[str, Any]:
        """The fields that a TOML file, or a shipped recipe by name, gives; none that follow from others."""
        shipped = SHIPPED / f"{path}.toml"
        if not path.exists() and path.name == str(path) and shipped.is_file():
            path = shipped
        try:
            return parse_toml(read_bytes(path, SMALL).decode("utf-8"))
        except OSError as error:
            names = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.toml")))
            hint = f"a recipe is a TOML file, or one of {names}"
            raise UsageError(f"cannot read the recipe {path}: {error.strerror}", hint) from None
        except ValueError as error:
            raise UsageError(f"{path} is not TOML: {error}") from None


SHIPPED = Path(__file__).parent.parent / "assets" / "recipes"
_TYPES = fields_of(Recipe)
FIELDS = fields_of(
    Recipe,
    {member.name: member.metadata["limits"] for member in dataclasses.fields(Recipe) if "limits" in member.metadata},
)
"""The type and the limits of each field of a recipe."""
FREE = ("steps", "patience", "eval_every", "save_every", "save_minutes", "keep", "probe_every", "sample_tokens")
"""Fields that a resumed run may change: no earlier number depends on them, except the learning rate on ``steps``."""


def stored_recipe(run: Path) -> Recipe | None:
    """The recipe that a run was started with; None before it was written."""
    path = run / "recipe.json"
    fields = read_json(path) if path.exists() else None
    if fields is not None and "watched" in fields:
        raise UsageError(f"another program trains {run}", "that program continues it, with tinytf.watch(…, done=N)")
    return None if fields is None else Recipe.from_dict(fields, str(path))


def require_same(run: Path, stored: Recipe, requested: Mapping[str, Any]) -> None:
    """Raise UsageError for a requested field that differs from the recipe that a run was started with."""
    for name, value in requested.items():
        if getattr(stored, name) != value:
            raise UsageError(
                f"{run} was started with {name} {getattr(stored, name)!r}, not {value!r}",
                "leave the option out, or begin another run",
            )


def resumed_recipe(run: Path, stored: Recipe, requested: Mapping[str, Any]) -> Recipe:
    """The recipe of a resumed run: its stored one, with the FREE fields of ``requested``.

    Raises UsageError if any other field differs.
    """
    fixed = {name: value for name, value in requested.items() if name not in FREE}
    for name in ("threads", "kernel"):  # the run has chosen its own
        if fixed.get(name) in (0, "auto"):
            del fixed[name]
    require_same(run, stored, fixed)
    return dataclasses.replace(stored, **{name: value for name, value in requested.items() if name in FREE})
