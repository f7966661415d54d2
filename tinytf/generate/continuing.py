"""Continuations of a text by a model.

A prompt is a text, which ``truncate`` shortens where it is too long, or the result of ``Model.prompt``. Continuations
stop at the tokenizer's end tokens unless ``ends`` names others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tinytf.generate.beam import BeamOptions, BeamStep, search_with
from tinytf.generate.loop import GeneratedToken, StreamOptions, stream_with
from tinytf.generate.options import by_keyword
from tinytf.generate.pieces import text_of
from tinytf.model.cache import require_decoder
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding, Tokenizer
from tinytf.text_model import TextModel


@dataclass(frozen=True, kw_only=True)
class Streaming(StreamOptions):
    """The settings of ``stream``."""

    truncate: bool = False


@dataclass(frozen=True, kw_only=True)
class Several(Streaming):
    """The settings of ``samples``."""

    n: int = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class Searching(BeamOptions):
    """The settings of ``beams``."""

    truncate: bool = False


def encoded(model: TextModel, prompt: Written | Encoding, *, truncate: bool) -> Encoding:
    """The tokens of a prompt. Raises UsageError for an encoder, and whatever ``Model.prompt`` raises."""
    require_decoder(model.config)
    return prompt if isinstance(prompt, Encoding) else model.prompt(prompt, truncate=truncate)


@by_keyword(Streaming)
def stream(model: TextModel, prompt: Written | Encoding, options: Streaming) -> Iterator[GeneratedToken]:
    """Continue ``prompt`` and yield each token as soon as it is computed; greedy unless ``sampling`` says otherwise.

    Settings are those of ``tinytf.generate.loop.StreamOptions``; raises as ``tinytf.generate.loop.stream`` does.
    """
    return steps_after(model, prompt, options)


def steps_after(model: TextModel, prompt: Written | Encoding, options: Streaming) -> Iterator[GeneratedToken]:
    """``stream`` with the settings as one object."""
    ids = encoded(model, prompt, truncate=options.truncate).ids
    return stream_with(model.transformer, ids, with_ends(model.tokenizer, options))


def with_ends(tokenizer: Tokenizer, options: Streaming) -> Streaming:
    """The settings with the tokenizer's decoding and end tokens; a stop that is a special token ends a text too."""
    marks = {stop: token_id for stop in options.stops if (token_id := tokenizer.special_id(stop)) is not None}
    return replace(
        options,
        ends=(*(options.ends or tokenizer.end_ids), *marks.values()),
        stops=[stop for stop in options.stops if stop not in marks],
        decode=options.decode or tokenizer.decode,
    )


@by_keyword(Streaming)
def generate(model: TextModel, prompt: Written | Encoding, options: Streaming) -> str:
    """The text that follows ``prompt``, without the prompt; settings are those of ``stream``."""
    return _texts(model, prompt, replace(options, samples=1))[0]


@by_keyword(Several)
def samples(model: TextModel, prompt: Written | Encoding, options: Several) -> list[str]:
    """``n`` texts that follow ``prompt``, drawn together; settings are those of ``stream``."""
    return _texts(model, prompt, replace(options, samples=options.n))


def _texts(model: TextModel, prompt: Written | Encoding, options: Streaming) -> list[str]:
    texts = [""] * options.samples
    for step in steps_after(model, prompt, options):
        texts[step.sample - 1] += step.text
    return texts


@by_keyword(Searching)
def beams(model: TextModel, prompt: Written | Encoding, options: Searching) -> Iterator[BeamStep]:
    """Beam search from ``prompt``; settings are ``tinytf.generate.beam.BeamOptions``; raises as ``search`` does.

    The last step's ``finished`` are the continuations, best first; ``text_after`` turns their ids into text.
    """
    return beams_after(model, prompt, options)


def beams_after(model: TextModel, prompt: Written | Encoding, options: Searching) -> Iterator[BeamStep]:
    """``beams`` with the settings as one object."""
    ids = encoded(model, prompt, truncate=options.truncate).ids
    return search_with(model.transformer, ids, replace(options, ends=options.ends or model.tokenizer.end_ids))


def text_after(model: TextModel, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text of ``ids`` after the ids ``before``; decoded alone, a piece can lose its leading space."""
    return text_of(model.tokenizer.decode, before, ids)
