"""Options that commands share, each declared once; a command gets those that belong together as one frozen object."""

import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.shell_completion import CompletionItem

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.command import SHARED_OPTIONS, Command, argument, debug_option, option, parameters_of
from tinytf_cli.host import given, host
from tinytf_cli.inputs import conversation_in, read_conversations, read_texts
from tinytf_cli.output import Output, require_place

if TYPE_CHECKING:
    from tinytf.generate.decoder import Kind
    from tinytf.loading import Model
    from tinytf.report import Report
    from tinytf.text.chat import Written
    from tinytf.trace.trace import Trace
    from tinytf_cli.views.draw import Display

# Below this many parameters a second thread costs more in waiting than it saves in work.
SMALL = 10_000_000
_QUOTED = 50
"""Most characters of a text that is repeated in a command line."""
DEFAULT_MODEL = "TINYTF_MODEL, or tiny"
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def default_model() -> str:
    """What TINYTF_MODEL names; tiny without it."""
    return os.environ.get("TINYTF_MODEL") or "tiny"


def available_names() -> Iterator[tuple[str, str]]:
    """What --model takes beside paths, each with where it is. Without torch, and without reading a model."""
    from tinytf.checkpoints.stores import STORES
    from tinytf.presets import PRESETS

    yield from (("tiny", "built in"), ("tiny-encoder", "built in"))
    yield from ((f"preset:{name}", "random weights of this shape") for name in PRESETS)
    yield from ((name, store.place) for store in STORES for name in store.names() if name.isprintable())


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    found = [CompletionItem(name, help=about) for name, about in available_names() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]


def complete_address(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Steps and parameters of every architecture, after the layer and head that are typed. Without torch."""
    from tinytf.steps.table import STEPS

    place, dot, _ = incomplete.partition(".") if re.match(r"L[0-9*-]", incomplete) else ("", "", "")
    part = next((letter for letter in "HE" if letter in place), "")
    rows = [row for row in STEPS if row.in_layer == bool(dot) and (not part or (row.is_split and row.letter == part))]
    common = {"w_up": "W_up", "w_down": "W_down", "matrix": "W_U"}  # a model without a gate knows these names too
    names = [row.name for row in rows] + [row.parameter.format_map(common) for row in rows if row.module and row.matrix]
    return [CompletionItem(one) for name in dict.fromkeys(names) if (one := place + dot + name).startswith(incomplete)]


@dataclass(frozen=True)
class ModelOptions:
    """Which model to open, and how; ``seed`` is that of whatever else is random."""

    GROUP: ClassVar = "Model"
    SHARED: ClassVar = True

    model: str = option(
        "-m", "--model", metavar="MODEL", default=default_model, show_default=DEFAULT_MODEL,
        shell_complete=complete_model,
        help="A name that tinytf models lists, a folder, a .gguf file, preset:NAME or hub:ORG/NAME.",
    )  # fmt: skip
    device: str = option(type=click.Choice(DEVICES), shown="auto", help="Where to compute.")
    dtype: str = option(type=click.Choice(DTYPES), shown="float32", help="Number format of weights and activations.")
    seed: int = option(type=click.IntRange(0, 2**63 - 1), shown=0, help="Random seed.")
    adapter: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR", help="Merge this LoRA adapter of PEFT into the weights."
    )

    def open(self) -> "Model":
        """The model; inside a session, where none was typed, the session's."""
        session = host()
        if session is not None and not given("model", "device", "dtype", "adapter"):
            return session.model
        from tinytf.loading import load

        opened = load(self.model, device=self.device, dtype=self.dtype, seed=self.seed, adapter=self.adapter)
        if opened.n_parameters < SMALL:
            import torch

            torch.set_num_threads(1)
        return opened


@dataclass(frozen=True)
class DecodingOptions:
    """How tokens are decoded."""

    GROUP: ClassVar = "Decoding"

    no_cache: bool = option(is_flag=True, help="Recompute every token for each new one.")
    chunk: int | None = option("--prefill-chunk", type=click.IntRange(1), help="Most prompt tokens in one pass.")
    compile: bool = option(is_flag=True, help="Compile the kernels first; needs a C++ compiler.")
    quantize: str | None = option(type=click.Choice(["int8"]), help="Decode with 8-bit weights, and report the cost.")

    @property
    def use_cache(self) -> bool:
        return not self.no_cache

    @property
    def kind(self) -> "Kind":
        """The decoder that is asked for."""
        from tinytf.generate.decoder import Kind

        return Kind(compile=self.compile, quantize=self.quantize is not None)


@dataclass(frozen=True)
class BlockOptions:
    """Which block is shown in full, and how much of it."""

    GROUP: ClassVar = "Block"

    layer: str = option(metavar="N", shown="0", help="Layer of the block shown in full; -1 is the last, 0,2 two.")
    head: str = option(metavar="N", shown="0", help="Head of that block; -1 is the last.")
    full: bool = option(is_flag=True, help="Show the block of every layer.")
    dims: int = option(type=click.IntRange(1), shown=8, help="Dimensions shown as numbers.")
    rows: int | None = option(type=click.IntRange(0), help="Tokens in a table; 0 for all.  [default: 16 on a screen]")

    def layers(self, model: "Model") -> tuple[int, ...]:
        """The layers whose blocks are shown; AddressError for a layer or head that the model does not have."""
        from tinytf.trace.address import read_numbers

        self.head_of(model)
        layers = read_numbers(self.layer, model.config.n_layers, "layer") or ()
        return tuple(range(model.config.n_layers)) if self.full else layers

    def head_of(self, model: "Model") -> int:
        """The head of those blocks."""
        from tinytf.trace.address import one_number

        return one_number(self.head, model.config.n_heads, "head")


@dataclass(frozen=True)
class FoldOptions:
    """Whether a view is folded to one screen."""

    GROUP: ClassVar = "Output"

    all: bool = option(is_flag=True, help="Show every row and number; long tables are folded to a screen otherwise.")

    def rows(self, asked: int | None = None) -> int | None:
        """The most rows of a table: as ``asked``, 0 for all of them, None for what suits a screen."""
        return 0 if self.all and asked is None else asked


@dataclass(frozen=True)
class ResumeOptions:
    """Where what is measured is kept, to be continued."""

    GROUP: ClassVar = "Output"

    resume: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Keep what is measured in FILE, a line each, and continue from what it holds.",
    )  # fmt: skip

    def place(self, needs: str) -> Path | None:
        """The file; UsageError where ``needs`` says what is missing to measure anything, or it must not be written."""
        if self.resume is not None:
            if needs:
                raise UsageError(f"--resume goes with {needs}", "anything else is measured at once")
            require_place(self.resume)
        return self.resume


@dataclass(frozen=True)
class SectionOptions:
    """What is shown beside the answer."""

    GROUP: ClassVar = "Block"

    every: bool = option("--all", is_flag=True, help="Show every layer, the pipeline, a block and every head.")
    pipeline: bool = option(is_flag=True, help="Show the pipeline alone: one line a step.")
    blocks: tuple[str, ...] = option(
        "--block", multiple=True, metavar="ADDRESS",
        help="Show this layer and head in full, such as L1H2 or L0-3H1. Repeatable.",
    )  # fmt: skip

    def shown(self) -> frozenset[str]:
        """Which of ``summary``, ``pipeline`` and ``block`` were asked for."""
        block = self.every or given("layer", "head", "full")
        asked = {"summary": self.every, "pipeline": self.every or self.pipeline, "block": block}
        return frozenset(name for name, is_asked in asked.items() if is_asked)


@dataclass(frozen=True)
class FaultOptions:
    """Which faults to look for."""

    fail_on: str | None = option(
        metavar="KINDS", help="Name the first step with nan, inf, saturated, dead or mismatch (or several: nan,inf), "
        "and exit 1.",
    )  # fmt: skip

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that were named; UsageError for one that does not exist."""
        if self.fail_on is None:
            return ()
        from tinytf.gradients.faults import KINDS

        chosen = tuple(word.strip() for word in self.fail_on.split(","))
        for word in chosen:
            if word not in KINDS:
                raise UsageError(f"--fail-on knows no {word!r}", did_you_mean(word, KINDS))
        return chosen


@dataclass(frozen=True)
class ChatOptions:
    """How texts are read: as they are, or with ``chat`` as conversations: a message of the user, or JSON."""

    GROUP: ClassVar = "Text"
    SHARED: ClassVar = True

    chat: bool = option(
        is_flag=True, help="Put TEXT, or the messages of a .json file, into the model's chat template."
    )  # fmt: skip
    system: str | None = option(metavar="TEXT", help="System message of a --chat.")

    def read(self, words: tuple[str, ...], *, lines: bool = False) -> "list[Written]":
        """The text of some words, or with ``lines`` several; inside a session, without words, the session's.

        Raises as ``read_texts`` and ``read_conversations`` do.
        """
        self.require_chat()
        session = host()
        if session is not None and not words:
            text = session.require_text()
            if not isinstance(text, str):
                return [text]
            words = (text,)
        if self.chat:
            return list(read_conversations(words, lines=lines, system=self.system))
        return list(read_texts(words, lines=lines))

    def each(self, words: "tuple[Written, ...]") -> "list[Written]":
        """One text of each word; a conversation of a session is one already."""
        return [self.read((word,))[0] if isinstance(word, str) else word for word in words]

    def of(self, text: str) -> "Written":
        """A text of a file."""
        self.require_chat()
        return conversation_in(text, self.system) if self.chat else text

    def require_chat(self) -> None:
        """UsageError for a message of no conversation."""
        if self.system is not None and not self.chat:
            raise UsageError("--system is a message of a conversation, and this is none", "add --chat")


@dataclass(frozen=True)
class TextOptions(ChatOptions):
    """The texts that were given; with ``lines`` each line is one, with ``truncate`` long ones are cut."""

    words: tuple[str, ...] = argument(nargs=-1, metavar="TEXT")
    lines: bool = option(is_flag=True, help="Treat every line as a text of its own.")
    truncate: bool = option(is_flag=True, help="Cut a text that is longer than the model's context.")

    def __post_init__(self) -> None:
        self.given  # noqa: B018 - a missing text is told before a model is opened

    @cached_property
    def given(self) -> "list[Written]":
        return self.read(self.words, lines=self.lines)

    def __iter__(self) -> "Iterator[Written]":
        return iter(self.given)


@dataclass(frozen=True)
class OptionalTextOptions(TextOptions):
    """Texts that are missed only where they are read."""

    def __post_init__(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Texts to record on a model, and where what is found in each goes."""

    GROUP: ClassVar = "Model"
    SHARED: ClassVar = True

    texts: TextOptions
    opening: ModelOptions
    force: bool = option(is_flag=True, help="Record even what is larger than the free memory.")
    output: Output

    @cached_property
    def model(self) -> "Model":
        return self.opening.open()

    def trace(self, text: "Written", layers: "set[int] | list[int] | None" = None) -> "Trace":
        """The recording of one text, of all layers or of some."""
        return self.model.trace(text, truncate=self.texts.truncate, layers=layers, force=self.force)

    def again(self) -> "Callable[[Written], Callable[..., str]]":
        """Make command lines that ask another command, with ``options`` after the text, about one of the texts.

        As it is typed here; a text that is no short line is TEXT.
        """
        more = ("--chat",) if self.texts.chat else ()
        more = (*more, "--system", self.texts.system) if self.texts.system is not None else more
        if host() is not None:
            return lambda text: lambda *command, options=(): shlex.join([*command, *options, *more])
        model = self.opening.model
        more = ("-m", model if model.isprintable() else "MODEL", *more) if given("model") else more

        def about(text: "Written") -> "Callable[..., str]":
            typed = " ".join(self.texts.words) if self.texts.chat else str(text)
            short = typed.isprintable() and 0 < len(typed) <= _QUOTED and not typed.startswith("-")
            word = typed if short else "TEXT"
            return lambda *command, options=(): shlex.join(["tinytf", *command, word, *options, *more])

        return about

    def show(
        self, question: "Callable[[Trace], Report]", plural: str, display: "Display | None" = None,
        layers: Any = None,
    ) -> int:  # fmt: skip
        """Record each text, ask the question of it, and draw the answer. The exit status: 1 where a check fails."""
        reports = (question(self.trace(text, layers)) for text in self.texts)
        return self.output.draw_all(reports, plural, self.texts.lines, display)


@dataclass(frozen=True, kw_only=True)
class AddressOptions(TraceOptions):
    """Options of a trace for addresses; those of parameters need no text."""

    texts: OptionalTextOptions

    def note_unread_text(self) -> None:
        """Tell, where every address is a parameter's, that TEXT is not read."""
        if self.texts.words:
            self.output.note("a parameter is the same for every text, so TEXT is not read")


def shared_options() -> Command:
    """A command that has nothing but the options that commands share, for their help page."""
    page = "The options of most commands. TEXT comes from the argument, from a pipe, or from - for standard input."
    options = (parameter for parameter in parameters_of(TraceOptions) if isinstance(parameter, click.Option))
    return Command(SHARED_OPTIONS, params=[*options, debug_option()], help=page)
