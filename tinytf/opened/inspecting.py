"""Looking into an open model: its steps, their gradients and arithmetic, and what leads to a prediction."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf.errors import UsageError
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

if TYPE_CHECKING:
    from tinytf.analysis.arithmetic import Explanation
    from tinytf.analysis.attribution import Attribution
    from tinytf.analysis.census import Census, Progress
    from tinytf.analysis.examples import Examples
    from tinytf.analysis.lens import Lens
    from tinytf.analysis.neurons import Neurons
    from tinytf.analysis.rollout import Rollout
    from tinytf.gradients.trace import GradientTrace
    from tinytf.training.corpus import Corpus

from tinytf.opened.base import Opened


@dataclass(frozen=True)
class Inspecting(Opened):
    """What can be seen in a model; each method is a thin one over the function that its docstring names."""

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

        require_readable(self.transformer)
        tracked = [self.find_token(word, "--track") for word in track]
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

        require_logits(self.transformer)
        chosen = None if token is None else self.find_token(token, "--token")
        other = None if versus is None else self.find_token(versus, "--versus")
        trace = self.trace(text, truncate=truncate, force=force) if isinstance(text, str) else text
        places = None if position is None else named_places(trace, position)
        if places is not None and len(places) > 1:
            raise UsageError(
                f"--position {position!r} is {len(places)} positions", "one logit is taken apart at a time"
            )
        return attribute(trace, None if places is None else places[0], chosen, other)

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
