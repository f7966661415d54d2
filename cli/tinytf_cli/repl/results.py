"""Results of verbs: a few blocks and the same as data, and what is said where the model runs without some steps."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinytf.report import SCHEMA_VERSION
from tinytf_cli.output import Result
from tinytf_cli.repl.state import Without
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span

if TYPE_CHECKING:
    import torch


def answer(kind: str, data: Mapping[str, Any], *blocks: Block) -> Result:
    """A result that is a few blocks, and the same as data."""
    return made_of(kind, lambda terminal: blocks, lambda: data)


def made_of(
    kind: str,
    blocks: Callable[[Terminal], Iterable[Block]],
    data: Callable[[], Mapping[str, Any]],
    tensors: "Callable[[], dict[str, torch.Tensor]] | None" = None,
) -> Result:
    """A result whose blocks and data are made when they are asked for; as events it is one."""

    def whole() -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "kind": kind, **data()}

    def events() -> Iterator[Mapping[str, Any]]:
        yield {"type": kind, "schema_version": SCHEMA_VERSION, **data()}

    return Result(blocks, whole, events, tensors)


def gone_lines(gone: Without | None) -> tuple[Block, ...]:
    """What is said where a number depends on what the model runs without."""
    return () if gone is None else (Line(Span(f"without {gone.words}", "dim")),)


def gone_data(gone: Without | None) -> dict[str, Any]:
    """The same as data; nothing where the model is whole."""
    return {} if gone is None else {"without": {"at": list(gone.at), "how": gone.how, "reference": gone.reference}}


def ablated(found: Result, gone: Without) -> Result:
    """A result that says what the model ran without."""

    def events() -> Iterator[Mapping[str, Any]]:
        for event in found.events():
            yield {**event, **gone_data(gone)}

    def blocks(terminal: Terminal) -> Iterator[Block]:
        yield from found.blocks(terminal)
        yield from gone_lines(gone)

    return replace(found, blocks=blocks, data=lambda: {**found.data(), **gone_data(gone)}, events=events)
