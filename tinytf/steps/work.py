"""The work of a forward pass and the memory of its cache, by formula from a model's configuration."""

from dataclasses import dataclass

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.delta import Write
from tinytf.steps.table import table_of


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one token's forward pass; a multiply-add counts as two.

    ``attention`` grows with the number of visible tokens, ``length``; in a layer with a state instead it is the work of
    writing and reading that.
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
    """The operations for one token that sees ``length`` tokens, without norms, activations and softmax."""
    totals = dict.fromkeys(("projections", "attention", "feed_forward", "head"), 0)
    table = table_of(config)
    for step, layer in table.rows:
        is_unrolled = (
            step.core and layer not in table.attention_layers
        )  # runs by a state, whose work is counted at Write
        if not step.runs or is_unrolled:
            continue
        layer_config = config.at(layer)
        window, chunk = (layer_config.window, layer_config.chunk) if layer is not None else (0, 0)
        reach = window if config.causal else 2 * window - 1
        keys = min(length, chunk or reach) if chunk or window else length
        operations = 2 * step.operation.multiply_adds(layer_config, step, 1, keys)
        if layer is None:
            totals["head"] += operations
        elif step.core or step.is_map or isinstance(step.operation, Write):
            totals["attention"] += operations
        else:
            totals["feed_forward" if step.role == "ffn" else "projections"] += operations
    return Work(**totals, length=length)


@dataclass(frozen=True)
class StepWork:
    """Multiply-adds of one step of generation, in all layers; the text has ``length`` tokens after it.

    ``keys_values`` computes keys and values: of every token, or with a cache of the new one. ``attention`` is the
    scores of all queries (or of the new one) with all keys, and as much for the values. ``whole`` is the complete step
    with everything else (queries, output, feed-forward, head; no norms, activations or softmax).
    """

    length: int
    keys_values: int
    attention: int
    whole: int

    def to_dict(self) -> dict[str, int]:
        return {"keys_values": self.keys_values, "attention": self.attention, "multiply_adds": self.whole}


def step_work(config: ModelConfig, length: int, *, cached: bool) -> StepWork:
    """The work of one step of generation, by formula.

    Without a cache all ``length`` tokens go through the stack again, and each is multiplied with all ``length`` keys,
    masked ones included; only the last token goes through the head.
    """
    tokens = 1 if cached else length
    work = work_per_token(config, length)
    body = work.projections + work.attention + work.feed_forward
    return StepWork(
        length,
        keys_values=sum(
            _keys_values_work(config.at(layer), step, tokens)
            for step, layer in table_of(config).rows
            if layer in table_of(config).attention_layers
        ),
        attention=tokens * work.attention // 2,
        whole=(tokens * body + work.head) // 2,
    )


def _keys_values_work(config: ModelConfig, step: Step, tokens: int) -> int:
    """The multiply-adds of a step that computes keys or values; 0 for other steps."""
    if step.role not in ("k", "v") or step.core or step.operation is None:
        return 0
    return step.operation.multiply_adds(config, step, tokens, 0)


def cache_bytes_per_token(config: ModelConfig, bytes_per_number: int) -> int:
    """Keys and values of one token in all layers with attention: key-value heads · (d_head + d_value) · bytes each.

    An indexer adds its own key.
    """
    layers = map(config.at, table_of(config).attention_layers)
    return bytes_per_number * sum(
        layer.n_kv_heads * (layer.d_head + layer.value_width) + (0 if layer.shares_index else layer.index_width)
        for layer in layers
    )
