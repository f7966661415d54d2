"""A transformer with its tokenizer, and all that can be asked of it."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

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
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text.words import find_token
from tinytf.trace.address import Address
from tinytf.trace.record import record
from tinytf.trace.trace import Text, Trace

if TYPE_CHECKING:
    from tinytf.checkpoints.huggingface.export import Exported
    from tinytf.generate.report import BeamSearch, CacheComparison, Generation
    from tinytf.gradients.report import Backward
    from tinytf.gradients.trace import GradientTrace

Found = TypeVar("Found", bound=Report)
P = ParamSpec("P")
Answer = TypeVar("Answer")


class Question(Generic[P, Answer]):
    """A function of a model, as a method of it; its file is imported when it is first asked."""

    def __init__(self, find: Callable[[], Callable[Concatenate["Model", P], Answer]]) -> None:
        self._find = find

    @overload
    def __get__(self, model: None, of: type) -> Callable[Concatenate["Model", P], Answer]: ...
    @overload
    def __get__(self, model: "Model", of: type) -> Callable[P, Answer]: ...
    def __get__(self, model: "Model | None", of: type) -> Any:
        function: Any = self._find()
        return function.__get__(model, of)


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

    def find_token(self, word: str | int, option: str = "target") -> int:
        """The id of the one token that ``word`` is where it continues a text, or fills a mask; ``#514`` or 514 is 514.

        Raises UsageError, which names the ``option``, for what is not one token of the vocabulary.
        """
        count, word = self.config.vocab_size, word if isinstance(word, str) else f"#{word}"
        found = find_token(self.tokenizer, word, causal=self.config.causal, option=option, vocabulary=count)
        if found >= count:
            raise UsageError(f"{option} {word!r} has id {found}, and the model knows {count:,} tokens")
        return found

    def _trace(self, text: Text, *, truncate: bool = False, force: bool = False) -> Trace:
        return self.trace(text, truncate=truncate, force=force) if isinstance(text, str) else text

    def optional_token(self, word: str | int | None, option: str = "target") -> int | None:
        """``find_token`` of a word that may be missing."""
        return None if word is None else self.find_token(word, option)

    # Looking

    def trace(
        self, text: Text, *, truncate: bool = False, layers: Collection[int] | None = None, force: bool = False
    ) -> Trace:
        """Record every step of ``text`` through the model, or those of ``layers``; a trace is itself.

        Raises as ``record`` does.
        """
        if isinstance(text, Trace):
            return text
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

    explain = Question(lambda: analysis.arithmetic.explain)
    lens = Question(lambda: analysis.lens.lens)

    attribute = Question(lambda: analysis.attribution.attribute)

    neurons = Question(lambda: analysis.neurons.neurons)
    top_examples = Question(lambda: analysis.examples.top_examples)
    heads = Question(lambda: analysis.census.heads)
    rollout = Question(lambda: analysis.rollout.rollout)

    # Whole passes as reports

    tokens = Question(lambda: analysis.tokens.tokens)

    traced = Question(lambda: analysis.traced.traced)

    attention = Question(lambda: analysis.attended.attention)

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
        addresses = trace.addresses(at)
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
            tuple(derive(trace, where) for where in trace.addresses(derived)),
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

    diff = Question(lambda: analysis.difference.diff)
    reference = Question(lambda: analysis.interventions.reference)
    ablate = Question(lambda: analysis.interventions.ablate)
    ablation_sweep = Question(lambda: analysis.interventions.ablation_sweep)
    ablated = Question(lambda: analysis.interventions.ablated)
    without = Question(lambda: analysis.interventions.without)
    patch = Question(lambda: analysis.interventions.patch)
    patch_sweep = Question(lambda: analysis.interventions.patch_sweep)

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
