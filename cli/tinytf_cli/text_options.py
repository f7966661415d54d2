"""Options about texts, pairs of prompts and what is asked of them; several groups as one, as commands take them."""

import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from tinytf.errors import UsageError
from tinytf_cli.command import Command, argument, debug_option, option, parameters_of
from tinytf_cli.help_page import SHARED_OPTIONS
from tinytf_cli.host import host
from tinytf_cli.inputs import conversation_in, corpus_or_recorded, read_conversations, read_texts
from tinytf_cli.options import FoldOptions, ModelOptions, ResumeOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole

if TYPE_CHECKING:
    from tinytf.bulk.folder import RecordedCorpus
    from tinytf.cause.over_pairs import OverPairs
    from tinytf.features.report import Features
    from tinytf.loading import Model
    from tinytf.look.neurons import Neurons, TopExamples
    from tinytf.pairs.pair import PairSet
    from tinytf.report import Report
    from tinytf.text.chat import Written
    from tinytf.text.corpus import Corpus
    from tinytf.trace.trace import Trace
    from tinytf_cli.many import Answer
    from tinytf_cli.views.draw import Display

Units = TypeVar("Units", "Neurons", "Features")
_MOST_TARGET = 64
"""The most tokens of a target that is generated to be looked at."""
_QUOTED = 50
"""Longest text, in characters, that a suggested command line repeats."""


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

    def opened(self, texts: "TextOptions", model: "Model") -> "Corpus | RecordedCorpus | None":
        """The corpus for ``model``, if one is named. Raises UsageError as ``find_files`` does."""
        return corpus_or_recorded(self.corpus, texts.words, model) if self.corpus else None

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


VERSUS_PAIRS = "another file of pairs, whose means are compared with these"
METRICS = ("logit_diff", "logit", "log_prob", "prob", "kl", "js", "rank", "loss")


def metric_option(default: str = "logit_diff") -> Any:
    """The option --metric."""
    return option(
        type=click.Choice(METRICS),
        help="What is measured: a difference of two logits or one logit, a log-probability (of an answer of several "
        "tokens, their sum), the probability of a set of tokens, the KL or Jensen–Shannon divergence from the "
        f"unchanged prediction, a rank, or the loss on the text.  [default: {default}]",
    )


def versus_pairs_option() -> Any:
    """The option --versus of questions over pairs that have no other."""
    return option(type=click.Path(path_type=Path), metavar="FILE", help=f"With --pairs: {VERSUS_PAIRS}.")


def target_option() -> Any:
    return option(metavar="TEXT", help="What a model of two stacks writes for TEXT.  [default: it generates it]")


def asked_of(
    model: "Model", texts: "Sequence[Written]", target: str | None, output: Output | None = None, *,
    truncate: bool = False, until_apart: bool = False,
) -> "tuple[list[Model], list[Written]]":  # fmt: skip
    """The models to ask about some texts, and what to ask each of them about: the model itself and its text.

    A model of two stacks reads the text, and is asked about a target, the same for all: the one given, or generated for
    the first. In a session the target of its own source is the session's. With ``until_apart`` it is generated up to
    where the targets of the sources differ. ``truncate`` cuts long sources. Raises UsageError for a ``target`` of a
    model of one stack.
    """
    if model.config.encoder is None:
        if target is not None:
            raise UsageError("--target-text goes with a model of two stacks, and this one has one", "leave it out")
        return [model] * len(texts), [*texts]
    session = host()
    if (
        target is None
        and session is not None
        and model.transformer.reads is not None
        and [*texts] == [session.require_source()]
    ):
        return [model], [session.require_text()]
    bound = [bound_to(model, source, truncate) for source in texts]
    if target is None and model.config.labels:
        if len({*texts}) > 1:
            raise UsageError("the target of this classifier is its text once more", "give one to both, --target-text")
        return bound, [texts[0]] * len(bound)
    if target is None:
        most = min(_MOST_TARGET, model.config.context // 2)  # its text may have more tokens than were written
        written = [
            model.target_begins + one.generate("", max_tokens=most) for one in (bound if until_apart else bound[:1])
        ]
        target, is_begun = written[0], any(text != written[0] for text in written)
        if is_begun:
            rows = [model.encode(text).ids[1:] for text in written]
            alike = itertools.takewhile(lambda ids: len({*ids}) == 1, zip(*rows, strict=False))
            target = model.tokenizer.decode([first for first, *_ in alike])
        if output is not None:
            output.note(f"target, generated{', until they differ' if is_begun else ''}: {target or 'nothing yet'}")
    return bound, [target] * len(bound)


def bound_to(model: "Model", source: "Written", truncate: bool = False) -> "Model":
    """The model that reads a source; one of one stack as it is."""
    return model if model.config.encoder is None else model.reading(source, truncate=truncate)


@dataclass(frozen=True)
class TextOptions(ChatOptions):
    """The texts to work on. With ``lines`` each line is a text; with ``truncate`` long texts are cut."""

    words: tuple[str, ...] = argument(nargs=-1, metavar="TEXT")
    lines: bool = option(is_flag=True, help="Treat every line as a separate text; TEXT may name a file of them.")
    truncate: bool = option(is_flag=True, help="Cut a text that is longer than the model's context.")
    target_text: str | None = target_option()
    states: Path | None = option(
        "--source", type=click.Path(path_type=Path), metavar="FILE",
        help="States of an encoder (.npz, .safetensors) that a decoder reads; TEXT is then what it writes.",
    )  # fmt: skip
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

    def facing(self, model: "Model", output: Output, *, generated: bool = True) -> "Model":
        """The model; one of two stacks reads TEXT, and its target is from then on the text that is asked about.

        Without --target-text the model generates it, or with ``generated`` false begins it. Raises UsageError for
        several texts, and for --target-text with a model of one stack.
        """
        if self.states is not None:
            if self.target_text is not None:
                raise UsageError("with --source, TEXT is what the decoder is given", "leave out --target-text")
            if not model.config.d_source:
                raise UsageError("--source goes with a decoder that reads states, and this model has one stack")
            from tinytf.compare.dumps.read import read_states

            return model.reading(read_states(self.states, model.config.d_source))
        session_reads = host() is not None and not self.words and model.transformer.reads is not None
        if (model.config.encoder is None or session_reads) and self.target_text is None:
            return model
        texts = list(self)
        if self.lines or len(texts) != 1:
            raise UsageError("a model of two stacks takes one TEXT at a time", "what it writes is --target-text")
        given = "" if self.target_text is None and not generated else self.target_text
        (bound,), self.__dict__["items"] = asked_of(model, texts, given, output, truncate=self.truncate)
        return bound

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

    def require_beside(self, versus: Path | None) -> None:
        """Raise UsageError for another file of pairs without a first."""
        if versus is not None and self.pairs is None:
            raise UsageError("--versus compares with --pairs, and there is none", "add --pairs FILE.jsonl")

    @cached_property
    def items(self) -> "PairSet":
        """The chosen pairs."""
        from tinytf.pairs.pair import pair_set

        assert self.pairs is not None
        return pair_set(self.pairs, self.where)

    def followed(self, metric: str | None, answer: str | None, name: str = "--answer") -> dict[str, Any]:
        """The settings of a metric: each pair has an answer of its own, but a set may be one for all."""
        if answer is not None and metric != "prob":
            raise UsageError(f"with --pairs, {name} goes with --metric prob", "each pair has an answer of its own")
        return {"metric": metric, "answer": answer}

    def draw(
        self, question: "Callable[..., OverPairs]", model_options: ModelOptions, output: Output, fold: FoldOptions,
        top: int | None = None, versus: Path | None = None, **settings: Any,
    ) -> int:  # fmt: skip
        """Ask a model about the pairs, and draw the answer. Returns the exit status: 1 if a check fails.

        ``versus`` is another file of pairs that is asked too, and compared.
        """
        from tinytf.cause.over_pairs import versus_over
        from tinytf.pairs.pair import pair_set
        from tinytf_cli.progress_line import progress_line
        from tinytf_cli.views.over_pairs import OverPairsDisplay

        if model_options.through_model(output) is not None:
            raise UsageError(
                "--pairs needs a model that tinytf computes itself, and this one runs through transformers",
                "ask it about one text at a time",
            )
        others = [] if versus is None else [pair_set(versus, self.where)]
        model = model_options.open(because="a pair of prompts has no target")
        reports = []
        for pairs in (self.items, *others):
            with progress_line(output.stderr, "pairs:") as on_progress:
                reports.append(question(model, pairs, where=self.where, on_progress=on_progress, **settings))
        report = reports[0] if versus is None else versus_over(*reports)
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
        opened = self.model_options.open(two_stacks=True)
        session = host()
        if self.model_options.stack == "encoder" and session is not None and not self.texts.words:
            self.texts.__dict__["items"] = [session.require_source()]
        return self.texts.facing(opened, self.output)

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
        if self.texts.states is not None:
            flags = (*flags, "--source", str(self.texts.states))
        elif self.model.transformer.reads is not None and not self.model.config.labels:
            target = str(next(iter(self.texts)))
            flags = (*flags, "--target-text", "TEXT" if _is_long(target) else target)
        if host() is not None:
            return lambda text: lambda *command, options=(): shlex.join([*command, *options, *flags])
        flags = (*self.model_options.typed_again(), *flags)

        def command_for(text: "Written") -> "Callable[..., str]":
            whole = self.texts.chat or self.model.transformer.reads is not None
            first = " ".join(self.texts.words) if whole else str(text).removesuffix(f"\n{pair}")
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
    return text if text and not _is_long(text) and not text.startswith("-") else "TEXT"


def _is_long(text: str) -> bool:
    return not text.isprintable() or len(text) > _QUOTED


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


def shared_options() -> Command:
    """A command with only the shared options, for their help page."""
    page = "Options that most commands take. TEXT is an argument, a pipe, or - for standard input."
    options = (parameter for parameter in parameters_of(TraceOptions) if isinstance(parameter, click.Option))
    return Command(SHARED_OPTIONS, params=[*options, debug_option()], help=page)
