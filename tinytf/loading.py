"""Opening a model by what a user calls it, and what can be done with it at once."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tinytf.checkpoints.weights import not_finite
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, TokenizerError, UsageError
from tinytf.generate.beam import BeamStep, search
from tinytf.generate.decoder import PLAIN, Kind
from tinytf.generate.loop import Looking, Step, stream
from tinytf.generate.pieces import Pieces
from tinytf.generate.samplers import Sampling
from tinytf.generate.score import Score, score
from tinytf.model.cache import KVCache, require_decoder
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.sources import PresetSource, RunSource, Source, find_source
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

if TYPE_CHECKING:
    from tinytf.analysis.arithmetic import Explanation
    from tinytf.analysis.attribution import Attribution
    from tinytf.analysis.census import Census, Progress
    from tinytf.analysis.difference import Difference
    from tinytf.analysis.examples import Examples
    from tinytf.analysis.lens import Lens
    from tinytf.analysis.neurons import Neurons
    from tinytf.analysis.rollout import Rollout
    from tinytf.gradients.trace import GradientTrace
    from tinytf.training.corpus import Corpus

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class Model:
    """A transformer with its tokenizer.

    ``source`` says what it is, ``tokenizer_note`` whose the vocabulary is, ``file_notes`` what was passed over in its
    files. ``corpus`` is a text of the kind that it was trained on, where one is known.
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
        """What a user should know: what was passed over in the files, and weights that are no finite numbers."""
        return (*self.file_notes, *not_finite(dict(self.transformer.named_parameters())))

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

    @cached_property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.transformer.parameters())

    def encode(self, text: str, *, truncate: bool = False) -> Encoding:
        """Tokens of ``text`` as this model takes them.

        Raises UsageError for a text without a word, or longer than the context; ``truncate`` cuts its end instead.
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
                "shorten it, or cut it on purpose with --truncate",
            )
        return encoding.truncated(limit)

    def trace(
        self, text: str, *, truncate: bool = False, layers: Collection[int] | None = None, force: bool = False
    ) -> Trace:
        """Record every step of ``text`` through the model, or those of ``layers``; errors as of ``record``."""
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

        The trace has every gradient by its address: ``trace.grad["L3H5.weights"]``. Errors as of ``choose_targets`` and
        ``record_gradients``.
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
        self, text: str | Trace, address: str, *, depth: int = 1, top: int = 8, temperature: float = 1.0
    ) -> "tuple[Explanation, ...]":
        """The arithmetic behind the one number at ``address`` of a text, or of its trace; then what that came from.

        One Explanation a cell, ``depth`` steps back, as ``tinytf.analysis.arithmetic.follow`` says, whose errors these
        are too.
        """
        from tinytf.analysis.arithmetic import follow

        trace = self.trace(text) if isinstance(text, str) else text
        found = follow(trace, address, depth=depth, top=top, temperature=temperature, tokenizer=self.tokenizer)
        return tuple(found)

    def heads(
        self,
        corpus: str | Path | None = None,
        *,
        text: str | None = None,
        random_only: bool = False,
        length: int | None = None,
        count: int = 16,
        seed: int = 0,
        progress: "Progress" = lambda done, of: None,
    ) -> "Census":
        """What every head does: its scores on random tokens said twice, and on a file or folder of text, or a ``text``.

        Without either the text is the model's own corpus, where one is known, unless ``random_only`` says none. Other
        settings as of ``tinytf.analysis.census.census``; errors too, and those of ``text_windows``.
        """
        from tinytf.analysis.census import census, copy_length
        from tinytf.training.windows import text_windows

        before, after = self.tokenizer.around()
        if self.config.causal:
            after = [token for token in after if token not in self.tokenizer.end_ids]  # what comes next is open
        copy = copy_length(self.config, length, added=len(before) + len(after))
        file = self.corpus if corpus is None and not random_only else corpus
        source = text if text is not None or file is None else [Path(file)]
        windows = () if source is None else text_windows(
            source, self.tokenizer, self.config.vocab_size, 2 * copy, before, after
        )  # fmt: skip
        return census(
            self.transformer, windows, length=copy, count=count, seed=seed, before=before, after=after,
            progress=progress,
        )  # fmt: skip

    def rollout(
        self,
        text: str | Trace,
        *,
        heads: str = "mean",
        layer: int | None = None,
        flow: Sequence[int] = (),
        force: bool = False,
        progress: "Progress" = lambda done, of: None,
    ) -> "Rollout":
        """How much of each token of a text, or of its trace, attention brings to every position, up to ``layer``.

        Settings and errors as of ``tinytf.analysis.rollout.rollout``.
        """
        from tinytf.analysis.rollout import rollout

        trace = self.trace(text, force=force) if isinstance(text, str) else text
        return rollout(trace, heads=heads, layer=layer, flow=flow, force=force, progress=progress)

    def diff(
        self,
        text: str,
        other: "str | Model",
        *,
        tolerance: float | None = None,
        head: str | None = None,
        top: int = 5,
        truncate: bool = False,
        force: bool = False,
    ) -> "Difference":
        """What is different, step by step, on another text, or on another model (or dtype) with this text.

        ``head`` is an address such as ``L3H5``. Errors and settings as of ``tinytf.analysis.difference.difference``.
        """
        from tinytf.analysis.alignment import Side
        from tinytf.analysis.difference import difference, parse_head
        from tinytf.trace.steps import StepTable

        versus, words = (self, other) if isinstance(other, str) else (other, text)
        sides = [Side(model.transformer, model.tokenizer, model.encode(words, truncate=truncate))
                 for model, words in ((self, text), (versus, words))]  # fmt: skip
        where = None if head is None else parse_head(head, StepTable(self.config))
        return difference(*sides, tolerance=tolerance, head=where, top=top, force=force)

    def neurons(
        self,
        text: str | Trace,
        *,
        layer: int | None = None,
        top: int = 3,
        by: str = "activation",
        units: Sequence[str] = (),
        tokens: int = 5,
    ) -> "Neurons":
        """The feed-forward units that are most active at each token of a text, or of its trace.

        With ``units`` such as ``L3.17`` these; errors and settings as of ``tinytf.analysis.neurons.neurons``.
        """
        from tinytf.analysis.neurons import neurons, parse_unit

        chosen = [parse_unit(unit, self.config) for unit in units]
        layers = sorted({unit.layer for unit in chosen}) if chosen else None if layer is None else [layer]
        trace = self.trace(text, layers=layers) if isinstance(text, str) else text
        return neurons(trace, top=top, by=by, units=chosen, tokens=tokens)

    def top_examples(
        self,
        corpus: "Corpus",
        units: Sequence[str],
        *,
        top: int = 5,
        window: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> "Examples":
        """Where in a corpus, of ``tinytf.training.corpus.find_files``, each of ``units`` is most active.

        The corpus is read as a stream, in windows of ``window`` tokens (the context, or 128 if that is longer);
        ``on_progress`` is told how many of its characters were read. Errors as of ``tinytf.analysis.examples``.
        """
        from tinytf.analysis.examples import top_examples, windows_of
        from tinytf.analysis.neurons import parse_unit
        from tinytf.training.stream import between_words

        length = min(self.config.context, 128) if window is None else window
        if length > self.config.context:
            raise UsageError(
                f"a window of {length:,} tokens is more than the model's context of {self.config.context:,}"
            )
        chosen = [parse_unit(unit, self.config) for unit in units]
        total = sum(file.paragraph_characters for file in corpus.files)

        def pieces() -> Iterator[tuple[str, bool]]:
            read = 0
            for text, ends in corpus.documents().pieces(between_words):
                yield text, ends
                read += len(text)
                if on_progress is not None:
                    on_progress(min(read, total), total)

        windows = windows_of(self.tokenizer, pieces(), length, self.config.vocab_size)
        return top_examples(self.transformer, windows, chosen, top)

    def lens(
        self,
        text: str | Trace,
        *,
        position: str | None = None,
        top: int = 5,
        track: Sequence[str] = (),
        sublayers: bool = False,
        on_progress: Callable[[int, int], None] = lambda done, of: None,
        truncate: bool = False,
        force: bool = False,
    ) -> "Lens":
        """What the residual stream of a text, or of its trace, says after each layer, read by the model's own head.

        ``position`` is as ``2``, ``0-3,7``, ``-1`` or a token of the text; ``track`` are words whose rank and
        probability are followed, each one token. Errors as of ``tinytf.analysis.lens.lens`` and ``find_token``.
        """
        from tinytf.analysis.lens import lens, require_readable
        from tinytf.gradients.targets import find_token

        require_readable(self.transformer)
        causal = self.config.causal
        tracked = [find_token(self.tokenizer, word, causal=causal, option="--track") for word in track]
        trace = self.trace(text, truncate=truncate, force=force) if isinstance(text, str) else text
        places = None if position is None else named_places(trace, position)
        return lens(trace, places, top=top, tracked=tracked, sublayers=sublayers, on_progress=on_progress, force=force)

    def attribute(
        self,
        text: str | Trace,
        *,
        token: str | None = None,
        versus: str | None = None,
        position: str | None = None,
        truncate: bool = False,
        force: bool = False,
    ) -> "Attribution":
        """What each part of the model adds to the logit of ``token`` (the predicted one), or to its lead over another.

        ``position`` is as ``-1`` or a token of the text. Errors as of ``tinytf.analysis.attribution.attribute`` and
        ``find_token``.
        """
        from tinytf.analysis.attribution import attribute, require_logits
        from tinytf.gradients.targets import find_token

        require_logits(self.transformer)
        causal = self.config.causal
        chosen = None if token is None else find_token(self.tokenizer, token, causal=causal, option="--token")
        other = None if versus is None else find_token(self.tokenizer, versus, causal=causal, option="--versus")
        trace = self.trace(text, truncate=truncate, force=force) if isinstance(text, str) else text
        places = None if position is None else named_places(trace, position)
        if places is not None and len(places) > 1:
            raise UsageError(
                f"--position {position!r} is {len(places)} positions", "one logit is taken apart at a time"
            )
        return attribute(trace, None if places is None else places[0], chosen, other)

    def prompt(self, text: str, *, truncate: bool = False) -> Encoding:
        """Tokens of ``text`` to go on from: no end token behind it, and the start token alone where it is empty.

        Errors as of ``encode``, and UsageError for an empty text without a start token.
        """
        if not text:
            start = self.tokenizer.start()
            if start is None:
                raise UsageError(
                    "the text is empty, and this model has no start token", "give a few words, such as: The cat sat"
                )
            return start
        return self.encode(text, truncate=truncate).open_ended(self.tokenizer.end_ids)

    def stream(
        self,
        prompt: str | Encoding,
        *,
        max_tokens: int = 50,
        sampling: Sampling | None = None,
        seed: int = 0,
        samples: int = 1,
        stops: Sequence[str] = (),
        truncate: bool = False,
        use_cache: bool = True,
        cache: KVCache | None = None,
        on_overflow: str = "stop",
        top: int = 0,
        looking: Looking | None = None,
        chunk: int = 0,
        kind: Kind = PLAIN,
    ) -> Iterator[Step]:
        """Go on from ``prompt``, a Step a token, as soon as it is there; greedy unless ``sampling`` says otherwise.

        The prompt is a text, or what ``prompt`` made of one.

        Ends as ``tinytf.generate.loop.stream`` says, which explains the settings and whose errors these are too, and
        at the tokenizer's end tokens.
        """
        require_decoder(self.config)
        return stream(
            self.transformer,
            self._prompted(prompt, truncate).ids,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=seed,
            samples=samples,
            use_cache=use_cache,
            cache=cache,
            ends=self.tokenizer.end_ids,
            decode=self.tokenizer.decode,
            stops=stops,
            on_overflow=on_overflow,
            top=top,
            looking=looking,
            chunk=chunk,
            kind=kind,
        )

    def _prompted(self, prompt: str | Encoding, truncate: bool) -> Encoding:
        return self.prompt(prompt, truncate=truncate) if isinstance(prompt, str) else prompt

    def generate(self, prompt: str | Encoding, **settings: Any) -> str:
        """The text that follows ``prompt``, without it; ``settings`` are those of ``stream``."""
        return self.samples(prompt, 1, **settings)[0]

    def samples(self, prompt: str | Encoding, n: int, **settings: Any) -> list[str]:
        """``n`` texts that follow ``prompt``, drawn side by side; ``settings`` are those of ``stream``."""
        found = [""] * n
        for step in self.stream(prompt, samples=n, **settings):
            found[step.sample - 1] += step.text
        return found

    def beams(self, prompt: str | Encoding, *, truncate: bool = False, **settings: Any) -> Iterator[BeamStep]:
        """Beam search from ``prompt``; ``settings`` are those of ``tinytf.generate.beam.search``, errors too.

        The last step's ``finished`` are the continuations, the best first; ``text_after`` makes text of their ids.
        """
        require_decoder(self.config)
        ids = self._prompted(prompt, truncate).ids
        return search(self.transformer, ids, ends=self.tokenizer.end_ids, **settings)

    def text_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ``ids`` where they follow ``before``: a piece by itself can lose its leading space."""
        pieces = Pieces(self.tokenizer.decode, before, ())
        return "".join(pieces.add(token_id) for token_id in ids) + pieces.rest()

    def score(self, text: str, *, truncate: bool = False) -> Score:
        """How well the model foresaw each token of ``text``; errors as of ``encode`` and of a text of one token."""
        require_decoder(self.config)
        return score(self.transformer, self.encode(text, truncate=truncate).ids)


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


def pick_device(device: str) -> torch.device:
    """The torch device of a word; ``auto`` is the first of cuda, mps, cpu that is there.

    Raises UsageError when the named one is not available here.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, available in there.items() if available))
    if device not in DEVICES:
        raise UsageError(f"there is no device {device!r}", did_you_mean(device, DEVICES))
    if not there[device]:
        raise UsageError(
            f"{device} is not available here", f"available: {', '.join(n for n, ok in there.items() if ok)}"
        )
    return torch.device(device)


def load(model: str = "tiny", *, device: str = "auto", dtype: str = "float32", seed: int = 0) -> Model:
    """Open a model: ``tiny``, ``tiny-encoder``, a path (run directory, directory of transformers, ``.gguf`` file),
    ``preset:NAME`` or ``hub:ORG/NAME``.

    ``seed`` makes the weights of a preset. Raises UsageError for a name that is nothing known (with the nearest),
    CheckpointError for files that are damaged or of an architecture that is not implemented.
    """
    if dtype not in DTYPES:
        raise UsageError(f"there is no dtype {dtype!r}", did_you_mean(dtype, DTYPES))
    return open_source(find_source(model), device=device, dtype=dtype, seed=seed)


def open_source(source: Source, *, device: str = "auto", dtype: str = "float32", seed: int = 0) -> Model:
    """The model of a source, on a device and in a dtype; errors as of ``load``."""
    where = pick_device(device)
    config, vocabulary = source.config(), source.vocabulary()
    notes: tuple[str, ...] = ()
    if vocabulary.tokenizer.vocab_size > config.vocab_size:
        said = f"the tokenizer has {vocabulary.tokenizer.vocab_size:,} tokens, the model room for {config.vocab_size:,}"
        if isinstance(source, RunSource):
            raise CheckpointError(f"{source.where}: {said}")
        notes = (said,)
    weighed = source.weigh(DTYPES[dtype], seed)
    words = f"{source.where}, seed {seed}" if isinstance(source, PresetSource) else source.where
    transformer = weighed.transformer.to(device=where)
    return Model(
        source.name,
        transformer,
        vocabulary.tokenizer,
        words,
        vocabulary.note,
        (*notes, *weighed.notes),
        source.corpus(),
    )
