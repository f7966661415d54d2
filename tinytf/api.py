"""A transformer with its tokenizer, and all that can be asked of it."""

import itertools
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tinytf import analysis
from tinytf.checkpoints.weights import not_finite
from tinytf.config import ModelConfig
from tinytf.errors import TokenizerError, UsageError
from tinytf.generate.beam import BeamOptions, BeamStep, searched
from tinytf.generate.loop import Step, StreamOptions, cache_for, streamed
from tinytf.generate.options import by_keyword
from tinytf.generate.pieces import text_after
from tinytf.generate.score import Score, quantization_cost, score
from tinytf.model.cache import require_decoder
from tinytf.model.transformer import Transformer
from tinytf.report import About, Progress, Report, unheard
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.trace.address import Address
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

if TYPE_CHECKING:
    from tinytf.analysis.interventions import Reference
    from tinytf.checkpoints.huggingface.export import Exported
    from tinytf.generate.report import BeamSearch, CacheComparison, Generation
    from tinytf.gradients.report import Backward
    from tinytf.gradients.trace import GradientTrace
    from tinytf.training.corpus import Corpus

Found = TypeVar("Found", bound=Report)
Text = str | Trace
"""A text, or its trace where it was recorded before."""


@dataclass(frozen=True, kw_only=True)
class _Streaming(StreamOptions):
    truncate: bool = False


@dataclass(frozen=True, kw_only=True)
class _Several(_Streaming):
    n: int = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class _Searching(BeamOptions):
    truncate: bool = False


@dataclass(frozen=True)
class Model:
    """A transformer with its tokenizer, as ``tinytf.load`` opens it.

    ``source`` says what it is, ``tokenizer_note`` whose the vocabulary is, ``file_notes`` what was ignored in its
    files. ``corpus`` is a text of the kind that it was trained on, where one is known. Each method calls the function
    that its docstring names.
    """

    name: str
    transformer: Transformer
    tokenizer: Tokenizer
    source: str
    tokenizer_note: str = ""
    file_notes: tuple[str, ...] = ()
    corpus: Path | None = None

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a user should know: what was ignored in the files, and weights that are not finite."""
        return (*self.file_notes, *not_finite(dict(self.transformer.named_parameters())))

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

    @cached_property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.transformer.parameters())

    def to_dict(self) -> dict[str, Any]:
        """What it is, as plain JSON data."""
        parameter = next(self.transformer.parameters())
        tokenizer = self.tokenizer
        return {
            "name": self.name,
            "source": self.source,
            "notes": list(self.notes),
            "config": self.config.to_dict(),
            "parameters": self.n_parameters,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": parameter.device.type,
            "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "note": self.tokenizer_note},
        }

    def _of(self, found: Found, text: Encoding | None = None) -> Found:
        """A report with what it is of."""
        return replace(found, about=About(self, text))

    # Texts and tokens

    def encode(self, text: str, *, truncate: bool = False) -> Encoding:
        """Tokens of ``text`` as this model takes them.

        Raises UsageError for a text without a word, or longer than the context, unless ``truncate`` is true.
        """
        if not text.strip():
            what = "empty" if not text else "only white space"
            raise UsageError(f"the text is {what}", "give a few words, such as: The cat sat")
        encoding = self.tokenizer.encode(text)
        beyond = [token for token in encoding.tokens if token.id >= self.config.vocab_size]
        if beyond:
            raise TokenizerError(
                f"token {beyond[0].shown} has id {beyond[0].id}, and the model knows {self.config.vocab_size} tokens"
            )
        limit = self.config.context
        if len(encoding.tokens) <= limit:
            return encoding
        if not truncate:
            raise UsageError(
                f"the text has {len(encoding.tokens):,} tokens, and {self.name} takes at most {limit:,}",
                "shorten it, or add --truncate",
            )
        return encoding.truncated(limit)

    def prompt(self, text: str, *, truncate: bool = False) -> Encoding:
        """Tokens of ``text`` to continue: no end token after it, and the start token alone where it is empty.

        Raises UsageError as ``encode`` does, and for an empty text where there is no start token.
        """
        if not text:
            start = self.tokenizer.start()
            if start is None:
                raise UsageError(
                    "the text is empty, and this model has no start token", "give a few words, such as: The cat sat"
                )
            return start
        return self.encode(text, truncate=truncate).open_ended(self.tokenizer.end_ids)

    def find_token(self, word: str, option: str = "target") -> int:
        """The id of the one token that ``word`` is where it continues a text, or fills a mask; ``#514`` is 514.

        Raises UsageError, which names the ``option``, for what is not one token of the vocabulary.
        """
        from tinytf.gradients.targets import find_token

        count = self.config.vocab_size
        found = find_token(self.tokenizer, word, causal=self.config.causal, option=option, vocabulary=count)
        if found >= count:
            raise UsageError(f"{option} {word!r} has id {found}, and the model knows {count:,} tokens")
        return found

    def _trace(self, text: Text, *, truncate: bool = False, force: bool = False) -> Trace:
        return self.trace(text, truncate=truncate, force=force) if isinstance(text, str) else text

    def _id(self, token: str | int | None, option: str = "target") -> int | None:
        return self.find_token(token, option) if isinstance(token, str) else token

    # Looking

    def trace(
        self, text: str, *, truncate: bool = False, layers: Collection[int] | None = None, force: bool = False
    ) -> Trace:
        """Record every step of ``text`` through the model, or those of ``layers``. Raises as ``record`` does."""
        encoding = self.encode(text, truncate=truncate)
        return record(self.transformer, encoding, self.tokenizer.mask_id, layers=layers, force=force)

    def grad(
        self,
        text: str,
        *,
        target: str | None = None,
        positions: str | None = None,
        truncate: bool = False,
        force: bool = False,
    ) -> "GradientTrace":
        """Record ``text`` and the backward pass of the loss that ``choose_targets`` reads from the words.

        The trace has every gradient by its address: ``trace.grad["L3H5.weights"]``. Raises UsageError for words that
        name no target, and as ``record_gradients`` does.
        """
        from tinytf.gradients.loss import require_head
        from tinytf.gradients.targets import choose_targets
        from tinytf.gradients.trace import record_gradients

        require_head(self.transformer)
        encoding, targets = choose_targets(
            self.tokenizer,
            self.encode(text, truncate=truncate),
            causal=self.config.causal,
            target=target,
            positions=positions,
        )
        return record_gradients(self.transformer, encoding, targets, force=force)

    def explain(
        self, text: Text, address: str, *, depth: int = 1, top: int = 8, temperature: float = 1.0
    ) -> "analysis.arithmetic.Explained":
        """The arithmetic behind the number at ``address`` of a text, or of its trace; then that of its largest terms.

        One Explanation a cell, ``depth`` steps back. Settings and errors are those of ``arithmetic.follow``.
        """
        trace, tokenizer = self._trace(text), self.tokenizer
        cells = analysis.arithmetic.follow(
            trace, address, depth=depth, top=top, temperature=temperature, tokenizer=tokenizer
        )
        return self._of(analysis.arithmetic.Explained(tuple(cells)), trace.encoding)

    def lens(
        self,
        text: Text,
        *,
        position: str | None = None,
        top: int = 5,
        track: Sequence[str] = (),
        sublayers: bool = False,
        on_progress: Progress = unheard,
        truncate: bool = False,
        force: bool = False,
    ) -> "analysis.lens.Lens":
        """What the residual stream of a text, or of its trace, says after each layer, read by the model's own head.

        ``position`` is as ``2``, ``0-3,7``, ``-1`` or a token of the text; ``track`` are words whose rank and
        probability are followed, each one token. Raises UsageError for a token or position that is not there, and as
        ``analysis.lens.lens`` does.
        """
        analysis.lens.require_readable(self.transformer)
        tracked = [self.find_token(word, "--track") for word in track]
        trace = self._trace(text, truncate=truncate, force=force)
        places = None if position is None else named_places(trace, position)
        found = analysis.lens.lens(
            trace, places, top=top, tracked=tracked, sublayers=sublayers, on_progress=on_progress, force=force
        )
        return self._of(found, trace.encoding)

    def attribute(
        self,
        text: Text,
        *,
        token: str | None = None,
        versus: str | None = None,
        position: str | None = None,
        truncate: bool = False,
        force: bool = False,
    ) -> "analysis.attribution.Attribution":
        """What each part of the model adds to the logit of ``token`` (the predicted one), or to its lead over another.

        ``position`` is as ``-1`` or a token of the text. Raises UsageError for a token or position that is not there,
        and as ``analysis.attribution.attribute`` does.
        """
        analysis.attribution.require_logits(self.transformer)
        chosen, other = self._id(token, "--token"), self._id(versus, "--versus")
        trace = self._trace(text, truncate=truncate, force=force)
        places = None if position is None else named_places(trace, position)
        if places is not None and len(places) > 1:
            raise UsageError(f"--position {position!r} is {len(places)} positions", "one logit is attributed at a time")
        place = None if places is None else places[0]
        return self._of(analysis.attribution.attribute(trace, place, chosen, other), trace.encoding)

    def neurons(
        self,
        text: Text,
        *,
        layer: int | None = None,
        top: int = 3,
        by: str = "activation",
        units: Sequence[str] = (),
        tokens: int = 5,
    ) -> "analysis.neurons.Neurons":
        """The feed-forward units that are most active at each token of a text, or of its trace.

        With ``units`` such as ``L3.17`` these; settings and errors are those of ``analysis.neurons.neurons``.
        """
        chosen = [analysis.neurons.parse_unit(unit, self.config) for unit in units]
        layers = sorted({unit.layer for unit in chosen}) if chosen else None if layer is None else [layer]
        trace = self.trace(text, layers=layers) if isinstance(text, str) else text
        found = analysis.neurons.neurons(trace, top=top, by=by, units=chosen, tokens=tokens)
        return self._of(found, trace.encoding)

    def top_examples(
        self,
        corpus: "Corpus",
        units: Sequence[str],
        *,
        top: int = 5,
        window: int | None = None,
        on_progress: Progress = unheard,
    ) -> "analysis.neurons.TopExamples":
        """Where in a corpus, of ``tinytf.training.corpus.find_files``, each of ``units`` is most active.

        The corpus is read as a stream, in windows of ``window`` tokens (the context, or 128 if that is longer);
        ``on_progress`` is told how many of its characters were read. Raises UsageError for a window that is longer than
        the context or has no room for a token, AddressError for a unit that is not there.
        """
        from tinytf.training.stream import between_words

        length = min(self.config.context, 128) if window is None else window
        if length > self.config.context:
            raise UsageError(
                f"a window of {length:,} tokens is more than the model's context of {self.config.context:,}"
            )
        chosen = [analysis.neurons.parse_unit(unit, self.config) for unit in units]
        total = sum(file.paragraph_characters for file in corpus.files)

        def pieces() -> Iterator[tuple[str, bool]]:
            read = 0
            for text, ends in corpus.documents().pieces(between_words):
                yield text, ends
                read += len(text)
                on_progress(min(read, total), total)

        windows = analysis.examples.windows_of(self.tokenizer, pieces(), length, self.config.vocab_size)
        return analysis.examples.top_examples(self.transformer, windows, chosen, top)

    def heads(
        self,
        corpus: str | Path | None = None,
        *,
        text: str | None = None,
        random_only: bool = False,
        length: int | None = None,
        count: int = 16,
        seed: int = 0,
        by: str | None = None,
        top: int | None = None,
        progress: Progress = unheard,
    ) -> "analysis.census.Census":
        """What every head does: its scores on repeated random tokens, and on a file or folder of text, or a ``text``.

        Without either the text is the model's own corpus, where one is known, unless ``random_only`` says none. Heads
        are sorted ``by`` a score (induction, of an encoder previous), and the ``top`` ones reported. Other settings and
        errors are those of ``analysis.census.census``, errors also those of ``text_windows``.
        """
        from tinytf.training.windows import text_windows

        score = analysis.census.require_score(by or ("induction" if self.config.causal else "previous"))
        before, after = self.tokenizer.around()
        if self.config.causal:
            after = [token for token in after if token not in self.tokenizer.end_ids]  # what comes next is open
        copy = analysis.census.copy_length(self.config, length, added=len(before) + len(after))
        file = self.corpus if corpus is None and not random_only else corpus
        source = text if text is not None or file is None else [Path(file)]
        windows = () if source is None else text_windows(
            source, self.tokenizer, self.config.vocab_size, 2 * copy, before, after
        )  # fmt: skip
        found = analysis.census.census(
            self.transformer, windows, length=copy, count=count, seed=seed, before=before, after=after,
            progress=progress,
        )  # fmt: skip
        own = f"{self.name}'s {self.corpus.name}" if self.corpus else ""
        return self._of(replace(found, by=score, top=top, corpus=str(corpus or own)))

    def rollout(
        self,
        text: Text,
        *,
        heads: str = "mean",
        layer: int | None = None,
        query: str | None = None,
        flow: Sequence[int] | str = (),
        force: bool = False,
        progress: Progress = unheard,
    ) -> "analysis.rollout.Rollout":
        """How much of each token of a text, or of its trace, attention brings to every position, up to ``layer``.

        ``query`` is the position that is read, by text or number; the last token without it, or the first mask.
        Settings and errors are those of ``analysis.rollout.rollout``.
        """
        trace = self._trace(text, force=force)
        size = len(trace.tokens)
        default = analysis.rollout.default_query(trace, self.tokenizer.mask_id)
        place = default if query is None else trace.index(query, "query", size)
        found = analysis.rollout.rollout(
            trace, heads=heads, layer=layer, query=place, flow=flow, force=force, progress=progress
        )
        return self._of(found, trace.encoding)

    # Whole passes as reports

    def tokens(self, text: str) -> "analysis.tokens.Tokenized":
        """The tokens of a text, which may be longer than the context."""
        return analysis.tokens.Tokenized(self.name, self.tokenizer, self.tokenizer_note, self.tokenizer.encode(text))

    def traced(
        self,
        text: Text,
        *,
        layers: Sequence[int] = (0,),
        head: int = 0,
        blocks: Sequence[str | Address] = (),
        at: Sequence[str | Address] = (),
        top: int = 10,
        fail_on: Sequence[str] = (),
        truncate: bool = False,
        force: bool = False,
    ) -> "analysis.traced.Traced":
        """A text, or its trace, as a report: the addresses of ``at`` in full, or the blocks of ``layers`` and ``head``.

        ``blocks`` names blocks by address instead, such as ``L1H2``. ``top`` predictions, and the first fault of the
        kinds of ``fail_on``. Raises AddressError for a cell that is not there, and as ``record`` and ``first_fault``
        do.
        """
        trace = self._trace(text, truncate=truncate, force=force)
        addresses = _found(trace, at)
        for where in addresses:
            if where.cell:
                trace[where]
        fault = None
        if fail_on:
            from tinytf.gradients.faults import first_fault

            fault = first_fault(trace, fail_on)
        predicted = analysis.prediction.predictions(trace, self.tokenizer, top)
        named = [(where.layers or (), where.heads or (head,)) for where in _found(trace, blocks)]
        chosen = tuple(place for one in named or [(layers, (head,))] for place in itertools.product(*one))
        found = analysis.traced.Traced(trace, chosen, head, addresses, predicted, tuple(fail_on), fault)
        return self._of(found, trace.encoding)

    def attention(
        self,
        text: Text,
        *,
        heads: Sequence[tuple[int, int]] = (),
        row: str | None = None,
        top: int | None = None,
        window: tuple[int, int, int, int] | None = None,
        truncate: bool = False,
        force: bool = False,
    ) -> "analysis.attended.Attended":
        """Measures of every head on a text, or on its trace, and the weights of ``heads``, (layer, head) pairs.

        Of the query ``row``, a token by text or number; the ``top`` pairs; or those of a ``window``.
        """
        trace = self._trace(text, truncate=truncate, force=force)
        query = None if row is None else trace.index(row, "query", len(trace.tokens))
        found = analysis.attended.Attended(trace, tuple(heads), query, top, window)
        return self._of(found, trace.encoding)

    def backward(
        self,
        text: "str | GradientTrace",
        *,
        target: str | None = None,
        positions: str | None = None,
        layers: Sequence[int] = (0,),
        head: int = 0,
        at: Sequence[str | Address] = (),
        derived: Sequence[str | Address] = (),
        by: str = "kind",
        lr: float = 1e-3,
        integrated: bool = False,
        check: int = 0,
        seed: int = 0,
        fail_on: Sequence[str] = (),
        on_point: Progress = unheard,
        on_entry: Progress = unheard,
        truncate: bool = False,
        force: bool = False,
    ) -> "Backward":
        """The backward pass of a text, or of its trace, as a report.

        The gradients of ``at`` and the derivations of ``derived`` in full, or the blocks of ``layers`` and ``head``;
        with ``integrated`` gradients (``on_point`` counts their points) and ``check`` finite differences drawn by
        ``seed`` (``on_entry`` counts them). Raises as ``grad``, ``derive`` and ``first_fault`` do.
        """
        from tinytf.gradients.derivation import derive, require_gradient
        from tinytf.gradients.differences import check as measured
        from tinytf.gradients.faults import first_fault
        from tinytf.gradients.report import Backward
        from tinytf.gradients.saliency import integrated_gradients

        trace = text
        if isinstance(trace, str):
            trace = self.grad(trace, target=target, positions=positions, truncate=truncate, force=force)
        addresses = _found(trace, at)
        for where in addresses:  # an unknown cell is refused before anything is computed
            require_gradient(where)
            if where.cell:
                trace.grad[where]
        of = trace.model, trace.encoding, trace.targets
        found = Backward(
            trace,
            tuple(layers),
            head,
            addresses,
            tuple(derive(trace, where) for where in _found(trace, derived)),
            by,
            lr,
            integrated_gradients(*of, on_point) if integrated else None,
            measured(*of, check, seed, on_entry, force=force) if check else None,
            tuple(fail_on),
            first_fault(trace, fail_on) if fail_on else None,
        )
        return self._of(found, trace.encoding)

    def export(self, directory: str | Path) -> "Exported":
        """Write model and tokenizer to a new or empty ``directory``, as transformers opens them.

        Raises UsageError for an architecture that transformers has no family for, and for a directory with files.
        """
        from tinytf.checkpoints.huggingface.export import export

        return replace(export(self.transformer, self.tokenizer, Path(directory)), model=self.name)

    # Changing, and comparing

    def diff(
        self,
        text: str,
        other: "str | Model",
        *,
        tolerance: float | None = None,
        head: str | None = None,
        top: int = 5,
        fail_over: float | None = None,
        truncate: bool = False,
        force: bool = False,
    ) -> "analysis.difference.Difference":
        """What is different, step by step, on another text, or on another model (or dtype) with this text.

        ``head`` is an address such as ``L3H5``. Settings and errors are those of ``analysis.difference.difference``.
        """
        versus, words = (self, other) if isinstance(other, str) else (other, text)
        sides = [
            analysis.alignment.Side(model.transformer, model.tokenizer, model.encode(words, truncate=truncate))
            for model, words in ((self, text), (versus, words))
        ]
        where = None if head is None else analysis.difference.parse_head(head, table_of(self.config))
        found = analysis.difference.difference(*sides, tolerance=tolerance, head=where, top=top, force=force)
        runs = About(self, sides[0].encoding), About(versus, sides[1].encoding)
        return replace(found, sides=runs, fail_over=fail_over)

    def reference(self, file: str | Path | None = None) -> "Reference":
        """Texts to take means over and to draw others from: those of ``file``, or of the model's own corpus.

        Raises UsageError where there is neither, and for a file that is not text.
        """
        read, encode = analysis.interventions.read_reference, partial(self.encode, truncate=True)
        if file is not None:
            return read(Path(file), str(file), encode)
        if self.corpus is None:
            raise UsageError(
                f"{self.name} has no texts of its own for a mean or a draw",
                "name a file of texts, separated by empty lines: --reference FILE",
            )
        return read(self.corpus, f"{self.name}'s {self.corpus.name}", encode)

    def ablate(
        self,
        text: Text,
        at: str | Sequence[str],
        *,
        target: str | int | None = None,
        how: str = "zero",
        reference: "Reference | str | Path | None" = None,
        seed: int = 0,
        top: int = 5,
        on_progress: Progress = unheard,
    ) -> "analysis.interventions.Ablation":
        """What the prediction after ``text`` becomes with the steps of ``at`` ablated together, such as ``"L3H5"``.

        ``target`` is the token that is followed, by default the predicted one. Other settings and the errors are those
        of ``analysis.interventions.ablate``; ``reference`` may be a file, and is by default the model's own corpus.
        """
        trace, number = self._trace(text), self._id(target)
        texts = self._reference(how, reference)
        found = analysis.interventions.ablate(
            trace, _listed(at), how=how, reference=texts, target=number, seed=seed, top=top, on_progress=on_progress
        )
        return self._of(found, trace.encoding)

    def ablation_sweep(
        self,
        text: Text,
        over: str = "heads",
        *,
        target: str | int | None = None,
        how: str = "zero",
        reference: "Reference | str | Path | None" = None,
        seed: int = 0,
        on_progress: Progress = unheard,
    ) -> "analysis.interventions.AblationSweep":
        """``ablate`` for every head, feed-forward or layer (``heads``, ``ffn``, ``layers``), each alone, batched."""
        trace, number = self._trace(text), self._id(target)
        texts = self._reference(how, reference)
        found = analysis.interventions.ablation_sweep(
            trace, over, how=how, reference=texts, target=number, seed=seed, on_progress=on_progress
        )
        return self._of(found, trace.encoding)

    def _reference(self, how: str, given: "Reference | str | Path | None") -> "Reference | None":
        """The texts of an ablation, read where a file or none is named and this way to ablate takes values of some."""
        if given is not None and not isinstance(given, str | Path):
            return given
        return self.reference(given) if how in ("mean", "resample") else None

    @contextmanager
    def ablated(
        self, at: str | Sequence[str], *, how: str = "zero", reference: str | Path | None = None
    ) -> Iterator[None]:
        """Every text that goes through the model in here goes through it with the steps of ``at`` ablated.

        Forward passes, traces and generation alike; ``how`` is ``zero`` or ``mean``. Raises as ``ablate`` does.
        """
        interventions, _ = self._ablations(at, how, reference)
        with analysis.interventions.ablated(self.transformer, interventions):
            yield

    def without(self, at: str | Sequence[str], *, how: str = "zero", reference: str | Path | None = None) -> Self:
        """The same model, of the same weights, that always runs with the steps of ``at`` ablated; as ``ablated``."""
        interventions, source = self._ablations(at, how, reference)
        note = f"without {', '.join(_listed(at))} ({source or how})"
        transformer = analysis.interventions.without(self.transformer, interventions)
        return replace(self, transformer=transformer, file_notes=(*self.file_notes, note))

    def _ablations(
        self, at: str | Sequence[str], how: str, reference: str | Path | None
    ) -> "tuple[list[analysis.interventions.Intervention], str]":
        """What takes the place of the steps, and where it is from."""
        points = analysis.interventions.hook_points(_listed(at), table_of(self.config))
        texts = None if how == "zero" else self.reference(reference)
        values = analysis.interventions.values_for(self.transformer, points, how, texts)
        return [analysis.interventions.Intervention(point, values.of[point]) for point in points], values.source

    def patch(
        self,
        clean: Text,
        corrupt: Text,
        at: str | Sequence[str],
        *,
        answer: str | int | None = None,
        versus: str | int | None = None,
        positions: Sequence[int] | None = None,
        top: int = 5,
    ) -> "analysis.interventions.Patched":
        """What the corrupt text gives with the clean run's activations at the steps of ``at`` put in.

        ``answer`` and ``versus`` are the tokens whose logit difference is followed, by default each run's prediction.
        Other settings and the errors are those of ``analysis.interventions.patch``.
        """
        runs = self._trace(clean), self._trace(corrupt)
        first, second = self._id(answer, "answer"), self._id(versus, "versus")
        found = analysis.interventions.patch(
            *runs, _listed(at), positions=positions, answer=first, versus=second, top=top
        )
        return self._of(found)

    def patch_sweep(
        self,
        clean: Text,
        corrupt: Text,
        over: str = "residual",
        *,
        answer: str | int | None = None,
        versus: str | int | None = None,
        on_progress: Progress = unheard,
    ) -> "analysis.interventions.PatchSweep":
        """``patch`` for every layer and position (``residual``, ``attn``, ``ffn``), or every head (``heads``)."""
        runs = self._trace(clean), self._trace(corrupt)
        first, second = self._id(answer, "answer"), self._id(versus, "versus")
        found = analysis.interventions.patch_sweep(*runs, over, answer=first, versus=second, on_progress=on_progress)
        return self._of(found)

    # Generation: a prompt is a text, which ``truncate`` shortens where it is too long, or what ``prompt`` made of one.
    # It stops at the tokenizer's end tokens unless ``ends`` names others.

    @by_keyword(_Streaming)
    def stream(self, prompt: str | Encoding, options: _Streaming) -> Iterator[Step]:
        """Continue ``prompt``, a Step a token, as soon as it is computed; greedy unless ``sampling`` says otherwise.

        Settings are those of ``tinytf.generate.loop.StreamOptions``; raises as ``stream`` there does.
        """
        return self._stream(prompt, options)

    @by_keyword(_Streaming)
    def generate(self, prompt: str | Encoding, options: _Streaming) -> str:
        """The text that follows ``prompt``, without it; settings are those of ``stream``."""
        return self._texts(prompt, replace(options, samples=1))[0]

    @by_keyword(_Several)
    def samples(self, prompt: str | Encoding, options: _Several) -> list[str]:
        """``n`` texts that follow ``prompt``, drawn side by side; settings are those of ``stream``."""
        return self._texts(prompt, replace(options, samples=options.n))

    @by_keyword(_Searching)
    def beams(self, prompt: str | Encoding, options: _Searching) -> Iterator[BeamStep]:
        """Beam search from ``prompt``; settings are ``tinytf.generate.beam.BeamOptions``; raises as ``search`` does.

        The last step's ``finished`` are the continuations, the best first; ``text_after`` makes text of their ids.
        """
        return self._beams(self._prompt(prompt, options.truncate), options)

    @by_keyword(_Streaming)
    def generation(self, prompt: str | Encoding, options: _Streaming) -> "Generation":
        """What follows ``prompt`` as a report: every step, the texts, what the cache holds, what int8 weights cost.

        Settings and errors are those of ``stream``.
        """
        from tinytf.generate.report import Generation, with_cost

        encoding = self._prompt(prompt, options.truncate)
        cache = cache_for(self.transformer, encoding.ids, options)
        steps = self._stream(encoding, replace(options, cache=cache))
        timed = [(step, time.perf_counter()) for step in steps]
        use = None if cache is None else tuple(cache.use())
        made, times = tuple(step for step, _ in timed), tuple(at for _, at in timed)
        found = replace(Generation.begin(About(self), encoding, options), steps=made, times=times, cache=use)
        return with_cost(found, self.transformer)

    @by_keyword(_Searching)
    def beam_search(self, prompt: str | Encoding, options: _Searching) -> "BeamSearch":
        """What ``beams`` finds from ``prompt`` as a report; settings and errors are the same."""
        from tinytf.generate.report import BeamSearch, with_cost

        encoding = self._prompt(prompt, options.truncate)
        steps = tuple(self._beams(encoding, options))
        return with_cost(replace(BeamSearch.begin(About(self), encoding, options), steps=steps), self.transformer)

    def compare_cache(self, prompt: str, *, max_tokens: int = 50, truncate: bool = False) -> "CacheComparison":
        """Time and work of every greedy step after ``prompt``, with a cache and without; errors as for ``stream``."""
        from tinytf.generate.compared import compare_cache
        from tinytf.generate.report import CacheComparison

        encoding = self._prompt(prompt, truncate)
        steps = tuple(compare_cache(self.transformer, encoding.ids, max_tokens))
        return replace(CacheComparison.begin(About(self), encoding, self.transformer), steps=steps)

    def _stream(self, prompt: str | Encoding, options: _Streaming) -> Iterator[Step]:
        ids, tokenizer = self._prompt(prompt, options.truncate).ids, self.tokenizer
        known = replace(options, ends=options.ends or tokenizer.end_ids, decode=options.decode or tokenizer.decode)
        return streamed(self.transformer, ids, known)

    def _texts(self, prompt: str | Encoding, options: _Streaming) -> list[str]:
        found = [""] * options.samples
        for step in self._stream(prompt, options):
            found[step.sample - 1] += step.text
        return found

    def _beams(self, encoding: Encoding, options: _Searching) -> Iterator[BeamStep]:
        known = replace(options, ends=options.ends or self.tokenizer.end_ids)
        return searched(self.transformer, encoding.ids, known)

    def _prompt(self, prompt: str | Encoding, truncate: bool) -> Encoding:
        require_decoder(self.config)
        return self.prompt(prompt, truncate=truncate) if isinstance(prompt, str) else prompt

    def text_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ``ids`` where they follow ``before``: a piece by itself can lose its leading space."""
        return text_after(self.tokenizer.decode, before, ids)

    def score(self, text: str, *, truncate: bool = False, int8: bool = False) -> Score:
        """How well the model predicted each token of ``text``, and with ``int8`` what 8-bit weights cost.

        Raises UsageError as ``encode`` does, and for a text of one token.
        """
        require_decoder(self.config)
        encoding = self.encode(text, truncate=truncate)
        found = score(self.transformer, encoding.ids)
        cost = quantization_cost(self.transformer, encoding.ids) if int8 else None
        return self._of(replace(found, int8_cost=cost), encoding)


def _found(trace: Trace, at: Sequence[str | Address]) -> tuple[Address, ...]:
    return tuple(trace.address(one) if isinstance(one, str) else one for one in at)


def _listed(at: str | Sequence[str]) -> Sequence[str]:
    return [at] if isinstance(at, str) else at


def named_places(trace: Trace, words: str, option: str = "--position") -> tuple[int, ...]:
    """The positions of a text that words mean: ``2``, ``0-3,7``, ``-1``, ``all``, or a token of the text.

    Raises UsageError for a position or a token that is not there, and for a token that comes more than once.
    """
    from tinytf.gradients.targets import named_positions

    length = len(trace.tokens)
    if words == "all":
        return tuple(range(length))
    if re.fullmatch(r"[0-9][0-9,\s-]*", words):
        return named_positions(words, length, option)
    return (trace.index(words, "token", length),)
