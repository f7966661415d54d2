"""Going on from a text with an open model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tinytf.generate.beam import BeamOptions, BeamStep, searched
from tinytf.generate.loop import Step, StreamOptions, streamed
from tinytf.generate.options import by_keyword
from tinytf.generate.pieces import Pieces
from tinytf.generate.score import Score, score
from tinytf.model.cache import require_decoder
from tinytf.opened.base import Opened
from tinytf.text.tokenizer import Encoding


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
class Generating(Opened):
    """What a model says next, and how well it foresees what is said.

    A prompt is a text, which ``truncate`` cuts where it is too long, or what ``prompt`` made of one. Texts end at the
    tokenizer's end tokens unless ``ends`` names others.
    """

    @by_keyword(_Streaming)
    def stream(self, prompt: str | Encoding, options: _Streaming) -> Iterator[Step]:
        """Go on from ``prompt``, a Step a token, as soon as it is there; greedy unless ``sampling`` says otherwise.

        Settings are those of ``tinytf.generate.loop.StreamOptions``, errors those of ``stream`` there.
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
        """Beam search from ``prompt``; settings are ``tinytf.generate.beam.BeamOptions``, errors those of ``search``.

        The last step's ``finished`` are the continuations, the best first; ``text_after`` makes text of their ids.
        """
        ids = self._ids(prompt, options.truncate)
        return searched(self.transformer, ids, replace(options, ends=options.ends or self.tokenizer.end_ids))

    def _stream(self, prompt: str | Encoding, options: _Streaming) -> Iterator[Step]:
        ids, tokenizer = self._ids(prompt, options.truncate), self.tokenizer
        known = replace(options, ends=options.ends or tokenizer.end_ids, decode=options.decode or tokenizer.decode)
        return streamed(self.transformer, ids, known)

    def _texts(self, prompt: str | Encoding, options: _Streaming) -> list[str]:
        found = [""] * options.samples
        for step in self._stream(prompt, options):
            found[step.sample - 1] += step.text
        return found

    def _ids(self, prompt: str | Encoding, truncate: bool) -> list[int]:
        require_decoder(self.config)
        return (self.prompt(prompt, truncate=truncate) if isinstance(prompt, str) else prompt).ids

    def text_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of ``ids`` where they follow ``before``: a piece by itself can lose its leading space."""
        pieces = Pieces(self.tokenizer.decode, before, ())
        return "".join(pieces.add(token_id) for token_id in ids) + pieces.rest()

    def score(self, text: str, *, truncate: bool = False) -> Score:
        """How well the model foresaw each token of ``text``; errors as of ``encode`` and of a text of one token."""
        require_decoder(self.config)
        return score(self.transformer, self.encode(text, truncate=truncate).ids)
