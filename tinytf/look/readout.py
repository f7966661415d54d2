"""Directions of a model in its vocabulary: what a vector that is added to the residual stream does to the logits.

Shapes: T tokens, C d_model, O width of a step, V vocabulary, U directions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer
from tinytf.report import Report
from tinytf.steps.operations import Activate
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.table import table_of
from tinytf.trace.hooks import module_of

_DIRECTIONS_AT_ONCE = 64  # directions whose logits are computed at a time
Ends = tuple[tuple[int, float], ...]
"""Ids of tokens, each with what an activation of 1 adds to its logit."""
ENDS = ("promoted", "suppressed")


def ends_data(report: Report, promoted: Ends, suppressed: Ends, names: Sequence[str] = ENDS) -> dict[str, Any]:
    """Both ends of a direction as plain JSON data."""
    both = zip(names, (promoted, suppressed), strict=True)
    return {name: [{**report.named(token), "logit": value} for token, value in end] for name, end in both}


def in_stream(model: Transformer, name: str, layer: int, rows: Tensor) -> tuple[Tensor | None, bool]:
    """Directions (U, O) of a step as those (U, C) of the residual stream, and whether they are added to it as they are.

    The directions are None if the step does not lead there.
    """
    steps = table_of(model.config)
    paths = [(step, *steps.to_stream(step, layer)) for step in steps.added_in(layer)]  # from an output to its sum
    summands = {*steps.stream(layer), *(path[-2].name for path in paths)}
    if name in {*summands, *(step.name for path in paths for step in path)}:
        return rows, name in summands
    reader = next((step for step, *_ in paths if name in step.inputs), None)  # of concat or ffn.act
    if reader is None:
        return None, False
    matrix: Tensor | None = reader.operation.matrix(module_of(model, reader, layer))  # (C, O)
    return None if matrix is None else rows @ matrix.to(rows).T, reader.name in summands


class Readout:
    """The path of a direction to the logits of a model.

    It is ``direct`` if only the final norm lies between the residual stream and the logits; a cap of the logits leaves
    the order of the tokens. ``rows`` and ``what`` name the directions and whose they are, by default the rows of W₂ and
    units. Directions ``in_stream`` are in the residual stream already, so that no norm or scale of a block's additions
    applies to them.
    """

    def __init__(self, model: Transformer, rows: str = "", what: str = "unit", in_stream: bool = False) -> None:
        self.model = model
        config, table = model.config, table_of(model.config)
        self.has_directions = model.head is not None
        is_linear = self.has_directions and not any(isinstance(step.operation, Activate) for step in table.after)
        on_stream = {name for layer in range(config.n_layers) for name in table.stream(layer)}
        norms = [norm for norm in table.stream_norms if not in_stream or norm.name in on_stream]
        self.is_normed = is_linear and not (norms or table.stream_scales or config.memory_sets or config.extra_streams)
        self.direct = self.is_normed and not config.logit_cap
        scale = config.logit_scale * (1 if in_stream else config.residual_scale)
        self.gain = gain_of(model.final_norm).double() * scale
        self._unembedding = model.unembedding
        narrowing = next((step for step in table.after if step.axes[-1:] in (("d_embed",), ("d_unembed",))), None)
        if narrowing is not None and self.has_directions:
            narrow: Any = model.get_submodule(narrowing.module)
            self._unembedding = model.unembedding @ narrow.weight  # (V, C)
        self.centres = isinstance(model.final_norm, nn.LayerNorm)
        rows = rows or f"rows of {table.feed_forward.matrix}"
        if not self.has_directions:
            no_head = "this model has no language-model head, so"
            self.reading = f"{no_head} the {what}s' directions are not read"
            self.contributing = f"{no_head} there is no logit to contribute to"
            return
        self.contributing = "activation · direction of the predicted token ÷ the final norm's scale"
        if self.is_normed:
            centred = ", centred" if self.centres else ""
            gained = ", times the final norm's gain" if config.norm_gain else ""
            scaled = "" if scale == 1 else f", times {scale:.4g}"
            capped = ", before their cap" if config.logit_cap else ""
            self.reading = f"{rows}{centred}{gained}, through the unembedding{scaled}{capped}"
        else:
            dense = "the head's dense layer and " if narrowing and not is_linear else ""
            between = _between(config, is_linear, is_narrowed=narrowing is not None)
            self.reading = f"{rows} through {dense}the unembedding, without the {between}"
        if not self.direct:
            between = "a cap comes" if self.is_normed else "norms or layers come"
            self.contributing = f"{between} between a {what} and the logits, so it has no direct part of them"

    def ends(self, rows: Tensor, top: int) -> Iterator[tuple[Ends, Ends]]:
        """The ``top`` tokens whose logits each of some rows (U, C) raises most, and those that it lowers most."""
        unembedding = self._unembedding.float()
        k = min(top, len(unembedding))
        for part in rows.float().split(_DIRECTIONS_AT_ONCE):
            for logits in self._through_norm(part) @ unembedding.T:  # (V,)
                most, least = (
                    [*zip(end.indices.tolist(), end.values.tolist(), strict=True)]
                    for end in (logits.topk(k), logits.topk(k, largest=False))
                )
                yield (
                    tuple((token, value) for token, value in most if value > 0),
                    tuple((token, value) for token, value in least if value < 0),
                )

    def _through_norm(self, rows: Tensor) -> Tensor:
        """Rows (…, C) after the final norm, without its scale."""
        if not self.is_normed:
            return rows
        return (rows - rows.mean(dim=-1, keepdim=True) if self.centres else rows) * self.gain.float()

    def questions(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """The vectors (T, C) whose product with a vector in the residual stream is its part of a logit.

        ``hidden`` (T, C) is the input of the final norm, ``ids`` (T,) are the tokens of the logits.
        """
        x = hidden.double()
        centred = x - x.mean(dim=-1, keepdim=True) if self.centres else x
        scale = (centred.square().mean(dim=-1, keepdim=True) + self.model.config.final_eps).sqrt()
        vectors = self._unembedding[ids].double() * self.gain / scale
        return vectors - vectors.mean(dim=-1, keepdim=True) if self.centres else vectors


def _between(config: ModelConfig, is_linear: bool, *, is_narrowed: bool) -> str:
    """What lies between the residual stream and the logits, and is not followed."""
    if is_linear:
        return "layer above, which reads them" if config.memory_sets else "norms that come after each sum"
    if config.labels:
        return "head's own layers between"
    return "head's norm between" if is_narrowed else "head's dense layer and norm between"
