"""The work of a forward pass and the memory of its cache, by formula from a model's configuration."""

from dataclasses import dataclass

from tinytf.config import ModelConfig
from tinytf.steps.operations.delta import Write
from tinytf.steps.operations.mix import CrossMix
from tinytf.steps.operations.scores import CrossScores
from tinytf.steps.table import table_of


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one token's forward pass; a multiply-add counts as two.

    ``attention`` grows with the number of visible tokens, ``length``; in a layer with a state instead it is the work of
    writing and reading that. A model of two stacks has work for each token of its source too, once for all tokens of
    the text: that of its ``encoder``, and what cross-attention computes of it, ``source``.
    """

    projections: int
    attention: int
    feed_forward: int
    head: int
    length: int
    encoder: int = 0
    source: int = 0

    @property
    def total(self) -> int:
        """What a token of the text itself takes."""
        return self.projections + self.attention + self.feed_forward + self.head


def work_per_token(config: ModelConfig, length: int, source: int | None = None) -> Work:
    """The operations for one token that sees ``length`` tokens, without norms, activations and softmax.

    Cross-attention sees ``source`` tokens, by default as many.
    """
    source = length if source is None else source
    totals = dict.fromkeys(("projections", "attention", "feed_forward", "head", "encoder", "source"), 0)
    table = table_of(config)
    if config.encoder is not None:
        totals["encoder"] = work_per_token(config.encoder, source).total
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
        if isinstance(step.operation, (CrossScores, CrossMix)):
            keys = source
        operations = 2 * step.operation.multiply_adds(layer_config, step, 1, keys)
        if step.of_source and not step.core:
            totals["source"] += operations
        elif layer is None:
            totals["head"] += operations
        elif step.core or step.is_map or isinstance(step.operation, Write):
            totals["attention"] += operations
        else:
            totals["feed_forward" if step.role == "ffn" else "projections"] += operations
    return Work(**totals, length=length)


@dataclass(frozen=True)
class StepWork:
    """Multiply-adds of one step of generation, in all layers; the text has ``length`` tokens after it.

    ``keys_values`` computes keys and values: of every token and a source's, or with a cache of the new one.
    ``attention`` is the scores of all queries (or of the new one) with all keys, and as much for the values. ``whole``
    is the complete step with everything else (queries, output, feed-forward, head; no norms, activations or softmax).
    """

    length: int
    keys_values: int
    attention: int
    whole: int

    def to_dict(self) -> dict[str, int]:
        return {"keys_values": self.keys_values, "attention": self.attention, "multiply_adds": self.whole}


def step_work(config: ModelConfig, length: int, source: int = 0, *, cached: bool) -> StepWork:
    """The work of one step of generation, by formula.

    Without a cache all ``length`` tokens go through the stack again, and each is multiplied with all ``length`` keys,
    masked ones included; only the last token goes through the head. The states of a ``source`` of so many tokens are
    there already, and without a cache their keys and values are computed again.
    """
    tokens, again = (1, 0) if cached else (length, source)
    work = work_per_token(config, length, source)
    body = work.projections + work.attention + work.feed_forward
    table = table_of(config)
    return StepWork(
        length,
        keys_values=sum(
            step.operation.multiply_adds(config.at(layer), step, again if step.of_source else tokens, 0)
            for step, layer in table.rows
            if layer in table.attention_layers and step.role in ("k", "v") and not step.core and step.operation
        ),
        attention=tokens * work.attention // 2,
        whole=(tokens * body + again * work.source + work.head) // 2,
    )


def cache_bytes_per_token(config: ModelConfig, bytes_per_number: int, *, of_source: bool = False) -> int:
    """Keys and values of one token in all layers with attention: key-value heads · (d_head + d_value) · bytes each.

    An indexer adds its own key. Those of a token ``of_source`` are in the layers with cross-attention.
    """
    layers = map(config.at, table_of(config).attention_layers)
    return bytes_per_number * sum(
        (layer.d_source > 0) * layer.n_kv_heads * (layer.d_head + layer.value_width) if of_source
        else layer.n_kv_heads * (layer.d_head + layer.value_width) + (0 if layer.shares_index else layer.index_width)
        for layer in layers
    )  # fmt: skip
