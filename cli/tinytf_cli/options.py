"""Options that commands share, each declared once. A command gets each group as one frozen object."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click
from click.shell_completion import CompletionItem

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.command import SHARED_OPTIONS, Command, argument, debug_option, option, parameters_of
from tinytf_cli.host import host, is_typed
from tinytf_cli.inputs import conversation_in, corpus_or_recorded, read_conversations, read_texts
from tinytf_cli.output import Output, require_place
from tinytf_cli.ranges import SEEDS, Whole

if TYPE_CHECKING:
    from tinytf.bulk.folder import RecordedCorpus
    from tinytf.cause.over_pairs import OverPairs
    from tinytf.features.report import Features
    from tinytf.generate.decoder import Kind
    from tinytf.loading import Model
    from tinytf.look.neurons import Neurons, TopExamples
    from tinytf.pairs.pair import PairSet
    from tinytf.report import Report
    from tinytf.text.chat import Written
    from tinytf.text.corpus import Corpus
    from tinytf.through.model import ThroughModel
    from tinytf.trace.trace import Trace
    from tinytf_cli.many import Answer
    from tinytf_cli.views.draw import Display

Units = TypeVar("Units", "Neurons", "Features")

# Below this many parameters, synchronising a second thread costs more than it saves.
SMALL = 10_000_000
_QUOTED = 50
"""Longest text, in characters, that a suggested command line repeats."""
DEFAULT_MODEL = "TINYTF_MODEL, or tiny"
WITH_THROUGH = "trace, score, generate, lens, ablate, patch and diff"
"""The commands that work on a model that runs through transformers."""
DEVICES = ("auto", "cpu", "cuda", "mps")
FLOORS = ("bf16", "fp16", "q8_0")
"""Those of ``tinytf.compare.floor``, repeated here because that imports torch."""
DTYPES = ("float32", "bfloat16", "float16", "float64")


def default_model() -> str:
    """The model that TINYTF_MODEL names, or tiny."""
    return os.environ.get("TINYTF_MODEL") or "tiny"


def available_names() -> Iterator[tuple[str, str]]:
    """The names that --model accepts besides paths, each with its location. Imports no torch and reads no model."""
    from tinytf.checkpoints.stores import STORES
    from tinytf.presets import PRESETS

    yield from (("tiny", "built in"), ("tiny-encoder", "built in"))
    yield from ((f"preset:{name}", "random weights of this shape") for name in PRESETS)
    yield from ((name, store.place) for store in STORES for name in store.names() if name.isprintable())


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    items = [CompletionItem(name, help=about) for name, about in available_names() if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="dir")]


def complete_address(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the steps and parameters of every architecture, after the typed layer and head. Imports no torch."""
    from tinytf.steps.table import STEPS

    prefix, dot, _ = incomplete.partition(".") if re.match(r"L[0-9*-]", incomplete) else ("", "", "")
    part = next((letter for letter in "HE" if letter in prefix), "")
    rows = [row for row in STEPS if row.in_layer == bool(dot) and (not part or (row.is_split and row.letter == part))]
    common = {"w_up": "W_up", "w_down": "W_down", "matrix": "W_U"}  # also valid in a model without a gate
    names = [row.name for row in rows] + [row.parameter.format_map(common) for row in rows if row.module and row.matrix]
    return [
        CompletionItem(completion)
        for name in dict.fromkeys(names)
        if (completion := prefix + dot + name).startswith(incomplete)
    ]


def _names_a_model() -> bool:
    """Whether an option of a command in a session names another model than the session's."""
    return is_typed("model", "device", "dtype", "through", "trust_remote_code", "adapter", "tokenizer")


def tokenizer_option() -> Any:
    """The option that names or sets the tokenizer of a model."""
    return option(
        "--tokenizer",
        metavar="PLACE,KEY=VALUE",
        help="Another place to read the tokenizer from, or settings of it, such as do_lower_case=false.",
    )


@dataclass(frozen=True)
class ModelOptions:
    """Which model to open, and how. ``seed`` also seeds everything else that is random."""

    GROUP: ClassVar = "Model"
    SHARED: ClassVar = True

    model: str = option(
        "-m", "--model", metavar="MODEL", default=default_model, show_default=DEFAULT_MODEL,
        shell_complete=complete_model,
        help="A name that tinytf models lists, a folder, a .gguf file, preset:NAME or hub:ORG/NAME.",
    )  # fmt: skip
    device: str = option(type=click.Choice(DEVICES), shown="auto", help="Where to compute.")
    dtype: str = option(type=click.Choice(DTYPES), shown="float32", help="Number format of weights and activations.")
    seed: int = option(type=Whole(0, SEEDS), shown=0, help="Random seed.")
    through: str | None = option(
        type=click.Choice(["transformers"]),
        help="Run a directory through transformers, with hooks on its modules; by default where tinytf has no table.",
    )  # fmt: skip
    trust_remote_code: bool = option(is_flag=True, help="With --through: run the Python code in the directory.")
    adapter: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR", help="Merge this PEFT LoRA adapter into the weights."
    )
    tokenizer: str | None = tokenizer_option()

    def typed_again(self) -> tuple[str, ...]:
        """The typed options by which another command opens the model in the same way."""
        flags: list[str] = []
        for setting in parameters_of(ModelOptions):
            name, value = str(setting.name), getattr(self, str(setting.name))
            if is_typed(name):
                word = str(value) if str(value).isprintable() else str(setting.human_readable_name).upper()
                flags += [setting.opts[0]] if value is True else [setting.opts[0], word]
        return tuple(flags)

    def through_model(self, output: Output) -> "ThroughModel | None":
        """The model through transformers, if --through asks for it or tinytf has no table for it; else None.

        In a session it is the session's, unless an option names another.
        """
        session = host()
        if session is None:
            return self.opened_through(output.note)
        if self.trust_remote_code:
            raise UsageError("code in the directory of a model does not run in a session", "use the command line")
        return (
            replace(self, through=self._asks_for).opened_through(output.note) if _names_a_model() else session.through
        )

    def opened_through(self, note: Callable[[str], None]) -> "ThroughModel | None":
        """As ``through_model``, whatever the session has; ``note`` says what was not asked for."""
        if self.through is None:
            if self.trust_remote_code:
                return None
            from tinytf.through.opening import has_no_table

            if not has_no_table(self.model):
                return None
            note("there is no table for this architecture, so it runs through transformers")
        from tinytf.through.model import open_through
        from tinytf_cli.many import claim_gpu

        claim_gpu()
        for name in ("adapter", "tokenizer"):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name} goes with a model that tinytf computes itself", "leave it out")
        return open_through(
            self.model, device=self.device, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )  # fmt: skip

    @property
    def _asks_for(self) -> str | None:
        """What --through asks for; a session's does not concern another model."""
        is_other = host() is not None and is_typed("model") and not is_typed("through")
        return None if is_other else self.through

    def open(self) -> "Model":
        """Open the model. In a session, use the session's model unless an option names another.

        Raises UsageError for --through, which only some commands take; those ask ``through_model`` first.
        """
        session = host()
        if session is not None and not _names_a_model():
            return session.model
        if self.trust_remote_code and self._asks_for is None:
            raise UsageError("--trust-remote-code goes with --through", "add --through transformers")
        if self._asks_for is not None:
            raise UsageError(
                "this needs a model that tinytf computes itself, not one that runs through transformers",
                f"{WITH_THROUGH} take --through transformers",
            )
        from tinytf.checkpoints.huggingface.load import UnknownArchitecture
        from tinytf.loading import load
        from tinytf_cli.many import claim_gpu

        claim_gpu()
        try:
            opened = load(
                self.model, self.tokenizer, device=self.device, dtype=self.dtype, seed=self.seed, adapter=self.adapter
            )
        except UnknownArchitecture as error:
            raise UnknownArchitecture(error.message, f"{WITH_THROUGH} run it with --through transformers") from None
        if opened.n_parameters < SMALL:
            import torch

            torch.set_num_threads(1)
        return opened


@dataclass(frozen=True)
class DecodingOptions:
    """How tokens are decoded."""

    GROUP: ClassVar = "Decoding"

    no_cache: bool = option(is_flag=True, help="Recompute every token for each new one.")
    chunk: int | None = option("--prefill-chunk", type=Whole(1), help="Prompt tokens per forward pass, at most.")
    compile: bool = option(is_flag=True, help="Compile the kernels first; needs a C++ compiler.")
    quantize: str | None = option(type=click.Choice(["int8"]), help="Decode with 8-bit weights, and report the cost.")

    @property
    def use_cache(self) -> bool:
        return not self.no_cache

    @property
    def kind(self) -> "Kind":
        """The kind of decoder that these options select."""
        from tinytf.generate.decoder import Kind

        return Kind(compile=self.compile, quantize=self.quantize is not None)


@dataclass(frozen=True)
class BlockOptions:
    """Which block to show in full, and how much of it."""

    GROUP: ClassVar = "Block"

    layer: str = option(metavar="N", shown="0", help="Layer to show in full; -1 is the last, 0,2 shows two.")
    head: str = option(metavar="N", shown="0", help="Head to show in that layer; -1 is the last.")
    full: bool = option(is_flag=True, help="Show every layer in full, with every number.")
    dims: int | None = option(
        type=Whole(0), help="Numbers of a row; 0 for all.  [default: 8, all of up to 1,000 at an address]"
    )
    rows: int | None = option(type=Whole(0), help="Tokens in a table; 0 for all.  [default: 16 on a screen]")

    def layers(self, model: "Model") -> tuple[int, ...]:
        """The layers to show in full. Raises AddressError for a layer or head that the model does not have."""
        from tinytf.trace.address import parse_numbers

        self.head_of(model)
        layers = parse_numbers(self.layer, model.config.n_layers, "layer") or ()
        return tuple(range(model.config.n_layers)) if self.full else layers

    def dims_and_rows(self, everything: bool) -> tuple[int | None, int | None]:
        """``dims`` and ``rows``: unless they were set, 0 for all with ``full`` or where ``everything`` is shown."""
        usual = 0 if everything or self.full else None
        return usual if self.dims is None else self.dims, usual if self.rows is None else self.rows

    def head_of(self, model: "Model") -> int:
        """The head to show. Raises AddressError for one that the model does not have."""
        from tinytf.trace.address import parse_single_number

        return parse_single_number(self.head, model.config.n_heads, "head")


@dataclass(frozen=True)
class FoldOptions:
    """Whether a view is folded to one screen."""

    GROUP: ClassVar = "Output"

    all: bool = option(is_flag=True, help="Show every row and number; long tables are folded to a screen otherwise.")

    def rows(self, limit: int | None = None) -> int | None:
        """The most rows of a table: ``limit`` if it is set; 0 for all rows, None for as many as suit a screen."""
        return 0 if self.all and limit is None else limit


@dataclass(frozen=True)
class UnitOptions:
    """How units or features are shown, and the corpus in which more of their places are looked for."""

    tokens: int = option(type=Whole(1), shown=5, help="Tokens shown at either end of a direction.")
    corpus: tuple[Path, ...] = option(
        "--top-examples", multiple=True, type=click.Path(path_type=Path), metavar="CORPUS",
        help="Find where the shown ones are most active in these text files or folders, in - (a pipe), or in a folder "
        "of tinytf record. Repeatable.",
    )  # fmt: skip
    examples: int = option(type=Whole(1, 1000), shown=5, help="Examples kept for each.")
    window: int | None = option(type=Whole(1), help="Corpus tokens in one pass.  [default: at most 128]")
    rows: int | None = option(type=Whole(0), help="Tokens in a table; 0 for all.  [default: as many as suit a screen]")

    def opened(self, texts: "TextOptions") -> "Corpus | RecordedCorpus | None":
        """The corpus, if one is named. Raises UsageError as ``find_files`` does."""
        return corpus_or_recorded(self.corpus, texts.words) if self.corpus else None

    def with_examples(
        self, report: "Units", corpus: "Corpus | RecordedCorpus | None", find: "Callable[..., TopExamples]",
        output: Output,
    ) -> "Units":  # fmt: skip
        """The report with the places that ``find`` finds in the corpus, if there is one."""
        from tinytf_cli.progress_line import progress_line

        if corpus is None:
            return report
        with progress_line(output.stderr, "reading the corpus:") as on_progress:
            examples = find(corpus, top=self.examples, window=self.window, on_progress=on_progress)
        name = ", ".join("standard input" if path == Path("-") else str(path) for path in self.corpus)
        return replace(report, examples=replace(examples, corpus=name))


@dataclass(frozen=True)
class ResumeOptions:
    """The file that saves measurements, so that an interrupted run can continue."""

    GROUP: ClassVar = "Output"

    resume: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Save each measurement as a line of FILE, and continue from those it has.",
    )  # fmt: skip

    def checked_file(self, needs: str) -> Path | None:
        """The file to write. Raises UsageError if it cannot be written, or if ``needs`` names a missing option."""
        if self.resume is not None:
            if needs:
                raise UsageError(f"--resume goes with {needs}", "nothing else takes long enough to resume")
            require_place(self.resume)
        return self.resume


@dataclass(frozen=True)
class SectionOptions:
    """What to show besides the answer."""

    GROUP: ClassVar = "Block"

    every: bool = option("--all", is_flag=True, help="Show every layer, the pipeline, a block, every head and number.")
    pipeline: bool = option(is_flag=True, help="Show the pipeline alone: one line a step.")
    blocks: tuple[str, ...] = option(
        "--block", multiple=True, metavar="ADDRESS",
        help="Show this layer and head in full, such as L1H2 or L0-3H1. Repeatable.",
    )  # fmt: skip

    def chosen(self) -> frozenset[str]:
        """The requested sections, out of ``summary``, ``pipeline`` and ``block``."""
        block = self.every or is_typed("layer", "head", "full")
        requested = {"summary": self.every, "pipeline": self.every or self.pipeline, "block": block}
        return frozenset(name for name, is_requested in requested.items() if is_requested)


@dataclass(frozen=True)
class FaultOptions:
    """Which numeric faults to look for."""

    fail_on: str | None = option(
        metavar="KINDS", help="Find the first step with this fault, and exit 1: nan, inf, saturated, dead or mismatch. "
        "Several, as nan,inf.",
    )  # fmt: skip

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of faults named. Raises UsageError for an unknown kind."""
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
    """How texts are read: as they are, or with ``chat`` as conversations (a user message, or JSON)."""

    GROUP: ClassVar = "Text"
    SHARED: ClassVar = True

    chat: bool = option(
        is_flag=True, help="Put TEXT, or the messages of a .json file, into the model's chat template."
    )  # fmt: skip
    system: str | None = option(metavar="TEXT", help="System message, with --chat.")
    pair: str | None = option(metavar="TEXT", help="A second text that is read with the first as one (cross-encoders).")

    rendered: bool = option(
        is_flag=True, help="TEXT is a rendered prompt with its special tokens: add no start or end token."
    )  # fmt: skip

    def read(self, words: tuple[str, ...], *, lines: bool = False) -> "list[Written]":
        """Read the text in ``words``, or with ``lines`` one text per line. Without words, a session uses its own text.

        Raises UsageError, as ``read_texts`` and ``read_conversations`` do.
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
        return [self._written(text) for text in read_texts(words, lines=lines)]

    def read_each(self, words: "tuple[Written, ...]") -> "list[Written]":
        """Read one text from each word. A session's conversation is already read, and passes through."""
        return [self.read((word,))[0] if isinstance(word, str) else word for word in words]

    def of(self, text: str) -> "Written":
        """One line of a file as a text, or with ``chat`` as a conversation."""
        self.require_chat()
        return conversation_in(text, self.system) if self.chat else self._written(text)

    def _written(self, text: str) -> "Written":
        from tinytf.text.chat import Rendered, TextPair

        if self.rendered:
            return Rendered(text)
        return text if self.pair is None else TextPair(text, self.pair)

    def require_chat(self) -> None:
        """Raise UsageError for --system without --chat, and for --pair or --rendered with another kind of text."""
        if self.rendered and (self.chat or self.pair is not None):
            other = "--chat renders it" if self.chat else "--pair makes one of two texts"
            raise UsageError(f"--rendered takes a text as it is, and {other}", "leave one of them out")
        if self.chat and self.pair is not None:
            raise UsageError("--pair is a second text, and a conversation has none", "leave out --chat")
        if self.system is not None and not self.chat:
            raise UsageError("--system is the system message of a conversation, and this is plain text", "add --chat")


@dataclass(frozen=True)
class TextOptions(ChatOptions):
    """The texts to work on. With ``lines`` each line is a text; with ``truncate`` long texts are cut."""

    words: tuple[str, ...] = argument(nargs=-1, metavar="TEXT")
    lines: bool = option(is_flag=True, help="Treat every line as a separate text; TEXT may name a file of them.")
    truncate: bool = option(is_flag=True, help="Cut a text that is longer than the model's context.")
    resume: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Save results in FILE as they are made, and continue after those it has: the answers to --lines, as "
        "NDJSON; the measurements of ablate --sweep and grad --integrated.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.items  # noqa: B018 - report a missing text before opening a model

    @cached_property
    def items(self) -> "Iterable[Written]":
        """The texts; the lines of a file are read as a stream, in every pass."""
        path = Path(self.words[0]) if self.lines and len(self.words) == 1 and "." in self.words[0] else None
        if path is None or not path.is_file() or (self.chat and path.suffix.lower() == ".json"):
            return self.read(self.words, lines=self.lines)
        from tinytf_cli.many import line_file

        return line_file(path, self.of)

    def __iter__(self) -> "Iterator[Written]":
        return iter(self.items)

    def measurements(self, needs: str = "") -> Path | None:
        """The file that keeps the measurements of one text; None with --lines, whose answers --resume keeps.

        Raises UsageError as ``ResumeOptions.checked_file`` does.
        """
        return None if self.lines else ResumeOptions(self.resume).checked_file(needs)

    def answer(
        self, answer: "Answer", output: Output, plural: str, display: "Display | None" = None, *, of: object,
        measures: bool = False,
    ) -> int:  # fmt: skip
        """Draw the answers to all texts, a report for each, and return the exit status: 1 if a check fails.

        ``answer`` gets some of the texts at a time; its numbers depend on the options and on the model ``of``. With
        ``measures`` the command itself keeps the ``measurements`` of a single text.
        """
        if not self.lines:
            ResumeOptions(self.resume).checked_file("" if measures else "--lines")
            return output.draw_all(answer(list(self)), plural, False, display)
        from tinytf_cli.many import answer_each

        resume = ResumeOptions(self.resume).checked_file("")
        return answer_each(self.items, answer, output, plural, display, resume, (of,))


@dataclass(frozen=True)
class OptionalTextOptions(TextOptions):
    """Texts that may be missing; reading them then raises UsageError."""

    def __post_init__(self) -> None: ...


@dataclass(frozen=True)
class PairsOptions:
    """Pairs of prompts to ask a question of, instead of a text."""

    GROUP: ClassVar = "Text"

    pairs: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Ask about pairs of prompts: rows with clean, corrupt, answer and versus, in .jsonl, .csv, .tsv or "
        ".parquet.",
    )  # fmt: skip
    where: tuple[str, ...] = option(
        multiple=True, metavar="COLUMN=VALUE", help="With --pairs: only rows with this value. Repeatable."
    )

    def __post_init__(self) -> None:
        if self.where and self.pairs is None:
            raise UsageError("--where chooses among pairs, and there is no --pairs", "add --pairs FILE.jsonl")
        if self.pairs is not None:
            self.items  # noqa: B018 - report a faulty file before opening a model

    @cached_property
    def items(self) -> "PairSet":
        """The chosen pairs."""
        from tinytf.pairs.pair import pair_set

        assert self.pairs is not None
        return pair_set(self.pairs, self.where)

    def draw(
        self, question: "Callable[..., OverPairs]", model_options: ModelOptions, output: Output, fold: FoldOptions,
        top: int | None = None, **settings: Any,
    ) -> int:  # fmt: skip
        """Ask a model about the pairs, and draw the answer. Returns the exit status: 1 if a check fails."""
        from tinytf_cli.progress_line import progress_line
        from tinytf_cli.views.over_pairs import OverPairsDisplay

        if model_options.through_model(output) is not None:
            raise UsageError(
                "--pairs needs a model that tinytf computes itself, and this one runs through transformers",
                "ask it about one text at a time",
            )
        model = model_options.open()
        with progress_line(output.stderr, "pairs:") as on_progress:
            report = question(model, self.items, where=self.where, on_progress=on_progress, **settings)
        display = OverPairsDisplay(all=fold.all) if top is None else OverPairsDisplay(top, fold.all)
        return output.draw_checked(report, display)


@dataclass(frozen=True, kw_only=True)
class TextOrPairsOptions(TextOptions):
    """The texts to work on, or pairs instead."""

    over: PairsOptions

    def __post_init__(self) -> None:
        if self.over.pairs is None:
            super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """The texts to record, the model to record them on, and where the answers go."""

    GROUP: ClassVar = "Model"
    SHARED: ClassVar = True

    texts: TextOptions
    model_options: ModelOptions
    force: bool = option(is_flag=True, help="Record even if it needs more than the free memory.")
    output: Output

    @cached_property
    def model(self) -> "Model":
        return self.model_options.open()

    def trace(self, text: "Written", layers: "set[int] | list[int] | None" = None) -> "Trace":
        """Record one text, in all layers or in ``layers`` only."""
        return self.model.trace(text, truncate=self.texts.truncate, layers=layers, force=self.force)

    def command_lines(self) -> "Callable[[Written], Callable[..., str]]":
        """Make command lines that ask another command about one of the texts, with ``options`` after the text.

        They repeat what was typed here. A text that is long or spans lines is written as TEXT.
        """
        flags = ("--chat",) if self.texts.chat else ()
        flags = (*flags, "--system", self.texts.system) if self.texts.system is not None else flags
        pair = self.texts.pair
        flags = (*flags, "--pair", _typed_again(pair)) if pair is not None else flags
        if host() is not None:
            return lambda text: lambda *command, options=(): shlex.join([*command, *options, *flags])
        flags = (*self.model_options.typed_again(), *flags)

        def command_for(text: "Written") -> "Callable[..., str]":
            first = " ".join(self.texts.words) if self.texts.chat else str(text).removesuffix(f"\n{pair}")
            word = _typed_again(first)
            return lambda *command, options=(): shlex.join(["tinytf", *command, word, *options, *flags])

        return command_for

    def show(
        self, question: "Callable[[Trace], Report]", plural: str, display: "Display | None" = None,
        layers: Any = None, *, measures: bool = False,
    ) -> int:  # fmt: skip
        """Record each text, answer the question, and draw the answer. Returns the exit status: 1 if a check fails."""

        def answer(texts: "Sequence[Written]") -> "Iterator[Report]":
            # One by one: batches would save little beside the questions, and a text would depend on its neighbours.
            return (question(self.trace(text, layers)) for text in texts)

        return self.texts.answer(
            answer, self.output, plural, display, of=self.model.transformer, measures=measures
        )  # fmt: skip


def _typed_again(text: str) -> str:
    """A text as a command line repeats it; TEXT where it is long or spans lines."""
    return text if text.isprintable() and 0 < len(text) <= _QUOTED and not text.startswith("-") else "TEXT"


@dataclass(frozen=True, kw_only=True)
class AddressOptions(TraceOptions):
    """Trace options for commands that take addresses. Parameter addresses need no text."""

    texts: OptionalTextOptions

    def note_unread_text(self) -> None:
        """Note that TEXT is ignored when every address is a parameter."""
        if self.texts.words:
            self.output.note("a parameter is the same for every text, so TEXT is not read")


@dataclass(frozen=True, kw_only=True)
class TraceOrPairsOptions(TraceOptions):
    """Trace options for commands that also ask many pairs."""

    texts: TextOrPairsOptions


def require_only(names: tuple[str, ...], groups: tuple[type, ...], beside: str = "") -> None:
    """Raise UsageError for a typed option of ``groups`` that does not go ``beside`` another.

    Without one, that a model through transformers does not take.
    """
    for setting in (setting for group in groups for setting in parameters_of(group)):
        if setting.name and setting.name not in names and is_typed(setting.name):
            name = setting.opts[0] if isinstance(setting, click.Option) else setting.human_readable_name
            if beside:
                raise UsageError(f"{name} does not go with {beside}", "leave one of them out")
            raise UsageError(
                f"{name} needs a model that tinytf computes itself, and this one runs through transformers",
                "leave it out",
            )


def shared_options() -> Command:
    """A command with only the shared options, for their help page."""
    page = "Options that most commands take. TEXT is an argument, a pipe, or - for standard input."
    options = (parameter for parameter in parameters_of(TraceOptions) if isinstance(parameter, click.Option))
    return Command(SHARED_OPTIONS, params=[*options, debug_option()], help=page)
