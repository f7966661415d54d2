"""Questions about a model as tools of the Model Context Protocol, over standard input and output.

Each tool is one method of ``Model``; its answer is the data that the command prints with ``--json``, cut to what an
assistant can read. Nothing is written, and only models below the given roots are opened.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BeforeValidator, Field

from tinytf.compare.dumps.read import is_dump, open_dump
from tinytf.errors import TinytfError, UsageError
from tinytf.fields import quoted
from tinytf.files import parse_json
from tinytf.loading import Model, load
from tinytf.presets import BUILT_IN
from tinytf.report import Report
from tinytf.version import __version__
from tinytf_cli.text_options import asked_of, bound_to

ROOM = 24_000
"""The most characters of an answer, as JSON; about 8,000 tokens."""
_NUMBERS_COST = 4
"""How much sooner a list without records is cut than one of as many characters with records."""
_INSTRUCTIONS = (
    "Looks at every number inside of a transformer. An address names a step: L3 is a layer, L3H5 a head, L3H5.weights "
    "its attention weights, L3H5.weights[2,1] one number, L3.ffn a feed-forward. Every answer begins with a sentence "
    "that says what was found; left_out names what was cut. Start with trace, then explain, lens or attribute."
)

Text = Annotated[str, Field(description="The text that the model reads.")]
ModelName = Annotated[
    str,
    Field(description="tiny, tiny-encoder, tiny-translator, preset:NAME, or a folder or .gguf file below a root."),
]
Target = Annotated[
    str | None, Field(description="Of a model of two stacks, whose source is text: its target. Default: generated.")
]
Several = Annotated[list[str], BeforeValidator(lambda words: [words] if isinstance(words, str) else words)]
Token = Annotated[str | None, Field(description="One token of the vocabulary: a word, or #ID. Default: the predicted.")]


def fitted(data: Mapping[str, Any], room: int = ROOM) -> dict[str, Any]:
    """The data with its largest lists halved until it fits into ``room`` characters; ``left_out`` says what is left.

    A list of lists is halved along its longer side. Short lists, such as the tokens, stay whole; numbers of steps go
    before records do.
    """
    result: dict[str, Any] = parse_json(_json(data))
    lists = dict(_lists(result, ""))
    sizes = {path: len(_json(items)) for path, items in lists.items()}
    costs = {path: 1 if isinstance(next(iter(items), None), dict) else _NUMBERS_COST for path, items in lists.items()}
    shapes = {path: _shape(items) for path, items in lists.items()}
    left_out: dict[str, str] = {}
    while (over := len(_json(result)) - room) > 0:
        while over > 0:
            path = max(sizes, key=lambda path: sizes[path] * costs[path], default="")
            items = lists.get(path)
            if not items:
                raise UsageError(
                    f"the answer does not fit into {room:,} characters", "ask for fewer steps, or a shorter text"
                )
            before = sizes[path]
            _halve(items)
            sizes[path] = len(_json(items))
            over -= before - sizes[path]
            left_out[path] = f"the first {_shape(items)} of {shapes[path]} are here"
        result["left_out"] = left_out
    return result


def _json(data: Any) -> str:
    return json.dumps(data, default=str, ensure_ascii=False, separators=(",", ":"))


def _lists(value: Any, path: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists that are in no other list, each with the members that lead to it."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _lists(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        yield path, value


def _shape(items: list[Any]) -> str:
    """``458``, or ``9 × 640`` for a list of lists."""
    inner = items[0] if items else None
    return f"{len(items):,} × {_shape(inner)}" if isinstance(inner, list) else f"{len(items):,}"


def _halve(items: list[Any]) -> None:
    if isinstance(items[0], list) and len(items[0]) > len(items):
        for inner in items:
            if inner:
                _halve(inner)
    else:
        del items[len(items) // 2 :]


@dataclass
class Bench:
    """The models that the tools open, each once; paths lead below ``roots``. Calls take turns: one is ``at_work``."""

    roots: tuple[Path, ...]
    opened: dict[str, Model] = field(default_factory=dict)
    at_work: Lock = field(default_factory=Lock)

    def model(self, name: str) -> Model:
        """The model of this name. Raises UsageError for a path outside of the roots, and for one of the hub."""
        key = self.place(name)
        if key not in self.opened:
            self.opened.clear()  # one at a time is in memory
            self.opened[key] = load(key)
        return self.opened[key]

    def reading(self, name: str, text: str, target: str | None) -> tuple[Model, str]:
        """The model and the text to ask about; of two stacks, the one that reads the text, and its target."""
        (bound,), (asked,) = asked_of(self.model(name), [text], target)
        return bound, str(asked)

    def place(self, name: str) -> str:
        """The name, or the resolved path that it stands for. Raises UsageError like ``model``."""
        if name in BUILT_IN or name.startswith("preset:"):
            return name
        if name.startswith("hub:"):
            raise UsageError("nothing is downloaded here", "give the path of a model below a root")
        for root in self.roots:
            with suppress(OSError, ValueError):  # a name that no file can have
                path = (root / name).resolve()
                if path.is_relative_to(root) and path.exists():
                    return str(path)
        allowed = ", ".join(map(str, self.roots)) or "none: start with --root FOLDER"
        raise UsageError(f"there is no model {quoted(name)} here", f"built in: {', '.join(BUILT_IN)}; roots: {allowed}")


def tools(bench: Bench) -> Mapping[str, Callable[..., Report]]:
    """The tools by name: functions of plain arguments that return a report."""

    def trace(
        text: Text,
        model: ModelName = "tiny",
        at: Annotated[Several, Field(description="Addresses to give in full, such as L1H2.weights.")] = [],  # noqa: B006
        target_text: Target = None,
    ) -> Report:
        """Run a text, check every step, and give the prediction; with at, the numbers at these addresses."""
        asked, text = bench.reading(model, text, target_text)
        return asked.traced(text, at=at)

    def explain(
        text: Text,
        address: Annotated[str, Field(description="One number, such as L0H3.scores[2,1] or logits[-1,#42].")],
        model: ModelName = "tiny",
        depth: Annotated[int, Field(ge=1, le=6, description="How many levels of inputs to explain as well.")] = 1,
        target_text: Target = None,
    ) -> Report:
        """Show the arithmetic behind one number, and check it against the recorded one."""
        asked, text = bench.reading(model, text, target_text)
        return asked.explain(text, address, depth=depth)

    def diff(
        text: Text,
        other_text: Annotated[str | None, Field(description="Another text, for the same model.")] = None,
        other_model: Annotated[str | None, Field(description="Another model, or a dump, for the same text.")] = None,
        model: ModelName = "tiny",
        floor: Annotated[str | None, Field(description="bf16, fp16 or q8_0: is it rounding or a bug?")] = None,
        target_text: Target = None,
    ) -> Report:
        """Find the first step that differs between two texts, two models, or a model and another program's dump."""
        first = bench.model(model)
        if (other_text is None) == (other_model is None):
            raise UsageError("compare with one thing: other_text or other_model")
        texts = [text] if other_text is None else [text, other_text]
        (bound, *others), (asked, *more) = asked_of(first, texts, target_text)
        if others:
            return bound.diff(asked, (others[0], more[0]))
        other = _other(bench, str(other_model))
        return bound.diff(asked, (bound_to(other, text), asked) if isinstance(other, Model) else other, floor=floor)

    def lens(
        text: Text,
        model: ModelName = "tiny",
        track: Annotated[Several, Field(description="Words whose rank to follow, each one token.")] = [],  # noqa: B006
        position: Annotated[str | None, Field(description="Positions to read: 2, 0-3, -1, or a token.")] = "-1",
        target_text: Target = None,
    ) -> Report:
        """Show what the model would predict after each layer."""
        asked, text = bench.reading(model, text, target_text)
        return asked.lens(text, track=track, position=position)

    def attribute(
        text: Text, model: ModelName = "tiny", token: Token = None, versus: Token = None, target_text: Target = None
    ) -> Report:
        """Split the logit of a token, or its lead over another, into what each head and feed-forward adds."""
        asked, text = bench.reading(model, text, target_text)
        return asked.attribute(text, token=token, versus=versus)

    def ablate(
        text: Text,
        at: Annotated[Several, Field(description="What to set to zero: L1H2, L3.ffn, L2. Empty: a sweep.")] = [],  # noqa: B006
        sweep: Annotated[str, Field(description="Without at, each of these alone: heads, ffn or layers.")] = "heads",
        model: ModelName = "tiny",
        target: Token = None,
        target_text: Target = None,
    ) -> Report:
        """Show the prediction without some parts, or find the part that matters most."""
        opened, text = bench.reading(model, text, target_text)
        return opened.ablate(text, at, target=target) if at else opened.ablate_sweep(text, sweep, target=target)

    def patch(
        clean: Annotated[str, Field(description="The text whose activations are put in.")],
        corrupt: Annotated[str, Field(description="The text that runs; as many tokens as the clean one.")],
        at: Annotated[Several, Field(description="What to patch: L1H2, L3.ffn, L2.in. Empty: a sweep.")] = [],  # noqa: B006
        sweep: Annotated[str, Field(description="Without at: residual, heads, attn or ffn.")] = "residual",
        model: ModelName = "tiny",
        answer: Token = None,
        versus: Token = None,
        target_text: Target = None,
    ) -> Report:
        """Find which activations of the clean text bring its answer back in the corrupt one."""
        opened = bench.model(model)
        models, texts = asked_of(opened, [clean, corrupt], target_text, until_apart=True)
        first, second = (one.trace(text) for one, text in zip(models, texts, strict=True))
        if at:
            return opened.patch(first, second, at, answer=answer, versus=versus)
        return opened.patch_sweep(first, second, sweep, answer=answer, versus=versus)

    def score(text: Text, model: ModelName = "tiny", target_text: Target = None) -> Report:
        """Give the probability, rank and entropy of every token, and the perplexity of the text."""
        asked, text = bench.reading(model, text, target_text)
        return asked.score(text)

    return {function.__name__: function for function in (trace, explain, diff, lens, attribute, ablate, patch, score)}


def _other(bench: Bench, name: str) -> Any:
    """The other side of a comparison: a dump by its file name, else a model."""
    place = bench.place(name)
    return open_dump(place) if is_dump(place) else load(place)


def server(roots: Sequence[Path]) -> MCPServer:
    """The server of all tools; models are built in, or below ``roots``."""
    made = MCPServer("tinytf", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING")
    bench = Bench(tuple(root.resolve() for root in roots))
    for name, function in tools(bench).items():
        made.add_tool(
            answering(function, bench),
            name=name,
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
    return made


def answering(function: Callable[..., Report], bench: Bench) -> Callable[..., CallToolResult]:
    """The function with its report as fitted data and as compact text, and an error as one line with its hint.

    The server calls it in threads; each call waits until no other one is at work.
    """

    @wraps(function)
    def answer(*args: Any, **kwargs: Any) -> CallToolResult:
        try:
            with bench.at_work:
                report = function(*args, **kwargs)
                data = fitted({"holds": report.holds, **report.to_dict()})
        except TinytfError as error:
            raise ToolError(f"{error.message}. {error.hint}".strip()) from None
        return CallToolResult(content=[TextContent(type="text", text=_json(data))], structured_content=data)

    signature = inspect.signature(function).replace(return_annotation=dict[str, Any])
    answer.__signature__ = signature  # type: ignore[attr-defined]
    return answer
