"""Options of a training that exclude each other, in one table."""

from collections.abc import Mapping

from tinytf.errors import UsageError

_ONE = "leave out one of them"
_NEW_RUN = ("resume", "at_step", "explain", "tensorboard", "shard")
_LEAVE_OUT = "leave out --resume, --at-step, --explain, --tensorboard and --shard"

CLASHES: tuple[tuple[str, str, str, str], ...] = (
    *(("dry_run", name, "--dry-run plans a new run", _LEAVE_OUT) for name in _NEW_RUN),
    ("resume", "overwrite", "--resume continues a run, and --overwrite removes it", _ONE),
    ("shard", "without", "--shard divides the matrices that --without cuts heads out of", _ONE),
    ("lora", "explain", "LoRA does not go with --explain", _ONE),
    ("lora", "shard", "LoRA does not go with --shard", _ONE),
    ("lora", "new_model", "LoRA does not go with a new model", "name a model by --from"),
    ("shard", "explain", "with --shard no process has the whole model, so none explains an update", _ONE),
    ("compile", "balance", "compiled steps do not see what the routers of experts say", _ONE),
    ("shard", "compile", "with --shard no process has the whole model, so none compiles", _ONE),
)
"""Two options, or fields of a recipe, why they exclude each other, and a hint."""


def require_compatible(chosen: Mapping[str, object]) -> None:
    """Raise UsageError if two of the options that are set exclude each other."""
    for first, second, message, hint in CLASHES:
        if chosen.get(first) and chosen.get(second):
            raise UsageError(message, hint)
