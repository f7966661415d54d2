"""The work of a forward pass and the memory of its cache by formula, from a model's configuration alone."""

from dataclasses import dataclass

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.delta import Write
from tinytf.steps.table import table_of


@dataclass(frozen=True)
class Work:
    """Floating point operations of one token's forward pass; a multiply and an add count as two.

    ``attention`` grows with the number of visible tokens, here ``length``; where a layer has a state in its place, it
    is what writing and reading that takes.
    """

    projections: int
    attention: int
    feed_forward: int
    head: int
    length: int

    @property
    def total(self) -> int:
        return self.projections + self.attention + self.feed_forward + self.head


def work_per_token(config: ModelConfig, length: int) -> Work:
    """Operations for one token that looks at ``length`` tokens, without norms, activations and softmax."""
    parts = dict.fromkeys(("projections", "attention", "feed_forward", "head"), 0)
    table = table_of(config)
    for step, layer in table.rows:
        unrolled = step.core and layer not in table.attending  # by a state, whose work is that of writing to it
        if step.operation is None or not step.to_loss or unrolled:
            continue
        own = config.at(layer)
        window, chunk = (own.window, own.chunk) if layer is not None else (0, 0)
        reach = window if config.causal else 2 * window - 1
        keys = min(length, chunk or reach) if chunk or window else length
        done = 2 * step.operation.multiply_adds(own, step, 1, keys)
        if layer is None:
            parts["head"] += done
        elif step.core or isinstance(step.operation, Write):
            parts["attention"] += done
        else:
            parts["feed_forward" if step.role == "ffn" else "projections"] += done
    return Work(**parts, length=length)


@dataclass(frozen=True)
class StepWork:
    """Multiply-adds of one more token after which there are ``length``, in all layers, without a cache or with one.

    ``keys_values`` makes keys and values: of every token, or of the new one. ``attention`` is the scores of all
    queries with all keys, or of the new query, and the same number for the values. ``whole`` is the complete step with
    everything else (queries, output, feed-forward, head; no norms, activations or softmax).
    """

    length: int
    keys_values: int
    attention: int
    whole: int

    def to_dict(self) -> dict[str, int]:
        return {"keys_values": self.keys_values, "attention": self.attention, "multiply_adds": self.whole}


def step_work(config: ModelConfig, length: int, *, cached: bool) -> StepWork:
    """What a step of generation computes, by the formulas of attention, with this model's own sizes.

    Without a cache all ``length`` tokens go through the stack again, and each looks at ``length`` keys, those that
    are masked too; only the last goes through the head.
    """
    tokens = 1 if cached else length
    one = work_per_token(config, length)
    body = one.projections + one.attention + one.feed_forward
    return StepWork(
        length,
        keys_values=sum(
            _made(config.at(layer), step, tokens)
            for step, layer in table_of(config).rows
            if layer in table_of(config).attending
        ),
        attention=tokens * one.attention // 2,
        whole=(tokens * body + one.head) // 2,
    )


def _made(config: ModelConfig, step: Step, tokens: int) -> int:
    """The multiply-adds of a step that keys or values are made by."""
    if step.role not in ("k", "v") or step.core or step.operation is None:
        return 0
    return step.operation.multiply_adds(config, step, tokens, 0)


def cache_bytes_per_token(config: ModelConfig, bytes_per_number: int) -> int:
    """Keys and values of one token in all layers with attention: key-value heads · (d_head + d_value) · bytes each."""
    layers = len(table_of(config).attending)
    return layers * config.n_kv_heads * (config.d_head + config.value_width) * bytes_per_number
