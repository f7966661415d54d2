"""The view of a trace: banner, pipeline, one block in full, every head small, prediction, self-check."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tinytf.loading import Model
from tinytf.trace.address import Address
from tinytf.trace.check import Check, check
from tinytf.trace.faults import Fault
from tinytf.trace.summary import Row, pipeline, row_of
from tinytf.trace.trace import Trace
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.attention import thumbnails
from tinytf_cli.views.banner import banner, model_data, text_data
from tinytf_cli.views.blocks import Block, Heading
from tinytf_cli.views.faults import fault_blocks, fault_data
from tinytf_cli.views.pipeline import pipeline_blocks
from tinytf_cli.views.predictions import check_blocks, prediction_blocks, predictions
from tinytf_cli.views.steps import address_blocks, step_blocks


@dataclass(frozen=True)
class Selection:
    """What of a trace to show: ``addresses`` alone, or the pipeline with the block of ``layers`` and ``head``."""

    layers: tuple[int, ...]
    head: int
    addresses: tuple[Address, ...]
    dims: int
    rows: int | None
    detail: bool
    top: int
    fail_on: tuple[str, ...] = ()


class TraceView:
    """One trace in every form that output takes; each part is computed when it is first asked for."""

    def __init__(self, model: Model, trace: Trace, selection: Selection) -> None:
        self.model, self.trace, self.selection = model, trace, selection
        for where in selection.addresses:
            if where.cell:
                trace[where]  # a cell that is not there is said before anything is shown

    @cached_property
    def rows(self) -> list[Row]:
        return pipeline(self.trace)

    @cached_property
    def outcome(self) -> Check:
        return check(self.trace)

    @cached_property
    def fault(self) -> Fault | None:
        if not self.selection.fail_on:
            return None
        from tinytf.gradients.faults import first_fault

        return first_fault(self.trace, self.selection.fail_on)

    @property
    def holds(self) -> bool:
        """Whether the trace adds up, and nothing was found that was looked for."""
        return self.outcome.holds and self.fault is None

    @cached_property
    def predicted(self) -> list[dict[str, Any]]:
        return predictions(self.trace, self.model.tokenizer, self.selection.top)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The view, in the order in which the text goes through the model."""
        chosen, trace = self.selection, self.trace
        limit = chosen.rows if chosen.rows is not None else (16 if terminal.cuts else None)
        rows = None if limit == 0 else limit
        yield from banner(self.model, trace.encoding)
        if chosen.addresses:
            for where in chosen.addresses:
                if where.step is not None and where.step.name == "next":
                    yield from prediction_blocks(trace, self.predicted)
                else:
                    yield from address_blocks(trace, where, chosen.head, dims=chosen.dims, rows=rows)
            yield from check_blocks(self.outcome)
            yield from fault_blocks(chosen.fail_on, self.fault)
            return
        yield Heading("pipeline", f"{len(self.rows)} steps")
        yield from pipeline_blocks(trace, self.rows, short=terminal.width < 130 and not terminal.plain)
        if chosen.detail:
            for layer in chosen.layers:
                yield Heading(f"block L{layer}, head {chosen.head}", self._block_note())
                for step in trace.steps.layer_steps:
                    yield from step_blocks(trace, step, layer, chosen.head, dims=chosen.dims, rows=rows, asked=False)
            yield Heading("weights of every head", "query down, key across")
            yield thumbnails(trace)
        yield from prediction_blocks(trace, self.predicted)
        yield from check_blocks(self.outcome)
        yield from fault_blocks(chosen.fail_on, self.fault)

    def _block_note(self) -> str:
        config = self.trace.config
        return f"of {config.n_layers} layers and {config.n_heads} heads; --layer and --head choose, --full shows all"

    def _values(self) -> dict[str, Any]:
        """The tensors that the view shows, whole, by address."""
        chosen, trace = self.selection, self.trace
        found: dict[str, Any] = {}
        if chosen.addresses:
            for where in chosen.addresses:
                if where.step is None:
                    for layer in where.layers or ():
                        for head in where.heads or (chosen.head,):
                            found.update(self._block_values(layer, head))
                elif where.step.is_tensor:
                    found[str(where)] = {"axes": where.axes, "values": trace[where].tolist()}
        elif chosen.detail:
            for layer in chosen.layers:
                found.update(self._block_values(layer, chosen.head))
        return found

    def _block_values(self, layer: int, head: int) -> dict[str, Any]:
        found = {}
        for step in self.trace.steps.layer_steps:
            where = Address(step, (layer,), (head,) if step.has_heads else None)
            found[str(where)] = {"axes": where.axes, "values": self.trace[where].tolist()}
        return found

    def _steps(self) -> Sequence[Row]:
        chosen = self.selection.addresses
        if not chosen:
            return self.rows
        names = {(where.step.name, layer) for where in chosen if where.step for layer in where.layers or (None,)}
        numbered = enumerate(self.trace.steps.rows, start=1)
        return [row_of(self.trace, n, step, layer) for n, (step, layer) in numbered if (step.name, layer) in names]

    def data(self) -> dict[str, Any]:
        """The trace as one JSON object."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "trace",
            "model": model_data(self.model),
            **text_data(self.trace.encoding),
            "steps": [row.to_dict() for row in self._steps()],
            "values": self._values(),
            "predictions": self.predicted,
            "check": self.outcome.to_dict(),
            **fault_data(self.selection.fail_on, self.fault),
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        yield {"type": "trace", "schema_version": SCHEMA_VERSION, "model": data["model"], "text": data["text"],
               "added": data["added"]}  # fmt: skip
        for kind, key in (("token", "tokens"), ("step", "steps"), ("prediction", "predictions")):
            for one in data[key]:
                yield {"type": kind, **one}
            if key == "steps":
                for address, values in data["values"].items():
                    yield {"type": "values", "address": address, **values}
        yield {"type": "check", **data["check"]}
        if data.get("fault"):
            yield {"type": "fault", **data["fault"]}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The recorded tensors under their step names, with the ids."""
        ids = torch.tensor([token.id for token in self.trace.tokens])
        return {"ids": ids, **self.trace.recording.tensors}
