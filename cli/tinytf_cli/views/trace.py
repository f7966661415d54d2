"""The view of a trace: the pipeline, one block in full, every head small, the prediction and the self-check."""

from collections.abc import Iterator

from tinytf.analysis.traced import Traced
from tinytf.loading import Model
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.attention import thumbnails
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Heading
from tinytf_cli.views.parameters import parameter_blocks
from tinytf_cli.views.parts import row_limit
from tinytf_cli.views.pipeline import pipeline_blocks
from tinytf_cli.views.predictions import check_blocks, fault_blocks, prediction_blocks
from tinytf_cli.views.steps import address_blocks, step_blocks


class TraceView:
    """One trace, drawn: ``dims`` numbers of a row, ``rows`` tokens of a table."""

    def __init__(self, model: Model, found: Traced, dims: int, rows: int | None) -> None:
        self.model, self.found, self.dims, self.rows = model, found, dims, rows

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The view, in the order in which the text goes through the model."""
        found, trace, dims = self.found, self.found.trace, self.dims
        rows = row_limit(terminal, self.rows)
        yield from banner(self.model, trace.encoding)
        if found.addresses:
            for where in found.addresses:
                if where.step is not None and where.step.name == "next":
                    yield from prediction_blocks(trace, found.predictions)
                else:
                    yield from address_blocks(trace, where, found.head, dims=dims, rows=rows)
        else:
            yield Heading("pipeline", f"{len(found.rows)} steps")
            yield from pipeline_blocks(trace, found.rows, short=terminal.width < 130 and not terminal.plain)
            for layer in found.layers:
                yield Heading(f"block L{layer}, head {found.head}", self._block_note())
                for step in trace.steps.layer_steps:
                    yield from step_blocks(trace, step, layer, found.head, dims=dims, rows=rows, asked=False)
            if found.layers:
                yield Heading("weights of every head", "query down, key across")
                yield thumbnails(trace)
            yield from prediction_blocks(trace, found.predictions)
        if found.parameters is not None:
            yield from parameter_blocks(self.model, found.parameters, dims, rows)
        yield from check_blocks(found.check)
        yield from fault_blocks(found.fail_on, found.fault)

    def _block_note(self) -> str:
        config = self.model.config
        return f"of {config.n_layers} layers and {config.n_heads} heads; --layer and --head choose, --full shows all"
